"""Filters over small neighborhoods, by OpenCV."""

from __future__ import annotations

import cv2
import numpy as np

from lifcal.arrays import BoolArray, Float32Array, FloatArray


def sharpen(image: Float32Array, amount: float, out: Float32Array) -> None:
    """Fill `out` with the image times (-amount, 1 + 2 amount, -amount) along both axes."""
    kernel = np.array([-amount, 1.0 + 2.0 * amount, -amount], np.float32)
    cv2.sepFilter2D(image, -1, kernel, kernel, out, borderType=cv2.BORDER_REPLICATE)


def sum_around(values: FloatArray, side: int) -> FloatArray:
    """Return the sum over the square around each value; there is nothing outside."""
    return np.asarray(
        cv2.boxFilter(values, -1, (side, side), normalize=False, borderType=cv2.BORDER_CONSTANT)
    )


def range_around(values: Float32Array) -> Float32Array:
    """Return the largest less the least of the nine values around each."""
    return np.asarray(cv2.morphologyEx(values, cv2.MORPH_GRADIENT, np.ones((3, 3), np.uint8)))


def largest_around(values: Float32Array) -> Float32Array:
    """Return the largest of the nine values around each."""
    return np.asarray(cv2.dilate(values, np.ones((3, 3), np.uint8)))


def widen_mask(mask: BoolArray, side: int) -> BoolArray:
    """Return where any of the square around a pixel is set."""
    square = np.ones((side, side), np.uint8)
    return np.asarray(cv2.dilate(mask.astype(np.uint8), square) > 0)
