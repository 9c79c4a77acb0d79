"""Calibrations of cameras that violate the model's assumptions by construction.

In cameras with bent centers, the micro lenses form a regular lattice, and the lens' distortion
bends the recorded centers. Cameras named `-real` have tilt, jitter, object-space distortion, cos^4
shading and exposure drift; their errors are relative to the best fit of the camera model to exact
chief rays. Every recording has a seed that was not used for development. Set LIFCAL_BENCHMARK_DATA
to a folder that keeps recordings and calibrations; a run that was stopped continues there.
LIFCAL_BENCHMARK_RUNS limits the number of runs of each camera, and LIFCAL_BENCHMARK_CAMERAS
("mini,mini-real") the cameras.
"""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.calibrate import Case, calibrate_recording
from benchmarks.figures import Figure
from lifcal.arrays import FloatArray
from lifcal.camera import PlenopticCamera, read_camera
from lifcal.evaluate import Evaluation, evaluate_calibration
from lifcal.simulate import Simulation, SimulationOptions, write_sequence

FIRST_SEED = 201
RUNS = {"r5": 5, "mini": 20}
FRAMES = {"r5": 36, "mini": 16}
_SCENES = ("desk", "room")
_NAMES = ("f_L", "b_L0", "B", "c_x", "c_y")
BENT = ("r5-12.5mm", "r5-16mm", "mini")
REAL = ("r5-12.5mm-real", "r5-16mm-real", "mini-real")
_LIMITS = {
    # Limits of the large cameras: f_L and b_L0 in %, B in %, c in px.
    "bent": (0.03, 0.4, 0.7),
    "real": (0.05, 0.5, 1.2),
}
_SMALL = 10.0
"""Factor of the limits for small cameras: one of 640 x 480 pixels is determined ten times less
accurately than one of 2048 x 2048."""


@dataclass(frozen=True, eq=False)
class DepthErrors:
    """Errors of metric depth at two depths that the calibrated camera alone causes.

    Parameters
    ----------
    percent : (2, 5, 4) float64
        Errors at a near and a far depth, from the middle of the image to each of its corners.
    sigma_percent : (2,) float64
        Standard deviation in the middle, from that of alpha and beta.
    """

    percent: FloatArray
    sigma_percent: FloatArray

    @property
    def change_percent(self) -> float:
        """Largest change from the middle to a corner, caused by errors of tilt and distortion."""
        return float(np.abs(self.percent - self.percent[:, :1]).max())

    @property
    def sigmas(self) -> float:
        """Largest error in the middle, in sigmas."""
        return float(np.abs(self.percent[:, 0, 0] / self.sigma_percent).max())


@dataclass(frozen=True, eq=False)
class Outcome:
    """Result of a recording."""

    case: Case
    evaluation: Evaluation
    summary: dict[str, Any]
    depth: DepthErrors

    def error(self, name: str) -> float:
        """Return the error of a parameter, in per cent or px."""
        row = next(row for row in self.evaluation.parameters if row.name == name)
        return abs(row.error if row.percent is None else row.percent)

    def pulls(self) -> list[float]:
        """Return the errors in sigmas."""
        return [
            row.error_sigmas
            for row in self.evaluation.parameters
            if row.name in _NAMES and row.error_sigmas is not None
        ]


def run_small() -> list[Figure]:
    """Calibrate recordings of `mini-real` only, and compare their errors with the sigmas.

    One run takes less than a minute.
    """
    with tempfile.TemporaryDirectory() as scratch:
        data = Path(os.environ.get("LIFCAL_BENCHMARK_DATA", scratch))
        outcomes = [run_case(case, data) for case in list_cases("mini-real")]
    worst = max(abs(pull) for outcome in outcomes for pull in outcome.pulls())
    name = f"mini-real, worst of {len(outcomes)}"
    return [
        *accuracy(outcomes, name, "real"),
        Figure(f"{name}: largest error in sigmas", worst, "", "lower", 4.0),
    ]


def run() -> list[Figure]:
    with tempfile.TemporaryDirectory() as scratch:
        data = Path(os.environ.get("LIFCAL_BENCHMARK_DATA", scratch))
        figures = []
        wanted = os.environ.get("LIFCAL_BENCHMARK_CAMERAS", ",".join(BENT + REAL)).split(",")
        for kind, known in (("bent", BENT), ("real", REAL)):
            cameras = [camera for camera in known if camera in wanted]
            if not cameras:
                continue
            outcomes = [[run_case(case, data) for case in list_cases(camera)] for camera in cameras]
            for camera, found in zip(cameras, outcomes, strict=True):
                figures += accuracy(found, f"{camera}, worst of {len(found)}", kind)
            figures += honesty([o for found in outcomes for o in found], kind)
        return figures


