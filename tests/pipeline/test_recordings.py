"""Several recordings of one camera: a desk with markers and a room, each a world of its own."""

import copy
import json
from dataclasses import replace

import numpy as np
import pytest
from scipy import ndimage

import lifcal
from lifcal.arrays import spread_choice
from lifcal.bundle import CameraPositions, CrossValidation
from lifcal.bundle.cross_validation import Split, name_world_split
from lifcal.calibration import Workbench, calibrate_bench, find_models
from lifcal.camera import read_camera, read_grid
from lifcal.cli.app import app
from lifcal.errors import DataError, EstimationError, InputError
from lifcal.evaluate import evaluate_calibration
from lifcal.export import open_calibration
from lifcal.imaging.files import write_png
from lifcal.imaging.frames import ArrayFrames, open_frames
from lifcal.listener import Listener
from lifcal.pipeline import _open
from lifcal.pipeline.added import name_apart, read_added
from lifcal.pipeline.calibration import list_views
from lifcal.pipeline.choice import FrameChoice, choose_informative
from lifcal.pipeline.focusing import compare_recordings, focus_frames
from lifcal.pipeline.tracking import _count_stages
from lifcal.pipeline.tracking import _read as read_cache
from lifcal.scale import ScaleKnowledge, ScaleOptions
from lifcal.simulate import Simulation, SimulationOptions, write_sequence
from lifcal.virtual import DepthOptions

FRAMES = 7
SCENES = {"desk": 21, "room": 22}
POINTS = 150


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recordings")
    for scene, seed in SCENES.items():
        options = SimulationOptions(
            camera="mini", scene=scene, frames=FRAMES, rays_per_pixel=8, seed=seed
        )
        write_sequence(folder / scene, Simulation(options))
    return folder


@pytest.fixture(scope="module")
def found(data):
    """The calibration from both; only the markers of the desk give the scale."""
    return lifcal.calibrate(
        [data / scene / "raw" for scene in SCENES],
        data / "both",
        pixel_size_um=17.6,
        white=data / "desk" / "white.png",
        marker_size_mm=[40.0, None],
        points=POINTS,
    )


@pytest.fixture(scope="module")
def views(data, found):
    """The views of both recordings, and the models that their poses are from."""
    frames = open_frames([str(data / scene / "raw") for scene in SCENES])
    sources = {"grid": None, "white": data / "desk" / "white.png", "xml": None}
    run = focus_frames(frames, found.folder, DepthOptions(), sources, Listener())
    path = found.folder / "cache" / "sfm.npz"
    with np.load(path) as held:
        models = read_cache(path, str(held["key"]))
    options = lifcal.CalibrateOptions(17.6).with_settings({"measure.points": POINTS})
    options = replace(options, timestamps=tuple(float(i % FRAMES) for i in range(2 * FRAMES)))
    options = replace(
        options, scales=(ScaleOptions(marker_size_mm=40.0), ScaleOptions()), scale=ScaleOptions()
    )
    return run, list_views(run, options), models, options


@pytest.fixture(scope="module")
def started(views):
    run, some, models, options = views
    bench = Workbench(run.engine.grid, run.engine.optics, 0.5, options, run.usable.frames.names)
    for view in some:
        bench.add_view(view)
    bench.start(models)
    return bench


@pytest.fixture
def bench(started):
    """A workbench of its own, as it was after `start`."""
    bench = copy.copy(started)
    bench._findings = dict(started._findings)
    return bench


