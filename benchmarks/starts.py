"""Errors of the start values of F and alpha, without a given focal length.

The recordings are random ones of `mini`, with four kinds of motion. The start values are those
before points are measured in micro images: F from rigidity is held during mapping and then adjusted
together with the virtual depths. A refused recording counts as a failure. Recordings are kept in
LIFCAL_BENCHMARK_DATA if that is set; LIFCAL_BENCHMARK_RUNS limits their number.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.figures import Figure
from lifcal.calibration import CalibrateOptions
from lifcal.calibration.start import start_from_models
from lifcal.camera import PlenopticCamera, read_camera
from lifcal.errors import EstimationError
from lifcal.imaging.frames import open_frames
from lifcal.listener import Listener
from lifcal.pipeline.calibration import list_views
from lifcal.pipeline.focusing import focus_frames
from lifcal.pipeline.tracking import track_frames
from lifcal.sfm import ColmapEngine
from lifcal.simulate import Simulation, SimulationOptions, write_sequence
from lifcal.virtual import DepthOptions

CAMERA = "mini"
MOTIONS = ("turntable", "orbit", "sideways", "handheld")
SCENES = ("desk", "room", "cube")
RECORDINGS = 30
FRAMES = 12
FIRST_SEED = 301
_NEAR = 0.1
"""Relative error of F up to which a start is good enough; the adjustment converges from twice as
far."""


@dataclass(frozen=True)
class Outcome:
    """Result of a recording."""

    name: str
    focal_error: float
    """Error of log F; NaN if the recording was refused."""
    alpha_error: float
    sigma: float
    """Standard deviation of log F, as estimated with the start values."""
    reason: str
    """The reason if the recording was refused, otherwise empty."""


def run() -> list[Figure]:
    with tempfile.TemporaryDirectory() as scratch:
        data = Path(os.environ.get("LIFCAL_BENCHMARK_DATA", scratch))
        n = int(os.environ.get("LIFCAL_BENCHMARK_RUNS", RECORDINGS))
        outcomes = [judge(index, data) for index in range(n)]
    errors = np.array([outcome.focal_error for outcome in outcomes])
    done = np.isfinite(errors)
    far = int((np.abs(errors[done]) > np.log1p(_NEAR)).sum())
    worst = float(np.expm1(np.abs(errors[done])).max(initial=0.0))
    middle = float(np.median(np.abs(errors[done]))) if done.any() else np.inf
    return [
        Figure(f"{n} {CAMERA} starts: F off by more than 10 %", far, "", "lower", 0),
        Figure(f"{n} {CAMERA} starts: worst F", 100.0 * worst, "%", "lower", 10.0),
        Figure(f"{n} {CAMERA} starts: median error of F", 100.0 * middle, "%", "lower", 2.0),
        Figure(f"{n} {CAMERA} starts: refused", int((~done).sum()), "", "lower", 0),
    ]


def judge(index: int, data: Path) -> Outcome:
    """Render a recording if it does not exist, find start values, and compare with the truth."""
    options = SimulationOptions(
        camera=CAMERA,
        scene=SCENES[index % len(SCENES)],
        path=MOTIONS[index % len(MOTIONS)],
        frames=FRAMES,
        seed=FIRST_SEED + index,
        rays_per_pixel=8,
    )
    name = f"{CAMERA}-{options.scene}-{options.path}-{FRAMES}-{options.seed}"
    write_sequence(data / name, Simulation(options))
    truth = read_camera(data / name / "truth" / "camera.json")
    try:
        outcome = _start(name, data, truth)
    except EstimationError as error:
        outcome = Outcome(name, np.nan, np.nan, np.nan, str(error))
    print(
        f"{name}: F {100.0 * np.expm1(outcome.focal_error):+.2f} % (sigma "
        f"{100.0 * outcome.sigma:.2f} %), alpha {outcome.alpha_error:+.3f} {outcome.reason}",
        flush=True,
    )
    return outcome


def _start(name: str, data: Path, truth: PlenopticCamera) -> Outcome:
    folder = data / f"{name}-start"
    frames = open_frames([str(data / name / "raw")])
    sources = {"grid": None, "white": data / name / "white.png", "xml": None}
    run = focus_frames(frames, folder, DepthOptions(), sources, Listener())
    views = list_views(run, CalibrateOptions(1000.0 * truth.pixel_size_mm))
    model = track_frames(run, views, ColmapEngine(), None, Listener())
    scale = float(run.store.settings["scale"])
    virtual = start_from_models(model, views, scale).virtual
    array = virtual.state.array
    return Outcome(
        name,
        float(np.log(array.focal_px / truth.array.focal_px)),
        array.alpha - truth.array.alpha,
        virtual.sigma_focal_px / array.focal_px,
        "",
    )
