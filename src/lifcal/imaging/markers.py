"""ArUco markers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

from lifcal.arrays import FloatArray
from lifcal.errors import ConfigError, InputError

DICTIONARY = "DICT_6X6_250"
CELLS_PER_SIDE = 8
"""Six code cells and the black border on both sides."""
DICTIONARIES = tuple(sorted(name for name in dir(cv2.aruco) if name.startswith("DICT_")))
_GUESSES = (
    "DICT_6X6_250",
    "DICT_4X4_250",
    "DICT_5X5_250",
    "DICT_7X7_250",
    "DICT_ARUCO_ORIGINAL",
    "DICT_APRILTAG_36h11",
)
_BY_CHANCE = 3
_LEAST_SIDE_PX = 12.0
_MOST_REACH_PX = 4.0
_HALF_STEPS = 16
_EDGE_PART = (0.12, 0.88)
"""Of an edge: near the corners, blur bends it."""


@dataclass(frozen=True, eq=False)
class Marker:
    """A marker in an image.

    Parameters
    ----------
    id : int
    corners_px : (4, 2) float64
        Of the black square, clockwise as printed, from the code's top left.
    """

    id: int
    corners_px: FloatArray


def draw_marker(marker_id: int, cell_px: int = 8) -> npt.NDArray[np.uint8]:
    """Draw a marker of the dictionary DICT_6X6_250, black border included, no white margin.

    Returns
    -------
    (8 cell_px, 8 cell_px) uint8
        0 and 255.
    """
    if not 0 <= marker_id < 250:
        raise InputError(f"marker id {marker_id} is not in {DICTIONARY}: needs 0 to 249")
    dictionary = cv2.aruco.getPredefinedDictionary(cv2.aruco.DICT_6X6_250)
    image = cv2.aruco.generateImageMarker(dictionary, marker_id, CELLS_PER_SIDE * cell_px)
    return np.asarray(image, np.uint8)


def detect_markers(image: npt.NDArray[np.uint8], dictionary: str = DICTIONARY) -> list[Marker]:
    """Find markers in a gray image, corners to sub-pixel, by ascending id.

    Corners are where lines through the four edges meet: blur rounds a corner off, and what looks
    for the corner itself (OpenCV's sub-pixel refinement) finds it too far inside, but blur does not
    move a straight edge. An id that appears twice is left out: which one is meant cannot be told.
    """
    if dictionary not in DICTIONARIES:
        raise ConfigError.unknown("marker dictionary", dictionary, DICTIONARIES)
    parameters = cv2.aruco.DetectorParameters()
    parameters.cornerRefinementMethod = cv2.aruco.CORNER_REFINE_SUBPIX
    detector = cv2.aruco.ArucoDetector(
        cv2.aruco.getPredefinedDictionary(getattr(cv2.aruco, dictionary)), parameters
    )
    corners, ids, _ = detector.detectMarkers(np.ascontiguousarray(image))
    if len(corners) == 0:
        return []
    found = [int(i) for i in np.ravel(ids)]
    pixels = image.astype(np.float32)
    return sorted(
        (
            Marker(marker_id, _refine(pixels, np.asarray(square, np.float64).reshape(4, 2)))
            for marker_id, square in zip(found, corners, strict=True)
            if found.count(marker_id) == 1
        ),
        key=lambda marker: marker.id,
    )


def _refine(image: npt.NDArray[np.float32], corners: FloatArray) -> FloatArray:
    """Return the corners from lines through the edges; as they were where that does not work."""
    lines = np.empty((4, 3))
    for i in range(4):
        line = _fit_edge(image, corners[i], corners[(i + 1) % 4])
        if line is None:
            return corners
        lines[i] = line
    met = np.empty((4, 2))
    for i in range(4):
        cross = np.cross(lines[i - 1], lines[i])
        if abs(cross[2]) < 0.1:
            return corners
        met[i] = cross[:2] / cross[2]
    side = float(np.linalg.norm(corners - np.roll(corners, 1, axis=0), axis=1).min())
    moved = float(np.linalg.norm(met - corners, axis=1).max())
    return met if moved < side / CELLS_PER_SIDE else corners


def _fit_edge(
    image: npt.NDArray[np.float32], start: FloatArray, end: FloatArray
) -> FloatArray | None:
    """Return the line (a, b, c), a x + b y + c = 0, through the edge from dark to bright."""
    along = end - start
    length = float(np.linalg.norm(along))
    if length < _LEAST_SIDE_PX:
        return None
    along /= length
    out = np.array([along[1], -along[0]])  # clockwise corners: the outside is on the left
    reach = min(_MOST_REACH_PX, 0.8 * length / CELLS_PER_SIDE)
    places = start + np.linspace(*_EDGE_PART, max(int(length), 12))[:, None] * along * length
    steps = np.linspace(-reach, reach, 2 * _HALF_STEPS + 1)
    for _ in range(3):
        grid = (places[:, None, :] + steps[:, None] * out).astype(np.float32)
        x, y = np.ascontiguousarray(grid[:, :, 0]), np.ascontiguousarray(grid[:, :, 1])
        profile = cv2.remap(image, x, y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
        slope = np.maximum(np.diff(np.asarray(profile), axis=1), 0.0)
        total = slope.sum(axis=1)
        good = total > 0.3 * np.median(total)
        if good.sum() < 6:
            return None
        middle = 0.5 * (steps[1:] + steps[:-1])
        # squared, so that noise far from the edge counts little
        weight = slope[good] ** 2
        off = weight @ middle / weight.sum(axis=1)
        points = places[good] + off[:, None] * out
        keep = np.ones(len(points), np.bool_)
        for _ in range(3):
            center = points[keep].mean(axis=0)
            normal = np.linalg.svd(points[keep] - center)[2][1]
            miss = np.abs((points - center) @ normal)
            keep = miss <= max(2.5 * float(np.median(miss)), 1e-3)
        # begin again from the edge, so that the profile is centered on it
        places = places - ((places - center) @ normal)[:, None] * normal
    return np.append(normal, -normal @ center)


def guess_dictionary(images: Sequence[npt.NDArray[np.uint8]], given: str) -> str | None:
    """Return another common dictionary that images have many more markers of, None without one.

    A few markers may be read by chance in a dictionary that they are not of.
    """
    counts = {
        name: sum(len(detect_markers(image, name)) for image in images)
        for name in {*_GUESSES, given}
    }
    best = max(_GUESSES, key=lambda name: counts[name])
    return best if counts[best] > _BY_CHANCE * counts[given] else None
