"""Compiled loops of the metric room: connected surfaces, normals, agreement between frames."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import njit

from lifcal.arrays import Float32Array, FloatArray
from lifcal.threads import in_parts

_FEWEST_NEIGHBORS = 6.0
"""Smallest number of pixels to which a normal is fitted: twice the number of its unknowns."""
_LEAST_SPREAD = 1e-3
"""Smallest determinant of the pixels' scatter matrix, relative to its squared trace. Below it, the
pixels are nearly on a line and do not determine a normal."""


class Pinhole(NamedTuple):
    """Intrinsics of a pinhole image, px; pixel centers are integers."""

    fx: float
    fy: float
    cx: float
    cy: float


class OtherFrames(NamedTuple):
    """Depth maps of other frames, and the motions from the frame that they are compared with.

    Parameters
    ----------
    depths, sigmas : (n, rows, cols) float32
        Depth and its standard deviation in mm; NaN where unknown.
    rotations, translations : (n, 3, 3) and (n, 3) float64
        Transforms of points from this frame to the camera coordinates of the others.
    """

    depths: Float32Array
    sigmas: Float32Array
    rotations: FloatArray
    translations: FloatArray


class Agreement(NamedTuple):
    """Rule that decides whether other frames confirm a depth.

    Parameters
    ----------
    needed : int
        Number of other frames that must agree.
    most_sigmas : float
        Largest difference of two depths of one surface, in standard deviations.
    common : float
        Fraction of the variance that is common to all frames and does not average out.
    """

    needed: int
    most_sigmas: float
    common: float


@njit(cache=True, inline="always")
def connected(depth, step, row, col, i, j):
    """Tell whether two pixels are on one surface.

    `step` (rows, cols) is the largest change of depth between neighbors of one surface. A pixel
    whose depth is NaN is on no surface.
    """
    apart = max(abs(i - row), abs(j - col))
    limit = apart * max(step[row, col], step[i, j])
    return abs(depth[row, col] - depth[i, j]) <= limit


@in_parts(lambda depth: len(depth))
def mark_jumps(begin, end, depth, step, reach, marked):
    """Set `marked` where a pixel within `reach` pixels is on another surface.

    Unknown pixels (NaN) are not marked, and their neighbors are not marked because of them.
    """
    rows, cols = depth.shape
    for row in range(begin, end):
        for col in range(cols):
            found = False
            if depth[row, col] == depth[row, col]:
                for i in range(max(row - reach, 0), min(row + reach + 1, rows)):
                    for j in range(max(col - reach, 0), min(col + reach + 1, cols)):
                        other = depth[i, j]
                        if other == other and not connected(depth, step, row, col, i, j):
                            found = True
            marked[row, col] = found


@njit(cache=True)
def find_root(parents, item):
    """Return the root of an item's set (union-find), and shorten the path to it."""
    while parents[item] != item:
        parents[item] = parents[parents[item]]
        item = parents[item]
    return item


