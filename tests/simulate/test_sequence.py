import hashlib
import json
import shutil

import numpy as np
import pytest

from lifcal.camera import read_camera, read_grid
from lifcal.errors import ConfigError, DataError, InputError
from lifcal.geometry import read_tum
from lifcal.imaging.files import read_image
from lifcal.simulate import CAMERAS, SensorOptions, Simulation, SimulationOptions, write_sequence
from tests.reference.raycast import cast_rays

OPTIONS = SimulationOptions(camera="mini", scene="cube", frames=2, seed=3, rays_per_pixel=2)


def fingerprint(folder):
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture(scope="module")
def recording(tmp_path_factory):
    folder = tmp_path_factory.mktemp("simulated") / "sequence"
    simulation = Simulation(OPTIONS)
    write_sequence(folder, simulation)
    return folder, simulation


def test_everything_is_there(recording):
    folder, _ = recording
    expected = {
        "raw/0000.png",
        "raw/0001.png",
        "white.png",
        "simulation.json",
        "truth/recording.json",
        "truth/camera.json",
        "truth/grid.json",
        "truth/poses.txt",
        "truth/markers.json",
        "truth/pinhole.json",
        "truth/pinhole/0000.png",
        "truth/pinhole/0001.png",
        "truth/depth/0000.tiff",
        "truth/depth/0001.tiff",
    }
    assert set(fingerprint(folder)) == expected


def test_same_seed_same_bytes(recording, tmp_path):
    folder, _ = recording
    write_sequence(tmp_path / "again", Simulation(OPTIONS))
    assert fingerprint(tmp_path / "again") == fingerprint(folder)


def test_another_seed_other_bytes(recording):
    _, simulation = recording
    other = Simulation(SimulationOptions(**{**vars(OPTIONS), "seed": 4}))
    assert (other.render_white() != simulation.render_white()).any()


def test_truth_reads_back(recording):
    folder, simulation = recording
    camera = read_camera(folder / "truth" / "camera.json")
    assert camera.parameters == simulation.optics.camera.parameters
    assert camera.distortion == simulation.optics.camera.distortion
    assert camera.scale_source == "simulation"
    # Files hold the deviations of single lenses in steps of 0.001 px.
    np.testing.assert_allclose(
        read_grid(folder / "truth" / "grid.json").centers_raw_px,
        simulation.optics.camera.grid.centers_raw_px,
        atol=0.0005 + 1e-9,
    )
    poses = read_tum(folder / "truth" / "poses.txt").world_from_cam
    for found, pose in zip(poses, simulation.trajectory.world_from_cam, strict=True):
        np.testing.assert_allclose(found.translation_mm, pose.translation_mm, atol=1e-8)
        np.testing.assert_allclose(found.rotation, pose.rotation, atol=1e-10)


def test_depth_maps_are_metric_and_aligned_with_poses(recording, rng):
    """Points from depth map, pinhole.json and poses.txt lie on the scene's surfaces."""
    folder, simulation = recording
    pinhole = json.loads((folder / "truth" / "pinhole.json").read_text())
    pose = read_tum(folder / "truth" / "poses.txt").world_from_cam[1]
    depth = read_image(folder / "truth" / "depth" / "0001.tiff")
    assert depth.dtype == np.float32
    assert depth.shape == (pinhole["height"], pinhole["width"])
    cols, rows = rng.integers(0, pinhole["width"], 200), rng.integers(0, pinhole["height"], 200)
    slopes = np.stack(
        [(cols - pinhole["cx"]) / pinhole["fx"], (rows - pinhole["cy"]) / pinhole["fy"]], axis=1
    )
    directions = np.column_stack([slopes, np.ones(200)]) @ pose.rotation.T
    hits = cast_rays(simulation.scene, pose.translation_mm, directions)
    np.testing.assert_allclose(depth[rows, cols], hits.depth, rtol=1e-5)


def test_markers_are_written_with_size_and_distances(recording):
    folder, simulation = recording
    content = json.loads((folder / "truth" / "markers.json").read_text())
    assert content["dictionary"] == "DICT_6X6_250"
    assert len(content["markers"]) == len(simulation.scene.markers)
    first, second = content["markers"][:2]
    centers = [np.mean(marker["corners_world_mm"], axis=0) for marker in (first, second)]
    (distance,) = (
        entry["mm"]
        for entry in content["distances_mm"]
        if {entry["id1"], entry["id2"]} == {first["id"], second["id"]}
    )
    assert distance == pytest.approx(np.linalg.norm(centers[0] - centers[1]))


