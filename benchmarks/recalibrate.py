"""Recalibration of a lens that was refocused, with f_L and B of an earlier calibration.

A small camera is calibrated with markers. Then its lens is refocused, which changes b_L0 and
moves the principal point, and another desk is recorded. `lifcal calibrate --known camera.json`
takes f_L and B with their covariance from the first calibration and uses no marker. The errors of
F, b_L0 and c are compared with their sigmas. Set LIFCAL_BENCHMARK_DATA to a folder that keeps
recordings and calibrations; LIFCAL_BENCHMARK_RUNS limits the number of runs. A run takes about two
minutes.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np

from benchmarks.calibrate import Case, calibrate_recording
from benchmarks.figures import Figure, run_lifcal
from lifcal.evaluate import evaluate_calibration
from lifcal.simulate import Simulation, SimulationOptions, write_sequence
from lifcal.simulate.cameras import CAMERAS, CameraDesign

RUNS = 10
FRAMES = 16
FIRST_SEED = 401
_CAMERA, _REFOCUSED = "mini", "mini-refocused"
_MOVED_MM = 0.06
"""Distance by which the lens is moved away from the array, in mm: it was focused on an object at
1 m, and is refocused on one at 0.83 m."""
_MOVED_PX = (2.0, -1.5)
"""Shift of the principal point that turning the focus ring causes, in px."""
_NAMES = ("F", "b_L0", "c_x", "c_y")


def run() -> list[Figure]:
    with tempfile.TemporaryDirectory() as scratch:
        data = Path(os.environ.get("LIFCAL_BENCHMARK_DATA", scratch))
        runs = min(RUNS, int(os.environ.get("LIFCAL_BENCHMARK_RUNS", RUNS)))
        pulls = np.abs([run_one(FIRST_SEED + i, data) for i in range(runs)])
    name = f"refocused, {runs} runs"
    return [
        Figure(f"{name}: within 2 sigma", float(np.mean(pulls < 2.0)), "", "higher", 0.9),
        Figure(f"{name}: largest error in sigmas", float(pulls.max()), "", "lower", 3.5),
        Figure(f"{name}: mean square in sigmas", float(np.mean(pulls**2)), "", "lower", 1.5),
    ]


def run_one(seed: int, data: Path) -> list[float]:
    """Calibrate a camera, refocus its lens, recalibrate; return the errors in sigmas."""
    cameras = cast("dict[str, CameraDesign]", CAMERAS)  # to add a camera for this benchmark
    cameras[_REFOCUSED] = refocus(CAMERAS[_CAMERA])
    first = Case(_CAMERA, "desk", seed, "markers")
    recording, out = data / first.recording, data / f"{first.name}-calibration"
    simulation = _record(first, recording)
    if not (out / "report.html").exists():
        calibrate_recording(first, recording, out, simulation.optics.camera)
    again = Case(_REFOCUSED, "desk", seed + 100, "earlier")
    recording, result = data / again.recording, data / f"{again.name}-calibration"
    camera = _record(again, recording).optics.camera
    words = ["calibrate", recording / "raw", "--white", recording / "white.png", "-o", result]
    words += ["--pixel-size-um", camera.pixel_size_mm * 1000.0, "--known", out / "camera.json"]
    if not (result / "report.html").exists():
        run_lifcal(*words)
    found = {row.name: row for row in evaluate_calibration(result, recording).parameters}
    pulls = [found[name].error_sigmas for name in _NAMES]
    return [np.inf if pull is None else pull for pull in pulls]


def refocus(design: CameraDesign) -> CameraDesign:
    """Return the camera with its lens focused on a nearer object."""
    p = design.parameters
    moved = replace(
        p,
        lens_to_array_mm=p.lens_to_array_mm + _MOVED_MM,
        principal_x_px=p.principal_x_px + _MOVED_PX[0],
        principal_y_px=p.principal_y_px + _MOVED_PX[1],
    )
    # The focal planes of the micro lenses do not move relative to the array.
    images = [1.0 / (1.0 / p.focal_length_mm - 1.0 / z) for z in design.working_range_mm]
    near, far = (1.0 / (1.0 / p.focal_length_mm - 1.0 / (b + _MOVED_MM)) for b in images)
    return replace(design, parameters=moved, working_range_mm=(near, far))


def _record(case: Case, folder: Path) -> Simulation:
    simulation = Simulation(
        SimulationOptions(camera=case.camera, scene=case.scene, frames=FRAMES, seed=case.seed)
    )
    write_sequence(folder, simulation)
    return simulation
