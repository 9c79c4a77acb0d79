"""An ordinary pinhole camera: what focused images and true views are images of."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PinholeIntrinsics:
    """Of an image without distortion; pixel centers are integers."""

    width: int
    height: int
    fx: float
    fy: float
    cx: float
    cy: float

    def crop(self, x: int, y: int, width: int, height: int) -> PinholeIntrinsics:
        """Return those of a part of the image, from pixel (x, y) on."""
        return PinholeIntrinsics(width, height, self.fx, self.fy, self.cx - x, self.cy - y)
