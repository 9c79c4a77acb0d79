"""The grid: errors of centers, lens types and overlap discs, and results on real images."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks import white_images
from benchmarks.figures import Figure, best_time_s
from benchmarks.white_images import rms
from lifcal.arrays import Float32Array, ImageArray
from lifcal.camera import (
    MicroLensGrid,
    NoDistortion,
    PhysicalParameters,
    grid_from_center_list,
)
from lifcal.errors import DataError
from lifcal.grid.check import check_grid
from lifcal.grid.fit import GridFit, fit_grid_to_frames, fit_grid_to_white, refine_grid
from lifcal.imaging.frames import open_frames
from lifcal.imaging.raytrix import read_raytrix_xml
from lifcal.simulate import (
    CAMERAS,
    Optics,
    Renderer,
    SensorOptions,
    Simulation,
    SimulationOptions,
    build_camera,
    expose,
)

REAL_DATA = Path(__file__).resolve().parents[1] / ".." / "shared" / "data"
ROTATIONS_RAD = (0.0008, 0.09, -0.31)
N_SCENE_FRAMES = 20
_LAYOUTS = {"hexagonal-columns": (2.5, 3.1, 4.2), "square": (3.0,)}


def run() -> list[Figure]:
    return [*_white(), *_bent(), *_scene(), *_independent(), *_real(), *_times()]


def make_optics(
    layout: str,
    rotation_rad: float,
    planes: tuple[float, ...],
    *,
    size: tuple[int, int] = (900, 700),
    pitch_px: float = 23.2023,
    main_fill: float = 0.8,
) -> Optics:
    """Return a camera like the R5 with a smaller image, another grid and no lens distortion."""
    design = CAMERAS["r5-16mm"]
    p = design.parameters
    return replace(
        design,
        parameters=PhysicalParameters(
            p.focal_length_mm, p.lens_to_array_mm, p.array_to_sensor_mm, size[0] / 2, size[1] / 2
        ),
        image_size=size,
        layout=layout,
        rotation_rad=rotation_rad,
        focal_planes_v=planes,
        pitch_px=pitch_px,
        main_fill=main_fill,
        distortion=NoDistortion(),
    ).build()


def damage(
    light: Float32Array, grid: MicroLensGrid, rng: np.random.Generator, share: float = 0.05
) -> Float32Array:
    """Return a white image with dead and dirty lenses that is darker towards the corners.

    Half of the bad lenses are dim or dead (0 to 0.5 of their light), the others have a slope of
    brightness or a spot of dust.
    """
    out = light.copy()
    height, width = out.shape
    y, x = np.mgrid[0:height, 0:width].astype(np.float64)
    labels = replace(grid, radius_px=0.75 * grid.pitch_px).label_image()
    for lens in rng.choice(len(grid), round(share * len(grid)), replace=False):
        rows, cols = np.nonzero(labels == lens)
        if not len(rows):
            continue
        dx = (cols - grid.centers_raw_px[lens, 0]) / grid.pitch_px
        dy = (rows - grid.centers_raw_px[lens, 1]) / grid.pitch_px
        kind = rng.integers(4)
        if kind < 2:
            factor = np.full(len(rows), rng.uniform(0.0, 0.5))
        elif kind == 2:
            angle = rng.uniform(0.0, 2.0 * math.pi)
            factor = np.clip(1.0 + 1.5 * (dx * math.cos(angle) + dy * math.sin(angle)), 0.1, 1.3)
        else:
            spot = rng.uniform(-0.3, 0.3, 2)
            square = (dx - spot[0]) ** 2 + (dy - spot[1]) ** 2
            factor = 1.0 - 0.8 * np.exp(-square / (2.0 * 0.12**2))
        out[rows, cols] *= factor.astype(np.float32)
    radius = np.hypot(x - width / 2.0, y - height / 2.0) / math.hypot(width / 2.0, height / 2.0)
    return np.asarray(out * (1.0 - 0.6 * radius**2), np.float32)


def make_white(
    optics: Optics, bits: int, rng: np.random.Generator, *, bad_share: float = 0.0, rays: int = 16
) -> ImageArray:
    """Return a white image as a sensor with noise records it."""
    light = render_white(optics, rays)
    if bad_share > 0.0:
        light = damage(light, optics.camera.grid, rng, bad_share)
    return expose(light, SensorOptions(bits), rng)


def render_white(optics: Optics, rays: int = 16) -> Float32Array:
    """Return the light of a white image; 1 in the middle of the brightest micro images."""
    brightest = optics.apertures.compute_illumination(0.0, optics.focal_planes_v).max()
    return Renderer(optics, rays).render_white(1) / np.float32(brightest)


def center_error_px(grid: MicroLensGrid, truth: MicroLensGrid) -> float:
    """Return the rms distance of true centers inside the image from the nearest of a grid."""
    inside = ((truth.centers_raw_px >= 0) & (truth.centers_raw_px < truth.image_size)).all(axis=1)
    centers = truth.centers_raw_px[inside]
    off = grid.centers_raw_px[grid.nearest(centers)] - centers
    return float(np.sqrt(np.mean(np.sum(off**2, axis=1))))


def wrong_types(fit: GridFit, truth: MicroLensGrid) -> float:
    """Return the fraction of lenses with a wrong type; 1 if the number of types is wrong.

    Types are numbered by increasing virtual depth in focus, in the fit and in simulated cameras.
    """
    if fit.grid.n_types != truth.n_types:
        return 1.0
    lattice = fit.lattice
    indices = (truth.centers_raw_px - lattice.origin_px) @ np.linalg.inv(lattice.basis_px)
    found = lattice.types(np.round(indices).astype(np.int64))
    return float(np.mean(found != truth.lens_types))


def radii_error(fit: GridFit, truth: MicroLensGrid) -> float:
    """Return the largest relative error of the overlap discs' radii; NaN without discs."""
    if fit.discs is None or truth.discs is None or fit.grid.n_types != truth.n_types:
        return math.nan
    found = np.array([fit.discs.main_px, *fit.discs.micro_px])
    return float(np.abs(found / [truth.discs.main_px, *truth.discs.micro_px] - 1.0).max())


