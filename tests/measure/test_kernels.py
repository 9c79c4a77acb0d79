"""The compiled loops against their slow twins."""

import numpy as np
import pytest

from lifcal.measure import _kernels
from tests.reference import measure_twin as twin

SPACING, SIZE, WINDOW = 0.75, 16, 4.0


@pytest.mark.parametrize("f", [0.0, 0.1, 0.37, 0.5, 0.93, 1.0 - 1e-9])
def test_spline_and_its_slopes(f):
    out = np.empty((3, 4))
    _kernels.spline(f, *out)
    for derivative in range(3):
        # At a knot, scipy's piece on the other side differs in the third derivative only.
        expected = twin.spline_weights(f, derivative)
        np.testing.assert_allclose(out[derivative], expected, atol=1e-12)
    assert out.sum(axis=1) == pytest.approx([1.0, 0.0, 0.0], abs=1e-14)


@pytest.mark.parametrize(("n", "band"), [(1, 1), (7, 3), (40, 11), (9, 20)])
def test_solve_band(n, band, rng):
    row, col = np.indices((n, n))
    dense = np.where(np.abs(row - col) < band, rng.normal(size=(n, n)), 0.0)
    dense = np.tril(dense) + np.tril(dense, -1).T
    dense += (1.0 - np.linalg.eigvalsh(dense)[0]) * np.eye(n)
    packed = np.zeros((n, band))
    for j in range(min(band, n)):
        packed[j:, band - 1 - j] = np.diag(dense, -j)
    rhs = rng.normal(size=n)
    expected = np.linalg.solve(dense, rhs)
    assert _kernels.solve_band(packed, rhs)
    np.testing.assert_allclose(rhs, expected, rtol=1e-9, atol=1e-12)


def test_solve_band_says_when_it_cannot():
    assert not _kernels.solve_band(np.array([[0.0, 1.0], [0.5, -1.0]]), np.ones(2))
    assert not _kernels.solve_band(np.array([[0.0, np.nan]]), np.ones(1))


def test_invert_affine(rng):
    for _ in range(20):
        jacobian, tilt, slope = rng.normal(size=(2, 2)), rng.normal(size=2), rng.normal(size=2)
        out = np.empty((2, 2))
        _kernels.invert_affine(jacobian, tilt, slope, out)
        whole = jacobian + np.outer(tilt, slope)
        np.testing.assert_allclose(out @ whole, np.eye(2), atol=1e-11)


def smooth_tables(rng, n_types=2, n_bins=100):
    """Tables that start at 0 in the middle, as shifts do, and are smooth enough to invert."""
    away = np.arange(n_bins) / twin.BINS_PER_PX
    return np.stack([rng.uniform(0.02, 0.06) * away**1.5 for _ in range(n_types)])


def test_shift_points(rng):
    n = 40
    shifts = smooth_tables(rng)
    centers = rng.uniform(0.0, 100.0, (n, 2))
    points = centers + rng.uniform(-5.0, 5.0, (n, 2))
    types, bends = rng.integers(0, 2, n), rng.uniform(-0.6, 0.6, n)
    out = np.empty((n, 2))
    _kernels.shift_points(points, centers, types, bends, shifts, out)
    expected = [
        twin.shifted_point(points[k], centers[k], bends[k], shifts[types[k]]) for k in range(n)
    ]
    # twelve rounds of a map whose slope is a fifth at most
    np.testing.assert_allclose(out, expected, atol=1e-6)
    assert np.abs(out - points).max() > 0.1


def test_a_point_in_the_middle_stays():
    out = np.empty((1, 2))
    center = np.array([[3.0, 4.0]])
    zero = np.zeros(1, np.int64)
    _kernels.shift_points(center.copy(), center, zero, np.ones(1), np.ones((1, 20)), out)
    np.testing.assert_array_equal(out, center)


