"""From raw frames to a camera, on one small simulated recording."""

import json
import re
import shutil
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest

import lifcal
from lifcal.bundle import AdjustOptions, SolverOptions, solve
from lifcal.bundle.files import summary_to_dict
from lifcal.bundle.record import read_record
from lifcal.calibration import CalibrateOptions, Workbench, camera_priors
from lifcal.camera import read_camera
from lifcal.cli.app import app
from lifcal.errors import ConfigError, DataError, InputError
from lifcal.export import open_calibration
from lifcal.geometry import Trajectory, read_tum, write_tum
from lifcal.imaging.frames import open_frames
from lifcal.imaging.markers import draw_marker
from lifcal.listener import Listener
from lifcal.measure import MeasureOptions
from lifcal.pipeline.calibration import calibrate_frames
from lifcal.pipeline.finished import FILES, compute_key, describe_inputs, guard_finished
from lifcal.pipeline.tracking import _read as read_cache
from lifcal.reconstruction import read_observations
from lifcal.scale import PickedDistance, ScaleOptions
from lifcal.sfm import ColmapEngine
from lifcal.simulate import Simulation, SimulationOptions
from lifcal.simulate.sequence import write_sequence
from lifcal.virtual import LensOptics
from tests.pipeline.cases import read_files

FRAMES = 12
POINTS = 200
MARKERS = ScaleOptions(marker_size_mm=40.0)


class Recording:
    """Raws and white image, and the camera that took them."""

    def __init__(self, folder):
        self.folder = folder
        self.simulation = Simulation(
            SimulationOptions(camera="mini", scene="desk", frames=FRAMES, rays_per_pixel=8)
        )
        write_sequence(folder, self.simulation)
        self.camera = self.simulation.optics.camera
        self.sources = {"grid": None, "white": folder / "white.png", "xml": None}

    def options(self, scale=MARKERS, **more):
        size = 1000.0 * self.camera.pixel_size_mm
        return CalibrateOptions(size, scale=scale, measure=MeasureOptions(points=POINTS), **more)

    def calibrate(self, out, scale=MARKERS, listener=None, force=False, **more):
        frames = open_frames([str(self.folder / "raw")])
        options = self.options(scale, **more)
        return calibrate_frames(frames, out, options, self.sources, listener, force=force)


@pytest.fixture(scope="module")
def recording(tmp_path_factory):
    return Recording(tmp_path_factory.mktemp("recording"))


@pytest.fixture(scope="module")
def found(recording, tmp_path_factory):
    return recording.calibrate(tmp_path_factory.mktemp("calibration") / "out")


@pytest.fixture
def focused(found, tmp_path):
    """The folder as it was when all frames were focused."""
    out = tmp_path / "out"
    shutil.copytree(found.folder, out)
    for name in FILES:
        (out / name).unlink()
    shutil.rmtree(out / "cache")
    return out


@pytest.fixture
def tracked(found, focused):
    """The folder as it was when the poses were found."""
    shutil.copytree(found.folder / "cache", focused / "cache")
    return focused


def assert_same_adjustment(ours, theirs):
    """All that an adjustment holds, bit by bit, but the camera, whose file has its own tests."""
    for name in ("array", "physical"):
        np.testing.assert_array_equal(
            getattr(ours.covariance, name), getattr(theirs.covariance, name)
        )
    np.testing.assert_array_equal(ours.residuals_px, theirs.residuals_px)
    np.testing.assert_array_equal(ours.state.as_vector(), theirs.state.as_vector())
    np.testing.assert_array_equal(ours.state.rotations, theirs.state.rotations)
    np.testing.assert_array_equal(ours.state.points_world_mm, theirs.state.points_world_mm)
    np.testing.assert_array_equal(ours.problem.active_mask, theirs.problem.active_mask)
    assert ours.problem.priors == theirs.problem.priors
    assert ours.problem.fixed == theirs.problem.fixed
    assert ours.problem.distances.labels == theirs.problem.distances.labels
    assert json.dumps(summary_to_dict(ours)) == json.dumps(summary_to_dict(theirs))
    assert not ours.residuals_px.flags.writeable


