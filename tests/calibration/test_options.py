"""The options of a calibration: nested, plain, set by name, and each of them noticed."""

import json
from dataclasses import fields, replace

import pytest

from lifcal.bundle import AdjustOptions, Prior
from lifcal.calibration import CalibrateOptions, Workbench, list_settings
from lifcal.calibration.options import _OWN_ADJUST, _STAGES
from lifcal.errors import ConfigError, InputError
from lifcal.measure import MeasureOptions
from lifcal.scale import EarlierOptics, PickedDistance, ScaleOptions
from lifcal.simulate import build_camera
from lifcal.virtual import DepthOptions, LensOptics

PLAIN = CalibrateOptions(5.5)
OTHER = {
    "pixel_size_um": 6.0,
    "focal_length_mm": 16.0,
    "timestamps": (0.0, 0.1),
    "scales": (ScaleOptions(marker_size_mm=40.0), ScaleOptions()),
    "depth.depth_range": (2.0, 5.0),
    "depth.quality": "fast",
    "sfm.matching": "exhaustive",
    "measure.scale_limits": (0.5, 2.0),
    "adjust.loss": "huber",
    "adjust.distortion": "none",
    "adjust.tilt": "free",
    "adjust.fixed": {"k2": 0.0},
    "adjust.priors": {"F": Prior(3000.0, 10.0)},
    "adjust.reject_sigmas": None,
    "scale.marker_size_mm": 40.0,
    "scale.marker_sigma_mm": 0.1,
    "scale.marker_distances": ((1, 2, 100.0, 0.1),),
    "scale.dictionary": "DICT_5X5_100",
    "scale.distances": (PickedDistance(0, (1.0, 2.0), (3.0, 4.0), 100.0, 0.1),),
    "scale.trajectory": "poses.txt",
    "scale.known": {"f_L": 16.0, "B": 0.4},
    "scale.earlier": EarlierOptics("a.json", 0.0055, ("B",), (0.4,), ((1e-6,),)),
    "scale.others": None,
}
"""Another value of each option where a larger number, or the other of two, will not do."""


def list_options():
    """Name of every option of every stage, whether or not it can be set by name."""
    for each in fields(CalibrateOptions):
        if each.name not in _STAGES:
            yield each.name
            continue
        for inner in fields(getattr(PLAIN, each.name)):
            if each.name != "adjust" or inner.name not in _OWN_ADJUST:
                yield f"{each.name}.{inner.name}"


class Laser:
    def describe(self):
        return {"source": "laser"}


def change(name, tmp_path):
    """Return the plain options with one of them changed."""
    stage, _, key = name.rpartition(".")
    before = getattr(getattr(PLAIN, stage) if stage else PLAIN, key)
    value = OTHER.get(name, not before if isinstance(before, bool) else None)
    if name == "scale.others":
        value = (Laser(),)
    elif name == "scale.trajectory":
        value = tmp_path / value
        value.touch()
    elif value is None and name not in OTHER:
        value = before + (1 if isinstance(before, int) else 0.1 * before)
    if not stage:
        return replace(PLAIN, **{key: value})
    return replace(PLAIN, **{stage: replace(getattr(PLAIN, stage), **{key: value})})


@pytest.mark.parametrize("name", list(list_options()))
def test_every_option_is_noticed(name, tmp_path):
    """The key of a finished run is made of `as_dict`: any other value gives another one."""
    content = change(name, tmp_path).as_dict()
    assert json.loads(json.dumps(content)) == content
    assert content != PLAIN.as_dict()


def test_options_reach_the_adjustment():
    """What a user asks for, what is known of cameras, and what the calibration adds by itself."""
    grid = build_camera("mini").camera.grid
    options = CalibrateOptions(
        17.6,
        adjust=AdjustOptions(loss="huber", fixed={"k2": 0.0}, priors={"c_x": Prior(300.0, 1.0)}),
        measure=MeasureOptions(magnification_error=0.01),
        plane_error=0.02,
    )
    found = Workbench(grid, LensOptics.from_grid(grid), 0.5, options).adjust_options
    assert found.loss == "huber"
    assert found.distortion == "brown"
    assert found.fixed == {"k2": 0.0}
    assert found.priors["c_x"] == Prior(300.0, 1.0)
    assert found.priors["c_y"].sigma == pytest.approx(0.02 * grid.image_size[0])
    assert (found.plane_error, found.magnification_error) == (0.02, 0.01)
    assert found.clustered
    assert found.scale_error == 0.0  # nothing tells the scale


def test_settings_by_name():
    found = PLAIN.with_settings(
        {
            "rounds": "2",
            "measure.window_px": "4",
            "measure.points": 300,
            "measure.scale_limits": "0.5, 2",
            "depth.depth_range": (2, 5),
            "adjust.reject_sigmas": "none",
            "adjust.poses": "yes",
            "sfm.matching": "exhaustive",
        }
    )
    assert found.rounds == 2
    assert found.measure == MeasureOptions(window_px=4.0, points=300, scale_limits=(0.5, 2.0))
    assert found.depth == DepthOptions(depth_range=(2.0, 5.0))
    assert found.adjust.reject_sigmas is None
    assert found.adjust.poses is True
    assert found.sfm.matching == "exhaustive"
    assert PLAIN.with_settings({}).as_dict() == PLAIN.as_dict()


@pytest.mark.parametrize(
    ("name", "value", "error", "words"),
    [
        ("measure.windowpx", "4", ConfigError, "Did you mean 'measure.window_px'"),
        ("window_px", "4", ConfigError, "unknown setting 'window_px'"),
        ("adjust.clustered", "no", ConfigError, "unknown setting"),
        ("scale.known", {}, ConfigError, "unknown setting"),
        ("rounds", "2.5", InputError, "setting rounds is '2.5', needs a whole number"),
        ("rounds", 2.5, InputError, "setting rounds is 2.5, needs a whole number"),
        ("priors", "maybe", InputError, "needs true or false"),
        ("depth.depth_range", "3", InputError, "needs two numbers, 'LOW,HIGH', or 'none'"),
        ("depth.depth_range", 3, InputError, "needs two numbers"),
        ("measure.points", "10", InputError, "points is 10, needs 50 or more"),
        ("measure.window_px", "nan", InputError, "window_px is nan"),
        ("adjust.distortion", "radial", ConfigError, "unknown distortion model 'radial'"),
    ],
)
def test_wrong_settings_are_said(name, value, error, words):
    with pytest.raises(error, match=words):
        PLAIN.with_settings({name: value})


def test_settings_that_are_listed_can_be_set():
    for name in list_settings():
        stage, _, key = name.rpartition(".")
        value = getattr(getattr(PLAIN, stage) if stage else PLAIN, key)
        assert PLAIN.with_settings({name: value}).as_dict() == PLAIN.as_dict()
    assert ScaleOptions().length_error == 0.001
