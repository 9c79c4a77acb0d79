"""ArUco markers."""

from __future__ import annotations

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

    An id that appears twice is left out: which one is meant cannot be told.
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
    return sorted(
        (
            Marker(marker_id, np.asarray(square, np.float64).reshape(4, 2))
            for marker_id, square in zip(found, corners, strict=True)
            if found.count(marker_id) == 1
        ),
        key=lambda marker: marker.id,
    )


def guess_dictionary(image: npt.NDArray[np.uint8], besides: str) -> str | None:
    """Return another common dictionary whose markers are in an image, None if there is none."""
    counts = {name: len(detect_markers(image, name)) for name in _GUESSES if name != besides}
    best = max(counts, key=lambda name: counts[name])
    return best if counts[best] > 0 else None
