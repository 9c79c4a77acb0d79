"""Comparison of a grid with the micro images of frames."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from lifcal.arrays import FloatArray, IntArray
from lifcal.camera.grid import Lattice, MicroLensGrid
from lifcal.errors import DataError, EstimationError
from lifcal.grid.fit import average_frames, refine_grid
from lifcal.grid.lattice_search import compute_calm
from lifcal.grid.overlap_fit import match_types, measure_fill
from lifcal.grid.plenoptic import check_plenoptic
from lifcal.imaging.frames import Frame, Frames

LARGE_MISFIT = 0.01
"""Misfit of the centers to the raws, in pitches, above which a finding reports it: 0.2 px at a
pitch of 20 px. Raws of the grid's own camera show 0.03 px; a center that is wrong by 0.2 px moves a
virtual point by up to 0.8 px."""
POOR_MISFIT = 0.05
"""Misfit of the centers to the raws, in pitches, above which a calibration is called poor."""
LARGE_FILL_RATIO = 1.15
"""Ratio of the brightness near the borders of micro images, raws over white image, above which a
finding reports it. For raws of the same aperture the ratio is 1 within 0.04; an aperture that is
wider by a tenth changes it by half."""
_PARTS = 3
"""Number of parts along each side of the image. The grid is compared with a frame in each part."""
_MIDDLES = np.array([[1.0, x, y] for y in (-1.0, 0.0, 1.0) for x in (-1.0, 0.0, 1.0)])
"""Design matrix of the fit of a shift and a stretch to nine parts of the image: a row (1, x, y) for
each part, where (x, y) is its middle, in units of a part, from the image's middle."""
_CORNERS = np.array([[1.0, x, y] for x in (-1.5, 1.5) for y in (-1.5, 1.5)])
"""Corners of the image, as rows (1, x, y) in the same units."""
_CLEAR = 8.0
"""Smallest height of the pattern's peak in the spectrum, relative to the level around it. The phase
of a lower peak is mostly noise."""
_TILE = 8.0
"""Side of a tile in pitches, small enough that a slightly wrong pitch does not matter within it."""
_BEND_TILE = 4.0
"""Side of a tile in pitches if the grid is bent. Across it, a bend of 3 % changes by an eighth of
the pitch, and the phase by less than a radian."""
_LEAST_MODULATION = 0.2
"""Smallest modulation of the brightness at the lattice's frequencies. Dark gaps between micro
images cause it; if it is smaller, the scene dominates the phase. With dark gaps it is 0.3 to 0.4,
and 0.22 if a gamma of 2.2 makes them brighter; real cameras whose micro images touch have 0.04 to
0.18."""
_MOST_SHIFT = 0.04
"""Largest shift of the grid, in pitches, that is corrected. Taking the lens off and putting it on
again causes less; a larger shift means that the grid belongs to another camera."""
_MOST_STRETCH = 0.04
"""Largest stretch of the grid at the corners, in pitches, that is corrected. A larger one means
that the grid has another pitch or angle."""
_FEWEST_PARTS = 6
"""Smallest number of parts with a clear pattern for which a stretch is fitted, which has three
unknowns along each axis. With fewer parts only a shift is fitted."""
_LEAST_MOVE, _LEAST_STRETCH = 0.003, 0.01
"""Smallest shift, and smallest stretch at the corners, for which a grid is moved, in pitches.
Smaller ones have no effect on depth."""
_LARGE_CHANGE, _OTHER_CAMERA = 0.004, 0.02
"""Shift or stretch between the grids of two recordings, in pitches, above which a finding reports
it, and above which the recordings cannot be calibrated as one camera. Recordings of a camera that
nobody touched differ by 0.001; focusing a lens from 1 m to 0.8 m stretches the grid of a Raytrix R5
by 0.006."""
_SURE_SIGMAS = 5.0
"""Smallest offset of a grid that is taken as real, in standard deviations of the fitted centers. A
smaller offset may be noise."""


