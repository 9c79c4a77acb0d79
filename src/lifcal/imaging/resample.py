"""Interpolation of an image between its pixels."""

from __future__ import annotations

import cv2
import numpy as np

from lifcal.arrays import Float32Array
from lifcal.errors import InputError


def resample(
    image: Float32Array,
    map_x: Float32Array,
    map_y: Float32Array,
    out: Float32Array | None = None,
) -> Float32Array:
    """Interpolate an image at the coordinates of two maps, with a Lanczos kernel of 8 x 8 pixels.

    Parameters
    ----------
    image : (height, width) or (height, width, 3) float32
    map_x, map_y : (rows, cols) float32
        Finite image coordinates; OpenCV rounds them to 1/32 px. Coordinates outside of the image
        get the value at its border.
    out : (rows, cols) or (rows, cols, 3) float32 or None
        Array that receives the result; None makes a new one.
    """
    shape = (*map_x.shape, *image.shape[2:])
    if image.ndim not in (2, 3) or map_y.shape != map_x.shape:
        raise InputError(
            f"the image has shape {image.shape}, needs 2 or 3 axes; the maps have the shapes "
            f"{map_x.shape} and {map_y.shape}, need to be equal"
        )
    if out is None:
        out = np.empty(shape, np.float32)
    elif out.shape != shape or out.dtype != np.float32:
        raise InputError(f"out is {out.dtype} of {out.shape}, needs float32 of {shape}")
    cv2.remap(image, map_x, map_y, cv2.INTER_LANCZOS4, out, cv2.BORDER_REPLICATE)
    return out
