"""From raw frames to a calibrated camera: focus, track, measure and adjust in turn, report."""

from __future__ import annotations

import base64
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from datetime import datetime
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from lifcal import __version__
from lifcal.arrays import Float32Array, spread_choice
from lifcal.bundle import Adjustment
from lifcal.bundle.files import name_for_world, write_adjustment
from lifcal.bundle.record import read_record, write_record
from lifcal.calibration import CalibrateOptions, View, Workbench, calibrate_bench
from lifcal.calibration.depth_bias import measure_depth_bias
from lifcal.calibration.rehearsal import compile_ahead
from lifcal.calibration.views import DepthMaps, flatten, to_gray
from lifcal.camera import NO_SCALE, PlenopticCamera, read_camera
from lifcal.diagnostics import Finding
from lifcal.distances import check_inside
from lifcal.errors import ConfigError, DataError, InputError
from lifcal.files import hold_folder, read_json, write_json, write_text
from lifcal.imaging.files import encode_jpeg
from lifcal.imaging.preview import draw_map, fit
from lifcal.listener import Listener, choose_listener
from lifcal.metric.depth import compute_metric_depth
from lifcal.pipeline.added import RECORD, AddedCalibration, name_apart
from lifcal.pipeline.executors import WorkerProcesses
from lifcal.pipeline.failure import FailureReport, explain_failures
from lifcal.pipeline.finished import (
    FILES,
    compute_key,
    describe_inputs,
    digest_results,
    guard_finished,
)
from lifcal.pipeline.focusing import FocusRun, describe_settings, focus_frames
from lifcal.pipeline.tracking import track_frames
from lifcal.plots import plot_residuals, plot_rig
from lifcal.ply import PlyElement, format_header
from lifcal.reconstruction import write_observations
from lifcal.report import FrameEntry, PixelNoise, build_statistics, write_report
from lifcal.report.expectation import describe_command
from lifcal.sfm import ColmapEngine, SfmEngine

if TYPE_CHECKING:
    from lifcal.imaging.frames import Frames

_PICTURE_WIDTH = 700
"""Width of the pictures in the report, px: enough to see what was recorded."""
_PICTURE_ENDS = (1.0, 99.0)
"""Percentiles of the depths between which the colors of a picture are spread."""
_NOISE_FRAMES = 4
"""Frames in which the noise of depth is measured: they have a million pixels."""


@dataclass(frozen=True, eq=False)
class Calibration:
    """A calibrated camera and where its files are.

    Parameters
    ----------
    camera : PlenopticCamera
    summary : mapping
        What summary.json holds; docs/how-to/reading-the-report.md explains every entry.
    folder : Path
    adjustment : Adjustment
        With residuals, poses, points and their covariance.
    problems : tuple of str
        Frames that could not be used.
    n_frames : int
        Number of frames that were given.
    """

    camera: PlenopticCamera
    summary: Mapping[str, Any]
    folder: Path
    adjustment: Adjustment
    problems: tuple[str, ...] = ()
    n_frames: int = 0

    @property
    def verdict(self) -> str:
        """What to think of it, in one line."""
        return str(self.summary["verdict"]["text"])

    def __repr__(self) -> str:
        p = self.camera.parameters
        return (
            f"Calibration(f_L = {p.focal_length_mm:.4f} mm, b_L0 = {p.lens_to_array_mm:.4f} mm, "
            f"B = {p.array_to_sensor_mm:.5f} mm, c = ({p.principal_x_px:.2f}, "
            f"{p.principal_y_px:.2f}) px; {self.verdict})"
        )

    def _repr_html_(self) -> str:
        return (
            f"<p><strong>{escape(self.verdict)}</strong></p>{self.camera._repr_html_()}"
            f"<p>Files and report.html are in {escape(str(self.folder))}.</p>"
        )

    def plot_rig(self, world: int = 1) -> Any:
        """Draw the cameras and the points of the scene; return the axes. It needs matplotlib.

        Parameters
        ----------
        world : int
            Number of the scene, from 1, of a calibration from several recordings.
        """
        camera, state, worlds = self.camera, self.adjustment.state, self.adjustment.problem.worlds
        if not 1 <= world <= len(worlds):
            raise InputError(f"world is {world}, needs 1 to {len(worlds)}")
        views, points = worlds.of_views == world - 1, worlds.of_points == world - 1
        width, height = camera.image_size
        half_fov = (0.5 * width / camera.array.focal_px, 0.5 * height / camera.array.focal_px)
        return plot_rig(
            state.rotations[views].transpose(0, 2, 1),
            state.positions_world_mm()[views],
            state.points_world_mm[points],
            half_fov,
            unit="mm" if camera.scale_source is not None else NO_SCALE,
        )

    def plot_residuals(self) -> Any:
        """Draw distribution, mean over the image and size by frame of the residuals.

        It needs matplotlib. Observations that were rejected are left out.

        Returns
        -------
        (3,) array of matplotlib axes
        """
        problem = self.adjustment.problem
        observations = problem.observations
        return plot_residuals(
            self.adjustment.residuals_px,
            observations.points_raw_px,
            observations.view_ids[observations.view_indices],
            problem.active_mask,
            self.camera.image_size,
        )


