"""Matches against virtual depth: points of a made-up camera that moves."""

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from lifcal.sfm.depth_check import agree_with_depth

FOCAL, CENTER, ALPHA, BETA = 1500.0, np.array([510.0, 490.0]), 2.2, 690.0
ALONG = np.array([60.0, 10.0, 25.0])
"""Motion of the camera, mm."""


def make_pair(rng, n=400, flat=False):
    """Return places in two images and virtual depths in the first."""
    z = np.full(n, 700.0) if flat else rng.uniform(350.0, 1400.0, n)
    xy = rng.uniform(-0.3, 0.3, (n, 2))
    points = np.column_stack([xy, np.ones(n)]) * z[:, None]
    moved = Rotation.from_euler("xyz", [4.0, -6.0, 20.0], degrees=True).apply(points) + ALONG
    first, second = (CENTER + FOCAL * p[:, :2] / p[:, 2:] for p in (points, moved))
    return first, ALPHA + BETA / z, second


@pytest.mark.parametrize("flat", [False, True])
def test_right_matches_stay(rng, flat):
    first, u, second = make_pair(rng, flat=flat)
    u = u * (1.0 + rng.normal(scale=0.003, size=len(u)))
    second = second + rng.normal(scale=0.4, size=second.shape)
    assert agree_with_depth(first, u, second).mean() > 0.99


def test_matches_that_are_wrong_along_the_epipolar_line_go(rng):
    first, u, second = make_pair(rng)
    u = u * (1.0 + rng.normal(scale=0.003, size=len(u)))
    wrong = rng.permutation(len(u))[:60]
    # Another depth on the same ray is another place on the same epipolar line.
    z = BETA / (u[wrong] - ALPHA) * rng.choice([0.6, 1.8], len(wrong))
    ray = np.column_stack([(first[wrong] - CENTER) / FOCAL, np.ones(len(wrong))])
    turn = Rotation.from_euler("xyz", [4.0, -6.0, 20.0], degrees=True)
    moved = turn.apply(ray * z[:, None]) + ALONG
    second[wrong] = CENTER + FOCAL * moved[:, :2] / moved[:, 2:]
    agree = agree_with_depth(first, u, second)
    assert agree[wrong].mean() < 0.1
    assert np.delete(agree, wrong).mean() > 0.98


def test_nothing_is_said_without_depth(rng):
    first, u, second = make_pair(rng)
    second[:50] += 300.0
    u[:50] = np.nan
    assert agree_with_depth(first, u, second)[:50].all()
    assert agree_with_depth(first[:20], u[:20], second[:20]).all()
    assert agree_with_depth(first, np.full_like(u, np.nan), second).all()
    assert len(agree_with_depth(first[:0], u[:0], second[:0])) == 0