def test_pull_pixels(rng):
    side = 13
    tables = [smooth_tables(rng) for _ in range(3)]
    patch = rng.uniform(size=(side, side)).astype(np.float32)
    patch[2, 3] = patch[6, 6] = np.nan
    corner, center = np.array([40.0, 50.0]), np.array([46.2, 55.7])
    pixels = np.empty((side * side, _kernels.PIXEL_COLUMNS))
    packed = _kernels.OpticalTables(*tables, radius=5.5)
    n = _kernels.pull_pixels(patch, corner, center, 1, 0.4, packed, pixels)
    expected = twin.pull_pixels(patch, corner, center, 0.4, [t[1] for t in tables], 5.5)
    assert n == len(expected) < np.isfinite(patch).sum()
    np.testing.assert_allclose(pixels[:n], expected, atol=1e-12)


@pytest.fixture
def image(rng):
    """Pixels about a place, an affine map and a texture's coefficients."""
    y, x = np.mgrid[-6:7, -6:7]
    pixels = np.column_stack(
        [
            x.ravel() + 20.0,
            y.ravel() + 30.0,
            rng.uniform(size=x.size),
            rng.uniform(0.5, 1.0, x.size),
        ]
    )
    inverse = np.array([[1.1, 0.2], [-0.15, 0.9]])
    return pixels, np.array([20.3, 29.6]), inverse


SHARP = np.zeros((2, 2))
BLURRED = np.array([[0.3, -0.07], [-0.07, 0.2]])


GRID = _kernels.TextureGrid(SPACING, SIZE)


def make_patch(pixels, inverse, blur, n=None):
    n = len(pixels) if n is None else n
    return _kernels.Patch(pixels, n, inverse, to_curve(blur))


def to_curve(blur):
    """Half of a covariance, by cells of the texture, as kernels take it."""
    return 0.5 / SPACING**2 * np.array([blur[0, 0], 2.0 * blur[0, 1], blur[1, 1]])


def test_curve_texture(image):
    """A disc of blur and a square pixel as the texture sees them, less the reference's pixel."""
    _, _, inverse = image
    out = np.empty(3)
    _kernels.curve_texture(inverse, 0.21, 1.0 / 12.0, SPACING, out)
    wanted = (0.21 + 1.0 / 12.0) * inverse @ inverse.T - np.eye(2) / 12.0
    np.testing.assert_allclose(out, to_curve(wanted), atol=1e-14)


@pytest.mark.parametrize("blur", [SHARP, BLURRED], ids=["sharp", "blurred"])
def test_add_to_texture(image, blur):
    pixels, place, inverse = image
    band = 3 * SIZE + 4
    matrix, rhs = np.zeros((SIZE * SIZE, band)), np.zeros(SIZE * SIZE)
    patch = make_patch(pixels, inverse, blur)
    _kernels.add_to_texture(patch, place, 1.2, 0.1, WINDOW, GRID, matrix, rhs)
    dense, wanted = twin.texture_normal(
        pixels, place, inverse, blur, 1.2, 0.1, WINDOW, SPACING, SIZE
    )
    np.testing.assert_allclose(rhs, wanted, atol=1e-12)
    for j in range(band):
        np.testing.assert_allclose(matrix[j:, band - 1 - j], np.diag(dense, -j), atol=1e-12)
    # nothing lies outside the band
    assert np.abs(np.tril(dense, -band)).max() == 0.0


def soft_coefficients(rng):
    at = (np.arange(SIZE) - 0.5 * (SIZE - 1)) * SPACING
    s, t = np.meshgrid(at, at)
    spots = rng.uniform(-4.0, 4.0, (12, 2))
    heights = rng.normal(size=12)
    return sum(
        h * np.exp(-0.25 * ((s - a) ** 2 + (t - b) ** 2))
        for h, (a, b) in zip(heights, spots, strict=True)
    ).ravel()


