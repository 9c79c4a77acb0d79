"""Loops over the matches of pairs of views, for `rigidity`."""

from __future__ import annotations

import numpy as np
from numba import njit

from lifcal.arrays import BoolArray, FloatArray

LEAST_DEPTH = 1e-6
"""In units of the first view's depth: a point nearer than this to the second view is behind it."""


@njit(cache=True, nogil=True)
def _linearize_match(
    camera: FloatArray,
    rotation: FloatArray,
    shift: FloatArray,
    first: FloatArray,
    second: FloatArray,
    true: FloatArray,
    variances: FloatArray,
    jacobian: FloatArray,
    residual: FloatArray,
    weight: FloatArray,
) -> float:
    """Fill derivatives, residual and weight matrix of a match; return its square, or -1.

    `camera`: F, alpha, and the radial term that takes a recorded place x to x (1 + k |x|^2).
    Columns of `jacobian` (3, 12): the true place and u in the first view, a turn, the shift, log F,
    alpha, the radial term. `variances` (2, 3) are those of the first and of the second view, which
    the radial term leaves as they are. The residual is what is left if the true place moves to the
    measured one, and `weight` its inverse covariance. A match that the second view cannot see (or
    that holds NaN) gives -1.
    """
    focal, alpha, radial = camera[0], camera[1], camera[2]
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
    # derivatives of n first, column by column
    jacobian[:] = 0.0
    bend_xx = 1.0 + radial * (square_first + 2.0 * true[0] ** 2)
    bend_yy = 1.0 + radial * (square_first + 2.0 * true[1] ** 2)
    bend_xy = 2.0 * radial * true[0] * true[1]
    for row in range(3):
        by_x, by_y = rotation[row, 0] / focal, rotation[row, 1] / focal
        jacobian[row, 0] = by_x * bend_xx + by_y * bend_xy
        jacobian[row, 1] = by_x * bend_xy + by_y * bend_yy
        jacobian[row, 2] = shift[row]
        jacobian[row, 11] = (by_x * true[0] + by_y * true[1]) * square_first
        jacobian[row, 6 + row] = g
        jacobian[row, 9] = -(rotation[row, 0] * x + rotation[row, 1] * y)
        jacobian[row, 10] = -shift[row]
    jacobian[0, 4], jacobian[0, 5] = turned_z, -turned_y
    jacobian[1, 3], jacobian[1, 5] = -turned_z, turned_x
    jacobian[2, 3], jacobian[2, 4] = turned_y, -turned_x
    for column in range(12):
        d_x, d_y, d_z = jacobian[0, column], jacobian[1, column], jacobian[2, column]
        jacobian[0, column] = (focal * d_x - seen_x * d_z) * inverse
        jacobian[1, column] = (focal * d_y - seen_y * d_z) * inverse
        jacobian[2, column] = -g * inverse * inverse * d_z
    jacobian[2, 2] += inverse
    jacobian[0, 9] += seen_x
    jacobian[1, 9] += seen_y
    jacobian[2, 10] += 1.0 - inverse
    jacobian[0, 11] -= second[0] * square_second
    jacobian[1, 11] -= second[1] * square_second
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


@njit(cache=True, nogil=True)
def accumulate(
    camera: FloatArray,
    rotations: FloatArray,
    shifts: FloatArray,
    first: FloatArray,
    second: FloatArray,
    true: FloatArray,
    variances: FloatArray,
    used: BoolArray,
    limit: float,
    unseen: float,
    normals: FloatArray,
    gradients: FloatArray,
    squares: FloatArray,
) -> None:
    """Sum the normal equations of each pair in (turn, shift, log F, alpha, radial
    term), and fill the squares.

    `limit` is where the Cauchy loss bends, squared; a match that cannot be seen gets the square
    `unseen` and no weight.
    """
    jacobian, residual, weight = np.empty((3, 12)), np.empty(3), np.empty((3, 3))
    weighted = np.empty((3, 9))
    for pair in range(first.shape[0]):
        normals[pair] = 0.0
        gradients[pair] = 0.0
        for match in range(first.shape[1]):
            squares[pair, match] = 0.0
            if not used[pair, match]:
                continue
            square = _linearize_match(
                camera,
                rotations[pair],
                shifts[pair],
                first[pair, match],
                second[pair, match],
                true[pair, match],
                variances[pair, match],
                jacobian,
                residual,
                weight,
            )
            if not square >= 0.0:
                squares[pair, match] = unseen
                continue
            squares[pair, match] = min(square, unseen)
            factor = 1.0 / (1.0 + square / limit)
            for row in range(3):
                for column in range(9):
                    total = 0.0
                    for k in range(3):
                        total += weight[row, k] * jacobian[k, 3 + column]
                    weighted[row, column] = factor * total
            for i in range(9):
                for j in range(9):
                    for k in range(3):
                        normals[pair, i, j] += jacobian[k, 3 + i] * weighted[k, j]
                for k in range(3):
                    gradients[pair, i] += residual[k] * weighted[k, i]


