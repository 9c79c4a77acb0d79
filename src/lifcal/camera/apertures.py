"""Two apertures in a row: which part of a micro lens is used, and how that shifts a blurred point.

A sensor pixel at offset `m` from its micro-image center looks through the micro lens at the main
lens. It uses only that part of the micro aperture from which the main aperture is visible: the
overlap of two discs. See docs/theory/camera-model.md, "Focus times vignetting".
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lifcal.arrays import FloatArray
from lifcal.errors import InputError


def compute_disc_overlap(
    radius_a: npt.ArrayLike, radius_b: npt.ArrayLike, distance: npt.ArrayLike
) -> tuple[FloatArray, FloatArray]:
    """Return the area that two discs share, and the centroid of that area.

    The overlap consists of two circular segments with a common chord. Their first moments about the
    chord cancel, so the centroid is at `distance` times the fraction of the area that belongs to
    the segment of disc b.

    Parameters
    ----------
    radius_a, radius_b : array_like
        Radii of the discs; they are broadcast against each other and `distance`.
    distance : array_like
        Distance between the centers, not negative.

    Returns
    -------
    area : float64 array
    centroid : float64 array
        Distance of the centroid from the center of disc a, towards that of disc b; NaN where the
        discs do not overlap.
    """
    a, b, d = np.broadcast_arrays(
        *(np.asarray(value, np.float64) for value in (radius_a, radius_b, distance))
    )
    small = np.minimum(a, b)
    inside = d <= np.abs(a - b)
    apart = d >= a + b
    with np.errstate(divide="ignore", invalid="ignore"):
        chord_a = np.clip((d * d + a * a - b * b) / (2.0 * d), -a, a)
        chord_b = np.clip(d - chord_a, -b, b)
        segment_a = a * a * np.arccos(chord_a / a) - chord_a * np.sqrt(a * a - chord_a * chord_a)
        segment_b = b * b * np.arccos(chord_b / b) - chord_b * np.sqrt(b * b - chord_b * chord_b)
        area = segment_a + segment_b
        centroid = d * segment_b / area
    area = np.where(inside, np.pi * small * small, np.where(apart, 0.0, area))
    centroid = np.where(inside, np.where(b <= a, d, 0.0), np.where(apart, np.nan, centroid))
    return area, centroid


@dataclass(frozen=True)
class OverlapDiscs:
    """The two discs on the sensor whose common area is the brightness inside a micro image.

    A pixel at distance `m` from its micro-image center gets light in proportion to the area that a
    disc of radius `main_px` and one of radius `micro_px[type]` share at distance `m`.

    Parameters
    ----------
    main_px : float
        Radius of the main aperture, projected on the sensor through the center of a micro lens.
    micro_px : tuple of float
        Radius of the micro aperture for each lens type, projected by its micro lens into the plane
        of the main lens and from there back on the sensor.
    shading_px2 : float
        Light that arrives obliquely is dimmer: across a micro image at C, the relative brightness
        changes by `-shading_px2 (C - c)` for each px. 0 means that no shading was found.
    """

    main_px: float
    micro_px: tuple[float, ...]
    shading_px2: float = 0.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.shading_px2) and self.shading_px2 >= 0.0):
            raise InputError(f"shading_px2 is {self.shading_px2}, needs 0 or a positive number")
        micro = tuple(float(radius) for radius in self.micro_px)
        if not micro:
            raise InputError("micro_px is empty, needs a radius for each lens type")
        for name, radius in (("main_px", self.main_px), *(("micro_px", r) for r in micro)):
            if not (math.isfinite(radius) and radius > 0.0):
                raise InputError(f"{name} has {radius}, needs positive numbers")
        object.__setattr__(self, "main_px", float(self.main_px))
        object.__setattr__(self, "micro_px", micro)

    @property
    def reach_px(self) -> float:
        """Largest distance from a micro-image center at which there is light, in px."""
        return self.main_px + max(self.micro_px)

    def compute_illumination(self, offset_px: npt.ArrayLike, lens_type: int = 0) -> FloatArray:
        """Return the brightness at a distance from the center, relative to that in the center."""
        micro = self.micro_px[lens_type]
        offset = np.abs(np.asarray(offset_px, np.float64))
        area, _ = compute_disc_overlap(self.main_px, micro, offset)
        return np.asarray(area / (np.pi * min(self.main_px, micro) ** 2))


@dataclass(frozen=True)
class Apertures:
    """The apertures of the main lens and of the micro lenses, both taken as thin lenses.

    Parameters
    ----------
    main_radius_mm : float
        Radius of the main lens' aperture.
    micro_radius_mm : float
        Radius of the aperture of each micro lens.
    lens_to_array_mm, array_to_sensor_mm : float
        b_L0 and B.
    """

    main_radius_mm: float
    micro_radius_mm: float
    lens_to_array_mm: float
    array_to_sensor_mm: float

    def __post_init__(self) -> None:
        for name in ("main_radius_mm", "micro_radius_mm"):
            if not getattr(self, name) > 0.0:
                raise InputError(f"{name} is {getattr(self, name)}, needs a positive number")

    def disc_radii_mm(self, focal_plane_v: npt.ArrayLike) -> tuple[float, FloatArray]:
        """Return the radii of the two discs whose overlap is the brightness of a white image.

        The first is the main aperture, projected on the sensor through the center of a micro lens;
        the second is the micro aperture, projected into the plane of the main lens and from there
        back on the sensor, for lens types that are in focus at the virtual depths `focal_plane_v`.
        """
        ratio = self.array_to_sensor_mm / self.lens_to_array_mm
        planes = np.asarray(focal_plane_v, np.float64)
        return self.main_radius_mm * ratio, self.micro_radius_mm * np.abs(ratio + 1.0 / planes)

    def compute_illumination(
        self, offset_mm: npt.ArrayLike, focal_plane_v: npt.ArrayLike
    ) -> FloatArray:
        """Return the fraction of the micro aperture from which light reaches a pixel, 0 to 1.

        Parameters
        ----------
        offset_mm : array_like
            Distance of the pixel from its micro-image center.
        focal_plane_v : array_like
            Virtual depth at which the lens is in focus, as the paper defines it:
            `(b_L - b_L0) / B`.
        """
        main, micro = self.disc_radii_mm(focal_plane_v)
        area, _ = compute_disc_overlap(micro, main, np.abs(np.asarray(offset_mm, np.float64)))
        return np.asarray(area / (np.pi * micro * micro))

    def compute_spot(
        self, offset_mm: npt.ArrayLike, focal_plane_v: npt.ArrayLike, depth_v: npt.ArrayLike
    ) -> tuple[FloatArray, FloatArray]:
        """Return the brightness of a point's image, and its shift from the pinhole position.

        The image of a point at virtual depth `v` has the shape of the used part of the micro
        aperture, scaled by the defocus `1 / v_T - 1 / v`. Its centroid is shifted by this factor
        times the centroid of the overlap.

        Parameters
        ----------
        offset_mm : array_like
            Distance of the pinhole image from the micro-image center.
        focal_plane_v : array_like
            Virtual depth at which the lens is in focus.
        depth_v : array_like
            Virtual depth of the point.

        Returns
        -------
        light : float64 array
            The fraction of the micro aperture that light of the point passes, 0 to 1.
        shift_mm : float64 array
            Shift of the centroid along the offset, positive outward; NaN where no ray arrives.
        """
        offset = np.abs(np.asarray(offset_mm, np.float64))
        depth = np.asarray(depth_v, np.float64)
        defocus = 1.0 / np.asarray(focal_plane_v, np.float64) - 1.0 / depth
        ratio = self.array_to_sensor_mm / self.lens_to_array_mm
        seen = ratio + 1.0 / depth
        area, centroid = compute_disc_overlap(
            self.micro_radius_mm,
            self.main_radius_mm * ratio / np.abs(seen),
            offset / np.abs(seen),
        )
        light = area / (np.pi * self.micro_radius_mm**2)
        return np.asarray(light), np.asarray(defocus * np.sign(seen) * centroid)
