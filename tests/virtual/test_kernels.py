"""The compiled loops against their slow twins."""

import numpy as np
import pytest

from lifcal.camera.apertures import OverlapDiscs
from lifcal.virtual import _kernels_cost, _kernels_refine, _kernels_sampling, _kernels_synthesis
from lifcal.virtual._kernels_refine import (
    PLANE_RHO,
    PLANE_SLOPE_X,
    PLANE_SLOPE_Y,
    SUM_FREEDOM,
    SUM_INFORMATION,
    SUM_NOISE_INFORMATION,
    SUM_NOISE_PULL,
    SUM_PULL,
    SUM_SQUARES,
)
from lifcal.virtual.depth import make_spline
from lifcal.virtual.optics import LensOptics
from tests.reference import virtual_twin as twin
from tests.virtual.scenes import make_grid

STEP = 3.0


@pytest.fixture(params=[0.31, -0.27], ids=["Galilean", "Keplerian"])
def rho(request):
    return request.param


@pytest.fixture
def grid(rho):
    from dataclasses import replace

    planes = np.sign(rho) * np.array([2.6, 3.2, 4.4])
    grid = make_grid(n_types=3, focal_planes=planes)
    return replace(grid, discs=OverlapDiscs(5.7, (2.9, 2.3, 1.7)))


@pytest.fixture
def optics(grid):
    return LensOptics.from_grid(grid)


@pytest.fixture
def image(rng):
    return rng.uniform(0.2, 0.8, (260, 300)).astype(np.float32)


def place(row, col, step=STEP):
    return (col + 0.5) * step - 0.5, (row + 0.5) * step - 0.5


def test_sweep(image, grid, optics, rho):
    rhos = rho * np.array([0.9, 1.0, 1.1])
    cost = np.empty((87, 100, 3), np.float32)
    _kernels_cost.sweep(
        image, grid.index.table, optics.pack(), rhos, np.array([2, 0, 1]), STEP, 1, cost
    )
    for row, col in ((40, 50), (30, 61), (52, 33)):
        for level, value in enumerate(rhos):
            pairs = [
                twin.variance(image, *place(row + i, col + j), value, grid.centers_raw_px, optics)
                for i in (-1, 0, 1)
                for j in (-1, 0, 1)
            ]
            total, freedom = np.sum(pairs, axis=0)
            # The sweep takes the tables' nearest entry, a sixteenth of a pixel off at most.
            assert cost[row, col, level] == pytest.approx(total / freedom, rel=0.02)


def test_sweep_says_where_nothing_is_seen(image, grid, optics):
    # At u = 1.05 micro images of 0.35 pitch do not meet.
    cost = np.empty((87, 100, 1), np.float32)
    _kernels_cost.sweep(
        image,
        grid.index.table,
        optics.pack(),
        np.array([1.0 / 1.05]),
        np.array([0]),
        STEP,
        0,
        cost,
    )
    assert np.isnan(cost).any()


def test_box_sum(rng):
    values = rng.uniform(size=(9, 13)).astype(np.float32)
    out = values.copy()
    _kernels_cost.box_sum(out, 2, np.empty_like(out))
    padded = np.pad(values, 2)
    for row in range(9):
        for col in range(13):
            window = padded[row : row + 5, col : col + 5]
            assert out[row, col] == pytest.approx(window.sum(), rel=1e-5)


def test_semi_global(rng):
    cost = rng.uniform(size=(7, 9, 6)).astype(np.float32)
    total = np.empty_like(cost)
    _kernels_cost.pass_along_rows(cost, np.float32(0.1), np.float32(0.4), total)
    _kernels_cost.pass_along_columns(cost, np.float32(0.1), np.float32(0.4), total)
    np.testing.assert_allclose(total, twin.semi_global(cost, 0.1, 0.4), atol=1e-5)


def test_pick_between_levels():
    rhos = np.linspace(0.2, 0.4, 9)
    true = 0.2937
    total = ((rhos - true) ** 2).astype(np.float32)[None, None, :] * np.float32(100.0)
    rho, margin = np.empty((1, 1)), np.empty((1, 1), np.float32)
    _kernels_cost.pick(total, rhos, rho, margin)
    assert rho[0, 0] == pytest.approx(true, abs=1e-5)
    assert margin[0, 0] > 0.0
    _kernels_cost.pick(total[..., :3], rhos[:3], rho, margin)
    assert margin[0, 0] == -1.0


