"""Positions of micro images, from a comparison of each with the mean micro image.

Their outlines determine the position. The shading across a micro image (cos^4, the fall-off of the
main lens) is fitted together with the position, so that it does not bias the center. See
docs/theory/grid.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from lifcal.arrays import BoolArray, Float32Array, FloatArray, IntArray
from lifcal.camera.grid import Lattice, MicroLensGrid
from lifcal.grid import _kernels
from lifcal.grid.lattice_search import (
    CellIndex,
    fold,
    make_cells,
    measure_brightness,
    smooth_over_lenses,
)

OWN_WINDOW = 0.6
"""Radius of the window around a micro image, in pitches; pixels nearer to another center are left
out. The window must contain the gap all around the micro image; hexagonal cells reach to 0.58."""
_WIDE_WINDOW = 0.78
"""Radius of the window while centers are not known well, in pitches. It includes parts of the
neighbors, so that a displaced micro image is still inside."""
_DARK_RIM = 0.05
"""Lenses darker than this fraction of the bright ones are in the dark corners of the image."""
_DEAD_GAIN = 0.25
"""Lenses darker than this fraction of their neighbors are dead; their position is not measured."""
_FEWEST_OF_TYPE = 5
"""Smallest number of lenses of a type whose mean is used for comparison."""


@dataclass(frozen=True, eq=False)
class LensMatch:
    """Comparison of each lens of a grid with the mean micro image.

    Parameters
    ----------
    cells : CellIndex
        The lenses of the grid, in its order, and the centers relative to which shifts are given.
    shifts : (n_lenses, 2) float64
        Shifts from these centers to the micro images, px; NaN where not measured.
    sigmas : (n_lenses,) float64
        Standard deviation of the shifts along an axis, assuming that the noise of pixels is
        independent.
    slopes : (n_lenses, 2) float64
        Relative change of brightness across the micro image, 1/px.
    relative_gains : (n_lenses,) float64
        Brightness relative to the lenses around.
    errors : (n_lenses,) float64
        Rms difference from the mean micro image, relative to the brightness.
    inside : (n_lenses,) bool
        Whether the micro image is whole and not in a dark corner.
    """

    cells: CellIndex
    shifts: FloatArray
    sigmas: FloatArray
    slopes: FloatArray
    relative_gains: FloatArray
    errors: FloatArray
    inside: BoolArray

    @property
    def centers_px(self) -> FloatArray:
        """The measured centers, (n_lenses, 2)."""
        return self.cells.centers + self.shifts

    @property
    def dead(self) -> BoolArray:
        """Whether a micro image is complete, but dark although its neighbors are not."""
        return self.inside & ~(self.relative_gains > _DEAD_GAIN)

    @property
    def good(self) -> BoolArray:
        """Lenses whose measurement is good enough for the fit."""
        good: BoolArray = np.isfinite(self.shifts).all(axis=1) & (self.relative_gains > _DEAD_GAIN)
        if good.sum() >= 8:
            log = np.log(np.maximum(self.errors[good], 1e-9))
            center = np.median(log)
            spread = max(1.4826 * float(np.median(np.abs(log - center))), 0.1)
            good &= self.errors < np.exp(center + 4.0 * spread)
        return good


def match_lenses(
    image: Float32Array, grid: MicroLensGrid, reach_px: float, at_most: int | None = None
) -> LensMatch:
    """Compare micro images, up to a distance from the middle of the image, with their mean.

    Parameters
    ----------
    image : (height, width) float32
    grid : MicroLensGrid
        A grid with a lattice; the micro images are searched for at its centers.
    reach_px : float
        Largest distance of a lens from the middle of the image.
    at_most : int or None
        Number of lenses to measure. They are chosen at random and measured with a wide window, for
        centers that are not known well. If None, all lenses are measured, each by its own pixels
        alone.
    """
    assert grid.lattice is not None
    assert grid.indices_qr is not None
    height, width = image.shape
    pitch = grid.pitch_px
    middle = np.array([(width - 1) / 2.0, (height - 1) / 2.0])
    cells = make_cells(grid.indices_qr, grid.centers_raw_px)
    _, level = measure_brightness(image, cells, 0.6 * pitch)
    dark = level < _DARK_RIM * np.nanpercentile(level, 95.0)
    box = (
        max(0, math.floor(middle[0] - reach_px)),
        max(0, math.floor(middle[1] - reach_px)),
        min(width, math.ceil(middle[0] + reach_px) + 1),
        min(height, math.ceil(middle[1] + reach_px) + 1),
    )
    folded = _fold(image, grid.lattice, cells, np.where(dark, np.nan, level), box)
    # Find the center of symmetry of the mean cell, near the center that the grid gives.
    parts, table = _smooth_table(folded, grid.lattice, symmetric=True)
    cells = cells._replace(centers=cells.centers + parts @ grid.lattice.basis_px)
    near = (np.abs(cells.centers - middle) <= reach_px).all(axis=1)
    margin = 0.55 * pitch
    inside = (
        (cells.centers >= margin - 0.5)
        & (cells.centers <= np.array([width, height]) - 0.5 - margin)
    ).all(axis=1) & ~dark
    chosen = near & inside
    if at_most is not None and chosen.sum() > at_most:
        # Choose the same lenses every time, evenly spread over the image and over the types.
        order = np.flatnonzero(chosen)
        chosen = np.zeros(len(chosen), np.bool_)
        chosen[np.random.default_rng(0).choice(order, at_most, replace=False)] = True
    centers = np.where(chosen[:, None], cells.centers, np.nan)
    basis = grid.lattice.basis_px
    shifts, sigmas, gains, slopes, errors = _match(
        image, centers, basis, basis, table, own=at_most is None
    )
    relative = gains / np.maximum(smooth_over_lenses(cells, gains), 1e-12)
    return LensMatch(cells, shifts, sigmas, slopes, relative, errors, inside)


def match_by_type(
    image: Float32Array, match: LensMatch, lattice: Lattice, used: BoolArray
) -> LensMatch:
    """Compare each lens with the mean micro image of its type, including parts of its neighbors.

    This gives positions of the lenses of a type relative to each other. They are shifted so that
    their mean over all lenses is that of `match`, whose mean micro image is symmetric.

    Parameters
    ----------
    image : (height, width) float32
    match : LensMatch
        Match of a grid on this lattice.
    lattice : Lattice
        The lattice with its lens types.
    used : (n_lenses,) bool
        Lenses over which the mean micro images are computed.
    """
    height, width = image.shape
    cells = match.cells
    types, steps = lattice.types(cells.indices), _type_steps(lattice)
    shifts, sigmas = np.full_like(match.shifts, np.nan), np.full_like(match.sigmas, np.nan)
    slopes, errors = np.full_like(match.slopes, np.nan), np.full_like(match.errors, np.nan)
    offset = np.mean(match.shifts[used], axis=0)
    for kind in range(lattice.n_types):
        of_kind = types == kind
        own = np.flatnonzero(used & of_kind)
        if len(own) < _FEWEST_OF_TYPE:
            continue
        first = cells.indices[own[0]]
        coarse = Lattice(lattice.centers(first[None])[0], steps @ lattice.basis_px)
        indices = np.rint((cells.indices[own] - first) @ np.linalg.inv(steps)).astype(np.int64)
        chosen = make_cells(indices, cells.centers[own])
        _, level = measure_brightness(image, chosen, lattice.pitch_px)
        folded = _fold(image, coarse, chosen, level, (0, 0, width, height))
        _, table = _smooth_table(folded, coarse, symmetric=False)
        measured = of_kind & np.isfinite(match.shifts).all(axis=1)
        found, sigmas[measured], _, slopes[measured], errors[measured] = _match(
            image,
            np.ascontiguousarray(cells.centers[measured]),
            lattice.basis_px,
            coarse.basis_px,
            table,
            own=True,
        )
        shifts[measured] = found
        shifts[measured] += offset - np.mean(shifts[own], axis=0)
    return replace(match, shifts=shifts, sigmas=sigmas, slopes=slopes, errors=errors)


def _match(
    image: Float32Array,
    centers: FloatArray,
    basis_px: FloatArray,
    period_px: FloatArray,
    table: FloatArray,
    *,
    own: bool,
) -> _kernels.Matches:
    """Match the micro images around centers (n, 2) with a mean cell; see `_kernels.match_cells`."""
    radius = (OWN_WINDOW if own else _WIDE_WINDOW) * Lattice(np.zeros(2), basis_px).pitch_px
    found = _kernels.Matches.empty(len(centers))
    cell = _kernels.MeanCell(basis_px, period_px, table)
    _kernels.match_cells(image, centers, cell, radius, own, found)
    return found


def _fold(
    image: Float32Array,
    lattice: Lattice,
    cells: CellIndex,
    level: FloatArray,
    box: tuple[int, int, int, int],
) -> FloatArray:
    """Return the mean cell in bins of about half a pixel."""
    size = 2 * int(np.clip(round(1.2 * lattice.pitch_px), 12, 64))
    return fold(image, lattice, cells, level, box, size)


def _smooth_table(
    table: FloatArray, lattice: Lattice, *, symmetric: bool
) -> tuple[FloatArray, FloatArray]:
    """Return a smoothed mean cell and its derivatives as a periodic table (size, size, 3).

    Frequencies above those of the pixels are left out. If `symmetric`, the cell is made symmetric
    about its center of symmetry. This center, in lattice units, is the first return value; it is
    zero otherwise.
    """
    size = len(table)
    transform = np.fft.fft2(table - table.mean())
    inverse = np.linalg.inv(lattice.basis_px)
    order = np.fft.fftfreq(size, 1.0 / size)
    r, q = np.meshgrid(order, order, indexing="ij")
    f_x = q * inverse[0, 0] + r * inverse[0, 1]
    f_y = q * inverse[1, 0] + r * inverse[1, 1]
    # Above the sampling frequency of the pixels there is only noise.
    keep = (np.hypot(f_x, f_y) < 0.6) & (np.abs(q) < size / 2) & (np.abs(r) < size / 2)
    transform = np.where(keep, transform, 0.0)
    fine = 2 * size
    picks = np.r_[0 : size // 2, -(size // 2) : 0]
    parts = np.zeros(2)
    if symmetric:
        parts = _symmetry_center(transform, picks, 4 * size)
        turned = transform * np.exp(2j * np.pi * (q * parts[0] + r * parts[1]))
        transform = turned.real.astype(complex)  # the symmetric part
    transform[0, 0] = table.mean() * size * size
    out = np.empty((fine, fine, 3))
    for channel, factor in enumerate((1.0, 2j * np.pi * f_x, 2j * np.pi * f_y)):
        padded = np.zeros((fine, fine), complex)
        padded[np.ix_(picks, picks)] = (transform * factor)[np.ix_(picks, picks)]
        out[:, :, channel] = np.fft.ifft2(padded).real * 4.0
    return parts, out


def _symmetry_center(
    transform: npt.NDArray[np.complex128], picks: IntArray, size: int
) -> FloatArray:
    """Return the center of symmetry of a periodic table, in periods, within 0.2 of zero.

    A table that is symmetric about `s` correlates with its mirror image at a shift of 2 s.
    """
    padded = np.zeros((size, size), complex)
    padded[np.ix_(picks, picks)] = transform[np.ix_(picks, picks)] ** 2
    likeness = np.fft.ifft2(padded).real
    reach = int(0.4 * size)
    near = np.roll(likeness, (reach, reach), axis=(0, 1))[: 2 * reach + 1, : 2 * reach + 1]
    row, col = np.unravel_index(int(np.argmax(near)), near.shape)
    place = np.array([float(col), float(row)])
    if 0 < row < 2 * reach and 0 < col < 2 * reach:
        for axis, line in enumerate((near[row, col - 1 : col + 2], near[row - 1 : row + 2, col])):
            curvature = line[0] - 2.0 * line[1] + line[2]
            if curvature < 0.0:
                place[axis] += 0.5 * (line[0] - line[2]) / curvature
    found: FloatArray = (place - reach) / size / 2.0
    return found


def _type_steps(lattice: Lattice) -> IntArray:
    """Return two short steps (q, r), one per row, that lead from a lens to others of its type."""
    i, j, _ = lattice.type_rule
    steps = [
        (q, r)
        for q in range(-3, 4)
        for r in range(-3, 4)
        if (q, r) != (0, 0) and (i * q + j * r) % lattice.n_types == 0
    ]
    steps.sort(key=lambda step: float(np.hypot(*(np.array(step) @ lattice.basis_px))))
    first = steps[0]
    for second in steps[1:]:
        if abs(first[0] * second[1] - first[1] * second[0]) == lattice.n_types:
            return np.array([first, second])
    raise AssertionError(f"no steps for the rule {lattice.type_rule}")
