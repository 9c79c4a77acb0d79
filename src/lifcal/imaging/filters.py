"""Filters over small neighborhoods, by OpenCV."""

from __future__ import annotations

import cv2
import numpy as np

from lifcal.arrays import BoolArray, Float32Array, FloatArray


def sharpen(image: Float32Array, amount: float, out: Float32Array) -> None:
    """Fill `out` with the image convolved with (-amount, 1 + 2 amount, -amount) along both axes."""
    kernel = np.array([-amount, 1.0 + 2.0 * amount, -amount], np.float32)
    cv2.sepFilter2D(image, -1, kernel, kernel, out, borderType=cv2.BORDER_REPLICATE)


def double(image: Float32Array, out: Float32Array) -> None:
    """Fill `out`, which has twice as many pixels along both axes, by Catmull-Rom interpolation.

    OpenCV's own cubic interpolation is not used, because it does not reproduce a linear slope
    exactly.
    """
    before = np.array([-0.0703125, 0.8671875, 0.2265625, -0.0234375], np.float32)
    after = np.append(np.float32(0.0), before)  # at a quarter of a pixel after the middle
    before = after[::-1].copy()
    for i, down in enumerate((before, after)):
        for j, across in enumerate((before, after)):
            out[i::2, j::2] = cv2.sepFilter2D(
                image, -1, across, down, borderType=cv2.BORDER_REPLICATE
            )


def smooth(image: Float32Array, spread_px: float) -> Float32Array:
    """Return the mean around each pixel, weighted by a Gaussian."""
    return np.asarray(cv2.GaussianBlur(image, (0, 0), spread_px), np.float32)


def sum_around(values: FloatArray, side: int) -> FloatArray:
    """Return the sum over the square around each value; values outside the array count as 0."""
    return np.asarray(
        cv2.boxFilter(values, -1, (side, side), normalize=False, borderType=cv2.BORDER_CONSTANT)
    )


def range_around(values: Float32Array) -> Float32Array:
    """Return the range (largest minus smallest) of the nine values around each."""
    return np.asarray(cv2.morphologyEx(values, cv2.MORPH_GRADIENT, np.ones((3, 3), np.uint8)))


def largest_around(values: Float32Array) -> Float32Array:
    """Return the largest of the nine values around each."""
    return np.asarray(cv2.dilate(values, np.ones((3, 3), np.uint8)))


def widen_mask(mask: BoolArray, side: int) -> BoolArray:
    """Return a mask of the pixels that have a set pixel in the square around them."""
    square = np.ones((side, side), np.uint8)
    return np.asarray(cv2.dilate(mask.astype(np.uint8), square) > 0)
