"""Every compiled loop that takes coordinates gets numbers that are none, and far-away ones.

A bad row has no answer (NaN), raises nothing, and leaves the good rows beside it as they are. In
compiled code the conversion of such a number to an index is undefined, and may go unnoticed. So the
last test runs this file as plain Python, where the conversion itself raises.
"""

import os
import subprocess
import sys
import warnings
from dataclasses import replace

import numba
import numpy as np
import pytest

from lifcal.bundle import _kernels as bundle
from lifcal.bundle import _kernels_leave_out as leaving
from lifcal.bundle.linear import Layout, Loss
from lifcal.bundle.problem import Problem
from lifcal.camera import BrownDistortion, DivisionDistortion, Lattice, MicroLensGrid, NoDistortion
from lifcal.camera._kernels import cell_range
from lifcal.camera.apertures import OverlapDiscs
from lifcal.camera.grid import LensIndex
from lifcal.errors import InputError
from lifcal.geometry._kernels import pixels_within, take_median
from lifcal.grid import _kernels as imaging
from lifcal.measure import MeasureOptions, MeasureStatus, cut_patches, measure
from lifcal.measure import _kernels as measuring
from lifcal.metric import _kernels as metric
from lifcal.sfm import _kernels as sfm
from lifcal.simulate import PackedScene, Renderer, build_camera
from lifcal.simulate import _kernels as simulate
from lifcal.virtual import _kernels_cost, _kernels_edges, _kernels_refine, _kernels_synthesis
from lifcal.virtual.optics import LensOptics
from tests.conftest import REPOSITORY

NAN, INF = float("nan"), float("inf")
BAD = [NAN, INF, -INF, 1e300, -1e300, 1e9, -1e9]
SIZE = (60, 50)
COMPILED = not numba.config.DISABLE_JIT

bad_numbers = pytest.mark.parametrize("bad", BAD)


@pytest.fixture(autouse=True)
def quiet():
    """Plain Python warns of arithmetic with infinite numbers; a bad conversion stays an error."""
    with warnings.catch_warnings():
        if not COMPILED:
            warnings.filterwarnings("ignore", "(overflow|divide by zero|underflow) encountered")
            warnings.filterwarnings("ignore", "invalid value encountered in (?!cast)")
        yield


def make_grid(n_types=2):
    lattice = Lattice.regular("hexagonal-rows", 11.3, (29.3, 24.4), rotation_rad=0.02)
    lattice = replace(lattice, n_types=n_types, type_rule=(1, 2, 0))
    grid = MicroLensGrid.from_lattice(lattice, SIZE, focal_planes=[2.6, 3.4][:n_types])
    return replace(grid, discs=OverlapDiscs(4.5, (2.3, 1.9)[:n_types]))


@pytest.fixture
def points(rng):
    return rng.uniform(5.0, 45.0, (6, 2))


def spoil(points, bad):
    """Return the points with bad numbers in the rows 1, 3 and 4, and which rows are good."""
    spoiled = points.copy()
    spoiled[1, 0] = spoiled[3, 1] = bad
    spoiled[4] = bad
    return spoiled, np.array([True, False, True, False, False, True])


# geometry


@bad_numbers
def test_no_pixel_is_within_reach_of_a_bad_place(bad):
    assert pixels_within(bad, 3.0, 10) == (0, 0)
    first, end = pixels_within(4.0, bad, 10)
    assert (first, end) == ((0, 10) if bad > 0 else (0, 0))


@pytest.mark.parametrize("position", [-4.0, -3.0, -2.5, 0.0, 0.4, 4.5, 9.0, 11.9, 12.0, 12.1])
def test_pixels_within_reach(position):
    inside = [pixel for pixel in range(10) if abs(pixel - position) <= 3.0]
    first, end = pixels_within(position, 3.0, 10)
    assert list(range(first, end)) == inside


def test_median_of_nothing():
    assert np.isnan(take_median(np.empty(0)))


# camera


@bad_numbers
def test_no_cell_is_within_reach_of_a_bad_place(bad):
    first, last = cell_range(bad, 3.0, 0.0, 5.0, 10)
    assert first > last
    first, last = cell_range(4.0, bad, 0.0, 5.0, 10)
    assert (first, last) == (0, 9) if bad > 0 else first > last


