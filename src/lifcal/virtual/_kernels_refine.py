"""Compiled loops that refine virtual depth: gradients of micro images, planes through windows.

See `_kernels_lenses` for coordinates and argument packs.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import njit

from lifcal.arrays import BoolArray, Float32Array
from lifcal.camera._kernels import cell_range, row_items
from lifcal.threads import UNCOUNTED, in_parts
from lifcal.virtual._kernels_lenses import (
    BENDS_PER_UNIT,
    BINS_PER_PX,
    MOST_LENSES,
    NEAREST_PX,
    PLACE_COLUMNS,
    PLACE_X,
    PLACE_Y,
    find_places,
    focus_terms,
    is_usable,
)
from lifcal.virtual._kernels_sampling import FAST, GRADIENT_NOISE, sample_linear, sample_spline

SUM_PULL, SUM_INFORMATION, SUM_SQUARES = 0, 1, 2
SUM_FREEDOM, SUM_NOISE_INFORMATION, SUM_NOISE_PULL = 3, 4, 5
N_SUMS = 6
"""Layers of the sums that `measure` fills; its docstring has the formulas. The last three are what
noise of variance 1 adds to `SUM_SQUARES`, `SUM_INFORMATION` and `SUM_PULL` on average."""

PLANE_RHO, PLANE_SLOPE_X, PLANE_SLOPE_Y, PLANE_VARIANCE = 0, 1, 2, 3
PLANE_COLUMNS = 4
"""Columns of a table of planes: rho in the middle of a pixel, its change from one pixel to the next
along columns and along rows, and the variance of rho."""
PLANE_NOISE, PLANE_FREEDOM = 4, 5
FUSED_COLUMNS = 6
"""Two more columns that `fuse` fills: variance of the values' noise, and degrees of freedom."""

LEAST_NOISE = 1e-6
"""Least variance of a value that is assumed, for an image of 0 to 1: a quarter of an 8-bit step,
squared. Even an image that looks flat has been rounded."""
TINY = 1e-30
"""Added to weights so that a sum of weights can be divided by where no pixel has information."""


class AgreementLimits(NamedTuple):
    """Mean squares of differences, in sigmas, that decide whether a wider plane is used.

    Up to `agree` the wider plane is taken whole, from `differ` on it is not used. The first pair
    holds for the mean over a wide window, the pair with `_here` for that over a narrow one.
    """

    agree: float
    differ: float
    agree_here: float
    differ_here: float


@in_parts(lambda rho: len(rho), fastmath=FAST)
def measure(begin, end, spline, table, lenses, rho, step, parts, sums):
    """Fill `sums` (N_SUMS, rows, cols) with what the micro images say about a change of `rho`.

    Each virtual pixel is sampled at parts x parts points. At a point, the values I_k of all lenses
    should be equal. A change of rho moves the samples along the common gradient t, which changes
    I_k by slope_k = t . (X - C_k), less what the moved aperture takes off the parallax. With
    weights w_k = f_k / n_k (f by focus, n the noise variance relative to that in the middle of a
    micro image), and I and slope relative to their weighted means, the sums over points are

    - `SUM_PULL`: w slope I, the gradient of the squared differences by rho (halved);
    - `SUM_INFORMATION`: w slope^2, the curvature;
    - `SUM_SQUARES`: w I^2;
    - `SUM_FREEDOM`, `SUM_NOISE_INFORMATION`, `SUM_NOISE_PULL`: what noise of variance 1 adds to
      `SUM_SQUARES`, `SUM_INFORMATION` and `SUM_PULL` on average.

    The gradient t is the mean over lenses, not each lens' own. So the noise of a value enters the
    slope that it is multiplied with only by one part in the number of lenses.
    """
    centers, start, items = table.centers, table.start, table.items
    origin, shape, cell = table.origin, table.shape, table.cell
    types, radius, weights, moves = lenses.types, lenses.radius, lenses.weights, lenses.moves
    height, width = spline.shape
    n_types = weights.shape[0]
    # Half the derivative of the noise variance by the distance from the center.
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
            for layer in range(N_SUMS):
                sums[layer, row, col] = 0.0
            r = rho[row, col]
            if not is_usable(r):
                continue
            side = math.copysign(1.0, r)
            size = abs(r)
            reach = radius / size
            for kind in range(n_types):
                focus[kind], bend[kind] = focus_terms(lenses, kind, r)
                focal = lenses.focal_rhos[kind]
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
                        # The used part of the aperture is off the lens center, which reduces the
                        # parallax.
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
                    sums[SUM_PULL, row, col] += w * slope * off
                    sums[SUM_INFORMATION, row, col] += w * slope * slope
                    sums[SUM_SQUARES, row, col] += w * off * off
                    spread += w * (dx * dx + dy * dy)
                    sums[SUM_NOISE_PULL, row, col] += (
                        w * w / s0 * pulls[k] * (dx * away_x[k] + dy * away_y[k])
                    )
                sums[SUM_FREEDOM, row, col] += f0 - q0 / s0
                sums[SUM_NOISE_INFORMATION, row, col] += spread * q0 / (s0 * s0) * GRADIENT_NOISE


