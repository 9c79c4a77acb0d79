"""Tests whether an image is the raw of a plenoptic camera, and whether a grid fits it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lifcal.arrays import Float32Array
from lifcal.camera import MicroLensGrid
from lifcal.errors import DataError, EstimationError
from lifcal.grid.lattice_search import NO_PATTERN, compute_calm, find_lattice
from lifcal.imaging.frames import Frame

_LEAST_RATIO = 6.0
"""Smallest height of the peaks at the lattice's frequencies, relative to the spectrum around them,
that shows micro lenses."""


def check_plenoptic(frame: Frame, grid: MicroLensGrid | None = None) -> None:
    """Raise DataError if a frame shows no micro-lens pattern, or not that of the grid.

    Parameters
    ----------
    frame : Frame
    grid : MicroLensGrid or None
        If given, the frame must have its size and show its pitch.
    """
    if grid is not None and grid.image_size != frame.image_size:
        raise DataError(
            f"{frame.source}: {frame.image_size[0]} x {frame.image_size[1]} px, but the grid is "
            f"for {grid.image_size[0]} x {grid.image_size[1]} px"
        )
    if grid is not None and grid.lattice is not None:
        if not _shows_lattice(frame.gray, grid.lattice.basis_px):
            raise DataError(
                f"{frame.source}: no micro-lens pattern of the grid's pitch of "
                f"{grid.pitch_px:.2f} px: an ordinary photograph, or of another camera"
            )
        return
    try:
        find_lattice(frame.gray)
    except EstimationError as error:
        raise DataError(
            f"{frame.source}: {error}; is this an ordinary photograph?"
            if NO_PATTERN in str(error)
            else f"{frame.source}: {error}"
        ) from None


def _shows_lattice(image: Float32Array, basis_px: npt.NDArray[np.float64]) -> bool:
    """Return whether the spectrum has peaks at the lattice's frequencies.

    The spectrum is that of the brightness, or, where micro images touch without a dark gap, that of
    the gradients at their borders.
    """
    height, width = image.shape
    rows, cols = min(height, 1024), min(width, 1024)
    top, left = (height - rows) // 2, (width - cols) // 2
    crop = image[top : top + rows, left : left + cols]
    floor = max(0.03 * float(np.percentile(crop[::4, ::4], 99.0)), 1e-6)
    window = np.outer(np.hanning(rows), np.hanning(cols)).astype(np.float32)
    inverse = np.linalg.inv(basis_px).astype(np.float64)
    first, second = inverse[:, 0], inverse[:, 1]
    for pattern in (np.log(np.maximum(crop, 0.0) + floor), compute_calm(crop)):
        centered = (pattern - pattern.mean()) * window
        heights = [
            _height_at(centered, place) for place in (first, second, first + second, first - second)
        ]
        if sorted(heights)[-2] > _LEAST_RATIO:
            return True
    return False


def _height_at(image: Float32Array, frequency: npt.NDArray[np.float64]) -> float:
    """Return the amplitude at a frequency (cycles/px) relative to that around it."""
    rows, cols = image.shape
    steps = np.arange(-10, 11) * 0.5  # 21 x 21 places, half a bin apart
    at_x = np.exp(-2j * np.pi * np.outer(np.arange(cols), frequency[0] + steps / cols))
    at_y = np.exp(-2j * np.pi * np.outer(frequency[1] + steps / rows, np.arange(rows)))
    amplitude = np.abs(at_y.astype(np.complex64) @ image @ at_x.astype(np.complex64))
    around = float(np.median(np.concatenate([amplitude[:4].ravel(), amplitude[-4:].ravel()])))
    return float(amplitude[7:14, 7:14].max()) / max(around, 1e-12)
