"""ArUco markers."""

from __future__ import annotations

import cv2
import numpy as np
import numpy.typing as npt

from lifcal.errors import InputError

DICTIONARY = "DICT_6X6_250"
CELLS_PER_SIDE = 8
"""Six code cells and the black border on both sides."""


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
