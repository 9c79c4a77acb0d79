"""Recordings that do not determine the camera: a calibration must refuse, or name the problem.

Camera and optics are those of `benchmarks.calibrate`; `run_small` calibrates three of the
recordings with small cameras and several seeds. A result is confidently wrong if a parameter is off
by more than three of its sigmas, or if the verdict is good although an error exceeds the limits for
good recordings. Recordings and calibrations are kept in LIFCAL_BENCHMARK_DATA if that is set.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from benchmarks.figures import Figure
from lifcal.camera import read_camera
from lifcal.evaluate import Evaluation, evaluate_calibration
from lifcal.simulate import Simulation, SimulationOptions, write_sequence

CAMERA = "r5-16mm"
_MOST_SIGMAS = 3.0
_LIMITS = {"F": 0.05, "alpha": 0.3, "c_x": 1.5, "c_y": 1.5}
"""Largest errors of a good calibration, in per cent or px. Without a scale, only these parameters
can be compared."""


@dataclass(frozen=True)
class Trouble:
    """A recording, and words of which the answer must contain at least one."""

    name: str
    scene: str
    path: str
    frames: int
    words: tuple[str, ...]


TROUBLES = (
    Trouble("wall", "wall", "winding", 14, ("flat",)),
    Trouble("pure rotation", "desk", "rotation", 14, ("sideways",)),
    Trouble("pure forward", "desk", "forward", 14, ("sideways", "turned", "other distances")),
    Trouble("bare", "bare", "winding", 8, ("texture",)),
    Trouble("3 frames", "desk", "winding", 3, ("frames",)),
)
SMALL = (
    Trouble("wall", "wall", "winding", 12, ("the scene is flat",)),
    Trouble("pure rotation", "desk", "rotation", 12, ("turned on the spot",)),
    Trouble("pure forward", "desk", "forward", 12, ("along its optical axis",)),
)
SMALL_CAMERAS = ("mini", "mini-square", "mini-keplerian")
SEEDS = (1, 2, 3)


@dataclass(frozen=True, eq=False)
class Answer:
    """The verdict, the text and the errors of a `lifcal calibrate` run."""

    text: str
    level: str
    """Level of the verdict; 'error' if there is no verdict."""
    evaluation: Evaluation | None

    def count_wrong(self) -> int:
        """Return the number of parameters that are confidently wrong."""
        if self.evaluation is None:
            return 0
        wrong = 0
        for row in self.evaluation.parameters:
            if row.name in _LIMITS and row.error_sigmas is not None:
                size = abs(row.error if row.percent is None else row.percent)
                far = self.level == "good" and size > _LIMITS[row.name]
                wrong += far or abs(row.error_sigmas) > _MOST_SIGMAS
        return wrong


def run() -> list[Figure]:
    with tempfile.TemporaryDirectory() as scratch:
        data = Path(os.environ.get("LIFCAL_BENCHMARK_DATA", scratch))
        return [figure for trouble in TROUBLES for figure in judge(trouble, data)]


def run_small() -> list[Figure]:
    """Count the small cameras and seeds for which each trouble gets its own sentence."""
    figures = []
    with tempfile.TemporaryDirectory() as scratch:
        data = Path(os.environ.get("LIFCAL_BENCHMARK_DATA", scratch))
        for trouble in SMALL:
            named = []
            for camera, seed in product(SMALL_CAMERAS, SEEDS):
                answer = ask(trouble, data, camera, seed)
                named.append(any(word in answer.text for word in trouble.words))
                print(f"{camera}, seed {seed}, {trouble.name}: {answer.level}: {answer.text}")
            name = f"{trouble.name}, {len(named)} small recordings: trouble named"
            figures.append(Figure(name, sum(named) / len(named), "", "higher", 1.0))
    return figures


def judge(trouble: Trouble, data: Path) -> list[Figure]:
    """Calibrate a recording, print the answer, and return figures that judge it."""
    answer = ask(trouble, data, CAMERA, 1)
    print(f"{trouble.name}: {answer.level}: {answer.text}")
    if answer.evaluation is not None:
        for row in answer.evaluation.parameters:
            if row.name in _LIMITS:
                print(f"  {row.name}: {row.error:+.4g}, {row.error_sigmas} sigma")
    named = any(word in answer.text for word in trouble.words)
    return [
        Figure(f"{trouble.name}: confidently wrong", answer.count_wrong(), "", "lower", 0),
        Figure(f"{trouble.name}: called good", int(answer.level == "good"), "", "lower", 0),
        Figure(f"{trouble.name}: trouble named", int(named), "", "higher", 1),
    ]


def ask(trouble: Trouble, data: Path, camera: str, seed: int) -> Answer:
    """Render the recording if it does not exist, and calibrate it."""
    last = "" if seed == 1 else f"-{seed}"
    recording = data / f"{camera}-{trouble.scene}-{trouble.path}-{trouble.frames}{last}"
    options = SimulationOptions(
        camera=camera, scene=trouble.scene, path=trouble.path, frames=trouble.frames, seed=seed
    )
    write_sequence(recording, Simulation(options))
    pixel_um = read_camera(recording / "truth" / "camera.json").pixel_size_mm * 1000.0
    out = data / f"{recording.name}-calibration"
    words = ["calibrate", str(recording / "raw"), "--white", str(recording / "white.png")]
    words += ["--pixel-size-um", str(pixel_um), "-o", str(out)]
    done = subprocess.run(
        [sys.executable, "-m", "lifcal", *words], capture_output=True, text=True, check=False
    )
    if done.returncode not in (0, 3):
        lines = [line for line in done.stderr.splitlines() if "error:" in line]
        return Answer(" ".join(dict.fromkeys(lines[-2:])), "error", None)
    verdict = json.loads((out / "summary.json").read_text())["verdict"]
    text = " ".join([verdict["text"], *verdict["reasons"]])
    return Answer(text, verdict["level"], evaluate_calibration(out, recording))
