"""Cameras to simulate: the paper's, others that are in use, and small ones for tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from lifcal.camera import (
    BrownDistortion,
    Distortion,
    Lattice,
    MicroLensGrid,
    NoDistortion,
    OverlapDiscs,
    PhysicalParameters,
    PlenopticCamera,
)
from lifcal.errors import ConfigError
from lifcal.simulate.optics import Optics


@dataclass(frozen=True)
class CameraDesign:
    """The numbers of a simulated camera.

    Parameters
    ----------
    parameters : PhysicalParameters
    pixel_size_um : float
    image_size : (int, int)
    layout : str
        Of the micro-lens grid.
    pitch_px : float
        Of the micro images.
    rotation_rad : float
        Of the grid.
    focal_planes_v : tuple of float
        Virtual depth in focus for each lens type; its length is the number of types.
    main_fill : float
        Diameter of the main aperture seen through a micro lens, in pitches.
    distortion : Distortion
    working_range_mm : (float, float)
        Depths that the focal planes cover.
    """

    parameters: PhysicalParameters
    pixel_size_um: float
    image_size: tuple[int, int]
    layout: str
    pitch_px: float
    rotation_rad: float
    focal_planes_v: tuple[float, ...]
    main_fill: float
    distortion: Distortion
    working_range_mm: tuple[float, float]

    def build(self) -> Optics:
        """Return the camera with its apertures; the grid's central lens is off the image center."""
        width, height = self.image_size
        lattice = Lattice.regular(
            self.layout,
            self.pitch_px,
            ((width - 1) / 2 + 0.27 * self.pitch_px, (height - 1) / 2 - 0.18 * self.pitch_px),
            rotation_rad=self.rotation_rad,
            n_types=len(self.focal_planes_v),
        )
        grid = MicroLensGrid.from_lattice(lattice, self.image_size)
        planes = np.array(self.focal_planes_v)
        pixel_mm = self.pixel_size_um / 1000.0
        camera = PlenopticCamera(self.parameters, pixel_mm, grid, self.distortion, "simulation")
        optics = Optics.matched(camera, planes, main_fill=self.main_fill)
        main, micro = optics.apertures.disc_radii_mm(planes)
        grid = replace(
            grid,
            focal_planes=camera.virtual_depth_from_paper(planes),
            discs=OverlapDiscs(main / pixel_mm, tuple((micro / pixel_mm).tolist())),
        )
        return replace(optics, camera=replace(camera, grid=grid))


def _r5(
    parameters: PhysicalParameters,
    planes: tuple[float, ...],
    working_range_mm: tuple[float, float],
) -> CameraDesign:
    """Return a Raytrix R5: 2048 x 2048 pixels of 5.5 um, hexagonal in columns, three types."""
    return CameraDesign(
        parameters=parameters,
        pixel_size_um=5.5,
        image_size=(2048, 2048),
        layout="hexagonal-columns",
        pitch_px=23.2023,
        rotation_rad=0.0008,
        focal_planes_v=planes,
        main_fill=0.80,
        distortion=BrownDistortion(k0=-6e-9, k1=1.5e-15, k2=0.0, p0=1.5e-7, p1=-1.0e-7),
        working_range_mm=working_range_mm,
    )


CAMERAS: Mapping[str, CameraDesign] = {
    # Table 1 of the paper, reference calibrations.
    "r5-12.5mm": _r5(
        PhysicalParameters(13.181, 12.209, 0.399, 1006.5, 1041.5),
        (2.55, 2.95, 3.6),
        (260.0, 4000.0),
    ),
    "r5-16mm": _r5(
        PhysicalParameters(16.748, 15.893, 0.376, 1018.7, 1054.2), (2.5, 3.1, 4.2), (260.0, 4000.0)
    ),
    "r5-35mm": _r5(
        PhysicalParameters(35.368, 34.471, 0.370, 1022.0, 1031.0), (2.9, 3.6, 4.8), (900.0, 8000.0)
    ),
    # Near Table 4; the pitch is not published.
    "r25-12mm": CameraDesign(
        parameters=PhysicalParameters(13.067, 11.916, 0.342, 2684.6, 2288.3),
        pixel_size_um=2.74,
        image_size=(5320, 4600),
        layout="hexagonal-rows",
        pitch_px=36.12,
        rotation_rad=-0.0006,
        focal_planes_v=(3.5, 4.1, 5.0),
        main_fill=0.80,
        distortion=BrownDistortion(k0=-1.2e-9, k1=6e-17, k2=0.0, p0=4e-8, p1=3e-8),
        working_range_mm=(250.0, 4000.0),
    ),
    # A published target calibration of a Raytrix R12; stopped down to f/4.
    "r12-50mm": CameraDesign(
        parameters=PhysicalParameters(49.885, 56.860, 0.3371, 2078.35, 1591.00),
        pixel_size_um=5.5,
        image_size=(4080, 3068),
        layout="hexagonal-rows",
        pitch_px=23.3126,
        rotation_rad=1.5e-5,
        focal_planes_v=(2.373, 2.803, 2.509),
        main_fill=0.577,
        distortion=BrownDistortion(k0=-5e-10, k1=0.0, k2=0.0, p0=5e-8, p1=-5e-8),
        working_range_mm=(240.0, 370.0),
    ),
    # Small and fast: the R5 with 16 mm with larger pixels and fewer, larger micro lenses.
    "mini": CameraDesign(
        parameters=PhysicalParameters(16.748, 15.893, 0.376, 318.4, 242.7),
        pixel_size_um=17.6,
        image_size=(640, 480),
        layout="hexagonal-columns",
        pitch_px=12.6,
        rotation_rad=0.002,
        focal_planes_v=(2.5, 3.1, 4.2),
        main_fill=0.80,
        distortion=BrownDistortion(k0=-3e-8, k1=0.0, k2=0.0, p0=5e-7, p1=-3e-7),
        working_range_mm=(300.0, 4000.0),
    ),
    "mini-square": CameraDesign(
        parameters=PhysicalParameters(16.748, 15.893, 0.376, 322.0, 236.5),
        pixel_size_um=17.6,
        image_size=(640, 480),
        layout="square",
        pitch_px=14.3,
        rotation_rad=-0.004,
        focal_planes_v=(3.0,),
        main_fill=0.80,
        distortion=NoDistortion(),
        working_range_mm=(300.0, 4000.0),
    ),
    # Keplerian: the main lens' image lies in front of the micro lenses.
    "mini-keplerian": CameraDesign(
        parameters=PhysicalParameters(16.0, 18.2, 0.42, 317.0, 243.0),
        pixel_size_um=17.6,
        image_size=(640, 480),
        layout="hexagonal-rows",
        pitch_px=13.1,
        rotation_rad=0.003,
        focal_planes_v=(-3.9,),
        main_fill=0.80,
        distortion=BrownDistortion(k0=-2e-8, k1=0.0, k2=0.0, p0=0.0, p1=0.0),
        working_range_mm=(300.0, 1500.0),
    ),
}


def build_camera(name: str) -> Optics:
    """Return a simulated camera by name.

    Raises
    ------
    ConfigError
        If there is no camera of that name.
    """
    if name not in CAMERAS:
        raise ConfigError.unknown("camera", name, CAMERAS)
    return CAMERAS[name].build()