def check_grid(frame: Frame, grid: MicroLensGrid) -> None:
    """Raise DataError if the micro images of a frame are not at the centers of the grid.

    Image size and pitch are checked as in `check_plenoptic`. The position is not checked if the
    grid is a list of centers, or if there is no dark gap between micro images.
    """
    check_plenoptic(frame, grid)
    if grid.lattice is None or measure_modulation(frame, grid.lattice) < _LEAST_MODULATION:
        return
    shifts = measure_grid_shifts(frame, grid)
    known = np.isfinite(shifts).all(axis=1)
    if not known.any():
        return
    size = float(np.median(np.hypot(*shifts[known].T)))
    if size > _MOST_SHIFT * grid.pitch_px:
        raise DataError(
            f"{frame.source}: the micro images are {size:.1f} px off the grid (pitch "
            f"{grid.pitch_px:.1f} px): recorded with another camera, or its lens or array moved"
        )
    stretch = _measure_stretch(_fit_move(shifts))
    if stretch > _MOST_STRETCH * grid.pitch_px:
        raise DataError(
            f"{frame.source}: toward the corners the micro images are up to {stretch:.1f} px off "
            f"the grid (pitch {grid.pitch_px:.1f} px): the grid has another pitch or angle"
        )


def check_lens_types(frame: Frame, grid: MicroLensGrid) -> None:
    """Raise DataError if the micro images of a frame look as if the lens types were exchanged.

    The check uses the fall-off of brightness inside micro images, which the overlap discs of the
    grid predict. Nothing else reveals a grid that is shifted by a whole lens.
    """
    found = match_types(frame.gray, grid)
    if found is None or found == tuple(range(grid.n_types)):
        return
    raise DataError(
        f"{frame.source}: lenses of type {_list(sorted(found))} by the grid look like type "
        f"{_list(found)}: the grid is off by a whole lens, or its types were exchanged"
    )


def compare_fill(white: Frame, frames: Iterable[Frame], grid: MicroLensGrid) -> float:
    """Return the ratio of brightness near the borders of micro images, frames to white image.

    Both are relative to the middle of micro images, and the median over the frames is taken. The
    ratio is 1 if all were recorded with the same aperture, and NaN if it is not known.
    """
    found = [measure_fill(frame.gray, grid) for frame in frames]
    of_white = measure_fill(white.gray, grid)
    return float(np.median(found)) / of_white if found and of_white > 0.0 else math.nan


def _list(types: Iterable[int]) -> str:
    return ", ".join(map(str, types))


@dataclass(frozen=True, eq=False)
class GridOffset:
    """Offset of the micro images of frames from a grid.

    Parameters
    ----------
    move_px : (3, 2) float64
        The shift in the middle of the image, and its change from there to the right and to the
        lower border.
    misfit_px : float
        Rms over the lenses of the offset that remains when this move is subtracted, without the
        contribution of noise. It shows a bend that the grid does not have. NaN for a single frame,
        from which it cannot be determined.
    sigma_px : float
        Standard deviation of the centers from the frames, rms over the lenses.
    """

    move_px: FloatArray
    misfit_px: float
    sigma_px: float

    @property
    def stretch_px(self) -> float:
        """Largest change of the shift from the middle to the corners."""
        corners = np.array([[1.0, 1.0], [1.0, -1.0]])
        return float(np.hypot(*(corners @ self.move_px[1:]).T).max())

    def minus(self, other: GridOffset) -> GridOffset:
        """Return the difference between this offset and another one."""
        return GridOffset(
            self.move_px - other.move_px, math.nan, math.hypot(self.sigma_px, other.sigma_px)
        )

    def tells_change(self, grid: MicroLensGrid) -> tuple[bool, bool]:
        """Tell whether the offset between two recordings is a change of the camera, and how large.

        Returns
        -------
        changed : bool
            Whether lens or array moved between the recordings.
        other : bool
            Whether they moved so far that the recordings cannot be calibrated as one camera.
        """
        size = max(float(np.hypot(*self.move_px[0])), self.stretch_px)
        noise = _SURE_SIGMAS * self.sigma_px
        return (
            size > max(_LARGE_CHANGE * grid.pitch_px, noise),
            size > max(_OTHER_CAMERA * grid.pitch_px, noise),
        )

    def is_far(self, grid: MicroLensGrid) -> bool:
        """Tell whether the offset is larger than remounting or refocusing a lens can cause."""
        shift = float(np.hypot(*self.move_px[0]))
        return (
            shift > _MOST_SHIFT * grid.pitch_px or self.stretch_px > _MOST_STRETCH * grid.pitch_px
        )