def test_all_are_registered_in_two_worlds(data, found):
    summary = found.summary
    assert summary["n_registered"] == 2 * FRAMES
    assert [len(world["frames"]) for world in summary["worlds"]] == [FRAMES, FRAMES]
    assert [world["scale"] for world in summary["worlds"]] == ["distances", "camera"]
    assert [world["poses"] for world in summary["worlds"]] == ["poses.txt", "poses-2.txt"]
    assert str(data / "room" / "raw") in summary["worlds"][1]["recording"]
    true = read_camera(data / "desk" / "truth" / "camera.json")
    errors = found.camera.array.as_vector() - true.array.as_vector()
    sigmas = np.sqrt(np.diag(found.camera.covariance))[:5]
    assert (np.abs(errors) < 5.0 * sigmas).all()
    names = [split.name for split in found.adjustment.cross_validation.splits]
    assert "even and odd views" in names
    codes = {finding["code"] for finding in summary["findings"]}
    assert not codes & {"recordings-differ", "recordings-disagree", "recording-in-parts"}
    page = (found.folder / "report.html").read_text()
    assert "World 2: " in page
    assert len(summary["rig"]["cameras"]) == FRAMES


def test_each_world_is_opened_and_held_against_its_truth(data, found):
    for world, scene in enumerate(SCENES, start=1):
        calibration = open_calibration(found.folder, world)
        assert calibration.n_worlds == 2
        assert len(calibration.views) == FRAMES
        assert np.isfinite(calibration.residuals_px).all()
        rms = float(np.sqrt(np.mean(calibration.residuals_px**2)))
        assert rms < 2.0 * found.summary["rms_all_px"] + 0.05
        held = evaluate_calibration(found.folder, data / scene, world)
        assert held.trajectory.n_frames == FRAMES
        # The room's scale comes through the camera: no better than beta, known to a per cent.
        assert abs(held.trajectory.scale - 1.0) < 0.03
        assert held.depth is not None
    with pytest.raises(InputError, match="has worlds 1 to 2"):
        open_calibration(found.folder, 3)


def test_exports_are_of_one_world(found, tmp_path, capsys):
    code = app(
        ["export", str(found.folder), "--to", "colmap", "-o", str(tmp_path), "--world", "2"],
        standalone_mode=False,
    )
    assert not code
    assert len(list((tmp_path / "images").glob("*"))) == FRAMES
    assert "world 2 of 2" in capsys.readouterr().err


def test_the_same_again_returns_at_once(data, found):
    again = lifcal.calibrate(
        [data / scene / "raw" for scene in SCENES],
        data / "both",
        pixel_size_um=17.6,
        white=data / "desk" / "white.png",
        marker_size_mm=[40.0, None],
        points=POINTS,
    )
    np.testing.assert_array_equal(again.adjustment.residuals_px, found.adjustment.residuals_px)
    (found.folder / "poses-2.txt").touch()
    assert len(found.plot_rig(world=2).figure.axes) >= 1
    with pytest.raises(InputError, match="needs 1 to 2"):
        found.plot_rig(world=3)


def test_the_steps_from_views_give_the_same(bench, found):
    bench.choose_points(Listener())
    ours = calibrate_bench(bench)
    np.testing.assert_array_equal(ours.state.as_vector(), found.adjustment.state.as_vector())


def test_a_later_recording_is_added(data, found, tmp_path):
    """What was measured before is adjusted again, beside a new recording."""
    shared = {"pixel_size_um": 17.6, "points": POINTS}
    raws = data / "room" / "raw"
    more = lifcal.calibrate(
        raws,
        tmp_path / "more",
        white=data / "room" / "white.png",
        add=found.folder,
        **shared,
    )
    worlds = more.summary["worlds"]
    assert [len(world["frames"]) for world in worlds] == [FRAMES] * 3
    assert [world["scale"] for world in worlds] == ["camera", "distances", "camera"]
    assert more.summary["n_frames"] == 3 * FRAMES
    assert more.summary["scale_source"] == "markers"
    assert np.sqrt(more.camera.covariance[0, 0]) < np.sqrt(found.camera.covariance[0, 0])
    # The new frames are some of the old ones, so the camera is the same within a sigma.
    off = more.camera.array.as_vector() - found.camera.array.as_vector()
    assert (np.abs(off) < np.sqrt(np.diag(found.camera.covariance))[:5]).all()
    old = open_calibration(more.folder, 2)
    assert len(old.views) == FRAMES
    assert np.isfinite(old.residuals_px).all()

    with pytest.raises(InputError, match="is what is added"):
        lifcal.calibrate(raws, found.folder, add=found.folder, **shared)
    with pytest.raises(InputError, match="leave out --grid"):
        lifcal.calibrate(raws, tmp_path / "x", add=found.folder, grid="g", **shared)
    with pytest.raises(DataError, match="Give --pixel-size-um as before"):
        lifcal.calibrate(raws, tmp_path / "x", add=found.folder, pixel_size_um=5.0)
    with pytest.raises(DataError, match="no finished calibration here"):
        read_added(data)
    (more.folder / "cache" / "adjustment.npz").unlink()
    with pytest.raises(DataError, match="which holds what was measured, is missing"):
        read_added(more.folder)


