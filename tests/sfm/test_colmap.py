"""Poses from true pinhole views of a simulated desk."""

import subprocess
import sys

import numpy as np
import pycolmap
import pytest
from scipy.spatial.transform import Rotation

from lifcal.errors import ConfigError, DataError, EstimationError, InputError
from lifcal.sfm import ColmapEngine, SfmOptions, SfmViews, colmap
from lifcal.sfm.depth_check import agree_with_depth
from lifcal.simulate import Simulation, SimulationOptions

FRAMES = 9
SCALE = 0.75
"""Of the views relative to the raw."""


class Recording:
    def __init__(self):
        simulation = Simulation(
            SimulationOptions(
                camera="mini", scene="desk", frames=FRAMES, rays_per_pixel=1, pinhole_scale=SCALE
            )
        )
        views = [simulation.render_frame(index).view for index in range(FRAMES)]
        # the eye of a camera sees more in the dark than linear values show
        self.images = [
            np.rint(255.0 * np.clip(view.color.mean(axis=-1), 0.0, 1.0) ** 0.5).astype(np.uint8)
            for view in views
        ]
        camera = simulation.optics.camera
        self.depths = [
            camera.virtual_depth_from_depth(view.depth_mm).astype(np.float32) for view in views
        ]
        self.focal_px = views[0].focal_px / SCALE
        self.principal_px = (views[0].principal_point_px + 0.5) / SCALE - 0.5
        self.trajectory = simulation.trajectory
        self.cam_from_world = [pose.inverse() for pose in simulation.trajectory.world_from_cam]


def reconstruct(images, masks, scale, options=None, *, depths=None, focal_px=None, **more):
    """What the engine finds in images, without the record that holds them."""
    engine = ColmapEngine(options or SfmOptions())
    views = SfmViews(images, masks, scale, depths, focal_px=focal_px)
    return engine.reconstruct(views, **more)


@pytest.fixture(scope="module")
def recording():
    return Recording()


@pytest.fixture(scope="module")
def model(recording):
    return reconstruct(recording.images, None, SCALE)


def test_a_reconstruction_that_is_doubted_is_made_again(recording):
    """Virtual depths judge: all frames registered does not mean that poses are right."""
    seen = []

    def judge(model):
        seen.append(model)
        return 9.0 if len(seen) == 1 else 0.3

    found = reconstruct(recording.images, None, SCALE, judge=judge)
    assert len(seen) == 2
    assert found is seen[1]
    # where all are doubted, the least bad one is taken
    seen.clear()

    def doubt(model):
        seen.append(model)
        return 9.0 - 0.1 * len(seen) if len(seen) != 2 else 3.0

    found = reconstruct(recording.images, None, SCALE, judge=doubt)
    assert len(seen) == 3
    assert found is seen[1]


def similarity(source, target):
    """Return (scale, rotation, shift) that takes points nearest to others (Umeyama)."""
    a, b = source - source.mean(axis=0), target - target.mean(axis=0)
    u, s, vt = np.linalg.svd(b.T @ a)
    sign = np.diag([1.0, 1.0, np.sign(np.linalg.det(u @ vt))])
    rotation = u @ sign @ vt
    scale = float(np.trace(np.diag(s) @ sign) / np.sum(a**2))
    return scale, rotation, target.mean(axis=0) - scale * rotation @ source.mean(axis=0)


def test_every_frame_is_registered(model, recording):
    assert model.registered.all()
    assert model.mean_error_px < 1.0
    assert len(model.points_sfm) > 200
    # every point in two views or more, sorted by point and view
    assert np.bincount(model.point_indices).min() >= 2
    order = np.lexsort((model.view_indices, model.point_indices))
    np.testing.assert_array_equal(order, np.arange(len(order)))


def test_focal_length_and_principal_point(model, recording):
    assert model.focal_px == pytest.approx(recording.focal_px, rel=0.01)
    # weak from nine views
    np.testing.assert_allclose(model.principal_px, recording.principal_px, atol=10.0)
    # a true pinhole view has no distortion: less than a pixel in the corner
    corner = np.array([[0.0, 0.0]])
    assert np.abs(model.distortion.distort(corner, model.principal_px) - corner).max() < 2.0


def test_poses(model, recording):
    found = np.array([-pose.rotation.T @ pose.translation_mm for pose in model.cam_from_sfm])
    true = recording.trajectory.positions_world_mm()
    scale, turn, shift = similarity(found, true)
    aligned = scale * found @ turn.T + shift
    length = recording.trajectory.length_mm()
    assert np.linalg.norm(aligned - true, axis=1).max() < 0.01 * length
    for pose, wanted in zip(model.cam_from_sfm, recording.cam_from_world, strict=True):
        off = Rotation.from_matrix(pose.rotation @ turn.T @ wanted.rotation.T).magnitude()
        assert off < np.deg2rad(1.0)
    # the checker can fail: two views swapped
    swapped = true[[1, 0, *range(2, FRAMES)]]
    scale, turn, shift = similarity(found, swapped)
    off = np.linalg.norm(scale * found @ turn.T + shift - swapped, axis=1)
    assert off.max() > 0.01 * length


