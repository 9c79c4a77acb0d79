"""Compiled loops of the virtual room: from a raw image and its grid to virtual depth and focus.

Everywhere `rho = 1 / u` is the inverse virtual depth: a virtual point X appears in micro image C at
`C + (X - C) rho`, moved by what the used part of the micro aperture does to a blurred image (see
docs/theory/virtual-depth.md). A map has virtual pixels of `step` raw pixels: pixel (row, col) is at
raw coordinates `(col + 0.5) step - 0.5`, `(row + 0.5) step - 0.5`.

Two tuples stand for the camera. `table` is the lenses' look-up table, `MicroLensGrid.index.table`.
`lenses` is (types, radius, weights, moves, focal_rhos, blur_px), see `optics.LensOptics`.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from lifcal.camera._kernels import cell_range, row_items
from lifcal.geometry._kernels import pixels_within
from lifcal.threads import in_parts

BINS_PER_PX = 8
FIRST_BEND, LAST_BEND, BENDS_PER_UNIT = -3.0, 1.0, 8
"""Of the defocus relative to the focal plane, `(rho_T - rho) / rho_T`: how it is tabulated."""
FOCUS_BLUR_PX = 0.65
"""Radius of blur at which a micro image counts half."""
FAST = {"reassoc", "contract"}
"""Of floating-point rules: sums in any order, and products that are added in one step."""
MOST_LENSES = 240
"""That see a point: at u = 16 and a margin beyond."""
ONE, TWO = np.uint32(1), np.uint32(2)
"""Indices without a sign need no check for negative ones."""
NEAREST_PX = 1e-3
"""A virtual point closer to a center than this counts as this far away: moves are divided by it."""
MOST_RHO = 1000.0
"""Largest |rho| that is looked at. In a camera |u| is about 1 or more, so |rho| about 1 or less. At
this limit `NEAREST_PX` is one pixel of the raw image, which the tables by distance reach."""
LEAST_NOISE = 1e-6
"""Variance, for an image of 0 to 1: a quarter of an 8-bit step. Even a flat image has rounding."""


@njit(cache=True, inline="always")
def is_usable(rho):
    """Tell whether the tables can be asked for a rho: not for zero, NaN and far-away numbers."""
    return 0.0 < abs(rho) <= MOST_RHO


@njit(cache=True, inline="always")
def focus_terms(lenses, lens_type, rho):
    """Return the weight of a lens type at a usable rho, and its row in the table of moves.

    A focal plane that is not known (NaN), or at zero or infinity, gives weight 1 and no move.
    """
    focal = lenses[4][lens_type]
    if not 0.0 < abs(focal) < math.inf:
        return 1.0, -FIRST_BEND * BENDS_PER_UNIT
    defocus = focal - rho
    blur = defocus * lenses[5] / FOCUS_BLUR_PX
    bend = min(max(defocus / focal, FIRST_BEND), LAST_BEND)
    return 1.0 / (1.0 + blur * blur), (bend - FIRST_BEND) * BENDS_PER_UNIT


@njit(cache=True, inline="always")
def find_move(moves, kind, row, column):
    """Return a move between two rows of the table; the last row has one more beyond it."""
    i = np.uint32(row)
    share = np.float32(row - i)
    return moves[kind, i, column] + share * (moves[kind, i + ONE, column] - moves[kind, i, column])


@njit(cache=True, inline="always")
def sample_linear(image, x, y):
    """Return the bilinear value; (x, y) must be inside."""
    i = np.uint32(x)
    j = np.uint32(y)
    fx = np.float32(x - i)
    fy = np.float32(y - j)
    top = image[j, i] + fx * (image[j, i + ONE] - image[j, i])
    bottom = image[j + ONE, i] + fx * (image[j + ONE, i + ONE] - image[j + ONE, i])
    return top + fy * (bottom - top)


@njit(cache=True)
def box_sum(values, half, scratch):
    """Replace each value by the sum over (2 half + 1)^2 pixels around it, fewer at the border."""
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

    Parallel over levels, in the order given, so that all cores get as much. At each level every
    lens adds its samples to the virtual pixels that it sees. NaN where no two lenses see any pixel
    of the window of (2 half + 1)^2.
    """
    centers = table[0]
    types, radius, weights, moves = lenses[0], lenses[1], lenses[2], lenses[3]
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
        # What depends on type and distance only, for this level.
        factors = np.empty(weights.shape, np.float32)
        counts = np.empty(weights.shape, np.float32)
        for kind in range(weights.shape[0]):
            focus, bend = focus_terms(lenses, kind, rho)
            for at in range(weights.shape[1]):
                away = max(at, 0.5) / (size * BINS_PER_PX)
                factors[kind, at] = rho + side * find_move(moves, kind, bend, at) / away
                counts[kind, at] = focus * weights[kind, at]
        scale = np.float32(size * BINS_PER_PX)
        # Sums of w, w I, w I^2 and w^2, side by side: one register holds them.
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
                        sums[row, col, 0] += weight
                        sums[row, col, 1] += weight * value
                        sums[row, col, 2] += weight * value * value
                        sums[row, col, 3] += weight * weight
                    dx += np.float32(step)
        squares = np.zeros((rows, cols), np.float32)
        freedom = np.zeros((rows, cols), np.float32)
        for row in range(rows):
            for col in range(cols):
                total = sums[row, col, 0]
                if total > np.float32(1e-6):
                    mean = sums[row, col, 1] / total
                    off = sums[row, col, 2] - mean * sums[row, col, 1]
                    squares[row, col] = max(off, np.float32(0.0))
                    freedom[row, col] = total - sums[row, col, 3] / total
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
    """Replace costs by log(1 + cost / noise), in place: large ones say no more than "not here".

    Levels at which nothing is known get the mean of the others.
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


@njit(cache=True, inline="always")
def pass_on(before, cost, small, large, out):
    """Continue one path of the semi-global sum by one pixel: `before` and `cost` give `out`."""
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
    """Fill `total` with the cheapest ways to come to each pixel and level along its row, both ways.

    A change of one level between neighbors costs `small`, a larger one `large`. `cost` must be
    finite.
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
    """Add to `total` what `pass_along_rows` fills it with, along columns."""
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
    """Find the cheapest level of each pixel, between levels by a parabola.

    `margin` is how much dearer the best level is that is not next to it; -1 where the cheapest
    level is the first or last.
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


@njit(cache=True, inline="always")
def spline_weights(f):
    """Return the weights of four coefficients at -1, 0, 1, 2 for f in [0, 1), and their slopes."""
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


@njit(cache=True, inline="always")
def sample_spline(image, x, y):
    """Return value and gradient of the spline with the coefficients `image`, (x, y) inside."""
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


SUMS = 6
SHARPENING = 0.08
"""What makes pixels the coefficients of a spline: (-s, 1 + 2 s, -s) along both axes. Between the
spline itself, which smooths (0), and the spline through the pixels (about 0.2 and farther
neighbors), which shows where they are (docs/theory/virtual-depth.md)."""
SPLINE_VARIANCE_PX2 = 1.0 / 3.0 - 2.0 * SHARPENING
"""Of the spline that a pixel becomes, along an axis."""
SPLINE_NOISE = 0.563756
"""Variance of a value of the spline along an axis, for pixels of variance 1."""
GRADIENT_NOISE = 0.949440 / SPLINE_NOISE
"""Variance of the slope of the spline through white noise along an axis, relative to that of its
value, over all places in a pixel."""


@in_parts(lambda rho: len(rho), fastmath=FAST)
def measure(begin, end, spline, table, lenses, rho, step, parts, sums):
    """Fill `sums` (SUMS, rows, cols) with what the micro images say about a change of `rho`.

    Each pixel is seen at parts x parts points. At a point, the lenses' values I_k should be equal;
    a change of rho moves them along the common gradient t by t . (X - C_k), less what the shift
    takes off. About the weighted means, with weights w_k = f_k / n_k (f for focus, n for the
    noise's variance relative to that in the middle), the sums over points are

    0: w slope I,  1: w slope^2,  2: w I^2,
    and what noise of variance 1 is expected to add to 2, 1 and 0:  3, 4 and 5.

    The gradient is the mean over lenses, not each lens' own, so that noise of a value meets its own
    slope only once in their number.
    """
    centers, start, items, origin, shape, cell = table
    types, radius, weights, moves = lenses[0], lenses[1], lenses[2], lenses[3]
    height, width = spline.shape
    n_types = weights.shape[0]
    # Half the slope of the noise's variance along the distance.
    growths = np.zeros(weights.shape, np.float32)
    for kind in range(n_types):
        for b in range(weights.shape[1] - 1):
            growths[kind, b] = (
                (1.0 / weights[kind, b + 1] - 1.0 / weights[kind, b]) * 0.5 * BINS_PER_PX
            )
    for row in range(begin, end):
        values = np.empty(MOST_LENSES, np.float32)
        counts = np.empty(MOST_LENSES, np.float32)
        pulls = np.empty(MOST_LENSES, np.float32)
        away_x = np.empty(MOST_LENSES, np.float32)
        away_y = np.empty(MOST_LENSES, np.float32)
        focus = np.empty(n_types, np.float32)
        bend = np.empty(n_types, np.float32)
        less = np.empty(n_types, np.float32)
        for col in range(rho.shape[1]):
            for k in range(SUMS):
                sums[k, row, col] = 0.0
            r = rho[row, col]
            if not is_usable(r):
                continue
            side = math.copysign(1.0, r)
            size = abs(r)
            reach = radius / size
            for kind in range(n_types):
                focus[kind], bend[kind] = focus_terms(lenses, kind, r)
                focal = lenses[4][kind]
                less[kind] = BENDS_PER_UNIT / abs(focal) if abs(focal) > 0.0 else 0.0
            for part in range(parts * parts):
                x = (col + (part % parts + 0.5) / parts) * step - 0.5
                y = (row + (part // parts + 0.5) / parts) * step - 0.5
                n = 0
                s0 = np.float32(0.0)
                f0 = np.float32(0.0)
                q0 = np.float32(0.0)
                mean = np.float32(0.0)
                slope_x = np.float32(0.0)
                slope_y = np.float32(0.0)
                mean_x = np.float32(0.0)
                mean_y = np.float32(0.0)
                i0, i1 = cell_range(x, reach, origin[0], cell, shape[0])
                j0, j1 = cell_range(y, reach, origin[1], cell, shape[1])
                for j in range(j0, j1 + 1):
                    first, last = row_items(start, j, i0, i1, shape[0])
                    for item in range(first, last):
                        lens = items[item]
                        dx = x - centers[lens, 0]
                        dy = y - centers[lens, 1]
                        d2 = dx * dx + dy * dy
                        if d2 > reach * reach or n == MOST_LENSES:
                            continue
                        kind = types[lens]
                        away = max(math.sqrt(d2), NEAREST_PX)
                        inverse = side / away
                        at = away * size * BINS_PER_PX
                        b = int(at)
                        i = int(bend[kind])
                        share = np.float32(at - b)
                        move = moves[kind, i, b]
                        move += share * (moves[kind, i, b + 1] - move)
                        gain = moves[kind, i + 1, b]
                        gain += share * (moves[kind, i + 1, b + 1] - gain) - move
                        factor = r + (move + (bend[kind] - i) * gain) * inverse
                        px = centers[lens, 0] + dx * factor
                        py = centers[lens, 1] + dy * factor
                        if not (1.0 <= px < width - 2 and 1.0 <= py < height - 2):
                            continue
                        value, gx, gy = sample_spline(spline, px, py)
                        w = focus[kind] * weights[kind, b]
                        values[n] = value
                        counts[n] = w
                        pulls[n] = growths[kind, b] * inverse
                        # The used part of the aperture is off the lens' middle: less parallax.
                        parallax = np.float32(1.0 - less[kind] * gain / away)
                        away_x[n] = dx * parallax
                        away_y[n] = dy * parallax
                        s0 += w
                        f0 += focus[kind]
                        q0 += w * focus[kind]
                        mean += w * value
                        slope_x += w * gx
                        slope_y += w * gy
                        mean_x += w * away_x[n]
                        mean_y += w * away_y[n]
                        n += 1
                if n < 2 or not s0 > np.float32(1e-6):
                    continue
                mean /= s0
                slope_x /= s0
                slope_y /= s0
                mean_x /= s0
                mean_y /= s0
                spread = np.float32(0.0)
                for k in range(n):
                    dx = away_x[k] - mean_x
                    dy = away_y[k] - mean_y
                    slope = slope_x * dx + slope_y * dy
                    off = values[k] - mean
                    w = counts[k]
                    sums[0, row, col] += w * slope * off
                    sums[1, row, col] += w * slope * slope
                    sums[2, row, col] += w * off * off
                    spread += w * (dx * dx + dy * dy)
                    sums[5, row, col] += w * w / s0 * pulls[k] * (dx * away_x[k] + dy * away_y[k])
                sums[3, row, col] += f0 - q0 / s0
                sums[4, row, col] += spread * q0 / (s0 * s0) * GRADIENT_NOISE


FUSED = 6
TINY = 1e-30


@in_parts(lambda rho: len(rho), fastmath=FAST)
def fuse(begin, end, rho, sums, half, edge, fused):
    """Fit a plane to the changes of rho that `sums` ask for in the window around each pixel.

    `fused` (rows, cols, FUSED): new rho; its slope along columns and rows, for each pixel;
    variance of rho if the values were independent; variance of the values' noise; degrees of
    freedom. Neighbors whose rho differs by `edge` (relative) and more are on another surface and
    do not count.
    """
    rows, cols = rho.shape
    reach2 = (half + 1.0) * (half + 1.0)
    for row in range(begin, end):
        for col in range(cols):
            center = rho[row, col]
            fused[row, col, 0] = center
            fused[row, col, 1] = 0.0
            fused[row, col, 2] = 0.0
            fused[row, col, 3] = math.inf
            fused[row, col, 4] = math.nan
            fused[row, col, 5] = 0.0
            limit = 1.0 / (edge * center)
            m00 = m01 = m02 = m11 = m12 = m22 = 0.0
            a0 = a1 = a2 = g0 = g1 = g2 = 0.0
            t0 = spread = freedom = blur = pull = 0.0
            for j in range(max(row - half, 0), min(row + half, rows - 1) + 1):
                dy = float(j - row)
                width = min(int(math.sqrt(reach2 - dy * dy)), half)
                w0 = w1 = w2 = o0 = o1 = c0 = c1 = 0.0
                # No branch in here: it runs on several neighbors at once.
                for i in range(max(col - width, 0), min(col + width, cols - 1) + 1):
                    off = rho[j, i] - center
                    far = off * limit
                    dx = float(i - col)
                    near = 1.0 - (dx * dx + dy * dy) / reach2
                    keep = near * max(1.0 - far * far, 0.0)
                    w = keep * sums[1, j, i]
                    g = keep * sums[0, j, i]
                    w0 += w
                    w1 += w * dx
                    w2 += w * dx * dx
                    o0 += w * off
                    o1 += w * off * dx
                    c0 += g
                    c1 += g * dx
                    t0 += keep * w
                    spread += keep * sums[2, j, i]
                    freedom += keep * sums[3, j, i]
                    blur += keep * sums[4, j, i]
                    pull += keep * sums[5, j, i]
                m00 += w0
                m01 += w1
                m02 += w0 * dy
                m11 += w2
                m12 += w1 * dy
                m22 += w0 * dy * dy
                a0 += o0
                a1 += o1
                a2 += o0 * dy
                g0 += c0
                g1 += c1
                g2 += c0 * dy
            if not (m00 > 0.0 and freedom > 0.0):
                continue
            noise = max(spread / freedom, LEAST_NOISE)
            # The part of the information that is gradient of the scene, not of noise.
            signal = max(1.0 - noise * blur / m00, 0.1)
            g0 -= noise * pull
            v0 = a0 - g0 / signal
            # A slope needs spread; where there is little this falls back to the mean.
            ridge = 0.02 * m00 * half * half
            a11 = m11 - m01 * m01 / m00 + ridge
            a12 = m12 - m01 * m02 / m00
            a22 = m22 - m02 * m02 / m00 + ridge
            b1 = a1 - g1 / signal - m01 * v0 / m00
            b2 = a2 - g2 / signal - m02 * v0 / m00
            det = a11 * a22 - a12 * a12
            sx = (a22 * b1 - a12 * b2) / det
            sy = (a11 * b2 - a12 * b1) / det
            lever = (m01 * m01 * a22 - 2.0 * m01 * m02 * a12 + m02 * m02 * a11) / (det * m00 * m00)
            fused[row, col, 0] = center + (v0 - m01 * sx - m02 * sy) / m00
            fused[row, col, 1] = sx
            fused[row, col, 2] = sy
            fused[row, col, 3] = noise * (t0 / (m00 * m00) + lever) / signal
            fused[row, col, 4] = noise
            fused[row, col, 5] = freedom


@in_parts(lambda halved: len(halved))
def halve(begin, end, rho, sums, edge, halved, halved_sums):
    """Put 2 x 2 pixels of `rho` and `sums` together, without those of another surface than most.

    `halved` is the mean of rho by information, so that the changes asked for add up.
    """
    for row in range(begin, end):
        for col in range(halved.shape[1]):
            total = mean = 0.0
            for k in range(4):
                weight = sums[1, 2 * row + k // 2, 2 * col + k % 2] + TINY
                mean += weight * rho[2 * row + k // 2, 2 * col + k % 2]
                total += weight
            mean /= total
            for n in range(SUMS):
                halved_sums[n, row, col] = 0.0
            total = again = 0.0
            for k in range(4):
                j, i = 2 * row + k // 2, 2 * col + k % 2
                if abs(rho[j, i] - mean) < 0.5 * edge * abs(mean):
                    weight = sums[1, j, i] + TINY
                    again += weight * rho[j, i]
                    total += weight
                    for n in range(SUMS):
                        halved_sums[n, row, col] += sums[n, j, i]
            halved[row, col] = again / total if total > 0.0 else mean


@in_parts(lambda planes: len(planes))
def bring_back(begin, end, fused, factor, planes):
    """Evaluate the planes of `fused` at pixels `factor` times finer: rho, slopes and variance.

    `planes` (rows, cols, 4) blends the four planes around a pixel; NaN where there is none.
    """
    rows, cols = fused.shape[:2]
    for row in range(begin, end):
        y = (row + 0.5) / factor - 0.5
        j0 = min(max(math.floor(y), 0), rows - 2)
        for col in range(planes.shape[1]):
            x = (col + 0.5) / factor - 0.5
            i0 = min(max(math.floor(x), 0), cols - 2)
            value = slope_x = slope_y = variance = total = 0.0
            for k in range(4):
                j, i = j0 + k // 2, i0 + k % 2
                share = max(1.0 - abs(x - i), 0.0) * max(1.0 - abs(y - j), 0.0)
                if share > 0.0 and math.isfinite(fused[j, i, 3]):
                    sx, sy = fused[j, i, 1], fused[j, i, 2]
                    value += share * (fused[j, i, 0] + sx * (x - i) + sy * (y - j))
                    slope_x += share * sx
                    slope_y += share * sy
                    variance += share * fused[j, i, 3]
                    total += share
            if total < 0.2:
                total = math.nan
            planes[row, col, 0] = value / total
            planes[row, col, 1] = slope_x / (total * factor)
            planes[row, col, 2] = slope_y / (total * factor)
            planes[row, col, 3] = variance / total


@in_parts(lambda fused: len(fused))
def compare_planes(begin, end, fused, planes, clear, least_gain, squares, counts):
    """Fill `squares` with squared differences of rho in sigmas, `counts` with 1 where there is one.

    `planes` (rows, cols, 4) are of the same observations as `fused` and more: the variance of the
    difference is what they gain. Only `clear` pixels, and gains beyond `least_gain` (relative).
    """
    for row in range(begin, end):
        for col in range(fused.shape[1]):
            gain = fused[row, col, 3] - planes[row, col, 3]
            squares[row, col] = 0.0
            counts[row, col] = 0.0
            if clear[row, col] and gain > least_gain * fused[row, col, 3] and math.isfinite(gain):
                off = planes[row, col, 0] - fused[row, col, 0]
                squares[row, col] = off * off / gain
                counts[row, col] = 1.0


@in_parts(lambda fused: len(fused))
def blend_planes(begin, end, planes, counts, around, here, limits, fused):
    """Blend `planes` into `fused` where the differences around and here are those of noise.

    `limits` are the mean squares up to which the plane is taken whole and from which on it is not,
    for `around` and for `here`. What is beyond noise is added to the variance.
    """
    for row in range(begin, end):
        for col in range(fused.shape[1]):
            if counts[row, col] == 0.0:
                continue
            wide, close = around[row, col], here[row, col]
            share = min(
                (limits[1] - wide) / (limits[1] - limits[0]),
                (limits[3] - close) / (limits[3] - limits[2]),
            )
            share = min(share, 1.0)
            if share <= 0.0:
                continue
            gain = fused[row, col, 3] - planes[row, col, 3]
            variance = planes[row, col, 3] + max(wide - 1.0, 0.0) * gain
            for k in range(3):
                fused[row, col, k] += share * (planes[row, col, k] - fused[row, col, k])
            fused[row, col, 3] += share * share * (variance - fused[row, col, 3])


@njit(cache=True, fastmath=FAST)
def find_places(table, lenses, size, x, y, rho, places, counts):
    """Find where lenses show the virtual point (x, y) at `rho`; return how many do.

    None does for a rho that is not usable.

    `places` gets the place in the image and the factor from (x, y) - C to it, `counts` the weight
    by focus and noise.
    """
    centers, start, items, origin, shape, cell = table
    types, radius, weights, moves = lenses[0], lenses[1], lenses[2], lenses[3]
    height, width = size
    if not is_usable(rho):
        return 0
    side = math.copysign(1.0, rho)
    reach = radius / abs(rho)
    n = 0
    i0, i1 = cell_range(x, reach, origin[0], cell, shape[0])
    j0, j1 = cell_range(y, reach, origin[1], cell, shape[1])
    for j in range(j0, j1 + 1):
        first, last = row_items(start, j, i0, i1, shape[0])
        for item in range(first, last):
            lens = items[item]
            dx = x - centers[lens, 0]
            dy = y - centers[lens, 1]
            d2 = dx * dx + dy * dy
            if d2 > reach * reach or n == MOST_LENSES:
                continue
            kind = types[lens]
            focus, bend = focus_terms(lenses, kind, rho)
            away = max(math.sqrt(d2), NEAREST_PX)
            b = int(away * abs(rho) * BINS_PER_PX)
            factor = rho + side * find_move(moves, kind, bend, b) / away
            px = centers[lens, 0] + dx * factor
            py = centers[lens, 1] + dy * factor
            if not (1.0 <= px < width - 2 and 1.0 <= py < height - 2):
                continue
            places[n, 0] = px
            places[n, 1] = py
            places[n, 2] = factor
            counts[n] = focus * weights[kind, b]
            n += 1
    return n


@njit(cache=True, fastmath=FAST)
def disagreement(image, table, lenses, x, y, rho, places, counts):
    """Return the weighted sum of squares over lenses at a virtual point, and its freedom."""
    s0 = s1 = s2 = q0 = 0.0
    for k in range(find_places(table, lenses, image.shape, x, y, rho, places, counts)):
        value = sample_linear(image, places[k, 0], places[k, 1])
        w = counts[k]
        s0 += w
        s1 += w * value
        s2 += w * value * value
        q0 += w * w
    if not s0 > 1e-6:
        return 0.0, 0.0
    return max(s2 - s1 * s1 / s0, 0.0), s0 - q0 / s0


@in_parts(lambda rho: len(rho), fastmath=FAST)
def spread_out(
    begin, end, image, table, lenses, fused, step, ratio, edge, window, rho, variance, hidden
):
    """Evaluate the planes of `fused`, of pixels `step` wide, at pixels `ratio` times finer.

    Where the four planes around a pixel disagree by more than `edge`, the micro images choose
    between the nearest and the farthest, over every other of (2 window + 1)^2 fine pixels; `hidden`
    is set where the farther one wins: some lenses do not see that pixel.
    """
    cols = rho.shape[1]
    coarse_rows, coarse_cols = fused.shape[:2]
    fine = step / ratio
    for row in range(begin, end):
        values = np.empty(4)
        shares = np.empty(4)
        noises = np.empty(4)
        places = np.empty((MOST_LENSES, 3))
        counts = np.empty(MOST_LENSES, np.float32)
        v = min(max((row + 0.5) / ratio - 0.5, 0.0), coarse_rows - 1.0)
        j = min(int(v), max(coarse_rows - 2, 0))
        for col in range(cols):
            u = min(max((col + 0.5) / ratio - 0.5, 0.0), coarse_cols - 1.0)
            i = min(int(u), max(coarse_cols - 2, 0))
            low = math.inf
            high = -math.inf
            for k in range(4):
                a = min(j + k // 2, coarse_rows - 1)
                b = min(i + k % 2, coarse_cols - 1)
                values[k] = fused[a, b, 0] + fused[a, b, 1] * (u - b) + fused[a, b, 2] * (v - a)
                shares[k] = abs(1.0 - abs(u - b)) * abs(1.0 - abs(v - a))
                noises[k] = fused[a, b, 3]
                low = min(low, values[k])
                high = max(high, values[k])
            chosen = 0.0
            hidden[row, col] = False
            size = max(abs(low), abs(high))
            if high - low > edge * size:
                x = (col + 0.5) * fine - 0.5
                y = (row + 0.5) * fine - 0.5
                low_sum = high_sum = low_free = high_free = 0.0
                for dy in range(-window, window + 1):
                    for dx in range(-window + (dy + window) % 2, window + 1, 2):
                        at_x = x + dx * fine
                        at_y = y + dy * fine
                        s, f = disagreement(image, table, lenses, at_x, at_y, low, places, counts)
                        low_sum += s
                        low_free += f
                        s, f = disagreement(image, table, lenses, at_x, at_y, high, places, counts)
                        high_sum += s
                        high_free += f
                chosen = low
                if high_sum * low_free < low_sum * high_free:
                    chosen = high
                # The larger |u|, so the smaller |rho|, is nearer to the camera.
                hidden[row, col] = abs(chosen) > abs(low + high - chosen)
            total = 0.0
            value = 0.0
            noise = 0.0
            for k in range(4):
                if chosen != 0.0 and abs(values[k] - chosen) > 0.5 * edge * size:
                    continue
                share = max(shares[k], 1e-3)
                total += share
                value += share * values[k]
                noise += share * noises[k]
            rho[row, col] = value / total
            variance[row, col] = noise / total


@njit(cache=True, inline="always")
def cubic_weights(f):
    """Return the Catmull-Rom weights of the four pixels around a place f between the middle two."""
    half = np.float32(0.5)
    one = np.float32(1.0)
    a0 = half * f * (f * (np.float32(2.0) - f) - one)
    a2 = half * f * (f * (np.float32(4.0) - np.float32(3.0) * f) + one)
    a3 = half * f * f * (f - one)
    return a0, one - a0 - a2 - a3, a2, a3


@njit(cache=True, inline="always")
def sample_cubic(image, x, y):
    """Return the Catmull-Rom value; (x, y) must be two pixels inside."""
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


@in_parts(lambda rho: len(rho), fastmath=FAST)
def synthesise(begin, end, image, table, lenses, rho, step, out, light):
    """Fill `out` with the mean of the micro images, by focus and noise.

    `light` is the sum of the weights; where it is 0, `out` is 0.
    """
    for row in range(begin, end):
        y = (row + 0.5) * step - 0.5
        places = np.empty((MOST_LENSES, 3))
        counts = np.empty(MOST_LENSES, np.float32)
        for col in range(rho.shape[1]):
            x = (col + 0.5) * step - 0.5
            out[row, col] = 0.0
            light[row, col] = 0.0
            r = rho[row, col]
            n = find_places(table, lenses, image.shape, x, y, r, places, counts)
            total = np.float32(0.0)
            value = np.float32(0.0)
            for k in range(n):
                value += counts[k] * sample_cubic(image, places[k, 0], places[k, 1])
                total += counts[k]
            light[row, col] = total
            if total > np.float32(1e-6):
                out[row, col] = value / total


FILTER_RINGS = ((0, 0), (1, 0), (1, 1), (2, 0), (2, 1), (2, 2), (3, 0), (3, 1))
"""One tap of each ring of a sharpening filter, in units of the taps' spacing; the others of a ring
are its mirror images."""


SEAM = 0.05
"""Relative change of rho that is a jump to another surface."""


@njit(cache=True, inline="always")
def sum_cross(image, row, col, a):
    """Return the sum of the four values `a` pixels off along the axes."""
    return image[row - a, col] + image[row + a, col] + image[row, col - a] + image[row, col + a]


@njit(cache=True, inline="always")
def sum_corners(image, row, col, a, b):
    """Return the sum of the four values at (row +- a, col +- b)."""
    top, bottom, left, right = row - a, row + a, col - b, col + b
    return image[top, left] + image[top, right] + image[bottom, left] + image[bottom, right]


@in_parts(lambda image: len(image))
def sharpen(begin, end, image, rho, light, filters, out):
    """Filter each pixel with the filter of its depth; see `sharpening.SharpeningFilters`.

    `filters` is (first, step, weights, spacings). Pixels whose filter reaches beyond the image, to
    where there is no light, or across a jump of depth stay as they are.
    """
    first, log_step, weights, spacings = filters
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
            # Of the far taps: in the dark nothing is known, beyond a jump is another surface.
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


NEAR_PX = 0.3
"""Spread of the weights by which raw pixels count for places near their middles."""
NEAR_FACTOR = np.float32(-0.5 / NEAR_PX**2)


@njit(cache=True, inline="always")
def near_weights(f):
    """Return the weights of the pixels at 0 and 1 for a place f between them."""
    g = np.float32(1.0) - f
    return math.exp(NEAR_FACTOR * f * f), math.exp(NEAR_FACTOR * g * g)


@in_parts(lambda rho: len(rho), fastmath=FAST)
def add_detail(begin, end, image, table, lenses, rho, step, mean, share, out):
    """Add to `out` what single raw pixels show beyond the mean of the micro images.

    Interpolation smooths each micro image, but the pixels of each are at other places of the
    virtual image. Here each pixel is compared with the mean where its own middle is, and the
    difference counts for places near by. `share` of it is added; nothing is done where that is 0.
    `mean` is twice as large as `out`: between its pixels, lines will do.
    """
    rows, cols = rho.shape
    right_limit = np.float32(2 * cols - 1)
    lower_limit = np.float32(2 * rows - 1)
    for row in range(begin, end):
        y = (row + 0.5) * step - 0.5
        places = np.empty((MOST_LENSES, 3))
        counts = np.empty(MOST_LENSES, np.float32)
        for col in range(cols):
            r = rho[row, col]
            if not share[row, col] > 0.0:
                continue
            x = (col + 0.5) * step - 0.5
            n = find_places(table, lenses, image.shape, x, y, r, places, counts)
            value = np.float32(0.0)
            total = np.float32(0.0)
            for k in range(n):
                left = np.uint32(places[k, 0])
                top = np.uint32(places[k, 1])
                fx = np.float32(places[k, 0] - left)
                fy = np.float32(places[k, 1] - top)
                pixel = np.float32(2.0 / (places[k, 2] * step))
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


@in_parts(lambda rho: len(rho))
def type_sharpness(begin, end, spline, table, lenses, rho, step, noise, energy):
    """Fill `energy` (rows, cols, types) with the mean squared gradient; NaN if no lens sees it.

    Noise of the variance `noise` of values in the middle of micro images is taken off.
    """
    centers, start, items, origin, shape, cell = table
    types, radius, weights = lenses[0], lenses[1], lenses[2]
    height, width = spline.shape
    n_types = energy.shape[2]
    for row in range(begin, end):
        y = (row + 0.5) * step - 0.5
        counts = np.empty(n_types)
        for col in range(rho.shape[1]):
            x = (col + 0.5) * step - 0.5
            for kind in range(n_types):
                energy[row, col, kind] = 0.0
                counts[kind] = 0.0
            r = rho[row, col]
            if is_usable(r):
                reach = radius / abs(r)
                i0, i1 = cell_range(x, reach, origin[0], cell, shape[0])
                j0, j1 = cell_range(y, reach, origin[1], cell, shape[1])
                for j in range(j0, j1 + 1):
                    first, last = row_items(start, j, i0, i1, shape[0])
                    for item in range(first, last):
                        lens = items[item]
                        dx = x - centers[lens, 0]
                        dy = y - centers[lens, 1]
                        d2 = dx * dx + dy * dy
                        if d2 > reach * reach:
                            continue
                        kind = types[lens]
                        b = int(math.sqrt(d2) * abs(r) * BINS_PER_PX)
                        px = centers[lens, 0] + dx * r
                        py = centers[lens, 1] + dy * r
                        if not (1.0 <= px < width - 2 and 1.0 <= py < height - 2):
                            continue
                        _, gx, gy = sample_spline(spline, px, py)
                        of_noise = 2.0 * GRADIENT_NOISE * noise / weights[kind, b]
                        energy[row, col, kind] += gx * gx + gy * gy - of_noise
                        counts[kind] += 1.0
            for kind in range(n_types):
                if counts[kind] > 0.0:
                    energy[row, col, kind] /= counts[kind]
                else:
                    energy[row, col, kind] = math.nan
