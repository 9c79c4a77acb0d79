"""Comparison of `lifcal calibrate` with the truth of simulations: errors, sigmas, time, memory.

Recordings have 36 frames with full optics (finite apertures, three lens types, noise, Brown
distortion, 8 bit). They take minutes to render. Set LIFCAL_BENCHMARK_DATA to a folder that keeps
them and the calibrations, so that a second run only compares. Every calibration runs the command
line in its own process.
"""

from __future__ import annotations

import json
import os
import resource
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.figures import Figure, run_lifcal
from lifcal.arrays import FloatArray
from lifcal.bundle import FocusTerm, Layout, Problem
from lifcal.camera import PlenopticCamera, read_camera, read_grid
from lifcal.evaluate import Evaluation, evaluate_calibration
from lifcal.evaluate.trajectory import compare_trajectories
from lifcal.export import open_calibration
from lifcal.geometry import read_tum
from lifcal.imaging.files import read_image
from lifcal.reconstruction import Reconstruction, read_observations
from lifcal.simulate import Simulation, SimulationOptions, write_sequence

FRAMES = 36
SEEDS = (1, 2, 3)
_PICK_SIGMA_MM = 0.3
_OUTLIER_SIGMAS = 5.0


@dataclass(frozen=True)
class Case:
    """A recording, and the source of scale with which it is calibrated."""

    camera: str
    scene: str
    seed: int
    scale: str
    """Source of the scale: 'markers', 'distance' or 'known'."""
    white: bool = True

    @property
    def recording(self) -> str:
        """Folder of the recording."""
        return f"{self.camera}-{self.scene}-{self.seed}"

    @property
    def name(self) -> str:
        """Name of the case in figures."""
        return f"{self.recording}-{self.scale}{'' if self.white else '-no-white'}"


MAIN = [
    Case("r5-16mm", scene, seed, scale)
    for scene, scale in (("desk", "markers"), ("room", "distance"))
    for seed in SEEDS
]
OTHERS = [
    Case("r5-12.5mm", "cube", 1, "markers"),
    Case("r5-35mm", "cube", 1, "markers"),
    Case("r25-12mm", "desk", 1, "markers"),
]
WITHOUT_WHITE = [Case("r5-16mm", "desk", 1, "markers", white=False)]
RECALIBRATION = [Case("r5-16mm", "desk", 1, "known")]


@dataclass(frozen=True, eq=False)
class Outcome:
    """Result of a case."""

    case: Case
    evaluation: Evaluation
    summary: dict[str, Any]
    seconds: float
    peak_gb: float
    measurement_px: float
    """Rms error of measured positions, relative to the points that fit them best with the true
    camera."""
    bias_px: FloatArray
    """Mean outward error by lens type and depth, with the focus term."""
    plain_bias_px: FloatArray
    """Mean outward error by lens type and depth, without the focus term."""

    def error(self, name: str) -> float:
        """Return the error of a parameter, in per cent or px."""
        row = next(row for row in self.evaluation.parameters if row.name == name)
        return abs(row.error if row.percent is None else row.percent)


def run() -> list[Figure]:
    with tempfile.TemporaryDirectory() as scratch:
        data = Path(os.environ.get("LIFCAL_BENCHMARK_DATA", scratch))
        main = [run_case(case, data) for case in MAIN]
        return [
            *accuracy(main, "r5-16mm, worst of six", 1.0),
            *honesty(main),
            *measurement(main),
            Figure(
                "36 frames of 2048 x 2048",
                max(o.seconds for o in main),
                "s",
                "lower",
                240.0,
                noisy=True,
            ),
            Figure("peak memory", max(o.peak_gb for o in main), "GB", "lower", 3.0),
            *(
                figure
                for case in OTHERS
                for figure in accuracy([run_case(case, data)], case.name, 2.0)
            ),
            *accuracy([run_case(WITHOUT_WHITE[0], data)], "only frames", 2.0),
            *recalibration(run_case(RECALIBRATION[0], data)),
        ]


def accuracy(outcomes: list[Outcome], name: str, slack: float) -> list[Figure]:
    """Return the worst errors; limits are `slack` times those of the 16 mm camera."""
    worst = {
        key: max(outcome.error(key) for outcome in outcomes)
        for key in ("f_L", "b_L0", "B", "c_x", "c_y")
    }
    paths = [o.evaluation.trajectory for o in outcomes]
    path = max(p.translation_rmse_mm if p is not None else np.inf for p in paths)
    missing = sum(o.summary["n_frames"] - o.summary["n_registered"] for o in outcomes)
    return [
        Figure(f"{name}: f_L", worst["f_L"], "%", "lower", 0.05 * slack),
        Figure(f"{name}: b_L0", worst["b_L0"], "%", "lower", 0.05 * slack),
        Figure(f"{name}: B", worst["B"], "%", "lower", 0.5 * slack),
        Figure(f"{name}: c", max(worst["c_x"], worst["c_y"]), "px", "lower", 1.5 * slack),
        Figure(f"{name}: trajectory rms", path, "mm", "lower", 0.3 * slack),
        Figure(f"{name}: frames not registered", missing, "", "lower", 0),
    ]


