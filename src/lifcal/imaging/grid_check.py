"""Whether a grid is where the micro images of a frame are."""

from __future__ import annotations

import numpy as np

from lifcal.arrays import FloatArray
from lifcal.camera.grid import MicroLensGrid
from lifcal.errors import DataError
from lifcal.imaging.frames import Frame, check_plenoptic

_PARTS = 3
_CLEAR = 8.0
"""Of the pattern over what is around it in the spectrum: below, its phase says little."""
_MOST_SHIFT = 0.04
"""In pitches. A lens that was taken off and put on again moves by less."""
_MOST_STRETCH = 0.04
"""In pitches, at the corners: of a grid of another pitch, or turned."""
_FEWEST_PARTS = 6


def check_grid(frame: Frame, grid: MicroLensGrid) -> None:
    """Raise DataError if a frame does not show micro images where the grid has them.

    Size and pitch are those of `check_plenoptic`. The place is not asked where the grid is a list
    of centers or nothing dark is between micro images.
    """
    check_plenoptic(frame, grid)
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
    stretch = _measure_stretch(shifts)
    if stretch > _MOST_STRETCH * grid.pitch_px:
        raise DataError(
            f"{frame.source}: toward the corners the micro images come to be {stretch:.1f} px off "
            f"the grid (pitch {grid.pitch_px:.1f} px): its pitch or angle is not theirs"
        )


def _measure_stretch(shifts: FloatArray) -> float:
    """Return by how much shifts change from the middle to the corners, at most; 0 if unknown."""
    known = np.isfinite(shifts).all(axis=1)
    if known.sum() < _FEWEST_PARTS:
        return 0.0
    rows, cols = np.divmod(np.arange(_PARTS**2), _PARTS)
    places = np.column_stack([cols, rows]) - 0.5 * (_PARTS - 1)  # in parts, from the middle
    design = np.column_stack([np.ones(len(places)), places])[known]
    if np.linalg.matrix_rank(design) < 3:
        return 0.0
    slopes = np.linalg.lstsq(design, shifts[known], rcond=None)[0][1:]
    corners = 0.5 * _PARTS * np.array([[1.0, 1.0], [1.0, -1.0]])
    return float(np.hypot(*(corners @ slopes).T).max())


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
    height, width = frame.gray.shape
    edges_y, edges_x = (np.linspace(0, n, _PARTS + 1).astype(int) for n in (height, width))
    for part in range(_PARTS**2):
        i, j = divmod(part, _PARTS)
        ys, xs = np.arange(edges_y[i], edges_y[i + 1]), np.arange(edges_x[j], edges_x[j + 1])
        crop = frame.gray[ys[0] : ys[-1] + 1, xs[0] : xs[-1] + 1]
        window = np.outer(np.hanning(len(ys)), np.hanning(len(xs))).astype(np.float32)
        pattern = (crop - crop.mean()) * window
        places = np.zeros(2)
        for axis, frequency in enumerate(frequencies):
            # the frequency itself, and eight about it a few bins away
            off = np.array([0.0, -4.0, 4.0])
            at_y = np.exp(-2j * np.pi * np.outer(frequency[1] + off / len(ys), ys))
            at_x = np.exp(-2j * np.pi * np.outer(xs, frequency[0] + off / len(xs)))
            values = at_y.astype(np.complex64) @ pattern @ at_x.astype(np.complex64)
            around = np.median(np.abs(values).ravel()[1:])
            if not np.abs(values[0, 0]) > _CLEAR * around:
                places[axis] = np.nan
                continue
            phase = np.angle(values[0, 0]) + 2.0 * np.pi * frequency @ grid.lattice.origin_px
            places[axis] = -np.angle(np.exp(1j * phase)) / (2.0 * np.pi)
        shifts[part] = places @ basis
    return shifts
