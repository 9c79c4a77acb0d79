"""Online calibration of small cameras with imperfect optics, against batch and against the truth.

Frames of `mini-real` on a desk are fed one after the other, with markers as scale. After each frame
the parameters are held against the model that is nearest to the true optics, in sigmas; at the end
the result is compared with `lifcal calibrate` on the same frames. Then the lens is focused anew by
0.3 % of b_L0 in mid-sequence. Set LIFCAL_BENCHMARK_DATA to a folder that keeps recordings and
calibrations; LIFCAL_BENCHMARK_RUNS limits the number of runs. A run of 60 frames and its batch
calibration take some minutes.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

import lifcal
from benchmarks import real
from benchmarks.figures import Figure
from lifcal.calibration import CalibrateOptions, OnlineCalibrator, OnlineOptions
from lifcal.camera import PHYSICAL_PARAMETERS, PlenopticCamera, read_camera
from lifcal.files import read_json, write_json
from lifcal.grid import fit_grid_to_white, vignetting_from_white
from lifcal.imaging import Frame, make_frame, open_frames
from lifcal.measure import MeasureOptions
from lifcal.scale import ScaleOptions
from lifcal.simulate import Simulation, SimulationOptions, write_sequence
from lifcal.simulate.cameras import CAMERAS
from lifcal.simulate.render import Renderer
from lifcal.virtual import FocusEngine, estimate_focal_planes

RUNS, SHORT_RUNS = 5, 10
FRAMES = 60
FIRST_SEED = 11
POINTS = 300
TARGETS = "F=0.3%,B=2%,c=4px"
"""Targets that this small camera can meet within the recording."""
_ONLINE, _MEASURE = OnlineOptions(points=200, targets=TARGETS), MeasureOptions(points=POINTS)
_NAMES = ("F", "alpha", "B", "b_L0", "c_x", "c_y")
_SETTLED = 10
"""Frames after which errors are held against their sigmas."""
_CHANGE, _CHANGED_AT, _DRIFT_FRAMES = 0.003, 16, 26
"""Relative change of b_L0, the frame from which on it holds, and the frames of that recording."""


@dataclass(frozen=True, eq=False)
class Run:
    """What one recording gave.

    Parameters
    ----------
    pulls : (n_steps, n_names) float64
        Errors in sigmas after each frame.
    online, batch : (n_names,) float64
        Errors at the end, in units of the parameters.
    seconds : (n_frames,) float64
        Time until the answer to each frame, without the one that starts the map.
    false_done : bool
        Whether 'done' was said while a parameter was not within its target.
    done_at : int
        Frame at which it was said; -1: never.
    """

    pulls: np.ndarray
    online: np.ndarray
    batch: np.ndarray
    seconds: np.ndarray
    false_done: bool
    done_at: int


def run() -> list[Figure]:
    with tempfile.TemporaryDirectory() as scratch:
        data = Path(os.environ.get("LIFCAL_BENCHMARK_DATA", scratch))
        count = min(RUNS, int(os.environ.get("LIFCAL_BENCHMARK_RUNS", RUNS)))
        runs = [run_one(FIRST_SEED + i, data) for i in range(count)]
        drifts = [run_drift(FIRST_SEED + i) for i in range(count)]
    name = f"online, mini-real, {count} runs"
    pulls = np.abs(np.concatenate([each.pulls for each in runs]))
    online = np.sqrt(np.mean([each.online**2 for each in runs], axis=0))
    batch = np.sqrt(np.mean([each.batch**2 for each in runs], axis=0))
    seconds = np.concatenate([each.seconds for each in runs])
    figures = [
        Figure(f"{name}: within 2 sigma", float(np.mean(pulls < 2.0)), "", "higher", 0.9),
        Figure(
            f"{name}: done said too early",
            float(sum(each.false_done for each in runs)),
            "",
            "lower",
            0.05 * count,
        ),
        Figure(f"{name}: answer, median", float(np.median(seconds)), "s", "lower", 1.0, noisy=True),
        Figure(f"{name}: frames to alarm", float(max(d[0] for d in drifts)), "", "lower", 6.0),
        Figure(f"{name}: false alarms", float(sum(d[1] for d in drifts)), "", "lower", 0.0),
        Figure(f"{name}: b_L0 anew", max(abs(d[2]) for d in drifts), "sigma", "lower", 2.0),
    ]
    return figures + [
        Figure(f"{name}: error of {each} over batch", float(a / b), "", "lower", 1.3)
        for each, a, b in zip(_NAMES, online, batch, strict=True)
    ]


def run_short() -> list[Figure]:
    """Compare errors with sigmas at the end of short recordings: those of `real-mini`."""
    with tempfile.TemporaryDirectory() as scratch:
        data = Path(os.environ.get("LIFCAL_BENCHMARK_DATA", scratch))
        count = min(SHORT_RUNS, int(os.environ.get("LIFCAL_BENCHMARK_RUNS", SHORT_RUNS)))
        runs = [finish_short(real.FIRST_SEED + i, data) for i in range(count)]
    windows, final = (np.abs(np.concatenate(each)) for each in zip(*runs, strict=True))
    name = f"online, mini-real, {count} runs of {real.FRAMES['mini']} frames"
    return [
        Figure(
            f"{name}: windows, within 2 sigma", float(np.mean(windows < 2.0)), "", "higher", 0.9
        ),
        Figure(
            f"{name}: at the end, within 2.2 sigma", float(np.mean(final < 2.2)), "", "higher", 0.95
        ),
        Figure(f"{name}: at the end, largest", float(final.max()), "sigma", "lower", 4.0),
        Figure(f"{name}: at the end, mean square", float(np.mean(final**2)), "", "lower", 1.5),
    ]


def finish_short(seed: int, data: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return the errors in sigmas after the frames from the tenth on, and at the end."""
    options = SimulationOptions(camera="mini-real", frames=real.FRAMES["mini"], seed=seed)
    folder = data / f"mini-real-desk-{seed}"
    write_sequence(folder, Simulation(options))
    kept = data / f"mini-real-desk-{seed}-online.json"
    if not kept.exists():
        truth = list_values(read_camera(folder / "truth" / "best_fit.json"))
        white = open_frames(folder / "white.png").read(0)
        frames = open_frames([str(folder / "raw")])
        some = [frames.read(i) for i in (0, 5, 10)]
        calibrator = make_calibrator(white, some, OnlineOptions(), MeasureOptions())
        rows = []
        for index in range(len(frames)):
            update = calibrator.add_frame(frames.read(index), float(index))
            if index > _SETTLED and update.values:
                rows.append([(update.values[n] - truth[n]) / update.sigmas[n] for n in _NAMES])
        found = calibrator.finish()
        calibrator.close()
        values, sigmas = list_values(found.camera), found.covariance.sigmas()
        pulls = [(values[n] - truth[n]) / sigmas[n] for n in PHYSICAL_PARAMETERS]
        write_json(kept, {"windows": rows, "final": pulls})
    pulls_of = read_json(kept)
    return np.ravel(pulls_of["windows"]), np.array(pulls_of["final"])


