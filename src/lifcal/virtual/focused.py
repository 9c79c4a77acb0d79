"""The totally focused image: what a pinhole at the main lens' place would see, sharp everywhere."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lifcal.arrays import Float32Array
from lifcal.camera.grid import MicroLensGrid
from lifcal.errors import InputError
from lifcal.virtual import _kernels
from lifcal.virtual.depth import VirtualDepth
from lifcal.virtual.optics import LensOptics
from lifcal.virtual.workspace import NoWorkspace, Workspace

_LEAST_LIGHT = 0.05
_PIXEL_VARIANCE_PX2 = 1.0 / 12.0 + 0.12
"""Along an axis, of what one raw pixel sees: its width, and what defocus and interpolation add in
the mean over the working range (docs/virtual-depth.md)."""
_OWN_VARIANCE = 1.0 / 12.0


@dataclass(frozen=True, eq=False)
class FocusedImage:
    """A totally focused image, on the pixels of the virtual depth map it was made with.

    Parameters
    ----------
    image : (rows, cols) or (rows, cols, 3) float32
        In the raw image's unit; 0 where not valid.
    valid : (rows, cols) bool
        Where some micro image sees the pixel.
    """

    image: Float32Array
    valid: npt.NDArray[np.bool_]


def make_focused_image(
    image: Float32Array,
    grid: MicroLensGrid,
    depth: VirtualDepth,
    *,
    optics: LensOptics | None = None,
    workspace: Workspace | None = None,
) -> FocusedImage:
    """Put the micro images together at the depths of a map.

    Each pixel is the mean over the micro images that see it, those in focus and those nearer to
    their centers counting more; then what the width of the raw pixels has blurred is undone to
    second order. In the geometry of the recorded image: with the micro-image centers it is an exact
    pinhole image but for the main lens' distortion.

    Parameters
    ----------
    image : (height, width) or (height, width, 3) float32
        Devignetted raw image, finite (0 outside the micro images).
    grid : MicroLensGrid
    depth : VirtualDepth
    optics : LensOptics or None
        Tables for the grid, if the caller has them already.
    workspace : Workspace or None
        Keeps the large arrays for the next frame.
    """
    width, height = grid.image_size
    if image.ndim not in (2, 3) or image.shape[:2] != (height, width):
        raise InputError(f"image has shape {image.shape}, the grid is of {width} x {height} px")
    optics = optics or LensOptics.from_grid(grid)
    channels = image[:, :, None] if image.ndim == 2 else image
    shape = depth.filled.shape
    space = workspace or NoWorkspace()
    out = space.take("synthesised", (*shape, channels.shape[2]), np.float32)
    light = space.take("light", shape, np.float32)
    rho = np.float32(1.0) / depth.filled
    _kernels.synthesise(
        channels, grid.index.table, optics.pack(), rho, 1.0 / depth.scale, out, light
    )
    sharp = np.empty_like(out)
    _kernels.sharpen(out, rho, light, 1.0 / depth.scale, _PIXEL_VARIANCE_PX2, _OWN_VARIANCE, sharp)
    valid = light > _LEAST_LIGHT
    sharp[~valid] = 0.0
    return FocusedImage(sharp[:, :, 0] if image.ndim == 2 else sharp, valid)
