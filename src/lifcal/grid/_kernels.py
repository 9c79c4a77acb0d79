"""Loops over pixels and micro images for fitting the grid."""

import numpy as np
from numba import njit

from lifcal.camera._kernels import cell_range
from lifcal.geometry._kernels import pixels_within
from lifcal.threads import in_parts

_FAR_CELL = 1e9
"""A cell number beyond this (or NaN) is of no image, and cannot become an index."""


@in_parts(lambda totals: len(totals))
def fold_cell(
    begin,
    end,
    image,
    origin,
    inverse,
    offsets,
    brightness,
    q_first,
    r_first,
    box,
    size,
    totals,
    counts,
):
    """Average an image over the cells of a grid.

    `inverse` turns (x, y) - origin into lattice units (q, r); `offsets` (rows r, columns q, 2) in
    px says how far each center is from its place in the lattice, and `brightness` (rows r, columns
    q) is what a cell's pixels are divided by. A cell where one of them is NaN, or the brightness
    zero, is left out. `box` is (x_first, y_first, x_end, y_end). `totals`, `counts` (chunks, size,
    size) are filled, first by the part of r, then of q, bins centered on multiples of 1 / size.
    """
    chunks = totals.shape[0]
    height = box[3] - box[1]
    for chunk in range(begin, end):
        totals[chunk] = 0.0
        counts[chunk] = 0.0
        for row in range(
            box[1] + height * chunk // chunks, box[1] + height * (chunk + 1) // chunks
        ):
            y = row - origin[1]
            for col in range(box[0], box[2]):
                x = col - origin[0]
                q = x * inverse[0, 0] + y * inverse[1, 0]
                r = x * inverse[0, 1] + y * inverse[1, 1]
                i = np.floor(r + 0.5) - r_first
                j = np.floor(q + 0.5) - q_first
                if not (abs(i) < _FAR_CELL and abs(j) < _FAR_CELL):
                    continue
                # Neighbors are offset alike: the offset of a cell nearby tells which cell it is.
                near_i = min(max(int(i), 0), brightness.shape[0] - 1)
                near_j = min(max(int(j), 0), brightness.shape[1] - 1)
                off_x = offsets[near_i, near_j, 0]
                off_y = offsets[near_i, near_j, 1]
                if not (np.isfinite(off_x) and np.isfinite(off_y)):
                    continue
                q -= off_x * inverse[0, 0] + off_y * inverse[1, 0]
                r -= off_x * inverse[0, 1] + off_y * inverse[1, 1]
                i = np.floor(r + 0.5) - r_first
                j = np.floor(q + 0.5) - q_first
                if not (0.0 <= i < brightness.shape[0] and 0.0 <= j < brightness.shape[1]):
                    continue
                level = brightness[int(i), int(j)]
                if not level > 0.0:
                    continue
                u = int(np.floor((q - np.floor(q)) * size + 0.5)) % size
                v = int(np.floor((r - np.floor(r)) * size + 0.5)) % size
                totals[chunk, v, u] += image[row, col] / level
                counts[chunk, v, u] += 1.0


@njit(cache=True)
def _solve(matrix, vector, n):
    """Solve a small symmetric system in place by elimination; return whether it could be."""
    for i in range(n):
        pivot = i
        for k in range(i + 1, n):
            if abs(matrix[k, i]) > abs(matrix[pivot, i]):
                pivot = k
        if abs(matrix[pivot, i]) < 1e-14:
            return False
        if pivot != i:
            for j in range(n):
                matrix[i, j], matrix[pivot, j] = matrix[pivot, j], matrix[i, j]
            vector[i], vector[pivot] = vector[pivot], vector[i]
        for k in range(i + 1, n):
            factor = matrix[k, i] / matrix[i, i]
            for j in range(i, n):
                matrix[k, j] -= factor * matrix[i, j]
            vector[k] -= factor * vector[i]
    for i in range(n - 1, -1, -1):
        for j in range(i + 1, n):
            vector[i] -= matrix[i, j] * vector[j]
        vector[i] /= matrix[i, i]
    return True


