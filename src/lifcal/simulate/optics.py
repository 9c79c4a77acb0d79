"""A camera with apertures: what the simulator needs beyond the pinhole model."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from lifcal.arrays import FloatArray, check_array, read_only
from lifcal.camera import Apertures, PlenopticCamera
from lifcal.errors import InputError


@dataclass(frozen=True, eq=False)
class Optics:
    """A plenoptic camera made of thin lenses with stops.

    Parameters
    ----------
    camera : PlenopticCamera
    main_radius_mm : float
        Radius of the main lens' aperture.
    micro_radius_mm : float
        Radius of every micro lens' aperture.
    focal_planes_v : (n_types,) float64
        The paper's virtual depth at which each lens type is in focus; negative for Keplerian use.
    """

    camera: PlenopticCamera
    main_radius_mm: float
    micro_radius_mm: float
    focal_planes_v: FloatArray

    def __post_init__(self) -> None:
        planes = check_array(
            self.focal_planes_v, "focal_planes_v", (self.camera.grid.n_types,), finite=True
        )
        if not np.all((planes > 1.0) | (planes < 0.0)):
            raise InputError(
                f"focal_planes_v is {planes.tolist()}: a micro lens with positive focal length is "
                "in focus at v above 1 or below 0"
            )
        object.__setattr__(self, "focal_planes_v", read_only(planes.copy()))
        _ = self.apertures  # checks the radii

    @classmethod
    def matched(
        cls,
        camera: PlenopticCamera,
        focal_planes_v: FloatArray,
        *,
        main_fill: float,
        micro_fill: float = 0.94,
    ) -> Optics:
        """Build with f-numbers matched: the main aperture's image fills `main_fill` of the pitch.

        Parameters
        ----------
        main_fill : float
            Diameter of the main aperture seen through the middle of a micro lens, in pitches.
        micro_fill : float
            Diameter of a micro aperture, in pitches of the micro lenses.
        """
        p = camera.parameters
        pitch_mm = camera.grid.pitch_px * camera.pixel_size_mm
        ratio = p.lens_to_array_mm / p.array_to_sensor_mm
        return cls(
            camera,
            main_radius_mm=0.5 * main_fill * pitch_mm * ratio,
            micro_radius_mm=0.5 * micro_fill * pitch_mm * ratio / (1.0 + ratio),
            focal_planes_v=focal_planes_v,
        )

    @property
    def apertures(self) -> Apertures:
        """The two stops, for vignetting and the shift of blurred points."""
        p = self.camera.parameters
        return Apertures(
            self.main_radius_mm, self.micro_radius_mm, p.lens_to_array_mm, p.array_to_sensor_mm
        )

    @property
    def micro_focal_lengths_mm(self) -> FloatArray:
        """Focal length of each lens type: `1 / f = (1 - 1 / v) / B`, (n_types,)."""
        focal: FloatArray = self.camera.parameters.array_to_sensor_mm / (
            1.0 - 1.0 / self.focal_planes_v
        )
        return focal

    @property
    def f_number(self) -> float:
        """Of the main lens: focal length over diameter."""
        return self.camera.parameters.focal_length_mm / (2.0 * self.main_radius_mm)

    @property
    def field_of_view_rad(self) -> float:
        """Full angle across the image: of the square that has the image's area."""
        width, height = self.camera.image_size
        return 2.0 * math.atan(0.5 * math.sqrt(width * height) / self.camera.array.focal_px)

    def stopped_down(self, micro_fraction: float) -> Optics:
        """Return the same camera with the micro apertures' radius multiplied."""
        camera = self.camera
        discs = camera.grid.discs
        if discs is not None:
            smaller = tuple(radius * micro_fraction for radius in discs.micro_px)
            grid = replace(camera.grid, discs=replace(discs, micro_px=smaller))
            camera = replace(camera, grid=grid)
        return replace(self, camera=camera, micro_radius_mm=self.micro_radius_mm * micro_fraction)
