"""Compiled loops over the matches of pairs of views, for `lifcal.sfm.rigidity`."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from lifcal.arrays import BoolArray, FloatArray
from lifcal.threads import UNCOUNTED, in_parts

LEAST_DEPTH = 1e-6
"""Smallest depth of a point in the second view, in units of its depth in the first. A point that is
nearer counts as behind the camera."""

CAMERA_F, CAMERA_ALPHA, CAMERA_RADIAL = 0, 1, 2
"""Entries of the camera's parameters: F, alpha, and k of the radial term, which undistorts a
recorded point x to x (1 + k |x|^2)."""

BY_TRUE, BY_TURN, BY_SHIFT, BY_LOG_F, BY_ALPHA, BY_RADIAL = 0, 3, 6, 9, 10, 11
N_BY = 12
"""First columns of the derivatives of a match, and their number: with respect to the true image
point and u in the first view (3), the rotation (3), the translation (3), log F, alpha and the
radial term. The columns from `BY_TURN` on are the nine parameters of a pair."""
N_PARAMETERS = N_BY - BY_TURN

_PAIRS_PER_PART = 4
"""Smallest number of pairs in a part: a pair takes tens of microseconds, as long as a thread
takes to begin."""


class Motions(NamedTuple):
    """A camera, and the motions from the first to the second view of p pairs.

    Parameters
    ----------
    camera : (3,) float64
        `CAMERA_F`, `CAMERA_ALPHA` and `CAMERA_RADIAL`.
    rotations, shifts : (p, 3, 3) and (p, 3) float64
        Rotation and translation of each pair. Lengths are in units of beta, in which a point has
        the depth 1 / (u - alpha).
    """

    camera: FloatArray
    rotations: FloatArray
    shifts: FloatArray


class Matches(NamedTuple):
    """Matches of p pairs of views, up to n of each pair.

    Parameters
    ----------
    first, second : (p, n, 3) float64
        Image point relative to the principal point, and virtual depth u, in both views.
    variances : (p, n, 2, 3) float64
        Variances of x, y and u, in the first and in the second view.
    used : (p, n) bool
    """

    first: FloatArray
    second: FloatArray
    variances: FloatArray
    used: BoolArray


class LinearMatch(NamedTuple):
    """Linear equations of one match.

    Parameters
    ----------
    jacobian : (3, N_BY) float64
        Derivatives of the predicted image point and u in the second view.
    residual : (3,) float64
        Predicted minus measured values in the second view, if the true values in the first view are
        replaced by the measured ones (to first order).
    weight : (3, 3) float64
        Inverse covariance of the residual.
    """

    jacobian: FloatArray
    residual: FloatArray
    weight: FloatArray


@njit(cache=True, error_model="numpy", fastmath=False, **UNCOUNTED)
def _linearize_match(
    camera: FloatArray,
    rotation: FloatArray,
    shift: FloatArray,
    first: FloatArray,
    second: FloatArray,
    true: FloatArray,
    variances: FloatArray,
    out: LinearMatch,
) -> float:
    """Fill the linear equations of a match; return its squared misfit, or -1.

    `true` (3,) is the current estimate of the true image point and u in the first view. `variances`
    (2, 3) are those of the first and of the second view; the radial term does not change them. The
    result is -1 for a match that the second view cannot see, or that contains NaN.
    """
    focal, alpha, radial = camera[CAMERA_F], camera[CAMERA_ALPHA], camera[CAMERA_RADIAL]
    jacobian, residual, weight = out.jacobian, out.residual, out.weight
    square_first = true[0] ** 2 + true[1] ** 2
    square_second = second[0] ** 2 + second[1] ** 2
    g = true[2] - alpha
    x = true[0] * (1.0 + radial * square_first) / focal
    y = true[1] * (1.0 + radial * square_first) / focal
    turned_x = rotation[0, 0] * x + rotation[0, 1] * y + rotation[0, 2]
    turned_y = rotation[1, 0] * x + rotation[1, 1] * y + rotation[1, 2]
    turned_z = rotation[2, 0] * x + rotation[2, 1] * y + rotation[2, 2]
    n_x = turned_x + shift[0] * g
    n_y = turned_y + shift[1] * g
    n_z = turned_z + shift[2] * g
    if not (n_z > LEAST_DEPTH and g > 0.0):
        return -1.0
    inverse = 1.0 / n_z
    seen_x, seen_y = focal * n_x * inverse, focal * n_y * inverse
    # First compute the derivatives of n, column by column.
    jacobian[:] = 0.0
    bend_xx = 1.0 + radial * (square_first + 2.0 * true[0] ** 2)
    bend_yy = 1.0 + radial * (square_first + 2.0 * true[1] ** 2)
    bend_xy = 2.0 * radial * true[0] * true[1]
    for row in range(3):
        by_x, by_y = rotation[row, 0] / focal, rotation[row, 1] / focal
        jacobian[row, 0] = by_x * bend_xx + by_y * bend_xy
        jacobian[row, 1] = by_x * bend_xy + by_y * bend_yy
        jacobian[row, 2] = shift[row]
        jacobian[row, BY_RADIAL] = (by_x * true[0] + by_y * true[1]) * square_first
        jacobian[row, BY_SHIFT + row] = g
        jacobian[row, BY_LOG_F] = -(rotation[row, 0] * x + rotation[row, 1] * y)
        jacobian[row, BY_ALPHA] = -shift[row]
    jacobian[0, BY_TURN + 1], jacobian[0, BY_TURN + 2] = turned_z, -turned_y
    jacobian[1, BY_TURN], jacobian[1, BY_TURN + 2] = -turned_z, turned_x
    jacobian[2, BY_TURN], jacobian[2, BY_TURN + 1] = turned_y, -turned_x
    # Then compute those of the predicted image point and u.
    for column in range(N_BY):
        d_x, d_y, d_z = jacobian[0, column], jacobian[1, column], jacobian[2, column]
        jacobian[0, column] = (focal * d_x - seen_x * d_z) * inverse
        jacobian[1, column] = (focal * d_y - seen_y * d_z) * inverse
        jacobian[2, column] = -g * inverse * inverse * d_z
    jacobian[2, 2] += inverse
    jacobian[0, BY_LOG_F] += seen_x
    jacobian[1, BY_LOG_F] += seen_y
    jacobian[2, BY_ALPHA] += 1.0 - inverse
    jacobian[0, BY_RADIAL] -= second[0] * square_second
    jacobian[1, BY_RADIAL] -= second[1] * square_second
    off_x = seen_x - second[0] * (1.0 + radial * square_second)
    off_y = seen_y - second[1] * (1.0 + radial * square_second)
    off_u = alpha + g * inverse - second[2]
    residual[0], residual[1], residual[2] = off_x, off_y, off_u
    square = off_x**2 / variances[1, 0] + off_y**2 / variances[1, 1] + off_u**2 / variances[1, 2]
    for column in range(3):
        moved = first[column] - true[column]
        square += moved**2 / variances[0, column]
        for row in range(3):
            residual[row] += jacobian[row, column] * moved
    c00, c01, c02 = variances[1, 0], 0.0, 0.0
    c11, c12, c22 = variances[1, 1], 0.0, variances[1, 2]
    for k in range(3):
        v = variances[0, k]
        a, b, c = jacobian[0, k], jacobian[1, k], jacobian[2, k]
        c00 += v * a * a
        c01 += v * a * b
        c02 += v * a * c
        c11 += v * b * b
        c12 += v * b * c
        c22 += v * c * c
    w00, w01, w02 = c11 * c22 - c12 * c12, c02 * c12 - c01 * c22, c01 * c12 - c02 * c11
    determinant = c00 * w00 + c01 * w01 + c02 * w02
    if not determinant > 0.0:
        return -1.0
    weight[0, 0], weight[0, 1], weight[0, 2] = w00, w01, w02
    weight[1, 0], weight[1, 1], weight[1, 2] = w01, c00 * c22 - c02 * c02, c01 * c02 - c00 * c12
    weight[2, 0], weight[2, 1], weight[2, 2] = w02, weight[1, 2], c00 * c11 - c01 * c01
    weight /= determinant
    return float(square)


@njit(cache=True)
def _make_linear_match() -> LinearMatch:
    """Allocate arrays for the equations of a match."""
    return LinearMatch(np.empty((3, N_BY)), np.empty(3), np.empty((3, 3)))


@in_parts(lambda matches: len(matches.first), least=_PAIRS_PER_PART)
def accumulate(
    begin: int,
    end: int,
    motions: Motions,
    matches: Matches,
    true: FloatArray,
    limit: float,
    unseen: float,
    normals: FloatArray,
    gradients: FloatArray,
    squares: FloatArray,
) -> None:
    """Sum the normal equations of each pair in its nine parameters, and fill the squared misfits.

    `limit` is the squared scale of the Cauchy loss. A match that cannot be seen gets the squared
    misfit `unseen` and no weight.
    """
    first, second, variances, used = matches.first, matches.second, matches.variances, matches.used
    linear = _make_linear_match()
    jacobian, residual, weight = linear.jacobian, linear.residual, linear.weight
    weighted = np.empty((3, N_PARAMETERS))
    for pair in range(begin, end):
        normals[pair] = 0.0
        gradients[pair] = 0.0
        for match in range(first.shape[1]):
            squares[pair, match] = 0.0
            if not used[pair, match]:
                continue
            square = _linearize_match(
                motions.camera,
                motions.rotations[pair],
                motions.shifts[pair],
                first[pair, match],
                second[pair, match],
                true[pair, match],
                variances[pair, match],
                linear,
            )
            if not square >= 0.0:
                squares[pair, match] = unseen
                continue
            squares[pair, match] = min(square, unseen)
            factor = 1.0 / (1.0 + square / limit)
            for row in range(3):
                for column in range(N_PARAMETERS):
                    total = 0.0
                    for k in range(3):
                        total += weight[row, k] * jacobian[k, BY_TURN + column]
                    weighted[row, column] = factor * total
            for i in range(N_PARAMETERS):
                for j in range(N_PARAMETERS):
                    for k in range(3):
                        normals[pair, i, j] += jacobian[k, BY_TURN + i] * weighted[k, j]
                for k in range(3):
                    gradients[pair, i] += residual[k] * weighted[k, i]


@in_parts(lambda matches: len(matches.first), least=_PAIRS_PER_PART)
def advance(
    begin: int,
    end: int,
    motions: Motions,
    matches: Matches,
    true: FloatArray,
    steps: FloatArray,
    moved: FloatArray,
) -> None:
    """Update the true image points in the first views for the steps (p, 9) of the pairs."""
    first, second, variances, used = matches.first, matches.second, matches.variances, matches.used
    linear = _make_linear_match()
    jacobian, residual, weight = linear.jacobian, linear.residual, linear.weight
    for pair in range(begin, end):
        for match in range(first.shape[1]):
            moved[pair, match] = first[pair, match]
            if not used[pair, match]:
                continue
            square = _linearize_match(
                motions.camera,
                motions.rotations[pair],
                motions.shifts[pair],
                first[pair, match],
                second[pair, match],
                true[pair, match],
                variances[pair, match],
                linear,
            )
            if not square >= 0.0:
                continue
            for row in range(3):
                for column in range(N_PARAMETERS):
                    residual[row] += jacobian[row, BY_TURN + column] * steps[pair, column]
            for k in range(3):
                for row in range(3):
                    for column in range(3):
                        moved[pair, match, k] -= (
                            variances[pair, match, 0, k]
                            * jacobian[row, k]
                            * weight[row, column]
                            * residual[column]
                        )


@in_parts(lambda matches: len(matches.first), least=_PAIRS_PER_PART)
def list_residuals(
    begin: int,
    end: int,
    motions: Motions,
    matches: Matches,
    residuals: FloatArray,
    jacobians: FloatArray,
) -> None:
    """Fill predicted minus measured values in second views, and derivatives by the first views.

    They are NaN for a match that is not used or cannot be seen.
    """
    first, second, variances, used = matches.first, matches.second, matches.variances, matches.used
    linear = _make_linear_match()
    for pair in range(begin, end):
        for match in range(first.shape[1]):
            residuals[pair, match] = np.nan
            jacobians[pair, match] = np.nan
            if not used[pair, match]:
                continue
            square = _linearize_match(
                motions.camera,
                motions.rotations[pair],
                motions.shifts[pair],
                first[pair, match],
                second[pair, match],
                first[pair, match],
                variances[pair, match],
                linear,
            )
            if square >= 0.0:
                residuals[pair, match] = linear.residual
                jacobians[pair, match] = linear.jacobian[:, :BY_TURN]


@in_parts(lambda matches: len(matches.first), least=_PAIRS_PER_PART)
def keep_better(
    begin: int, end: int, motions: Motions, matches: Matches, true: FloatArray, others: FloatArray
) -> None:
    """Replace the true image points by `others`, match by match, where those fit better.

    The linear equations are a poor approximation for a wrong match and may move its point far away.
    This must not decide whether the step of all pairs was a good one.
    """
    first, second, variances, used = matches.first, matches.second, matches.variances, matches.used
    linear = _make_linear_match()
    squares = np.empty(2)
    for pair in range(begin, end):
        for match in range(first.shape[1]):
            if not used[pair, match]:
                continue
            for side in range(2):
                squares[side] = _linearize_match(
                    motions.camera,
                    motions.rotations[pair],
                    motions.shifts[pair],
                    first[pair, match],
                    second[pair, match],
                    true[pair, match] if side == 0 else others[pair, match],
                    variances[pair, match],
                    linear,
                )
            seen = squares[1] >= 0.0
            if seen and not 0.0 <= squares[0] <= squares[1]:
                true[pair, match] = others[pair, match]