@njit(cache=True, nogil=True)
def advance(
    camera: FloatArray,
    rotations: FloatArray,
    shifts: FloatArray,
    first: FloatArray,
    second: FloatArray,
    true: FloatArray,
    variances: FloatArray,
    used: BoolArray,
    steps: FloatArray,
    moved: FloatArray,
) -> None:
    """Fill where the true places in first views move to when pairs take their steps (p, 9)."""
    jacobian, residual, weight = np.empty((3, 12)), np.empty(3), np.empty((3, 3))
    for pair in range(first.shape[0]):
        for match in range(first.shape[1]):
            moved[pair, match] = first[pair, match]
            if not used[pair, match]:
                continue
            square = _linearize_match(
                camera,
                rotations[pair],
                shifts[pair],
                first[pair, match],
                second[pair, match],
                true[pair, match],
                variances[pair, match],
                jacobian,
                residual,
                weight,
            )
            if not square >= 0.0:
                continue
            for row in range(3):
                for column in range(9):
                    residual[row] += jacobian[row, 3 + column] * steps[pair, column]
            for k in range(3):
                for row in range(3):
                    for column in range(3):
                        moved[pair, match, k] -= (
                            variances[pair, match, 0, k]
                            * jacobian[row, k]
                            * weight[row, column]
                            * residual[column]
                        )


@njit(cache=True, nogil=True)
def list_residuals(
    camera: FloatArray,
    rotations: FloatArray,
    shifts: FloatArray,
    first: FloatArray,
    second: FloatArray,
    variances: FloatArray,
    used: BoolArray,
    residuals: FloatArray,
    jacobians: FloatArray,
) -> None:
    """Fill what is seen minus what is measured, and its derivatives by the first view; or NaN."""
    jacobian, residual, weight = np.empty((3, 12)), np.empty(3), np.empty((3, 3))
    for pair in range(first.shape[0]):
        for match in range(first.shape[1]):
            residuals[pair, match] = np.nan
            jacobians[pair, match] = np.nan
            if not used[pair, match]:
                continue
            square = _linearize_match(
                camera,
                rotations[pair],
                shifts[pair],
                first[pair, match],
                second[pair, match],
                first[pair, match],
                variances[pair, match],
                jacobian,
                residual,
                weight,
            )
            if square >= 0.0:
                residuals[pair, match] = residual
                jacobians[pair, match] = jacobian[:, :3]


@njit(cache=True, nogil=True)
def keep_better(
    camera: FloatArray,
    rotations: FloatArray,
    shifts: FloatArray,
    first: FloatArray,
    second: FloatArray,
    true: FloatArray,
    variances: FloatArray,
    used: BoolArray,
    others: FloatArray,
) -> None:
    """Replace true places by others, match by match, where those fit better.

    The linear equations say little about a wrong match, and a place that they throw far away must
    not decide whether the step of all was a good one.
    """
    jacobian, residual, weight = np.empty((3, 12)), np.empty(3), np.empty((3, 3))
    squares = np.empty(2)
    for pair in range(first.shape[0]):
        for match in range(first.shape[1]):
            if not used[pair, match]:
                continue
            for side in range(2):
                squares[side] = _linearize_match(
                    camera,
                    rotations[pair],
                    shifts[pair],
                    first[pair, match],
                    second[pair, match],
                    true[pair, match] if side == 0 else others[pair, match],
                    variances[pair, match],
                    jacobian,
                    residual,
                    weight,
                )
            seen = squares[1] >= 0.0
            if seen and not 0.0 <= squares[0] <= squares[1]:
                true[pair, match] = others[pair, match]