def test_names_of_added_frames_are_told_apart(tmp_path):
    assert name_apart(("a",), {"b"}, tmp_path / "old") == ["a"]
    assert name_apart(("a",), {"a"}, tmp_path / "old") == ["old_a"]
    assert name_apart(("a",), {"a", "old_a"}, tmp_path / "old") == ["old_2_a"]


# One recording in parts, and recordings that fail


class Scenes:
    """An engine that knows the poses of some frames, as structure from motion found them."""

    def __init__(self, views, models, failing=()):
        self.of = {view.name: (i, view) for i, view in enumerate(views)}
        self.models, self.failing = models, failing
        self.asked = []

    def describe(self):
        return {}

    def reconstruct(self, views, *, judge=None, on_stage=None, scratch=None):
        self.asked.append((len(views.images), views.focal_px))
        places = np.array([self.of[name][0] for name in views.names])
        for number, model in enumerate(self.models):
            inside = model.registered[places]
            if inside.any() and number not in self.failing:
                poses = tuple(model.cam_from_sfm[place] for place in places)
                view_of = np.full(len(model.cam_from_sfm), -1)
                view_of[places] = np.arange(len(places))
                return replace(model, cam_from_sfm=poses, view_indices=view_of[model.view_indices])
        raise EstimationError("no poses", stage="sfm")


def test_a_recording_in_two_parts_keeps_both(views):
    _, some, models, _ = views
    one = [replace(view, recording=0) for view in some]
    engine = Scenes(one, models)
    found = find_models(one, 0.5, engine, names=["walk"])
    assert [count for count, _ in engine.asked] == [2 * FRAMES, FRAMES]
    assert engine.asked[1][1] == models[0].focal_px  # the second part begins with the first's F
    assert [model.registered.tolist() for model in found] == [
        model.registered.tolist() for model in models
    ]
    finding = found[0].findings[-1]
    assert finding.code == "recording-in-parts"
    assert finding.evidence["frames"] == [FRAMES, FRAMES]


def test_stages_that_are_repeated_are_not_counted_beyond_the_total():
    steps = []
    on_stage = _count_stages(steps.append, 3)
    for name in ("features", "matching", "mapping", "matching", "mapping"):
        on_stage(name)
    assert steps == ["matching", "finding poses"]  # and the last step is taken at the end


def test_a_part_that_is_too_small_is_left_out(views):
    _, some, models, _ = views
    one = [replace(view, recording=0) for view in some[: FRAMES + 4]]
    cut = [replace(model, cam_from_sfm=model.cam_from_sfm[: FRAMES + 4]) for model in models[:1]]
    engine = Scenes(one, cut)
    assert len(find_models(one, 0.5, engine)) == 1
    assert len(engine.asked) == 1