def calibrate_frames(
    frames: Frames,
    folder: Path,
    options: CalibrateOptions,
    sources: Mapping[str, Path | None],
    listener: Listener | None = None,
    sfm_engine: SfmEngine | None = None,
    executor: Executor | None = None,
    force: bool = False,
    findings: Sequence[Finding] = (),
    added: AddedCalibration | None = None,
) -> Calibration:
    """Calibrate the camera that took the frames.

    Parameters
    ----------
    frames : Frames
    folder : Path
        Made if missing; an unfinished run with the same settings is continued. A finished
        calibration of other settings is not overwritten.
    options : CalibrateOptions
    sources : mapping
        Paths (or None) of 'grid', 'white' and 'xml'.
    listener : Listener, optional
    sfm_engine : SfmEngine, optional
        What finds the first poses; COLMAP with `options.sfm` if it is not given.
    executor : Executor, optional
        Makes depth and focused images of the frames (see `lifcal.pipeline.frames`); this process
        without.
    force : bool
        Keep a finished calibration of other settings in a folder beside this one, and calibrate.
    findings : sequence of Finding
        What was noticed of the frames before; it becomes a part of the summary.
    added : AddedCalibration, optional
        A finished calibration of the same camera, whose observations are adjusted together with the
        new ones. The frames are focused with its grid.

    Raises
    ------
    DataError
        For files that cannot be used, and for a folder that holds a finished calibration of other
        settings (without `force`).
    EstimationError
        If the frames do not determine the camera; the message says why and what to do.
    """
    if options.timestamps is not None and len(options.timestamps) != len(frames):
        raise DataError(f"{len(options.timestamps)} timestamps for {len(frames)} frames")
    with hold_folder(folder):
        return _calibrate(
            frames,
            folder,
            options,
            sources,
            choose_listener(listener),
            sfm_engine or ColmapEngine(options.sfm),
            executor,
            force,
            findings,
            added,
        )


