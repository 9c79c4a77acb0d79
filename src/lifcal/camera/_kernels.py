"""Compiled loops of the camera room: arrays and NamedTuples in, arrays out, NaN for "no answer".

Distortion acts on coordinates relative to the principal point. `model` selects the formula, `k` are
its coefficients: `BROWN` has (k0, k1, k2, p0, p1), `DIVISION` has (lambda), `NO_DISTORTION` has
none.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import njit

from lifcal.arrays import FloatArray, IntArray
from lifcal.threads import UNCOUNTED, in_parts

NO_DISTORTION = 0
BROWN = 1
DIVISION = 2

F, C_X, C_Y, ALPHA, BETA = 0, 1, 2, 3, 4
T_X, T_Y = 5, 6
"""Entries of the intrinsics: the five parameters of the pinhole array, and the tilt."""

BY_POINT, BY_F, BY_C, BY_ALPHA, BY_BETA, BY_DISTORTION = 0, 3, 4, 6, 7, 8
"""First columns of the derivatives of a projection with respect to the point (3 columns), F, c (2),
alpha, beta and the distortion. The two columns of the tilt follow those of the distortion."""

_INVERSE_TOLERANCE_PX = 1e-11
"""Error at which the iterative inverse of a distortion counts as converged. The rounding error of
raw coordinates on a large sensor is of this order."""
_INVERSE_STEPS = 50
"""Largest number of Newton steps. A few are enough, except close to the radius at which the
distortion folds back on itself."""
_BISECTIONS = 12
"""Number of bisections of the radius that give Newton's method its start value."""


class Centers(NamedTuple):
    """Undistorted micro-image centers.

    Parameters
    ----------
    places : (n_centers, 2) float64
        The centers; NaN beyond the radius at which the distortion folds back on itself.
    by_c, by_k : (n_centers, 2, 2) and (n_centers, 2, n_k) float64
        Derivatives with respect to the principal point and to the distortion coefficients.
    """

    places: FloatArray
    by_c: FloatArray
    by_k: FloatArray

    @classmethod
    def empty(cls, n: int, n_k: int) -> Centers:
        """Return arrays for n centers and n_k coefficients, with arbitrary content."""
        return cls(np.empty((n, 2)), np.empty((n, 2, 2)), np.empty((n, 2, n_k)))


@njit(cache=True)
def distort_point(model, k, x, y):
    """Return the distorted point and its 2 x 2 derivative with respect to the undistorted one."""
    if model == BROWN:
        r2 = x * x + y * y
        radial = r2 * (k[0] + r2 * (k[1] + r2 * k[2]))
        slope = k[0] + r2 * (2.0 * k[1] + r2 * 3.0 * k[2])
        p0 = k[3]
        p1 = k[4]
        xd = x * (1.0 + radial) + p0 * (r2 + 2.0 * x * x) + 2.0 * p1 * x * y
        yd = y * (1.0 + radial) + p1 * (r2 + 2.0 * y * y) + 2.0 * p0 * x * y
        cross = 2.0 * x * y * slope + 2.0 * p0 * y + 2.0 * p1 * x
        jxx = 1.0 + radial + 2.0 * x * x * slope + 6.0 * p0 * x + 2.0 * p1 * y
        jyy = 1.0 + radial + 2.0 * y * y * slope + 6.0 * p1 * y + 2.0 * p0 * x
        return xd, yd, jxx, cross, cross, jyy
    if model == DIVISION:
        r2 = x * x + y * y
        s = 1.0 - 4.0 * k[0] * r2
        if not s > 0.0:
            return math.nan, math.nan, math.nan, math.nan, math.nan, math.nan
        q = math.sqrt(s)
        g = 2.0 / (1.0 + q)
        slope = k[0] * g * g / q
        cross = 2.0 * x * y * slope
        return x * g, y * g, g + 2.0 * x * x * slope, cross, cross, g + 2.0 * y * y * slope
    return x, y, 1.0, 0.0, 0.0, 1.0


@njit(cache=True)
def distort_by_parameters(model, k, x, y, out):
    """Fill `out` (2, n_parameters) with the derivative of the distorted point by each of `k`."""
    if model == BROWN:
        r2 = x * x + y * y
        r4 = r2 * r2
        r6 = r4 * r2
        out[0, 0] = x * r2
        out[1, 0] = y * r2
        out[0, 1] = x * r4
        out[1, 1] = y * r4
        out[0, 2] = x * r6
        out[1, 2] = y * r6
        out[0, 3] = r2 + 2.0 * x * x
        out[1, 3] = 2.0 * x * y
        out[0, 4] = 2.0 * x * y
        out[1, 4] = r2 + 2.0 * y * y
    elif model == DIVISION:
        r2 = x * x + y * y
        s = 1.0 - 4.0 * k[0] * r2
        if s > 0.0:
            q = math.sqrt(s)
            g = 2.0 / (1.0 + q)
            slope = r2 * g * g / q
            out[0, 0] = x * slope
            out[1, 0] = y * slope
        else:
            out[0, 0] = math.nan
            out[1, 0] = math.nan