def test_an_interrupted_run_goes_on(recording, tmp_path):
    folder, _ = recording
    interrupted = tmp_path / "sequence"
    simulation = Simulation(OPTIONS)

    def stop(index, frame):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_sequence(interrupted, simulation, on_frame=stop)
    assert (interrupted / "raw" / "0000.png").exists()
    assert not (interrupted / "raw" / "0001.png").exists()
    rendered = []
    write_sequence(
        interrupted, simulation, on_frame=lambda index, frame: rendered.append(frame is not None)
    )
    assert rendered == [False, True]
    assert fingerprint(interrupted) == fingerprint(folder)


def test_damaged_frames_are_made_again(recording, tmp_path):
    folder, simulation = recording
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    (copy / "raw" / "0001.png").write_bytes(b"")
    (copy / "truth" / "depth" / "0000.tiff").unlink()
    write_sequence(copy, simulation)
    assert fingerprint(copy) == fingerprint(folder)


@pytest.mark.parametrize("change", [{"scene_scale": 2.0}, {"micro_aperture": 0.5}])
def test_every_option_tells_recordings_apart(change, recording):
    folder, _ = recording
    before = fingerprint(folder)
    other = Simulation(SimulationOptions(**{**vars(OPTIONS), **change}))
    with pytest.raises(DataError, match="holds another simulation"):
        write_sequence(folder, other)
    assert fingerprint(folder) == before


def test_another_version_does_not_mix_its_frames(recording, tmp_path):
    folder, simulation = recording
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    record = json.loads((copy / "simulation.json").read_text())
    record["lifcal_version"] = "0.0.1"
    (copy / "simulation.json").write_text(json.dumps(record))
    with pytest.raises(DataError, match=r"lifcal_version is '0\.0\.1'"):
        write_sequence(copy, simulation)


def test_a_folder_with_something_else_is_not_touched(recording, tmp_path):
    folder, _ = recording
    before = fingerprint(folder)
    other = Simulation(SimulationOptions(**{**vars(OPTIONS), "frames": 1}))
    with pytest.raises(DataError, match="frames is 2, not 1"):
        write_sequence(folder, other)
    assert fingerprint(folder) == before
    (tmp_path / "holiday.jpg").write_bytes(b"...")
    with pytest.raises(DataError, match="not empty"):
        write_sequence(tmp_path, other)
    with pytest.raises(DataError, match="is a file"):
        write_sequence(tmp_path / "holiday.jpg", other)
    assert list(tmp_path.iterdir()) == [tmp_path / "holiday.jpg"]


def test_sixteen_bit_bayer(tmp_path):
    options = SimulationOptions(
        camera="mini",
        scene="wall",
        frames=1,
        rays_per_pixel=1,
        bayer="rggb",
        sensor=SensorOptions(bits=12),
    )
    write_sequence(tmp_path / "out", Simulation(options))
    raw = read_image(tmp_path / "out" / "raw" / "0000.png")
    assert raw.dtype == np.uint16
    assert raw.shape == (480, 640)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"scene": "kitchen"}, ConfigError, "unknown scene 'kitchen'"),
        ({"camera": "r5-16"}, ConfigError, "Did you mean 'r5-16mm'"),
        ({"path": "spiral"}, ConfigError, "unknown path 'spiral'"),
        ({"frames": 0}, InputError, "frames is 0"),
        ({"seed": -1}, InputError, "seed is -1"),
        ({"micro_aperture": 2.0}, InputError, "micro_aperture is 2"),
        ({"scene_scale": -1.0}, InputError, "scene_scale is -1"),
        ({"scene_scale": float("inf")}, InputError, "scene_scale is inf"),
        ({"micro_aperture": 1e-300}, InputError, "micro_aperture is 1e-300"),
        ({"rays_per_pixel": 10**8}, InputError, "rays per pixel is 100000000"),
    ],
)
def test_wrong_options_are_named(options, error, message):
    with pytest.raises(error, match=message):
        Simulation(SimulationOptions(**{"camera": "mini", "scene": "wall", **options}))


@pytest.mark.parametrize("name", CAMERAS)
def test_every_camera_sees_its_scene_in_its_working_range(name):
    """The focal planes lie among the depths, and micro images overlap at every depth."""
    design = CAMERAS[name]
    options = SimulationOptions(camera=name, scene="wall", frames=1, rays_per_pixel=1)
    simulation = Simulation(options)
    camera = simulation.optics.camera
    near, far = design.working_range_mm
    middle = 2.0 / (1.0 / near + 1.0 / far)
    v = camera.paper_from_virtual_depth(camera.virtual_depth_from_depth([near, middle, far]))
    assert (np.abs(v) > 2.0).all()
    planes = np.sort(np.abs(design.focal_planes_v))
    assert planes[0] < np.abs(v).max()
    assert planes[-1] > np.abs(v).min()
    # Every camera but the macro one takes scenes at their own size.
    assert (simulation.scene_scale == 1.0) == (not name.startswith("r12-50mm"))