def _calibrate(
    frames: Frames,
    folder: Path,
    options: CalibrateOptions,
    sources: Mapping[str, Path | None],
    listener: Listener,
    sfm: SfmEngine,
    executor: Executor | None,
    force: bool,
    findings: Sequence[Finding],
    added: AddedCalibration | None,
) -> Calibration:
    clock = _Clock()
    if added is not None:
        added.check(frames, options.pixel_size_mm)
    settings = describe_settings(frames, options.depth, sources)
    frames.check_alike()
    for scale in (options.scale, *options.scales):
        check_inside(scale.distances, settings["image_size_px"], options.depth.scale)
    inputs = describe_inputs(options, sfm, settings, frames.names, frames.recordings, added)
    kept = guard_finished(folder, inputs, force, listener)
    failure = FailureReport(folder, frames, kept)
    failure.findings += findings
    with failure.watch():
        if added is not None:
            noticed = added.compare_grid(frames, listener)
            findings = (*findings, *noticed)
            failure.findings += noticed
        run = focus_frames(frames, folder, options.depth, sources, listener, executor)
    if isinstance(executor, WorkerProcesses):
        executor.renew()  # the rest has no work for them, and needs their memory
    if run.engine is None or not run.done:
        with failure.watch():
            failure.run = run
            raise DataError(f"none of {len(frames)} frames can be used")
    clock.lap("grid, depth and focused images")
    failure.run = run
    inputs = _describe_inputs(run, options, sfm, added)
    if not kept:  # once more: now with the frames' pixels
        failure.kept = guard_finished(folder, inputs, force, listener)
    problems = tuple(str(problem) for _, problem in sorted(run.usable.problems.items()))
    finished = _read_finished(folder, compute_key(inputs))
    if finished is not None:
        return replace(finished, problems=problems, n_frames=len(frames))
    focal_px = (
        None if options.focal_length_mm is None else options.focal_length_mm / options.pixel_size_mm
    )
    with failure.watch(), compile_ahead(run.engine):
        bench = Workbench(
            run.engine.grid,
            run.engine.optics,
            float(run.store.settings["scale"]),
            options,
            tuple(frames.names),
            (*findings, *run.setup.findings, *run.usable.findings),
            frames.recording_names,
        )
        for view in list_views(run, options):
            bench.add_view(view)
        if added is not None:
            bench.add_finished(added.adjustment)
        models = track_frames(run, bench.views, sfm, focal_px, listener)
        clock.lap("poses")
        noticed = [finding for model in models for finding in model.findings]
        failure.findings += noticed
        with explain_failures(noticed):
            with listener.status("choosing points"):
                bench.start(models)
            bench.choose_points(listener)
            clock.lap("choosing points")
            bench.read_pixels(listener)
            clock.lap("reading pixels")
            adjustment = calibrate_bench(bench, listener)
            clock.lap("measuring and adjusting")
    used = set(adjustment.problem.observations.view_ids.tolist())
    views = [view for view in bench.views if view.index in used]
    bias = measure_depth_bias(adjustment, DepthMaps(views, bench.image_scale), len(views))
    adjustment = replace(adjustment, camera=replace(adjustment.camera, depth_bias=bias))
    white = sources.get("white")
    summary = _write_all(folder, run, bench, adjustment, inputs, clock, added, white)
    return Calibration(adjustment.camera, summary, folder, adjustment, problems, len(frames))