@njit(cache=True)
def undistort_point(model, k, fold, xd, yd):
    """Return the undistorted point, or NaN where the distortion has no inverse.

    `fold` is `Distortion.fold_radius_px`; only Brown's model, which has no closed inverse, uses it.
    """
    if model == BROWN:
        rd = math.sqrt(xd * xd + yd * yd)
        # The radial part alone is monotone up to the fold. Bisect it for a start value, then use
        # Newton's method in two dimensions.
        low = 0.0
        high = fold if fold < 4.0 * rd + 1.0 else 4.0 * rd + 1.0
        for _ in range(_BISECTIONS):
            middle = 0.5 * (low + high)
            m2 = middle * middle
            if middle * (1.0 + m2 * (k[0] + m2 * (k[1] + m2 * k[2]))) < rd:
                low = middle
            else:
                high = middle
        scale = 0.5 * (low + high) / rd if rd > 0.0 else 1.0
        x = xd * scale
        y = yd * scale
        tolerance = _INVERSE_TOLERANCE_PX + 4e-16 * rd
        for _ in range(_INVERSE_STEPS):
            px, py, jxx, jxy, jyx, jyy = distort_point(model, k, x, y)
            ex = xd - px
            ey = yd - py
            determinant = jxx * jyy - jxy * jyx
            if not determinant > 0.0:
                break
            if abs(ex) + abs(ey) < tolerance:
                if x * x + y * y < fold * fold:
                    return x, y
                break
            x += (jyy * ex - jxy * ey) / determinant
            y += (jxx * ey - jyx * ex) / determinant
        return math.nan, math.nan
    if model == DIVISION:
        denominator = 1.0 + k[0] * (xd * xd + yd * yd)
        if denominator > 0.0 and denominator < 2.0:
            return xd / denominator, yd / denominator
        return math.nan, math.nan
    return xd, yd


@in_parts(lambda points: len(points), least=256)
def distort_points(begin, end, model, k, cx, cy, points, out):
    """Fill `out` (n, 2) with distorted points; (cx, cy) is the principal point."""
    for i in range(begin, end):
        x, y, _, _, _, _ = distort_point(model, k, points[i, 0] - cx, points[i, 1] - cy)
        out[i, 0] = x + cx
        out[i, 1] = y + cy


@in_parts(lambda points: len(points), least=256)
def undistort_points(begin, end, model, k, fold, cx, cy, points, out):
    """Fill `out` (n, 2) with undistorted points; NaN where the distortion has no inverse."""
    for i in range(begin, end):
        x, y = undistort_point(model, k, fold, points[i, 0] - cx, points[i, 1] - cy)
        out[i, 0] = x + cx
        out[i, 1] = y + cy


@in_parts(lambda points: len(points), least=256)
def distort_jacobians(begin, end, model, k, cx, cy, points, by_point, by_parameters):
    """Fill the derivatives of distorted points: by the points (n, 2, 2) and by k (n, 2, n_k)."""
    for i in range(begin, end):
        x = points[i, 0] - cx
        y = points[i, 1] - cy
        _, _, jxx, jxy, jyx, jyy = distort_point(model, k, x, y)
        by_point[i, 0, 0] = jxx
        by_point[i, 0, 1] = jxy
        by_point[i, 1, 0] = jyx
        by_point[i, 1, 1] = jyy
        distort_by_parameters(model, k, x, y, by_parameters[i])


