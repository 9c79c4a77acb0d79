"""The simulated camera: thin lenses with apertures, instead of the pinholes of the camera model."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from lifcal.arrays import FloatArray, check_array, read_only
from lifcal.camera import Apertures, PlenopticCamera
from lifcal.errors import InputError
from lifcal.simulate.imperfections import Imperfections


@dataclass(frozen=True, eq=False)
class MicroLenses:
    """Positions of the micro lenses, in the order of the camera's grid.

    Lateral positions are in mm from the optical axis, along the raw image's axes. The image side is
    rotated by 180 degrees, so that the raw image is upright.

    Parameters
    ----------
    centers_mm : (n_lenses, 2) float64
    distances_mm : (n_lenses,) float64
        Distance of each micro lens behind the main lens.
    image_centers_mm : (n_lenses, 2) float64
        Where the ray from the middle of the aperture stop through the micro lens' center meets the
        sensor, before the camera's distortion.
    """

    centers_mm: FloatArray
    distances_mm: FloatArray
    image_centers_mm: FloatArray

    def __post_init__(self) -> None:
        for name in ("centers_mm", "distances_mm", "image_centers_mm"):
            object.__setattr__(self, name, read_only(np.asarray(getattr(self, name), np.float64)))

    @classmethod
    def from_model(cls, camera: PlenopticCamera) -> MicroLenses:
        """Return the lenses that belong to the camera's micro-image centers without a tilt."""
        p = camera.parameters
        centers = (camera.image_centers_und_px - camera.principal_point_px) * camera.pixel_size_mm
        ratio = p.lens_to_array_mm / p.array_to_sensor_mm
        distances = np.full(len(centers), p.lens_to_array_mm)
        return cls(centers * (ratio / (1.0 + ratio)), distances, centers)

    @classmethod
    def from_centers(
        cls, centers_mm: FloatArray, camera: PlenopticCamera, imperfections: Imperfections
    ) -> MicroLenses:
        """Return lenses at given lateral positions; a tilt of the array changes their distances.

        Parameters
        ----------
        centers_mm : (n_lenses, 2) float64
        camera : PlenopticCamera
            A camera of which only the distances are used, not the grid.
        imperfections : Imperfections
            Imperfections of which only the tilt and the stop are used.
        """
        p = camera.parameters
        tilt = np.radians([imperfections.tilt_x_deg, imperfections.tilt_y_deg])
        distances = p.lens_to_array_mm + centers_mm @ np.tan(tilt)
        to_sensor = p.lens_to_array_mm + p.array_to_sensor_mm - imperfections.stop_mm
        images = centers_mm * (to_sensor / (distances - imperfections.stop_mm))[:, None]
        return cls(centers_mm, distances, images)


@dataclass(frozen=True, eq=False)
class Optics:
    """A plenoptic camera made of thin lenses with stops.

    Parameters
    ----------
    camera : PlenopticCamera
        The physical values, with the true micro-image centers as they are recorded.
    main_radius_mm : float
        Radius of the main lens' aperture stop.
    micro_radius_mm : float
        Radius of every micro lens' aperture.
    focal_planes_v : (n_types,) float64
        The paper's virtual depth at which each lens type is in focus; negative for Keplerian use.
        It gives the focal length of each type, for a micro lens on the axis.
    lenses : MicroLenses or None
        Positions of the micro lenses. If None, they are those of the camera model, in a plane
        parallel to the sensor.
    imperfections : Imperfections
    """

    camera: PlenopticCamera
    main_radius_mm: float
    micro_radius_mm: float
    focal_planes_v: FloatArray
    lenses: MicroLenses | None = None
    imperfections: Imperfections = Imperfections()  # noqa: RUF009 (frozen)

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
        lenses: MicroLenses | None = None,
        imperfections: Imperfections = Imperfections(),  # noqa: B008 (frozen)
    ) -> Optics:
        """Build a camera whose main aperture matches the micro lenses (same f-number).

        Parameters
        ----------
        main_fill : float
            Diameter of the main aperture seen through the middle of a micro lens, in pitches.
        micro_fill : float
            Diameter of a micro aperture, in pitches of the micro lenses.
        lenses, imperfections
            As for `Optics`.
        """
        p = camera.parameters
        pitch_mm = camera.grid.pitch_px * camera.pixel_size_mm
        ratio = (p.lens_to_array_mm - imperfections.stop_mm) / p.array_to_sensor_mm
        return cls(
            camera,
            main_radius_mm=0.5 * main_fill * pitch_mm * ratio,
            micro_radius_mm=0.5 * micro_fill * pitch_mm * ratio / (1.0 + ratio),
            focal_planes_v=focal_planes_v,
            lenses=lenses,
            imperfections=imperfections,
        )

    @cached_property
    def micro_lenses(self) -> MicroLenses:
        """Positions of the micro lenses."""
        return MicroLenses.from_model(self.camera) if self.lenses is None else self.lenses

    @property
    def main_focal_lengths_mm(self) -> FloatArray:
        """Focal length of the main lens for rays that come to each micro lens, (n_lenses,)."""
        lenses = self.micro_lenses
        square = np.sum((lenses.centers_mm / lenses.distances_mm[:, None]) ** 2, axis=1)
        curvature = self.imperfections.field_curvature
        focal: FloatArray = self.camera.parameters.focal_length_mm / (1.0 + curvature * square)
        return focal

    @property
    def apertures(self) -> Apertures:
        """The two stops, for vignetting and the shift of blurred points."""
        p = self.camera.parameters
        return Apertures(
            self.main_radius_mm,
            self.micro_radius_mm,
            p.lens_to_array_mm - self.imperfections.stop_mm,
            p.array_to_sensor_mm,
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
        """F-number of the main lens: focal length over diameter."""
        return self.camera.parameters.focal_length_mm / (2.0 * self.main_radius_mm)

    @property
    def field_of_view_rad(self) -> float:
        """Full angle of view across a square that has the area of the image."""
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