def test_a_recording_without_poses_is_left_out(views):
    _, some, models, _ = views
    found = find_models(some, 0.5, Scenes(some, models, failing=(1,)), names=["a", "b"])
    assert len(found) == 1
    assert found[0].findings[-1].code == "recording-left-out"
    assert found[0].findings[-1].text.startswith("b: is left out")
    with pytest.raises(EstimationError, match="no poses"):
        find_models(some, 0.5, Scenes(some, models, failing=(0, 1)))


def test_no_view_has_a_pose_in_two_models(bench, views):
    _, some, models, _ = views
    again = Workbench(bench.grid, bench.optics, 0.5, bench.options)
    for view in some:
        again.add_view(view)
    with pytest.raises(InputError, match="models of different views"):
        again.start([models[0], models[0]])


# Scale


class InOneScene:
    """A source of scale that is in the frames of one scene only."""

    def __init__(self, word):
        self.word = word

    def describe(self):
        return {}

    def find(self, views, listener):
        if self.word not in views.view_names[0]:
            raise DataError("it is not there")
        places = views.reconstruction.positions_world_mm()
        return ScaleKnowledge(
            positions=CameraPositions(views.frame_indices, places, np.ones(len(places)))
        )


def test_a_scale_in_one_world_is_enough(bench):
    scale = ScaleOptions(others=(InOneScene("room"),))
    bench.options = replace(bench.options, scale=scale, scales=())
    bench.choose_points(Listener())
    assert bench.positions.view_ids.tolist() == list(range(FRAMES, 2 * FRAMES))
    codes = [finding.code for finding in bench.findings]
    assert codes.count("world-without-scale") == 1
    scale = ScaleOptions(others=(InOneScene("nowhere"),))
    bench.options = replace(bench.options, scale=scale)
    with pytest.raises(DataError, match="it is not there"):
        bench.choose_points(Listener())


def test_known_optics_are_asked_once_of_all_worlds(bench):
    scale = ScaleOptions(known={"f_L": 16.748, "B": 0.376})
    bench.options = replace(bench.options, scale=scale, scales=())
    bench.choose_points(Listener())
    assert bench.adjust_options.fixed == {"f_L": 16.748, "B": 0.376}
    bench.options = replace(
        bench.options, scales=(scale, ScaleOptions(known={"f_L": 16.748, "B": 0.38}))
    )
    with pytest.raises(InputError, match="two recordings give B differently"):
        bench.choose_points(Listener())


def test_a_world_with_few_points_is_left_out(bench):
    begin = bench._begin
    few = begin.worlds[begin.view_indices] == 0
    few |= begin.point_indices < begin.point_indices[~few].min() + 10
    bench._begin = replace(
        begin, point_indices=begin.point_indices[few], view_indices=begin.view_indices[few]
    )
    bench.choose_points(Listener())
    assert [each.code for each in bench.findings].count("world-left-out") == 1
    assert (bench.points.tracks.references[:-48] < FRAMES).all()


def test_recordings_of_two_cameras_are_told(bench, found):
    split = Split(name_world_split(0), {"F": (9.0, 1.0), "alpha": (0.1, 1.0)}, 1.0)
    disagreeing = replace(found.adjustment, cross_validation=CrossValidation((split,), {}))
    bench.check_worlds(disagreeing)
    assert bench.findings[-1].code == "recordings-disagree"
    bench.check_worlds(found.adjustment)
    assert "recordings-disagree" not in [each.code for each in bench.findings]


# Another grid, size or bit depth


@pytest.mark.parametrize(("shift_px", "refused"), [(0.12, False), (1.0, True)])
def test_a_grid_that_moved_between_recordings_is_noticed(data, found, shift_px, refused):
    grid = read_grid(found.folder / "grid.json")
    raws = open_frames([str(data / "desk" / "raw")])
    stored = [raws._read_stored(i) for i in spread_choice(FRAMES, 3)]
    moved = [
        np.clip(ndimage.shift(each.astype(float), (0, shift_px), order=3), 0, 255).astype(np.uint8)
        for each in stored
    ]
    both = ArrayFrames([*stored, *moved], [f"{i}" for i in range(6)])
    both.divide([3, 3], ["first", "second"])
    if refused:
        with pytest.raises(DataError, match=r"second: its micro images lie 1\.\d+ px beside those"):
            compare_recordings(both, grid, Listener())
        return
    codes = [each.code for each in compare_recordings(both, grid, Listener())]
    assert codes == ["recordings-differ"]


