"""Raw frames of a calibrated camera to an RGB-D recording, in a folder that a later run continues.

depth.json             what made it, and figures for each frame
depth.journal          while it runs: figures of the frames that are done
grid.json              the micro-lens grid where the raws show it
vignetting.tiff        the mean vignetting of some raws, if nothing else gives it
rgb/NAME.png           focused image of a pinhole camera, 8 bit
depth/NAME.png         depth along the optical axis, 16 bit; written last of a frame
depth_sigma/NAME.png   its standard deviation, 16 bit
clouds/NAME.ply        points in camera coordinates, metres
preview/NAME.png       for people
rgb.txt depth.txt associations.txt camera.yaml intrinsics.json    for other programs
fused.ply mesh.ply     all frames, if poses are given
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache, partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from lifcal.diagnostics import Finding
from lifcal.errors import DataError, InputError
from lifcal.files import digest_files, hold_folder, make_file_names
from lifcal.listener import Listener
from lifcal.pipeline.focusing import (
    FRAMES_FOR_RANGE,
    average_vignetting,
    check_shown,
    check_white,
    compare_aperture,
    describe_average,
    find_mosaic,
    follow_frames,
    read_white,
    set_range,
)
from lifcal.pipeline.frames import FrameWork, check_executor, run_frames
from lifcal.pipeline.store import (
    FolderStore,
    FrameEntry,
    SharedArrays,
    StoreFormat,
    read_range,
)
from lifcal.pipeline.usable import UsableFrames, compute_checksum

if TYPE_CHECKING:
    from lifcal.arrays import Float32Array
    from lifcal.camera import PinholeIntrinsics, PlenopticCamera
    from lifcal.geometry import RigidTransform
    from lifcal.imaging.frames import Frame, Frames
    from lifcal.metric import DepthEngine, DepthMap, MetricFrame, MetricOptions

_FRAMES_FOR_FARTHEST = 3
_CONFIRMED_BY = (1, 2, 4)
"""How many frames before and after are asked whether they see the same, when frames are fused."""
_MOST_APART_S = 0.02
"""Between the time stamps of a frame and its pose: what the TUM tools allow."""
_PREVIEW_SHARE = 0.01
_VIDEO_FPS = 30


@dataclass(frozen=True)
class RgbdOptions:
    """What to write.

    Parameters
    ----------
    crop : (int, int, int, int) or None
        x, y, width, height of the part of the images to write, in their pixels.
    clouds : bool
        Whether to write a cloud for each frame.
    timestamps : sequence of float or None
        Times of all frames, in seconds; None numbers them from 0.
    fps : int or None
        For camera.yaml; None: as the timestamps tell, or 30 without them.
    poses : Path or None
        TUM trajectory: with it the clouds are fused into one.
    voxel_mm : float or None
        Side of the cubes of the fused cloud; None: as the frames' resolution and sigma tell.
    mesh : bool
        Whether to write a mesh too; needs poses, and Open3D.
    """

    crop: tuple[int, int, int, int] | None = None
    clouds: bool = True
    timestamps: Sequence[float] | None = None
    fps: int | None = None
    poses: Path | None = None
    voxel_mm: float | None = None
    mesh: bool = False

    def __post_init__(self) -> None:
        if self.fps is not None and self.fps < 1:
            raise InputError(f"fps is {self.fps}, needs at least 1")
        if self.mesh and self.poses is None:
            raise InputError("a mesh needs the cameras' poses")
        if self.voxel_mm is not None:
            if self.poses is None:
                raise InputError("a voxel size is for fusing, which needs the cameras' poses")
            from lifcal.metric.cloud import check_voxel

            check_voxel(self.voxel_mm)


@dataclass(frozen=True)
class RgbdEntry(FrameEntry):
    """What is kept of a frame, besides its images.

    Parameters
    ----------
    timestamp : float
    median_depth_mm, median_sigma_mm, median_sigma_u : float or None
        Medians over the known pixels: depth, its standard deviation, and that of virtual depth.
        None if no pixel of the part that is written is known.
    """

    timestamp: float
    median_depth_mm: float | None
    median_sigma_mm: float | None
    median_sigma_u: float | None


@dataclass(frozen=True)
class RgbdSetup:
    """What all frames of a run have in common.

    Parameters
    ----------
    depth_range : (float, float)
        Virtual depths that are searched.
    depth_factor, sigma_factor : int
        Units of the depth maps and of their standard deviations a metre.
    intrinsics : mapping
        width, height, fx, fy, cx, cy of the images.
    findings : tuple of Finding
        What the run that began noticed of the camera and the raws.
    """

    depth_range: tuple[float, float]
    depth_factor: int
    sigma_factor: int
    intrinsics: Mapping[str, Any]
    findings: tuple[Finding, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return it as depth.json holds it."""
        return {
            "depth_range": list(self.depth_range),
            "depth_factor": self.depth_factor,
            "sigma_factor": self.sigma_factor,
            "intrinsics": dict(self.intrinsics),
            "findings": [finding.as_dict() for finding in self.findings],
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """Read what `as_dict` returns; TypeError, KeyError or ValueError if it is not whole."""
        factors = (content["depth_factor"], content["sigma_factor"])
        if not all(isinstance(factor, int) for factor in factors):
            raise TypeError("the units of the depth maps are not whole numbers")
        findings = tuple(Finding.from_dict(entry) for entry in content["findings"])
        return cls(read_range(content), *factors, {**content["intrinsics"]}, findings)


RgbdStore: TypeAlias = FolderStore[RgbdSetup, RgbdEntry]
RGBD = StoreFormat(
    "depth.json",
    {"format": "lifcal-depth", "format_version": "1.0"},
    "lifcal depth",
    ("camera", "white"),
    RgbdSetup,
    RgbdEntry,
)
_IMAGES = {
    "rgb": "rgb/{}.png",
    "preview": "preview/{}.png",
    "cloud": "clouds/{}.ply",
    "sigma": "depth_sigma/{}.png",
    "depth": "depth/{}.png",
}
"""Files of a frame, in the order in which they are written."""


def open_store(folder: Path, settings: Mapping[str, Any]) -> RgbdStore:
    """Read what is in a folder; raise DataError if it holds something else."""
    images = {kind: path for kind, path in _IMAGES.items() if kind != "cloud" or settings["clouds"]}
    return FolderStore.open(RGBD, folder, settings, images)


def set_times(store: RgbdStore, times: Mapping[str, float]) -> int:
    """Give the frames that are done their timestamps; return how many have none here.

    Raises
    ------
    DataError
        If one of those has the timestamp of another: the lists would mix two recordings.
    """
    others = 0
    names = {time: name for name, time in times.items()}
    for name, entry in list(store.entries.items()):
        if name in times:
            store.update(name, replace(entry, timestamp=times[name]))
            continue
        others += 1
        other = names.get(entry.timestamp)
        if other is not None:
            raise DataError(
                f"{store.folder}: holds frame {name} of other raws, with the timestamp of "
                f"{other} ({entry.timestamp:g}). Use another folder, or --timestamps"
            )
    return others


@dataclass(eq=False)
class RgbdRun:
    """What a run came to.

    Parameters
    ----------
    store : FolderStore
        Record and images of the frames.
    usable : UsableFrames
    done : list of str
        Names of the frames that are done.
    kept : int
        How many of them were done by a run before.
    findings : list of Finding
        What a user should know of the camera and the frames.
    fused : int
        Number of points of the fused cloud; 0 if there is none.
    """

    store: RgbdStore
    usable: UsableFrames
    done: list[str] = field(default_factory=list)
    kept: int = 0
    findings: list[Finding] = field(default_factory=list)
    fused: int = 0

    @property
    def setup(self) -> RgbdSetup:
        """What the frames have in common; the run must have begun."""
        assert self.store.setup is not None
        return self.store.setup


def make_rgbd(
    frames: Frames,
    folder: Path,
    camera_path: Path,
    white_path: Path | None,
    metric: MetricOptions,
    options: RgbdOptions,
    listener: Listener,
    indices: Sequence[int] | None = None,
    executor: Executor | None = None,
) -> RgbdRun:
    """Make metric depth and images of all frames that are not done yet.

    Parameters
    ----------
    frames : Frames
        All of the recording.
    folder : Path
        Made if missing. May hold an unfinished run with the same settings, nothing of another one.
    camera_path : Path
        camera.json, or the folder of a calibration, which holds one.
    white_path : Path or None
    metric : MetricOptions
    options : RgbdOptions
    listener : Listener
        Told of frames that cannot be used; the others are done.
    indices : sequence of int or None
        Which of the frames; None: all.
    executor : Executor, optional
        Makes the frames (see `lifcal.pipeline.frames`); this process without.

    Raises
    ------
    DataError
        If the folder holds something else, or camera or white image are not those of the frames.
    InputError
        If an executor is given for frames in memory.
    """
    from lifcal.grid.check import check_grid

    if camera_path.is_dir():
        camera_path = camera_path / "camera.json"
    times = _list_times(frames, options)
    poses = None if options.poses is None else _read_poses(options, frames, listener)
    with hold_folder(folder):
        camera = _read_camera(camera_path, frames)
        indices = range(len(frames)) if indices is None else indices
        usable = UsableFrames(frames.select(indices), check_grid)
        settings = _describe_settings(usable.frames, metric, options, camera_path, white_path)
        store = open_store(folder, settings)
        check_executor(executor, frames, store.images)
        others = set_times(store, dict(zip(make_file_names(frames.names), times, strict=True)))
        if others:
            listener.finding(_describe_others(folder, others))
        run = RgbdRun(store, usable)
        names = make_file_names(usable.frames.names)
        started = _make_engine(run, camera, camera_path, white_path, metric, listener)
        setup = None if started is None else _begin(run, started.engine, options, listener)
        if started is None or setup is None:
            for finding in usable.findings:
                listener.finding(finding)
            store.finish(names, usable.problems)
            return run
        engine = started.engine
        store.begin(setup, started.shared)
        work = RgbdWork(run, started, options.crop, [times[i] for i in indices])
        try:
            run.done, run.kept = run_frames(work, store, listener, "depth", executor)
        except BaseException:
            # What is done stays usable: an interruption or a full disk ends here.
            with suppress(DataError):
                _write_common(run, engine, options)
            raise
        store.finish(names, usable.problems)
        if run.done:
            _write_common(run, engine, options)
            if poses is not None:
                _fuse(run, poses, options, listener)
        return run


# Before the first frame


def _list_times(frames: Frames, options: RgbdOptions) -> list[float]:
    """Return the timestamp of each frame."""
    if options.timestamps is None:
        return [float(index) for index in range(len(frames))]
    if len(options.timestamps) != len(frames):
        raise DataError(f"{len(options.timestamps)} timestamps for {len(frames)} frames")
    return [float(time) for time in options.timestamps]


def _read_poses(
    options: RgbdOptions, frames: Frames, listener: Listener
) -> dict[float, RigidTransform]:
    """Return the poses to fuse frames with, by their times."""
    from lifcal.geometry import read_tum

    assert options.poses is not None
    if options.mesh:
        from lifcal.metric.mesh import import_open3d

        import_open3d()
    trajectory = read_tum(options.poses)
    poses = dict(zip(trajectory.timestamps.tolist(), trajectory.world_from_cam, strict=True))
    if options.timestamps is None and len(poses) > len(frames):
        listener.finding(
            Finding.of(
                "poses-surplus",
                f"{options.poses}: {len(poses)} poses for {len(frames)} raws, whose times are 0 to "
                f"{len(frames) - 1}: if these are a part of a recording, give all of it and "
                "--frames",
                poses=len(poses),
                frames=len(frames),
            )
        )
    return poses


def _read_camera(path: Path, frames: Frames) -> PlenopticCamera:
    from lifcal.imaging.camera_formats import read_camera_file

    try:
        camera = read_camera_file(path).camera()
    except InputError as error:
        raise DataError(f"{path}: {error}") from None
    if camera.image_size != frames.image_size:
        raise DataError(
            f"{path}: a camera of {camera.image_size[0]} x {camera.image_size[1]} px, the raws "
            f"have {frames.image_size[0]} x {frames.image_size[1]} px"
        )
    return camera


def _describe_settings(
    frames: Frames,
    metric: MetricOptions,
    options: RgbdOptions,
    camera_path: Path,
    white_path: Path | None,
) -> dict[str, Any]:
    """Return what the results depend on besides the raws: other values give other files."""
    return {
        "image_size_px": list(frames.image_size),
        "scale": metric.scale,
        "plane": metric.plane,
        "range_mm": None if metric.range_mm is None else list(metric.range_mm),
        "most_sigma": metric.most_sigma,
        "edge_px": metric.edge_px,
        "jump": metric.jump,
        "least_patch_px": metric.least_patch_px,
        "keep_hidden": metric.keep_hidden,
        "calibration_sigma": metric.calibration_sigma,
        "crop": None if options.crop is None else list(options.crop),
        "clouds": options.clouds,
        "bayer": frames.bayer,
        "full_scale": frames.full_scale,
        **digest_files({"camera": camera_path, "white": white_path}),
    }


@dataclass(frozen=True, eq=False)
class _Started:
    """What makes the frames of a run, and what is kept of it for the next run."""

    engine: DepthEngine
    vignetting: Float32Array | None
    shared: SharedArrays


def _make_engine(
    run: RgbdRun,
    camera: PlenopticCamera,
    camera_path: Path,
    white_path: Path | None,
    metric: MetricOptions,
    listener: Listener,
) -> _Started | None:
    """Return what does the work, once the camera is known to be that of the frames.

    A run that goes on uses the grid and the vignetting of the run before, whichever frames it has.

    None if no frame can be used.
    """
    from lifcal.grid.check import check_grid, check_lens_types
    from lifcal.grid.flat_field import vignetting_from_white
    from lifcal.metric import DepthEngine

    usable, grid, findings = run.usable, camera.grid, run.findings
    bayer = usable.frames.bayer
    white = read_white(white_path, usable.frames.image_size, bayer)
    if white is not None:
        try:
            check_grid(white, grid)
            check_lens_types(white, grid)
        except DataError as error:
            raise DataError(f"{camera_path}: not the camera of the white image: {error}") from None
        check_white(white, grid, listener)
        usable.white_checksum = compute_checksum(white)
    check_shown(usable, grid, f"{camera_path}: not the camera of these raws", listener)
    usable.grid = grid
    chosen = usable.choose(FRAMES_FOR_RANGE)
    if not chosen:
        return None
    shared = run.store.shared
    if shared is not None:
        camera = replace(camera, grid=shared.grid)
        vignetting = shared.vignetting if white is None else vignetting_from_white(white)
        engine = DepthEngine(camera, vignetting, metric, bayer=bayer)
        return _Started(engine, vignetting, shared)
    findings += find_mosaic(usable, chosen[0])
    grid, moved_px, _, more = follow_frames(usable, chosen, grid, listener)
    if moved_px > 0.0:
        p = camera.parameters
        # A micro image is the pupil's image: it moves by B / b_L0 of what the lens moves.
        lens_px = moved_px * p.lens_to_array_mm / p.array_to_sensor_mm
        findings.append(
            Finding.of(
                "grid-moved",
                f"the micro images are {moved_px:.2f} px off the camera's grid, as if the lens had "
                f"been moved since the calibration, and the principal point by {lens_px:.0f} px "
                "with it: calibrate again",
                moved_px=moved_px,
                principal_point_px=lens_px,
            )
        )
        camera = replace(camera, grid=grid)
    findings += more
    vignetting = mean = None  # that of the grid's discs
    if white is not None:
        findings += compare_aperture(white, usable, chosen, grid)[1]
        vignetting = vignetting_from_white(white)
    elif grid.discs is None:
        vignetting = mean = average_vignetting(usable, chosen, grid)
        findings.append(describe_average("the camera's grid has no overlap discs"))
    engine = DepthEngine(camera, vignetting, metric, bayer=bayer)
    return _Started(engine, vignetting, SharedArrays(grid, mean))


def _check_crop(crop: tuple[int, int, int, int] | None, k: PinholeIntrinsics) -> None:
    if crop is None:
        return
    x, y, width, height = crop
    if not (0 <= x < x + width <= k.width and 0 <= y < y + height <= k.height):
        raise InputError(
            f"crop {x} {y} {width} {height} is not inside the images of {k.width} x {k.height} px"
        )


def _begin(
    run: RgbdRun, engine: DepthEngine, options: RgbdOptions, listener: Listener
) -> RgbdSetup | None:
    """Fix what all frames have in common: the range and the unit; None if no frame is usable."""
    from lifcal.export.rgbd import (
        DEPTH_FACTORS,
        SIGMA_FINER,
        choose_depth_factor,
        largest_depth_mm,
    )

    usable, findings = run.usable, run.findings
    _check_crop(options.crop, engine.intrinsics)
    if run.store.setup is not None:
        engine.restore_range(run.setup.depth_range)
        engine.limit_far(largest_depth_mm(run.setup.depth_factor))
        for finding in run.setup.findings:  # a run that goes on says again what was noticed
            listener.finding(finding)
        return run.setup
    if engine.depth_range is None:
        chosen = usable.choose(FRAMES_FOR_RANGE)
        if not chosen or not set_range(engine, usable, chosen, listener):
            return None
    assert engine.depth_range is not None
    far_mm = engine.range_mm[1]
    if far_mm > largest_depth_mm(DEPTH_FACTORS[0]) and engine.options.range_mm is None:
        with listener.status("looking for the farthest depth"):
            far_mm = min(far_mm, _find_farthest(engine, usable))
    factor = choose_depth_factor(far_mm)
    engine.limit_far(largest_depth_mm(factor))
    findings += describe_depth(engine.camera, far_mm, factor)
    for finding in findings:
        listener.finding(finding)
    k = engine.intrinsics if options.crop is None else engine.intrinsics.crop(*options.crop)
    return RgbdSetup(engine.depth_range, factor, factor * SIGMA_FINER, asdict(k), tuple(findings))


def describe_depth(camera: PlenopticCamera, far_mm: float, factor: int) -> list[Finding]:
    """Return what is to be known of depth maps with a camera, up to a depth, in a unit.

    Parameters
    ----------
    camera : PlenopticCamera
    far_mm : float
        The largest depth.
    factor : int
        Units of the depth maps a metre.
    """
    from lifcal.export.rgbd import DEPTH_FACTORS

    findings = []
    if camera.scale_source is None:
        text = "the camera has no scale: depths are in arbitrary units"
        findings.append(Finding.of("no-scale", text))
    if camera.grid.focal_planes is None:
        text = "the camera's grid has no focal planes: what defocus shifts is not corrected"
        findings.append(Finding.of("focal-planes-missing", text))
    if factor != DEPTH_FACTORS[0]:
        findings.append(
            Finding.of(
                "depth-unit",
                f"depths up to {far_mm / 1000.0:.1f} m: depth maps have {factor} units a metre, "
                f"not {DEPTH_FACTORS[0]}",
                units_per_metre=factor,
            )
        )
    return findings


def _describe_others(folder: Path, count: int) -> Finding:
    return Finding.of(
        "frames-kept",
        f"{folder}: {count} frames of a run before are not among these raws and keep their "
        "timestamps",
        count=count,
    )


def _describe_missing(count: int) -> Finding:
    text = f"{count} frames have no pose and are not in the fused cloud"
    return Finding.of("frames-without-pose", text, count=count)


def _find_farthest(engine: DepthEngine, usable: UsableFrames) -> float:
    """Return one and a half times the farthest depth in some frames, but for a thousandth."""
    import numpy as np

    found = []
    for index in usable.choose(_FRAMES_FOR_FARTHEST):
        frame = engine.run(usable[index])
        if frame.known.any():
            found.append(float(np.quantile(frame.depth_mm[frame.known], 0.999)))
    return 1.5 * max(found, default=math.inf)


# Frame by frame


class RgbdWork(FrameWork["MetricFrame", RgbdEntry]):
    """Makes metric depth and images of frames."""

    engine: DepthEngine

    def __init__(
        self,
        run: RgbdRun,
        started: _Started,
        crop: tuple[int, int, int, int] | None,
        times: Sequence[float],
    ) -> None:
        usable, store, engine = run.usable, run.store, started.engine
        again = partial(
            _remake_engine,
            engine.camera,
            started.vignetting,
            engine.options,
            usable.frames.bayer,
            run.setup,
        )
        names = make_file_names(usable.frames.names)
        super().__init__(usable, names, store.images, store.entries, engine, again)
        self._crop = crop
        self._times = tuple(times)
        self._clouds = bool(store.settings["clouds"])
        self._factors = (run.setup.depth_factor, run.setup.sigma_factor)

    def run(self, frame: Frame) -> tuple[MetricFrame, float]:
        """Make a frame; return what is to be written of it, and the share of its known pixels."""
        found = self.engine.run(frame)
        known = float(found.known.mean())
        return (found if self._crop is None else found.crop(*self._crop)), known

    def draw(self, frame: Frame, made: MetricFrame) -> dict[str, Any]:
        """Return the images of a frame, its depth last."""
        import numpy as np

        from lifcal.export.rgbd import encode_depth
        from lifcal.imaging.preview import draw_map
        from lifcal.metric.cloud import to_8_bit

        del frame
        known = made.depth_mm[made.known]
        low, high = (0.0, 1.0)
        if len(known):
            low, high = np.quantile(known, [_PREVIEW_SHARE, 1.0 - _PREVIEW_SHARE]).tolist()
        depth_factor, sigma_factor = self._factors
        return {
            "rgb": to_8_bit(made.image),
            "preview": draw_map(made.depth_mm, low, high, "{:.0f} " + made.unit, near_is_low=True),
            **({"cloud": made.cloud()} if self._clouds else {}),
            "sigma": encode_depth(made.sigma_mm, sigma_factor),
            "depth": encode_depth(made.depth_mm, depth_factor),
        }

    def describe(self, index: int, common: FrameEntry, made: MetricFrame) -> RgbdEntry:
        """Return the entry of a frame."""
        import numpy as np

        known, some = made.known, bool(made.known.any())
        return RgbdEntry(
            common.raw,
            common.checksum,
            common.bytes,
            float(known.mean()),
            self._times[index],
            float(np.median(made.depth_mm[known])) if some else None,
            float(np.nanmedian(made.sigma_mm)) if some else None,
            float(np.nanmedian(made.sigma_u[known])) if some else None,
        )


def _remake_engine(
    camera: PlenopticCamera,
    vignetting: Float32Array | None,
    metric: MetricOptions,
    bayer: str | None,
    setup: RgbdSetup,
) -> DepthEngine:
    """Return an engine with the range and the unit of a run."""
    from lifcal.export.rgbd import largest_depth_mm
    from lifcal.metric import DepthEngine

    engine = DepthEngine(camera, vignetting, metric, bayer=bayer)
    engine.restore_range(setup.depth_range)
    engine.limit_far(largest_depth_mm(setup.depth_factor))
    return engine


# After the last frame


def _write_common(run: RgbdRun, engine: DepthEngine, options: RgbdOptions) -> None:
    """Write what other programs need beside the images."""
    from lifcal.camera import PinholeIntrinsics
    from lifcal.export.rgbd import (
        read_orbslam_depth,
        write_intrinsics,
        write_lists,
        write_orbslam,
    )

    folder, entries, factor = run.store.folder, run.store.entries, run.setup.depth_factor
    if not entries:
        return
    frames = sorted((float(entry.timestamp), name) for name, entry in entries.items())
    write_lists(folder, frames)
    k = PinholeIntrinsics(**run.setup.intrinsics)
    write_intrinsics(folder / "intrinsics.json", k, factor)
    # sigma_z = z^2 sigma_u / beta, and of a stereo pair z^2 / (b f) for a pixel
    sigma_u = _median_of(entry.median_sigma_u for entry in entries.values())
    baseline_m = engine.camera.array.beta_mm / (k.fx * sigma_u) / 1000.0
    fps = options.fps
    if fps is None:
        fps = _VIDEO_FPS if options.timestamps is None else _count_fps([time for time, _ in frames])
    write_orbslam(folder / "camera.yaml", k, factor, fps=fps, baseline_m=baseline_m)
    read_orbslam_depth(folder / "camera.yaml", factor)


def _count_fps(times: Sequence[float]) -> int:
    """Return frames a second, a whole number and at least 1."""
    from statistics import median

    steps = [later - time for time, later in pairwise(times)]
    return max(round(1.0 / median(steps)), 1) if steps else 1


def _median_of(values: Iterable[float | None]) -> float:
    from statistics import median

    return float(median([value for value in values if value is not None] or [1.0]))


def _fuse(
    run: RgbdRun,
    poses: dict[float, RigidTransform],
    options: RgbdOptions,
    listener: Listener,
) -> None:
    """Write one cloud of all frames that have a pose, and a mesh if asked for."""
    import numpy as np

    from lifcal.camera import PinholeIntrinsics
    from lifcal.metric import CloudFusion, MeshFusion, confirm_depth, make_cloud, write_cloud

    k = PinholeIntrinsics(**run.setup.intrinsics)
    folder, entries = run.store.folder, run.store.entries
    placed = {
        name: pose
        for name in sorted(entries, key=lambda name: float(entries[name].timestamp))
        if (pose := _find_pose(poses, float(entries[name].timestamp))) is not None
    }
    missing = len(entries) - len(placed)
    if not placed:
        raise DataError(
            f"{options.poses}: no pose has the timestamp of a frame (to {_MOST_APART_S} s); "
            "without --timestamps it is the frame's index"
        )
    if missing:
        listener.finding(_describe_missing(missing))
    voxel = options.voxel_mm or _choose_voxel(entries.values(), k)
    fusion = CloudFusion(voxel)
    mesh = MeshFusion(k, voxel) if options.mesh else None
    names = list(placed)
    read = lru_cache(2 * max(_CONFIRMED_BY) + 1)(
        lambda place: _read_depth(run, names[place], placed[names[place]])
    )
    with listener.steps("fusing", len(names)) as step:
        for place, name in enumerate(names):
            others = [place + sign * by for by in _CONFIRMED_BY for sign in (-1, 1)]
            found = confirm_depth(
                read(place), [read(other) for other in others if 0 <= other < len(names)], k
            )
            image = run.store.images.load(name, "rgb").astype(np.uint8)
            light = (image / 255.0).astype(np.float32)
            cloud = make_cloud(found.depth_mm, found.sigma_mm, light, k)
            fusion.add(cloud.transform(found.world_from_cam))
            if mesh is not None:
                mesh.add(found.depth_mm, image, found.world_from_cam)
            step("")
    cloud = fusion.result()
    write_cloud(folder / "fused.ply", cloud)
    run.fused = len(cloud)
    if mesh is not None:
        corners, triangles = mesh.result()
        write_cloud(folder / "mesh.ply", corners, triangles)


def _read_depth(run: RgbdRun, name: str, world_from_cam: RigidTransform) -> DepthMap:
    from lifcal.export.rgbd import decode_depth
    from lifcal.metric import DepthMap

    images, setup = run.store.images, run.setup
    return DepthMap(
        decode_depth(images.load(name, "depth"), setup.depth_factor),
        decode_depth(images.load(name, "sigma"), setup.sigma_factor),
        world_from_cam,
    )


def _find_pose(poses: dict[float, RigidTransform], time: float) -> RigidTransform | None:
    nearest = min(poses, key=lambda other: abs(other - time), default=None)
    if nearest is None or abs(nearest - time) > _MOST_APART_S:
        return None
    return poses[nearest]


def _choose_voxel(entries: Iterable[RgbdEntry], k: PinholeIntrinsics) -> float:
    """Return two pixels at the median depth, or half of the median sigma if that is larger."""
    entries = list(entries)
    pixel = _median_of(entry.median_depth_mm for entry in entries) / k.fx
    sigma = _median_of(entry.median_sigma_mm for entry in entries)
    return float(f"{max(2.0 * pixel, 0.5 * sigma):.2g}")
