"""Run time and disk use of each command, on one recording.

Set LIFCAL_BENCHMARK_CAMERA to another camera than `mini` (`r5-16mm` with 36 frames takes a quarter
of an hour). Processor time is that of all cores together; it depends much less on what else the
machine does than wall time. Commands run with compiled loops: they are run once before, on a few
frames, which is not measured.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.figures import Figure
from lifcal.simulate import build_camera

_FRAMES = {"mini": 16}
_MANY = 36
"""Frames of a recording of a camera of full size."""
_MARKER_MM = "40"


def run() -> list[Figure]:
    camera = os.environ.get("LIFCAL_BENCHMARK_CAMERA", "mini")
    frames = _FRAMES.get(camera, _MANY)
    figures = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for name, words in list_commands("warm", camera, 6):
            if name != "calibrate without a white image":
                _execute(words, folder)
        for name, words in list_commands("all", camera, frames):
            wall, processor = _execute(words, folder)
            title = f"lifcal {name} ({camera}, {frames} frames)"
            figures.append(Figure(f"{title}: wall", wall, "s", "lower", 1e4, noisy=True))
            figures.append(Figure(f"{title}: processor", processor, "s", "lower", 1e4, noisy=True))
            size = _measure(folder / _output_of(words)) if "-o" in words else 0.0
            if size > 0.0:
                figures.append(Figure(f"{title}: disk", size, "MB", "lower", 1e5))
    return figures


def list_commands(tag: str, camera: str, frames: int) -> list[tuple[str, list[str]]]:
    """Return names and words of the commands, in an order in which each finds what it needs."""
    desk, pixel = f"{tag}-desk", f"{1000.0 * build_camera(camera).camera.pixel_size_mm:g}"
    raw, white = f"{desk}/raw", f"{desk}/white.png"
    found, rgbd = f"{tag}-camera", f"{tag}-rgbd"
    calibrate = ["calibrate", raw, "--pixel-size-um", pixel, "--marker-size-mm", _MARKER_MM]
    depth = ["depth", raw, "--camera", found, "--white", white]
    return [
        ("simulate", ["simulate", "--camera", camera, "--frames", str(frames), "-o", desk]),
        ("grid", ["grid", white, "-o", f"{tag}-grid.json"]),
        ("focus", ["focus", raw, "--white", white, "-o", f"{tag}-focused"]),
        ("calibrate", [*calibrate, "--white", white, "-o", found]),
        ("calibrate without a white image", [*calibrate, "-o", f"{tag}-frames-only"]),
        ("evaluate", ["evaluate", found, "--truth", desk]),
        ("depth", [*depth, "-o", rgbd]),
        (
            "depth --poses, one cloud",
            [*depth, "--no-clouds", "--poses", f"{found}/poses.txt", "-o", f"{tag}-fused"],
        ),
        ("view", ["view", rgbd, "--no-open"]),
        ("export --to colmap", ["export", found, "--to", "colmap", "-o", f"{tag}-colmap"]),
        ("clean", ["clean", found]),
    ]


def _execute(words: list[str], folder: Path) -> tuple[float, float]:
    """Run a command; return wall time and processor time, s."""
    before, began = os.times(), time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "lifcal", "-q", *words],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        check=False,
    )
    if done.returncode not in (0, 3):  # few frames of a small camera may not be trusted
        raise RuntimeError(f"lifcal {' '.join(words)} ended with {done.returncode}")
    after = os.times()
    used = after.children_user + after.children_system
    return (
        time.perf_counter() - began,
        used - before.children_user - before.children_system,
    )


def _output_of(words: list[str]) -> str:
    return words[words.index("-o") + 1]


def _measure(path: Path) -> float:
    """Return the size of a file or of all files in a folder, MB."""
    files = [path] if path.is_file() else [each for each in path.rglob("*") if each.is_file()]
    return sum(each.stat().st_size for each in files) / 1e6