def honesty(outcomes: list[Outcome]) -> list[Figure]:
    """Return figures that compare the errors with the sigmas."""
    rows = [
        row.error_sigmas
        for outcome in outcomes
        for row in outcome.evaluation.parameters
        if row.name in ("f_L", "b_L0", "B", "c_x", "c_y") and row.error_sigmas is not None
    ]
    pulls = np.array(rows)
    return [
        Figure("errors within 2 sigma", float(np.mean(np.abs(pulls) < 2.0)), "", "higher", 0.9),
        Figure("mean square of errors in sigmas", float(np.mean(pulls**2)), "", "lower", 2.0),
        Figure("mean square of errors in sigmas", float(np.mean(pulls**2)), "", "higher", 0.5),
    ]


def measurement(outcomes: list[Outcome]) -> list[Figure]:
    """Return figures of the errors of measured points, and of the bias by lens type."""
    bias = max(float(np.nanmax(np.abs(o.bias_px))) for o in outcomes)
    plain = max(float(np.nanmax(np.abs(o.plain_bias_px))) for o in outcomes)
    return [
        Figure("measurement rms", max(o.measurement_px for o in outcomes), "px", "lower", 0.12),
        Figure("bias by lens type and depth", bias, "px", "lower", 0.02),
        Figure("the same without the focus term", plain, "px", "higher", 0.02),
    ]


def recalibration(outcome: Outcome) -> list[Figure]:
    """Return the errors with f_L and B known."""
    path = outcome.evaluation.trajectory
    scale = np.inf if path is None else 100.0 * abs(path.scale - 1.0)
    center = max(outcome.error("c_x"), outcome.error("c_y"))
    return [
        Figure("recalibration: b_L0", outcome.error("b_L0"), "%", "lower", 0.05),
        Figure("recalibration: c", center, "px", "lower", 1.5),
        Figure("recalibration: scale of the scene", scale, "%", "lower", 0.3),
    ]


# One case


def run_case(case: Case, data: Path) -> Outcome:
    """Render the recording if it does not exist, calibrate it in its own process, and compare."""
    recording = data / case.recording
    options = SimulationOptions(camera=case.camera, scene=case.scene, frames=FRAMES, seed=case.seed)
    simulation = Simulation(options)
    write_sequence(recording, simulation)
    out = data / f"{case.name}-calibration"
    record = out / "benchmark.json"
    if not record.exists():
        seconds, peak = calibrate_recording(case, recording, out, simulation.optics.camera)
        record.write_text(json.dumps({"seconds": seconds, "peak_gb": peak}))
    cost = json.loads(record.read_text())
    rms, bias = measure_against_truth(out, recording, focus=True)
    _, plain = measure_against_truth(out, recording, focus=False)
    return Outcome(
        case,
        evaluate_calibration(out, recording),
        json.loads((out / "summary.json").read_text()),
        cost["seconds"],
        cost["peak_gb"],
        rms,
        bias,
        plain,
    )


def calibrate_recording(
    case: Case, recording: Path, out: Path, camera: PlenopticCamera
) -> tuple[float, float]:
    """Run `lifcal calibrate` in a separate process; return its time in s and memory in GB."""
    words = ["calibrate", str(recording / "raw"), "-o", str(out)]
    words += ["--pixel-size-um", str(camera.pixel_size_mm * 1000.0)]
    if case.white:
        words += ["--white", str(recording / "white.png")]
    if case.scale == "markers":
        markers = json.loads((recording / "truth" / "markers.json").read_text())["markers"]
        words += ["--marker-size-mm", str(markers[0]["side_mm"])]
    elif case.scale == "known":
        p = camera.parameters
        words += ["--known", f"f_L={p.focal_length_mm},B={p.array_to_sensor_mm}"]
    else:
        picks = out.with_suffix(".distances.txt")
        picks.write_text(pick_distance(recording))
        words += ["--distances", str(picks)]
    start = time.perf_counter()
    run_lifcal(*words)
    seconds = time.perf_counter() - start
    return seconds, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e6


