"""Flat-fielding: correction of the fall-off of brightness inside micro images.

A vignetting map holds the brightness of an evenly bright surface at each pixel: 1 at the brightest
places, and 0 where it is too dark to be useful. Raws are divided by it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from lifcal.arrays import Float32Array
from lifcal.camera.apertures import OverlapDiscs
from lifcal.camera.grid import MicroLensGrid
from lifcal.errors import InputError
from lifcal.grid import _kernels
from lifcal.grid.overlap_fit import compute_blurred_overlap
from lifcal.imaging.frames import Frame

DARKEST = 0.1
"""Pixels where vignetting is below this fraction of the full brightness are not used: dividing by a
smaller number would amplify noise too much."""
_STEP_PX = 0.1
"""Distance between the samples of a radial profile of brightness, in px. Between them the profile
is interpolated."""


def vignetting_from_white(
    white: Frame | npt.NDArray[np.generic], *, darkest: float = DARKEST
) -> Float32Array:
    """Return the vignetting map of a white image.

    Parameters
    ----------
    white : Frame or (height, width) array
        The white image. Its noise affects every raw that is divided by it, so the mean of several
        white images is better.
    darkest : float
        The map is 0 below this fraction of the brightest level.

    Returns
    -------
    (height, width) float32
    """
    image = white.gray if isinstance(white, Frame) else np.asarray(white)
    if image.ndim != 2:
        raise InputError(f"the white image has shape {image.shape}, needs (height, width)")
    image = image.astype(np.float32)
    level = float(np.percentile(image[::2, ::2], 99.5))
    if not level > 0.0:
        raise InputError("the white image is black")
    return _cut(image / np.float32(level), darkest)


def vignetting_from_discs(
    grid: MicroLensGrid, discs: OverlapDiscs | None = None, *, darkest: float = DARKEST
) -> Float32Array:
    """Return the vignetting map that the overlap discs predict, where there is no white image.

    Parameters
    ----------
    grid : MicroLensGrid
    discs : OverlapDiscs or None
        The overlap discs; those of the grid if None.
    darkest : float
        The map is 0 below this fraction of the brightest level.

    Returns
    -------
    (height, width) float32
        The sum of the light of all lenses: a pixel between two lenses gets light from both.
    """
    discs = grid.discs if discs is None else discs
    if discs is None:
        raise InputError("the grid has no overlap discs: fit it to a white image")
    if len(discs.micro_px) != grid.n_types:
        raise InputError(f"{len(discs.micro_px)} micro discs for {grid.n_types} lens types")
    reach = discs.reach_px + 1.0
    radius = np.arange(math.ceil(reach / _STEP_PX) + 1).astype(np.float64) * _STEP_PX
    # All micro apertures have the same size and pass the same light. If its disc on the sensor is
    # larger, it is dimmer.
    profiles = np.stack(
        [
            compute_blurred_overlap(discs.main_px, micro, radius)
            * min(discs.main_px, micro) ** 2
            / micro**2
            for micro in discs.micro_px
        ]
    )
    profiles /= profiles.max()
    profiles[:, -1] = 0.0
    width, height = grid.image_size
    out = np.empty((height, width), np.float32)
    _kernels.sum_profiles(grid.index.table, grid.lens_types, profiles, _STEP_PX, out)
    return _cut(out, darkest)


def vignetting_from_frames(
    grid: MicroLensGrid, images: Iterable[Float32Array], *, darkest: float = DARKEST
) -> Float32Array:
    """Return a vignetting map from the mean brightness as a function of the distance to the center.

    It is used if there is no white image and the fall-off is not that of two discs. The scene
    averages out over thousands of lenses. All lens types get the same profile.

    Parameters
    ----------
    grid : MicroLensGrid
    images : iterable of (height, width) float32
        Luminance of some raws.
    darkest : float
        The map is 0 below this fraction of the brightness in the middle of micro images.

    Returns
    -------
    (height, width) float32
        The vignetting map; 0 outside the micro images.
    """
    labels = grid.label_image()
    rows, cols = np.nonzero(labels >= 0)
    centers = grid.centers_raw_px[labels[rows, cols]]
    distance = np.hypot(cols - centers[:, 0], rows - centers[:, 1])
    bins = np.floor(distance).astype(np.int64)
    count = np.maximum(np.bincount(bins), 1)
    total = np.zeros(len(count))
    for image in images:
        total += np.bincount(bins, image[rows, cols], len(count))
    middles = np.bincount(bins, distance, len(count)) / count
    profile = total / count
    middle = float(profile[middles <= 0.4 * grid.radius_px].max(initial=0.0))
    if not middle > 0.0:
        raise InputError("the frames are black in the middle of their micro images")
    # The brightness of a lens only decreases outward; an increase comes from the scene or from the
    # next lens.
    profile = np.minimum.accumulate(np.minimum(profile / middle, 1.0))
    out = np.zeros(labels.shape, np.float32)
    out[rows, cols] = np.interp(distance, middles, profile)
    return _cut(out, darkest)


def devignette(
    image: npt.NDArray[np.floating], vignetting: Float32Array, *, outside: float = math.nan
) -> Float32Array:
    """Return an image divided by a vignetting map.

    Parameters
    ----------
    image : (height, width) or (height, width, 3) float
    vignetting : (height, width) float32
    outside : float
        The value of pixels where the map is 0.
    """
    if image.shape[:2] != vignetting.shape:
        raise InputError(
            f"the image has {image.shape[:2]} pixels, but the vignetting map {vignetting.shape}"
        )
    lit = vignetting > 0.0
    factor = np.divide(1.0, vignetting, out=np.zeros_like(vignetting), where=lit)
    out = np.asarray(image * (factor if image.ndim == 2 else factor[:, :, None]), np.float32)
    out[~lit] = outside
    return out


def _cut(values: Float32Array, darkest: float) -> Float32Array:
    if not 0.0 < darkest < 1.0:
        raise InputError(f"darkest is {darkest}, needs 0 to 1")
    return np.where(values >= darkest, values, 0.0).astype(np.float32)
