"""Whether a grid is where the micro images of a frame are."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from lifcal.arrays import FloatArray, IntArray
from lifcal.camera.grid import Lattice, MicroLensGrid
from lifcal.errors import DataError
from lifcal.imaging.frames import Frame, check_plenoptic
from lifcal.imaging.overlap_fit import match_types

_PARTS = 3
_MIDDLES = np.array([[1.0, x, y] for y in (-1.0, 0.0, 1.0) for x in (-1.0, 0.0, 1.0)])
_CORNERS = np.array([[1.0, x, y] for x in (-1.5, 1.5) for y in (-1.5, 1.5)])
"""Of the parts, and of the image: one, and x and y in parts from the image's middle."""
_CLEAR = 8.0
"""Of the pattern over what is around it in the spectrum: below, its phase says little."""
_TILE = 8.0
"""In pitches: so small that a wrong pitch does not matter in it."""
_LEAST_MODULATION = 0.25
"""Of the brightness at the lattice's frequencies, by what is dark between micro images: below, what
the scene shows decides the phase. Without anything dark between them it is 0.1, else 0.4."""
_MOST_SHIFT = 0.04
"""In pitches. A lens that was taken off and put on again moves by less."""
_MOST_STRETCH = 0.04
"""In pitches, at the corners: of a grid of another pitch, or turned."""
_FEWEST_PARTS = 6
_LEAST_MOVE = 0.003
"""In pitches: less costs nothing."""
_SHIFT_SIGMAS, _STRETCH_SIGMAS = 2.0, 5.0
"""Of a part's shift: four standard deviations of a shift and of a stretch at the corners."""


def check_grid(frame: Frame, grid: MicroLensGrid) -> None:
    """Raise DataError if a frame does not show micro images where the grid has them.

    Size and pitch are those of `check_plenoptic`. The place is not asked where the grid is a list
    of centers or nothing dark is between micro images.
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
            f"{frame.source}: toward the corners the micro images come to be {stretch:.1f} px off "
            f"the grid (pitch {grid.pitch_px:.1f} px): its pitch or angle is not theirs"
        )


def check_lens_types(frame: Frame, grid: MicroLensGrid) -> None:
    """Raise DataError if the lenses of a frame look like those of other types than the grid says.

    By the fall-off of brightness inside micro images, which the overlap discs of the grid predict.
    A grid that is off by a whole lens shows in nothing else.
    """
    found = match_types(frame.gray, grid)
    if found is None or found == tuple(range(grid.n_types)):
        return
    raise DataError(
        f"{frame.source}: lenses of type {_list(sorted(found))} by the grid look like type "
        f"{_list(found)}: the grid is off by a whole lens, or its types were exchanged"
    )


def _list(types: Iterable[int]) -> str:
    return ", ".join(map(str, types))


def follow_grid(frames: Iterable[Frame], grid: MicroLensGrid) -> MicroLensGrid:
    """Return the grid moved, turned and stretched to where frames show their micro images.

    The grid itself if it is there already, or the frames do not tell: nothing dark is between
    micro images.
    """
    lattice = grid.lattice
    if lattice is None:
        return grid
    found = [
        measure_grid_shifts(frame, grid)
        for frame in frames
        if measure_modulation(frame, lattice) >= _LEAST_MODULATION
    ]
    parts = np.stack(found, axis=1) if found else np.empty((0, 0, 2))
    known = [part[np.isfinite(part).all(axis=1)] for part in parts]
    if not known or min(map(len, known)) == 0:
        return grid
    shifts = np.array([np.median(part, axis=0) for part in known])
    move = _fit_move(shifts)
    noise = math.sqrt(((shifts - _MIDDLES @ move) ** 2).sum() / (shifts.size - move.size))
    least = _LEAST_MOVE * grid.pitch_px
    if _measure_stretch(move) < max(least, _STRETCH_SIGMAS * noise):
        move[1:] = 0.0
        if np.hypot(*move[0]) < max(least, _SHIFT_SIGMAS * noise):
            return grid
    size = np.array(grid.image_size)
    of_parts = (lattice.origin_px - 0.5 * (size - 1.0)) / (size / _PARTS)
    moved = replace(
        lattice,
        origin_px=lattice.origin_px + move[0] + of_parts @ move[1:],
        basis_px=lattice.basis_px + lattice.basis_px / (size / _PARTS) @ move[1:],
    )
    return MicroLensGrid.from_lattice(
        moved,
        grid.image_size,
        radius_px=grid.radius_px,
        focal_planes=grid.focal_planes,
        discs=grid.discs,
    )


def _fit_move(shifts: FloatArray) -> FloatArray:
    """Return a shift and its change from part to part along x and y, (3, 2), of (9, 2) shifts.

    Where too few parts are known, the change is 0.
    """
    known = np.isfinite(shifts).all(axis=1)
    design = _MIDDLES[known]
    if known.sum() >= _FEWEST_PARTS and np.linalg.matrix_rank(design) == 3:
        return np.asarray(np.linalg.lstsq(design, shifts[known], rcond=None)[0])
    return np.vstack([np.median(shifts[known], axis=0), np.zeros((2, 2))])


def _measure_stretch(move: FloatArray) -> float:
    """Return by how much shifts change from the middle to the corners, at most."""
    return float(np.hypot(*(_CORNERS[:, 1:] @ move[1:]).T).max())


def measure_modulation(frame: Frame, lattice: Lattice) -> float:
    """Return the amplitude of the brightness at the lattice's frequencies over its mean.

    Of the weaker frequency, the median over parts of the image.
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
    """Return rows and columns of nine parts of an image."""
    rows, cols = (np.array_split(np.arange(length), _PARTS) for length in shape[:2])
    return [(ys, xs) for ys in rows for xs in cols]


def _wave(turns: FloatArray) -> npt.NDArray[np.complex64]:
    return np.asarray(np.exp(-2j * np.pi * turns), np.complex64)


def measure_grid_shifts(frame: Frame, grid: MicroLensGrid) -> FloatArray:
    """Return how far micro images are from the grid in parts of the image, (9, 2) in px.

    From the phase of the brightness at the lattice's two frequencies: micro images are bright in
    the middle. Modulo the lattice; NaN where the pattern is weak.
    """
    shifts = np.full((_PARTS**2, 2), np.nan)
    if grid.lattice is None:
        return shifts
    basis = grid.lattice.basis_px
    frequencies = np.linalg.inv(basis).T
    for part, (ys, xs) in enumerate(_cut_parts(frame.gray.shape)):
        crop = frame.gray[ys[0] : ys[-1] + 1, xs[0] : xs[-1] + 1]
        window = np.outer(np.hanning(len(ys)), np.hanning(len(xs))).astype(np.float32)
        pattern = (crop - crop.mean()) * window
        places = np.zeros(2)
        for axis, frequency in enumerate(frequencies):
            # the frequency itself, and eight about it a few bins away
            off = np.array([0.0, -4.0, 4.0])
            at_y = _wave(np.outer(frequency[1] + off / len(ys), ys))
            at_x = _wave(np.outer(xs, frequency[0] + off / len(xs)))
            values = at_y @ pattern @ at_x
            around = np.median(np.abs(values).ravel()[1:])
            if not np.abs(values[0, 0]) > _CLEAR * around:
                places[axis] = np.nan
                continue
            phase = np.angle(values[0, 0]) + 2.0 * np.pi * frequency @ grid.lattice.origin_px
            places[axis] = -np.angle(np.exp(1j * phase)) / (2.0 * np.pi)
        shifts[part] = places @ basis
    return shifts
