"""The simulator: agreement of its optics with the model, speed, and memory."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.figures import Figure, best_time_s
from benchmarks.spots import measure_spots, rms
from lifcal.simulate import (
    BestFit,
    Imperfections,
    PackedScene,
    Renderer,
    Simulation,
    SimulationOptions,
    build_camera,
    build_path,
    build_scene,
)


def run() -> list[Figure]:
    return [*_spots(), *_ray_noise(), _render_time(), _memory("r5-16mm", 1.5)]


def run_large() -> list[Figure]:
    """Return the figures that take long: fits to chief rays, and the memory of a large camera."""
    return [*_best_fits(), _memory("r25-12mm", 4.0)]


def _spots() -> list[Figure]:
    optics = build_camera("r5-16mm")
    rng = np.random.default_rng(0)
    small = measure_spots(optics.stopped_down(0.05), optics.focal_planes_v, rng, balls_per_depth=20)
    full = measure_spots(optics, optics.focal_planes_v, rng, balls_per_depth=20, reach=0.8)
    sharp = np.abs(full.defocus) < 1e-9
    blurred = full.where(~sharp)
    predicted, found = blurred.predicted_px, blurred.outward_px()
    slope = float(predicted @ found / (predicted @ predicted))
    return [
        Figure("balls, 5 % micro aperture, rms", rms(small.error_px), "px", "lower", 0.03),
        Figure("balls, in focus, rms", rms(full.where(sharp).error_px), "px", "lower", 0.03),
        Figure(
            "balls, out of focus, rms before the predicted shift",
            rms(blurred.error_px),
            "px",
            "higher",
            0.08,
        ),
        Figure(
            "balls, out of focus, rms after the predicted shift",
            rms(blurred.residual_px()),
            "px",
            "lower",
            0.03,
        ),
        Figure(
            "balls, out of focus, |found / predicted shift - 1|",
            abs(slope - 1.0),
            "1",
            "lower",
            0.05,
        ),
    ]


def _ray_noise() -> list[Figure]:
    """Return the noise of ray sampling in bright parts of micro images, of 255, by lens type."""
    figures = []
    for scene in ("wall", "room"):
        simulation = Simulation(SimulationOptions(scene=scene, frames=36, seed=1))
        optics, packed = simulation.optics, PackedScene(simulation.scene)
        pose = simulation.trajectory.world_from_cam[12].inverse()
        x, y, size = 700, 700, 400
        white = 255.0 * simulation.options.sensor.exposure
        white /= optics.apertures.compute_illumination(0.0, optics.focal_planes_v).max()
        exact, *others = (
            white * Renderer(optics, rays).render_raw(packed, pose, rays, (x, y, size, size))
            for rays in (2048, 16, 64)
        )
        grid = optics.camera.grid
        rows, cols = np.mgrid[y : y + size, x : x + size]
        points = np.stack([cols, rows], axis=2).reshape(-1, 2).astype(np.float64)
        lenses = grid.index.nearest(points)
        away = np.linalg.norm(points - grid.centers_raw_px[lenses], axis=1).reshape(size, size)
        kinds = grid.lens_types[lenses].reshape(size, size)
        for rays, image in zip((16, 64), others, strict=True):
            noise = [
                float((image - exact)[(away < 0.35 * grid.pitch_px) & (kinds == kind)].std())
                for kind in range(grid.n_types)
            ]
            print(f"noise of {rays} rays, {scene}, by lens type: {np.round(noise, 2)} of 255")
            if rays == 16:
                what = f"noise of 16 rays, {scene}, sharpest lens type"
                figures.append(Figure(what, min(noise), "of 255", "lower", 1.5))
    return figures


def _best_fits() -> list[Figure]:
    """Fit the camera model to exact chief rays of imperfect cameras; return the residuals."""
    figures = []
    print("| camera, scene | left, rms | f_L | b_L0 | B | c |")
    for camera, scene in (
        ("r5-12.5mm-real", "desk"),
        ("r5-12.5mm-real", "room"),
        ("r5-16mm-real", "desk"),
        ("r5-16mm-real", "room"),
        ("r5-35mm-real", "desk"),
        ("r12-50mm-real", "desk"),
        ("mini-real", "desk"),
        ("mini-real", "room"),
    ):
        fit, cells = _fit(SimulationOptions(camera=camera, scene=scene))
        print(f"| `{camera}`, {scene} | {fit.rms_px:.4f} px | {cells} |")
        if scene == "desk":
            what = f"camera model fitted to chief rays of {camera}, rms"
            figures.append(Figure(what, fit.rms_px, "px", "lower", 0.005))
    _, cells = _fit(SimulationOptions(imperfections=Imperfections(stop_mm=2.5)))
    print(f"stop 2.5 mm behind the main lens of r5-16mm: {cells}")
    grid = build_camera("r5-12.5mm").camera.grid
    regular = build_camera("r5-12.5mm", Imperfections(lattice="recorded")).camera.grid.lattice
    assert regular is not None
    middle = grid.nearest(regular.origin_px[None])[0]
    steps = (grid.centers_raw_px - grid.centers_raw_px[middle]) @ np.linalg.inv(regular.basis_px)
    design = np.column_stack([np.ones(len(grid)), np.rint(steps)])
    left = grid.centers_raw_px - design @ np.linalg.lstsq(design, grid.centers_raw_px)[0]
    away = np.hypot(left[:, 0], left[:, 1])
    print(f"bend of r5-12.5mm: {rms(away):.2f} px rms, {away.max():.2f} px at most")
    return figures


def _fit(options: SimulationOptions) -> tuple[BestFit, str]:
    simulation = Simulation(options)
    fit = simulation.fit_best_model()
    true = simulation.optics.camera.parameters.as_vector()
    change = fit.camera.parameters.as_vector() - true
    lengths = " | ".join(f"{part:+.3f} %" for part in 100.0 * change[:3] / true[:3])
    return fit, f"{lengths} | {np.hypot(*change[3:]):.2f} px"


def _render_time() -> Figure:
    optics = build_camera("r5-16mm")
    renderer = Renderer(optics, 16)
    scene = build_scene("desk", 1)
    packed = PackedScene(scene)
    pose = build_path("winding", scene, 1, 1, optics.field_of_view_rad)[0].inverse()
    seconds = best_time_s(lambda: renderer.render_raw(packed, pose, 1), repeats=3)
    return Figure("render 2048 x 2048 at 16 rays a pixel", seconds, "s", "lower", 8.0, noisy=True)


def _memory(camera: str, limit: float) -> Figure:
    return Figure(
        f"peak memory of lifcal simulate, {camera}", _peak_gb(camera), "GB", "lower", limit
    )


def _peak_gb(camera: str) -> float:
    with tempfile.TemporaryDirectory() as folder:
        code = (
            "import resource, subprocess, sys;"
            "subprocess.run([sys.executable, '-m', 'lifcal', 'simulate', *sys.argv[1:]],"
            " check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL);"
            "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
        )
        options = [
            "--camera",
            camera,
            "--frames",
            "2",
            "--rays",
            "4",
            "-o",
            str(Path(folder) / "out"),
        ]
        done = subprocess.run(
            [sys.executable, "-c", code, *options], check=True, capture_output=True, text=True
        )
    return int(done.stdout) * 1024 / 1e9