def true_values(camera):
    names = ("f_L", "b_L0", "B", "c_x", "c_y")
    values = dict(zip(names, camera.parameters.as_vector().tolist(), strict=True))
    values["F"] = camera.array.focal_px
    return values


def test_the_camera_is_right(recording, found):
    entries, true = found.summary["parameters"], true_values(recording.camera)
    assert entries["F"]["value"] == pytest.approx(true["F"], rel=0.01)
    assert entries["B"]["value"] == pytest.approx(true["B"], rel=0.05)
    for name, value in true.items():
        sigma = entries[name]["sigma"]
        assert 0.0 < abs(entries[name]["value"] - value) < 5.0 * sigma, name
    # Sigmas worth the name: twelve frames of this size know F to some per mille.
    assert 5e-4 < entries["F"]["sigma"] / true["F"] < 0.01
    assert found.summary["verdict"]["level"] == "good"
    assert found.summary["scale_source"] == "markers"
    assert found.summary["n_registered"] == FRAMES
    assert 0.05 < found.summary["rms_px"] < 0.3
    assert found.problems == ()
    # images cannot tell the pixel size
    assert found.verdict.endswith("engraved on your lens? If not, check --pixel-size-um.")


def test_all_files_are_there(recording, found):
    for name in FILES:
        assert (found.folder / name).stat().st_size > 0, name
    camera = read_camera(found.folder / "camera.json")
    np.testing.assert_allclose(
        camera.parameters.as_vector(), found.camera.parameters.as_vector(), rtol=1e-12
    )
    assert camera.scale_source == "markers"
    assert json.loads((found.folder / "summary.json").read_text()) == json.loads(
        json.dumps(found.summary)
    )
    assert len(read_tum(found.folder / "poses.txt").timestamps) == FRAMES
    lines = (found.folder / "poses.txt").read_text().splitlines()
    assert lines[1::2] == [f"# {index:04d}.png" for index in range(FRAMES)]
    observations = read_observations(found.folder / "observations.csv")
    assert len(observations) == found.summary["n_observations"]
    report = (found.folder / "report.html").read_text()
    assert found.verdict in report
    assert f"--white {recording.sources['white']} -o rgbd" in report  # the command that comes next
    header = (found.folder / "cameras.ply").read_text().split("end_header")[0]
    assert f"element vertex {5 * FRAMES}" in header
    assert "Calibration(f_L" in repr(found)
    assert "<table>" in found._repr_html_()
    assert not list(found.folder.rglob(".*"))


def test_the_folder_holds_what_the_calibration_found(found):
    """Residuals are computed from the files: nine decimals of a metre are 1e-6 mm."""
    stored = open_calibration(found.folder)
    adjustment = found.adjustment
    assert stored.names == tuple(f"{i:04d}" for i in range(FRAMES))
    np.testing.assert_allclose(
        stored.points_world_mm, adjustment.state.points_world_mm, rtol=0.0, atol=1e-6
    )
    np.testing.assert_allclose(stored.residuals_px, adjustment.residuals_px, rtol=0.0, atol=1e-4)
    rms = np.sqrt(np.mean(stored.residuals_px[adjustment.problem.active_mask] ** 2))
    assert rms == pytest.approx(found.summary["rms_px"], rel=1e-4)
    n = len(stored.camera.parameter_names)
    assert stored.covariance.shape == (n, n)
    np.testing.assert_allclose(stored.covariance, found.camera.covariance, rtol=1e-9)
    assert stored.summary["verdict"] == found.summary["verdict"]


