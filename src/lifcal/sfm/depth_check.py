"""Which matches between two focused images agree with their virtual depths.

Epipolar geometry lets a match be wrong along its line; virtual depth tells where on the line it is,
before anything is calibrated. With `u = alpha + beta / z`, the vector (x, y, 1, u) of a virtual
point is a linear map of its homogeneous coordinates, so that the other image shows it at

    (x', y', 1) ~ P (x, y, 1, u)

with one 3 x 4 matrix P for the pair of images, whatever camera and motion are.
"""

from __future__ import annotations

import numpy as np

from lifcal.arrays import BoolArray, FloatArray

_ROUNDS = 6
"""Rounds of the reweighted fit, which settles after a few."""
_FEWEST = 30
"""Matches with a known depth that are needed to judge the others by."""
_LEAST_OFF_PX = 4.0
"""A match that is nearer to its place than this is right: depth has noise, and lenses distort."""
_MOST_SIGMAS = 6.0
"""A match that is farther off than this many robust standard deviations contradicts the depth."""


def agree_with_depth(points_px: FloatArray, u: FloatArray, others_px: FloatArray) -> BoolArray:
    """Tell which matches are where the virtual depth in the first image puts them in the second.

    Parameters
    ----------
    points_px, others_px : (n, 2) float64
        Matched places in the first and in the second image; most of them right.
    u : (n,) float64
        Virtual depth in the first image. Where it is NaN, nothing is said against a match.
    """
    agree = np.ones(len(u), np.bool_)
    known = np.flatnonzero(np.isfinite(u))
    if len(known) < _FEWEST:
        return agree
    first = _standardise(np.column_stack([points_px[known], u[known]]))
    x = np.column_stack([first[:, :2], np.ones(len(known)), first[:, 2]])
    spread = others_px[known].std() + 1e-9
    target = (others_px[known] - others_px[known].mean(axis=0)) / spread
    weights = np.ones(len(known))
    off = np.zeros(len(known))
    for _ in range(_ROUNDS):
        off = spread * _compute_misses(_fit(x, target, weights), x, target)
        scale = max(1.4826 * float(np.median(off)), _LEAST_OFF_PX / _MOST_SIGMAS)
        weights = 1.0 / (1.0 + (off / scale) ** 2) ** 2
    agree[known] = off <= _MOST_SIGMAS * scale
    return agree


def _standardise(values: FloatArray) -> FloatArray:
    return np.asarray((values - values.mean(axis=0)) / (values.std(axis=0) + 1e-9))


def _fit(x: FloatArray, target: FloatArray, weights: FloatArray) -> FloatArray:
    """Return P (3, 4) that minimises the weighted algebraic error.

    Where all points are on one plane P is not unique, but any that fits says the same of matches.
    """
    square = (target**2).sum(axis=1)
    plain, by_x, by_y, by_square = (
        (x * (weights * factor)[:, None]).T @ x
        for factor in (1.0, target[:, 0], target[:, 1], square)
    )
    zero = np.zeros((4, 4))
    normal = np.block([[plain, zero, -by_x], [zero, plain, -by_y], [-by_x, -by_y, by_square]])
    return np.asarray(np.linalg.eigh(normal)[1][:, 0].reshape(3, 4))


def _compute_misses(p: FloatArray, x: FloatArray, target: FloatArray) -> FloatArray:
    shown = x @ p.T
    with np.errstate(divide="ignore", invalid="ignore"):
        off = np.hypot(*(shown[:, :2] / shown[:, 2:] - target).T)
    return np.asarray(np.nan_to_num(off, nan=np.inf))
