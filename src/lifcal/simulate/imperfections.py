"""Deviations of a simulated camera and its recording from the ideal camera of the model."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from lifcal.errors import ConfigError, InputError

LATTICES = ("ideal", "recorded")
COMPRESSIONS = ("none", "jpeg", "video")


@dataclass(frozen=True)
class Imperfections:
    """Imperfections of optics and recording; with the defaults, the camera is perfect.

    Angles, positions and ray slopes along x and y are along the raw image's axes.

    Parameters
    ----------
    lattice : str
        'ideal' means that the micro lenses form a regular lattice, and the camera's distortion
        bends the recorded micro-image centers. 'recorded' means that the recorded centers form a
        regular lattice, and the micro lenses are placed accordingly.
    tilt_x_deg, tilt_y_deg : float
        Tilt of the array: a micro lens at (x, y) from the axis stands `b_L0 + x tan(tilt_x) +
        y tan(tilt_y)` behind the main lens.
    rotation_deg : float
        Rotation of the array about the axis, added to that of the camera's grid.
    jitter_px : float
        Standard deviation of each micro lens' position along each axis.
    object_distortion_a, object_distortion_b : float
        Distortion of the main lens in object space: a ray that a perfect lens would send out with
        slope h leaves with slope `h (1 - a h^2 + b h^4)`.
    object_distortion_distance_mm : float or None
        Distance at which all rays toward one point still meet in one point after the distortion. h
        is then the slope from the main lens' center to the undistorted ray at that distance. None
        stands for an infinite distance; then h is the slope of the ray itself.
    stop_mm : float
        Distance of the aperture stop behind the main lens.
    field_curvature : float
        Rays that come to a micro lens are refracted by the main lens with the focal length
        `f_L / (1 + field_curvature h^2)`, where h is the slope from the main lens' center to that
        micro lens. Positive values move the image of the corners toward the main lens.
    cos4 : bool
        Whether light falls off with the fourth power of the cosine of its angle to the sensor's
        normal.
    blur_px : float
        Standard deviation of a Gaussian blur on the sensor. The core of the diffraction pattern of
        an f/3 micro lens has a standard deviation of 0.13 px on pixels of 5.5 um.
    exposure_drift : float
        Relative amplitude of a slow change of the exposure, which follows one period of a sine over
        the frames.
    motion_blur : float
        Fraction of the interval between two frames during which the shutter is open. The true pose
        of a frame is that in the middle of the exposure.
    dust : int
        Number of dust specks on the sensor, in the frames and in the white image.
    white_dust : int
        Number of dust specks in the white image alone.
    white_aperture : float
        Factor on the radius of the main aperture for the white image.
    gamma : float
        Exponent of the recording: recorded values are the light to the power of 1 / gamma.
    compression : str
        'none', 'jpeg' (8-bit JPEG files of quality 90), or 'video' (PNG files of frames whose range
        was limited and whose cosine transforms of 8 x 8 pixels were coarsely quantized, as in
        intra-coded video).
    """

    lattice: str = "ideal"
    tilt_x_deg: float = 0.0
    tilt_y_deg: float = 0.0
    rotation_deg: float = 0.0
    jitter_px: float = 0.0
    object_distortion_a: float = 0.0
    object_distortion_b: float = 0.0
    object_distortion_distance_mm: float | None = None
    stop_mm: float = 0.0
    field_curvature: float = 0.0
    cos4: bool = False
    blur_px: float = 0.0
    exposure_drift: float = 0.0
    motion_blur: float = 0.0
    dust: int = 0
    white_dust: int = 0
    white_aperture: float = 1.0
    gamma: float = 1.0
    compression: str = "none"

    def __post_init__(self) -> None:
        if self.lattice not in LATTICES:
            raise ConfigError.unknown("lattice", self.lattice, LATTICES)
        if self.compression not in COMPRESSIONS:
            raise ConfigError.unknown("compression", self.compression, COMPRESSIONS)
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, float) and not math.isfinite(value):
                raise InputError(f"{field.name} is {value}, needs a finite number")
        for name, (low, high) in _RANGES.items():
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise InputError(f"{name} is {value}, needs {low:g} to {high:g}")
        if self.lattice == "recorded" and not self.array_is_ideal:
            raise InputError(
                "lattice 'recorded' leaves no freedom to tilt, rotate or jitter the array or to "
                "move the stop. Use lattice 'ideal'"
            )

    @property
    def array_is_ideal(self) -> bool:
        """Whether the array is a regular lattice as designed, seen from the main lens' center."""
        departures = (
            self.tilt_x_deg,
            self.tilt_y_deg,
            self.rotation_deg,
            self.jitter_px,
            self.stop_mm,
        )
        return not any(departures)

    @property
    def distorts_in_object_space(self) -> bool:
        """Whether the main lens distorts in object space."""
        return self.object_distortion_a != 0.0 or self.object_distortion_b != 0.0

    @property
    def is_inside_the_model(self) -> bool:
        """Whether the camera model with tilt describes the positions of points exactly."""
        outside = self.distorts_in_object_space or self.field_curvature or self.stop_mm
        return not outside

    @property
    def suffix(self) -> str:
        """The suffix of the raw files."""
        return ".jpg" if self.compression == "jpeg" else ".png"


_RANGES: dict[str, tuple[float, float]] = {
    # Beyond one degree the array of a 16 mm camera would touch the sensor.
    "tilt_x_deg": (-1.0, 1.0),
    "tilt_y_deg": (-1.0, 1.0),
    "rotation_deg": (-45.0, 45.0),
    # Larger jitter than this lets micro images overlap.
    "jitter_px": (0.0, 2.0),
    # With larger coefficients the slope would turn back within a field of view of 90 degrees.
    "object_distortion_a": (-0.3, 0.3),
    "object_distortion_b": (-0.3, 0.3),
    "object_distortion_distance_mm": (10.0, 1e6),
    # A stop in front of the main lens may be up to twice the shortest focal length away from it. A
    # stop behind the main lens must stand in front of the micro-lens array.
    "stop_mm": (-25.0, 10.0),
    # A field curvature of 0.1 moves the image in the corners of a 16 mm camera by 0.4 mm, which is
    # more than the distance from the array to the sensor.
    "field_curvature": (-0.1, 0.1),
    # A blur of more than a few pixels leaves nothing of a micro image.
    "blur_px": (0.0, 3.0),
    "exposure_drift": (0.0, 0.9),
    "motion_blur": (0.0, 1.0),
    "dust": (0, 100_000),
    "white_dust": (0, 100_000),
    "white_aperture": (0.1, 3.0),
    "gamma": (0.3, 4.0),
}

REAL = Imperfections(
    tilt_x_deg=0.025,
    tilt_y_deg=-0.017,
    jitter_px=0.05,
    object_distortion_a=0.02,
    cos4=True,
    blur_px=0.13,
    exposure_drift=0.03,
)
"""Mild imperfections of the cameras whose names end in `-real`. The total tilt of 0.030 deg and the
jitter are similar to those of published calibrations of Raytrix cameras; the distortion is 0.5 % in
the corner of `r5-16mm`; the blur is the diffraction of an f/3 micro lens on 5.5 um pixels."""