def measure_offset(frames: Frames | Sequence[Frame], grid: MicroLensGrid) -> GridOffset | None:
    """Fit centers to frames, starting from a grid, and return their offset from the grid.

    The centers are fitted to the outlines of micro images in the mean over the frames, as
    `refine_grid` does. If the fit is impossible, the result is None.
    """
    if grid.lattice is None or grid.indices_qr is None or len(frames) == 0:
        return None
    try:
        fit = refine_grid(grid, average_frames(frames))
    except EstimationError:
        return None
    found = fit.grid
    assert found.lattice is not None
    places = grid.lattice.centers(grid.indices_qr)
    smooth = places if grid.bend is None else places + grid.bend.at(places)
    other = found.lattice.centers(grid.indices_qr)
    off = (other if found.bend is None else other + found.bend.at(other)) - smooth
    half = 0.5 * np.array(grid.image_size)
    design = np.column_stack([np.ones(len(places)), (places + 0.5) / half - 1.0])
    move: FloatArray = np.asarray(np.linalg.lstsq(design, off, rcond=None)[0], np.float64)
    square = float(np.mean(np.sum((off - design @ move) ** 2, axis=1)))
    left = math.sqrt(max(square - fit.sigma_px**2, 0.0))
    if len(frames) == 1:
        move[1:], left = 0.0, math.nan
    return GridOffset(move, left, fit.sigma_px)


def follow_grid(frames: Frames | Sequence[Frame], grid: MicroLensGrid) -> MicroLensGrid:
    """Return the grid shifted, rotated and stretched to fit the micro images of the frames.

    The grid itself is returned if the frames do not determine an offset, or if `move_grid` does not
    move it.
    """
    offset = measure_offset(frames, grid)
    return grid if offset is None else move_grid(grid, offset)


def move_grid(grid: MicroLensGrid, offset: GridOffset) -> MicroLensGrid:
    """Return the grid shifted, rotated and stretched by an offset.

    The grid itself is returned if the offset is within its noise, or so large that the frames
    belong to another grid.
    """
    lattice = grid.lattice
    if lattice is None or offset.is_far(grid):
        return grid
    move = offset.move_px.copy()
    noise = _SURE_SIGMAS * offset.sigma_px
    if offset.stretch_px < max(_LEAST_STRETCH * grid.pitch_px, noise):
        move[1:] = 0.0
        if np.hypot(*move[0]) < max(_LEAST_MOVE * grid.pitch_px, noise):
            return grid
    half = 0.5 * np.array(grid.image_size)
    moved = replace(
        lattice,
        origin_px=lattice.origin_px + move[0] + ((lattice.origin_px + 0.5) / half - 1.0) @ move[1:],
        basis_px=lattice.basis_px + lattice.basis_px / half @ move[1:],
    )
    return grid.on_lattice(moved, grid.bend)


def _fit_move(shifts: FloatArray) -> FloatArray:
    """Fit a shift and its change from part to part along x and y, (3, 2), to (9, 2) shifts.

    If too few parts are known, the change is 0.
    """
    known = np.isfinite(shifts).all(axis=1)
    design = _MIDDLES[known]
    if known.sum() >= _FEWEST_PARTS and np.linalg.matrix_rank(design) == 3:
        return np.asarray(np.linalg.lstsq(design, shifts[known], rcond=None)[0])
    return np.vstack([np.median(shifts[known], axis=0), np.zeros((2, 2))])


def _measure_stretch(move: FloatArray) -> float:
    """Return the largest change of the shift from the middle to the corners."""
    return float(np.hypot(*(_CORNERS[:, 1:] @ move[1:]).T).max())