@in_parts(lambda centers: len(centers), least=16)
def match_cells(
    begin,
    end,
    image,
    centers,
    basis,
    period,
    table,
    radius,
    own,
    shifts,
    sigmas,
    gains,
    slopes,
    errors,
):
    """Find how far each micro image is from its expected center.

    Around each center the image is fitted by `gain (T (1 + slope . m) - shift . grad T)`, with the
    mean cell T: brightness, shading across the micro image, and the shift. `m` is the offset from
    the nearest center, so the shading starts anew in each micro image. `basis` (2, 2) holds the
    lattice vectors; `table` (size, size, 3) holds T and its derivatives by x and y in px, over the
    cell that the vectors `period` (2, 2) span. The window has the given radius, with a soft edge;
    if `own`, pixels that are nearer to another center are left out.

    Fills `shifts` (n, 2) in px; `sigmas` (n,), their standard deviation along an axis if what is
    left is noise of single pixels; `gains` (n,); `slopes` (n, 2) in 1/px; and `errors` (n,), the
    rms of what is left relative to the gain. NaN where too few pixels are inside the image.
    """
    height, width = image.shape
    # Coordinates in the window are divided by the radius, so that the equations are well scaled.
    full = np.pi * radius * radius
    if own:
        full = min(full, abs(basis[0, 0] * basis[1, 1] - basis[0, 1] * basis[1, 0]))
    per_square = 1.0 / (radius * radius)
    per_radius = 1.0 / radius
    size = table.shape[0]
    inverse = np.linalg.inv(basis)
    of_table = np.linalg.inv(period)
    for lens in range(begin, end):
        shifts[lens] = np.nan
        slopes[lens] = np.nan
        sigmas[lens] = np.nan
        gains[lens] = np.nan
        errors[lens] = np.nan
        cx = centers[lens, 0]
        cy = centers[lens, 1]
        matrix = np.zeros((5, 5))
        vector = np.zeros(5)
        model = np.empty(5)
        squares = 0.0
        total = 0.0
        inside = 0
        x_first, x_end = pixels_within(cx, radius, width)
        y_first, y_end = pixels_within(cy, radius, height)
        for row in range(y_first, y_end):
            dy = row - cy
            for col in range(x_first, x_end):
                dx = col - cx
                square = (dx * dx + dy * dy) * per_square
                if square >= 1.0:
                    continue
                value = image[row, col]
                if not np.isfinite(value):
                    continue
                weight = min(1.0, 2.0 * (1.0 - square))
                # The table repeats: where in it is this pixel, and between which entries.
                u = (dx * of_table[0, 0] + dy * of_table[1, 0] + 2.0) * size
                v = (dx * of_table[0, 1] + dy * of_table[1, 1] + 2.0) * size
                if not (0.0 <= u < 4.0 * size and 0.0 <= v < 4.0 * size):
                    continue
                u_low = int(u)
                v_low = int(v)
                a = u - u_low
                b = v - v_low
                u_low %= size
                v_low %= size
                u_high = u_low + 1 if u_low + 1 < size else 0
                v_high = v_low + 1 if v_low + 1 < size else 0
                w_00 = (1.0 - a) * (1.0 - b)
                w_01 = a * (1.0 - b)
                w_10 = (1.0 - a) * b
                w_11 = a * b
                mean = (
                    w_00 * table[v_low, u_low, 0]
                    + w_01 * table[v_low, u_high, 0]
                    + w_10 * table[v_high, u_low, 0]
                    + w_11 * table[v_high, u_high, 0]
                )
                by_x = (
                    w_00 * table[v_low, u_low, 1]
                    + w_01 * table[v_low, u_high, 1]
                    + w_10 * table[v_high, u_low, 1]
                    + w_11 * table[v_high, u_high, 1]
                )
                by_y = (
                    w_00 * table[v_low, u_low, 2]
                    + w_01 * table[v_low, u_high, 2]
                    + w_10 * table[v_high, u_low, 2]
                    + w_11 * table[v_high, u_high, 2]
                )
                # The offset from the nearest of the four centers around the pixel.
                q = dx * inverse[0, 0] + dy * inverse[1, 0] + 2.0
                r = dx * inverse[0, 1] + dy * inverse[1, 1] + 2.0
                from_x = dx
                from_y = dy
                nearest = np.inf
                for corner in range(4):
                    part_q = q - int(q) - (corner & 1)
                    part_r = r - int(r) - (corner >> 1)
                    off_x = part_q * basis[0, 0] + part_r * basis[1, 0]
                    off_y = part_q * basis[0, 1] + part_r * basis[1, 1]
                    if off_x * off_x + off_y * off_y < nearest:
                        nearest = off_x * off_x + off_y * off_y
                        from_x = off_x
                        from_y = off_y
                if own and abs(from_x - dx) + abs(from_y - dy) > 1e-6 * radius:
                    continue
                model[0] = mean
                model[1] = mean * from_x * per_radius
                model[2] = mean * from_y * per_radius
                model[3] = -by_x * radius
                model[4] = -by_y * radius
                for i in range(5):
                    for j in range(i, 5):
                        matrix[i, j] += weight * model[i] * model[j]
                    vector[i] += weight * model[i] * value
                squares += weight * value * value
                total += weight
                inside += 1
        if inside < 0.8 * full:
            continue
        for i in range(5):
            for j in range(i):
                matrix[i, j] = matrix[j, i]
        right = vector.copy()
        by_shift = np.zeros((2, 5))
        by_shift[0, 3] = 1.0
        by_shift[1, 4] = 1.0
        solved = _solve(matrix.copy(), vector, 5)
        solved = solved and _solve(matrix.copy(), by_shift[0], 5)
        solved = solved and _solve(matrix, by_shift[1], 5)
        if not solved:
            continue
        gain = vector[0]
        gains[lens] = gain
        left = squares
        for i in range(5):
            left -= vector[i] * right[i]
        if gain > 1e-12:
            shifts[lens, 0] = vector[3] * radius / gain
            shifts[lens, 1] = vector[4] * radius / gain
            slopes[lens, 0] = vector[1] * per_radius / gain
            slopes[lens, 1] = vector[2] * per_radius / gain
            errors[lens] = np.sqrt(max(left, 0.0) / total) / gain
            spread = max(0.5 * (by_shift[0, 3] + by_shift[1, 4]), 0.0)
            sigmas[lens] = errors[lens] * radius * np.sqrt(spread)


