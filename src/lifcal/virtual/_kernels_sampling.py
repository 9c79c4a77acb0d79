"""Compiled interpolation between pixels: bilinear, cubic B-spline, Catmull-Rom.

None of these functions checks its place: callers compare first and sample then.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from lifcal.threads import UNCOUNTED

FAST = {"reassoc", "contract"}
"""Floating-point rules that LLVM may relax in the loops over pixels: sums in any order (so that
they are vectorized) and fused multiply-add. NaN and infinity keep their meaning."""
ONE, TWO = np.uint32(1), np.uint32(2)
"""Offsets of array indices. Indices without a sign spare Numba its test for negative ones."""

SHARPENING = 0.08
"""Filter (-s, 1 + 2 s, -s) along both axes that turns pixels into coefficients of the B-spline. It
lies between 0, where the spline smooths, and about 0.2 with more taps, where the spline runs
through the pixels and shows where they are (pixel locking; docs/theory/virtual-depth.md)."""
SPLINE_VARIANCE_PX2 = 1.0 / 3.0 - 2.0 * SHARPENING
"""Variance along an axis of the shape that one pixel becomes: that of the cubic B-spline less what
the sharpening takes off."""
SPLINE_NOISE = 0.563756
"""Variance of the spline's value along one axis, averaged over all places in a pixel, if the pixels
are white noise of variance 1. `tests/virtual/test_kernels.py` measures it."""
GRADIENT_NOISE = 0.949440 / SPLINE_NOISE
"""Variance of the spline's slope along one axis relative to that of its value, for white noise,
averaged over all places in a pixel."""


@njit(cache=True, fastmath=FAST, **UNCOUNTED)
def sample_linear(image, x, y):
    """Return the bilinear value; (x, y) must have all four pixels around it inside the image."""
    i = np.uint32(x)
    j = np.uint32(y)
    fx = np.float32(x - i)
    fy = np.float32(y - j)
    top = image[j, i] + fx * (image[j, i + ONE] - image[j, i])
    bottom = image[j + ONE, i] + fx * (image[j + ONE, i + ONE] - image[j + ONE, i])
    return top + fy * (bottom - top)


@njit(cache=True, fastmath=FAST, **UNCOUNTED)
def spline_weights(f):
    """Return B-spline weights of the coefficients at -1, 0, 1, 2 for f in [0, 1); their slopes."""
    one = np.float32(1.0)
    half = np.float32(0.5)
    rest = one - f
    a0 = rest * rest * rest * np.float32(1.0 / 6.0)
    a1 = np.float32(2.0 / 3.0) + f * f * (half * f - one)
    a3 = f * f * f * np.float32(1.0 / 6.0)
    b0 = -half * rest * rest
    b1 = f * (np.float32(1.5) * f - np.float32(2.0))
    b3 = half * f * f
    return a0, a1, one - a0 - a1 - a3, a3, b0, b1, -b0 - b1 - b3, b3


@njit(cache=True, fastmath=FAST, **UNCOUNTED)
def sample_spline(image, x, y):
    """Return value and gradient of the cubic B-spline whose coefficients are `image`.

    The 4 x 4 coefficients around (x, y) must be inside the image.
    """
    i = np.uint32(x)
    j = np.uint32(y)
    a0, a1, a2, a3, b0, b1, b2, b3 = spline_weights(np.float32(x - i))
    c0, c1, c2, c3, d0, d1, d2, d3 = spline_weights(np.float32(y - j))
    left, right, far = i - ONE, i + ONE, i + TWO
    row = j - ONE
    p0, p1, p2, p3 = image[row, left], image[row, i], image[row, right], image[row, far]
    v0 = a0 * p0 + a1 * p1 + a2 * p2 + a3 * p3
    w0 = b0 * p0 + b1 * p1 + b2 * p2 + b3 * p3
    row = j
    p0, p1, p2, p3 = image[row, left], image[row, i], image[row, right], image[row, far]
    v1 = a0 * p0 + a1 * p1 + a2 * p2 + a3 * p3
    w1 = b0 * p0 + b1 * p1 + b2 * p2 + b3 * p3
    row = j + ONE
    p0, p1, p2, p3 = image[row, left], image[row, i], image[row, right], image[row, far]
    v2 = a0 * p0 + a1 * p1 + a2 * p2 + a3 * p3
    w2 = b0 * p0 + b1 * p1 + b2 * p2 + b3 * p3
    row = j + TWO
    p0, p1, p2, p3 = image[row, left], image[row, i], image[row, right], image[row, far]
    v3 = a0 * p0 + a1 * p1 + a2 * p2 + a3 * p3
    w3 = b0 * p0 + b1 * p1 + b2 * p2 + b3 * p3
    return (
        c0 * v0 + c1 * v1 + c2 * v2 + c3 * v3,
        c0 * w0 + c1 * w1 + c2 * w2 + c3 * w3,
        d0 * v0 + d1 * v1 + d2 * v2 + d3 * v3,
    )


@njit(cache=True, fastmath=FAST, **UNCOUNTED)
def cubic_weights(f):
    """Return the Catmull-Rom weights of the four pixels around a place f between the middle two."""
    half = np.float32(0.5)
    one = np.float32(1.0)
    a0 = half * f * (f * (np.float32(2.0) - f) - one)
    a2 = half * f * (f * (np.float32(4.0) - np.float32(3.0) * f) + one)
    a3 = half * f * f * (f - one)
    return a0, one - a0 - a2 - a3, a2, a3


@njit(cache=True, fastmath=FAST, **UNCOUNTED)
def sample_cubic(image, x, y):
    """Return the Catmull-Rom value; the 4 x 4 pixels around (x, y) must be inside the image."""
    i = np.uint32(x)
    j = np.uint32(y)
    a0, a1, a2, a3 = cubic_weights(np.float32(x - i))
    c0, c1, c2, c3 = cubic_weights(np.float32(y - j))
    left, right, far = i - ONE, i + ONE, i + TWO
    row = j - ONE
    v0 = a0 * image[row, left] + a1 * image[row, i] + a2 * image[row, right] + a3 * image[row, far]
    row = j
    v1 = a0 * image[row, left] + a1 * image[row, i] + a2 * image[row, right] + a3 * image[row, far]
    row = j + ONE
    v2 = a0 * image[row, left] + a1 * image[row, i] + a2 * image[row, right] + a3 * image[row, far]
    row = j + TWO
    v3 = a0 * image[row, left] + a1 * image[row, i] + a2 * image[row, right] + a3 * image[row, far]
    return c0 * v0 + c1 * v1 + c2 * v2 + c3 * v3
