"""How to calibrate."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from lifcal.arrays import FloatArray, IntArray
from lifcal.bundle import AdjustOptions
from lifcal.errors import InputError
from lifcal.files import make_plain
from lifcal.scale import ScaleOptions
from lifcal.sfm import SfmOptions

_PIXEL_SIZES_UM = (0.5, 50.0)
"""Pixels of image sensors are between these; anything else is a slip of the unit."""


@dataclass(frozen=True, eq=False)
class CalibrateOptions:
    """How to calibrate.

    Parameters
    ----------
    pixel_size_um : float
    focal_length_mm : float or None
        Nominal: a hint where the images leave F open, and a check of the result.
    scale : ScaleOptions
    sfm : SfmOptions
    points : int
        Scene points to measure.
    views : int
        In which each is measured at most.
    rounds : int
        Of measuring and adjusting at most.
    distortion, tilt : str
        As in `AdjustOptions`.
    loss : str
    priors : bool
        Whether to use what is known from how cameras are made: c is near the middle of the image,
        and tangential distortion is small. See `camera_priors`.
    timestamps : tuple of float or None
        Of all frames, for poses.txt and to find them in a known trajectory; None: their indices.
    """

    pixel_size_um: float
    focal_length_mm: float | None = None
    scale: ScaleOptions = field(default_factory=ScaleOptions)
    sfm: SfmOptions = field(default_factory=SfmOptions)
    points: int = 1000
    views: int = 24
    rounds: int = 3
    distortion: str = "brown"
    tilt: str = "auto"
    loss: str = "cauchy"
    priors: bool = True
    timestamps: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        low, high = _PIXEL_SIZES_UM
        if not low <= self.pixel_size_um <= high:
            raise InputError(
                f"pixel size is {self.pixel_size_um} um, needs {low} to {high}: look it up in the "
                "sensor's data sheet"
            )
        if self.focal_length_mm is not None and not self.focal_length_mm > 0.0:
            raise InputError(f"focal length is {self.focal_length_mm} mm, needs a positive number")
        # raises a ConfigError that names what is wrong
        AdjustOptions(loss=self.loss, distortion=self.distortion, tilt=self.tilt)
        for name, value, least in (
            ("points", self.points, 50),
            ("views", self.views, 2),
            ("rounds", self.rounds, 1),
        ):
            if value < least:
                raise InputError(f"{name} is {value}, needs {least} or more")

    @property
    def pixel_size_mm(self) -> float:
        """Pixel size in mm."""
        return self.pixel_size_um / 1000.0

    def time_frames(self, frame_indices: IntArray) -> FloatArray:
        """Return the timestamps of frames."""
        if self.timestamps is None:
            return frame_indices.astype(np.float64)
        return np.asarray(self.timestamps, np.float64)[frame_indices]

    def as_dict(self) -> dict[str, Any]:
        """Return the options for JSON."""
        content = asdict(replace(self, scale=replace(self.scale, others=())))
        content["scale"]["others"] = [dict(source.describe()) for source in self.scale.others]
        plain: dict[str, Any] = make_plain(content)
        return plain