def list_cases(camera: str) -> list[Case]:
    """Return the recordings of a camera: desks and rooms in turn."""
    size = camera.partition("-")[0]
    runs = min(RUNS[size], int(os.environ.get("LIFCAL_BENCHMARK_RUNS", RUNS[size])))
    return [
        Case(camera, _SCENES[i % 2] if size != "mini" else "desk", FIRST_SEED + i, "markers")
        for i in range(runs)
    ]


def run_case(case: Case, data: Path) -> Outcome:
    """Render and calibrate the recording unless that was done before, and compare."""
    recording = data / case.recording
    options = SimulationOptions(
        camera=case.camera,
        scene=case.scene,
        frames=FRAMES[case.camera.partition("-")[0]],
        seed=case.seed,
    )
    simulation = Simulation(options)
    write_sequence(recording, simulation)
    out = data / f"{case.name}-calibration"
    if not (out / "report.html").exists():
        calibrate_recording(case, recording, out, simulation.optics.camera)
    truth = recording / "truth"
    best = truth / "best_fit.json"
    true = read_camera(best if best.is_file() else truth / "camera.json")
    evaluation = evaluate_calibration(out, recording)
    summary = json.loads((out / "summary.json").read_text())
    return Outcome(
        case, evaluation, summary, compare_depths(read_camera(out / "camera.json"), true, summary)
    )


def compare_depths(
    camera: PlenopticCamera, true: PlenopticCamera, summary: dict[str, Any]
) -> DepthErrors:
    """Return the errors of depth from the middle to the corners, at a near and a far depth."""
    width, height = true.image_size
    depths = [entry["z_near"] for entry in summary["residuals"]["by_lens_type_and_depth"]]
    depths += [entry["z_far"] for entry in summary["residuals"]["by_lens_type_and_depth"]]
    known = [depth for depth in depths if depth is not None]
    pair = np.quantile(known, [0.25, 0.75])
    bias = []
    for depth in pair.tolist():
        for way in np.linspace(0.0, 0.95, 5):
            for corner in ((0, 0), (width, 0), (0, height), (width, height)):
                place = true.principal_point_px
                place = place + way * (np.array(corner) - place)
                u = true.virtual_depth_from_depth(depth, place)
                bias.append(float(camera.depth_from_virtual_depth(u, place)) / depth - 1.0)
    assert camera.covariance is not None
    # z = beta / (u - alpha), so dz / z = dbeta / beta + (z / beta) dalpha
    names = camera.parameter_names
    chosen = [names.index("alpha"), names.index("beta")]
    covariance = camera.covariance[np.ix_(chosen, chosen)]
    slopes = np.stack([pair, np.ones(2)], axis=1) / camera.array.beta_mm
    sigmas = np.sqrt(np.einsum("ni,ij,nj->n", slopes, covariance, slopes))
    return DepthErrors(100.0 * np.reshape(bias, (2, 5, 4)), 100.0 * sigmas)


def accuracy(outcomes: list[Outcome], name: str, kind: str) -> list[Figure]:
    """Return the worst errors over the recordings of a camera."""
    slack = _SMALL if outcomes[0].case.camera.startswith("mini") else 1.0
    worst = {key: max(outcome.error(key) for outcome in outcomes) for key in _NAMES}
    length, array, center = (slack * limit for limit in _LIMITS[kind])
    change = max(outcome.depth.change_percent for outcome in outcomes)
    sigmas = max(outcome.depth.sigmas for outcome in outcomes)
    missing = sum(o.summary["n_frames"] - o.summary["n_registered"] for o in outcomes)
    return [
        Figure(f"{name}: f_L", worst["f_L"], "%", "lower", length),
        Figure(f"{name}: b_L0", worst["b_L0"], "%", "lower", length),
        Figure(f"{name}: B", worst["B"], "%", "lower", array),
        Figure(f"{name}: c", max(worst["c_x"], worst["c_y"]), "px", "lower", center),
        Figure(f"{name}: depth, change to the corner", change, "%", "lower", 0.3 * slack),
        Figure(f"{name}: depth in the middle, in sigmas", sigmas, "", "lower", 4.0),
        Figure(f"{name}: frames not registered", missing, "", "lower", 0),
    ]


def honesty(outcomes: list[Outcome], kind: str) -> list[Figure]:
    """Return figures that compare the errors of all recordings with the sigmas."""
    pulls = np.abs([pull for outcome in outcomes for pull in outcome.pulls()])
    inside = float(np.mean(pulls < 2.2))
    square = float(np.mean(pulls**2))
    return [
        Figure(f"{kind}: errors within 2.2 sigma", inside, "", "higher", 0.95),
        Figure(f"{kind}: largest error in sigmas", float(pulls.max()), "", "lower", 4.0),
        Figure(f"{kind}: mean square of errors in sigmas", square, "", "lower", 1.5),
        Figure(f"{kind}: mean square of errors in sigmas", square, "", "higher", 0.6),
    ]