def test_compress_fills_unknown_levels():
    cost = np.array([[[1.0, np.nan, 3.0], [np.nan, np.nan, np.nan]]], np.float32)
    _kernels_cost.compress(cost, np.float32(1.0))
    low, high = np.log1p([1.0, 3.0])
    np.testing.assert_allclose(cost[0, 0], [low, (low + high) / 2.0, high], rtol=1e-6)
    np.testing.assert_array_equal(cost[0, 1], 0.0)


def test_spline_samples(image, rng):
    for x, y in rng.uniform(2.0, 250.0, (20, 2)):
        value, dx, dy = _kernels_sampling.sample_spline(image, x, y)
        expected, slope = twin.spline(image, (x, y))
        assert value == pytest.approx(expected, abs=1e-5)
        assert (dx, dy) == pytest.approx(tuple(slope), abs=1e-5)


def test_noise_of_the_spline(rng):
    spline = make_spline(rng.normal(size=(400, 400)).astype(np.float32))
    places = rng.uniform(4.0, 395.0, (40_000, 2))
    value, slope_x, slope_y = np.array(
        [_kernels_sampling.sample_spline(spline, x, y) for x, y in places]
    ).T
    assert value.var() == pytest.approx(_kernels_sampling.SPLINE_NOISE**2, rel=0.03)
    for slope in (slope_x, slope_y):
        expected = _kernels_sampling.GRADIENT_NOISE * _kernels_sampling.SPLINE_NOISE**2
        assert slope.var() == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize("shift", [0.125, 0.25, 0.375])
def test_pixels_do_not_lock(shift):
    """Two images of a wave, shifted by a part of a pixel, ask for no other shift."""

    def render(start, shift):
        wave = np.sin(2.0 * np.pi * 0.3 * (np.arange(24.0) - shift) + start)
        return make_spline(np.tile(wave, (16, 1)).astype(np.float32))

    pull, stiffness = 0.0, 0.0
    for start in np.linspace(0.0, 2.0 * np.pi, 16, endpoint=False):
        first, second = render(start, 0.0), render(start, shift)
        for x in 10.0 + np.linspace(0.0, 1.0, 16, endpoint=False):
            a, slope_a, _ = _kernels_sampling.sample_spline(first, x, 8.0)
            b, slope_b, _ = _kernels_sampling.sample_spline(second, x + shift, 8.0)
            slope = 0.5 * (slope_a + slope_b)
            pull += slope * (b - a)
            stiffness += slope * slope
    # Catmull-Rom's surface, for one, would be off by 0.014 to 0.020 px.
    assert abs(pull / stiffness) < 0.002


@pytest.mark.parametrize("parts", [1, 2])
def test_measure(image, grid, optics, rho, parts):
    depths = np.full((87, 100), rho)
    sums = np.empty((_kernels_refine.N_SUMS, 87, 100))
    _kernels_refine.measure(image, grid.index.table, optics.pack(), depths, STEP, parts, sums)
    for row, col in ((40, 50), (30, 61), (52, 33)):
        points = [
            place(row + (i + 0.5) / parts - 0.5, col + (j + 0.5) / parts - 0.5)
            for i in range(parts)
            for j in range(parts)
        ]
        expected = twin.measure(image, points, rho, grid.centers_raw_px, optics)
        np.testing.assert_allclose(sums[:4, row, col], expected, rtol=2e-3)


def test_noise_terms_are_what_noise_gives(grid, optics, rho, rng):
    """Pure noise: its sums must be what `measure` expects of noise of its variance."""
    depths = np.full((87, 100), rho)
    got = np.zeros(_kernels_refine.N_SUMS)
    for _ in range(20):
        labels = grid.label_image()
        centers = grid.centers_raw_px[np.maximum(labels, 0)]
        rows, cols = np.mgrid[:260, :300]
        away = np.hypot(cols - centers[..., 0], rows - centers[..., 1])
        bins = np.minimum((away * twin.BINS_PER_PX).astype(int), optics.weights.shape[1] - 1)
        kinds = grid.lens_types[np.maximum(labels, 0)]
        # Devignetted noise: its variance is the inverse of the weight.
        image = (rng.normal(size=away.shape) / np.sqrt(optics.weights[kinds, bins])).astype(
            np.float32
        )
        sums = np.empty((_kernels_refine.N_SUMS, 87, 100))
        spline = make_spline(image)
        _kernels_refine.measure(spline, grid.index.table, optics.pack(), depths, STEP, 2, sums)
        got += sums[:, 10:-10, 10:-10].sum(axis=(1, 2))
    variance = got[SUM_SQUARES] / got[SUM_FREEDOM]
    # Noise grows faster than linearly outward, so interpolation takes in a little more of it.
    assert variance == pytest.approx(_kernels_sampling.SPLINE_NOISE**2, rel=0.1)
    assert got[SUM_INFORMATION] == pytest.approx(variance * got[SUM_NOISE_INFORMATION], rel=0.06)
    # The pull of the noise's growth outward: right in sign, and in size to a third.
    assert got[SUM_PULL] == pytest.approx(variance * got[SUM_NOISE_PULL], rel=0.35)


