"""Compiled loop of the jackknife: how the unknowns move if a point is left out.

Symbols are those of `lifcal.bundle.covariance`: S is the reduced normal matrix, S_p what point p
adds to it, and g_p what p adds to the reduced gradient.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from lifcal.arrays import BoolArray, FloatArray, IntArray
from lifcal.bundle._kernels import POINT
from lifcal.threads import UNCOUNTED, in_parts

_SETTLED = 1e-12
"""Size of the residual of the iterative solution, relative to the right-hand side, at which it is
accurate enough: no more than rounding is left."""
_LEAST_PIVOT = 1e-15
"""Least pivot of a point's normal matrix, relative to its mean diagonal entry, so that it can be
inverted even if nothing determines the point."""


SOLUTION, RESIDUAL, DIRECTION = 0, 1, 2
RESIDUAL_INNER, DIRECTION_INNER, PRODUCT = 3, 4, 5
N_VECTORS = 6
"""Rows of the scratch space of the conjugate gradients. `RESIDUAL_INNER` and `DIRECTION_INNER` are
S^-1 times the residual and the direction, `PRODUCT` is the matrix of the equations times the
direction."""
_OPTIONS: Any = {
    "cache": True,
    "error_model": "numpy",
    "fastmath": {"contract", "reassoc"},
    **UNCOUNTED,
}
"""Numba options of the functions that are called for every point."""


class SeenPoints(NamedTuple):
    """The observations of points, sorted by point and view.

    Parameters
    ----------
    rows : (n_obs, 2, 3 + n_theta) float64
        Whitened derivatives of the observations by X_C and the intrinsics; 0 for those that do not
        count.
    pair_rows : (n_pairs + 1,) int64
        First observation of each pair of a point and a view, and the number of observations.
    views : (n_pairs,) int64
    points_cam : (n_pairs, 3) float64
        The point in the coordinates of the view.
    rotations : (n_views, 3, 3) float64
    first : (n_points + 1,) int64
        First pair of each point, and the number of pairs.
    kept : (n_points,) bool
        Points that are never left out.
    """

    rows: FloatArray
    pair_rows: IntArray
    views: IntArray
    points_cam: FloatArray
    rotations: FloatArray
    first: IntArray
    kept: BoolArray


class PointScratch(NamedTuple):
    """Space for one point that n_pairs views see.

    Parameters
    ----------
    normals : (n_pairs, 3 + n_theta, 3 + n_theta) float64
        Normal matrix of each pair by X_C and the intrinsics.
    by_cam : (n_pairs, 3) float64
        Gradient of each pair by X_C.
    by_theta : (2, n_theta) float64
        Changes of the intrinsics, and the gradient by them.
    own : (3, 3) float64
        Lower Cholesky factor of the point's own normal matrix, in world coordinates.
    """

    normals: FloatArray
    by_cam: FloatArray
    by_theta: FloatArray
    own: FloatArray


@njit(**_OPTIONS)
def sum_normals(seen, point, scratch):
    """Fill the normal matrices of a point's pairs, and the Cholesky factor of its own."""
    normals, own, rows = scratch.normals, scratch.own, seen.rows
    begin, end = seen.first[point], seen.first[point + 1]
    n = rows.shape[2]
    own[:] = 0.0
    for pair in range(begin, end):
        i = pair - begin
        for a in range(n):
            for b in range(n):
                normals[i, a, b] = 0.0
        for row in range(seen.pair_rows[pair], seen.pair_rows[pair + 1]):
            for axis in range(2):
                for a in range(n):
                    for b in range(a + 1):
                        normals[i, a, b] += rows[row, axis, a] * rows[row, axis, b]
        for a in range(n):
            for b in range(a):
                normals[i, b, a] = normals[i, a, b]
        view = seen.views[pair]
        for a in range(3):
            for b in range(3):
                for j in range(3):
                    for k in range(3):
                        own[a, b] += (
                            seen.rotations[view, j, a]
                            * normals[i, j, k]
                            * seen.rotations[view, k, b]
                        )
    least = _LEAST_PIVOT * (own[0, 0] + own[1, 1] + own[2, 2]) / 3.0 + 1e-300
    for a in range(3):
        for b in range(a + 1):
            total = own[a, b]
            for k in range(b):
                total -= own[a, k] * own[b, k]
            own[a, b] = math.sqrt(max(total, least)) if a == b else total / own[b, b]


