"""Compiled loops over pixels and micro images that fit the grid."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from lifcal.arrays import FloatArray
from lifcal.camera._kernels import cell_range
from lifcal.geometry._kernels import pixels_within
from lifcal.threads import in_parts

_FAR_CELL = 1e9
"""Largest cell number that is converted to an integer. No image has so many cells, and a larger
number (or NaN) has no defined conversion."""
_LEAST_INSIDE = 0.8
"""Smallest fraction of the pixels of a window that must be inside the image for a match."""
_LEAST_PIVOT = 1e-14
"""Smallest pivot of a system that counts as solvable; the entries of the matrix are of the order of
the number of pixels."""

CELL_VALUE, CELL_BY_X, CELL_BY_Y = 0, 1, 2
"""Layers of the table of a mean cell: its brightness, and the derivatives of this with respect to x
and y in px."""

_GAIN, _SHADE_X, _SHADE_Y, _SHIFT_X, _SHIFT_Y, _GROWTH = 0, 1, 2, 3, 4, 5
_UNKNOWNS = 5
"""Number of unknowns of a match without growth: the gain, and the gain times the shading and times
the shift along both axes."""
_LEAST_SHADE = 0.2
"""Smallest value of 1 - slope . m / 2. The limit keeps the shading finite where a measured slope is
only noise."""


class LatticeCells(NamedTuple):
    """The cells of a lattice over which an image is averaged.

    Parameters
    ----------
    origin : (2,) float64
        Center of lens (0, 0), px.
    inverse : (2, 2) float64
        Matrix that converts (x, y) - origin to lattice units (q, r).
    q_first, r_first : int
        Lattice coordinates of the first column and row of the tables.
    offsets : (rows r, columns q, 2) float64
        Offset of each center from its place in the lattice, px.
    brightness : (rows r, columns q) float64
        Level by which the pixels of each cell are divided.
    """

    origin: FloatArray
    inverse: FloatArray
    q_first: int
    r_first: int
    offsets: FloatArray
    brightness: FloatArray


class Box(NamedTuple):
    """A rectangle of pixels; the end row and the end column are not part of it."""

    x_first: int
    y_first: int
    x_end: int
    y_end: int


class MeanCell(NamedTuple):
    """The mean micro image, with which single micro images are compared.

    Parameters
    ----------
    basis : (2, 2) float64
        Lattice vectors, px.
    period : (2, 2) float64
        Vectors that span the cell of the table, px.
    table : (size, size, 3) float64
        Layers `CELL_VALUE`, `CELL_BY_X` and `CELL_BY_Y`.
    """

    basis: FloatArray
    period: FloatArray
    table: FloatArray


class Matches(NamedTuple):
    """Results of `match_cells` for n micro images; NaN where too few pixels are in the image.

    Parameters
    ----------
    shifts : (n, 2) float64
        Distance from the expected center, px.
    sigmas : (n,) float64
        Standard deviation of a shift along an axis, assuming that the noise of pixels is
        independent.
    gains : (n,) float64
        Brightness relative to the mean cell.
    slopes : (n, 2) float64
        Relative change of brightness across the micro image, 1/px.
    errors : (n,) float64
        Rms of the residuals relative to the gain.
    """

    shifts: FloatArray
    sigmas: FloatArray
    gains: FloatArray
    slopes: FloatArray
    errors: FloatArray

    @classmethod
    def empty(cls, n: int) -> Matches:
        """Return arrays for n micro images, with arbitrary content."""
        return cls(np.empty((n, 2)), np.empty(n), np.empty(n), np.empty((n, 2)), np.empty(n))


@in_parts(lambda totals: len(totals))
def fold_cell(begin, end, image, cells, box, size, totals, counts):
    """Average an image over the cells of a grid: sum pixels that have the same place in their cell.

    `cells` is a `LatticeCells`; a cell whose offset or brightness is NaN, or whose brightness is
    zero, is left out. `box` is the `Box` of pixels to use. `totals` and `counts` (chunks, size,
    size) get the sums and numbers of pixels by the fractional parts of r and q, in bins centered on
    multiples of 1 / size. The chunks are bands of rows, so that threads do not share sums.
    """
    origin, inverse = cells.origin, cells.inverse
    q_first, r_first = cells.q_first, cells.r_first
    offsets, brightness = cells.offsets, cells.brightness
    chunks = totals.shape[0]
    height = box.y_end - box.y_first
    for chunk in range(begin, end):
        totals[chunk] = 0.0
        counts[chunk] = 0.0
        first = box.y_first + height * chunk // chunks
        last = box.y_first + height * (chunk + 1) // chunks
        for row in range(first, last):
            y = row - origin[1]
            for col in range(box.x_first, box.x_end):
                x = col - origin[0]
                q = x * inverse[0, 0] + y * inverse[1, 0]
                r = x * inverse[0, 1] + y * inverse[1, 1]
                i = np.floor(r + 0.5) - r_first
                j = np.floor(q + 0.5) - q_first
                if not (abs(i) < _FAR_CELL and abs(j) < _FAR_CELL):
                    continue
                # Subtract the offset of the nominal cell to find the cell in which the pixel really
                # is. Neighboring cells have similar offsets, so this is accurate enough.
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
    """Solve a small linear system in place by Gaussian elimination; return whether it succeeded."""
    for i in range(n):
        pivot = i
        for k in range(i + 1, n):
            if abs(matrix[k, i]) > abs(matrix[pivot, i]):
                pivot = k
        if abs(matrix[pivot, i]) < _LEAST_PIVOT:
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


@njit(cache=True)
def fit_cell(image, center, cell, inverses, radius, own, shading, n, solution):
    """Fit the mean cell to one micro image, under a shading with a given slope.

    `center` and `shading` are (x, y), in px and 1/px. `inverses` holds the inverse of `cell.basis`
    and that of `cell.period`. `n` is `_UNKNOWNS`, or one more if the size of the micro image is
    fitted too; `match_cells` explains the terms. The function fills `solution` (6,): gain, gain
    times the slope in addition to the given one (two numbers), gain times the shift (two numbers),
    gain times the growth. Lengths are in units of the radius.

    It returns the number of pixels used, the rms of the residuals, and the standard deviation of
    the shift in px, for pixels with unit noise and for unit gain. The number is 0 if there is no
    solution.
    """
    height, width = image.shape
    cx, cy = center
    slope_x, slope_y = shading
    basis, table = cell.basis, cell.table
    inverse, of_table = inverses
    # Coordinates in the window are divided by the radius, so that the equations are well scaled.
    per_square = 1.0 / (radius * radius)
    per_radius = 1.0 / radius
    size = table.shape[0]
    matrix = np.zeros((n, n))
    vector = np.zeros(n)
    model = np.empty(_UNKNOWNS + 1)
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
            # The table is periodic: find the entries around this pixel.
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
                w_00 * table[v_low, u_low, CELL_VALUE]
                + w_01 * table[v_low, u_high, CELL_VALUE]
                + w_10 * table[v_high, u_low, CELL_VALUE]
                + w_11 * table[v_high, u_high, CELL_VALUE]
            )
            by_x = (
                w_00 * table[v_low, u_low, CELL_BY_X]
                + w_01 * table[v_low, u_high, CELL_BY_X]
                + w_10 * table[v_high, u_low, CELL_BY_X]
                + w_11 * table[v_high, u_high, CELL_BY_X]
            )
            by_y = (
                w_00 * table[v_low, u_low, CELL_BY_Y]
                + w_01 * table[v_low, u_high, CELL_BY_Y]
                + w_10 * table[v_high, u_low, CELL_BY_Y]
                + w_11 * table[v_high, u_high, CELL_BY_Y]
            )
            # Find the offset from the nearest of the four centers around the pixel.
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
            root = max(1.0 - 0.5 * (slope_x * from_x + slope_y * from_y), _LEAST_SHADE)
            shade = 1.0 / (root * root)
            model[_GAIN] = shade * mean
            model[_SHADE_X] = model[_GAIN] * from_x * per_radius
            model[_SHADE_Y] = model[_GAIN] * from_y * per_radius
            model[_SHIFT_X] = -shade * by_x * radius
            model[_SHIFT_Y] = -shade * by_y * radius
            model[_GROWTH] = (model[_SHIFT_X] * from_x + model[_SHIFT_Y] * from_y) * per_radius
            for i in range(n):
                for j in range(i, n):
                    matrix[i, j] += weight * model[i] * model[j]
                vector[i] += weight * model[i] * value
            squares += weight * value * value
            total += weight
            inside += 1
    for i in range(n):
        for j in range(i):
            matrix[i, j] = matrix[j, i]
    right = vector.copy()
    # Rows of the inverse matrix that belong to the shift.
    by_shift = np.zeros((2, n))
    by_shift[0, _SHIFT_X] = 1.0
    by_shift[1, _SHIFT_Y] = 1.0
    solved = _solve(matrix.copy(), vector, n)
    solved = solved and _solve(matrix.copy(), by_shift[0], n)
    solved = solved and _solve(matrix, by_shift[1], n)
    if not solved:
        return 0, np.nan, np.nan
    left = squares
    for i in range(n):
        left -= vector[i] * right[i]
        solution[i] = vector[i]
    spread = max(0.5 * (by_shift[0, _SHIFT_X] + by_shift[1, _SHIFT_Y]), 0.0)
    return inside, np.sqrt(max(left, 0.0) / total), radius * np.sqrt(spread)


@in_parts(lambda centers: len(centers), least=16)
def match_cells(begin, end, image, centers, cell, radius, own, out):
    """Measure how far each micro image is from its expected center.

    Around each center, `gain (T (1 + slope . m) - shift . grad T)` is fitted to the image by linear
    least squares. T is the mean cell (`cell` is a `MeanCell`). The offset m is measured from the
    nearest center, so each micro image has its own shading. The window has the given radius and a
    soft edge; if `own`, pixels that are nearer to another center are left out. `out` is a
    `Matches`.

    If `own`, a second fit starts from the slope of the first. It multiplies all terms by the
    shading `(1 - slope . m / 2)^-2`, which is the form of cos^4, and adds a term for the size of
    the micro image, `-growth m . grad T`. Micro images behind a tilted array differ in size, and a
    larger outline under a shading looks like a shifted one: without these terms the shift is
    biased.
    """
    basis = cell.basis
    shifts, sigmas, gains = out.shifts, out.sigmas, out.gains
    slopes, errors = out.slopes, out.errors
    full = np.pi * radius * radius
    if own:
        full = min(full, abs(basis[0, 0] * basis[1, 1] - basis[0, 1] * basis[1, 0]))
    inverses = (np.linalg.inv(basis), np.linalg.inv(cell.period))
    solution = np.empty(_UNKNOWNS + 1)
    for lens in range(begin, end):
        shifts[lens] = np.nan
        slopes[lens] = np.nan
        sigmas[lens] = np.nan
        gains[lens] = np.nan
        errors[lens] = np.nan
        shading = (0.0, 0.0)
        for unknowns in range(_UNKNOWNS, _UNKNOWNS + 2 if own else _UNKNOWNS + 1):
            inside, left, spread = fit_cell(
                image,
                (centers[lens, 0], centers[lens, 1]),
                cell,
                inverses,
                radius,
                own,
                shading,
                unknowns,
                solution,
            )
            if inside < _LEAST_INSIDE * full:
                break
            gain = solution[_GAIN]
            gains[lens] = gain
            if not gain > 1e-12:
                break
            shading = (
                shading[0] + solution[_SHADE_X] / (radius * gain),
                shading[1] + solution[_SHADE_Y] / (radius * gain),
            )
            shifts[lens, 0] = solution[_SHIFT_X] * radius / gain
            shifts[lens, 1] = solution[_SHIFT_Y] * radius / gain
            slopes[lens, 0] = shading[0]
            slopes[lens, 1] = shading[1]
            errors[lens] = left / gain
            sigmas[lens] = errors[lens] * spread


@in_parts(lambda centers: len(centers), least=16)
def measure_discs(begin, end, image, centers, radius, means):
    """Fill `means` (n,) with the mean over a disc around each center.

    The mean is NaN where less than half of the disc is in the image.
    """
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

    `totals`, `counts` and `radii`, (n, n_rings) each, get the sum of the pixel values, the number
    of pixels, and the sum of their distances from the center.
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
    """Fill `out` (rows, cols) with the sum of the light of all lenses, given by radial profiles.

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
