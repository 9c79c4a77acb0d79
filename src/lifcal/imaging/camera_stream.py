"""Frames of a camera that OpenCV can open."""

from __future__ import annotations

from types import TracebackType
from typing import Self

import cv2
import numpy as np
import numpy.typing as npt

from lifcal.errors import DataError


class CameraStream:
    """A camera, by OpenCV's index.

    Parameters
    ----------
    index : int

    Raises
    ------
    DataError
        If there is no such camera.
    """

    def __init__(self, index: int) -> None:
        self.index = index
        # A missing camera is told in one line, by the error below.
        level = cv2.utils.logging.getLogLevel()
        cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)
        try:
            self._capture = cv2.VideoCapture(index)
        finally:
            cv2.utils.logging.setLogLevel(level)
        if not self._capture.isOpened():
            raise DataError(f"camera {index}: OpenCV finds no such camera")

    def read(self) -> npt.NDArray[np.generic] | None:
        """Return the next frame in red, green, blue; None if the camera gives none any more."""
        done, image = self._capture.read()
        if not done or image is None:
            return None
        return np.ascontiguousarray(image[:, :, ::-1]) if image.ndim == 3 else np.asarray(image)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._capture.release()