def test_recordings_of_other_size_or_depth_get_one_line(data, tmp_path, capsys):
    image = open_frames([str(data / "desk" / "raw")])._read_stored(0)
    for name, other, words in (
        ("size", image[:-2], "640 x 478 px of 8 bit, but"),
        ("bits", image.astype(np.uint16) * 257, "640 x 480 px of 16 bit, but"),
    ):
        for number in range(3):
            write_png(tmp_path / name / f"{number}.png", other)
        raws = [str(data / "desk" / "raw"), str(tmp_path / name)]
        with pytest.raises(SystemExit) as stopped:
            app(["calibrate", *raws, "-o", str(tmp_path / "out"), "--pixel-size-um", "17.6"])
        assert stopped.value.code == 1
        error = capsys.readouterr().err
        assert words in " ".join(error.split())
        assert "Calibrate them apart" in " ".join(error.split())


# What is given for each recording


def test_a_list_is_one_for_each_recording(data):
    raws = [data / scene / "raw" for scene in SCENES]
    with pytest.raises(InputError, match="marker_size_mm is given 3 times, there are 2 recordings"):
        lifcal.calibrate(raws, data / "x", pixel_size_um=17.6, marker_size_mm=[1.0, 2.0, 3.0])
    truth = data / "desk" / "truth" / "poses.txt"
    with pytest.raises(InputError, match="one trajectory for 2 recordings needs --timestamps"):
        lifcal.calibrate(raws, data / "x", pixel_size_um=17.6, trajectory=truth)


def test_a_size_that_is_no_number_is_said(data, capsys):
    words = ["-o", "x", "--pixel-size-um", "17.6", "--marker-size-mm", "wide"]
    with pytest.raises(SystemExit) as stopped:
        app(["calibrate", str(data / "desk" / "raw"), *words])
    assert stopped.value.code == 1
    assert "needs a number of mm, or 'none'" in " ".join(capsys.readouterr().err.split())


def test_frames_are_chosen_in_each_recording(data):
    frames = open_frames([str(data / scene / "raw") for scene in SCENES])
    assert frames.recordings == (0,) * FRAMES + (1,) * FRAMES
    chosen, _ = choose_informative(frames, FrameChoice(every=3), Listener())
    assert chosen == [0, 3, 6, FRAMES, FRAMES + 3, FRAMES + 6]
    left_out = FrameChoice(exclude=(frames.names[0],))
    assert choose_informative(frames, left_out, Listener())[0] == list(range(1, 2 * FRAMES))
    with pytest.raises(InputError, match="there is no such frame"):
        choose_informative(frames, FrameChoice(exclude=("nobody",)), Listener())
    some = frames.select([0, FRAMES])
    assert some.recordings == (0, 1)


def test_arrays_of_several_recordings():
    image = np.full((8, 8), 100, np.uint8)
    frames = _open([[image, image], [image]], None)
    assert frames.names == ("1_0", "1_1", "2_0")
    assert frames.recordings == (0, 0, 1)
    with pytest.raises(InputError, match="a list of arrays for each"):
        _open([[image], image], None)
    with pytest.raises(InputError, match="recordings of 4 frames, there are 3"):
        frames.divide([2, 2], ["a", "b"])


def test_the_summary_says_which_scale_each_had(found):
    scales = json.loads((found.folder / "summary.json").read_text())["provenance"]["options"]
    assert [each["marker_size_mm"] for each in scales["scales"]] == [40.0, None]