@njit(cache=True)
def project_point(intrinsics, model, k, x, y, z, center_x, center_y):
    """Return the recorded point, and intermediate values from which its derivatives are computed.

    The given micro-image center is undistorted. The values returned are the recorded point x_Rd,
    y_Rd; the undistorted point x_R, y_R relative to c; the numerator N_x, N_y and the denominator w
    of the projection through this lens; and the distortion's 2 x 2 derivative. They are NaN if the
    point is not in front of the camera.
    """
    focal = intrinsics[F]
    cx = intrinsics[C_X]
    cy = intrinsics[C_Y]
    tau = intrinsics[T_X] * (center_x - cx) + intrinsics[T_Y] * (center_y - cy)
    w = (intrinsics[ALPHA] * z + intrinsics[BETA] + tau * z) / (1.0 + tau)
    if not z > 0.0 or w == 0.0 or not tau > -1.0:
        w = math.nan
    nx = focal * x + (cx - center_x) * z
    ny = focal * y + (cy - center_y) * z
    rx = center_x - cx + nx / w
    ry = center_y - cy + ny / w
    xd, yd, jxx, jxy, jyx, jyy = distort_point(model, k, rx, ry)
    return xd + cx, yd + cy, rx, ry, nx, ny, w, jxx, jxy, jyx, jyy


@in_parts(lambda points: len(points), least=256)
def project_pairs(begin, end, intrinsics, model, k, points, lenses, centers, out):
    """Fill `out` (n, 2) with the projection of each point through the lens beside it.

    `centers` (n_lenses, 2) are the undistorted micro-image centers.
    """
    for i in range(begin, end):
        lens = lenses[i]
        xd, yd, _, _, _, _, _, _, _, _, _ = project_point(
            intrinsics,
            model,
            k,
            points[i, 0],
            points[i, 1],
            points[i, 2],
            centers[lens, 0],
            centers[lens, 1],
        )
        out[i, 0] = xd
        out[i, 1] = yd


@in_parts(lambda points: len(points), least=256)
def project_pairs_with_jacobian(
    begin, end, intrinsics, model, k, points, lenses, centers, out, jacobian
):
    """Fill `out` (n, 2) as `project_pairs` does, and `jacobian` (n, 2, 10 + n_k).

    `centers` is a `Centers`. The columns of `jacobian` are `BY_POINT` to `BY_DISTORTION`, and last
    the tilt t_x, t_y.
    """
    n_k = k.shape[0]
    by_tilt = BY_DISTORTION + n_k
    focal = intrinsics[F]
    cx = intrinsics[C_X]
    cy = intrinsics[C_Y]
    t_x = intrinsics[T_X]
    t_y = intrinsics[T_Y]
    for i in range(begin, end):
        lens = lenses[i]
        x = points[i, 0]
        y = points[i, 1]
        z = points[i, 2]
        center_x = centers.places[lens, 0]
        center_y = centers.places[lens, 1]
        xd, yd, rx, ry, nx, ny, w, jxx, jxy, jyx, jyy = project_point(
            intrinsics, model, k, x, y, z, center_x, center_y
        )
        out[i, 0] = xd
        out[i, 1] = yd
        row = jacobian[i]
        inv = 1.0 / w
        ux = nx * inv
        uy = ny * inv
        tau = t_x * (center_x - cx) + t_y * (center_y - cy)
        shrink = 1.0 / (1.0 + tau)
        alpha = (intrinsics[ALPHA] + tau) * shrink
        # Derivative with respect to the point.
        scale = focal * inv
        row[0, BY_POINT] = jxx * scale
        row[1, BY_POINT] = jyx * scale
        row[0, BY_POINT + 1] = jxy * scale
        row[1, BY_POINT + 1] = jyy * scale
        dx = (cx - center_x - ux * alpha) * inv
        dy = (cy - center_y - uy * alpha) * inv
        row[0, BY_POINT + 2] = jxx * dx + jxy * dy
        row[1, BY_POINT + 2] = jyx * dx + jyy * dy
        # Derivative with respect to F.
        row[0, BY_F] = (jxx * x + jxy * y) * inv
        row[1, BY_F] = (jyx * x + jyy * y) * inv
        # Derivative with respect to alpha and beta, through the denominator of this lens.
        bx = -ux * inv
        by = -uy * inv
        gx = (jxx * bx + jxy * by) * shrink
        gy = (jyx * bx + jyy * by) * shrink
        row[0, BY_ALPHA] = gx * z
        row[1, BY_ALPHA] = gy * z
        row[0, BY_BETA] = gx
        row[1, BY_BETA] = gy
        # Derivative with respect to the tilt through tau, again through the denominator.
        by_tau_x = gx * (z - w)
        by_tau_y = gy * (z - w)
        row[0, by_tilt] = by_tau_x * (center_x - cx)
        row[1, by_tilt] = by_tau_y * (center_x - cx)
        row[0, by_tilt + 1] = by_tau_x * (center_y - cy)
        row[1, by_tilt + 1] = by_tau_y * (center_y - cy)
        # Derivative with respect to the undistorted center.
        direct = z * inv
        rest = 1.0 - direct
        cxx = jxx * rest + by_tau_x * t_x
        cxy = jxy * rest + by_tau_x * t_y
        cyx = jyx * rest + by_tau_y * t_x
        cyy = jyy * rest + by_tau_y * t_y
        # Derivative with respect to c: through the pinhole, through the tilt, through the
        # undistorted center, and as the center of the distortion.
        for a in range(2):
            px = centers.by_c[lens, 0, a]
            py = centers.by_c[lens, 1, a]
            row[0, BY_C + a] = cxx * px + cxy * py
            row[1, BY_C + a] = cyx * px + cyy * py
        row[0, BY_C] += jxx * direct - by_tau_x * t_x + 1.0 - jxx
        row[0, BY_C + 1] += jxy * direct - by_tau_x * t_y - jxy
        row[1, BY_C] += jyx * direct - by_tau_y * t_x - jyx
        row[1, BY_C + 1] += jyy * direct - by_tau_y * t_y + 1.0 - jyy
        # Derivative with respect to the distortion: at the point itself, and through the
        # undistorted center.
        if n_k > 0:
            tail = row[:, BY_DISTORTION:by_tilt]
            distort_by_parameters(model, k, rx, ry, tail)
            for j in range(n_k):
                sx = centers.by_k[lens, 0, j]
                sy = centers.by_k[lens, 1, j]
                tail[0, j] += cxx * sx + cxy * sy
                tail[1, j] += cyx * sx + cyy * sy