def measure_modulation(frame: Frame, lattice: Lattice) -> float:
    """Return the amplitude of the brightness at the lattice's frequencies, divided by its mean.

    In each part of the image, the smaller of the amplitudes at the two frequencies is used. The
    result is the median over the parts.
    """
    side = math.ceil(_TILE * lattice.pitch_px)
    found = []
    for ys, xs in _cut_parts(frame.gray.shape):
        ys, xs = (
            places[(len(places) - side) // 2 :][:side] if len(places) > side else places
            for places in (ys, xs)
        )
        tile = frame.gray[ys[0] : ys[-1] + 1, xs[0] : xs[-1] + 1]
        across_y, across_x = np.hanning(len(ys)), np.hanning(len(xs))
        mean = float(across_y @ tile @ across_x)
        sizes = [
            abs((_wave(fy * ys) * across_y) @ tile @ (_wave(fx * xs) * across_x))
            for fx, fy in np.linalg.inv(lattice.basis_px).T
        ]
        found.append(2.0 * float(min(sizes)) / max(mean, 1e-9))
    return float(np.median(found))


def _cut_parts(shape: tuple[int, ...]) -> list[tuple[IntArray, IntArray]]:
    """Return the row and column indices of nine parts of an image."""
    rows, cols = (np.array_split(np.arange(length), _PARTS) for length in shape[:2])
    return [(ys, xs) for ys in rows for xs in cols]


def _wave(turns: FloatArray) -> npt.NDArray[np.complex64]:
    return np.asarray(np.exp(-2j * np.pi * turns), np.complex64)


def measure_grid_shifts(frame: Frame, grid: MicroLensGrid) -> FloatArray:
    """Return the shift of micro images from the grid in nine parts of the image, (9, 2) in px.

    The shift is computed from the phase of a smoothness map (`compute_calm`) at the lattice's two
    frequencies. This map is bright inside micro images and dark at their borders. The brightness of
    the frame itself is not used, because shading across a micro image would shift its phase, by
    half a pixel where gaps are narrow. Shifts are modulo the lattice, and NaN where the pattern is
    weak.
    """
    shifts = np.full((_PARTS**2, 2), np.nan)
    if grid.lattice is None:
        return shifts
    lattice = grid.lattice
    side = math.ceil(_BEND_TILE * lattice.pitch_px)
    calm = compute_calm(frame.gray)
    for part, (ys, xs) in enumerate(_cut_parts(calm.shape)):
        crop = calm[ys[0] : ys[-1] + 1, xs[0] : xs[-1] + 1]
        weight_y, weight_x = (np.hanning(len(ys) + 2)[1:-1], np.hanning(len(xs) + 2)[1:-1])
        pattern = (crop - crop.mean()) * np.outer(weight_y, weight_x).astype(np.float32)
        tiles = [
            (cut_y, cut_x, _bend_at(grid, xs, weight_x, cut_x, ys, weight_y, cut_y))
            for cut_y, cut_x in itertools.product(_cut(len(ys), side), _cut(len(xs), side))
        ]
        places = np.zeros(2)
        for axis, frequency in enumerate(np.linalg.inv(lattice.basis_px).T):
            # The amplitude at the frequency is compared with that at eight others, a few bins away.
            off = np.array([0.0, -4.0, 4.0])
            values = np.zeros((3, 3), np.complex128)
            for cut_y, cut_x, bend in tiles:
                at_y = _wave(np.outer(frequency[1] + off / len(ys), ys[cut_y]))
                at_x = _wave(np.outer(xs[cut_x], frequency[0] + off / len(xs)))
                found = at_y @ pattern[cut_y, cut_x] @ at_x
                values += found * np.exp(2j * np.pi * frequency @ bend)
            around = np.median(np.abs(values).ravel()[1:])
            if not np.abs(values[0, 0]) > _CLEAR * around:
                places[axis] = np.nan
                continue
            phase = np.angle(values[0, 0]) + 2.0 * np.pi * frequency @ lattice.origin_px
            places[axis] = -np.angle(np.exp(1j * phase)) / (2.0 * np.pi)
        shifts[part] = places @ lattice.basis_px
    return shifts


def _cut(length: int, side: int) -> list[slice]:
    """Return slices of about `side` indices each that together cover `length`."""
    ends = np.linspace(0, length, max(1, round(length / side)) + 1).astype(int).tolist()
    return list(itertools.starmap(slice, itertools.pairwise(ends)))


def _bend_at(
    grid: MicroLensGrid,
    xs: IntArray,
    weight_x: FloatArray,
    cut_x: slice,
    ys: IntArray,
    weight_y: FloatArray,
    cut_y: slice,
) -> FloatArray:
    """Return the bend at the weighted middle of a tile, (2,)."""
    if grid.bend is None:
        return np.zeros(2)
    middle = [
        np.average(places[cut], weights=weights[cut])
        for places, weights, cut in ((xs, weight_x, cut_x), (ys, weight_y, cut_y))
    ]
    place = np.array([middle])
    # The bend is a function of the position in the lattice, that is, before the bend is added.
    # Subtracting the bend once gives that position accurately enough.
    found: FloatArray = grid.bend.at(place - grid.bend.at(place))[0]
    return found
