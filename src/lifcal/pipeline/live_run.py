"""What `lifcal live` does: frames come in, a camera grows, its files are written at the end."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from lifcal import __version__
from lifcal.arrays import Float32Array, FloatArray
from lifcal.bundle import Adjustment
from lifcal.bundle.files import write_adjustment
from lifcal.calibration import (
    CalibrateOptions,
    FrameStatus,
    OnlineCalibrator,
    OnlineOptions,
    Update,
)
from lifcal.camera import MicroLensGrid, PlenopticCamera, read_camera, read_grid, write_grid
from lifcal.diagnostics import Finding
from lifcal.errors import DataError, EstimationError, LifcalError
from lifcal.files import (
    append_line,
    digest_files,
    hold_folder,
    make_plain,
    read_bytes,
    read_json,
    write_bytes,
    write_json,
    write_text,
)
from lifcal.geometry import RigidTransform
from lifcal.listener import Listener, choose_listener
from lifcal.pipeline.calibration import Calibration, draw_cameras
from lifcal.pipeline.finished import FILES, digest_results
from lifcal.pipeline.live_sources import LiveFrame, open_source
from lifcal.reconstruction import write_observations
from lifcal.report import FrameEntry, build_statistics, write_report
from lifcal.report.live_page import LiveStep
from lifcal.virtual import DepthOptions, FocusEngine

if TYPE_CHECKING:
    import numpy.typing as npt

_FOLDER = "live"
"""Name of the folder inside the results in which a run keeps what it needs to go on."""
_LOG = "frames.jsonl"
"""Name of the file in it that says what became of each frame, and what was noticed with it."""
_FRAMES_WITH_GRID, _FRAMES_WITHOUT = 3, 12
"""Frames that are collected before the first is answered: to find focal planes and the range of
depths, and to find the grid itself if nothing else shows it."""


@dataclass(eq=False)
class LiveRun:
    """A run of `lifcal live`.

    Parameters
    ----------
    folder : Path
    calibrator : OnlineCalibrator
    findings : list of Finding
        What was noticed so far.
    names : list of str
        Frames that came in, with what became of each in `statuses`.
    """

    folder: Path
    calibrator: OnlineCalibrator
    findings: list[Finding] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    statuses: list[str] = field(default_factory=list)
    grid_figures: Mapping[str, Any] = field(default_factory=dict)

    def write_result(self) -> Calibration:
        """Polish the keyframes, and write camera.json, poses.txt, summary.json, report.html.

        Raises
        ------
        EstimationError
            If no camera is known yet.
        """
        found = self.calibrator.finish()
        return _write_result(self, found)


def run_live(
    source: str,
    out: Path,
    options: CalibrateOptions,
    online: OnlineOptions,
    sources: Mapping[str, Path | None],
    *,
    camera: Path | None = None,
    bayer: str | None = None,
    idle_s: float | None = None,
    until_done: bool = False,
    bits: int = 8,
    listener: Listener | None = None,
    on_update: Callable[[LiveRun, Update], None] | None = None,
    stream: IO[bytes] | None = None,
) -> tuple[Calibration, BaseException | None]:
    """Calibrate from frames that come in, and write the result at the end.

    Parameters
    ----------
    source : str
        As for `open_source`.
    out : Path
        Folder for the results. A run that was interrupted is continued: frames of a folder or a
        video that were taken before are not taken again.
    options : CalibrateOptions
    online : OnlineOptions
    sources : mapping
        Paths (or None) of 'grid', 'white' and 'xml'.
    camera : Path, optional
        camera.json of an earlier calibration.
    bayer, idle_s, bits, stream
        As for `open_source`.
    until_done : bool
        End when all targets are met.
    listener : Listener, optional
    on_update : callable, optional
        Called with the run and the answer to each frame.

    Returns
    -------
    Calibration
    BaseException or None
        What ended the frames early (KeyboardInterrupt, or a DataError of the source): the result
        is written all the same.

    Raises
    ------
    LifcalError
        If there is no result yet: what ended the frames, or that they do not determine the camera.
    """
    listener = choose_listener(listener)
    with hold_folder(out):
        work = out / _FOLDER
        inputs = _guard(work, options, online, sources, camera, bayer, source)
        earlier = None if camera is None else read_camera(camera)
        run: LiveRun | None = None
        ended: BaseException | None = None

        def open_frames(seen: Sequence[str]) -> Iterator[LiveFrame]:
            size = partial(_find_size, sources, earlier)
            return open_source(source, idle_s, seen, size, bits, stream)

        try:
            frames: Iterator[LiveFrame] | None = None
            first: list[LiveFrame] = []
            if (work / "grid.json").is_file():
                engine, figures, findings = _read_engine(work, options.depth, bayer)
            else:
                frames = open_frames(())
                engine, figures, findings, first = _make_engine(
                    work, frames, options.depth, sources, earlier, bayer, listener
                )
            calibrator = OnlineCalibrator(
                engine, options, online, camera=earlier, bayer=bayer, listener=listener
            )
            write_json(work / "live.json", inputs)
            begun = LiveRun(out, calibrator, [*findings], grid_figures=figures)
            if frames is None:
                _go_on(begun, work, listener)
                frames = open_frames(begun.names)
            run = begun
            _feed(run, work, first, frames, until_done, listener, on_update)
        except (KeyboardInterrupt, LifcalError) as error:
            ended = error
        if run is None:
            if isinstance(ended, LifcalError):
                raise ended
            raise DataError("interrupted before the first frames had come in: nothing is written")
        try:
            return run.write_result(), ended
        except EstimationError:
            if isinstance(ended, LifcalError):
                raise ended from None
            raise
        finally:
            run.calibrator.close()


def _feed(
    run: LiveRun,
    work: Path,
    first: Sequence[LiveFrame],
    frames: Iterator[LiveFrame],
    until_done: bool,
    listener: Listener,
    on_update: Callable[[LiveRun, Update], None] | None,
) -> None:
    calibrator = run.calibrator

    def every() -> Iterator[LiveFrame]:
        yield from first
        yield from frames

    for frame in every():
        if frame.pixels is None:
            _refuse(run, work, frame.name, frame.problem, listener)
            continue
        update = calibrator.add_frame(frame.pixels, float(len(run.names)), frame.name)
        findings = list(update.findings)
        if update.status == "unusable":
            text = f"{frame.name}: {update.text}"
            findings.append(Finding.of("frame-unusable", text, frame=frame.name))
            listener.finding(findings[-1])
        run.names.append(frame.name)
        run.statuses.append(str(update.status))
        run.findings += findings
        # The line comes before the state: a run that goes on can drop a line without a state, but
        # could not make up for a line that is missing.
        _log(work, update, findings)
        if update.status.counts:
            calibrator.save(work)
        if on_update is not None:
            on_update(run, update)
        if until_done and update.done:
            return


def _refuse(run: LiveRun, work: Path, name: str, why: str, listener: Listener) -> None:
    finding = Finding.of("frame-unusable", why, frame=name)
    run.names.append(name)
    run.statuses.append("unusable")
    run.findings.append(finding)
    listener.finding(finding)
    _append(work, {"name": name, "status": "unusable", "findings": [finding.as_dict()]})


def describe_step(run: LiveRun, update: Update) -> LiveStep:
    """Return what the page shows after a frame."""
    calibrator = run.calibrator
    live = calibrator.map
    nothing = np.zeros((0, 3))
    limits = {
        name: target.limit(update.values[name])
        for target in calibrator.targets
        for name in target.parameters
        if name in update.values
    }
    poses = [] if live is None else [frame.cam_from_world for frame in live.keyframes]
    path = [pose for _, pose in calibrator.path]
    return LiveStep(
        update.name,
        str(update.status),
        update.text,
        "" if update.advice is None else update.advice.text,
        update.done,
        update.n_keyframes,
        update.values,
        update.sigmas,
        limits,
        update.coverage,
        nothing if live is None else live.points_world,
        _list_places(poses),
        _list_places(path),
        calibrator.last_focused,
    )


def _list_places(poses: Sequence[RigidTransform]) -> FloatArray:
    return np.array([pose.inverse().translation_mm for pose in poses]).reshape(-1, 3)


# What a run keeps to go on


def _guard(
    work: Path,
    options: CalibrateOptions,
    online: OnlineOptions,
    sources: Mapping[str, Path | None],
    camera: Path | None,
    bayer: str | None,
    source: str,
) -> dict[str, Any]:
    """Return what the result depends on; DataError if the folder holds something else."""
    from dataclasses import asdict

    inputs: dict[str, Any] = make_plain(
        {
            "lifcal_version": __version__,
            "source": source,
            "options": options.as_dict(),
            "online": asdict(online),
            "files": digest_files({**sources, "camera": camera}),
            "bayer": bayer,
        }
    )
    path = work / "live.json"
    if path.is_file():
        held = read_json(path)
        if held != inputs:
            names = [name for name in inputs if held.get(name) != inputs[name]]
            raise DataError(
                f"{work.parent}: holds another run of lifcal live (other {', '.join(names)}): "
                "choose another folder"
            )
        return inputs
    taken = [name for name in (*FILES, "focus.json") if (work.parent / name).exists()]
    if taken:
        raise DataError(
            f"{work.parent}: holds another calibration ({taken[0]}): choose another folder"
        )
    return inputs


def _go_on(run: LiveRun, work: Path, listener: Listener) -> None:
    """Take up what a run before has done: its state, its frames, and what it noticed.

    A run that was killed may have left a part of a line, or a line of a frame that did not become
    part of the saved state. Such lines are removed, and their frames are taken again.
    """
    calibrator = run.calibrator
    if (work / "state.npz").is_file():
        calibrator.load(work)
    lines, whole = _read_log(work)
    kept: list[str] = []
    for line, entry in lines:
        if "name" in entry:
            time = len(run.names)
            if FrameStatus(entry["status"]).counts and time > calibrator.state.last_time:
                whole = False
                break
            run.names.append(entry["name"])
            run.statuses.append(entry["status"])
        run.findings += [Finding.from_dict(each) for each in entry.get("findings", ())]
        kept.append(line)
    if not whole:
        finding = Finding.of(
            "live-log-cut",
            f"{work / _LOG}: the run before was killed while it noted what became of frame "
            f"{len(run.names)} (counted from 0): the incomplete note is removed, and the frame is "
            "taken again if the source still has it",
            frames=len(run.names),
        )
        run.findings.append(finding)
        listener.finding(finding)
        write_text(work / _LOG, "".join(f"{line}\n" for line in kept))
        _append(work, {"findings": [finding.as_dict()]})


def _read_log(work: Path) -> tuple[list[tuple[str, dict[str, Any]]], bool]:
    """Return the whole lines of the log with their content, and whether no part of one follows."""
    path = work / _LOG
    if not path.is_file():
        return [], True
    *lines, rest = read_bytes(path).decode("utf-8", "replace").split("\n")
    found = []
    for number, line in enumerate(lines, 1):
        try:
            entry = json.loads(line)
            if "name" in entry:
                FrameStatus(entry["status"])
            for each in entry.get("findings", ()):
                Finding.from_dict(each)
        except (ValueError, TypeError, KeyError, AttributeError, DataError):
            raise DataError(
                f"{path}: line {number} is damaged, so the run cannot be continued: begin in a new "
                "folder"
            ) from None
        found.append((line, entry))
    return found, not rest


def _log(work: Path, update: Update, findings: Sequence[Finding]) -> None:
    content = {
        "name": update.name,
        "status": str(update.status),
        "values": dict(update.values),
        "sigmas": dict(update.sigmas),
        "done": update.done,
        "keyframes": update.n_keyframes,
        "seconds": round(update.seconds, 3),
        "findings": [finding.as_dict() for finding in findings],
    }
    _append(work, content)


def _append(work: Path, content: Mapping[str, Any]) -> None:
    append_line(work / _LOG, json.dumps(make_plain(content)))


def _find_size(
    sources: Mapping[str, Path | None], earlier: PlenopticCamera | None
) -> tuple[int, int] | None:
    """Return the size of frames by what else is given."""
    if earlier is not None:
        return earlier.image_size
    if sources["grid"] is not None:
        return read_grid(sources["grid"]).image_size
    if sources["white"] is not None:
        from lifcal.imaging.files import read_image

        height, width = read_image(sources["white"]).shape[:2]
        return width, height
    return None


# Grid and engine


@dataclass(frozen=True)
class _NoStore:
    """Stands for a folder of focused images, of which a live run has none."""

    setup: None = None
    shared: None = None


def _make_engine(
    work: Path,
    frames: Iterator[LiveFrame],
    options: DepthOptions,
    sources: Mapping[str, Path | None],
    earlier: PlenopticCamera | None,
    bayer: str | None,
    listener: Listener,
) -> tuple[FocusEngine, Mapping[str, Any], Sequence[Finding], list[LiveFrame]]:
    """Return the engine, what is known of its grid, findings, and frames that were taken for it."""
    if earlier is not None:
        engine, vignetting = _engine_of_camera(earlier, sources["white"], options, bayer)
        figures: dict[str, Any] = {"source": "camera file"}
        _write_engine(work, engine.grid, vignetting, None, figures, ())
        return engine, figures, (), []
    from lifcal.imaging.frames import ArrayFrames
    from lifcal.pipeline.focusing import make_engine
    from lifcal.pipeline.usable import UsableFrames

    given = sources["grid"] is not None or sources["white"] is not None
    count = _FRAMES_WITH_GRID if given else _FRAMES_WITHOUT
    first: list[LiveFrame] = []
    good: list[npt.NDArray[np.generic]] = []
    with listener.status(f"waiting for the first {count} frames"):
        for frame in frames:
            first.append(frame)
            if frame.pixels is not None and _fits(frame.pixels, good):
                good.append(frame.pixels)
            if len(good) == count:
                break
    if not good:
        raise DataError("no frame came in")
    usable = UsableFrames(ArrayFrames(good, bayer=bayer))
    started = make_engine(usable, options, sources, _NoStore(), listener)  # type: ignore[arg-type]
    if started is None:
        why = "; ".join(str(problem) for problem in usable.problems.values())
        raise DataError(f"none of the first {len(good)} frames can be used: {why}")
    # The range of the first frames is widened: the camera will move nearer and farther.
    low, high = started.setup.depth_range
    wide = (0.88 * low, 1.12 * high) if low > 0.0 else (1.12 * low, 0.88 * high)
    wide = (max(wide[0], 1.7), wide[1]) if low > 0.0 else (wide[0], min(wide[1], -1.7))
    started.engine.set_depth_range(wide)
    setup = started.setup
    _write_engine(work, started.engine.grid, started.vignetting, wide, setup.grid, setup.findings)
    return started.engine, setup.grid, setup.findings, first


def _fits(pixels: npt.NDArray[np.generic], others: Sequence[npt.NDArray[np.generic]]) -> bool:
    return not others or (pixels.shape, pixels.dtype) == (others[0].shape, others[0].dtype)


def _engine_of_camera(
    camera: PlenopticCamera, white: Path | None, options: DepthOptions, bayer: str | None
) -> tuple[FocusEngine, Float32Array | None]:
    from lifcal.grid.flat_field import vignetting_from_white
    from lifcal.pipeline.focusing import read_white

    image = read_white(white, camera.image_size, bayer)
    vignetting = None if image is None else vignetting_from_white(image)
    return FocusEngine(camera.grid, vignetting, options, bayer=bayer), vignetting


def _write_engine(
    work: Path,
    grid: MicroLensGrid,
    vignetting: Float32Array | None,
    depth_range: tuple[float, float] | None,
    figures: Mapping[str, Any],
    findings: Sequence[Finding],
) -> None:
    import io

    buffer = io.BytesIO()
    np.savez(
        buffer,
        vignetting=np.zeros((0, 0), np.float32) if vignetting is None else vignetting,
        depth_range=np.array([math.nan, math.nan] if depth_range is None else depth_range),
    )
    write_bytes(work / "engine.npz", buffer.getvalue())
    write_json(work / "grid_figures.json", make_plain(dict(figures)))
    noticed = [finding.as_dict() for finding in findings]
    write_json(work / "grid_findings.json", {"findings": noticed})
    write_grid(work / "grid.json", grid)  # last: it says that the others are there


def _read_engine(
    work: Path, options: DepthOptions, bayer: str | None
) -> tuple[FocusEngine, Mapping[str, Any], Sequence[Finding]]:
    """Return the engine of a run before, what is known of its grid, and what was noticed in it."""
    import io
    from dataclasses import replace
    from zipfile import BadZipFile

    try:
        with np.load(io.BytesIO(read_bytes(work / "engine.npz")), allow_pickle=False) as held:
            vignetting, ends = held["vignetting"], held["depth_range"].tolist()
    except (ValueError, KeyError, EOFError, BadZipFile):
        raise DataError(f"{work / 'engine.npz'}: is damaged: begin in a new folder") from None
    if math.isfinite(ends[0]):
        options = replace(options, depth_range=(ends[0], ends[1]))
    engine = FocusEngine(
        read_grid(work / "grid.json"), vignetting if vignetting.size else None, options, bayer=bayer
    )
    noticed = read_json(work / "grid_findings.json")["findings"]
    findings = [Finding.from_dict(each) for each in noticed]
    return engine, read_json(work / "grid_figures.json"), findings


# Files


def _doubt_sigmas() -> Finding:
    """Return what is known of the standard deviations of online calibrations."""
    return Finding.of(
        "online-sigmas",
        "the standard deviations of an online calibration are too small on some recordings "
        "(docs/theory/online.md): calibrate the recorded frames with lifcal calibrate before you "
        "rely on the result",
    )


def _write_result(run: LiveRun, found: Adjustment) -> Calibration:
    folder, calibrator = run.folder, run.calibrator
    live = calibrator.map
    assert live is not None
    keyframes = {frame.index: frame for frame in live.keyframes}
    views = found.problem.observations.view_ids.tolist()
    times = np.array([keyframes[index].time for index in views])
    entries = [
        FrameEntry(frame.name, index, index in views, frame.time)
        for index, frame in keyframes.items()
    ]
    for name in FILES[FILES.index("summary.json") :]:
        (folder / name).unlink(missing_ok=True)
    names = [keyframes[index].name for index in views]
    write_adjustment(folder, found, times, labels=names, summary=False)
    write_text(folder / "cameras.ply", draw_cameras(found))
    write_observations(folder / "observations.csv", found.problem.observations)
    counts = {status: run.statuses.count(status) for status in sorted(set(run.statuses))}
    summary = build_statistics(
        found,
        frames=entries,
        provenance={
            "lifcal": __version__,
            "frames": len(run.names),
            "keyframes": calibrator.state.n_keyframes,
            "statuses": counts,
            "targets": calibrator.online.targets,
            "targets met": calibrator.state.done,
            "options": calibrator.options.as_dict(),
        },
        nominal_focal_length_mm=calibrator.options.focal_length_mm,
        grid=run.grid_figures,
        findings=[*run.findings, _doubt_sigmas()],
    )
    summary["files"] = digest_results(folder)
    summary["point_ids"] = found.problem.observations.point_ids.tolist()
    write_json(folder / "summary.json", summary)
    write_report(summary, folder / "report.html")
    return Calibration(found.camera, summary, folder, found, (), len(run.names))
