"""Compiled loops over the cost volume: plane sweep, semi-global matching, choice of a level.

See `_kernels_lenses` for coordinates and argument packs.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from lifcal.geometry._kernels import pixels_within
from lifcal.threads import UNCOUNTED, in_parts
from lifcal.virtual._kernels_lenses import BINS_PER_PX, find_move, focus_terms, is_usable
from lifcal.virtual._kernels_sampling import FAST, sample_linear

_W, _WI, _WII, _WW = 0, 1, 2, 3
"""Entries of the sums that a plane sweep keeps for each virtual pixel: of the weights w, of w I and
w I^2 with the values I, and of w^2."""


@njit(cache=True)
def box_sum(values, half, scratch):
    """Replace each value by the sum over the (2 half + 1)^2 pixels around it that are in the map.

    Running sums along rows, then along columns. `scratch` has the shape of `values`.
    """
    rows, cols = values.shape
    for row in range(rows):
        total = np.float32(0.0)
        for col in range(min(half, cols)):
            total += values[row, col]
        for col in range(cols):
            if col + half < cols:
                total += values[row, col + half]
            if col - half - 1 >= 0:
                total -= values[row, col - half - 1]
            scratch[row, col] = total
    totals = np.zeros(cols, np.float32)
    for row in range(min(half, rows)):
        for col in range(cols):
            totals[col] += scratch[row, col]
    for row in range(rows):
        if row + half < rows:
            for col in range(cols):
                totals[col] += scratch[row + half, col]
        if row - half - 1 >= 0:
            for col in range(cols):
                totals[col] -= scratch[row - half - 1, col]
        for col in range(cols):
            values[row, col] = totals[col]


@in_parts(lambda order: len(order), fastmath=FAST)
def sweep(begin, end, image, table, lenses, rhos, order, step, half, cost):
    """Fill `cost` (rows, cols, levels) with the variance over micro images, averaged over a window.

    A plane sweep: at each level of `rhos`, every lens adds its samples to the virtual pixels that
    it sees. The loop is parallel over levels, in the order that `order` gives. The cost is NaN
    where no two lenses see any pixel of the window of (2 half + 1)^2 pixels.
    """
    centers = table.centers
    types, radius, weights, moves = lenses.types, lenses.radius, lenses.weights, lenses.moves
    rows, cols, _ = cost.shape
    height, width = image.shape
    right_limit = np.float32(width - 1)
    lower_limit = np.float32(height - 1)
    for job in range(begin, end):
        level = order[job]
        rho = rhos[level]
        if not is_usable(rho):
            cost[:, :, level] = np.float32(math.nan)
            continue
        size = abs(rho)
        side = math.copysign(1.0, rho)
        reach = radius / size
        # At one level these depend on the lens type and the distance from the center only.
        factors = np.empty(weights.shape, np.float32)
        counts = np.empty(weights.shape, np.float32)
        for kind in range(weights.shape[0]):
            focus, bend = focus_terms(lenses, kind, rho)
            for at in range(weights.shape[1]):
                away = max(at, 0.5) / (size * BINS_PER_PX)
                factors[kind, at] = rho + side * find_move(moves, kind, bend, at) / away
                counts[kind, at] = focus * weights[kind, at]
        scale = np.float32(size * BINS_PER_PX)
        # The four sums lie side by side, so that one vector register holds them.
        sums = np.zeros((rows, cols, 4), np.float32)
        for lens in range(centers.shape[0]):
            kind = types[lens]
            cx = centers[lens, 0]
            cy = centers[lens, 1]
            first, last = pixels_within((cy + 0.5) / step - 0.5, reach / step, rows)
            x0 = np.float32(cx)
            y0 = np.float32(cy)
            for row in range(first, last):
                dy = np.float32((row + 0.5) * step - 0.5 - cy)
                chord = math.sqrt(max(reach * reach - dy * dy, 0.0))
                left, right = pixels_within((cx + 0.5) / step - 0.5, chord / step, cols)
                dx = np.float32((left + 0.5) * step - 0.5 - cx)
                for col in range(left, right):
                    bin_at = np.uint32(scale * math.sqrt(dx * dx + dy * dy))
                    x = x0 + dx * factors[kind, bin_at]
                    y = y0 + dy * factors[kind, bin_at]
                    if x >= 0.0 and y >= 0.0 and x < right_limit and y < lower_limit:
                        value = sample_linear(image, x, y)
                        weight = counts[kind, bin_at]
                        sums[row, col, _W] += weight
                        sums[row, col, _WI] += weight * value
                        sums[row, col, _WII] += weight * value * value
                        sums[row, col, _WW] += weight * weight
                    dx += np.float32(step)
        squares = np.zeros((rows, cols), np.float32)
        freedom = np.zeros((rows, cols), np.float32)
        for row in range(rows):
            for col in range(cols):
                total = sums[row, col, _W]
                if total > np.float32(1e-6):
                    mean = sums[row, col, _WI] / total
                    off = sums[row, col, _WII] - mean * sums[row, col, _WI]
                    squares[row, col] = max(off, np.float32(0.0))
                    freedom[row, col] = total - sums[row, col, _WW] / total
        scratch = np.empty((rows, cols), np.float32)
        box_sum(squares, half, scratch)
        box_sum(freedom, half, scratch)
        for row in range(rows):
            for col in range(cols):
                if freedom[row, col] > np.float32(0.05):
                    square = max(squares[row, col], np.float32(0.0))
                    cost[row, col, level] = square / freedom[row, col]
                else:
                    cost[row, col, level] = np.float32(math.nan)


@in_parts(lambda cost: len(cost))
def compress(begin, end, cost, noise):
    """Replace costs by log(1 + cost / noise), in place, which limits the effect of large costs.

    Levels with an unknown cost (NaN) get the mean of the pixel's other levels.
    """
    cols, levels = cost.shape[1:]
    for row in range(begin, end):
        for col in range(cols):
            total = np.float32(0.0)
            known = 0
            for level in range(levels):
                value = cost[row, col, level]
                if value == value:
                    value = np.float32(math.log1p(value / noise))
                    cost[row, col, level] = value
                    total += value
                    known += 1
            if known < levels:
                fill = total / np.float32(known) if known > 0 else np.float32(0.0)
                for level in range(levels):
                    if math.isnan(cost[row, col, level]):
                        cost[row, col, level] = fill


@njit(cache=True, fastmath=False, **UNCOUNTED)
def pass_on(before, cost, small, large, out):
    """Extend one path of semi-global matching by one pixel.

    `before` (levels,) are the path costs of the pixel before, `cost` (levels,) those of this pixel;
    `out` gets the path costs here, less the least one before, which keeps them small.
    """
    levels = cost.shape[0]
    least = before[0]
    for level in range(1, levels):
        least = min(least, before[level])
    jump = least + large
    for level in range(levels):
        best = min(before[level], jump)
        if level > 0:
            best = min(best, before[level - 1] + small)
        if level + 1 < levels:
            best = min(best, before[level + 1] + small)
        out[level] = cost[level] + best - least


@in_parts(lambda cost: cost.shape[0])
def pass_along_rows(begin, end, cost, small, large, total):
    """Fill `total` with the path costs of semi-global matching from the left and from the right.

    A change by one level between neighbors costs `small`, a larger change costs `large`. `cost`
    must be finite.
    """
    cols, levels = cost.shape[1:]
    for row in range(begin, end):
        here = np.empty(levels, np.float32)
        before = np.zeros(levels, np.float32)
        for col in range(cols):
            pass_on(before, cost[row, col], small, large, here)
            for level in range(levels):
                total[row, col, level] = here[level]
                before[level] = here[level]
        before[:] = np.float32(0.0)
        for back in range(cols):
            col = cols - 1 - back
            pass_on(before, cost[row, col], small, large, here)
            for level in range(levels):
                total[row, col, level] += here[level]
                before[level] = here[level]


@in_parts(lambda cost: cost.shape[1])
def pass_along_columns(begin, end, cost, small, large, total):
    """Add to `total` the path costs from above and from below; see `pass_along_rows`."""
    rows, _, levels = cost.shape
    for col in range(begin, end):
        here = np.empty(levels, np.float32)
        before = np.zeros(levels, np.float32)
        for row in range(rows):
            pass_on(before, cost[row, col], small, large, here)
            for level in range(levels):
                total[row, col, level] += here[level]
                before[level] = here[level]
        before[:] = np.float32(0.0)
        for back in range(rows):
            row = rows - 1 - back
            pass_on(before, cost[row, col], small, large, here)
            for level in range(levels):
                total[row, col, level] += here[level]
                before[level] = here[level]


@in_parts(lambda total: len(total))
def pick(begin, end, total, rhos, rho, margin):
    """Find the level of least cost of each pixel, and between levels the minimum of a parabola.

    `rho` gets the place of the minimum. `margin` gets by how much the cost of the best level that
    is at least three levels away exceeds the least cost; -1 where the least cost is at the first or
    last level.
    """
    cols, levels = total.shape[1:]
    for row in range(begin, end):
        for col in range(cols):
            best = 0
            for level in range(1, levels):
                if total[row, col, level] < total[row, col, best]:
                    best = level
            least = total[row, col, best]
            other = np.float32(math.inf)
            for level in range(levels):
                if abs(level - best) > 2:
                    other = min(other, total[row, col, level])
            if best == 0 or best == levels - 1:
                rho[row, col] = rhos[best]
                margin[row, col] = -1.0
                continue
            before = total[row, col, best - 1] - least
            after = total[row, col, best + 1] - least
            off = 0.5 * (before - after) / max(before + after, np.float32(1e-9))
            step = rhos[best + 1] - rhos[best] if off > 0.0 else rhos[best] - rhos[best - 1]
            rho[row, col] = rhos[best] + off * step
            margin[row, col] = other - least