def run_one(seed: int, data: Path) -> Run:
    """Feed a recording frame by frame, and calibrate it as a whole."""
    options = SimulationOptions(camera="mini-real", frames=FRAMES, seed=seed)
    folder = data / f"mini-real-desk-{seed}-{FRAMES}"
    if not (folder / "truth" / "best_fit.json").is_file():
        write_sequence(folder, Simulation(options))
    truth = list_values(read_camera(folder / "truth" / "best_fit.json"))
    white = open_frames(folder / "white.png").read(0)
    frames = open_frames([str(folder / "raw")])
    calibrator = make_calibrator(white, [frames.read(i) for i in (0, 5, 10)])
    rows, times = [], []
    done_at, false_done = -1, False
    for index in range(len(frames)):
        update = calibrator.add_frame(frames.read(index), float(index))
        if index > _SETTLED and update.values:
            rows.append([(update.values[n] - truth[n]) / update.sigmas[n] for n in _NAMES])
        if update.n_keyframes > 4 or not update.values:
            times.append(update.seconds)
        if update.done and done_at < 0:
            done_at = index
            false_done = any(
                abs(update.values[n] - truth[n]) > target.limit(truth[n])
                for target in calibrator.targets
                for n in target.parameters
            )
    online = list_values(calibrator.finish().camera)
    calibrator.close()
    out = data / f"mini-real-desk-{seed}-{FRAMES}-calibration"
    found = lifcal.calibrate(
        folder / "raw",
        out,
        pixel_size_um=17.6,
        white=folder / "white.png",
        marker_size_mm=40.0,
        points=POINTS,
    )
    batch = list_values(found.camera)
    return Run(
        np.array(rows),
        np.array([online[name] - truth[name] for name in _NAMES]),
        np.array([batch[name] - truth[name] for name in _NAMES]),
        np.array(times),
        false_done,
        done_at,
    )