@in_parts(lambda rho: len(rho), fastmath=FAST)
def fuse(begin, end, rho, sums, half, edge, fused):
    """Fit a plane to the changes of rho that `sums` ask for in the window around each pixel.

    `fused` (rows, cols, FUSED_COLUMNS) gets the planes. `PLANE_VARIANCE` is the variance of rho as
    if all values were independent, infinite where nothing is known. The window is a disc of radius
    `half` + 1 pixels. Neighbors whose rho differs by the fraction `edge` or more are on another
    surface and get no weight.
    """
    rows, cols = rho.shape
    reach2 = (half + 1.0) * (half + 1.0)
    for row in range(begin, end):
        for col in range(cols):
            center = rho[row, col]
            fused[row, col, PLANE_RHO] = center
            fused[row, col, PLANE_SLOPE_X] = 0.0
            fused[row, col, PLANE_SLOPE_Y] = 0.0
            fused[row, col, PLANE_VARIANCE] = math.inf
            fused[row, col, PLANE_NOISE] = math.nan
            fused[row, col, PLANE_FREEDOM] = 0.0
            limit = 1.0 / (edge * center)
            m00 = m01 = m02 = m11 = m12 = m22 = 0.0
            a0 = a1 = a2 = g0 = g1 = g2 = 0.0
            t0 = spread = freedom = blur = pull = 0.0
            for j in range(max(row - half, 0), min(row + half, rows - 1) + 1):
                dy = float(j - row)
                width = min(int(math.sqrt(reach2 - dy * dy)), half)
                w0 = w1 = w2 = o0 = o1 = c0 = c1 = 0.0
                # This loop has no branch, so that LLVM vectorizes it over neighbors.
                for i in range(max(col - width, 0), min(col + width, cols - 1) + 1):
                    off = rho[j, i] - center
                    far = off * limit
                    dx = float(i - col)
                    near = 1.0 - (dx * dx + dy * dy) / reach2
                    keep = near * max(1.0 - far * far, 0.0)
                    w = keep * sums[SUM_INFORMATION, j, i]
                    g = keep * sums[SUM_PULL, j, i]
                    w0 += w
                    w1 += w * dx
                    w2 += w * dx * dx
                    o0 += w * off
                    o1 += w * off * dx
                    c0 += g
                    c1 += g * dx
                    t0 += keep * w
                    spread += keep * sums[SUM_SQUARES, j, i]
                    freedom += keep * sums[SUM_FREEDOM, j, i]
                    blur += keep * sums[SUM_NOISE_INFORMATION, j, i]
                    pull += keep * sums[SUM_NOISE_PULL, j, i]
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
            # The fraction of the information that comes from the scene's gradients, not from noise.
            signal = max(1.0 - noise * blur / m00, 0.1)
            g0 -= noise * pull
            v0 = a0 - g0 / signal
            # The ridge pulls slopes to zero where the information is not spread over the window.
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
            fused[row, col, PLANE_RHO] = center + (v0 - m01 * sx - m02 * sy) / m00
            fused[row, col, PLANE_SLOPE_X] = sx
            fused[row, col, PLANE_SLOPE_Y] = sy
            fused[row, col, PLANE_VARIANCE] = noise * (t0 / (m00 * m00) + lever) / signal
            fused[row, col, PLANE_NOISE] = noise
            fused[row, col, PLANE_FREEDOM] = freedom


