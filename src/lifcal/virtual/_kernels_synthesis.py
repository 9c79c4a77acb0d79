"""Compiled loops that make the totally focused image: mean over micro images, filter, detail.

See `_kernels_lenses` for coordinates and argument packs.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import njit

from lifcal.arrays import Float32Array, IntArray
from lifcal.threads import UNCOUNTED, in_parts
from lifcal.virtual._kernels_lenses import (
    MOST_LENSES,
    PLACE_COLUMNS,
    PLACE_FACTOR,
    PLACE_X,
    PLACE_Y,
    find_places,
)
from lifcal.virtual._kernels_sampling import FAST, ONE, sample_cubic, sample_linear

FILTER_RINGS = ((0, 0), (1, 0), (1, 1), (2, 0), (2, 1), (2, 2), (3, 0), (3, 1))
"""One tap (x, y) of each ring of a sharpening filter, in units of the spacing between taps. The
other taps of a ring are its mirror images and have the same weight."""
SEAM = 0.05
"""Relative change of rho between the middle and the outer taps of a filter that counts as a jump to
another surface. It is the change that separates surfaces everywhere in this room
(`depth._EDGE`)."""
NEAR_PX = 0.3
"""Standard deviation of the Gaussian by which raw pixels count for places near their centers. It is
less than half a pixel, because a raw pixel shows detail of its own place only."""
NEAR_STEPS = 256
"""Steps of the table of that Gaussian from one pixel to the next; neighbors differ by less than
0.01."""
NEAR_END = np.uint32(NEAR_STEPS)
NEAR_TABLE = np.exp(-0.5 * (np.arange(NEAR_STEPS + 1) / (NEAR_STEPS * NEAR_PX)) ** 2).astype(
    np.float32
)
"""The Gaussian at distances of 0 to 1 px; reading it takes a fraction of the time of `exp`."""


class Filters(NamedTuple):
    """Sharpening filters for even steps of `ln |rho|`, as `SharpeningFilters.pack` builds them.

    Parameters
    ----------
    first, step : float
        Natural logarithm of |rho| of the first filter, and its step.
    weights : (n_depths, n_rings) float32
        Weight of one tap of each of `FILTER_RINGS`.
    spacings : (n_depths,) int64
        Distance of neighboring taps in pixels of the output.
    """

    first: float
    step: float
    weights: Float32Array
    spacings: IntArray


@in_parts(lambda rho: len(rho), fastmath=FAST)
def synthesise(begin, end, image, table, lenses, rho, step, out, light):
    """Fill `out` with the mean over the micro images, weighted by focus and noise.

    `light` gets the sum of the weights. Where no lens sees a pixel, both are 0.
    """
    for row in range(begin, end):
        y = (row + 0.5) * step - 0.5
        terms = np.empty((lenses.weights.shape[0], 2), np.float32)
        places = np.empty((MOST_LENSES, PLACE_COLUMNS))
        counts = np.empty(MOST_LENSES, np.float32)
        for col in range(rho.shape[1]):
            x = (col + 0.5) * step - 0.5
            out[row, col] = 0.0
            light[row, col] = 0.0
            r = rho[row, col]
            n = find_places(table, lenses, image.shape, x, y, r, terms, places, counts)
            total = np.float32(0.0)
            value = np.float32(0.0)
            for k in range(n):
                value += counts[k] * sample_cubic(image, places[k, PLACE_X], places[k, PLACE_Y])
                total += counts[k]
            light[row, col] = total
            if total > np.float32(1e-6):
                out[row, col] = value / total


@njit(cache=True, inline="always")
def sum_cross(image, row, col, a):
    """Return the sum of the four values `a` pixels away along the axes."""
    return image[row - a, col] + image[row + a, col] + image[row, col - a] + image[row, col + a]


@njit(cache=True, inline="always")
def sum_corners(image, row, col, a, b):
    """Return the sum of the four values at (row +- a, col +- b)."""
    top, bottom, left, right = row - a, row + a, col - b, col + b
    return image[top, left] + image[top, right] + image[bottom, left] + image[bottom, right]


@in_parts(lambda image: len(image), **UNCOUNTED)
def sharpen(begin, end, image, rho, light, filters, out):
    """Filter each pixel with the filter of its depth; see `sharpening.SharpeningFilters`.

    Pixels whose filter reaches beyond the image, to where there is no light, or across a jump of
    depth stay as they are.
    """
    first, log_step = filters.first, filters.step
    weights, spacings = filters.weights, filters.spacings
    rows, cols = image.shape
    last = len(weights) - 1
    for row in range(begin, end):
        for col in range(cols):
            value = image[row, col]
            out[row, col] = value
            size = abs(rho[row, col])
            if not size > 0.0:
                continue
            at = int(min(max((math.log(size) - first) / log_step + 0.5, 0.0), float(last)))
            d = spacings[at]
            e = 2 * d
            f = 3 * d
            if not (f <= row < rows - f and f <= col < cols - f):
                continue
            # No far tap may be in the dark, where nothing is known, or on another surface.
            fit = True
            for i, j in ((-f, 0), (f, 0), (0, -f), (0, f)):
                other = abs(rho[row + i, col + j])
                fit = fit and light[row + i, col + j] > 0.0
                fit = fit and abs(other - size) < SEAM * size
            if not fit:
                continue
            w = weights[at]
            out[row, col] = (
                w[0] * value
                + w[1] * sum_cross(image, row, col, d)
                + w[2] * sum_corners(image, row, col, d, d)
                + w[3] * sum_cross(image, row, col, e)
                + w[4] * (sum_corners(image, row, col, d, e) + sum_corners(image, row, col, e, d))
                + w[5] * sum_corners(image, row, col, e, e)
                + w[6] * sum_cross(image, row, col, f)
                + w[7] * (sum_corners(image, row, col, d, f) + sum_corners(image, row, col, f, d))
            )


@njit(cache=True, fastmath=FAST, **UNCOUNTED)
def near_weights(f):
    """Return the weights of the pixels at 0 and 1 for a place f between them (not normalized)."""
    at = np.uint32(f * np.float32(NEAR_STEPS) + np.float32(0.5))
    return NEAR_TABLE[at], NEAR_TABLE[NEAR_END - at]


@in_parts(lambda rho: len(rho), fastmath=FAST)
def add_detail(begin, end, image, table, lenses, rho, step, mean, share, out):
    """Add to `out` the detail that single raw pixels show beyond the mean of the micro images.

    Interpolation smooths each micro image, but the raw pixels of different micro images lie at
    different places of the virtual image. Each raw pixel is compared with the mean at its own
    center, and the difference is averaged over the raw pixels near a place. The fraction `share` of
    it is added; pixels with share 0 are skipped. `mean` is twice as large as `out`, so that
    bilinear interpolation between its pixels is accurate enough.
    """
    rows, cols = rho.shape
    right_limit = np.float32(2 * cols - 1)
    lower_limit = np.float32(2 * rows - 1)
    for row in range(begin, end):
        y = (row + 0.5) * step - 0.5
        terms = np.empty((lenses.weights.shape[0], 2), np.float32)
        places = np.empty((MOST_LENSES, PLACE_COLUMNS))
        counts = np.empty(MOST_LENSES, np.float32)
        for col in range(cols):
            r = rho[row, col]
            if not share[row, col] > 0.0:
                continue
            x = (col + 0.5) * step - 0.5
            n = find_places(table, lenses, image.shape, x, y, r, terms, places, counts)
            value = np.float32(0.0)
            total = np.float32(0.0)
            for k in range(n):
                left = np.uint32(places[k, PLACE_X])
                top = np.uint32(places[k, PLACE_Y])
                fx = np.float32(places[k, PLACE_X] - left)
                fy = np.float32(places[k, PLACE_Y] - top)
                pixel = np.float32(2.0 / (places[k, PLACE_FACTOR] * step))
                x0 = np.float32(2 * col + 0.5) - fx * pixel
                y0 = np.float32(2 * row + 0.5) - fy * pixel
                x1 = x0 + pixel
                y1 = y0 + pixel
                if not (
                    min(x0, x1) >= 0.0
                    and min(y0, y1) >= 0.0
                    and max(x0, x1) < right_limit
                    and max(y0, y1) < lower_limit
                ):
                    continue
                a0, a1 = near_weights(fx)
                b0, b1 = near_weights(fy)
                upper = a0 * (image[top, left] - sample_linear(mean, x0, y0))
                upper += a1 * (image[top, left + ONE] - sample_linear(mean, x1, y0))
                lower = a0 * (image[top + ONE, left] - sample_linear(mean, x0, y1))
                lower += a1 * (image[top + ONE, left + ONE] - sample_linear(mean, x1, y1))
                value += counts[k] * (b0 * upper + b1 * lower)
                total += counts[k] * (a0 + a1) * (b0 + b1)
            if total > np.float32(1e-6):
                out[row, col] += share[row, col] * value / total