@bad_numbers
def test_nearest_lens(points, bad):
    grid = make_grid()
    spoiled, good = spoil(points, bad)
    found = grid.nearest(spoiled)
    np.testing.assert_array_equal(found[good], grid.nearest(points)[good])
    # Far away but within what squares can hold, there is still a nearest one.
    if abs(bad) == 1e9:
        away = np.linalg.norm(grid.centers_raw_px[:, None] - spoiled[None, ~good], axis=2)
        chosen = away[found[~good], np.arange(3)]
        np.testing.assert_allclose(chosen, away.min(axis=0))
    else:
        np.testing.assert_array_equal(found[~good], -1)


@bad_numbers
def test_lenses_within_reach(points, bad):
    grid = make_grid()
    spoiled, good = spoil(points, bad)
    reach = np.full(6, 9.0)
    found, expected = grid.index.within(spoiled, reach), grid.index.within(points, reach)
    for i in range(6):
        np.testing.assert_array_equal(found.of(i), expected.of(i) if good[i] else [])
    wide = grid.index.within(points, np.full(6, bad))
    assert len(wide.indices) == (6 * len(grid) if bad > 0 else 0)


def test_centers_that_are_not_known_are_never_found():
    grid = make_grid()
    centers = grid.centers_raw_px.copy()
    centers[::3] = NAN
    found = LensIndex(centers, 11.3).nearest(grid.centers_raw_px)
    assert (found >= 0).all()
    assert (found % 3 != 0).all()


def test_no_points(points):
    grid, none = make_grid(), np.empty((0, 2))
    assert len(grid.nearest(none)) == 0
    assert len(grid.index.within(none, np.empty(0)).indices) == 0
    assert BrownDistortion(1e-9).undistort(none, [30.0, 25.0]).shape == (0, 2)


@bad_numbers
@pytest.mark.parametrize(
    "distortion",
    [NoDistortion(), BrownDistortion(1e-7, -1e-12, 0.0, 1e-7), DivisionDistortion(-1e-7)],
    ids=lambda distortion: distortion.name,
)
def test_distortion(points, distortion, bad):
    spoiled, good = spoil(points, bad)
    for change in (distortion.distort, distortion.undistort):
        found, expected = change(spoiled, [30.0, 25.0]), change(points, [30.0, 25.0])
        np.testing.assert_array_equal(found[good], expected[good])
    by_point, _ = distortion.compute_jacobians(spoiled, np.array([30.0, 25.0]))
    assert np.isfinite(by_point[good]).all()


@bad_numbers
def test_projection(rng, bad):
    camera = build_camera("mini").camera
    points = rng.uniform([-20.0, -20.0, 400.0], [20.0, 20.0, 900.0], (5, 3))
    lenses = rng.integers(0, len(camera.grid), 5)
    spoiled = points.copy()
    spoiled[1, 2] = spoiled[3] = bad
    good = np.array([True, False, True, False, True])
    found, expected = camera.project(spoiled, lenses), camera.project(points, lenses)
    np.testing.assert_array_equal(found[good], expected[good])
    if not bad > 0:
        assert np.isnan(found[~good]).all()
    again = camera.project_with_jacobian(spoiled, lenses)
    np.testing.assert_array_equal(again.points_raw_px, found)


# imaging


@pytest.fixture
def image(rng):
    width, height = SIZE
    return rng.uniform(0.2, 0.8, (height, width)).astype(np.float32)