def test_the_path_is_the_true_one(recording, found):
    """Metric: the distances between camera positions, all pairs, without any alignment."""
    true = recording.simulation.trajectory.positions_world_mm()
    places = read_tum(found.folder / "poses.txt").positions_world_mm()
    i, j = np.triu_indices(FRAMES, 1)
    ours, theirs = (np.linalg.norm(p[i] - p[j], axis=1) for p in (places, true))
    far = theirs > 50.0
    # Sizes as F, f_L and so on: some per mille, plus the noise of a pose.
    assert np.median(ours[far] / theirs[far]) == pytest.approx(1.0, abs=0.01)
    assert np.abs(ours - theirs).max() < 0.05 * theirs.max()


_REHEARSAL = """
import importlib, json, sys
from pathlib import Path
import lifcal
from lifcal.camera import read_grid
from lifcal.calibration.rehearsal import rehearse
from lifcal.virtual import DepthOptions, FocusEngine

def compiled():
    found = set()
    for room in ("bundle", "measure"):
        for name, kernel in vars(importlib.import_module(f"lifcal.{room}._kernels")).items():
            kernel = getattr(kernel, "compiled", kernel)
            found |= {f"{name}{types}" for types in getattr(kernel, "signatures", ())}
    return found

out, raws, white, size, points = sys.argv[1:]
ends = json.loads((Path(out) / "focus.json").read_text())["depth_range"]
options = DepthOptions(depth_range=tuple(ends))
rehearse(FocusEngine(read_grid(Path(out) / "grid.json"), options=options))
before = compiled()
lifcal.calibrate(
    raws, out, white=white, pixel_size_um=float(size), marker_size_mm=40.0, points=int(points)
)
print(json.dumps([len(before), sorted(compiled() - before)]))
"""


def test_a_rehearsal_compiles_all_that_measures_and_adjusts(recording, tracked):
    folder, size = recording.folder, 1000.0 * recording.camera.pixel_size_mm
    words = [tracked, folder / "raw", folder / "white.png", size, POINTS]
    done = subprocess.run(
        [sys.executable, "-c", _REHEARSAL, *map(str, words)],
        check=True,
        capture_output=True,
        text=True,
    )
    rehearsed, missed = json.loads(done.stdout)
    assert rehearsed > 10
    assert missed == []


def test_the_same_again_returns_at_once(recording, found):
    before = {path: path.stat().st_mtime_ns for path in found.folder.rglob("*") if path.is_file()}
    said = []

    class Loud(Listener):
        @contextmanager
        def steps(self, text, total):
            said.append(text)
            yield lambda _: None

    again = recording.calibrate(found.folder, listener=Loud())
    assert_same_adjustment(again.adjustment, found.adjustment)
    assert dict(again.summary) == json.loads(json.dumps(found.summary))
    np.testing.assert_array_equal(
        again.camera.parameters.as_vector(),
        read_camera(found.folder / "camera.json").parameters.as_vector(),
    )
    assert not any("measuring" in text or "features" in text for text in said), said
    after = {path: path.stat().st_mtime_ns for path in found.folder.rglob("*") if path.is_file()}
    changed = {path.name for path in before if before[path] != after[path]}
    assert changed <= {"focus.json"}
    assert set(after) == set(before)


class Told(Listener):
    """Keeps what a run says."""

    def __init__(self):
        self.findings = []

    def finding(self, finding):
        self.findings.append(finding)