@njit(**_OPTIONS)
def apply_point(seen, point, change, scratch, step, out):
    """Fill `out` with S_p `step`: both contain the poses that see the point, then the intrinsics.

    `change` (n_theta, n_free) leads from the steps of the intrinsics to their changes.
    """
    normals, by_cam, by_theta, own = scratch
    begin, end = seen.first[point], seen.first[point + 1]
    n_theta, n_free = change.shape
    n_poses = 6 * (end - begin)
    w0 = w1 = w2 = 0.0
    for k in range(n_theta):
        total = 0.0
        for a in range(n_free):
            total += change[k, a] * step[n_poses + a]
        by_theta[0, k] = total
        by_theta[1, k] = 0.0
    for pair in range(begin, end):
        i = pair - begin
        at = 6 * i
        x, y, z = seen.points_cam[pair, 0], seen.points_cam[pair, 1], seen.points_cam[pair, 2]
        # The point moves in the camera by [-[X]_x | I] times the step of the pose.
        m0 = z * step[at + 1] - y * step[at + 2] + step[at + 3]
        m1 = x * step[at + 2] - z * step[at] + step[at + 4]
        m2 = y * step[at] - x * step[at + 1] + step[at + 5]
        for a in range(POINT + n_theta):
            total = normals[i, a, 0] * m0 + normals[i, a, 1] * m1 + normals[i, a, 2] * m2
            for k in range(n_theta):
                total += normals[i, a, POINT + k] * by_theta[0, k]
            if a < POINT:
                by_cam[i, a] = total
            else:
                by_theta[1, a - POINT] += total
        r = seen.views[pair]
        turn = seen.rotations
        w0 += turn[r, 0, 0] * by_cam[i, 0] + turn[r, 1, 0] * by_cam[i, 1]
        w0 += turn[r, 2, 0] * by_cam[i, 2]
        w1 += turn[r, 0, 1] * by_cam[i, 0] + turn[r, 1, 1] * by_cam[i, 1]
        w1 += turn[r, 2, 1] * by_cam[i, 2]
        w2 += turn[r, 0, 2] * by_cam[i, 0] + turn[r, 1, 2] * by_cam[i, 1]
        w2 += turn[r, 2, 2] * by_cam[i, 2]
    # The point itself is free: it moves by so much less.
    w0 /= own[0, 0]
    w1 = (w1 - own[1, 0] * w0) / own[1, 1]
    w2 = (w2 - own[2, 0] * w0 - own[2, 1] * w1) / own[2, 2]
    w2 /= own[2, 2]
    w1 = (w1 - own[2, 1] * w2) / own[1, 1]
    w0 = (w0 - own[1, 0] * w1 - own[2, 0] * w2) / own[0, 0]
    for pair in range(begin, end):
        i = pair - begin
        at = 6 * i
        r = seen.views[pair]
        turn = seen.rotations
        m0 = turn[r, 0, 0] * w0 + turn[r, 0, 1] * w1 + turn[r, 0, 2] * w2
        m1 = turn[r, 1, 0] * w0 + turn[r, 1, 1] * w1 + turn[r, 1, 2] * w2
        m2 = turn[r, 2, 0] * w0 + turn[r, 2, 1] * w1 + turn[r, 2, 2] * w2
        for a in range(POINT + n_theta):
            less = normals[i, a, 0] * m0 + normals[i, a, 1] * m1 + normals[i, a, 2] * m2
            if a < POINT:
                by_cam[i, a] -= less
            else:
                by_theta[1, a - POINT] -= less
        x, y, z = seen.points_cam[pair, 0], seen.points_cam[pair, 1], seen.points_cam[pair, 2]
        bx, by, bz = by_cam[i, 0], by_cam[i, 1], by_cam[i, 2]
        out[at] = y * bz - z * by
        out[at + 1] = z * bx - x * bz
        out[at + 2] = x * by - y * bx
        out[at + 3] = bx
        out[at + 4] = by
        out[at + 5] = bz
    for a in range(n_free):
        total = 0.0
        for k in range(n_theta):
            total += change[k, a] * by_theta[1, k]
        out[n_poses + a] = total


