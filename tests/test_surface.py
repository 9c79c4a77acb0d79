"""What the package offers: names at its top, what each room says, commands and functions alike."""

import importlib
import inspect
import logging
from pathlib import Path

import numpy as np
import pytest

import lifcal
from lifcal.bundle import AdjustOptions
from lifcal.cli.adjust import adjust as adjust_command
from lifcal.cli.calibrate import calibrate as calibrate_command
from lifcal.cli.focus import focus as focus_command
from lifcal.cli.grid import grid as grid_command
from lifcal.cli.live import live as live_command
from lifcal.diagnostics import Finding, Severity
from lifcal.errors import DataError, InputError
from lifcal.imaging import read_image
from lifcal.imaging.frames import ArrayFrames
from lifcal.listener import Listener
from lifcal.pipeline import live

ROOMS = sorted(path.parent.name for path in Path(lifcal.__file__).parent.glob("*/__init__.py"))


def test_every_name_is_there():
    for name in lifcal.__all__:
        assert getattr(lifcal, name) is not None
    assert set(lifcal._HOME) == set(lifcal.__all__) - {"__version__"}
    assert dir(lifcal) == sorted(lifcal.__all__)
    with pytest.raises(AttributeError, match="no attribute 'calibrat'"):
        _ = lifcal.calibrat


@pytest.mark.parametrize("room", ROOMS)
def test_every_room_says_what_it_offers(room):
    module = importlib.import_module(f"lifcal.{room}")
    assert len(module.__doc__.strip().splitlines()) > 1
    names = list(module.__all__)
    assert len(names) == len(set(names))
    for name in names:
        offered = getattr(module, name)
        assert not callable(offered) or offered.__doc__, f"{room}.{name} has no docstring"


def parameters_of(function):
    found = inspect.signature(function).parameters
    return {name: each.default for name, each in found.items()}


@pytest.mark.parametrize(
    ("command", "function", "only_command", "only_function"),
    [
        (
            calibrate_command,
            lifcal.calibrate,
            {"as_json", "jobs", "scheduler"},
            {"listener", "scale_sources", "sfm_engine", "executor"},
        ),
        (
            focus_command,
            lifcal.focus,
            {"as_json", "jobs", "scheduler"},
            {"listener", "executor"},
        ),
        (grid_command, lifcal.find_grid, {"as_json"}, {"listener"}),
        (
            live_command,
            live,
            {"as_json", "idle", "page", "port"},
            {"idle_s", "listener", "on_update"},
        ),
    ],
)
def test_command_and_function_offer_the_same(command, function, only_command, only_function):
    """The same names with the same defaults, apart from how results are shown."""
    ours, theirs = parameters_of(command), parameters_of(function)
    assert set(ours) - set(theirs) == only_command
    assert set(theirs) - set(ours) == only_function
    for name in set(ours) & set(theirs) - {"out"}:  # a command always writes
        assert ours[name] == theirs[name], name


def test_one_default_of_loss_distortion_and_tilt():
    usual = AdjustOptions()
    for function in (adjust_command, calibrate_command, lifcal.calibrate):
        defaults = parameters_of(function)
        for name in ("loss", "distortion", "tilt"):
            assert defaults[name] == getattr(usual, name), (function, name)


def test_nothing_is_shown_unless_logging_is_set_up(capfd):
    handlers = logging.getLogger("lifcal").handlers
    assert any(isinstance(handler, logging.NullHandler) for handler in handlers)
    Listener().finding(Finding.of("no-scale", "no scale was given"))
    assert capfd.readouterr() == ("", "")


