"""Features of focused images that are found again in other images (SIFT)."""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

from lifcal.arrays import BoolArray, FloatArray, IntArray, read_only

_CONTRAST = 0.015
"""Least contrast of a feature, a third of OpenCV's own: focused images are smooth, and a feature
that is not found again does no harm."""
_BORDER_PX = 4
"""Features nearer than this to pixels that are not valid describe the border, not the scene."""


@dataclass(frozen=True, eq=False)
class Features:
    """Places of an image, and what they look like.

    Parameters
    ----------
    points_px : (n, 2) float64
        In pixels of the image, centers at integers; the strongest first.
    descriptors : (n, 128) uint8
        Square roots of normalised SIFT histograms (RootSIFT), times 255. Their distances compare
        histograms by Hellinger's distance.
    """

    points_px: FloatArray
    descriptors: npt.NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.points_px)


def detect_features(
    image: npt.NDArray[np.uint8], valid: BoolArray | None = None, most: int = 1500
) -> Features:
    """Find the strongest features of a gray image.

    Parameters
    ----------
    image : (rows, cols) uint8
    valid : (rows, cols) bool, optional
        Where the image shows something.
    most : int
        How many are returned at most.
    """
    mask = None
    if valid is not None:
        kernel = np.ones((2 * _BORDER_PX + 1,) * 2, np.uint8)
        mask = cv2.erode(valid.astype(np.uint8), kernel)
    sift = cv2.SIFT.create(nfeatures=most, contrastThreshold=_CONTRAST)
    keypoints, found = sift.detectAndCompute(image, mask)
    if not keypoints:
        return Features(np.zeros((0, 2)), np.zeros((0, 128), np.uint8))
    strength = np.array([point.response for point in keypoints])
    places = np.array([point.pt for point in keypoints], np.float64)
    # OpenCV may return one more than asked for, and equal ones in any order.
    order = np.lexsort((places[:, 0], places[:, 1], -strength))[:most]
    histograms = np.asarray(found, np.float64)[order]
    histograms /= np.maximum(histograms.sum(axis=1, keepdims=True), 1e-12)
    descriptors = np.rint(255.0 * np.sqrt(histograms)).astype(np.uint8)
    return Features(read_only(places[order]), read_only(descriptors))


def match_features(
    first: npt.NDArray[np.uint8], second: npt.NDArray[np.uint8], ratio: float = 0.85
) -> tuple[IntArray, IntArray]:
    """Match descriptors: nearest to each other, and clearly nearer than the second nearest.

    Parameters
    ----------
    first, second : (n, 128) uint8
        From `Features.descriptors`.
    ratio : float
        Largest distance relative to that of the second nearest in `second`.

    Returns
    -------
    (n_matches,) int64, (n_matches,) int64
        Indices into `first`, ascending, and into `second`.
    """
    if len(first) == 0 or len(second) < 2:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    a, b = first.astype(np.float32), second.astype(np.float32)
    squares = (a * a).sum(axis=1)[:, None] + (b * b).sum(axis=1)
    squares -= 2.0 * (a @ b.T)
    nearest = squares.argmin(axis=1)
    rows = np.arange(len(a))
    distance = squares[rows, nearest].copy()
    back = squares.argmin(axis=0)
    squares[rows, nearest] = np.inf
    runner_up = squares.min(axis=1)
    good = (back[nearest] == rows) & (distance < ratio**2 * runner_up)
    return rows[good], nearest[good].astype(np.int64)
