"""Filters that undo the width of raw pixels."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.special import j1

from lifcal.camera.apertures import OverlapDiscs
from lifcal.virtual import _kernels_lenses, _kernels_synthesis
from lifcal.virtual.optics import LensOptics
from lifcal.virtual.sharpening import SharpeningFilters
from tests.virtual.scenes import make_grid

SCALE = 0.5


def make_optics(planes=(2.6, 3.2, 4.4)):
    grid = make_grid(n_types=3, focal_planes=np.array(planes))
    return LensOptics.from_grid(replace(grid, discs=OverlapDiscs(5.7, (2.9, 2.3, 1.7))))


def count_taps():
    """Return how many taps each ring has."""
    return [
        len({(i * p, j * q) for p, q in ((a, b), (b, a)) for i in (-1, 1) for j in (-1, 1)})
        for a, b in _kernels_synthesis.FILTER_RINGS
    ]


def apply(filters, image, u):
    out = np.empty_like(image)
    rho = np.full(image.shape, 1.0 / u, np.float32)
    _kernels_synthesis.sharpen(image, rho, np.ones_like(image), filters.pack(), out)
    return out


@pytest.mark.parametrize("u", [-6.0, 2.2, 3.0, 5.0, 11.0])
def test_flat_stays_flat(u):
    filters = SharpeningFilters.from_optics(make_optics(), SCALE)
    image = np.full((90, 100), 0.37, np.float32)
    np.testing.assert_allclose(apply(filters, image, u), image, rtol=1e-5)


def expected_square(weights, spacing, u, optics):
    """Return the mean square of the filtered image less the truth, frequency by frequency.

    As the docs put it: raw pixels `u` times as wide, Catmull and Rom's interpolation, discs of
    blur by lens type, a scene whose power falls with frequency, noise of the mean over lenses.
    """
    f = np.arange(-64, 64) / 128.0
    fx, fy = np.meshgrid(f, f)
    radial = np.hypot(fx, fy)
    width = u * SCALE
    t = (np.arange(4000) + 0.5) / 1000.0 - 2.0
    cubic = np.where(
        np.abs(t) < 1.0,
        1.5 * np.abs(t) ** 3 - 2.5 * t**2 + 1.0,
        -0.5 * np.abs(t) ** 3 + 2.5 * t**2 - 4.0 * np.abs(t) + 2.0,
    )
    interpolation = (np.exp(2j * np.pi * np.outer(f * width, t)) @ cubic).real / 1000.0
    pixel = np.sinc(f * width) * interpolation
    smooth = np.outer(interpolation, interpolation)
    blur, total = 0.0, 0.0
    for focal in optics.focal_rhos:
        radius = optics.blur_px * abs(focal - 1.0 / u)
        share = 1.0 / (1.0 + (radius / _kernels_lenses.FOCUS_BLUR_PX) ** 2)
        turn = np.maximum(2.0 * np.pi * radius * width * radial, 1e-9)
        blur = blur + share * 2.0 * j1(turn) / turn
        total += share
    seen = np.outer(pixel, pixel) * blur / total
    transfer = np.zeros(fx.shape)
    for weight, (a, b) in zip(weights, _kernels_synthesis.FILTER_RINGS, strict=True):
        for i, j in {(i * p, j * q) for p, q in ((a, b), (b, a)) for i in (-1, 1) for j in (-1, 1)}:
            transfer += weight * np.cos(2.0 * np.pi * spacing * (i * fx + j * fy))
    power = np.maximum(radial, 0.01) ** -2.2
    wanted = np.sinc(fx) * np.sinc(fy)
    noise = 1.6 * max(width / 2.5, 1.0) ** 2.2 * (smooth**2 + 0.1)
    return np.mean((transfer * seen - wanted) ** 2 * power + transfer**2 * noise)


@pytest.mark.parametrize("u", [2.4, 3.0, 4.2, 7.0, 13.0])
def test_no_other_filter_is_nearer_to_what_output_pixels_see(u):
    optics = make_optics()
    filters = SharpeningFilters.from_optics(optics, SCALE)
    at = round((math.log(1.0 / u) - filters.first) / filters.step)
    u = 1.0 / math.exp(filters.first + at * filters.step)
    weights, spacing = filters.weights[at].astype(np.float64), filters.spacings[at]
    least = expected_square(weights, spacing, u, optics)
    as_it_is = np.zeros_like(weights)
    as_it_is[0] = 1.0
    assert least < expected_square(as_it_is, spacing, u, optics)
    taps = count_taps()
    for ring in range(1, len(weights)):
        for change in (-0.004, 0.004):
            other = weights.copy()
            other[ring] += change
            other[0] -= change * taps[ring]  # a flat image stays as it is
            assert expected_square(other, spacing, u, optics) > least


def test_blur_is_undone_more_where_lenses_are_out_of_focus():
    gains = []
    for planes in ((2.9, 3.0, 3.1), (6.0, 7.0, 8.0)):
        filters = SharpeningFilters.from_optics(make_optics(planes), SCALE)
        image = np.tile(np.cos(2.0 * np.pi * 0.12 * np.arange(120)), (60, 1)).astype(np.float32)
        gains.append(np.abs(apply(filters, image, 3.0)[30, 30:90]).max())
    assert gains[1] > gains[0] * 1.05 > 1.0


@pytest.mark.parametrize("scale", [0.5, 1.0])
@pytest.mark.parametrize("planes", [(2.6, 3.2, 4.4), (-3.0, -3.5, -4.0), None])
def test_noise_is_never_raised_much(planes, scale):
    """However wide raw pixels are: their detail is not there to be brought back."""
    optics = make_optics(planes) if planes else LensOptics.from_grid(make_grid())
    filters = SharpeningFilters.from_optics(optics, scale)
    taps = np.array(count_taps())
    assert np.sqrt(filters.weights**2 @ taps).max() < 3.0


def test_unknown_focal_planes_are_taken_as_a_usual_blur():
    grid = make_grid()
    filters = SharpeningFilters.from_optics(LensOptics.from_grid(grid), SCALE)
    assert np.isfinite(filters.weights).all()
    assert (filters.weights[:, 0] > 1.0).any()


def test_borders_dark_places_and_jumps_stay():
    filters = SharpeningFilters.from_optics(make_optics(), SCALE)
    rng = np.random.default_rng(5)
    image = rng.uniform(size=(60, 60)).astype(np.float32)
    rho = np.full(image.shape, 1.0 / 3.0, np.float32)
    rho[44:] = 1.0 / 3.2
    light = np.ones_like(image)
    light[30, 33] = 0.0
    out = np.empty_like(image)
    _kernels_synthesis.sharpen(image, rho, light, filters.pack(), out)
    assert out[30, 30] == image[30, 30]
    assert out[30, 29] != image[30, 29]
    # nor is what a filter would take from beyond a jump of depth
    np.testing.assert_array_equal(out[41:47], image[41:47])
    assert (out[40, 10:50] != image[40, 10:50]).all()
    np.testing.assert_array_equal(out[:3], image[:3])
    np.testing.assert_array_equal(out[:, -3:], image[:, -3:])
