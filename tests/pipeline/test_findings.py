"""Findings of the folders' stages, and of structure from motion, from the numbers they rest on."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lifcal.diagnostics import Severity
from lifcal.pipeline.focusing import describe_average, judge_fill, judge_misfit
from lifcal.pipeline.rgbd import _describe_missing, _describe_others, describe_depth
from lifcal.sfm.colmap import _describe_strangers
from lifcal.simulate import build_camera


@pytest.fixture(scope="module")
def camera():
    return build_camera("mini").camera


@pytest.mark.parametrize(
    ("share", "severity"),
    [(None, None), (0.009, None), (0.011, Severity.CAUTION), (0.051, Severity.POOR)],
)
def test_misfit_of_the_grid(camera, share, severity):
    misfit = None if share is None else share * camera.grid.pitch_px
    found = judge_misfit(misfit, camera.grid)
    assert [each.severity for each in found] == ([] if severity is None else [severity])
    assert all(each.code == "grid-misfit" for each in found)


@pytest.mark.parametrize(
    ("ratio", "noticed"), [(1.1, False), (1.2, True), (0.9, False), (0.8, True)]
)
def test_white_image_of_another_aperture(ratio, noticed):
    value, found = judge_fill(ratio, "white.png")
    assert value == ratio
    assert [each.code for each in found] == ["white-aperture"] * noticed
    assert judge_fill(float("nan"), "white.png") == (None, [])


def test_depth_maps(camera):
    metric = replace(camera, scale_source="markers")
    assert describe_depth(metric, 5000.0, 5000) == []
    blind = replace(camera, scale_source=None, grid=replace(camera.grid, focal_planes=None))
    found = describe_depth(blind, 20000.0, 1000)
    assert [each.code for each in found] == ["no-scale", "focal-planes-missing", "depth-unit"]
    assert found[2].evidence == {"units_per_metre": 1000}
    assert _describe_others(Path("out"), 3).evidence == {"count": 3}
    assert _describe_missing(2).text.startswith("2 frames have no pose")
    assert describe_average("none").code == "vignetting-from-frames"


def test_what_moves_otherwise():
    strange = [np.array([True, False, False]), np.array([False])]
    found = _describe_strangers(strange, 0.1)
    assert [each.code for each in found] == ["backdrop-resting", "matches-strange"]
    assert [each.evidence["share"] for each in found] == [0.1, 0.25]
    assert _describe_strangers([np.zeros(9, bool)], 0.0) == []