def pick_distance(recording: Path) -> str:
    """Return a line of a distances file: two corners of markers, as a person would pick them."""
    camera = read_camera(recording / "truth" / "camera.json")
    trajectory = read_tum(recording / "truth" / "poses.txt")
    markers = json.loads((recording / "truth" / "markers.json").read_text())["markers"]
    corners = np.concatenate([marker["corners_world_mm"] for marker in markers])
    principal = np.array([camera.array.principal_x_px, camera.array.principal_y_px])
    width, height = camera.image_size
    best = (0.0, "")
    for frame, pose in enumerate(trajectory.world_from_cam):
        cam = pose.inverse().apply(corners)
        ideal = principal + camera.array.focal_px * cam[:, :2] / cam[:, 2:]
        seen = camera.distortion.distort(ideal, principal)
        inside = (
            (cam[:, 2] > 0.0)
            & (seen > 60.0).all(axis=1)
            & (seen < np.array([width, height]) - 60.0).all(axis=1)
        )
        depth = read_image(recording / "truth" / "depth" / f"{frame:04d}.tiff")
        rows, cols = depth.shape
        at = np.rint((ideal + 0.5) * 0.5 - 0.5)
        col = np.clip(at[:, 0], 0, cols - 1).astype(int)
        row = np.clip(at[:, 1], 0, rows - 1).astype(int)
        inside &= np.abs(np.asarray(depth, np.float64)[row, col] / cam[:, 2] - 1.0) < 0.01
        chosen = np.flatnonzero(inside)
        if len(chosen) < 2:
            continue
        apart = np.linalg.norm(corners[chosen][:, None] - corners[chosen][None], axis=2)
        i, j = np.unravel_index(int(np.argmax(apart)), apart.shape)
        if apart[i, j] > best[0]:
            first, second = (np.round((seen[chosen[k]] + 0.5) * 0.5 - 0.5, 1) for k in (i, j))
            text = f"{frame} {first[0]} {first[1]} {second[0]} {second[1]}"
            best = (float(apart[i, j]), f"{text} {apart[i, j]:.3f} {_PICK_SIGMA_MM}\n")
    return best[1]


def measure_against_truth(out: Path, recording: Path, *, focus: bool) -> tuple[float, FloatArray]:
    """Return the rms error of measured positions, and the bias by lens type and quarter of depth.

    Each point is moved to where it fits its measured positions best, with the true camera, poses
    and lens shifts. A displacement along its surface that all positions of a point share is
    therefore not counted as an error.
    """
    observations = read_observations(out / "observations.csv")
    camera = read_camera(recording / "truth" / "camera.json")
    grid = read_grid(recording / "truth" / "grid.json")
    trajectory = read_tum(recording / "truth" / "poses.txt")
    poses = [trajectory.world_from_cam[view].inverse() for view in observations.view_ids]
    term = FocusTerm.from_grid(grid, "devignetted") if focus else None
    points = _rough_points(out, recording)
    state = Reconstruction.from_poses(camera.array, camera.distortion, poses, points)
    if term is not None:
        state = state.with_focus(term.focal_planes, 1.0)
    layout = Layout(Problem(observations, camera.pixel_size_mm, state, focus=term))
    index = observations.point_indices
    good = np.ones(len(observations), np.bool_)
    for _ in range(6):
        residuals = layout.compute_residuals(state)
        lengths = layout.whitened_lengths(residuals)
        good = lengths < max(_OUTLIER_SIGMAS, 3.0 * float(np.median(lengths)))
        rotations = state.rotations[observations.view_indices]
        rows = layout.compute_rows(state)[:, :, :3] @ rotations
        weight = good / observations.covariances_px2[:, 0, 0]
        normal = np.zeros((len(points), 3, 3))
        right = np.zeros((len(points), 3))
        np.add.at(normal, index, np.einsum("n,nki,nkj->nij", weight, rows, rows))
        np.add.at(right, index, np.einsum("n,nki,nk->ni", weight, rows, residuals))
        normal += 1e-9 * np.eye(3)
        points = points - np.linalg.solve(normal, right[:, :, None])[:, :, 0]
        state = Reconstruction.from_poses(camera.array, camera.distortion, poses, points)
        if term is not None:
            state = state.with_focus(term.focal_planes, 1.0)
    residuals = layout.compute_residuals(state)
    rms = float(np.sqrt(np.mean(residuals[good] ** 2)))
    # Residuals are predicted minus measured, so the outward error of a measurement is negative.
    offset = observations.points_raw_px - observations.centers_raw_px
    outward = -np.sum(residuals * offset, axis=1) / np.linalg.norm(offset, axis=1)
    cam = (
        np.einsum("nij,nj->ni", state.rotations[observations.view_indices], points[index])
        + state.translations_mm[observations.view_indices]
    )
    edges = np.quantile(cam[good, 2], [0.0, 0.25, 0.5, 0.75, 1.0])
    bias = np.full((grid.n_types, 4), np.nan)
    weight = 1.0 / observations.covariances_px2[:, 0, 0]
    for kind in range(grid.n_types):
        for part in range(4):
            chosen = good & (observations.lens_types == kind)
            chosen &= (cam[:, 2] >= edges[part]) & (cam[:, 2] <= edges[part + 1])
            if chosen.sum() >= 100:
                bias[kind, part] = np.average(outward[chosen], weights=weight[chosen])
    return rms, bias


def _rough_points(out: Path, recording: Path) -> FloatArray:
    """Return the calibration's points in the true world, in the order of its observations."""
    calibration = open_calibration(out)
    seen = calibration.seen
    true = read_tum(recording / "truth" / "poses.txt")
    matched = [true.world_from_cam[view] for view in calibration.views.tolist()]
    _, alignment = compare_trajectories(calibration.world_from_cam, matched, metric=False)
    rows = np.zeros(len(seen.observations.point_ids), np.int64)
    rows[seen.observations.point_indices] = seen.point_rows
    return alignment.apply(seen.points_world_mm[rows])