def test_a_program_can_listen(caplog):
    caplog.set_level(logging.DEBUG, "lifcal")
    listener = Listener()
    with listener.status("adjusting"):
        pass
    with listener.steps("reading pixels", 2) as step:
        step("")
        step("reading more")
    note = Finding.of("poses-surplus", "more poses than raws", poses=9, frames=5)
    doubt = Finding.of("grid-misfit", "off the grid", severity=Severity.POOR, misfit_px=2.0)
    for finding in (note, doubt):
        listener.finding(finding)
    seen = [(r.name, r.levelname, r.getMessage()) for r in caplog.records]
    assert seen == [
        ("lifcal.stages", "INFO", "adjusting"),
        ("lifcal.stages", "INFO", "reading pixels (2 steps)"),
        ("lifcal.stages", "DEBUG", "reading pixels: 1 of 2"),
        ("lifcal.stages", "DEBUG", "reading more: 2 of 2"),
        ("lifcal.findings", "INFO", "poses-surplus: more poses than raws"),
        ("lifcal.findings", "WARNING", "grid-misfit: off the grid"),
    ]
    assert caplog.records[-1].finding is doubt


class OwnSource:
    """A source of scale that someone else wrote."""

    def describe(self):
        return {"source": "laser"}


def test_a_calibration_takes_sources_of_scale(monkeypatch, tmp_path):
    raw, own = np.zeros((8, 6), np.uint8), OwnSource()
    monkeypatch.setattr(
        "lifcal.pipeline.calibration.calibrate_frames", lambda frames, folder, options, *_: options
    )
    options = lifcal.calibrate(
        raw, tmp_path, pixel_size_um=5.5, marker_size_mm=40.0, scale_sources=[own]
    )
    markers, other = options.scale.list_sources()
    assert markers.size_mm == 40.0
    assert other is own


@pytest.mark.parametrize(
    ("raws", "count"),
    [
        (np.ones((8, 6), np.uint8), 1),
        (np.ones((8, 6, 3), np.uint8), 1),
        (np.ones((2, 8, 6), np.uint16), 2),
        ([np.ones((8, 6, 3), np.uint8)] * 3, 3),
        (ArrayFrames([np.ones((8, 6), np.uint8)] * 4), 4),
    ],
)
def test_raws_may_be_arrays_or_frames(raws, count, monkeypatch, tmp_path):
    seen = []
    for name in ("calibration.calibrate_frames", "focusing.focus_frames"):
        monkeypatch.setattr(f"lifcal.pipeline.{name}", lambda frames, *_: seen.append(frames))
    lifcal.calibrate(raws, tmp_path, pixel_size_um=5.5)
    lifcal.focus(raws, tmp_path)
    for frames in seen:
        assert len(frames) == count
        assert frames.image_size == (6, 8)
    assert len(seen) == 2


@pytest.mark.parametrize("raws", [object(), ["a.png", np.ones((8, 8), np.uint8)], [3]])
def test_what_is_no_raw_is_refused(raws, tmp_path):
    for call in (
        lambda: lifcal.calibrate(raws, tmp_path, pixel_size_um=5.5),
        lambda: lifcal.focus(raws, tmp_path),
        lambda: lifcal.find_grid(raws),
    ):
        with pytest.raises(InputError, match=r"need paths .*, arrays, or what open_frames") as said:
            call()
        assert "\n" not in str(said.value)
    frames = ArrayFrames([np.ones((8, 6), np.uint8)])
    with pytest.raises(InputError, match="frames were opened with None"):
        lifcal.focus(frames, tmp_path, bayer="rggb")


def test_paths_may_come_from_any_iterable(tmp_path):
    with pytest.raises(DataError, match=r"none\.png: no such file"):
        lifcal.find_grid(path for path in [tmp_path / "none.png"])


def test_paths_may_be_text(tmp_path):
    """Of all functions at the top that read or write files."""
    place = str(tmp_path / "file")
    trajectory = lifcal.Trajectory.from_poses([lifcal.RigidTransform.identity()])
    lifcal.write_tum(place, trajectory)
    assert len(lifcal.read_tum(place).timestamps) == 1
    with pytest.raises(DataError, match=r"camera\.json: no such file"):
        lifcal.read_camera(tmp_path)  # a folder stands for the camera.json in it
    for read in (lifcal.read_camera, lifcal.read_grid, lifcal.read_cloud, read_image):
        with pytest.raises(DataError, match="file"):
            read(place)
    with pytest.raises(DataError, match="is a file, needs a folder"):
        lifcal.write_sequence(place, lifcal.Simulation(lifcal.SimulationOptions("mini", frames=1)))