@pytest.mark.parametrize("blur", [SHARP, BLURRED], ids=["sharp", "blurred"])
def test_fit_place(image, blur, rng):
    pixels, place, inverse = image
    coefficients = soft_coefficients(rng)
    shift, gain, offset = np.array([0.06, -0.09]), 1.1, 0.05
    away = (pixels[:, :2] - place - shift) @ inverse.T
    window = 3.5
    near = np.hypot(*away.T) < 5.0
    pixels, away = pixels[near], away[near]
    rows = np.array([twin.texture_row(s, t, blur, SPACING, SIZE) for s, t in away])
    pixels[:, 2] = gain * rows @ coefficients + offset
    pixels[:, 2] += rng.normal(scale=0.01, size=len(pixels))
    found = np.zeros(_kernels.FOUND_COLUMNS)
    found[_kernels.FOUND_GAIN] = 1.0
    patch = make_patch(pixels, inverse, blur)
    assert _kernels.fit_place(patch, place, coefficients, window, GRID, 3, True, found)
    best = twin.fit_place(
        *(pixels, place, inverse, blur, coefficients, window, SPACING, SIZE), [0.0, 0.0, 1.0, 0.0]
    )
    # three steps of Gauss-Newton, whose slopes are those without blur
    np.testing.assert_allclose(found[:4], best, atol=2e-3 if blur.any() else 1e-4)
    np.testing.assert_allclose(found[:2], shift, atol=0.03)


def test_information_on_the_shift(image, rng):
    """By central differences of the texture, gain and offset eliminated."""
    pixels, place, inverse = image
    coefficients = soft_coefficients(rng)
    away = (pixels[:, :2] - place) @ inverse.T
    inside = np.hypot(*away.T) <= 3.5
    rows = np.array([twin.texture_row(s, t, SHARP, SPACING, SIZE) for s, t in away[inside]])
    pixels[inside, 2] = rows @ coefficients
    found = np.zeros(_kernels.FOUND_COLUMNS)
    found[_kernels.FOUND_GAIN] = 1.0
    patch = make_patch(pixels, inverse, SHARP)
    _kernels.fit_place(patch, place, coefficients, 3.5, GRID, 3, True, found)
    step = 1e-5
    columns = []
    for axis in range(2):
        moved = [
            (pixels[inside, :2] - place - sign * step * np.eye(2)[axis]) @ inverse.T
            for sign in (1, -1)
        ]
        ends = [
            np.array([twin.texture_row(s, t, SHARP, SPACING, SIZE) @ coefficients for s, t in part])
            for part in moved
        ]
        columns.append((ends[0] - ends[1]) / (2.0 * step))
    design = np.column_stack([*columns, pixels[inside, 2], np.ones(int(inside.sum()))])
    whole = design.T @ (pixels[inside, 3, None] * design)
    wanted = np.linalg.inv(np.linalg.inv(whole)[:2, :2])
    information = found[[_kernels.FOUND_XX, _kernels.FOUND_XY, _kernels.FOUND_YY]]
    assert information == pytest.approx([wanted[0, 0], wanted[0, 1], wanted[1, 1]], rel=1e-6)
    assert found[_kernels.FOUND_PIXELS] == inside.sum()
    assert found[_kernels.FOUND_SQUARE] == pytest.approx(0.0, abs=1e-12)


def test_too_few_pixels_are_no_answer(image, rng):
    pixels, place, inverse = image
    found = np.zeros(_kernels.FOUND_COLUMNS)
    found[_kernels.FOUND_GAIN] = 1.0
    rest = (place, soft_coefficients(rng), 3.5, GRID, 3, True, found)
    near = np.argsort(np.hypot(*(pixels[:, :2] - place).T))
    assert not _kernels.fit_place(make_patch(pixels[near[:11]], inverse, SHARP), *rest)
    assert not _kernels.fit_place(make_patch(pixels, inverse, SHARP, n=0), *rest)


