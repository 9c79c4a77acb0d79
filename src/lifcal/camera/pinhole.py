"""An ordinary pinhole camera, the model of focused images and of true views."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PinholeIntrinsics:
    """Intrinsics of an image without distortion; pixel centers are at integers."""

    width: int
    height: int
    fx: float
    fy: float
    cx: float
    cy: float

    def crop(self, x: int, y: int, width: int, height: int) -> PinholeIntrinsics:
        """Return the intrinsics of a part of the image that begins at pixel (x, y)."""
        return PinholeIntrinsics(width, height, self.fx, self.fy, self.cx - x, self.cy - y)
