"""Recordings that lifcal's own simulator did not make, beside the repository (`../shared/data`).

`independent` holds two recordings of another ray tracer, with truth: they are calibrated with their
white image and from frames alone. `mpeg-lvc` holds videos of real cameras without truth: of those,
parts are compared with each other, and with what a given focal length changes. Decoding the videos
needs PyAV (`pip install av`). Recordings that are not there are left out. Set LIFCAL_BENCHMARK_DATA
to a folder that keeps frames and calibrations; a run that was stopped continues there.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.figures import Figure, run_lifcal
from lifcal.evaluate.trajectory import compare_trajectories
from lifcal.files import read_json
from lifcal.geometry import read_tum
from lifcal.imaging.files import write_png

SHARED = Path(__file__).parents[2] / "shared" / "data"
_TRUTH = {"f_L": "fL_mm", "b_L0": "bL0_mm", "B": "B_mm", "c_x": "cx_px", "c_y": "cy_px"}
_MARKERS_MM = {"tilted": 80.0, "bent": 64.0}
_PARTS: dict[str, tuple[str, ...]] = {
    "all": (),
    "even": ("--every", "2"),
    "odd": ("--frames", "1", "37", "--every", "2"),
    "first": ("--frames", "0", "18"),
    "second": ("--frames", "19", "37"),
}
_HINTS: dict[str, tuple[str, ...]] = {
    f"{length} mm": ("--focal-length-mm", str(length)) for length in (16, 25, 35)
}
_PIXEL_UM = "5.5"
_COMPARED = ("F", "alpha", "c_x", "c_y")


def run_independent() -> list[Figure]:
    """Compare calibrations of the other ray tracer's recordings with its truth."""
    figures = []
    with tempfile.TemporaryDirectory() as scratch:
        data = _data(scratch)
        for name, side_mm in _MARKERS_MM.items():
            recording = SHARED / "independent" / name
            if not recording.is_dir():
                continue
            for start in ("white", "frames"):
                out = data / f"independent-{name}-{start}"
                white = ["--white", recording / "white.png"] if start == "white" else []
                if not (out / "report.html").exists():
                    words = ["--pixel-size-um", "4.5", "--marker-size-mm", side_mm, *white]
                    run_lifcal("calibrate", recording / "raw", *words, "-o", out)
                figures += _judge(out, recording, f"{name}, {start}")
    return figures


def _judge(out: Path, recording: Path, name: str) -> list[Figure]:
    truth = read_json(recording / "truth" / "camera.json")
    found = read_json(out / "camera.json")["intrinsics"]
    errors = {key: found[key]["value"] - truth[_TRUTH[key]] for key in _TRUTH}
    percent = {key: 100.0 * abs(errors[key]) / truth[_TRUTH[key]] for key in ("f_L", "b_L0", "B")}
    worst = max(abs(errors[key]) / found[key]["sigma"] for key in _TRUTH)
    path = read_tum(out / "poses.txt")
    true = read_tum(recording / "truth" / "poses.txt")
    matched = [true.world_from_cam[round(time)] for time in path.timestamps]
    error, _ = compare_trajectories(path.world_from_cam, matched, metric=True)
    return [
        Figure(f"{name}: f_L", percent["f_L"], "%", "lower", 0.15),
        Figure(f"{name}: b_L0", percent["b_L0"], "%", "lower", 0.15),
        Figure(f"{name}: B", percent["B"], "%", "lower", 1.0),
        Figure(f"{name}: c", max(abs(errors["c_x"]), abs(errors["c_y"])), "px", "lower", 2.0),
        Figure(f"{name}: path", error.translation_rmse_mm, "mm", "lower", 0.15),
        Figure(f"{name}: largest error in sigmas", worst, "", "lower", 3.0),
    ]


