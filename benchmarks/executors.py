"""Frames in other processes: overhead of a Dask cluster over `--jobs`, and memory of a long run.

    python -m benchmarks executors
    python -m benchmarks.executors --camera mini --frames 6 --queued 40      a quick look

Both engines process the same frames in turn, three times in one run, because the speed of a machine
changes with time. Each has two worker processes, which have processed frames of the recording
before the measurement starts. The memory is the peak of the largest process of `lifcal focus
--jobs 2`, with 400 frames and with a tenth of them.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from pathlib import Path

from benchmarks.figures import Figure
from lifcal.imaging.files import write_png
from lifcal.imaging.frames import open_frames
from lifcal.listener import Listener
from lifcal.pipeline.executors import WorkerProcesses, connect
from lifcal.pipeline.focusing import focus_frames
from lifcal.simulate import Simulation, SimulationOptions
from lifcal.virtual import DepthOptions

WORKERS = 2
_RENDERED = 4
"""Number of different frames that are rendered; the recording repeats them under other names."""
_ROUNDS = 3


def run(camera: str = "r5-16mm", frames: int = 24, queued: int = 400) -> list[Figure]:
    name = f"executors, {frames} frames of {camera}"
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        _record(folder, camera, frames)
        times = _time_engines(folder)
        jobs, dask = times["jobs"], times["dask"]
        print(f"{name}: --jobs {WORKERS} {jobs:.2f} s, Dask {dask:.2f} s", flush=True)
        _record(folder / "long", "mini", queued)
        growth = _measure_growth(folder / "long", queued)
    return [
        Figure(f"{name}, Dask over --jobs 2", 100 * (dask / jobs - 1), "%", "lower", 15, True),
        Figure(f"memory, {queued} frames queued over {queued // 10}", growth, "MB", "lower", 20),
    ]


def _record(folder: Path, camera: str, frames: int) -> None:
    simulation = Simulation(
        SimulationOptions(camera=camera, scene="desk", frames=_RENDERED, rays_per_pixel=8)
    )
    write_png(folder / "white.png", simulation.render_white())
    for index in range(min(_RENDERED, frames)):
        write_png(folder / "raw" / f"{index:04d}.png", simulation.render_frame(index).raw)
    for index in range(_RENDERED, frames):
        source = folder / "raw" / f"{index % _RENDERED:04d}.png"
        shutil.copy(source, folder / "raw" / f"{index:04d}.png")


@contextmanager
def _open(engine: str) -> Iterator[Executor]:
    if engine == "jobs":
        with WorkerProcesses(WORKERS) as executor:
            yield executor
        return
    from distributed import LocalCluster

    with (
        LocalCluster(
            n_workers=WORKERS, threads_per_worker=1, dashboard_address=":0", silence_logs=50
        ) as cluster,
        connect(cluster.scheduler_address) as executor,
    ):
        yield executor


class _Clock(Listener):
    """Measures the time of the loop over frames, which is the part that the engines execute."""

    def __init__(self) -> None:
        self.seconds = 0.0

    @contextmanager
    def steps(self, text: str, total: int) -> Iterator[object]:  # type: ignore[override]
        del total
        begin = time.perf_counter()
        yield lambda _: None
        if text.startswith("compiling"):
            self.seconds = time.perf_counter() - begin


def _focus(folder: Path, raws: list[str], out: Path, executor: Executor | None) -> float:
    clock = _Clock()
    sources = {"grid": None, "white": folder / "white.png", "xml": None}
    focus_frames(open_frames(raws), out, DepthOptions(), sources, clock, executor)
    return clock.seconds


def _time_engines(folder: Path) -> dict[str, float]:
    """Return the median time of each engine; check that they write the same files."""
    raws = [str(path) for path in sorted((folder / "raw").iterdir())]
    found: dict[str, list[float]] = {"jobs": [], "dask": []}
    for number in range(_ROUNDS):
        for engine, times in found.items():
            with _open(engine) as executor:
                warm = folder / f"warm-{engine}-{number}"
                _focus(folder, raws[: 2 * WORKERS], warm, executor)
                out = folder / f"{engine}-{number}"
                times.append(_focus(folder, raws, out, executor))
    _check_same(folder / "jobs-0", folder / "dask-0")
    print(" ".join(f"{k}: {[round(t, 2) for t in v]} s" for k, v in found.items()), flush=True)
    return {engine: statistics.median(times) for engine, times in found.items()}


def _check_same(first: Path, second: Path) -> None:
    for path in first.rglob("*"):
        other = second / path.relative_to(first)
        if path.is_file() and path.read_bytes() != other.read_bytes():
            raise AssertionError(f"{path} and {other} differ")


def _measure_growth(folder: Path, queued: int) -> float:
    """Return the additional memory, in MB, of a long run over a run with a tenth of its frames."""
    raws = sorted((folder / "raw").iterdir())
    peaks = []
    for count in (queued // 10, queued):
        words = ["focus", *raws[:count], "--white", folder / "white.png", "--jobs", WORKERS]
        process = subprocess.Popen(
            [sys.executable, "-m", "lifcal", *map(str, words), "-o", str(folder / f"out-{count}")],
            stdout=subprocess.DEVNULL,
        )
        _, status, usage = os.wait4(process.pid, 0)  # usage of the process and its ended children
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise AssertionError(f"lifcal focus on {count} frames failed")
        peaks.append(usage.ru_maxrss / 1024)
        print(f"{count} frames queued: largest process {peaks[-1]:.0f} MB", flush=True)
    return peaks[1] - peaks[0]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.executors", description=__doc__)
    parser.add_argument("--camera", default="r5-16mm")
    parser.add_argument("--frames", type=int, default=24)
    parser.add_argument("--queued", type=int, default=400)
    given = parser.parse_args()
    for figure in run(given.camera, given.frames, given.queued):
        limit = f"limit {figure.tolerance:g}"
        print(f"{figure.name}: {figure.value:.1f} {figure.unit} ({limit}, holds: {figure.holds})")


if __name__ == "__main__":
    main()