@in_parts(lambda halved: len(halved))
def halve(begin, end, rho, sums, edge, halved, halved_sums):
    """Combine 2 x 2 pixels of `rho` and `sums` to one.

    Pixels that differ from the mean by the fraction `edge` / 2 or more are left out.

    `halved` is the mean of rho weighted by information. With these weights the changes of rho that
    the four pixels ask for add up to the change that their sum asks for.
    """
    for row in range(begin, end):
        for col in range(halved.shape[1]):
            total = mean = 0.0
            for k in range(4):
                weight = sums[SUM_INFORMATION, 2 * row + k // 2, 2 * col + k % 2] + TINY
                mean += weight * rho[2 * row + k // 2, 2 * col + k % 2]
                total += weight
            mean /= total
            for n in range(N_SUMS):
                halved_sums[n, row, col] = 0.0
            total = again = 0.0
            for k in range(4):
                j, i = 2 * row + k // 2, 2 * col + k % 2
                if abs(rho[j, i] - mean) < 0.5 * edge * abs(mean):
                    weight = sums[SUM_INFORMATION, j, i] + TINY
                    again += weight * rho[j, i]
                    total += weight
                    for n in range(N_SUMS):
                        halved_sums[n, row, col] += sums[n, j, i]
            halved[row, col] = again / total if total > 0.0 else mean


@in_parts(lambda planes: len(planes))
def bring_back(begin, end, fused, factor, planes):
    """Evaluate the planes of `fused` at pixels `factor` times finer.

    `planes` (rows, cols, PLANE_COLUMNS) gets a bilinear blend of the four planes around each pixel;
    NaN where none of them is known.
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
                if share > 0.0 and math.isfinite(fused[j, i, PLANE_VARIANCE]):
                    sx, sy = fused[j, i, PLANE_SLOPE_X], fused[j, i, PLANE_SLOPE_Y]
                    value += share * (fused[j, i, PLANE_RHO] + sx * (x - i) + sy * (y - j))
                    slope_x += share * sx
                    slope_y += share * sy
                    variance += share * fused[j, i, PLANE_VARIANCE]
                    total += share
            if total < 0.2:
                total = math.nan
            planes[row, col, PLANE_RHO] = value / total
            planes[row, col, PLANE_SLOPE_X] = slope_x / (total * factor)
            planes[row, col, PLANE_SLOPE_Y] = slope_y / (total * factor)
            planes[row, col, PLANE_VARIANCE] = variance / total


@in_parts(lambda fused: len(fused))
def compare_planes(begin, end, fused, planes, clear, least_gain, squares, counts):
    """Compare planes of wider windows with those of narrower ones.

    `squares` gets the squared difference of rho in units of its variance, `counts` gets 1 where
    there is one and 0 elsewhere. The windows of `planes` (rows, cols, PLANE_COLUMNS) contain those
    of `fused`, so the variance of the difference is the difference of the variances, the gain.
    Pixels that are not `clear`, or gain less than the fraction `least_gain`, are not compared.
    """
    for row in range(begin, end):
        for col in range(fused.shape[1]):
            gain = fused[row, col, PLANE_VARIANCE] - planes[row, col, PLANE_VARIANCE]
            squares[row, col] = 0.0
            counts[row, col] = 0.0
            if (
                clear[row, col]
                and gain > least_gain * fused[row, col, PLANE_VARIANCE]
                and math.isfinite(gain)
            ):
                off = planes[row, col, PLANE_RHO] - fused[row, col, PLANE_RHO]
                squares[row, col] = off * off / gain
                counts[row, col] = 1.0


@in_parts(lambda fused: len(fused))
def blend_planes(begin, end, planes, counts, around, here, limits, fused):
    """Blend `planes` into `fused` where they differ by no more than noise explains.

    `around` and `here` are mean squared differences in sigmas over a wide and a narrow window;
    `limits` is an `AgreementLimits`. Differences beyond those of noise are added to the variance.
    """
    for row in range(begin, end):
        for col in range(fused.shape[1]):
            if counts[row, col] == 0.0:
                continue
            wide, close = around[row, col], here[row, col]
            share = min(
                (limits.differ - wide) / (limits.differ - limits.agree),
                (limits.differ_here - close) / (limits.differ_here - limits.agree_here),
            )
            share = min(share, 1.0)
            if share <= 0.0:
                continue
            gain = fused[row, col, PLANE_VARIANCE] - planes[row, col, PLANE_VARIANCE]
            variance = planes[row, col, PLANE_VARIANCE] + max(wide - 1.0, 0.0) * gain
            for column in (PLANE_RHO, PLANE_SLOPE_X, PLANE_SLOPE_Y):
                off = planes[row, col, column] - fused[row, col, column]
                fused[row, col, column] += share * off
            fused[row, col, PLANE_VARIANCE] += (
                share * share * (variance - fused[row, col, PLANE_VARIANCE])
            )


class FineMaps(NamedTuple):
    """Maps at the output's pixels, (rows, cols) each.

    Parameters
    ----------
    rho, variance : float32
        Inverse virtual depth and its variance.
    hidden : bool
        Pixels of the farther of two surfaces at a depth edge, which some lenses do not see.
    """

    rho: Float32Array
    variance: Float32Array
    hidden: BoolArray


@njit(cache=True, fastmath=FAST, **UNCOUNTED)
def disagreement(image, table, lenses, x, y, rho, terms, places, counts):
    """Return the weighted sum of squared differences of the lenses at a virtual point.

    The second value is its number of degrees of freedom; both are 0 where no lens sees the point.
    """
    s0 = s1 = s2 = q0 = 0.0
    for k in range(find_places(table, lenses, image.shape, x, y, rho, terms, places, counts)):
        value = sample_linear(image, places[k, PLACE_X], places[k, PLACE_Y])
        w = counts[k]
        s0 += w
        s1 += w * value
        s2 += w * value * value
        q0 += w * w
    if not s0 > 1e-6:
        return 0.0, 0.0
    return max(s2 - s1 * s1 / s0, 0.0), s0 - q0 / s0


@in_parts(lambda out: len(out.rho), fastmath=FAST)
def spread_out(begin, end, image, table, lenses, fused, step, ratio, edge, window, out):
    """Evaluate the planes of `fused`, whose pixels are `step` wide, at pixels `ratio` times finer.

    Where the four planes around a fine pixel disagree by more than the fraction `edge`, the pixel
    is at a depth edge: the micro images are compared at the least and at the greatest of the four
    rhos, at every other of (2 window + 1)^2 fine pixels, and the rho with the smaller variance is
    taken. `out` is the `FineMaps` to fill.
    """
    rho, variance, hidden = out.rho, out.variance, out.hidden
    cols = rho.shape[1]
    coarse_rows, coarse_cols = fused.shape[:2]
    fine = step / ratio
    for row in range(begin, end):
        values = np.empty(4)
        shares = np.empty(4)
        noises = np.empty(4)
        terms = np.empty((lenses.weights.shape[0], 2), np.float32)
        places = np.empty((MOST_LENSES, PLACE_COLUMNS))
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
                values[k] = (
                    fused[a, b, PLANE_RHO]
                    + fused[a, b, PLANE_SLOPE_X] * (u - b)
                    + fused[a, b, PLANE_SLOPE_Y] * (v - a)
                )
                shares[k] = abs(1.0 - abs(u - b)) * abs(1.0 - abs(v - a))
                noises[k] = fused[a, b, PLANE_VARIANCE]
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
                        s, f = disagreement(
                            image, table, lenses, at_x, at_y, low, terms, places, counts
                        )
                        low_sum += s
                        low_free += f
                        s, f = disagreement(
                            image, table, lenses, at_x, at_y, high, terms, places, counts
                        )
                        high_sum += s
                        high_free += f
                chosen = low
                if high_sum * low_free < low_sum * high_free:
                    chosen = high
                # A larger |u|, that is a smaller |rho|, is nearer to the camera.
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


@in_parts(lambda rho: len(rho))
def type_sharpness(begin, end, spline, table, lenses, rho, step, noise, energy):
    """Fill `energy` (rows, cols, types) with the mean squared gradient over lenses of each type.

    NaN where no lens of a type sees the pixel. What noise adds is subtracted; `noise` is the
    variance of a value in the middle of a micro image.
    """
    centers, start, items = table.centers, table.start, table.items
    origin, shape, cell = table.origin, table.shape, table.cell
    types, radius, weights = lenses.types, lenses.radius, lenses.weights
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
