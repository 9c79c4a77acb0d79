"""The totally focused image: the view of a pinhole at the main lens, sharp at every depth."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lifcal.arrays import Float32Array
from lifcal.camera.grid import MicroLensGrid
from lifcal.errors import InputError
from lifcal.imaging.filters import double, sharpen, smooth
from lifcal.virtual import _kernels_synthesis
from lifcal.virtual.depth import VirtualDepth
from lifcal.virtual.optics import LensOptics
from lifcal.virtual.sharpening import SharpeningFilters
from lifcal.virtual.workspace import NoWorkspace, Workspace

_LEAST_LIGHT = 0.05
"""Least sum of weights of a valid pixel; a sharp micro image has a weight of 1 in its middle."""
_CLEAR_CONTRAST = 2.4
"""Rms contrast, relative to the noise of the mean, at which half of the detail of single raw pixels
is added. Below, the detail is mostly noise."""
_RAMP = 1.0
"""Width of the transition from no detail to all of it, relative to `_CLEAR_CONTRAST`."""
_LEAST_NOISE = 1e-3
"""Least standard deviation of a value that contrast is compared with: a quarter of an 8-bit
step."""
_TWICE_SHARPENING = 0.3
"""Sharpening of the mean at twice its size, which undoes the blur of bilinear interpolation."""


@dataclass(frozen=True, eq=False)
class FocusedImage:
    """A totally focused image, on the pixels of the virtual depth map it was made with.

    Parameters
    ----------
    image : (rows, cols) or (rows, cols, 3) float32
        In the raw image's unit; 0 where not valid.
    valid : (rows, cols) bool
        Mask of the pixels that some micro image sees.
    """

    image: Float32Array
    valid: npt.NDArray[np.bool_]


def make_focused_image(
    image: Float32Array,
    grid: MicroLensGrid,
    depth: VirtualDepth,
    *,
    optics: LensOptics | None = None,
    filters: SharpeningFilters | None = None,
    workspace: Workspace | None = None,
    detail: bool = True,
) -> FocusedImage:
    """Combine the micro images at the depths of a map.

    Each pixel is the mean over the micro images that see it; those in focus, and those that show
    the pixel nearer to their centers, have a larger weight. Then the blur by the width of the raw
    pixels and by defocus is undone as far as noise allows, and where there is contrast, the detail
    of single raw pixels beyond that mean is added. The image has the geometry of the recorded one:
    except for the main lens' distortion, it is an exact pinhole image.

    Parameters
    ----------
    image : (height, width) or (height, width, 3) float32
        Devignetted raw image, finite (0 outside the micro images).
    grid : MicroLensGrid
    depth : VirtualDepth
    optics : LensOptics or None
        Tables for the grid, if the caller has them already.
    filters : SharpeningFilters or None
        For the optics and the map's scale, if the caller has them already.
    workspace : Workspace or None
        Keeps the large arrays for the next frame.
    detail : bool
        Add the detail of single raw pixels.
    """
    width, height = grid.image_size
    if image.ndim not in (2, 3) or image.shape[:2] != (height, width):
        raise InputError(f"image has shape {image.shape}, the grid is of {width} x {height} px")
    optics = optics or LensOptics.from_grid(grid)
    filters = filters or SharpeningFilters.from_optics(optics, depth.scale)
    space = workspace or NoWorkspace()
    table, lenses, step = grid.index.table, optics.pack(), 1.0 / depth.scale
    rho = np.float32(1.0) / depth.filled
    light = space.take("light", rho.shape, np.float32)
    planes = image[None] if image.ndim == 2 else np.ascontiguousarray(image.transpose(2, 0, 1))
    means = space.take("synthesised", (len(planes), *rho.shape), np.float32)
    sharp = np.empty_like(means)
    for plane, mean in zip(planes, means, strict=True):
        _kernels_synthesis.synthesise(plane, table, lenses, rho, step, mean, light)
    share = _share_of_detail(means, light, depth.noise) if detail else None
    for plane, mean, out in zip(planes, means, sharp, strict=True):
        _kernels_synthesis.sharpen(mean, rho, light, filters.pack(), out)
        if share is None:
            continue
        twice = space.take("twice", tuple(2 * side for side in mean.shape), np.float32)
        double(mean, twice)
        sharpen(twice, _TWICE_SHARPENING, twice)
        _kernels_synthesis.add_detail(plane, table, lenses, rho, step, twice, share, out)
    valid = light > _LEAST_LIGHT
    sharp[:, ~valid] = 0.0
    focused = sharp[0] if image.ndim == 2 else np.ascontiguousarray(sharp.transpose(1, 2, 0))
    return FocusedImage(focused, valid)


def _share_of_detail(means: Float32Array, light: Float32Array, noise: float) -> Float32Array:
    """Return the fraction of the detail of single raw pixels to add, by the local contrast.

    All channels get the same fraction, so that the detail has no color of its own.
    """
    gray = means.mean(axis=0)
    fine = smooth(gray, 0.7) - smooth(gray, 2.0)
    contrast = np.sqrt(smooth(fine * fine, 1.5) * light) / max(noise, _LEAST_NOISE)
    share = 0.5 + (contrast / _CLEAR_CONTRAST - 1.0) / _RAMP
    return np.asarray(np.clip(share, 0.0, 1.0), np.float32)