def run_videos() -> list[Figure]:
    """Compare calibrations of parts of the real recordings with each other."""
    folder = SHARED / "mpeg-lvc"
    if not folder.is_dir():
        return []
    with tempfile.TemporaryDirectory() as scratch:
        data = _data(scratch)
        xml = ("--xml", str(folder / "Origami" / "calib.xml"))
        frames = _decode(folder / "Origami" / "Origami_qp40.bin", data / "origami", 8)
        origami = {
            part: _calibrate(frames, data / f"origami-{part}", (*xml, *words))
            for part, words in _PARTS.items()
        }
        hinted = {
            hint: _calibrate(frames, data / f"origami-{hint.replace(' ', '')}", (*xml, *words))
            for hint, words in _HINTS.items()
        }
        frames = _decode(folder / "HandTools" / "HandTools_qp46.bin", data / "handtools", 8)
        tools = {
            part: _calibrate(frames, data / f"handtools-{part}", _PARTS[part])
            for part in ("all", "even", "odd")
        }
        frames = _decode(folder / "Fujita2" / "Fujita2_qp36.bin", data / "fujita", 12)
        refused = _is_refused(frames, data / "fujita-all", folder / "Fujita2" / "calib.xml")
        return [
            *_compare_parts("Origami", origami),
            *(
                Figure(
                    f"Origami, {hint}: F",
                    _differ(origami["all"], found, "F"),
                    "sigma",
                    "lower",
                    1.5,
                )
                for hint, found in hinted.items()
            ),
            *_compare_parts("HandTools", tools),
            Figure("Fujita2: refused, as the camera rests", float(refused), "", "higher", 1.0),
        ]


def _compare_parts(name: str, parts: dict[str, dict[str, Any]]) -> list[Figure]:
    whole = parts["all"]
    focal = whole["parameters"]["F"]
    missing = sum(each["n_frames"] - each["n_registered"] for each in parts.values())
    pairs = [
        pair for pair in combinations(parts, 2) if pair in (("even", "odd"), ("first", "second"))
    ]
    return [
        Figure(f"{name}: frames not registered", float(missing), "", "lower", 0.0),
        Figure(f"{name}: sigma of F", 100.0 * focal["sigma"] / focal["value"], "%", "lower", 5.0),
        *(
            Figure(
                f"{name}, {one} and {other} part: {key}",
                _differ(parts[one], parts[other], key),
                "sigma",
                "lower",
                2.0,
            )
            for one, other in pairs
            for key in _COMPARED
        ),
    ]


def _differ(one: dict[str, Any], other: dict[str, Any], name: str) -> float:
    """Return the difference of a parameter between two calibrations, in sigmas of both."""
    a, b = (each["parameters"][name] for each in (one, other))
    return float(abs(a["value"] - b["value"]) / np.hypot(a["sigma"], b["sigma"]))


def _calibrate(frames: Path, out: Path, words: tuple[str, ...]) -> dict[str, Any]:
    if not (out / "report.html").exists():
        run_lifcal("calibrate", frames, "--pixel-size-um", _PIXEL_UM, *words, "-o", out)
    summary: dict[str, Any] = read_json(out / "summary.json")
    return summary


def _is_refused(frames: Path, out: Path, xml: Path) -> bool:
    words = ["calibrate", frames, "--pixel-size-um", _PIXEL_UM, "--xml", xml, "-o", out]
    done = subprocess.run(
        [sys.executable, "-m", "lifcal", *map(str, words)],
        check=False,
        capture_output=True,
        text=True,
    )
    return done.returncode == 1 and "rests while the rest moves" in done.stderr


def _decode(video: Path, folder: Path, step: int) -> Path:
    """Write every `step`-th frame of a video as PNG, unless that was done before."""
    import av

    done = folder / "done"
    if not done.exists():
        with av.open(str(video), format="vvc") as opened:
            for index, frame in enumerate(opened.decode(video=0)):
                if index % step == 0:
                    pixels = np.asarray(frame.to_ndarray(format="rgb24"), np.uint8)
                    write_png(folder / "raw" / f"f{index:03d}.png", pixels)
        done.touch()
    return folder / "raw"


def _data(scratch: str) -> Path:
    return Path(os.environ.get("LIFCAL_BENCHMARK_DATA", scratch))