@in_parts(lambda recorded: len(recorded), least=256)
def undistort_centers_with_jacobian(begin, end, model, k, fold, cx, cy, recorded, centers):
    """Undistort recorded micro-image centers (n, 2), with derivatives; `centers` is a `Centers`.

    The recorded center D = distort(C; c, k) is fixed. With J = dD/dC, implicit differentiation
    gives dC/dc = I - J^-1 and dC/dk = -J^-1 dD/dk.
    """
    n_k = k.shape[0]
    out, by_c, by_k = centers.places, centers.by_c, centers.by_k
    for i in range(begin, end):
        x, y = undistort_point(model, k, fold, recorded[i, 0] - cx, recorded[i, 1] - cy)
        out[i, 0] = x + cx
        out[i, 1] = y + cy
        _, _, jxx, jxy, jyx, jyy = distort_point(model, k, x, y)
        inv = 1.0 / (jxx * jyy - jxy * jyx)
        ixx = jyy * inv
        ixy = -jxy * inv
        iyx = -jyx * inv
        iyy = jxx * inv
        by_c[i, 0, 0] = 1.0 - ixx
        by_c[i, 0, 1] = -ixy
        by_c[i, 1, 0] = -iyx
        by_c[i, 1, 1] = 1.0 - iyy
        if n_k > 0:
            distort_by_parameters(model, k, x, y, by_k[i])
            for j in range(n_k):
                px = by_k[i, 0, j]
                py = by_k[i, 1, j]
                by_k[i, 0, j] = -(ixx * px + ixy * py)
                by_k[i, 1, j] = -(iyx * px + iyy * py)


class LensTable(NamedTuple):
    """Micro-image centers sorted into square cells, as `LensIndex.table` builds it.

    Cell (i, j) has the number c = j shape[0] + i and holds the lenses items[start[c]:start[c + 1]].

    Parameters
    ----------
    centers : (n_lenses, 2) float64
        Micro-image centers in raw pixels.
    start : (n_cells + 1,) int64
        Position in `items` at which the lenses of each cell begin.
    items : (n_finite,) int64
        Indices of the lenses with a finite center, sorted by cell.
    origin : (2,) float64
        Corner of cell (0, 0).
    shape : (2,) int64
        Number of cells along x and y.
    cell : float
        Side of a cell in px.
    """

    centers: FloatArray
    start: IntArray
    items: IntArray
    origin: FloatArray
    shape: IntArray
    cell: float