class _Clock:
    """Time by stage."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.seconds[name] = now - self._last
        self._last = now


def list_views(run: FocusRun, options: CalibrateOptions) -> list[View]:
    """Return the frames that are done, to be read from their folder."""
    place = {name: index for index, name in enumerate(run.usable.frames.names)}
    indices = np.array([place[name] for name in run.done], np.int64)
    times = options.time_frames(indices).tolist()
    return [
        _open_view(run, name, int(index), time)
        for name, index, time in zip(run.done, indices, times, strict=True)
    ]


def _open_view(run: FocusRun, name: str, index: int, time: float) -> View:
    engine, images = run.engine, run.store.images
    assert engine is not None

    def read_map(kind: str) -> Float32Array:
        return np.asarray(images.load(name, kind), np.float32)

    return View(
        name,
        index,
        time,
        lambda: to_gray(images.load(name, "focused")),
        lambda: read_map("u"),
        lambda: read_map("sigma"),
        lambda: flatten(engine, run.usable[index]),
        run.usable.frames.recordings[index],
    )


# Files


def _describe_inputs(
    run: FocusRun, options: CalibrateOptions, sfm: SfmEngine, added: AddedCalibration | None
) -> dict[str, Any]:
    """Return what the result depends on, with check sums of the frames that can be used."""
    entries = run.store.entries
    sums = {
        name: entries[name].checksum if name in run.done else "" for name in run.usable.frames.names
    }
    recordings = run.usable.frames.recordings
    return describe_inputs(options, sfm, run.store.settings, sums, recordings, added)


def _read_finished(folder: Path, key: str) -> Calibration | None:
    """Return the calibration in a folder if it was made from the same input."""
    if not all((folder / name).is_file() for name in FILES):
        return None
    try:
        summary = read_json(folder / "summary.json")
        if summary.get("provenance", {}).get("key") != key:
            return None
        if summary.get("files") != digest_results(folder):
            return None
        camera = read_camera(folder / "camera.json")
        adjustment = read_record(folder / RECORD, key, camera)
        return None if adjustment is None else Calibration(camera, summary, folder, adjustment)
    except (DataError, ConfigError, AttributeError):
        return None


def _write_all(
    folder: Path,
    run: FocusRun,
    bench: Workbench,
    adjustment: Adjustment,
    inputs: Mapping[str, Any],
    clock: _Clock,
    added: AddedCalibration | None,
    white: Path | None,
) -> dict[str, Any]:
    views = adjustment.problem.observations.view_ids
    registered = set(views.tolist())
    names = run.usable.frames.names
    times = bench.options.time_frames(np.arange(len(names)))
    entries = [
        FrameEntry(name, i, i in registered, float(times[i]), i not in run.usable.problems)
        for i, name in enumerate(names)
    ]
    files = {i: Path(run.usable.frames.source(i)).name for i in range(len(names))}
    recordings = {
        i: bench.name_recording(number) for i, number in enumerate(run.usable.frames.recordings)
    }
    if added is not None:
        first = bench.first_finished_view
        more = name_apart(added.names, set(names), added.folder)
        times = np.concatenate([times, added.times])
        files.update({first + i: name for i, name in enumerate(added.names)})
        recordings.update({first + i: name for i, name in enumerate(added.recordings)})
        entries += [
            FrameEntry(name, first + i, first + i in registered, added.times[i])
            for i, name in enumerate(more)
        ]
    middle = bench.frame_indices[len(bench.frame_indices) // 2]
    # The summary says that all is there: the old one goes first, the new one comes after the rest.
    for name in FILES[FILES.index("summary.json") :]:
        (folder / name).unlink(missing_ok=True)
    labels = [files[index] for index in views.tolist()]
    write_adjustment(folder, adjustment, times[views], labels=labels, summary=False)
    for world in range(len(adjustment.problem.worlds)):
        path = folder / name_for_world("cameras.ply", world)
        write_text(path, draw_cameras(adjustment, world))
    write_observations(folder / "observations.csv", adjustment.problem.observations)
    clock.lap("files")
    summary = build_statistics(
        adjustment,
        frames=entries,
        pictures=_pictures(run, names[int(middle)], adjustment.camera),
        provenance={
            "date": datetime.now().astimezone().isoformat(" ", "seconds"),
            "folder": str(folder),
            "command": describe_command(),
            "lifcal": __version__,
            "key": compute_key(inputs),
            "frames": len(names),
            "first frame": run.usable.frames.source(0),
            "grid": run.setup.grid.get("source"),
            "white image": None if white is None else str(white),
            "options": bench.options.as_dict(),
            "settings": dict(run.store.settings),
        },
        seconds=clock.seconds,
        nominal_focal_length_mm=bench.options.focal_length_mm,
        grid=run.setup.grid,
        findings=bench.findings,
        noise=_measure_noise(run, [names[i] for i in views.tolist() if i < len(names)]),
    )
    for number, world in enumerate(summary["worlds"]):
        world["recording"] = recordings[world["frames"][0]]
        world["cameras"] = name_for_world("cameras.ply", number)
    summary["files"] = digest_results(folder)
    summary["inputs"] = dict(inputs)
    summary["point_ids"] = adjustment.problem.observations.point_ids.tolist()
    write_record(folder / RECORD, adjustment, compute_key(inputs))
    write_json(folder / "summary.json", summary)
    write_report(summary, folder / "report.html")
    return summary


def _pictures(run: FocusRun, name: str, camera: PlenopticCamera) -> dict[str, str]:
    """Return the focused image and the depth map of a frame, as the report shows them."""
    images = run.store.images
    focused = np.asarray(images.load(name, "focused"))
    if focused.dtype == np.uint16:
        focused = (focused // 257).astype(np.uint8)
    u, sigma = (np.asarray(images.load(name, kind), np.float32) for kind in ("u", "sigma"))
    bias = camera.depth_bias
    depth, _ = compute_metric_depth(camera, u if bias is None else bias.remove(u), sigma)
    known = depth[np.isfinite(depth)]
    near, far = np.percentile(known, _PICTURE_ENDS).tolist() if len(known) else (1.0, 2.0)
    pictures = {"focused": np.asarray(focused, np.uint8)}
    if camera.scale_source is not None:
        drawn = draw_map(depth, near, far, "{:.0f} mm", near_is_low=True)
        pictures["depth"] = drawn
    else:
        middle = float(np.median(known)) if len(known) else 1.0
        drawn = draw_map(depth / middle, near / middle, far / middle, "{:.2f}", near_is_low=True)
        pictures["relative depth"] = drawn
    return {key: _encode_picture(image) for key, image in pictures.items()}


def _encode_picture(image: npt.NDArray[np.uint8]) -> str:
    rows, cols = image.shape[:2]
    width = min(_PICTURE_WIDTH, cols)
    small = fit(image, width, max(round(rows * width / cols), 1))
    return base64.b64encode(encode_jpeg(small)).decode()


def _measure_noise(run: FocusRun, names: Sequence[str]) -> PixelNoise | None:
    """Return the noise of virtual depth in some of the frames."""
    images = run.store.images
    chosen = [names[i] for i in spread_choice(len(names), _NOISE_FRAMES)]
    return PixelNoise.measure(
        (np.asarray(images.load(name, "u")), np.asarray(images.load(name, "sigma")))
        for name in chosen
    )


def draw_cameras(adjustment: Adjustment, world: int = 0) -> str:
    """Return the cameras of a world as pyramids of lines, metres: apex at the main lens."""
    camera, state = adjustment.camera, adjustment.state
    views = np.flatnonzero(adjustment.problem.worlds.of_views == world)
    width, height = camera.image_size
    places = state.positions_world_mm()[views]
    spread = float(np.linalg.norm(places - places.mean(axis=0), axis=1).max())
    size = 0.05 * max(spread, 1e-9)
    x, y = 0.5 * size * width / camera.array.focal_px, 0.5 * size * height / camera.array.focal_px
    shape = np.array([[0, 0, 0], [-x, -y, size], [x, -y, size], [x, y, size], [-x, y, size]])
    edges = np.array([[0, 1], [0, 2], [0, 3], [0, 4], [1, 2], [2, 3], [3, 4], [4, 1]])
    rows, lines = [], []
    for i, pose in enumerate(adjustment.cam_from_world[view] for view in views.tolist()):
        corners = pose.inverse().apply(shape) / 1000.0
        rows += [f"{a:.9f} {b:.9f} {c:.9f}" for a, b, c in corners.tolist()]
        lines += [f"{a} {b}" for a, b in (edges + 5 * i).tolist()]
    header = format_header(
        [
            PlyElement("vertex", len(rows), ["double x", "double y", "double z"]),
            PlyElement("edge", len(lines), ["int vertex1", "int vertex2"]),
        ],
        comment=f"cameras, world frame, {'metres' if camera.scale_source else 'no scale'}",
    )
    return header + "\n".join([*rows, *lines]) + "\n"