def test_points_are_where_the_tracks_are(model):
    """The half pixel and the scale: points project to where they were found, in raw pixels."""
    poses = [(pose.rotation, pose.translation_mm) for pose in model.cam_from_sfm]
    misses = []
    for point, view, xy in zip(
        model.point_indices, model.view_indices, model.points_virt_px, strict=True
    ):
        rotation, shift = poses[view]
        x, y, z = rotation @ model.points_sfm[point] + shift
        ideal = model.principal_px + model.focal_px * np.array([x, y]) / z
        misses.append(model.distortion.distort(ideal[None], model.principal_px)[0] - xy)
    misses = np.array(misses)
    assert np.abs(np.median(misses, axis=0)).max() < 0.02
    # COLMAP's figure is that of before the last adjustment
    assert np.mean(np.linalg.norm(misses, axis=1)) == pytest.approx(
        model.mean_error_px / SCALE, rel=0.1
    )


def test_the_same_seed_gives_the_same_model(model, recording):
    again = reconstruct(recording.images, None, SCALE)
    assert again.focal_px == model.focal_px
    np.testing.assert_array_equal(again.points_sfm, model.points_sfm)
    np.testing.assert_array_equal(again.registered, model.registered)


def test_masks_are_respected(recording):
    """No feature where an image is not valid, however much texture there is."""
    rows, cols = recording.images[0].shape
    mask = np.ones((rows, cols), np.bool_)
    mask[:, : cols // 3] = False
    stages = []
    found = reconstruct(
        recording.images,
        [mask] * FRAMES,
        SCALE,
        focal_px=1.1 * recording.focal_px,
        on_stage=stages.append,
    )
    limit = (cols // 3) / SCALE - 1.0
    assert (found.points_virt_px[:, 0] > limit).all()
    assert stages == ["features", "matching", "mapping"]
    assert found.focal_px == pytest.approx(recording.focal_px, rel=0.02)


def test_the_mask_could_matter(model, recording):
    limit = (recording.images[0].shape[1] // 3) / SCALE - 1.0
    assert (model.points_virt_px[:, 0] < limit).mean() > 0.1


def test_retrieval(recording):
    """Every view with the three that look most like it: enough, for nine of one desk."""
    found = reconstruct(
        recording.images, None, SCALE, SfmOptions(matching="retrieval", neighbors=3)
    )
    assert found.registered.all()
    assert found.focal_px == pytest.approx(recording.focal_px, rel=0.02)


def test_ways_of_pairing():
    auto = SfmOptions()
    assert colmap._list_ways(auto, 16) == ["exhaustive"]
    assert colmap._list_ways(auto, 36) == ["sequential", "exhaustive"]
    assert colmap._list_ways(auto, 300) == ["sequential", "retrieval"]
    assert colmap._list_ways(SfmOptions(matching="retrieval"), 5) == ["retrieval"]


def test_depth_leaves_out_what_contradicts_it(recording, model, monkeypatch):
    asked = []

    def judge(points, u, others):
        agree = agree_with_depth(points, u, others)
        asked.append((len(agree), int(agree.sum())))
        return agree

    monkeypatch.setattr(colmap, "agree_with_depth", judge)
    found = reconstruct(recording.images, None, SCALE, depths=lambda i: recording.depths[i])
    tried, agreed = np.sum(asked, axis=0)
    assert len(asked) == 2 * FRAMES * (FRAMES - 1) // 2
    # The matches were verified already: nearly all are right, but not all.
    assert 0.95 * tried < agreed < tried
    assert found.registered.all()
    assert found.focal_px == pytest.approx(recording.focal_px, rel=0.01)
    # A judge who refuses everything leaves nothing to map.
    monkeypatch.setattr(colmap, "agree_with_depth", lambda p, u, o: np.zeros(len(u), np.bool_))
    with pytest.raises(EstimationError, match="only 0 of 9"):
        reconstruct(recording.images, None, SCALE, depths=lambda i: recording.depths[i])


def refuse_scan(pairs, image_size, *, seed):
    raise EstimationError("no pair of views moved", stage="start")


@pytest.mark.parametrize("focal_px", [0.4, 2.5])
def test_a_wrong_hint_does_no_harm(recording, focal_px):
    """F is found from rigidity; a hint that is off by more than a factor of two has no say."""
    found = reconstruct(
        recording.images,
        None,
        SCALE,
        depths=lambda i: recording.depths[i],
        focal_px=focal_px * recording.focal_px,
    )
    assert found.registered.all()
    assert found.focal_px == pytest.approx(recording.focal_px, rel=0.02)


def test_depth_is_that_of_the_feature(recording, monkeypatch):
    """What is judged is the virtual depth where a feature is, not elsewhere in the map."""
    rows, cols = recording.images[0].shape
    x, y = np.meshgrid(np.arange(cols, dtype=np.float32), np.arange(rows, dtype=np.float32))
    misses = []

    def judge(points, u, others):
        misses.append(np.abs(u - (points[:, 0] + 1000.0 * points[:, 1])).max(initial=0.0))
        return np.ones(len(u), np.bool_)

    monkeypatch.setattr(colmap, "agree_with_depth", judge)
    monkeypatch.setattr(colmap, "scan_focal_length", refuse_scan)  # these are no depths
    reconstruct(recording.images, None, SCALE, depths=lambda _: x + 1000.0 * y)
    # COLMAP's pixels reach from 0 to 1: half a pixel, along both axes
    assert max(misses) <= 0.5 + 500.0 + 501.0


@pytest.mark.parametrize("with_depth", [False, True])
def test_a_start_from_near_views_needs_depth(monkeypatch, tmp_path, with_depth):
    """Mapping that finds nothing tries smaller angles, the least only with depth."""
    tried = []

    class Nothing:
        IncrementalPipelineOptions = pycolmap.IncrementalPipelineOptions
        Database = pycolmap.Database

        @staticmethod
        def incremental_mapping(database, images, out, options):
            tried.append(options.mapper.init_min_tri_angle)
            return {}

    pycolmap.Database.open(tmp_path / "database.db").close()
    assert list(colmap._map(Nothing, tmp_path, SfmOptions(), with_depth, hold=False)) == []
    assert tried == [16.0, 6.0, 2.0, *([0.7] if with_depth else [])]


def test_too_few_frames(recording):
    with pytest.raises(EstimationError, match=r"4 usable frames are too few \(need 5\)") as caught:
        reconstruct(recording.images[:4], None, SCALE)
    assert caught.value.stage == "sfm"
    assert caught.value.evidence == {"frames": 4}


def test_frames_of_nothing(rng):
    """Without texture, nothing matches, and the message has the counts."""
    flat = [np.full((240, 320), 90 + index, np.uint8) for index in range(6)]
    with pytest.raises(EstimationError, match="only 0 of 6 focused images") as caught:
        reconstruct(flat, None, 0.5)
    assert "0 pairs" in str(caught.value)
    assert caught.value.evidence == {"frames": 6, "registered": 0}


def test_frames_of_other_places(recording, rng):
    """Two views of the desk among pictures of something else."""
    others = [rng.integers(0, 255, recording.images[0].shape).astype(np.uint8) for _ in range(4)]
    with pytest.raises(EstimationError, match=r"of 6 focused images were registered \(need 5\)"):
        reconstruct([*recording.images[:2], *others], None, SCALE)


def test_options():
    with pytest.raises(ConfigError, match="sequential"):
        SfmOptions(matching="sequental")
    for wrong in (
        {"overlap": 0},
        {"seed": -1},
        {"seed": 1 << 31},
        {"neighbors": 0},
        {"max_features": 10},
        {"min_frames": 1},
    ):
        with pytest.raises(InputError, match=next(iter(wrong))):
            SfmOptions(**wrong)


def test_a_full_disk_is_said_before_colmap_meets_it(recording, tmp_path, monkeypatch):
    from shutil import disk_usage

    full = disk_usage(tmp_path)._replace(free=20 << 20)
    monkeypatch.setattr(colmap.shutil, "disk_usage", lambda _: full)
    with pytest.raises(DataError, match=r"20 MB of the disk are free, COLMAP needs \d+ MB"):
        reconstruct(recording.images, None, SCALE, scratch=tmp_path / "colmap")
    assert not list(tmp_path.iterdir())


def test_what_colmap_says_is_one_line(recording, tmp_path, monkeypatch):
    def fail(*_):
        raise RuntimeError("disk I/O error")

    monkeypatch.setattr(colmap, "_reconstruct", fail)
    with pytest.raises(DataError, match="COLMAP cannot work there: disk I/O error"):
        reconstruct(recording.images, None, SCALE, scratch=tmp_path / "colmap")


def test_colmap_does_not_take_the_signals():
    """Its logging library ends the process with a stack of calls otherwise."""
    code = (
        "import os, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))\n"
        "from lifcal.sfm import colmap\n"
        "colmap._import_pycolmap()\n"
        "os.kill(os.getpid(), signal.SIGTERM)\n"
        "time.sleep(5)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 3, done.stderr
    assert done.stderr == ""
