"""Compiled loops of the metric room: what is one surface, and which way it faces."""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from lifcal.threads import in_parts


@njit(cache=True, inline="always")
def connected(depth, step, row, col, i, j):
    """Tell whether two pixels are of one surface: `step` is what may be between neighbors.

    NaN is of none.
    """
    apart = max(abs(i - row), abs(j - col))
    limit = apart * max(step[row, col], step[i, j])
    return abs(depth[row, col] - depth[i, j]) <= limit


@in_parts(lambda depth: len(depth))
def mark_jumps(begin, end, depth, step, reach, marked):
    """Set `marked` where some pixel within `reach` is of another surface.

    Unknown pixels mark nothing and are not marked.
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
    """Return the first of an item's set, and shorten the way to it."""
    while parents[item] != item:
        parents[item] = parents[parents[item]]
        item = parents[item]
    return item


@njit(cache=True, nogil=True)
def patch_sizes(depth, step, parents, sizes):
    """Fill `sizes` with the number of pixels of the surface that each pixel belongs to.

    Pixels side by side are of one surface if their depths are `connected`. Unknown: 0.
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
    # Roots hold the count now; the others take it from them.
    for row in range(rows):
        for col in range(cols):
            if depth[row, col] == depth[row, col]:
                root = find_root(parents, row * cols + col)
                sizes[row, col] = sizes[root // cols, root % cols]


@in_parts(lambda depth: len(depth))
def fit_normals(begin, end, depth, step, fx, fy, cx, cy, half, normals):
    """Fill `normals` (rows, cols, 3) with unit vectors towards the camera; NaN where unknown.

    On a plane n . X = 1 the inverse depth is n . (x, y, 1) for rays (x, y, 1): three unknowns, by
    least squares over (2 half + 1)^2 pixels, those of other surfaces left out.
    """
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
            if n < 6.0:
                continue
            sxx -= sx * sx / n
            sxy -= sx * sy / n
            syy -= sy * sy / n
            qx -= sx * q / n
            qy -= sy * q / n
            det = sxx * syy - sxy * sxy
            if det < 1e-3 * (sxx + syy) ** 2:
                continue
            # here / z = a + b x + c y in pixels about the middle one
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
def confirm(
    begin,
    end,
    depth,
    sigma,
    depths,
    sigmas,
    rotations,
    translations,
    pinhole,
    needed,
    most_sigmas,
    common,
    new_depth,
    new_sigma,
):
    """Fill `new_depth`, `new_sigma` with the mean of a depth map and those that agree with it.

    `depths`, `sigmas` (n, rows, cols) are of other frames, `rotations` and `translations` lead to
    them; `pinhole` is fx, fy, cx, cy of all. A pixel is NaN if less than `needed` of them agree, or
    more see something behind it. `common` is the share of the variance that does not fall
    with their number.
    """
    rows, cols = depth.shape
    fx, fy, cx, cy = pinhole[0], pinhole[1], pinhole[2], pinhole[3]
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
                if abs(off) < most_sigmas * math.sqrt(s * s + other * other):
                    agree += 1
                    weight = 1.0 / (other * other)
                    total += weight
                    # cameras that see one surface look nearly the same way
                    mean += weight * off * z / at_z
                elif off > 0.0:
                    against += 1
            if agree < needed or against > agree:
                continue
            new_depth[row, col] = z + mean / total
            new_sigma[row, col] = math.sqrt((1.0 + common * agree) / total)