def test_one_step_at_a_time(image, rng):
    """Three calls of one step are one call of three; the last look changes no place."""
    pixels, place, inverse = image
    coefficients = soft_coefficients(rng)
    away = (pixels[:, :2] - place - np.array([0.05, -0.08])) @ inverse.T
    near = np.hypot(*away.T) < 5.0
    pixels, away = pixels[near], away[near]
    pixels[:, 2] = [twin.texture_row(s, t, SHARP, SPACING, SIZE) @ coefficients for s, t in away]
    common = (make_patch(pixels, inverse, SHARP), place, coefficients, 3.5, GRID)
    whole, parts = np.zeros((2, _kernels.FOUND_COLUMNS))
    whole[_kernels.FOUND_GAIN] = parts[_kernels.FOUND_GAIN] = 1.0
    assert _kernels.fit_place(*common, 3, True, whole)
    for _ in range(3):
        assert _kernels.fit_place(*common, 1, False, parts)
    np.testing.assert_allclose(parts[:4], whole[:4], atol=1e-12)
    # what is left is that at the end, not before the last step
    assert whole[_kernels.FOUND_SQUARE] < parts[_kernels.FOUND_SQUARE]


@pytest.mark.parametrize("anchors", [(), (1, 2, 6)])
def test_pin_origin(anchors, rng):
    """The common displacement along the surface by weighted least squares is taken out."""
    n = 9
    status = np.zeros(n, np.uint8)
    status[4] = _kernels.NO_AGREEMENT
    anchored = np.isin(np.arange(n), anchors)
    jacobians = np.eye(2) + rng.normal(scale=0.1, size=(n, 2, 2))
    tilts, slope = rng.normal(size=(n, 2)), np.array([0.02, -0.03])
    affine = jacobians + tilts[:, :, None] * slope
    starts = rng.normal(scale=0.1, size=(n, 2))
    found = np.zeros((n, _kernels.FOUND_COLUMNS))
    found[:, :2] = rng.normal(scale=0.2, size=(n, 2))
    roots = rng.normal(size=(n, 2, 2)) + 2.0 * np.eye(2)
    information = np.einsum("nji,njk->nik", roots, roots)
    found[:, _kernels.FOUND_XX] = information[:, 0, 0]
    found[:, _kernels.FOUND_XY] = information[:, 0, 1]
    found[:, _kernels.FOUND_YY] = information[:, 1, 1]
    before = found.copy()
    good = status == _kernels.MEASURED
    _kernels.pin_origin(status, anchored, starts, jacobians, tilts, slope, found)
    counts = good & (anchored if anchors else True)
    rows = np.einsum("nij,njk->nik", roots, affine)[counts].reshape(-1, 2)
    sides = np.einsum("nij,nj->ni", roots, before[:, :2] - starts)[counts].ravel()
    common = np.linalg.lstsq(rows, sides, rcond=None)[0]
    assert np.hypot(*common) > 0.01
    wanted = before[:, :2] - affine @ common
    np.testing.assert_allclose(found[good, :2], wanted[good], atol=1e-12)
    np.testing.assert_array_equal(found[~good], before[~good])
    np.testing.assert_array_equal(found[:, 2:], before[:, 2:])


def test_an_anchor_that_was_not_measured_does_not_count(rng):
    n = 5
    status = np.zeros(n, np.uint8)
    status[2] = _kernels.RAN_AWAY
    found = np.zeros((n, _kernels.FOUND_COLUMNS))
    found[:, :2] = rng.normal(size=(n, 2))
    found[:, [_kernels.FOUND_XX, _kernels.FOUND_YY]] = 1.0
    eye, zero = np.broadcast_to(np.eye(2), (n, 2, 2)).copy(), np.zeros((n, 2))
    with_it, without = found.copy(), found.copy()
    rest = (zero, eye, zero, np.zeros(2))
    _kernels.pin_origin(status, np.arange(n) == 2, *rest, with_it)
    _kernels.pin_origin(status, np.zeros(n, np.bool_), *rest, without)
    np.testing.assert_array_equal(with_it, without)
