"""Compiled loops at depth edges: the surfaces on both sides, and where the nearer one ends.

See `_kernels_lenses` for coordinates and argument packs, and `lifcal.virtual.edges` for the method.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from lifcal.arrays import Float32Array
from lifcal.threads import UNCOUNTED, in_parts
from lifcal.virtual._kernels_lenses import (
    MOST_LENSES,
    PLACE_COLUMNS,
    PLACE_X,
    PLACE_Y,
    find_places,
)
from lifcal.virtual._kernels_refine import (
    PLANE_RHO,
    PLANE_SLOPE_X,
    PLANE_SLOPE_Y,
    PLANE_VARIANCE,
)
from lifcal.virtual._kernels_sampling import FAST, sample_linear

SIDE_NEAR, SIDE_FAR = 0, 4
SIDE_COLUMNS = 8
"""Columns of the table that `find_sides` fills: the plane of the nearer surface (the columns of a
table of planes), then that of the farther one."""

_DIAGONAL = 0.7071067811865476
"""Steps along both axes of a diagonal step of length 1."""


class EdgeLimits(NamedTuple):
    """When the planes around a pixel are two surfaces.

    Parameters
    ----------
    join : float
        Planes within this fraction of the difference from the extreme one are averaged with it.
    least : float
        Least difference of the two surfaces, as a fraction of rho.
    sigmas : float
        Least difference in standard deviations.
    """

    join: float
    least: float
    sigmas: float


class EdgeMaps(NamedTuple):
    """Maps at the output's pixels around depth edges, (rows, cols) float32 each.

    Parameters
    ----------
    near, far : array
        Inverse virtual depths of the two surfaces; NaN away from edges.
    near_variance, far_variance : array
        Their variances.
    side : array
        1 on the nearer surface, -1 on the farther one, between them where it is not certain.
    evidence : array
        By how much the micro images agree better on the nearer surface than on the farther one.
    guide : array
        Mean brightness over the micro images.
    """

    near: Float32Array
    far: Float32Array
    near_variance: Float32Array
    far_variance: Float32Array
    side: Float32Array
    evidence: Float32Array
    guide: Float32Array


@in_parts(lambda fused: len(fused))
def find_sides(begin, end, fused, sound, reach, limits, sides):
    """Find the two surfaces that meet around each pixel of a table of planes.

    The planes of the pixel itself and of eight pixels `reach` away are evaluated at the pixel. If
    the least and the greatest |rho| differ by more than `limits`, an `EdgeLimits`, there is an
    edge, and `sides` (rows, cols, SIDE_COLUMNS) gets the mean of the planes near the least (the
    nearer surface) and of those near the greatest; NaN elsewhere. Only `sound` planes are used.
    """
    rows, cols = sound.shape
    diagonal = max(int(reach * _DIAGONAL + 0.5), 1)
    for row in range(begin, end):
        values = np.empty(9)
        where = np.empty((9, 2), np.int64)
        for col in range(cols):
            sides[row, col, :] = math.nan
            n = 0
            low = math.inf
            high = -math.inf
            from_low = from_high = 0.0
            for k in range(9):
                down = k // 3 - 1
                right = k % 3 - 1
                away = reach if down == 0 or right == 0 else diagonal
                j = row + down * away
                i = col + right * away
                if not (0 <= j < rows and 0 <= i < cols) or not sound[j, i]:
                    continue
                value = (
                    fused[j, i, PLANE_RHO]
                    + fused[j, i, PLANE_SLOPE_X] * (col - i)
                    + fused[j, i, PLANE_SLOPE_Y] * (row - j)
                )
                if not value * fused[j, i, PLANE_RHO] > 0.0:
                    continue
                values[n] = value
                where[n, 0] = j
                where[n, 1] = i
                if abs(value) < low:
                    low = abs(value)
                    from_low = abs(fused[j, i, PLANE_RHO])
                if abs(value) > high:
                    high = abs(value)
                    from_high = abs(fused[j, i, PLANE_RHO])
                n += 1
            if n < 2 or not high - low > limits.least * high:
                continue
            # The surfaces themselves must differ, not only their extrapolations.
            if not from_high - from_low > 0.5 * (high - low):
                continue
            for side in range(2):
                first = SIDE_NEAR if side == 0 else SIDE_FAR
                extreme = low if side == 0 else high
                total = 0.0
                for column in range(4):
                    sides[row, col, first + column] = 0.0
                for k in range(n):
                    if abs(abs(values[k]) - extreme) > limits.join * (high - low):
                        continue
                    j, i = where[k, 0], where[k, 1]
                    weight = 1.0 / fused[j, i, PLANE_VARIANCE]
                    total += weight
                    sides[row, col, first + PLANE_RHO] += weight * values[k]
                    for column in (PLANE_SLOPE_X, PLANE_SLOPE_Y, PLANE_VARIANCE):
                        sides[row, col, first + column] += weight * fused[j, i, column]
                for column in range(4):
                    sides[row, col, first + column] /= total
            spread = sides[row, col, SIDE_NEAR + PLANE_VARIANCE]
            spread += sides[row, col, SIDE_FAR + PLANE_VARIANCE]
            gap = abs(sides[row, col, SIDE_NEAR] - sides[row, col, SIDE_FAR])
            if not gap > limits.sigmas * math.sqrt(max(spread, 0.0)):
                sides[row, col, :] = math.nan


@in_parts(lambda rho: len(rho), **UNCOUNTED)
def evaluate_sides(begin, end, sides, ratio, rho, maps):
    """Evaluate `sides` at pixels `ratio` times finer, with the side that `rho` is on at first."""
    coarse_rows, coarse_cols = sides.shape[:2]
    for row in range(begin, end):
        v = (row + 0.5) / ratio - 0.5
        j = int(min(max(v + 0.5, 0.0), coarse_rows - 1.0))
        for col in range(rho.shape[1]):
            u = (col + 0.5) / ratio - 0.5
            i = int(min(max(u + 0.5, 0.0), coarse_cols - 1.0))
            near = (
                sides[j, i, SIDE_NEAR + PLANE_RHO]
                + sides[j, i, SIDE_NEAR + PLANE_SLOPE_X] * (u - i)
                + sides[j, i, SIDE_NEAR + PLANE_SLOPE_Y] * (v - j)
            )
            far = (
                sides[j, i, SIDE_FAR + PLANE_RHO]
                + sides[j, i, SIDE_FAR + PLANE_SLOPE_X] * (u - i)
                + sides[j, i, SIDE_FAR + PLANE_SLOPE_Y] * (v - j)
            )
            maps.evidence[row, col] = 0.0
            maps.guide[row, col] = math.nan
            if not abs(far) > abs(near):
                maps.near[row, col] = math.nan
                maps.far[row, col] = math.nan
                maps.side[row, col] = 0.0
                continue
            maps.near[row, col] = near
            maps.far[row, col] = far
            maps.near_variance[row, col] = sides[j, i, SIDE_NEAR + PLANE_VARIANCE]
            maps.far_variance[row, col] = sides[j, i, SIDE_FAR + PLANE_VARIANCE]
            here = abs(rho[row, col])
            maps.side[row, col] = 1.0 if 2.0 * here < abs(near) + abs(far) else -1.0


@in_parts(lambda maps: len(maps.near), fastmath=FAST)
def weigh_sides(begin, end, image, table, lenses, step, noise, wanted, maps):
    """Compare at each pixel how well the micro images agree on the nearer and the farther surface.

    `maps.evidence` gets the difference of log(1 + variance / noise) of the farther and the nearer
    one, `maps.guide` the mean over the lenses on the side that the pixel is on. A lens whose line
    of sight to the farther surface passes through the nearer one, as `maps.side` has it, is left
    out. Only `wanted` pixels are compared.
    """
    near, far, side, evidence = maps.near, maps.far, maps.side, maps.evidence
    rows, cols = near.shape
    for row in range(begin, end):
        terms = np.empty((lenses.weights.shape[0], 2), np.float32)
        places = np.empty((MOST_LENSES, PLACE_COLUMNS))
        counts = np.empty(MOST_LENSES, np.float32)
        y = (row + 0.5) * step - 0.5
        for col in range(cols):
            if not (wanted[row, col] and abs(far[row, col]) > abs(near[row, col])):
                continue
            x = (col + 0.5) * step - 0.5
            cost_near = cost_far = mean_near = mean_far = 0.0
            for k in range(2):
                rho = near[row, col] if k == 0 else far[row, col]
                ahead = (far[row, col] / near[row, col] - 1.0) if k == 1 else 0.0
                s0 = s1 = s2 = q0 = 0.0
                n = find_places(table, lenses, image.shape, x, y, rho, terms, places, counts)
                for lens in range(n):
                    px, py = places[lens, PLACE_X], places[lens, PLACE_Y]
                    if k == 1:
                        # From the micro-image center to the point, times what lies between the two
                        # surfaces, is where the line of sight passes the nearer one.
                        grow = ahead / (1.0 - rho)
                        at_x = (x + (x - px) * grow + 0.5) / step
                        at_y = (y + (y - py) * grow + 0.5) / step
                        inside = 0.0 <= at_x < cols and 0.0 <= at_y < rows
                        if inside and side[int(at_y), int(at_x)] > 0.0:
                            continue
                    value = sample_linear(image, px, py)
                    w = counts[lens]
                    s0 += w
                    s1 += w * value
                    s2 += w * value * value
                    q0 += w * w
                cost = math.nan
                mean = math.nan
                if s0 > 1e-6:
                    mean = s1 / s0
                    freedom = s0 - q0 / s0
                    if freedom > 0.05:
                        cost = math.log1p(max(s2 - s1 * mean, 0.0) / (freedom * noise))
                if k == 0:
                    cost_near, mean_near = cost, mean
                else:
                    cost_far, mean_far = cost, mean
            known = math.isfinite(cost_near) and math.isfinite(cost_far)
            evidence[row, col] = cost_far - cost_near if known else 0.0
            own = mean_near if side[row, col] > 0.0 else mean_far
            maps.guide[row, col] = own if math.isfinite(own) else mean_near


@in_parts(lambda places: len(places), **UNCOUNTED)
def compare_neighbors(begin, end, places, maps, half, likeness, weights, pull):
    """Find by how much the neighbors of some pixels count for their side.

    `places` (n, 2) are rows and columns, at least `half` pixels from the border. Neighbors within
    `half` pixels count by the likeness of their brightness, a quarter at a difference of
    `likeness`. `weights` (n, (2 half + 1)^2) sum to 1, or are all 0 if the brightness is unknown;
    `pull` (n,) gets the mean evidence with these weights.
    """
    side = 2 * half + 1
    scale = 1.0 / (likeness * likeness)
    for item in range(begin, end):
        row, col = places[item, 0], places[item, 1]
        here = maps.guide[row, col]
        total = evidence = 0.0
        for k in range(side * side):
            j = row + k // side - half
            i = col + k % side - half
            off = maps.guide[j, i] - here
            weight = 0.0
            if math.isfinite(off):
                weight = 1.0 / (1.0 + off * off * scale)
                weight *= weight
                total += weight
                evidence += weight * maps.evidence[j, i]
            weights[item, k] = weight
        pull[item] = 0.0
        if total > 0.0:
            pull[item] = evidence / total
            for k in range(side * side):
                weights[item, k] /= total


@in_parts(lambda places: len(places))
def spread_sides(begin, end, places, half, weights, pull, trust, side, out):
    """Replace the side of some pixels by the weighted mean of their neighbors.

    See `compare_neighbors` for the arguments; `trust` times the mean evidence is added. `out` gets
    the sides of these pixels, between -1 and 1; other pixels are not written.
    """
    width = 2 * half + 1
    for item in range(begin, end):
        row, col = places[item, 0], places[item, 1]
        value = trust * pull[item]
        for j in range(width):
            for i in range(width):
                value += weights[item, j * width + i] * side[row + j - half, col + i - half]
        out[row, col] = min(max(value, -1.0), 1.0)
