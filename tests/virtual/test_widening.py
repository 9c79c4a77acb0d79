"""Wider planes where the surface is plane that far, and nowhere else."""

import numpy as np
import pytest

from lifcal.virtual import _kernels_refine, widening
from lifcal.virtual._kernels_refine import (
    PLANE_RHO,
    PLANE_SLOPE_X,
    PLANE_SLOPE_Y,
    PLANE_VARIANCE,
    SUM_FREEDOM,
    SUM_INFORMATION,
    SUM_PULL,
    SUM_SQUARES,
)
from lifcal.virtual.widening import widen

HALF, EDGE = 6, 0.05
NOISE = 0.004
"""Of a cell's own rho."""


def fuse_and_widen(true, rng, information=1.0):
    """Return the planes of narrow windows, and those after widening, for noisy cells."""
    noisy = true + rng.normal(scale=NOISE, size=true.shape)
    sums = np.zeros((_kernels_refine.N_SUMS, *true.shape))
    sums[SUM_PULL] = -information * (noisy - true)
    sums[SUM_INFORMATION] = information
    sums[SUM_SQUARES] = information * NOISE**2
    sums[SUM_FREEDOM] = 1.0
    narrow = np.empty((*true.shape, _kernels_refine.FUSED_COLUMNS))
    _kernels_refine.fuse(true, sums, HALF, EDGE, narrow)
    wide = narrow.copy()
    widen(wide, true, sums, HALF, EDGE, np.ones(true.shape))
    return narrow, wide


@pytest.fixture
def plane():
    rows, cols = np.mgrid[:140, :160]
    return 0.35 + 5e-5 * (cols - 80) - 3e-5 * (rows - 70)


def inner(values):
    return values[24:-24, 24:-24]


def test_a_plane_gets_less_noisy_and_sigma_knows(plane, rng):
    narrow, wide = fuse_and_widen(plane, rng)
    errors = [inner(fused[..., PLANE_RHO] - plane) for fused in (narrow, wide)]
    assert errors[1].std() < 0.45 * errors[0].std()
    for error, fused in zip(errors, (narrow, wide), strict=True):
        assert 0.7 < np.sqrt(np.mean(error**2 / inner(fused[..., PLANE_VARIANCE]))) < 1.3
    # less a little: `fuse` draws slopes to zero
    np.testing.assert_allclose(inner(wide[..., PLANE_SLOPE_X]).mean(), 5e-5, atol=8e-6)
    np.testing.assert_allclose(inner(wide[..., PLANE_SLOPE_Y]).mean(), -3e-5, atol=8e-6)


def test_a_bump_stays(plane, rng):
    """Three sigmas high and as wide as the narrow window: the wider ones would flatten it."""
    rows, cols = np.mgrid[:140, :160]
    high = 0.004 * np.exp(-((cols - 80) ** 2 + (rows - 70) ** 2) / (2.0 * 10.0**2))
    narrow, wide = fuse_and_widen(plane + high, rng)
    top = (slice(66, 75), slice(76, 85))
    lost = [np.mean((high - fused[..., PLANE_RHO] + plane)[top]) for fused in (narrow, wide)]
    assert abs(lost[1] - lost[0]) < 0.15 * high.max()
    # what is left of it is in sigma
    assert np.median(wide[..., PLANE_VARIANCE][top]) > 2.0 * np.median(
        wide[..., PLANE_VARIANCE][30:40, 30:40]
    )


def test_beside_a_jump_nothing_changes(plane, rng):
    true = plane.copy()
    true[:, 80:] *= 1.3
    narrow, wide = fuse_and_widen(true, rng)
    band = (slice(20, -20), slice(75, 86))
    np.testing.assert_array_equal(wide[band], narrow[band])
    behind = (slice(30, -30), slice(95, -30))
    error, before = ((fused[..., PLANE_RHO] - true)[behind] for fused in (wide, narrow))
    assert error.std() < 0.6 * before.std()
    assert abs(error.mean()) < 0.3 * before.std()


def test_what_lies_beside_jumps_is_left_out(plane, rng, monkeypatch):
    true = plane.copy()
    true[:, 80:] *= 1.3
    sigma = np.full(true.shape, 0.01)
    beside = widening._is_beside_jump(true, sigma, HALF, EDGE)
    assert np.flatnonzero(beside[70]).tolist() == list(range(73, 87))
    # where there is no texture, noise is no jump; if there is none anywhere, who knows
    sigma[60:80, 70:90] = 0.1
    assert not widening._is_beside_jump(true, sigma, HALF, EDGE)[70].any()
    assert widening._is_beside_jump(true, np.full(true.shape, 0.1), HALF, EDGE)[70].any()
    monkeypatch.setattr(widening, "_is_beside_jump", lambda rho, *_: np.ones(rho.shape, np.bool_))
    narrow, wide = fuse_and_widen(plane, rng)
    np.testing.assert_array_equal(wide, narrow)


def test_small_images_and_unknown_pixels_are_left_alone(plane, rng):
    narrow, wide = fuse_and_widen(plane[:3, :3], rng)
    np.testing.assert_array_equal(wide, narrow)
    narrow, wide = fuse_and_widen(plane, rng, information=0.0)
    np.testing.assert_array_equal(wide, narrow)
