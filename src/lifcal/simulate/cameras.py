"""Cameras to simulate: those of the paper, other existing ones, and small ones for tests."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from lifcal.arrays import read_only
from lifcal.camera import (
    ArrayTilt,
    BrownDistortion,
    Distortion,
    Lattice,
    MicroLensGrid,
    NoDistortion,
    OverlapDiscs,
    PhysicalParameters,
    PlenopticCamera,
)
from lifcal.camera.center_list import fit_lattice_and_bend
from lifcal.errors import ConfigError, InputError
from lifcal.simulate.imperfections import REAL, Imperfections
from lifcal.simulate.optics import MicroLenses, Optics


@dataclass(frozen=True)
class CameraDesign:
    """The design of a simulated camera.

    Parameters
    ----------
    parameters : PhysicalParameters
    pixel_size_um : float
    image_size : (int, int)
    layout : str
        Layout of the micro-lens grid.
    pitch_px : float
        Distance between neighboring micro images.
    rotation_rad : float
        Rotation of the grid.
    focal_planes_v : tuple of float
        Virtual depth in focus for each lens type; its length is the number of types.
    main_fill : float
        Diameter of the main aperture seen through a micro lens, in pitches.
    distortion : Distortion
    working_range_mm : (float, float)
        Depths that the focal planes cover.
    imperfections : Imperfections
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
    imperfections: Imperfections = Imperfections()  # noqa: RUF009 (frozen)

    def build(self, imperfections: Imperfections | None = None, seed: int = 0) -> Optics:
        """Return the camera with its apertures; the grid's central lens is off the image center.

        Parameters
        ----------
        imperfections : Imperfections or None
            Imperfections of the camera; None takes those of the design.
        seed : int
            Seed of the jitter of the micro lenses.
        """
        errors = self.imperfections if imperfections is None else imperfections
        width, height = self.image_size
        lattice = Lattice.regular(
            self.layout,
            self.pitch_px,
            ((width - 1) / 2 + 0.27 * self.pitch_px, (height - 1) / 2 - 0.18 * self.pitch_px),
            rotation_rad=self.rotation_rad + math.radians(errors.rotation_deg),
            n_types=len(self.focal_planes_v),
        )
        planes = np.array(self.focal_planes_v)
        pixel_mm = self.pixel_size_um / 1000.0
        camera = PlenopticCamera(
            self.parameters,
            pixel_mm,
            MicroLensGrid.from_lattice(lattice, self.image_size),
            self.distortion,
            "simulation",
        )
        lenses = None
        bent = errors.lattice == "ideal" and self.distortion.parameters.any()
        if bent or not errors.array_is_ideal:
            camera, lenses = _place_lenses(camera, lattice, errors, np.random.default_rng(seed))
        optics = Optics.matched(
            camera, planes, main_fill=self.main_fill, lenses=lenses, imperfections=errors
        )
        main, micro = optics.apertures.disc_radii_mm(planes)
        grid = replace(
            camera.grid,
            focal_planes=camera.virtual_depth_from_paper(planes),
            discs=OverlapDiscs(
                main / pixel_mm,
                tuple((micro / pixel_mm).tolist()),
                self._compute_shading() if errors.cos4 else 0.0,
            ),
        )
        return replace(optics, camera=replace(camera, grid=grid))

    def _compute_shading(self) -> float:
        """Return the shading that cos^4 causes, in 1/px^2; see `OverlapDiscs.shading_px2`."""
        p, pixel_mm = self.parameters, self.pixel_size_um / 1000.0
        total = p.lens_to_array_mm + p.array_to_sensor_mm
        return 4.0 * pixel_mm**2 / (total * p.array_to_sensor_mm)