def test_a_finished_calibration_of_other_settings_is_not_overwritten(recording, found, tmp_path):
    """It is refused before any work, and the message says what differs."""
    before = {path: path.stat().st_mtime_ns for path in found.folder.rglob("*")}
    other = recording.options(adjust=AdjustOptions(loss="huber"), focal_length_mm=16.0)
    with pytest.raises(DataError) as refused:
        calibrate_frames(
            open_frames(recording.folder / "raw"), found.folder, other, recording.sources
        )
    for words in (
        "holds a finished calibration that was made with other settings",
        "adjust.loss was cauchy, is huber",
        "focal_length_mm was not given, is 16.0",
        f"--force, which keeps the old one as {found.folder}-old-1",
    ):
        assert words in str(refused.value)
    frames = open_frames(recording.folder / "raw")
    with pytest.raises(DataError, match="12 frames then, 11 now, 0005 is missing"):
        calibrate_frames(
            frames.select([i for i in range(FRAMES) if i != 5]),
            found.folder,
            recording.options(),
            recording.sources,
        )
    with pytest.raises(DataError, match="with --white"):
        calibrate_frames(
            frames, found.folder, recording.options(), {**recording.sources, "white": None}
        )
    assert {path: path.stat().st_mtime_ns for path in found.folder.rglob("*")} == before

    inputs = json.loads((found.folder / "summary.json").read_text())["inputs"]
    sums = {**inputs["frames"], "0003": "changed"}
    with pytest.raises(DataError, match="frame 0003 has other pixels"):
        guard_finished(found.folder, {**inputs, "frames": sums}, False, Listener())
    scale = [{**inputs["scale"][0], "length": 1}]
    with pytest.raises(DataError, match=r"scale\.0\.length was not given, is 1"):
        guard_finished(found.folder, {**inputs, "scale": scale}, False, Listener())


def test_force_keeps_the_old_calibration_beside(found, tmp_path):
    out, told = tmp_path / "out", Told()
    shutil.copytree(found.folder, out)
    inputs = json.loads((out / "summary.json").read_text())["inputs"]
    old = read_files(out)
    guard_finished(out, inputs, True, told)
    assert not told.findings  # nothing differs

    guard_finished(out, {**inputs, "options": {**inputs["options"], "rounds": 9}}, True, told)
    assert [each.code for each in told.findings] == ["calibration-kept"]
    assert read_files(tmp_path / "out-old-1") == old
    images = {path: content for path, content in old.items() if Path(path).name not in FILES}
    assert len(images) < len(old)
    assert read_files(out) == images  # they can be used again; nothing of other settings is left

    # Interrupted, and begun again: there is nothing to keep.
    guard_finished(out, {**inputs, "options": {**inputs["options"], "rounds": 9}}, True, told)
    assert len(told.findings) == 1
    assert not (tmp_path / "out-old-2").exists()
    shutil.rmtree(out)
    shutil.copytree(found.folder, out)

    guard_finished(out, {**inputs, "settings": {**inputs["settings"], "scale": 1.0}}, True, told)
    assert read_files(tmp_path / "out-old-2") == old
    assert read_files(out) == {}  # its images are of another size
    assert [*tmp_path.glob(".*")] == []


