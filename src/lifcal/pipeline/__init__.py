"""What the commands do, for programs: folders of raw frames in, files and records out.

`find_grid` finds the micro-lens grid, `focus` makes virtual depth and focused images, `calibrate`
does both on the way to a calibrated camera. Each is what the command of the same name calls. They
take paths, opened frames or arrays, and keep what is done in a folder, so that the next run
continues. To put the steps of a calibration in an order of your own, use `lifcal.calibration`
(`examples/own_order.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from lifcal.errors import InputError

if TYPE_CHECKING:
    from concurrent.futures import Executor

    import numpy as np
    import numpy.typing as npt

    from lifcal.calibration import Update
    from lifcal.imaging.frames import Frames
    from lifcal.listener import Listener
    from lifcal.pipeline.added import AddedCalibration
    from lifcal.pipeline.calibration import Calibration
    from lifcal.pipeline.choice import FrameChoice
    from lifcal.pipeline.focusing import FocusRun
    from lifcal.pipeline.grids import FoundGrid
    from lifcal.pipeline.live_run import LiveRun
    from lifcal.scale import EarlierOptics, ScaleSource
    from lifcal.sfm import SfmEngine

__all__ = ["calibrate", "find_grid", "focus", "live"]

Raws: TypeAlias = (
    "str | Path | Sequence[str | Path | Sequence[str | Path]] | Frames | npt.NDArray[np.generic]"
    " | Sequence[npt.NDArray[np.generic]] | Sequence[Sequence[npt.NDArray[np.generic]]]"
)
"""Where raws come from: paths, frames that were opened, or arrays in memory. A list of lists is of
several recordings."""


def calibrate(
    raws: Raws,
    out: str | Path,
    *,
    pixel_size_um: float,
    white: str | Path | None = None,
    grid: str | Path | None = None,
    xml: str | Path | None = None,
    bayer: str | None = None,
    every: int | None = None,
    frames: tuple[int, int] | None = None,
    exclude: str | Sequence[str] | None = None,
    focal_length_mm: float | None = None,
    marker_size_mm: float | Sequence[float | None] | None = None,
    marker_distances: str | Path | Sequence[str | Path | None] | None = None,
    dictionary: str = "DICT_6X6_250",
    distances: str | Path | Sequence[str | Path | None] | None = None,
    trajectory: str | Path | Sequence[str | Path | None] | None = None,
    trajectory_sigma_mm: float = 1.0,
    known: str | Path | Mapping[str, float | str | Path] | None = None,
    timestamps: str | Path | Sequence[str | Path] | None = None,
    points: int = 1000,
    loss: str = "cauchy",
    distortion: str = "brown",
    tilt: str = "auto",
    priors: bool = True,
    matching: str = "auto",
    seed: int = 0,
    settings: Mapping[str, Any] | None = None,
    listener: Listener | None = None,
    scale_sources: Sequence[ScaleSource] = (),
    sfm_engine: SfmEngine | None = None,
    executor: Executor | None = None,
    force: bool = False,
    add: str | Path | None = None,
) -> Calibration:
    """Calibrate a camera from raw frames of any textured scene, taken with the camera moving.

    `lifcal calibrate` calls this function. docs/how-to/calibrate.md explains the options.

    Parameters
    ----------
    raws : str, Path, sequence of them, Frames, or sequence of arrays
        Files, folders, globs, videos; what `lifcal.open_frames` returns; or pixels in memory, each
        (height, width) or (height, width, 3), uint8 or uint16. Several folders, globs or videos are
        several recordings of one camera, and so is a list of lists of paths or of arrays: each
        shows a scene of its own.
    out : str or Path
        Folder for the results. An unfinished run with the same settings is continued. A finished
        calibration of other settings is not overwritten (see `force`).
    pixel_size_um : float
        Pixel pitch of the sensor.
    white, grid, xml : str or Path, optional
        White image, grid.json, and the maker's XML to start from when the grid is found.
    bayer : str, optional
        'rggb', 'grbg', 'gbrg' or 'bggr' for raws with a color mosaic.
    every : int, optional
        Use every n-th frame. If it is not given, all frames are used; for a video with more than
        60 frames, only those are used that differ enough from the frame before.
    frames : (int, int), optional
        Indices of the first and the last frame, from 0.
    exclude : str or sequence of str, optional
        Names of frames to leave out, with * and ? for any characters. If there are several
        recordings, `every` and `frames` apply to each of them.
    focal_length_mm : float, optional
        Focal length engraved on the lens: a hint, and a check of the result.
    marker_size_mm : float, optional
        Side of ArUco markers in the scene. This and the next three arguments hold for all
        recordings; a list gives them for each recording, None where there is nothing. One
        recording with a scale is enough.
    marker_distances : str or Path, optional
        File with known distances between the centers of markers, 'id1 id2 mm sigma' a line.
    dictionary : str
        ArUco dictionary of the printed markers.
    distances : str or Path, optional
        File with distances between points picked in focused images.
    trajectory : str or Path, optional
        File with known poses, TUM format.
    trajectory_sigma_mm : float
        Standard deviation of the known positions along each axis.
    known : str, Path or mapping, optional
        Recalibration. The camera.json of an earlier calibration gives f_L and B with their
        covariance. A mapping gives f_L and B, or B alone: a number of mm is taken as exact,
        a camera.json gives its value and sigma.
    timestamps : str or Path, optional
        File with one time a line, for every frame; or a list of files, one for each recording.
    points : int
        Number of scene points to measure in each scene.
    loss : str
        Robust loss: 'none', 'huber' or 'cauchy'.
    distortion : str
        'brown', 'auto' (terms that pay), 'none' or 'division'.
    tilt : str
        Tilt of the micro-lens array against the sensor: 'auto' (estimated if it pays), 'none' or
        'free' (always estimated).
    priors : bool
        Whether to use what is known of any camera: the principal point is near the middle of the
        image, and tangential distortion is small.
    matching : str
        Which frames are matched: 'auto', 'sequential', 'exhaustive' or 'retrieval'.
    seed : int
        Seed of random choices. The same seed gives the same result.
    settings : mapping of str to value, optional
        Further options by name, 'measure.window_px' for example, as
        `CalibrateOptions.with_settings` takes them. They win over the arguments above.
    listener : Listener, optional
        Is told how the run goes; without one it is logged.
    scale_sources : sequence of ScaleSource
        Sources of scale of your own, besides those that the arguments above ask for.
    sfm_engine : SfmEngine, optional
        Engine that finds the first poses, in place of COLMAP.
    executor : concurrent.futures.Executor, optional
        Makes depth and focused images of the frames, in place of this process.
    force : bool
        If `out` holds a finished calibration of other settings, keep that in a folder beside it and
        calibrate. Without, this is a DataError that says what differs.
    add : str or Path, optional
        Folder of a finished calibration of the same camera. What it measured is adjusted together
        with what is measured in `raws`, its scenes beside theirs, with its grid.

    Raises
    ------
    ConfigError
        If a name, of a setting for instance, is not known.
    DataError
        For files that cannot be used, and for a folder that holds another calibration.
    EstimationError
        If the frames do not determine the camera; the message says why and what to do.
    """
    from lifcal.bundle import AdjustOptions
    from lifcal.calibration import CalibrateOptions
    from lifcal.listener import choose_listener
    from lifcal.measure import MeasureOptions
    from lifcal.pipeline.calibration import calibrate_frames
    from lifcal.pipeline.choice import choose_informative
    from lifcal.scale import ScaleOptions, read_marker_distances, read_picked_distances
    from lifcal.sfm import SfmOptions

    choice = _make_choice(every, frames, exclude)
    exact, earlier = _read_known(known)
    opened = _open(raws, bayer, white)
    count = len(opened.recording_names)
    given: list[dict[str, Any]] = [
        {
            "marker_size_mm": size,
            "marker_distances": () if between is None else read_marker_distances(Path(between)),
            "distances": () if picked is None else read_picked_distances(Path(picked)),
            "trajectory": None if path is None else Path(path),
        }
        for size, between, picked, path in zip(
            _for_each("marker_size_mm", marker_size_mm, count),
            _for_each("marker_distances", marker_distances, count),
            _for_each("distances", distances, count),
            _for_each("trajectory", trajectory, count),
            strict=True,
        )
    ]
    if count > 1 and isinstance(trajectory, str | Path) and timestamps is None:
        raise InputError(
            f"{trajectory}: one trajectory for {count} recordings needs --timestamps that tell "
            "their frames apart; or give a trajectory for each recording, 'none' for one without"
        )
    options = CalibrateOptions(
        pixel_size_um,
        focal_length_mm,
        scale=ScaleOptions(
            dictionary=dictionary,
            trajectory_sigma_mm=trajectory_sigma_mm,
            known=exact,
            earlier=earlier,
            others=tuple(scale_sources),
            **given[0],
        ),
        sfm=SfmOptions(matching=matching, seed=seed),
        measure=MeasureOptions(points=points),
        adjust=AdjustOptions(loss=loss, distortion=distortion, tilt=tilt),
        priors=priors,
        timestamps=_read_times(timestamps, opened),
    ).with_settings(settings or {})
    if any(each != given[0] for each in given):
        scales = tuple(replace(options.scale, **each) for each in given)
        options = replace(options, scales=scales)
    added = None if add is None else _read_added(Path(add), Path(out), grid, xml)
    sources = _list_sources(grid if added is None else added.folder / "grid.json", white, xml)
    options = options.for_frames(opened.names)
    listener = choose_listener(listener)
    indices, findings = choose_informative(opened, choice, listener)
    return calibrate_frames(
        opened.select(indices),
        Path(out),
        options.select_frames(indices, len(opened)),
        sources,
        listener,
        sfm_engine,
        executor,
        force,
        findings,
        added,
    )


def focus(
    raws: Raws,
    out: str | Path,
    *,
    grid: str | Path | None = None,
    white: str | Path | None = None,
    xml: str | Path | None = None,
    bayer: str | None = None,
    every: int | None = None,
    frames: tuple[int, int] | None = None,
    exclude: str | Sequence[str] | None = None,
    depth_range: tuple[float, float] | None = None,
    scale: float = 0.5,
    listener: Listener | None = None,
    executor: Executor | None = None,
) -> FocusRun:
    """Make a virtual depth map and a totally focused image of each raw.

    `lifcal focus` calls this function. docs/theory/virtual-depth.md explains the method.

    Parameters
    ----------
    raws : str, Path, sequence of them, Frames, or sequence of arrays
        Files, folders, globs, videos; what `lifcal.open_frames` returns; or pixels in memory, each
        (height, width) or (height, width, 3), uint8 or uint16.
    out : str or Path
        Folder for the results. An unfinished run with the same settings is continued.
    grid, white, xml : str or Path, optional
        grid.json, white image, and the maker's XML to start from when the grid is found. Without a
        grid.json the grid is found in the white image or in the raws.
    bayer : str, optional
        'rggb', 'grbg', 'gbrg' or 'bggr' for raws with a color mosaic.
    every : int, optional
        Every n-th frame.
    frames : (int, int), optional
        Indices of the first and the last frame, from 0.
    exclude : str or sequence of str, optional
        Names of frames to leave out, with * and ? for any characters.
    depth_range : (float, float), optional
        Virtual depths to search; found in some of the raws without.
    scale : float
        Size of the results relative to the raws.
    listener : Listener, optional
        Is told how the run goes; without one it is logged.
    executor : concurrent.futures.Executor, optional
        Makes the frames, in place of this process.

    Returns
    -------
    FocusRun
        `done` has the names of the frames that are done, `usable.problems` says which frames cannot
        be used and why, `engine` can focus further frames.

    Raises
    ------
    DataError
        If the folder holds something else, or grid, white image or XML cannot be used.
    """
    from lifcal.files import hold_folder
    from lifcal.listener import choose_listener
    from lifcal.pipeline.focusing import focus_frames
    from lifcal.virtual import DepthOptions

    choice = _make_choice(every, frames, exclude)
    if depth_range is not None:
        # floats: a run that goes on takes the range from focus.json, where 2 and 2.0 differ
        depth_range = (float(min(depth_range)), float(max(depth_range)))
    options = DepthOptions(scale=scale, depth_range=depth_range)
    sources = _list_sources(grid, white, xml)
    opened = _open(raws, bayer, white)
    chosen = opened.select(choice.list_indices(opened.names))
    with hold_folder(Path(out)):
        return focus_frames(
            chosen, Path(out), options, sources, choose_listener(listener), executor
        )


def find_grid(
    images: Raws,
    out: str | Path | None = None,
    *,
    xml: str | Path | None = None,
    bayer: str | None = None,
    max_frames: int = 40,
    listener: Listener | None = None,
) -> FoundGrid:
    """Find the micro-lens grid in a white image or, without one, in raws of a scene.

    `lifcal grid` calls this function. docs/theory/grid.md explains the method.

    Parameters
    ----------
    images : str, Path, sequence of them, Frames, or sequence of arrays
        One white image, or raws of a scene: files, folders, globs, videos, or pixels in memory. One
        image is taken as white if all its micro images look alike, and as a scene otherwise.
    out : str or Path, optional
        grid.json to write, with a picture of the fit beside it; nothing is written without.
    xml : str or Path, optional
        The maker's XML, or a grid.json, to start from; its lens types are kept.
    bayer : str, optional
        'rggb', 'grbg', 'gbrg' or 'bggr' for raws with a color mosaic.
    max_frames : int
        Number of scene frames to use at most.
    listener : Listener, optional
        Is told how the run goes; without one it is logged.

    Raises
    ------
    DataError
        For files that cannot be used, or that do not show the grid of `xml`.
    EstimationError
        If the raws do not show a lattice of micro lenses.
    """
    from lifcal.listener import choose_listener
    from lifcal.pipeline.grids import find_grid_in_frames

    if out is not None and Path(out).suffix.lower() != ".json":
        raise InputError(f"{out}: the grid is written as .json")
    if max_frames < 1:
        raise InputError(f"max_frames is {max_frames}, needs 1 or more")
    frames = _open(images, bayer)
    start = None if xml is None else Path(xml)
    found = find_grid_in_frames(frames, start, max_frames, choose_listener(listener))
    if out is not None:
        found.write(Path(out), frames)
    return found


def live(
    source: str | Path,
    out: str | Path,
    *,
    pixel_size_um: float,
    white: str | Path | None = None,
    grid: str | Path | None = None,
    xml: str | Path | None = None,
    bayer: str | None = None,
    camera: str | Path | None = None,
    target: str = "F=0.05%,B=0.5%,c=1px",
    until_done: bool = False,
    idle_s: float | None = None,
    bits: int = 8,
    focal_length_mm: float | None = None,
    marker_size_mm: float | None = None,
    marker_distances: str | Path | None = None,
    dictionary: str = "DICT_6X6_250",
    points: int = 1000,
    settings: Mapping[str, Any] | None = None,
    listener: Listener | None = None,
    on_update: Callable[[LiveRun, Update], None] | None = None,
) -> tuple[Calibration, BaseException | None]:
    """Calibrate a camera while frames come in.

    `lifcal live` calls this function. docs/how-to/live.md explains the options. A program that has
    the frames itself uses `lifcal.OnlineCalibrator`.

    Parameters
    ----------
    source : str or Path
        A folder that another program fills, a video, the index of a camera that OpenCV can open,
        or '-' for raw frames on standard input.
    out : str or Path
        Folder for the results. An interrupted run with the same settings is continued.
    pixel_size_um : float
        Pixel pitch of the sensor.
    white, grid, xml : str or Path, optional
        White image, grid.json, and the maker's XML to start from when the grid is found.
    bayer : str, optional
        'rggb', 'grbg', 'gbrg' or 'bggr' for raws with a color mosaic.
    camera : str or Path, optional
        camera.json of an earlier calibration: its covariance is the prior, no scale is needed.
    target : str
        How well parameters are to be known.
    until_done : bool
        End when all targets are met.
    idle_s : float, optional
        End after so many seconds without a new frame; a folder is watched for ever without.
    bits : int
        Bits of the pixels on standard input, 8 or 16 (little-endian).
    focal_length_mm : float, optional
        Focal length engraved on the lens: a check of the result.
    marker_size_mm : float, optional
        Side of ArUco markers in the scene.
    marker_distances : str or Path, optional
        File with known distances between the centers of markers, 'id1 id2 mm sigma' a line.
    dictionary : str
        ArUco dictionary of the printed markers.
    points : int
        Number of scene points to measure at the end.
    settings : mapping of str to value, optional
        Further options by name, 'measure.window_px' for example, as
        `CalibrateOptions.with_settings` takes them. They win over the arguments above.
    listener : Listener, optional
        Is told how the run goes; without one it is logged.
    on_update : callable, optional
        Called with the run and the answer to each frame.

    Returns
    -------
    Calibration
    BaseException or None
        What ended the frames early, KeyboardInterrupt for example.

    Raises
    ------
    DataError
        For a source or files that cannot be used, and for a folder that holds something else.
    EstimationError
        If the frames do not determine the camera.
    """
    from lifcal.calibration import CalibrateOptions, OnlineOptions
    from lifcal.measure import MeasureOptions
    from lifcal.pipeline.live_run import run_live
    from lifcal.scale import ScaleOptions, read_marker_distances

    options = CalibrateOptions(
        pixel_size_um,
        focal_length_mm,
        scale=ScaleOptions(
            marker_size_mm=marker_size_mm,
            marker_distances=()
            if marker_distances is None
            else read_marker_distances(Path(marker_distances)),
            dictionary=dictionary,
        ),
        measure=MeasureOptions(points=points),
    ).with_settings(settings or {})
    online = OnlineOptions(targets=target, points=min(points, OnlineOptions().points))
    return run_live(
        str(source),
        Path(out),
        options,
        online,
        _list_sources(grid, white, xml),
        camera=None if camera is None else Path(camera),
        bayer=bayer,
        idle_s=idle_s,
        until_done=until_done,
        bits=bits,
        listener=listener,
        on_update=on_update,
    )


def _open(raws: Raws, bayer: str | None, white: str | Path | None = None) -> Frames:
    """Return frames of paths, of arrays in memory, or as they were opened."""
    import numpy as np

    from lifcal.imaging.frames import ArrayFrames, Frames, open_frames

    if isinstance(raws, Frames):
        if bayer is not None and bayer.lower() != raws.bayer:
            raise InputError(
                f"bayer is {bayer!r}, but the frames were opened with {raws.bayer!r}: give it to "
                "open_frames"
            )
        return raws
    if isinstance(raws, np.ndarray) and (raws.ndim == 2 or raws.shape[2:] == (3,)):
        return ArrayFrames([raws], bayer=bayer)
    words: list[Any] = [raws]
    if isinstance(raws, Iterable) and not isinstance(raws, str):
        words = list(raws)
    if words and all(isinstance(word, np.ndarray) for word in words):
        return ArrayFrames(words, bayer=bayer)
    lists = [word for word in words if isinstance(word, list | tuple)]
    if lists and all(isinstance(each, np.ndarray) for word in lists for each in word):
        return _join_arrays(lists, words, bayer)
    paths = [each for word in words for each in (word if word in lists else [word])]
    if not all(isinstance(word, str | Path) for word in paths):
        kinds = ", ".join(sorted({type(word).__name__ for word in words}))
        raise InputError(
            f"raws are {kinds}: need paths (files, folders, globs, videos), arrays, or what "
            "open_frames returns"
        )
    return open_frames(words, bayer=bayer, white=white)


def _join_arrays(lists: list[Any], words: list[Any], bayer: str | None) -> Frames:
    """Return frames of several recordings in memory, named by recording and number."""
    from lifcal.imaging.frames import ArrayFrames

    if len(lists) < len(words) or not all(lists):
        raise InputError("several recordings in memory need a list of arrays for each")
    names = [f"{i}_{j}" for i, some in enumerate(lists, start=1) for j in range(len(some))]
    found = ArrayFrames([array for some in lists for array in some], names, bayer)
    found.divide([len(some) for some in lists], [f"recording {i + 1}" for i in range(len(lists))])
    return found


def _read_added(
    folder: Path, out: Path, grid: str | Path | None, xml: str | Path | None
) -> AddedCalibration:
    """Return a finished calibration; InputError if other arguments contradict it."""
    from lifcal.pipeline.added import read_added

    if grid is not None or xml is not None:
        raise InputError(f"--add {folder} gives the grid: leave out --grid and --xml")
    if folder.resolve() == out.resolve():
        raise InputError(f"{out}: is what is added; write into another folder")
    return read_added(folder)


def _for_each(name: str, value: Any, count: int) -> list[Any]:
    """Return what was given for each recording: a list has one for each, all else holds for all."""
    if not isinstance(value, list | tuple):
        return [value] * count
    if len(value) != count:
        raise InputError(f"{name} is given {len(value)} times, there are {count} recordings")
    return list(value)


def _read_times(
    timestamps: str | Path | Sequence[str | Path] | None, frames: Frames
) -> tuple[float, ...] | None:
    """Return the time of each frame; of several recordings without times, its index in its own."""
    from lifcal.geometry import read_timestamps

    count = len(frames.recording_names)
    if timestamps is None:
        if count == 1:
            return None
        return tuple(float(i) for n in range(count) for i in range(len(frames.members(n))))
    if isinstance(timestamps, str | Path):
        return tuple(read_timestamps(Path(timestamps)))
    files = _for_each("timestamps", timestamps, count)
    return tuple(time for file in files for time in read_timestamps(Path(file)))


def _read_known(
    known: str | Path | Mapping[str, float | str | Path] | None,
) -> tuple[dict[str, float], EarlierOptics | None]:
    """Return the lengths that are known exactly, and those of an earlier calibration."""
    from lifcal.scale import read_earlier_optics

    if known is None:
        return {}, None
    if isinstance(known, str | Path):
        return {}, read_earlier_optics(Path(known))
    paths = {name: str(value) for name, value in known.items() if isinstance(value, str | Path)}
    numbers = {
        name: float(value) for name, value in known.items() if not isinstance(value, str | Path)
    }
    if not paths:
        return numbers, None
    if numbers or len(set(paths.values())) > 1:
        raise InputError("known lengths come from one camera file, or all of them are numbers")
    return {}, read_earlier_optics(Path(next(iter(paths.values()))), tuple(paths))


def _make_choice(
    every: int | None, ends: tuple[int, int] | None, exclude: str | Sequence[str] | None
) -> FrameChoice:
    from lifcal.pipeline.choice import FrameChoice

    names = (exclude,) if isinstance(exclude, str) else tuple(exclude or ())
    return FrameChoice(every, ends, names)


def _list_sources(
    grid: str | Path | None, white: str | Path | None, xml: str | Path | None
) -> dict[str, Path | None]:
    """Return what a grid can come from, as paths."""
    if grid is not None and xml is not None:
        raise InputError("grid is used as it is, xml is a start for finding one: give only one")
    named = {"grid": grid, "white": white, "xml": xml}
    return {key: None if path is None else Path(path) for key, path in named.items()}