@njit(cache=True, nogil=True)
def patch_sizes(depth, step, parents, sizes):
    """Fill `sizes` with the number of pixels of the surface that each pixel belongs to.

    Two pixels side by side are on one surface if they are `connected`. Unknown pixels get 0.
    """
    rows, cols = depth.shape
    for place in range(rows * cols):
        parents[place] = place
    for row in range(rows):
        for col in range(cols):
            place = row * cols + col
            if col > 0 and connected(depth, step, row, col, row, col - 1):
                parents[find_root(parents, place)] = find_root(parents, place - 1)
            if row > 0 and connected(depth, step, row, col, row - 1, col):
                parents[find_root(parents, place)] = find_root(parents, place - cols)
    for row in range(rows):
        for col in range(cols):
            sizes[row, col] = 0
    for row in range(rows):
        for col in range(cols):
            if depth[row, col] == depth[row, col]:
                root = find_root(parents, row * cols + col)
                sizes[root // cols, root % cols] += 1
    # The counts are now stored at the roots; all other pixels copy that of their root.
    for row in range(rows):
        for col in range(cols):
            if depth[row, col] == depth[row, col]:
                root = find_root(parents, row * cols + col)
                sizes[row, col] = sizes[root // cols, root % cols]


@in_parts(lambda depth: len(depth))
def fit_normals(begin, end, depth, step, pinhole, half, normals):
    """Fill `normals` (rows, cols, 3) with unit vectors towards the camera; NaN where unknown.

    On a plane n . X = 1 the inverse depth of the ray (x, y, 1) is n . (x, y, 1). These three
    unknowns are fitted by least squares to the (2 half + 1)^2 pixels around each pixel, without
    those on other surfaces. `pinhole` is a `Pinhole`.
    """
    fx, fy, cx, cy = pinhole.fx, pinhole.fy, pinhole.cx, pinhole.cy
    rows, cols = depth.shape
    for row in range(begin, end):
        for col in range(cols):
            for axis in range(3):
                normals[row, col, axis] = np.float32(math.nan)
            here = depth[row, col]
            if here != here:
                continue
            n = sx = sy = sxx = sxy = syy = q = qx = qy = 0.0
            for i in range(max(row - half, 0), min(row + half + 1, rows)):
                for j in range(max(col - half, 0), min(col + half + 1, cols)):
                    if connected(depth, step, row, col, i, j):
                        x = float(j - col)
                        y = float(i - row)
                        inverse = here / depth[i, j]
                        n += 1.0
                        sx += x
                        sy += y
                        sxx += x * x
                        sxy += x * y
                        syy += y * y
                        q += inverse
                        qx += x * inverse
                        qy += y * inverse
            if n < _FEWEST_NEIGHBORS:
                continue
            sxx -= sx * sx / n
            sxy -= sx * sy / n
            syy -= sy * sy / n
            qx -= sx * q / n
            qy -= sy * q / n
            det = sxx * syy - sxy * sxy
            if det < _LEAST_SPREAD * (sxx + syy) ** 2:
                continue
            # The model is here / z = a + b x + c y, with x and y in pixels from the middle one.
            b = (syy * qx - sxy * qy) / det
            c = (sxx * qy - sxy * qx) / det
            a = (q - b * sx - c * sy) / n
            nx = b * fx
            ny = c * fy
            nz = a - b * (col - cx) - c * (row - cy)
            length = math.sqrt(nx * nx + ny * ny + nz * nz)
            normals[row, col, 0] = np.float32(-nx / length)
            normals[row, col, 1] = np.float32(-ny / length)
            normals[row, col, 2] = np.float32(-nz / length)


@in_parts(lambda depth: len(depth))
def confirm(begin, end, depth, sigma, others, pinhole, rule, new_depth, new_sigma):
    """Fill `new_depth` and `new_sigma` with the mean of a depth map and those that agree with it.

    `others` is an `OtherFrames`, `pinhole` the `Pinhole` of all frames, `rule` an `Agreement`. A
    pixel becomes NaN if fewer frames than needed agree with it, or if more frames see something
    behind it than agree.
    """
    depths, sigmas = others.depths, others.sigmas
    rotations, translations = others.rotations, others.translations
    rows, cols = depth.shape
    fx, fy, cx, cy = pinhole.fx, pinhole.fy, pinhole.cx, pinhole.cy
    for row in range(begin, end):
        for col in range(cols):
            z = float(depth[row, col])
            s = float(sigma[row, col])
            new_depth[row, col] = math.nan
            new_sigma[row, col] = math.nan
            if not (z > 0.0 and s > 0.0):
                continue
            x = (col - cx) / fx * z
            y = (row - cy) / fy * z
            total = 1.0 / (s * s)
            mean = 0.0
            agree = against = 0
            for n in range(len(depths)):
                r, t = rotations[n], translations[n]
                at_z = r[2, 0] * x + r[2, 1] * y + r[2, 2] * z + t[2]
                if not at_z > 0.0:
                    continue
                at_x = r[0, 0] * x + r[0, 1] * y + r[0, 2] * z + t[0]
                at_y = r[1, 0] * x + r[1, 1] * y + r[1, 2] * z + t[1]
                down = at_y / at_z * fy + cy + 0.5
                right = at_x / at_z * fx + cx + 0.5
                if not (0.0 <= down < rows and 0.0 <= right < cols):
                    continue
                i = int(down)
                j = int(right)
                seen = float(depths[n, i, j])
                other = float(sigmas[n, i, j])
                if not (seen > 0.0 and other > 0.0):
                    continue
                off = seen - at_z
                if abs(off) < rule.most_sigmas * math.sqrt(s * s + other * other):
                    agree += 1
                    weight = 1.0 / (other * other)
                    total += weight
                    # The cameras look in nearly the same direction, so a relative change of depth
                    # is the same in both.
                    mean += weight * off * z / at_z
                elif off > 0.0:
                    against += 1
            if agree < rule.needed or against > agree:
                continue
            new_depth[row, col] = z + mean / total
            new_sigma[row, col] = math.sqrt((1.0 + rule.common * agree) / total)