@njit(**_OPTIONS)
def multiply(matrix, places, vector, n, out):
    """Fill `out` (n,) with the product of a matrix, at n `places`, and a vector."""
    for a in range(n):
        row = matrix[places[a]]
        total = 0.0
        for b in range(n):
            total += row[places[b]] * vector[b]
        out[a] = total


@njit(**_OPTIONS)
def dot(first, second, n):
    """Return the scalar product of the first n entries."""
    total = 0.0
    for a in range(n):
        total += first[a] * second[a]
    return total


@in_parts(lambda scores: len(scores), fastmath={"contract", "reassoc"})
def leave_out(begin, end, seen, change, whole, first_theta, leverage, scores, grown):
    """Fill `grown` (n_points, size) with (1 - leverage S_p S^-1)^-1 g_p.

    `whole` (size, size) is S^-1, `scores` (n_points, size) are the g_p, and so is `grown` before:
    only the unknowns that a point has a part in are written, and nothing for points that are kept.
    S_p S^-1 is symmetric in the scalar product x^T S^-1 y, and its eigenvalues are from 0 to 1, so
    conjugate gradients in this scalar product solve the equations. Most points have little
    leverage, and a few iterations are enough.
    """
    n_free = change.shape[1]
    most = 0
    for point in range(begin, end):
        most = max(most, seen.first[point + 1] - seen.first[point])
    size = 6 * most + n_free
    n_by = seen.rows.shape[2]
    scratch = PointScratch(
        np.empty((most, n_by, n_by)),
        np.empty((most, 3)),
        np.empty((2, change.shape[0])),
        np.empty((3, 3)),
    )
    places = np.empty(size, np.int64)
    vectors = np.empty((N_VECTORS, size))
    for point in range(begin, end):
        if seen.kept[point]:
            continue
        first = seen.first[point]
        count = seen.first[point + 1] - first
        n = 6 * count + n_free
        for i in range(count):
            for a in range(6):
                places[6 * i + a] = 6 * seen.views[first + i] + a
        for a in range(n_free):
            places[6 * count + a] = first_theta + a
        solve_point(seen, point, change, whole, leverage, scores, scratch, places, vectors)
        for a in range(n):
            grown[point, places[a]] = vectors[SOLUTION, a]


@njit(**_OPTIONS)
def solve_point(seen, point, change, whole, leverage, scores, scratch, places, vectors):
    """Solve the equations of one point; the row `SOLUTION` of `vectors` gets the solution.

    `places` are those of the point's unknowns. The solution is NaN if a number is.
    """
    n = 6 * (seen.first[point + 1] - seen.first[point]) + change.shape[1]
    sum_normals(seen, point, scratch)
    solution, residual, direction = vectors[SOLUTION], vectors[RESIDUAL], vectors[DIRECTION]
    residual_inner, direction_inner = vectors[RESIDUAL_INNER], vectors[DIRECTION_INNER]
    product = vectors[PRODUCT]
    for a in range(n):
        solution[a] = scores[point, places[a]]
    multiply(whole, places, solution, n, direction_inner)
    limit = max(_SETTLED * _SETTLED * dot(solution, direction_inner, n), 0.0)
    apply_point(seen, point, change, scratch, direction_inner, product)
    for a in range(n):
        residual[a] = leverage * product[a]
        direction[a] = residual[a]
    multiply(whole, places, residual, n, residual_inner)
    for a in range(n):
        direction_inner[a] = residual_inner[a]
    square = dot(residual, residual_inner, n)
    if not (math.isfinite(square) and math.isfinite(limit)):
        solution[:n] = math.nan
        return
    for _ in range(2 * n):
        if not square > limit:
            break
        apply_point(seen, point, change, scratch, direction_inner, product)
        for a in range(n):
            product[a] = direction[a] - leverage * product[a]
        curvature = dot(direction_inner, product, n)
        if not curvature > 0.0:
            break
        length = square / curvature
        for a in range(n):
            solution[a] += length * direction[a]
            residual[a] -= length * product[a]
        multiply(whole, places, residual, n, residual_inner)
        before = square
        square = dot(residual, residual_inner, n)
        share = square / before
        for a in range(n):
            direction[a] = residual[a] + share * direction[a]
            direction_inner[a] = residual_inner[a] + share * direction_inner[a]