def run_drift(seed: int) -> tuple[int, int, float]:
    """Focus the lens anew in mid-sequence.

    Returns
    -------
    int
        Frames from the change to the alarm; a large number if there was none.
    int
        Alarms before the change.
    float
        Error of b_L0 at the end, in sigmas.
    """
    before, after = make_changed(seed)
    white = make_frame(before.render_white(), "white", "white")
    raws = list(render_changed(before, after))
    some = [make_frame(raw, "raw", "raw") for raw in raws[:11:5]]
    calibrator = make_calibrator(white, some)
    frames, false = 10**6, 0
    for index, raw in enumerate(raws):
        update = calibrator.add_frame(raw, float(index))
        if any(each.code == "camera-changed" for each in update.findings):
            if index < _CHANGED_AT:
                false += 1
            else:
                frames = min(frames, index - _CHANGED_AT + 1)
    found = calibrator.finish()
    calibrator.close()
    fitted = after.fit_best_model().camera.parameters.lens_to_array_mm
    off = found.camera.parameters.lens_to_array_mm - fitted
    return frames, false, off / found.covariance.sigmas()["b_L0"]


def make_changed(seed: int) -> tuple[Simulation, Simulation]:
    """Return a simulation, and the same with the lens focused anew."""
    options = SimulationOptions(camera="mini-real", frames=_DRIFT_FRAMES, seed=seed)
    before, after = Simulation(options), Simulation(options)
    design = CAMERAS["mini-real"]
    p = design.parameters
    moved = replace(
        design, parameters=replace(p, lens_to_array_mm=p.lens_to_array_mm * (1.0 + _CHANGE))
    )
    after.optics = moved.build(None, seed)
    after._renderer = Renderer(after.optics, options.rays_per_pixel, options.bayer)
    return before, after


def render_changed(before: Simulation, after: Simulation) -> Iterator[np.ndarray]:
    for index in range(_DRIFT_FRAMES):
        yield (before if index < _CHANGED_AT else after).render_frame(index).raw


def make_calibrator(
    white: Frame,
    some: list[Frame],
    online: OnlineOptions = _ONLINE,
    measure: MeasureOptions = _MEASURE,
) -> OnlineCalibrator:
    """Return a calibrator for the small camera, with the grid of a white image."""
    vignetting = vignetting_from_white(white)
    grid = estimate_focal_planes(some, fit_grid_to_white(white).grid, vignetting).grid
    options = CalibrateOptions(
        17.6,
        scale=ScaleOptions(marker_size_mm=40.0),
        measure=measure,
    )
    return OnlineCalibrator(FocusEngine(grid, vignetting), options, online)


def list_values(camera: PlenopticCamera) -> dict[str, float]:
    """Return the parameters of a camera in both forms."""
    array, physical = camera.array, camera.parameters
    return {
        "F": array.focal_px,
        "alpha": array.alpha,
        "beta": array.beta_mm,
        "c_x": array.principal_x_px,
        "c_y": array.principal_y_px,
        "f_L": physical.focal_length_mm,
        "b_L0": physical.lens_to_array_mm,
        "B": physical.array_to_sensor_mm,
    }


if __name__ == "__main__":  # one recording, step by step
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as scratch:
        data = Path(os.environ.get("LIFCAL_BENCHMARK_DATA", scratch))
        found = run_one(FIRST_SEED, data)
    print(f"{time.perf_counter() - begin:.0f} s")
    print("within 2 sigma", float(np.mean(np.abs(found.pulls) < 2.0)))
    for name, a, b in zip(_NAMES, found.online, found.batch, strict=True):
        print(f"{name}: online {a:+.5g}, batch {b:+.5g}")