def test_a_finished_folder_that_was_changed_is_not_taken(recording, found, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(found.folder, out)
    whole = (out / "camera.json").read_bytes()
    (out / "camera.json").write_bytes(whole + b"\n")
    with pytest.raises(DataError, match=r"camera\.json was changed after it was written"):
        recording.calibrate(out)
    again = recording.calibrate(out, force=True)
    assert again.adjustment is not None  # computed anew, the same
    assert (out / "camera.json").read_bytes() == whole
    assert (tmp_path / "out-old-1" / "camera.json").read_bytes() == whole + b"\n"


def test_another_trajectory_in_the_same_file_is_another_run(recording, found, tmp_path):
    path = tmp_path / "poses.txt"
    options = recording.options(
        ScaleOptions(trajectory=shutil.copy(recording.folder / "truth" / "poses.txt", path))
    )

    def key():
        return compute_key(describe_inputs(options, ColmapEngine(), {}, ["0"]))

    first = key()
    assert key() == first
    path.write_text(path.read_text().replace("1", "2"))
    assert key() != first


def test_times_of_a_clock(recording, tracked, tmp_path):
    """Poses have the frames' own times, and a known trajectory is found by them."""
    times = 1731772800.0 + np.arange(FRAMES) / 15.0
    path = tmp_path / "robot.txt"
    write_tum(path, Trajectory(times, recording.simulation.trajectory.world_from_cam))
    scale = ScaleOptions(trajectory=path)
    timed = recording.calibrate(tracked, scale, timestamps=tuple(times.tolist()))
    assert timed.summary["scale_source"] == "camera positions"
    np.testing.assert_allclose(read_tum(tracked / "poses.txt").timestamps, times, atol=1e-6)
    np.testing.assert_array_equal(open_calibration(tracked).views, range(FRAMES))
    with pytest.raises(DataError, match="1 timestamps for 12 frames"):
        recording.calibrate(tracked, scale, timestamps=(1.0,))


@pytest.mark.parametrize("part", [0.0, 0.5])
def test_a_damaged_cache_is_made_anew(found, tmp_path, part):
    cache = found.folder / "cache" / "sfm.npz"
    with np.load(cache) as held:
        key = str(held["key"])
    assert read_cache(cache, key) is not None
    content = cache.read_bytes()
    (tmp_path / "sfm.npz").write_bytes(content[: int(part * len(content))])
    assert read_cache(tmp_path / "sfm.npz", key) is None


def test_options_are_checked_before_the_work():
    with pytest.raises(ConfigError, match="unknown distortion model 'radial'"):
        AdjustOptions(distortion="radial")
    with pytest.raises(ConfigError, match=r"unknown loss 'cauchi'.*Did you mean 'cauchy'"):
        AdjustOptions(loss="cauchi")
    with pytest.raises(ConfigError, match="marker dictionary"):
        ScaleOptions(dictionary="DICT_6X6_251")


def test_recalibration_with_the_true_optics(recording, tracked):
    """Held parameters have no sigma, whatever rounding does."""
    p = recording.camera.parameters
    known = {"f_L": p.focal_length_mm, "B": p.array_to_sensor_mm}
    found = recording.calibrate(tracked, ScaleOptions(known=known))
    entries = found.summary["parameters"]
    assert entries["f_L"]["value"] == pytest.approx(p.focal_length_mm, rel=1e-9)
    for name in ("f_L", "B"):
        assert not entries[name]["sigma"]
        assert read_camera(tracked / "camera.json").sigmas()[name] == 0.0
    sigma = entries["b_L0"]["sigma"]
    assert 0.0 < abs(entries["b_L0"]["value"] - p.lens_to_array_mm) < 5.0 * sigma


def test_recalibration_from_a_file(recording, found, tracked):
    """f_L and B of the other calibration are priors: no better than what they came from."""
    camera_file = found.folder / "camera.json"
    again = lifcal.calibrate(
        recording.folder / "raw",
        tracked,
        pixel_size_um=1000.0 * recording.camera.pixel_size_mm,
        white=recording.sources["white"],
        known=camera_file,
        points=POINTS,
    )
    assert again.summary["scale_source"] == "known f_L, B"
    before, after = (item.summary["parameters"] for item in (found, again))
    for name in ("f_L", "B"):
        assert abs(after[name]["value"] - before[name]["value"]) < before[name]["sigma"]
        assert 0.3 < after[name]["sigma"] / before[name]["sigma"] < 1.2


def test_the_function_is_the_command(recording, found):
    """`lifcal.calibrate` with the same settings: the folder is finished already."""
    again = lifcal.calibrate(
        recording.folder / "raw",
        found.folder,
        pixel_size_um=1000.0 * recording.camera.pixel_size_mm,
        white=str(recording.sources["white"]),
        marker_size_mm=40.0,
        points=POINTS,
    )
    assert_same_adjustment(again.adjustment, found.adjustment)
    assert again.verdict == found.verdict


def test_a_record_that_is_not_whole_counts_as_none(found, tmp_path):
    path = found.folder / "cache" / "adjustment.npz"
    key = found.summary["provenance"]["key"]
    assert read_record(path, key, found.camera) is not None
    assert read_record(path, "another", found.camera) is None
    assert read_record(tmp_path / "none.npz", key, found.camera) is None
    content = path.read_bytes()
    for name, part in (("empty", b""), ("half", content[: len(content) // 2]), ("text", b"text")):
        (tmp_path / name).write_bytes(part)
        assert read_record(tmp_path / name, key, found.camera) is None
    # only the records of an adjustment are built from it, whatever the file names
    trees = [
        {"record": "Path", "fields": {"pathsegments": "x"}},
        {"record": "Prior", "fields": {"value": 1.0, "sigma": 1.0}},
        {"record": "Prior", "fields": {"value": 1.0, "sigma": -1.0}},
        "text",
        None,
    ]
    for tree in trees:
        text = json.dumps({"key": key, "adjustment": tree})
        np.savez(tmp_path / "tree.npz", tree=np.array(text))
        assert read_record(tmp_path / "tree.npz", key, found.camera) is None


def test_a_notebook_shows_parameters_with_units(found):
    html = replace(found, folder=Path("<b>&</b>"))._repr_html_()
    assert "&lt;b&gt;&amp;&lt;/b&gt;" in html
    assert re.search(r"<td>f_L</td><td>[\d.]+ ± [\d.]+ mm</td>", html)
    assert re.search(r"<td>k0</td><td>[^<]+ ± [^<]+ px⁻²</td>", html)
    assert found.verdict.split("?")[0].split("'")[0][:20] in html


def test_plots(found):
    axes = found.plot_rig()
    assert axes.get_xlabel() == "x (mm)"
    assert f"{FRAMES} cameras" in axes.get_title()
    left, _, right = found.plot_residuals()
    assert f"{found.summary['rms_px']:.3f} px rms" in left.get_title()
    assert len(right.patches) == FRAMES
    plt.close("all")


class Interrupted(Listener):
    """Someone presses Ctrl-C when something begins."""

    def __init__(self, word):
        self.word = word

    def hear(self, text):
        if self.word in text:
            raise KeyboardInterrupt

    @contextmanager
    def steps(self, text, total):
        self.hear(text)
        yield lambda _: None

    @contextmanager
    def status(self, text):
        self.hear(text)
        yield


def leave_parts(folder):
    """As a run that was killed (-9, a power cut) in the middle of writing."""
    for name in (
        ".camera.json.abcd1234.lifcal-part",
        "focused/.0001.png.xy.lifcal-part",
        "cache/colmap/database.db",
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"half")


def test_an_interrupted_run_goes_on(recording, found, focused):
    before = {path: path.stat().st_mtime_ns for path in focused.rglob("*.tiff")}
    leave_parts(focused)
    for word, kept in (("finding features", False), ("choosing micro images", True)):
        with pytest.raises(KeyboardInterrupt):
            recording.calibrate(focused, listener=Interrupted(word))
        assert not any((focused / name).exists() for name in FILES)
        # poses are kept once they are found
        assert (focused / "cache" / "sfm.npz").exists() == kept
    again = recording.calibrate(focused)
    assert not [*focused.rglob(".*"), *focused.glob("cache/colmap")]
    assert {path: path.stat().st_mtime_ns for path in focused.rglob("*.tiff")} == before
    for name, entry in found.summary["parameters"].items():
        other = again.summary["parameters"][name]["value"]
        assert other == pytest.approx(entry["value"], rel=1e-12, abs=1e-300), name


def test_from_the_same_poses_the_numbers_are_the_same(recording, found, tracked):
    again = recording.calibrate(tracked)
    for name in ("camera.json", "poses.txt", "points.ply", "observations.csv"):
        assert (tracked / name).read_bytes() == (found.folder / name).read_bytes(), name
    for name, entry in found.summary["parameters"].items():
        assert again.summary["parameters"][name] == entry


def marker_distances(recording):
    """Distances from the center of marker 5, which is plain black, to others of both sheets."""
    centers = {m.id: m.corners_world_mm.mean(axis=0) for m in recording.simulation.scene.markers}
    return tuple(
        (5, other, float(np.linalg.norm(centers[5] - centers[other])), 0.05)
        for other in (0, 3, 6, 9)
    )


def check_scale(result, other):
    """Two results of the same images, of which only the lengths differ: B within its sigma."""
    mine, theirs = (item.summary["parameters"]["B"] for item in (result, other))
    assert mine["value"] != theirs["value"]
    assert abs(mine["value"] - theirs["value"]) < np.hypot(mine["sigma"], theirs["sigma"])
    assert 0.3 < mine["sigma"] / theirs["sigma"] < 3.0


def test_distances_between_markers(recording, found, tracked):
    """A center is the mean of four corners: nothing is measured where markers are plain."""
    plain = draw_marker(5, cell_px=1)[3:5, 3:5]
    assert not plain.any()
    result = recording.calibrate(
        tracked, ScaleOptions(marker_distances=marker_distances(recording))
    )
    assert result.summary["scale_source"] == "markers"
    known = result.summary["distances"]
    assert {entry["what"] for entry in known} <= {f"markers 5 and {i}" for i in (0, 3, 6, 9)}
    assert len(known) >= 2
    for entry in known:
        assert entry["found_mm"] == pytest.approx(entry["mm"], rel=0.005)
    check_scale(result, found)


def test_markers_distances_and_trajectory_together(recording, found, tracked, tmp_path):
    path = tmp_path / "robot.txt"
    write_tum(path, recording.simulation.trajectory)
    scale = ScaleOptions(
        marker_size_mm=40.0, marker_distances=marker_distances(recording), trajectory=path
    )
    result = recording.calibrate(tracked, scale)
    assert result.summary["scale_source"] == "markers and camera positions"
    check_scale(result, found)


def test_without_a_scale(recording, tracked):
    free = recording.calibrate(tracked, ScaleOptions())
    assert free.summary["scale_source"] is None
    assert free.summary["verdict"]["level"] != "good"
    assert read_camera(tracked / "camera.json").scale_source is None
    assert "no-scale" in free.summary["verdict"]["codes"]
    # what needs no scale is as good as with one
    assert free.camera.array.focal_px == pytest.approx(recording.camera.array.focal_px, rel=0.01)


def test_what_cannot_be_done_is_said(recording, tracked, capsys):
    """Each ends when poses are known, and leaves no result that could be taken for one."""
    wrong = ScaleOptions(marker_size_mm=40.0, dictionary="DICT_7X7_250")
    with pytest.raises(DataError, match="give --dictionary DICT_6X6_250"):
        recording.calibrate(tracked, wrong)
    missing = PickedDistance("nosuch", (10.0, 10.0), (50.0, 50.0), 30.0, 0.1)
    with pytest.raises(DataError, match="there is no frame nosuch"):
        recording.calibrate(tracked, ScaleOptions(distances=(missing,)))
    with pytest.raises(DataError, match=r"none\.txt: no such file"):
        ScaleOptions(trajectory=tracked / "none.txt")
    # as a user meets it
    with pytest.raises(SystemExit) as end:
        app(
            args=[
                "calibrate",
                str(recording.folder / "raw"),
                *("--pixel-size-um", str(1000.0 * recording.camera.pixel_size_mm)),
                *("--white", str(recording.sources["white"]), "--points", str(POINTS)),
                *("--marker-size-mm", "40", "--dictionary", "DICT_7X7_250"),
                *("-o", str(tracked)),
            ],
            prog_name="lifcal",
        )
    assert end.value.code == 1
    errors = [line for line in capsys.readouterr().err.splitlines() if "lifcal: error" in line]
    assert len(errors) == 1
    assert "DICT_6X6_250" in errors[0]
    assert {name for name in FILES if (tracked / name).exists()} == {"summary.json", "report.html"}
    verdict = json.loads((tracked / "summary.json").read_text())["verdict"]
    assert verdict["level"] == "failed"
    assert "DICT_6X6_250" in (tracked / "report.html").read_text()


def test_priors_are_those_of_any_camera(found):
    priors = camera_priors((2048, 1536), "brown")
    assert (priors["c_x"].value, priors["c_y"].value) == (1023.5, 767.5)
    assert priors["c_x"].sigma == priors["c_y"].sigma == pytest.approx(0.02 * 2048)
    # 0.2 % of half the width at its edge
    assert 3.0 * priors["p0"].sigma * 1024.0**2 == pytest.approx(0.002 * 1024.0)
    assert set(camera_priors((640, 480), "none")) == {"c_x", "c_y"}
    used = found.adjustment.problem.priors
    assert {"c_x", "c_y", "p0", "p1"} <= set(used)


def test_priors_are_weaker_than_good_data(found):
    """Without them the result moves by far less than its sigmas."""
    adjustment = found.adjustment
    problem = adjustment.problem
    general = camera_priors(adjustment.camera.image_size, "brown")
    others = {name: prior for name, prior in problem.priors.items() if name not in general}
    state, _ = solve(
        replace(problem, priors=others, start=adjustment.state),
        SolverOptions(loss="cauchy", noise=adjustment.summary.noise),
    )
    sigmas = adjustment.covariance.sigmas()
    for name, before, after in zip(
        problem.names, adjustment.state.as_vector(), state.as_vector(), strict=True
    ):
        if sigmas.get(name, 0.0) > 0.0:
            assert abs(after - before) < 0.35 * sigmas[name], name


def test_micro_lenses_that_cannot_be_are_noticed(found):
    grid = found.camera.grid
    wrong = Workbench(grid, LensOptics.from_grid(grid), 0.5, CalibrateOptions(50.0))
    for _ in range(2):  # a step that is repeated notices nothing twice
        wrong.check(found.adjustment)
    assert [each.code for each in wrong.findings] == ["micro-lens-opening"]
    # B of 0.376 mm over 12.6 px of 50 um
    assert re.search(r"f-number would be 0\.(59|6)", wrong.findings[0].text)
    assert "pixel size (50 um) right" in wrong.findings[0].text
    right = replace(wrong, options=CalibrateOptions(17.6))
    right.check(found.adjustment)
    assert right.findings == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"pixel_size_um": 0.01}, "pixel size is 0.01 um, needs 0.5 to 50"),
        ({"pixel_size_um": 500.0}, "pixel size is 500.0 um"),
        ({"pixel_size_um": float("nan")}, "pixel size is nan"),
        ({"focal_length_mm": 0.0}, "focal length is 0.0"),
        ({"focal_length_mm": float("nan")}, "focal length is nan"),
        ({"rounds": 0}, "rounds is 0, needs 1 or more"),
        ({"plane_error": -0.1}, "plane_error is -0.1"),
        ({"adjust": AdjustOptions(clustered=True)}, "adjust.clustered is chosen by the calib"),
        ({"adjust": AdjustOptions(plane_error=0.1)}, "set `plane_error` of CalibrateOptions"),
    ],
)
def test_options_are_checked(options, words):
    with pytest.raises(InputError, match=words):
        CalibrateOptions(**{"pixel_size_um": 5.5, **options})


def test_options_as_json(tmp_path):
    (tmp_path / "poses.txt").touch()
    options = CalibrateOptions(5.5, scale=ScaleOptions(trajectory=tmp_path / "poses.txt"))
    content = options.as_dict()
    assert json.loads(json.dumps(content)) == content
    assert content["scale"]["trajectory"] == str(tmp_path / "poses.txt")
    assert options.pixel_size_mm == pytest.approx(0.0055)