def _white() -> list[Figure]:
    rng = np.random.default_rng(0)
    clean: list[float] = []
    bad: list[float] = []
    types: list[float] = []
    radii: list[float] = []
    for layout, planes in _LAYOUTS.items():
        for rotation in ROTATIONS_RAD:
            optics = make_optics(layout, rotation, planes)
            truth = optics.camera.grid
            light = render_white(optics, 64)
            damaged = damage(light, truth, rng)
            for bits in (8, 16):
                options = SensorOptions(bits)
                for image, errors in ((light, clean), (damaged, bad)):
                    fit = fit_grid_to_white(expose(image, options, rng))
                    right = fit.layout == truth.lattice.layout if truth.lattice else False
                    errors.append(center_error_px(fit.grid, truth) if right else math.nan)
                    types.append(wrong_types(fit, truth))
                    radii.append(radii_error(fit, truth))
    return [
        Figure(
            "white image, lattice centers, worst of 12, rms", _worst(clean), "px", "lower", 0.02
        ),
        Figure(
            "white image, 5 % bad lenses, dark corners, worst of 12, rms",
            _worst(bad),
            "px",
            "lower",
            0.02,
        ),
        Figure("white image, lenses of wrong type, worst of 24", _worst(types), "1", "lower", 0.0),
        Figure("white image, overlap radii, worst of 24", _worst(radii), "relative", "lower", 0.03),
    ]


def _bent() -> list[Figure]:
    """Return figures of white images whose centers are not on a lattice."""
    cases: dict[str, dict[str, float | bool]] = {
        "bend of 3.5 px in the corners": {"brown_px": 3.5},
        "bend of 8 px in the corners": {"brown_px": 8.0},
        "tilted array, 0.4 px in the corners": {"tilt_px": 0.4},
        "jitter of 0.05 px": {"jitter_px": 0.05},
        "cos^4 shading": {"cos4": True},
        "cos^4 shading, micro apertures filled": {"cos4": True, "aperture_px": 9.0},
        "cos^4 shading, one lens type": {"cos4": True, "n_types": 1},
        "all of these and 4 % dirty lenses": {
            "brown_px": 3.5,
            "tilt_px": 0.4,
            "jitter_px": 0.05,
            "cos4": True,
            "dust": 0.04,
        },
    }
    figures = []
    for what, options in cases.items():
        errors = []
        for seed in range(2):
            rng = np.random.default_rng([7, seed])
            white = white_images.render_white(rng, **options)  # type: ignore[arg-type]
            errors.append(rms(white.errors(fit_grid_to_white(white.image).grid)))
        figures.append(
            Figure(
                f"white image, {what}, centers, worse of 2, rms", max(errors), "px", "lower", 0.03
            )
        )
    return figures