@bad_numbers
def test_fold_cell(image, bad):
    grid = make_grid()
    inverse = np.linalg.inv(grid.lattice.basis_px)
    first = grid.indices_qr.min(axis=0)
    counts = grid.indices_qr.max(axis=0) - first + 1
    totals, sums = np.empty((2, 4, 4)), np.empty((2, 4, 4))

    def fold(origin, inverse, offset=0.0):
        box = imaging.Box(0, 0, *SIZE)
        level, offsets = np.ones((counts[1], counts[0])), np.zeros((counts[1], counts[0], 2))
        offsets[counts[1] // 2] = offset
        cells = imaging.LatticeCells(origin, inverse, *first, offsets, level)
        imaging.fold_cell(image, cells, box, 4, totals, sums)
        return sums.sum()

    whole = fold(grid.lattice.origin_px, inverse)
    assert whole > 0.9 * image.size
    assert fold(np.array([bad, 24.4]), inverse) == 0.0
    assert fold(grid.lattice.origin_px, np.array([[bad, 0.0], [0.0, bad]])) < 0.2 * image.size
    # one row of cells whose centers are not known
    assert 0.3 * whole < fold(grid.lattice.origin_px, inverse, bad) < whole


@pytest.mark.parametrize("own", [False, True])
@bad_numbers
def test_match_cells(image, points, bad, own):
    spoiled, good = spoil(points + 5.0, bad)
    basis = make_grid().lattice.basis_px
    table = np.dstack([np.full((8, 8), 0.5), np.eye(8), np.eye(8)[::-1]])

    def match(centers):
        found = imaging.Matches.empty(6)
        cell = imaging.MeanCell(basis, basis, table)
        imaging.match_cells(image, centers, cell, 4.0, own, found)
        return np.column_stack(found)

    found, expected = match(spoiled), match(points + 5.0)
    np.testing.assert_array_equal(found[good], expected[good])
    assert np.isfinite(expected).any()
    assert np.isnan(found[~good]).all()


@bad_numbers
def test_discs_and_rings(image, points, bad):
    spoiled, good = spoil(points, bad)
    means, expected = np.empty(6), np.empty(6)
    imaging.measure_discs(image, spoiled, 4.0, means)
    imaging.measure_discs(image, points, 4.0, expected)
    np.testing.assert_array_equal(means[good], expected[good])
    assert np.isfinite(expected).all()
    assert np.isnan(means[~good]).all()
    rings, plain = np.empty((3, 6, 5)), np.empty((3, 6, 5))
    imaging.measure_rings(image, spoiled, 0.8, *rings)
    imaging.measure_rings(image, points, 0.8, *plain)
    np.testing.assert_array_equal(rings[:, good], plain[:, good])
    np.testing.assert_array_equal(rings[:, ~good], 0.0)


def test_light_of_lenses_that_are_not_known():
    grid = make_grid()
    centers = grid.centers_raw_px.copy()
    centers[::2] = NAN
    profiles = np.tile(np.linspace(1.0, 0.0, 20), (2, 1))
    out = np.empty(SIZE[::-1], np.float32)
    imaging.sum_profiles(LensIndex(centers, 11.3).table, grid.lens_types, profiles, 0.3, out)
    whole = np.empty_like(out)
    imaging.sum_profiles(grid.index.table, grid.lens_types, profiles, 0.3, whole)
    assert np.isfinite(out).all()
    assert 0.3 * whole.sum() < out.sum() < 0.7 * whole.sum()


# virtual


@pytest.fixture
def depths(rng):
    """Inverse virtual depths, with places for bad ones."""
    return rng.uniform(0.28, 0.4, (10, 12))


BAD_PLACES = np.zeros((10, 12), bool)
BAD_PLACES[2, 3] = BAD_PLACES[5, 7] = BAD_PLACES[9, 11] = True
BAD_RHOS = [*BAD, 0.0, 5e3, -5e3, 1e-300]
bad_rhos = pytest.mark.parametrize("bad", BAD_RHOS)
STEP = 5.0


def look(image, rho, step=STEP):
    """Return what the loops over virtual pixels find, all (..., rows, cols)."""
    grid = make_grid()
    table, lenses = grid.index.table, LensOptics.from_grid(grid).pack()
    shape = rho.shape
    sums = np.empty((_kernels_refine.N_SUMS, *shape))
    _kernels_refine.measure(image, table, lenses, rho, step, 1, sums)
    out, light = np.empty(shape, np.float32), np.empty(shape, np.float32)
    _kernels_synthesis.synthesise(image, table, lenses, rho, step, out, light)
    detail = np.zeros(shape, np.float32)
    mean = np.full((2 * shape[0], 2 * shape[1]), 0.4, np.float32)
    share = np.ones(shape, np.float32)
    _kernels_synthesis.add_detail(image, table, lenses, rho, step, mean, share, detail)
    energy = np.empty((*shape, 2))
    _kernels_refine.type_sharpness(image, table, lenses, rho, step, 1e-4, energy)
    return np.concatenate([sums, [out], [light], [detail], np.moveaxis(energy, 2, 0)])


@bad_rhos
def test_virtual_pixels(image, depths, bad):
    spoiled = np.where(BAD_PLACES, bad, depths)
    found, expected = look(image, spoiled), look(image, depths)
    np.testing.assert_array_equal(found[:, ~BAD_PLACES], expected[:, ~BAD_PLACES])
    if bad == 1e-300:  # almost zero: every lens sees every point, as far as the list holds them
        return
    sums, light, energy = (
        found[: _kernels_refine.N_SUMS],
        found[_kernels_refine.N_SUMS + 1],
        found[-2:],
    )
    np.testing.assert_array_equal(sums[:, BAD_PLACES], 0.0)
    np.testing.assert_array_equal(light[BAD_PLACES], 0.0)
    assert np.isnan(energy[:, BAD_PLACES]).all()


@bad_rhos
def test_sweep(image, bad):
    grid = make_grid()
    lenses = LensOptics.from_grid(grid).pack()

    def sweep(rhos):
        cost = np.empty((10, 12, 3), np.float32)
        order = np.arange(3)
        _kernels_cost.sweep(image, grid.index.table, lenses, np.array(rhos), order, STEP, 1, cost)
        return cost

    found, expected = sweep([0.3, bad, 0.4]), sweep([0.3, 0.35, 0.4])
    np.testing.assert_array_equal(found[..., ::2], expected[..., ::2])
    assert np.isfinite(expected).any()
    if bad != 1e-300:
        assert np.isnan(found[..., 1]).all()


@bad_numbers
def test_sweep_beside_bad_centers(image, bad):
    grid = make_grid()
    lenses = LensOptics.from_grid(grid).pack()
    spoiled = grid.index.table.centers.copy()
    spoiled[::4] = bad
    cost = np.empty((10, 12, 1), np.float32)
    levels = np.array([0.33]), np.array([0])
    _kernels_cost.sweep(
        image, grid.index.table._replace(centers=spoiled), lenses, *levels, STEP, 1, cost
    )
    assert np.isfinite(cost).any()


@bad_rhos
def test_planes(image, depths, bad):
    """What is fitted to windows: a bad pixel spoils its window at most."""
    spoiled = np.where(BAD_PLACES, bad, depths)
    sums = np.abs(look(image, depths)[: _kernels_refine.N_SUMS]) + 1e-3
    far = np.ones(depths.shape, bool)
    for row, col in np.argwhere(BAD_PLACES):
        far[max(row - 3, 0) : row + 4, max(col - 3, 0) : col + 4] = False

    def fit(rho):
        fused = np.empty((*rho.shape, _kernels_refine.FUSED_COLUMNS))
        _kernels_refine.fuse(rho, sums, 2, 0.05, fused)
        halved, halved_sums = np.empty((5, 6)), np.empty((_kernels_refine.N_SUMS, 5, 6))
        _kernels_refine.halve(rho, sums, 0.05, halved, halved_sums)
        planes = np.empty((20, 24, _kernels_refine.PLANE_COLUMNS))
        _kernels_refine.bring_back(fused, 2, planes)
        return fused, planes, halved

    (fused, planes, halved), (expected, _, _) = fit(spoiled), fit(depths)
    np.testing.assert_array_equal(fused[far], expected[far])
    assert np.isfinite(planes).any()
    assert np.isfinite(halved).any()
    grid = make_grid()
    rho, variance, hidden = np.empty((20, 24)), np.empty((20, 24)), np.empty((20, 24), bool)
    _kernels_refine.spread_out(
        image,
        grid.index.table,
        LensOptics.from_grid(grid).pack(),
        np.where(BAD_PLACES[..., None], bad, fused),
        STEP,
        2,
        0.05,
        1,
        _kernels_refine.FineMaps(rho, variance, hidden),
    )
    assert np.isfinite(rho[np.kron(far, np.ones((2, 2), bool))]).all()


@bad_rhos
def test_depth_edges(image, bad):
    """Bad planes and bad sides have no edge around them, or one that no lens sees."""
    grid = make_grid()
    table, lenses = grid.index.table, LensOptics.from_grid(grid).pack()
    fused = np.zeros((10, 12, _kernels_refine.FUSED_COLUMNS))
    fused[..., _kernels_refine.PLANE_RHO] = np.where(np.arange(12) < 6, 0.3, 0.36)
    fused[..., _kernels_refine.PLANE_VARIANCE] = 1e-8
    limits = _kernels_edges.EdgeLimits(0.3, 0.01, 4.0)

    def find(fused):
        sides = np.empty((10, 12, _kernels_edges.SIDE_COLUMNS))
        _kernels_edges.find_sides(fused, np.ones((10, 12), bool), 2, limits, sides)
        rho = np.full((20, 24), 0.31, np.float32)
        maps = _kernels_edges.EdgeMaps(*(np.empty((20, 24), np.float32) for _ in range(7)))
        _kernels_edges.evaluate_sides(sides, 2.0, rho, maps)
        with np.errstate(over="ignore"):  # beyond float32 it is infinite
            maps.near[5, 9] = maps.far[14, 11] = bad
        wanted = np.ones((20, 24), bool)
        _kernels_edges.weigh_sides(image, table, lenses, STEP / 2, 1e-4, wanted, maps)
        places = np.argwhere(np.pad(np.ones((16, 20), bool), 2))
        weights, pull = np.empty((len(places), 25), np.float32), np.empty(len(places), np.float32)
        _kernels_edges.compare_neighbors(places, maps, 2, 0.1, weights, pull)
        out = maps.side.copy()
        _kernels_edges.spread_sides(places, 2, weights, pull, 0.5, maps.side, out)
        return sides, maps, out

    spoiled = np.where(BAD_PLACES[..., None], bad, fused)
    (_, maps, out), (sides, _, _) = find(spoiled), find(fused)
    assert np.isfinite(sides[:, 5:7]).all()
    assert np.isnan(sides[:, [0, 11]]).all()
    assert np.isfinite(out).all()
    assert (np.abs(out) <= 1.0).all()
    assert np.isfinite(maps.evidence).all()


@bad_rhos
def test_sharpen(rng, bad):
    image = rng.uniform(size=(14, 14)).astype(np.float32)
    rho = np.full((14, 14), 0.33)
    light = np.ones((14, 14), np.float32)
    weights = np.full((3, 8), 0.02)
    filters = _kernels_synthesis.Filters(np.log(0.2), 0.3, weights, np.array([1, 1, 1]))

    def sharpen(rho):
        out = np.empty_like(image)
        _kernels_synthesis.sharpen(image, rho, light, filters, out)
        return out

    spoiled = rho.copy()
    spoiled[7, 7] = bad
    found, expected = sharpen(spoiled), sharpen(rho)
    assert found[7, 7] == image[7, 7]
    changed = np.argwhere(found != expected)
    # Only where the filter's far taps meet the bad pixel.
    assert (np.abs(changed - 7).max(axis=1) <= 3).all()


# measure


@bad_numbers
def test_shifted_points(points, bad):
    shifts = np.tile(0.05 * np.arange(60.0), (2, 1))
    types = np.array([0, 1, 0, 1, 0, 1])

    def shift(points, centers, bends):
        out = np.empty((6, 2))
        measuring.shift_points(points, centers, types, bends, shifts, out)
        return out

    centers, bends = points + 1.0, np.full(6, 0.3)
    spoiled, good = spoil(points, bad)
    expected = shift(points, centers, bends)
    assert np.isfinite(expected).all()
    for found in (
        shift(spoiled, centers, bends),
        shift(points, np.where(good[:, None], centers, bad), bends),
    ):
        np.testing.assert_array_equal(found[good], expected[good])
        assert np.isnan(found[~good]).all()
    found = shift(points, centers, np.where(good, bends, bad))
    np.testing.assert_array_equal(found[good], expected[good])


def test_no_points_to_shift():
    none = np.empty((0, 2))
    measuring.shift_points(
        none, none, np.empty(0, np.int64), np.empty(0), np.ones((1, 9)), none.copy()
    )


@bad_numbers
def test_patches(image, points, bad):
    spoiled, good = spoil(points, bad)
    found, expected = cut_patches(image, spoiled), cut_patches(image, points)
    np.testing.assert_array_equal(found.values[good], expected.values[good])
    np.testing.assert_array_equal(found.corners_px[good], expected.corners_px[good])
    assert np.isnan(found.values[~good]).all()


@pytest.mark.parametrize("name", ["places_px", "jacobians", "tilts", "rhos"])
@pytest.mark.parametrize("bad", [NAN, INF, 1e300, -1e9])
def test_measure(rng, name, bad):
    from tests.measure.cases import make_case

    case = make_case(rng, n_tracks=1, n_images=6)
    options = MeasureOptions(most_misfit=1e6, rounds=2)
    focal = np.array([0.31])
    optics = replace(case.optics, focal_rhos=focal)
    spoiled = getattr(case.images, name).copy()
    spoiled[2] = bad
    images = replace(case.images, **{name: spoiled})
    found = measure(images, case.patches, case.grid, optics, 1.0, options)
    # A slope of zero makes the first round the same for any tilt that is finite.
    assert (found.status[[0, 1, 3, 4, 5]] == MeasureStatus.MEASURED).all()
    if name != "tilts" or not np.isfinite(bad):
        assert found.status[2] != MeasureStatus.MEASURED
        assert np.isnan(found.points_raw_px[2]).all()
        keep = np.arange(6) != 2
        alone = measure(
            case.images.select(keep),
            replace(
                case.patches,
                corners_px=case.patches.corners_px[keep],
                values=case.patches.values[keep],
            ),
            case.grid,
            optics,
            1.0,
            options,
        )
        np.testing.assert_allclose(found.points_raw_px[keep], alone.points_raw_px, atol=1e-9)


# metric


@bad_numbers
def test_surfaces(rng, bad):
    depth = (500.0 + rng.uniform(size=(9, 11))).astype(np.float32)
    spoiled = depth.copy()
    with np.errstate(over="ignore"):
        spoiled[4, 5] = np.float32(bad)
    far = np.ones(depth.shape, bool)
    far[1:8, 2:9] = False

    def look(depth):
        step = np.maximum(0.02 * depth, 0.0).astype(np.float32)
        normals = np.empty((*depth.shape, 3), np.float32)
        metric.fit_normals(depth, step, metric.Pinhole(800.0, 800.0, 5.0, 4.0), 2, normals)
        marked = np.empty(depth.shape, np.bool_)
        metric.mark_jumps(depth, step, 2, marked)
        sizes = np.empty(depth.shape, np.int32)
        metric.patch_sizes(depth, step, np.empty(depth.size, np.int32), sizes)
        return normals, marked, sizes

    normals, marked, sizes = look(spoiled)
    expected, _, _ = look(depth)
    assert np.isnan(normals[4, 5]).all()
    np.testing.assert_array_equal(normals[far], expected[far])
    assert not marked[far].any()
    assert (sizes[far] >= depth.size - 1).all()


def test_normals_of_a_depth_of_zero():
    depth = np.full((7, 7), 500.0, np.float32)
    depth[3, 3] = 0.0
    normals = np.empty((7, 7, 3), np.float32)
    pinhole = metric.Pinhole(800.0, 800.0, 3.0, 3.0)
    metric.fit_normals(depth, np.full_like(depth, 1e4), pinhole, 2, normals)


@bad_numbers
@pytest.mark.parametrize("what", ["depth", "rotation", "translation", "pinhole"])
def test_confirmed_depth(rng, what, bad):
    depth = np.full((6, 7), 500.0)
    sigma = np.full((6, 7), 2.0)
    rotations, translations = np.eye(3)[None], np.zeros((1, 3))
    pinhole = metric.Pinhole(800.0, 800.0, 3.0, 2.5)

    def confirm(depth, rotations, translations, pinhole):
        out, noise = np.empty((6, 7)), np.empty((6, 7))
        maps = np.full((1, 6, 7), 500.0), np.full((1, 6, 7), 2.0)
        others = metric.OtherFrames(*maps, rotations, translations)
        rule = metric.Agreement(needed=1, most_sigmas=3.0, common=0.6)
        metric.confirm(depth, sigma, others, pinhole, rule, out, noise)
        return out

    expected = confirm(depth, rotations, translations, pinhole)
    np.testing.assert_allclose(expected, 500.0)
    if what == "depth":
        spoiled = depth.copy()
        spoiled[2, 3] = bad
        found = confirm(spoiled, rotations, translations, pinhole)
        assert np.isnan(found[2, 3])
        np.testing.assert_array_equal(np.delete(found, 17), np.delete(expected, 17))
    elif what == "rotation":
        assert np.isnan(confirm(depth, np.full((1, 3, 3), bad), translations, pinhole)).all()
    elif what == "translation":
        assert np.isnan(confirm(depth, rotations, np.full((1, 3), bad), pinhole)).all()
    else:
        confirm(depth, rotations, translations + 1.0, pinhole._replace(fx=bad, fy=bad))


# bundle


@pytest.fixture(scope="module")
def scene():
    from tests.bundle.cases import small_scene

    return small_scene("mini", np.random.default_rng(0), n_points=8, n_views=3)


@pytest.mark.parametrize("bad", [1e300, -1e300, 1e9, -1e9])
def test_residuals(scene, bad):
    """Of a point that is far away or behind; a state refuses what is not finite."""
    layout = Layout(Problem(scene.observations, scene.camera.pixel_size_mm, scene.truth))
    points = scene.truth.points_world_mm.copy()
    points[2] = bad
    state = replace(scene.truth, points_world_mm=points)
    good = scene.observations.point_indices != 2
    found, expected = layout.compute_residuals(state), layout.compute_residuals(scene.truth)
    np.testing.assert_array_equal(found[good], expected[good])
    layout.compute_rows(state)
    layout.compute_cost(state, Loss())
    layout.linearize(state, Loss())
    points[2] = NAN
    with pytest.raises(InputError, match="NaN"):
        replace(scene.truth, points_world_mm=points)


@bad_numbers
def test_virtual_points_of_pairs(rng, bad):
    centers = rng.uniform(0.0, 100.0, (8, 2))
    seen = centers + (np.array([50.0, 40.0]) - centers) / 3.0
    offsets, index = np.array([0, 4, 8]), np.arange(8)

    def fit(seen, centers):
        out, information, misfit = np.empty((2, 3)), np.empty((2, 3, 3)), np.empty(2)
        bundle.fit_virtual_points(offsets, index, seen, centers, out, information, misfit)
        return out

    spoiled = seen.copy()
    spoiled[4:] = bad
    expected = fit(seen, centers)
    np.testing.assert_allclose(expected[:, 2], 1.0 / 3.0)
    np.testing.assert_array_equal(fit(spoiled, centers)[0], expected[0])
    assert not np.isfinite(fit(spoiled, np.where(index[:, None] < 4, centers, bad))[1]).any()


# sfm


@bad_numbers
@pytest.mark.parametrize("what", ["first", "second", "shifts"])
def test_matches_of_pairs(rng, what, bad):
    """A match that holds a bad number has no residual; its neighbors have theirs."""
    camera = np.array([900.0, 0.4, 0.0])
    first = rng.uniform([-200.0, -200.0, 2.0], [200.0, 200.0, 4.0], (2, 5, 3))
    given = {"first": first, "second": first + rng.normal(size=first.shape)}
    given["shifts"] = rng.normal(scale=0.01, size=(2, 3))
    rotations = np.tile(np.eye(3), (2, 1, 1))
    variances, used = np.ones((2, 5, 2, 3)), np.ones((2, 5), bool)

    def residuals_of(first, second, shifts):
        residuals, jacobians = np.empty((2, 5, 3)), np.empty((2, 5, 3, 3))
        motions = sfm.Motions(camera, rotations, shifts)
        matches = sfm.Matches(first, second, variances, used)
        sfm.list_residuals(motions, matches, residuals, jacobians)
        return residuals

    expected = residuals_of(**given)
    assert np.isfinite(expected).all()
    spoiled = given[what].copy()
    spoiled[1] = bad
    found = residuals_of(**{**given, what: spoiled})
    np.testing.assert_array_equal(found[0], expected[0])
    if not np.isfinite(bad):
        assert not np.isfinite(found[1]).all(axis=1).any()


# simulate


@bad_numbers
def test_texture_outside_of_it(bad):
    texels = np.arange(4 * 6, dtype=np.uint8)
    levels = np.array([[[0, 3, 2]]])
    assert np.isnan(simulate.sample_texture(texels, levels, 0, 0, 0, bad, 0.5))
    assert np.isnan(simulate.sample_texture(texels, levels, 0, 0, 0, 0.5, bad))
    for place in (0.0, 0.5, 1.0):
        assert 0.0 <= simulate.sample_texture(texels, levels, 0, 0, 0, place, place) <= 5.0


@bad_numbers
def test_halving(bad):
    planes = np.full((2, 5, 7), 3.0, np.float32)
    for loop, n, shape in (
        (simulate.halve_rows, 5, (2, 2, 7)),
        (simulate.halve_columns, 7, (2, 5, 3)),
    ):
        edges = np.linspace(0.0, n, n // 2 + 1)
        good, out = np.empty(shape, np.float32), np.empty(shape, np.float32)
        loop(planes, edges, good)
        np.testing.assert_allclose(good, 3.0)
        edges[1] = bad
        loop(planes, edges, out)
        assert np.isnan(out).any()
    with np.errstate(over="ignore"):
        planes[0, 1, 1] = bad
    both = np.empty((2, 2, 3), np.float32)
    with np.errstate(all="ignore"):
        simulate.halve_both(planes[:, :4, :6], both)
    assert np.isfinite(both[1]).all()
    rounded = np.empty(planes.shape, np.uint8)
    simulate.round_planes(planes, rounded)
    np.testing.assert_array_equal(rounded[1], 3)


@bad_numbers
def test_rays(bad):
    quad = np.array([[0.0, 0, 1, 500, 1e-3, 0, 0, -0.5, 0, 1e-3, 0, -0.5, 1.0, 1.0]])
    ball = np.array([[0.0, 0.0, 400.0, 50.0, 1.0, 1.0]])
    surfaces = simulate.Surfaces(np.array([500.0, 350.0]), quad, ball, np.eye(3))
    candidates = np.array([1, 0], np.int16)
    assert simulate.find_surface(0.0, 0.0, 0.0, 0.0, candidates, 2, surfaces)[0] == 1
    assert simulate.find_surface(60.0, 0.0, 0.0, 0.0, candidates, 2, surfaces)[0] == 0
    for ray in ((bad, 0.0, 0.0, 0.0), (0.0, 0.0, bad, 0.0), (bad, bad, bad, bad)):
        hit, depth, u, v = simulate.find_surface(*ray, candidates, 2, surfaces)
        assert hit == -1 or (0.0 <= u <= 1.0 and 0.0 <= v <= 1.0 and np.isfinite(depth))


@pytest.mark.skipif(not COMPILED, reason="too many rays for plain Python")
@bad_numbers
def test_render(bad):
    from tests.simulate.test_render import make_pose, make_scene

    rng = np.random.default_rng(3)
    packed = PackedScene(make_scene(rng))
    renderer = Renderer(build_camera("mini"), rays_per_pixel=4)
    pose = make_pose(rng)
    far = replace(pose, translation_mm=np.array([0.0, 0.0, bad])) if np.isfinite(bad) else pose
    raw = renderer.render_raw(packed, far, window=(100, 100, 12, 10))
    view = renderer.render_pinhole(packed, far, scale=0.05)
    assert np.isfinite(raw).all()
    assert np.isfinite(view.color).all()


@bad_numbers
def test_points_left_out(bad):
    """One bad row of a point makes its own answer NaN; other points keep theirs."""
    rng = np.random.default_rng(4)
    n_points, n_views, n_theta = 3, 2, 2
    size = 6 * n_views + n_theta
    seen = leaving.SeenPoints(
        rows=rng.normal(size=(4 * n_points, 2, 3 + n_theta)),
        pair_rows=np.arange(0, 4 * n_points + 1, 2),
        views=np.tile([0, 1], n_points),
        points_cam=np.array([0.1, 0.2, 5.0]) + np.zeros((2 * n_points, 3)),
        rotations=np.tile(np.eye(3), (n_views, 1, 1)),
        first=np.arange(0, 2 * n_points + 1, 2),
        kept=np.array([False, False, True]),
    )
    whole = 1e-3 * np.eye(size)
    scores = rng.normal(size=(n_points, size))

    def leave_out(seen, whole, scores):
        grown = scores.copy()
        change = np.eye(n_theta)
        leaving.leave_out(seen, change, whole, 6 * n_views, 0.98, scores, grown)
        return grown

    good = leave_out(seen, whole, scores)
    assert np.isfinite(good).all()
    np.testing.assert_array_equal(good[2], scores[2])
    spoiled = seen.rows.copy()
    spoiled[0, 0, 3] = bad
    found = leave_out(seen._replace(rows=spoiled), whole, scores)
    np.testing.assert_array_equal(found[1:], good[1:])
    if not np.isfinite(bad):
        assert np.isnan(found[0]).all()
    # Without information, and without unknowns, leaving a point out changes nothing.
    blind = seen._replace(rows=np.zeros_like(seen.rows))
    np.testing.assert_array_equal(leave_out(blind, whole, scores), scores)
    np.testing.assert_array_equal(leave_out(seen, 0.0 * whole, scores), scores)
    np.testing.assert_array_equal(leave_out(seen, whole, 0.0 * scores), 0.0 * scores)


@pytest.mark.skipif(not COMPILED, reason="nothing is compiled")
def test_what_counts_no_references_returns_no_array():
    """It would corrupt memory. The tests above have compiled most of these functions."""
    checked = 0
    for module in [module for name, module in sys.modules.items() if "._kernels" in name]:
        for item in vars(module).values():
            compiled = getattr(item, "compiled", item)
            if getattr(compiled, "targetoptions", {}).get("_nrt", True):
                continue
            for overload in compiled.overloads.values():
                returned = overload.signature.return_type
                parts = returned.types if hasattr(returned, "types") else [returned]
                assert not any(isinstance(part, numba.types.Array) for part in parts), item
                checked += 1
    assert checked > 10


# all of them


@pytest.mark.skipif(not COMPILED, reason="this is the run that it starts")
def test_all_of_this_in_plain_python():
    """Compiled, a number that becomes an index unchecked may go unnoticed: Python raises."""
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0", __file__],
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout[-4000:]