@in_parts(lambda centers: len(centers), least=16)
def measure_discs(begin, end, image, centers, radius, means):
    """Fill `means` (n,) with the mean over discs; NaN where less than half is in the image."""
    height, width = image.shape
    for lens in range(begin, end):
        cx = centers[lens, 0]
        cy = centers[lens, 1]
        total = 0.0
        inside = 0
        x_first, x_end = pixels_within(cx, radius, width)
        y_first, y_end = pixels_within(cy, radius, height)
        for row in range(y_first, y_end):
            for col in range(x_first, x_end):
                dx = col - cx
                dy = row - cy
                if dx * dx + dy * dy <= radius * radius and np.isfinite(image[row, col]):
                    total += image[row, col]
                    inside += 1
        means[lens] = np.nan
        if inside > 0 and inside >= 0.5 * np.pi * radius * radius:
            means[lens] = total / inside


@in_parts(lambda centers: len(centers), least=16)
def measure_rings(begin, end, image, centers, step, totals, counts, radii):
    """Sum each micro image over rings of width `step` about its center.

    Fills `totals`, `counts` and `radii` (sums of pixel values, of pixels, and of their distances),
    each (n, n_rings).
    """
    height, width = image.shape
    n_rings = totals.shape[1]
    reach = n_rings * step
    for lens in range(begin, end):
        totals[lens] = 0.0
        counts[lens] = 0.0
        radii[lens] = 0.0
        cx = centers[lens, 0]
        cy = centers[lens, 1]
        x_first, x_end = pixels_within(cx, reach, width)
        y_first, y_end = pixels_within(cy, reach, height)
        for row in range(y_first, y_end):
            for col in range(x_first, x_end):
                value = image[row, col]
                if not np.isfinite(value):
                    continue
                distance = np.sqrt((col - cx) ** 2 + (row - cy) ** 2)
                place = distance / step
                if place < n_rings:
                    ring = int(place)
                    totals[lens, ring] += value
                    counts[lens, ring] += 1.0
                    radii[lens, ring] += distance


@in_parts(lambda out: len(out))
def sum_profiles(begin, end, table, types, profiles, step, out):
    """Fill `out` (rows, cols) with the light of all lenses: radial profiles about their centers.

    `table` is a `lifcal.camera._kernels.LensTable`. `profiles` (n_types, n) are sampled every
    `step` px from the center on, and end at zero.
    """
    centers, start, items = table.centers, table.start, table.items
    origin, shape, cell = table.origin, table.shape, table.cell
    cols = out.shape[1]
    n = profiles.shape[1]
    reach = (n - 1) * step
    for row in range(begin, end):
        j_first, j_last = cell_range(row, reach, origin[1], cell, shape[1])
        for col in range(cols):
            i_first, i_last = cell_range(col, reach, origin[0], cell, shape[0])
            total = 0.0
            for j in range(j_first, j_last + 1):
                for i in range(i_first, i_last + 1):
                    flat = j * shape[0] + i
                    for k in range(start[flat], start[flat + 1]):
                        lens = items[k]
                        dx = centers[lens, 0] - col
                        dy = centers[lens, 1] - row
                        place = np.sqrt(dx * dx + dy * dy) / step
                        if place < n - 1:
                            low = int(place)
                            part = place - low
                            kind = types[lens]
                            total += (1.0 - part) * profiles[kind, low]
                            total += part * profiles[kind, low + 1]
            out[row, col] = total