@njit(cache=True)
def nearest_center(table, x, y):
    """Return the index of the center nearest to (x, y), searched in growing rings of cells.

    The result is -1 for coordinates that are NaN, infinite, or so large that their squares
    overflow.
    """
    centers, start, items = table.centers, table.start, table.items
    origin, shape, cell = table.origin, table.shape, table.cell
    if not (math.isfinite(x) and math.isfinite(y)) or items.shape[0] == 0:
        return -1
    n_x = shape[0]
    n_y = shape[1]
    ci = math.floor(min(max((x - origin[0]) / cell, -1e6), 1e6))
    cj = math.floor(min(max((y - origin[1]) / cell, -1e6), 1e6))
    # Start at the ring that first touches the table.
    reach_x = max(-ci, ci - n_x + 1, 0)
    reach_y = max(-cj, cj - n_y + 1, 0)
    ring = max(reach_x, reach_y)
    best = -1
    best_d2 = math.inf
    while True:
        for j in range(max(cj - ring, 0), min(cj + ring, n_y - 1) + 1):
            edge = j == cj - ring or j == cj + ring
            step = 1 if edge or ring == 0 else 2 * ring
            i = max(ci - ring, 0) if step == 1 else ci - ring
            while i <= min(ci + ring, n_x - 1):
                if i >= 0:
                    c = j * n_x + i
                    for item in range(start[c], start[c + 1]):
                        index = items[item]
                        dx = centers[index, 0] - x
                        dy = centers[index, 1] - y
                        d2 = dx * dx + dy * dy
                        if d2 < best_d2 or (d2 == best_d2 and index < best):
                            best_d2 = d2
                            best = index
                i += step
        # A center outside the rings searched so far is at least ring * cell away.
        if best >= 0 and best_d2 <= (ring * cell) * (ring * cell):
            return best
        if ring > n_x + n_y + max(reach_x, reach_y):
            return best
        ring += 1


@in_parts(lambda points: len(points), least=256)
def nearest_centers(begin, end, table, points, out):
    """Fill `out` (n,) with `nearest_center` of each point."""
    for i in range(begin, end):
        out[i] = nearest_center(table, points[i, 0], points[i, 1])


@njit(cache=True, fastmath=False, **UNCOUNTED)
def cell_range(position, reach, origin, cell, count):
    """Return the first and last cell along one axis that [position -+ reach] touches.

    The last is -1 if there is none, also if a number is NaN, because max(a, b) is a if b is NaN.
    """
    low = (position - reach - origin) / cell
    high = (position + reach - origin) / cell
    first = math.floor(min(max(0.0, low), 1e9))
    last = math.floor(min(max(-1.0, high), count - 1.0))
    return first, last


@njit(cache=True, fastmath=False, **UNCOUNTED)
def row_items(start, row, first, last, columns):
    """Return where the items of the cells `first` to `last` of a row begin, and where they end."""
    base = row * columns
    return start[base + min(first, last + 1)], start[base + last + 1]


@njit(cache=True)
def list_within(table, x, y, reach, out, at):
    """Write the centers within `reach` of (x, y) to out[at:]; return where the list ends.

    If `out` is empty, the centers are only counted.
    """
    centers, start, items = table.centers, table.start, table.items
    origin, shape, cell = table.origin, table.shape, table.cell
    if not (math.isfinite(x) and math.isfinite(y) and reach >= 0.0):
        return at
    i0, i1 = cell_range(x, reach, origin[0], cell, shape[0])
    j0, j1 = cell_range(y, reach, origin[1], cell, shape[1])
    for j in range(j0, j1 + 1):
        first, last = row_items(start, j, i0, i1, shape[0])
        for item in range(first, last):
            dx = centers[items[item], 0] - x
            dy = centers[items[item], 1] - y
            if dx * dx + dy * dy <= reach * reach:
                if out.shape[0] > 0:
                    out[at] = items[item]
                at += 1
    return at


@in_parts(lambda points: len(points), least=256)
def count_within(begin, end, table, points, reach, out):
    """Count the centers within `reach[i]` of `points[i]`."""
    nothing = np.empty(0, np.int64)
    for p in range(begin, end):
        out[p] = list_within(table, points[p, 0], points[p, 1], reach[p], nothing, 0)


@in_parts(lambda points: len(points), least=256)
def fill_within(begin, end, table, points, reach, offsets, out):
    """Write the centers within `reach[i]` of `points[i]` to out[offsets[i]:], in index order."""
    for p in range(begin, end):
        stop = list_within(table, points[p, 0], points[p, 1], reach[p], out, offsets[p])
        out[offsets[p] : stop].sort()


@in_parts(lambda labels: len(labels))
def label_pixels(begin, end, table, radius, labels):
    """Fill `labels` (rows, cols) with the nearest center within `radius`, else -1."""
    centers = table.centers
    for row in range(begin, end):
        for col in range(labels.shape[1]):
            lens = nearest_center(table, col, row)
            labels[row, col] = -1
            if lens >= 0:
                dx = centers[lens, 0] - col
                dy = centers[lens, 1] - row
                if dx * dx + dy * dy <= radius * radius:
                    labels[row, col] = lens