def test_fuse_fits_a_plane(rng):
    rows, cols = np.mgrid[:21, :21]
    plane = 0.3 + 1e-4 * (cols - 10) - 5e-5 * (rows - 10)
    start = 0.3 + rng.normal(scale=1e-3, size=plane.shape)
    information = rng.uniform(0.5, 2.0, plane.shape)
    sums = np.zeros((_kernels_refine.N_SUMS, 21, 21))
    sums[SUM_PULL] = -information * (plane - start)
    sums[SUM_INFORMATION] = information
    sums[SUM_SQUARES] = 1e-6
    sums[SUM_FREEDOM] = 1.0
    fused = np.empty((21, 21, _kernels_refine.FUSED_COLUMNS))
    _kernels_refine.fuse(start, sums, 6, 0.05, fused)
    # The ridge on the slopes pulls by two per cent of what is not at the center's centroid.
    assert fused[10, 10, PLANE_RHO] == pytest.approx(0.3, abs=1e-5)
    assert fused[10, 10, PLANE_SLOPE_X] == pytest.approx(1e-4, rel=0.1)
    assert fused[10, 10, PLANE_SLOPE_Y] == pytest.approx(-5e-5, rel=0.1)


def test_fuse_keeps_edges():
    depths = np.full((21, 21), 0.3)
    depths[:, 11:] = 0.36
    sums = np.zeros((_kernels_refine.N_SUMS, 21, 21))
    sums[SUM_INFORMATION] = 1.0
    sums[SUM_SQUARES] = 1e-6
    sums[SUM_FREEDOM] = 1.0
    fused = np.empty((21, 21, _kernels_refine.FUSED_COLUMNS))
    _kernels_refine.fuse(depths, sums, 6, 0.05, fused)
    np.testing.assert_allclose(fused[..., PLANE_RHO], depths, rtol=1e-9)


def test_synthesise(image, grid, optics, rho):
    depths = np.full((52, 60), rho, np.float32)
    out, light = np.empty((52, 60), np.float32), np.empty((52, 60), np.float32)
    _kernels_synthesis.synthesise(image, grid.index.table, optics.pack(), depths, 5.0, out, light)
    for row, col in ((20, 30), (25, 17), (31, 44)):
        mean, total = twin.synthesise(
            image, *place(row, col, 5.0), rho, grid.centers_raw_px, optics
        )
        # Tables are read at their nearest entry, a sixteenth of a pixel off at most.
        assert out[row, col] == pytest.approx(mean, abs=0.01)
        assert light[row, col] == pytest.approx(total, rel=1e-4)


def test_synthesise_of_a_flat_image(grid, optics, rho):
    image = np.full((260, 300), 0.25, np.float32)
    out, light = np.empty((52, 60), np.float32), np.empty((52, 60), np.float32)
    depths = np.full((52, 60), rho, np.float32)
    _kernels_synthesis.synthesise(image, grid.index.table, optics.pack(), depths, 5.0, out, light)
    seen = light > 0.0
    assert seen.mean() > 0.9
    np.testing.assert_allclose(out[seen], 0.25, rtol=1e-5)


def test_detail(image, grid, optics, rho):
    shape, step = (130, 150), 2.0
    rows, cols = np.mgrid[: 2 * shape[0], : 2 * shape[1]]

    def mean_at(point):  # a plane, which lines between pixels give exactly
        return 0.3 + 0.001 * point[0] - 0.0007 * point[1]

    twice = mean_at(((cols + 0.5) * step / 2.0 - 0.5, (rows + 0.5) * step / 2.0 - 0.5))
    share = np.full(shape, 0.5, np.float32)
    share[60, 70] = 0.0
    out = np.full(shape, 0.2, np.float32)
    _kernels_synthesis.add_detail(
        image,
        grid.index.table,
        optics.pack(),
        np.full(shape, rho, np.float32),
        step,
        twice.astype(np.float32),
        share,
        out,
    )
    for row, col in ((50, 75), (62, 41), (71, 103)):
        found = twin.detail(
            image, *place(row, col, step), rho, grid.centers_raw_px, optics, mean_at
        )
        assert out[row, col] == pytest.approx(0.2 + 0.5 * found, abs=0.01)
        assert abs(found) > 0.02
    assert out[60, 70] == np.float32(0.2)
