"""A test of matches between two focused images by their virtual depths.

Epipolar geometry cannot detect an error of a match along its epipolar line. Virtual depth
determines the position on this line, even before the camera is calibrated. With
`u = alpha + beta / z`, the vector (x, y, 1, u) of a virtual point is a linear map of the point's
homogeneous coordinates. The other image therefore shows it at

    (x', y', 1) ~ P (x, y, 1, u)

with one 3 x 4 matrix P for the pair of images, for any camera and motion.
"""

from __future__ import annotations

import numpy as np

from lifcal.arrays import BoolArray, FloatArray

_ROUNDS = 6
"""Number of rounds of the reweighted fit, which converges after a few."""
_FEWEST = 30
"""Smallest number of matches with a known depth for which the test is made."""
_LEAST_OFF_PX = 4.0
"""A match that is nearer than this to its predicted position is accepted, because depth has noise
and lenses distort."""
_MOST_SIGMAS = 6.0
"""A match that is off by more than this many robust standard deviations contradicts the depth."""


def agree_with_depth(points_px: FloatArray, u: FloatArray, others_px: FloatArray) -> BoolArray:
    """Tell which matches are at the position that virtual depth predicts in the second image.

    Parameters
    ----------
    points_px, others_px : (n, 2) float64
        Matched points in the first and in the second image. Most of them must be right.
    u : (n,) float64
        Virtual depth in the first image. Matches for which it is NaN are accepted.
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
    """Return P (3, 4) that minimizes the weighted algebraic error.

    If all points are on one plane, P is not unique, but all solutions predict the same matches.
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