def _independent() -> list[Figure]:
    """Return figures of recordings of another renderer, if they are available."""
    figures = []
    for name in ("bent", "tilted"):
        folder = REAL_DATA / "independent" / name
        if not folder.exists():
            continue
        true = np.load(folder / "truth" / "micro_images.npy")[:, 3:5]
        true = true[((true > 12.0) & (true < [1387.0, 987.0])).all(axis=1)]
        frames = open_frames(folder / "raw")
        grids = {
            image: fit_grid_to_white(open_frames(folder / image).read(0)).grid
            for image in ("white.png", "white16.png")
        }
        grids["20 frames"] = fit_grid_to_frames(frames, max_frames=N_SCENE_FRAMES).grid
        for what, grid in grids.items():
            error = rms(grid.centers_raw_px[grid.nearest(true)] - true)
            # Lenses of `tilted` jitter by 0.057 px rms, which cannot be measured in frames.
            limit = 0.15 if what == "20 frames" else 0.03
            figures.append(
                Figure(f"independent/{name}, {what}, centers, rms", error, "px", "lower", limit)
            )
        refused = 0
        for index in range(len(frames)):
            try:
                check_grid(frames.read(index), grids["white.png"])
            except DataError:
                refused += 1
        figures.append(
            Figure(f"independent/{name}, frames refused of 24", float(refused), "1", "lower", 0.0)
        )
    listed = REAL_DATA / "R12-A" / "center-R12-A.csv"
    if listed.exists():
        centers = np.genfromtxt(listed, delimiter=",", skip_header=1)[:, 2:]
        bend = grid_from_center_list(centers, (4080, 3068)).bend
        figures.append(
            Figure(
                "real R12, bend of 26,600 centers of a white image, rms",
                0.0 if bend is None else bend.rms_px,
                "px",
                "lower",
                0.12,
            )
        )
    return figures


def _worst(values: list[float]) -> float:
    """Return the largest value, or NaN if one of them is NaN."""
    return float(np.max(np.array(values)))


def _scene() -> list[Figure]:
    figures = []
    for scene in ("desk", "room"):
        simulation = Simulation(
            SimulationOptions(
                camera="r5-16mm",
                scene=scene,
                frames=N_SCENE_FRAMES,
                rays_per_pixel=2,
                pinhole_scale=0.01,
            )
        )
        raws = [simulation.render_frame(index).raw for index in range(N_SCENE_FRAMES)]
        truth = simulation.optics.camera.grid
        for count in (N_SCENE_FRAMES, 1):
            fit = fit_grid_to_frames(raws[:count])
            what = (
                f"{scene}, {count} frames and no white image" if count > 1 else f"{scene}, 1 frame"
            )
            figures += [
                Figure(
                    f"{what}, lattice centers, rms",
                    center_error_px(fit.grid, truth),
                    "px",
                    "lower",
                    0.1,
                ),
                Figure(f"{what}, lenses of wrong type", wrong_types(fit, truth), "1", "lower", 0.0),
                Figure(
                    f"{what}, overlap radii", radii_error(fit, truth), "relative", "lower", 0.03
                ),
            ]
    return figures


def _real() -> list[Figure]:
    """Return figures of real images, if they are available."""
    figures = []
    white = REAL_DATA / "white-microscope" / "white.tif"
    if white.exists():
        fit = fit_grid_to_white(open_frames(white).read(0))
        figures += [
            _square("real white image", fit),
            Figure(
                "real white image, |pitch - 15.4|", abs(fit.pitch_px - 15.4), "px", "lower", 0.1
            ),
            Figure("real white image, residuals, rms", fit.rms_px, "px", "lower", 0.05),
        ]
    raw = REAL_DATA / "keplerian-square" / "raw.jpg"
    if raw.exists():
        fit = fit_grid_to_frames([open_frames(raw).read(0)])
        figures += [
            _square("real Keplerian raw", fit),
            Figure(
                "real Keplerian raw, |pitch - 74.5|", abs(fit.pitch_px - 74.5), "px", "lower", 0.5
            ),
            Figure("real Keplerian raw, residuals, rms", fit.rms_px, "px", "lower", 0.3),
        ]
    crop = REAL_DATA / "R42" / "sc2_klein.png"
    if crop.exists():
        frame = open_frames(crop).read(0)
        maker = read_raytrix_xml(crop.with_suffix(".xml")).grid(frame.image_size)
        free = fit_grid_to_frames([frame])
        moved = refine_grid(maker, frame, source="scene")
        figures += [
            Figure(
                "real R42 raw, pitch without the XML, against it",
                abs(free.pitch_px / maker.pitch_px - 1.0),
                "relative",
                "lower",
                0.005,
            ),
            Figure(
                "real R42 raw, centers without the XML against the XML's moved to the raw, rms",
                center_error_px(free.grid, moved.grid),
                "px",
                "lower",
                1.5,
            ),
        ]
    return figures


def _square(what: str, fit: GridFit) -> Figure:
    return Figure(f"{what} is square", float(fit.layout == "square"), "1", "higher", 1.0)


def _times() -> list[Figure]:
    figures = []
    for name, limit in (("r5-16mm", 3.0), ("r25-12mm", 15.0)):
        optics = build_camera(name)
        white = make_white(optics, 8, np.random.default_rng(1), rays=4)
        height, width = white.shape
        seconds = best_time_s(partial(fit_grid_to_white, white), repeats=2)
        what = f"fit the grid to a white image of {width} x {height}"
        figures.append(Figure(what, seconds, "s", "lower", limit, noisy=True))
    return figures
