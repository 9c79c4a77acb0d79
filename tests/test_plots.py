"""Pictures are drawn from arrays, and say which extra they need."""

import sys

import matplotlib.pyplot as plt
import numpy as np
import pytest

from lifcal.errors import MissingDependencyError
from lifcal.plots import _average_in_cells, plot_depth, plot_residuals, plot_rig


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


def test_means_are_those_of_their_cells(rng):
    places = rng.uniform(-0.5, [239.5, 119.5], (5000, 2))
    centers, means = _average_in_cells(places, places * [0.01, -0.02], (240, 120))
    assert len(centers) == 12 * 6
    np.testing.assert_allclose(means, centers * [0.01, -0.02], atol=0.05)
    few, _ = _average_in_cells(places[:9], places[:9], (240, 120))
    assert len(few) == 0


def test_residuals_that_were_rejected_are_left_out(rng):
    residuals = rng.normal(0.0, 0.1, (400, 2))
    residuals[:10] = 50.0
    used = np.arange(400) >= 10
    views = np.repeat([3, 7], 200)
    left, middle, right = plot_residuals(
        residuals, rng.uniform(0, 99, (400, 2)), views, used, (100, 100)
    )
    assert left.get_title().startswith("390 residuals, 0.1")
    assert [patch.get_height() < 0.2 for patch in right.patches] == [True, True]
    assert middle.get_ylim() == (99.5, -0.5)  # y points down, as in the image


def test_a_depth_map_without_any_depth_can_be_drawn():
    nothing = np.full((8, 9), np.nan, np.float32)
    axes = plot_depth(np.full((8, 9, 3), 1.2, np.float32), nothing, nothing)
    assert len(axes) == 3


def test_a_rig_without_scale_says_so():
    poses = np.tile(np.eye(3), (2, 1, 1))
    axes = plot_rig(poses, np.eye(3)[:2], np.ones((5, 3)), (0.3, 0.2), unit="no scale")
    assert axes.get_zlabel() == "z (no scale)"


def test_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(MissingDependencyError, match=r"lifcal\[plots\]"):
        plot_depth(*np.zeros((3, 2, 2), np.float32))
