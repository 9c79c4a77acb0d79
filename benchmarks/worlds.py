"""Two recordings of different scenes, one camera: `lifcal calibrate desk/raw room/raw`.

A desk with markers and a room, of which no marker is used, 12 frames each of the 16 mm camera. They
are two worlds with poses of their own; the scale of the room follows from the camera that both
share. How much smaller sigma becomes against the desk alone is measured, and the errors are held
against the sigmas. The third calibration adds the room to the finished calibration of the desk
(`--add`). Set LIFCAL_BENCHMARK_DATA to a folder that keeps recordings and calibrations.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.figures import Figure
from lifcal.camera import read_camera
from lifcal.evaluate import Evaluation, evaluate_calibration
from lifcal.files import read_json
from lifcal.simulate import Simulation, SimulationOptions, write_sequence

FRAMES = 12
SCENES = (("desk", 301), ("room", 302))
_NAMES = ("f_L", "b_L0", "B", "c_x", "c_y", "F")


def run() -> list[Figure]:
    """Measure with the 16 mm camera."""
    return _measure("r5-16mm")


def run_small() -> list[Figure]:
    """Measure with a small camera, in a few minutes."""
    return _measure("mini")


def _measure(camera: str) -> list[Figure]:
    with tempfile.TemporaryDirectory() as scratch:
        data = Path(os.environ.get("LIFCAL_BENCHMARK_DATA", scratch))
        desk, room = (record(camera, scene, seed, data) for scene, seed in SCENES)
        side = _read_side(desk)
        alone = calibrate(data / f"{camera}-desk-alone", desk, [desk], ["--marker-size-mm", side])
        both = calibrate(
            data / f"{camera}-desk-and-room",
            desk,
            [desk, room],
            ["--marker-size-mm", side, "--marker-size-mm", "none"],
        )
        added = calibrate(
            data / f"{camera}-room-added", room, [room], ["--add", data / f"{camera}-desk-alone"]
        )
        return [
            *_compare(f"{camera}, two recordings", alone, both, desk),
            *_compare(f"{camera}, one recording added", alone, added, desk),
        ]


def record(camera: str, scene: str, seed: int, data: Path) -> Path:
    """Return the folder of a recording, which is made if it is not there."""
    folder = data / f"{camera}-{scene}-{seed}-{FRAMES}-frames"
    if len(list(folder.glob("raw/*.png"))) < FRAMES or not (folder / "white.png").is_file():
        options = SimulationOptions(camera=camera, scene=scene, frames=FRAMES, seed=seed)
        write_sequence(folder, Simulation(options))
    return folder


def calibrate(out: Path, white: Path, recordings: list[Path], words: list[object]) -> Path:
    """Run `lifcal calibrate` in a process of its own, unless it was finished before."""
    if not (out / "report.html").is_file():
        pixel = read_camera(recordings[0] / "truth" / "camera.json").pixel_size_mm
        command = [sys.executable, "-m", "lifcal", "calibrate", *(r / "raw" for r in recordings)]
        command += ["-o", out, "--white", white / "white.png", "--pixel-size-um", 1000.0 * pixel]
        subprocess.run([str(word) for word in (*command, *words)], check=True)
    return out


def _read_side(recording: Path) -> float:
    markers = json.loads((recording / "truth" / "markers.json").read_text())["markers"]
    return float(markers[0]["side_mm"])


def _compare(name: str, alone: Path, several: Path, truth: Path) -> list[Figure]:
    before, after = (read_json(folder / "summary.json") for folder in (alone, several))
    world = _find_world(after, truth)
    pulls = _list_pulls(evaluate_calibration(several, truth, world))
    return [
        Figure(f"{name}: frames registered", after["n_registered"], "", "higher", 2.0 * FRAMES),
        Figure(f"{name}: worlds", len(after["worlds"]), "", "higher", 2.0),
        Figure(f"{name}: sigma of F, alone over both", _ratio(before, after), "", "higher", 1.25),
        Figure(
            f"{name}: the same without cross-validation",
            _ratio(_without_halves(before), _without_halves(after)),
            "",
            "higher",
            1.25,
        ),
        Figure(f"{name}: largest error in sigmas", float(np.max(pulls)), "", "lower", 2.2),
    ]


def _find_world(summary: dict[str, Any], truth: Path) -> int:
    """Return the number of the world that was recorded there."""
    worlds = summary["worlds"]
    return next(int(w["number"]) for w in worlds if truth.name in str(w["recording"]))


def _without_halves(summary: dict[str, Any]) -> dict[str, Any]:
    """Return sigma of F by noise alone: without what halves of the recording disagree by."""
    sigma = summary["parameters"]["F"]["sigma"] / summary["cross_validation"]["factors"]["F"]
    return {"parameters": {"F": {"sigma": sigma}}}


def _ratio(before: dict[str, Any], after: dict[str, Any]) -> float:
    first, second = (summary["parameters"]["F"]["sigma"] for summary in (before, after))
    return float(first / second)


def _list_pulls(found: Evaluation) -> list[float]:
    errors = {row.name: row.error_sigmas for row in found.parameters}
    return [np.inf if errors[name] is None else abs(errors[name]) for name in _NAMES]  # type: ignore[arg-type]