def _place_lenses(
    camera: PlenopticCamera,
    lattice: Lattice,
    imperfections: Imperfections,
    rng: np.random.Generator,
) -> tuple[PlenopticCamera, MicroLenses]:
    """Place micro lenses on a regular lattice and compute where their images are recorded.

    Parameters
    ----------
    camera : PlenopticCamera
        A camera of which only the distances, the distortion and the image size are used.
    lattice : Lattice
        The ideal micro-image centers: those of an array without tilt and jitter, and of an aperture
        stop in the main lens.

    Returns
    -------
    camera : PlenopticCamera
        The same camera with its tilt and the true recorded centers of all micro images that touch
        the image.
    lenses : MicroLenses
    """
    c, s, p = camera.principal_point_px, camera.pixel_size_mm, camera.parameters
    radius = camera.grid.radius_px
    # Undistort the image's rim to find how far beyond the image the lattice must continue.
    width, height = camera.image_size
    x, y = np.linspace(-radius, width + radius, 50), np.linspace(-radius, height + radius, 50)
    rim = np.concatenate(
        [np.column_stack([x, np.full(50, at)]) for at in (y[0], y[-1])]
        + [np.column_stack([np.full(50, at), y]) for at in (x[0], x[-1])]
    )
    outside = np.abs(camera.distortion.undistort(rim, c) - rim).max()
    if not np.isfinite(outside):
        raise InputError(
            "the distortion folds back inside the image: some micro images have no place. "
            "Use smaller coefficients"
        )
    # The other imperfections move centers by far less than a pitch, except for the stop.
    stop = abs(imperfections.stop_mm) * p.array_to_sensor_mm / p.lens_to_array_mm**2
    indices = lattice.inside(
        camera.image_size, radius + outside + lattice.pitch_px + stop * max(width, height)
    )
    to_lens = p.lens_to_array_mm / (p.lens_to_array_mm + p.array_to_sensor_mm)
    centers_mm = (lattice.centers(indices) - c) * s * to_lens
    if imperfections.jitter_px > 0.0:
        centers_mm = centers_mm + imperfections.jitter_px * s * rng.standard_normal(
            (len(indices), 2)
        )
    lenses = MicroLenses.from_centers(centers_mm, camera, imperfections)
    recorded = camera.distortion.distort(c + lenses.image_centers_mm / s, c)
    inside = (recorded >= -0.5 - radius).all(axis=1) & (
        recorded <= np.array(camera.image_size) - 0.5 + radius
    ).all(axis=1)
    recorded, indices = recorded[inside], indices[inside]
    near, bend = fit_lattice_and_bend(
        recorded, indices, camera.image_size, lattice.n_types, lattice.type_rule
    )
    smooth = near.centers(indices)
    smooth = smooth if bend is None else smooth + bend.at(smooth)
    grid = replace(
        camera.grid,
        centers_raw_px=recorded,
        lens_types=lattice.types(indices),
        lattice=near,
        indices_qr=read_only(indices),
        bend=bend,
        deviations_px=recorded - smooth,
    )
    tilt = None
    if imperfections.tilt_x_deg or imperfections.tilt_y_deg:
        angles = (imperfections.tilt_x_deg, imperfections.tilt_y_deg)
        tilt = ArrayTilt.from_angles(angles, p.array_to_sensor_mm, s)
    return replace(camera, grid=grid, tilt=tilt), MicroLenses(
        lenses.centers_mm[inside], lenses.distances_mm[inside], lenses.image_centers_mm[inside]
    )


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


_PERFECT: Mapping[str, CameraDesign] = {
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


def _make_real(design: CameraDesign) -> CameraDesign:
    """Return the design with mild imperfections.

    Its object-space distortion refers to a distance in the camera's working range.
    """
    near, far = design.working_range_mm
    middle = round(2.0 / (1.0 / near + 1.0 / far))
    return replace(design, imperfections=replace(REAL, object_distortion_distance_mm=float(middle)))


CAMERAS: Mapping[str, CameraDesign] = {
    **_PERFECT,
    **{f"{name}-real": _make_real(design) for name, design in _PERFECT.items()},
}


def build_camera(name: str, imperfections: Imperfections | None = None, seed: int = 0) -> Optics:
    """Return a simulated camera by name.

    Parameters
    ----------
    name : str
        One of `CAMERAS`. Those with `-real` at the end have mild imperfections.
    imperfections : Imperfections or None
        Imperfections of the camera; None takes those of the named camera.
    seed : int
        Seed of the jitter of the micro lenses.

    Raises
    ------
    ConfigError
        If there is no camera of that name.
    """
    if name not in CAMERAS:
        raise ConfigError.unknown("camera", name, CAMERAS)
    return CAMERAS[name].build(imperfections, seed)
