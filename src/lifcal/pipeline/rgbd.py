"""Raw frames of a calibrated camera to an RGB-D recording, in a folder that a later run continues.

depth.json             what made it, and figures for each frame
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
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from lifcal.diagnostics import Finding
from lifcal.errors import DataError, EstimationError, InputError
from lifcal.files import digest_files, hold_folder
from lifcal.listener import Listener
from lifcal.pipeline.behind import WriteBehind
from lifcal.pipeline.focusing import (
    FRAMES_FOR_RANGE,
    LEAST_KNOWN,
    NO_DEPTH,
    UsableFrames,
    average_vignetting,
    check_shown,
    check_white,
    compare_aperture,
    compute_checksum,
    describe_average,
    find_mosaic,
    follow_frames,
    read_white,
    set_range,
)
from lifcal.pipeline.record import RunRecord

if TYPE_CHECKING:
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
        Of all frames, in seconds; None numbers them from 0.
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


@dataclass(eq=False)
class RgbdRecord(RunRecord):
    """depth.json, from the run before or new."""

    NAME: ClassVar[str] = "depth.json"
    FORMAT: ClassVar[dict[str, str]] = {"format": "lifcal-depth", "format_version": "1.0"}
    VERB: ClassVar[str] = "lifcal depth"
    FILES: ClassVar[tuple[str, ...]] = ("camera", "white")
    START: ClassVar[dict[str, Any]] = {
        "depth_range": None,
        "depth_factor": None,
        "sigma_factor": None,
        "intrinsics": None,
        "findings": [],
    }

    @classmethod
    def is_whole(cls, content: dict[str, Any]) -> bool:
        """Tell whether what a run takes over from the one before is there and of its type."""
        return super().is_whole(content) and isinstance(content.get("depth_factor"), int)

    def set_times(self, times: Mapping[str, float]) -> int:
        """Give the frames that are done their timestamps; return how many have none here.

        Raises
        ------
        DataError
            If one of those has the timestamp of another: the lists would mix two recordings.
        """
        others = 0
        names = {time: name for name, time in times.items()}
        for name, entry in self.content["frames"].items():
            if name in times:
                entry["timestamp"] = times[name]
                continue
            others += 1
            other = names.get(entry["timestamp"])
            if other is not None:
                raise DataError(
                    f"{self.folder}: holds frame {name} of other raws, with the timestamp of "
                    f"{other} ({entry['timestamp']:g}). Use another folder, or --timestamps"
                )
        return others

    def paths(self, name: str) -> dict[str, Path]:
        """Return the files of a frame, in the order in which they are written."""
        files = {
            "rgb": self.folder / "rgb" / f"{name}.png",
            "preview": self.folder / "preview" / f"{name}.png",
            "cloud": self.folder / "clouds" / f"{name}.ply",
            "sigma": self.folder / "depth_sigma" / f"{name}.png",
            "depth": self.folder / "depth" / f"{name}.png",
        }
        if not self.content["settings"]["clouds"]:
            del files["cloud"]
        return files


@dataclass(eq=False)
class RgbdRun:
    """What a run came to.

    Parameters
    ----------
    record : RgbdRecord
    usable : UsableFrames
    done : list of str
        Names of the frames that are done.
    kept : int
        How many of them were done by a run before.
    findings : list of Finding
        What a user should know of the camera and the frames.
    """

    record: RgbdRecord
    usable: UsableFrames
    done: list[str] = field(default_factory=list)
    kept: int = 0
    findings: list[Finding] = field(default_factory=list)


def make_rgbd(
    frames: Frames,
    folder: Path,
    camera_path: Path,
    white_path: Path | None,
    metric: MetricOptions,
    options: RgbdOptions,
    listener: Listener,
    indices: Sequence[int] | None = None,
) -> RgbdRun:
    """Make metric depth and images of all frames that are not done yet.

    Parameters
    ----------
    frames : Frames
        All of the recording.
    folder : Path
        Made if missing. May hold an unfinished run with the same settings, nothing of another one.
    camera_path : Path
        camera.json.
    white_path : Path or None
    metric : MetricOptions
    options : RgbdOptions
    listener : Listener
        Told of frames that cannot be used; the others are done.
    indices : sequence of int or None
        Which of the frames; None: all.

    Raises
    ------
    DataError
        If the folder holds something else, or camera or white image are not those of the frames.
    """
    from lifcal.grid.check import check_grid

    times = _list_times(frames, options)
    poses = None if options.poses is None else _read_poses(options, frames, listener)
    with hold_folder(folder):
        camera = _read_camera(camera_path, frames)
        indices = range(len(frames)) if indices is None else indices
        usable = UsableFrames(frames.select(indices), check_grid)
        settings = _describe_settings(usable.frames, metric, options, camera_path, white_path)
        record = RgbdRecord.open(folder, settings)
        others = record.set_times(dict(zip(make_file_names(frames.names), times, strict=True)))
        if others:
            listener.finding(_describe_others(folder, others))
        run = RgbdRun(record, usable)
        engine = _make_engine(run, camera, camera_path, white_path, metric, listener)
        if engine is None or not _begin(run, engine, options, listener):
            for finding in usable.findings:
                listener.finding(finding)
            record.finish(usable, make_file_names(usable.frames.names))
            return run
        try:
            _run_frames(engine, run, options, [times[i] for i in indices], listener)
        except BaseException:
            # What is done stays usable: an interruption or a full disk ends here.
            with suppress(DataError):
                _write_common(record, engine, options)
            raise
        record.finish(usable, make_file_names(usable.frames.names))
        if run.done:
            _write_common(record, engine, options)
            if poses is not None:
                _fuse(record, poses, options, listener)
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


def _make_engine(
    run: RgbdRun,
    camera: PlenopticCamera,
    camera_path: Path,
    white_path: Path | None,
    metric: MetricOptions,
    listener: Listener,
) -> DepthEngine | None:
    """Return what does the work, once the camera is known to be that of the frames.

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
    vignetting = None  # that of the grid's discs
    if white is not None:
        findings += compare_aperture(white, usable, chosen, grid)[1]
        vignetting = vignetting_from_white(white)
    elif grid.discs is None:
        vignetting = average_vignetting(usable, chosen, grid)
        findings.append(describe_average("the camera's grid has no overlap discs"))
    return DepthEngine(camera, vignetting, metric, bayer=bayer)


def _check_crop(crop: tuple[int, int, int, int] | None, k: PinholeIntrinsics) -> None:
    if crop is None:
        return
    x, y, width, height = crop
    if not (0 <= x < x + width <= k.width and 0 <= y < y + height <= k.height):
        raise InputError(
            f"crop {x} {y} {width} {height} is not inside the images of {k.width} x {k.height} px"
        )


def _begin(run: RgbdRun, engine: DepthEngine, options: RgbdOptions, listener: Listener) -> bool:
    """Fix what all frames have in common: the range and the unit; False if no frame is usable."""
    from lifcal.export.rgbd import (
        DEPTH_FACTORS,
        SIGMA_FINER,
        choose_depth_factor,
        largest_depth_mm,
    )

    record, usable, findings = run.record, run.usable, run.findings
    _check_crop(options.crop, engine.intrinsics)
    if record.content["depth_range"] is not None:
        low, high = record.content["depth_range"]
        engine.restore_range((float(low), float(high)))
        engine.limit_far(largest_depth_mm(record.content["depth_factor"]))
        for entry in record.content["findings"]:  # a run that goes on says again what was noticed
            listener.finding(Finding.from_dict(entry))
        return True
    if engine.depth_range is None:
        chosen = usable.choose(FRAMES_FOR_RANGE)
        if not chosen or not set_range(engine, usable, chosen, listener):
            return False
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
    record.content |= {
        "depth_range": list(engine.depth_range),
        "depth_factor": factor,
        "sigma_factor": factor * SIGMA_FINER,
        "intrinsics": {
            name: getattr(k, name) for name in ("width", "height", "fx", "fy", "cx", "cy")
        },
        "findings": [finding.as_dict() for finding in findings],
    }
    return True


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
        text = "the camera has no scale: depths are not in millimetres"
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


def _run_frames(
    engine: DepthEngine,
    run: RgbdRun,
    options: RgbdOptions,
    times: Sequence[float],
    listener: Listener,
) -> None:
    """Do the frames that are not done, and note in the run which are."""
    usable, record = run.usable, run.record
    names = make_file_names(usable.frames.names)
    with (
        listener.steps("compiling (first time only)", len(usable)) as step,
        WriteBehind() as behind,
    ):
        for index, name in enumerate(names):
            frame = usable.read(index)
            if frame is not None and record.has(name, compute_checksum(frame)):
                run.kept += 1
                run.done.append(name)
            elif frame is not None:
                found = _make_frame(engine, usable, index, frame)
                if found is not None:
                    part = found if options.crop is None else found.crop(*options.crop)
                    behind(_write_frame, record, name, frame, part, times[index])
                    run.done.append(name)
            if index in usable.problems:
                listener.finding(usable.describe(index))
            step("depth")


def make_file_names(names: Sequence[str]) -> list[str]:
    """Return names without spaces, which the lists of files could not hold."""
    found = [re.sub(r"\s", "_", name) for name in names]
    if len(set(found)) < len(found):
        twice = next(name for name in found if found.count(name) > 1)
        raise DataError(f"two frames would be called {twice}")
    return found


def _make_frame(
    engine: DepthEngine, usable: UsableFrames, index: int, frame: Frame
) -> MetricFrame | None:
    try:
        found = engine.run(frame)
    except EstimationError as error:
        usable.refuse(index, str(error))
        return None
    known = float(found.known.mean())
    if known < LEAST_KNOWN:
        usable.refuse(index, f"{NO_DEPTH} ({100 * known:.1f} % of the pixels are known)")
        return None
    return found


def _write_frame(
    record: RgbdRecord, name: str, frame: Frame, found: MetricFrame, time: float
) -> None:
    """Write the files of a frame, its depth last, and then its figures."""
    import numpy as np

    from lifcal.export.rgbd import encode_depth
    from lifcal.imaging.files import write_png
    from lifcal.imaging.preview import draw_map
    from lifcal.metric import write_cloud
    from lifcal.metric.cloud import to_8_bit

    record.write()  # before the first frame: whatever ends the run, another one can go on
    paths = record.paths(name)
    write_png(paths["rgb"], to_8_bit(found.image))
    known = found.depth_mm[found.known]
    low, high = (0.0, 1.0)
    if len(known):
        low, high = np.quantile(known, [_PREVIEW_SHARE, 1.0 - _PREVIEW_SHARE]).tolist()
    write_png(paths["preview"], draw_map(found.depth_mm, low, high, "{:.0f} mm"))
    if "cloud" in paths:
        write_cloud(paths["cloud"], found.cloud())
    write_png(paths["sigma"], encode_depth(found.sigma_mm, record.content["sigma_factor"]))
    write_png(paths["depth"], encode_depth(found.depth_mm, record.content["depth_factor"]))
    record.content["frames"][name] = {
        "raw": frame.source,
        "checksum": compute_checksum(frame),
        "bytes": record.measure(name),
        "timestamp": time,
        "known_share": float(found.known.mean()),
        "median_depth_mm": float(np.median(known)) if len(known) else None,
        "median_sigma_mm": float(np.nanmedian(found.sigma_mm)) if len(known) else None,
        "median_sigma_u": float(np.nanmedian(found.sigma_u[found.known])) if len(known) else None,
    }
    record.write()


# After the last frame


def _write_common(record: RgbdRecord, engine: DepthEngine, options: RgbdOptions) -> None:
    """Write what other programs need beside the images."""
    from lifcal.camera import PinholeIntrinsics
    from lifcal.export.rgbd import write_intrinsics, write_lists, write_orbslam

    entries = record.content["frames"]
    if not entries:
        return
    frames = sorted((float(entry["timestamp"]), name) for name, entry in entries.items())
    write_lists(record.folder, frames)
    k = PinholeIntrinsics(**record.content["intrinsics"])
    factor = record.content["depth_factor"]
    write_intrinsics(record.folder / "intrinsics.json", k, factor)
    # sigma_z = z^2 sigma_u / beta, and of a stereo pair z^2 / (b f) for a pixel
    sigma_u = _median_of(record, "median_sigma_u")
    baseline_m = engine.camera.array.beta_mm / (k.fx * sigma_u) / 1000.0
    fps = options.fps
    if fps is None:
        fps = _VIDEO_FPS if options.timestamps is None else _count_fps([time for time, _ in frames])
    write_orbslam(record.folder / "camera.yaml", k, factor, fps=fps, baseline_m=baseline_m)


def _count_fps(times: Sequence[float]) -> int:
    """Return frames a second, a whole number and at least 1."""
    from statistics import median

    steps = [later - time for time, later in pairwise(times)]
    return max(round(1.0 / median(steps)), 1) if steps else 1


def _median_of(record: RgbdRecord, key: str) -> float:
    from statistics import median

    entries = record.content["frames"].values()
    return float(median([entry[key] for entry in entries if entry[key] is not None] or [1.0]))


def _fuse(
    record: RgbdRecord,
    poses: dict[float, RigidTransform],
    options: RgbdOptions,
    listener: Listener,
) -> None:
    """Write one cloud of all frames that have a pose, and a mesh if asked for."""
    import numpy as np

    from lifcal.camera import PinholeIntrinsics
    from lifcal.imaging.files import read_image
    from lifcal.metric import CloudFusion, MeshFusion, confirm_depth, make_cloud, write_cloud

    k = PinholeIntrinsics(**record.content["intrinsics"])
    entries = record.content["frames"]
    placed = {
        name: pose
        for name in sorted(entries, key=lambda name: float(entries[name]["timestamp"]))
        if (pose := _find_pose(poses, float(entries[name]["timestamp"]))) is not None
    }
    missing = len(record.content["frames"]) - len(placed)
    if not placed:
        raise DataError(
            f"{options.poses}: no pose has the timestamp of a frame (to {_MOST_APART_S} s); "
            "without --timestamps it is the frame's index"
        )
    if missing:
        listener.finding(_describe_missing(missing))
    voxel = options.voxel_mm or _choose_voxel(record, k)
    fusion = CloudFusion(voxel)
    mesh = MeshFusion(k, voxel) if options.mesh else None
    names = list(placed)
    read = lru_cache(2 * max(_CONFIRMED_BY) + 1)(
        lambda place: _read_depth(record, names[place], placed[names[place]])
    )
    with listener.steps("fusing", len(names)) as step:
        for place, name in enumerate(names):
            others = [place + sign * by for by in _CONFIRMED_BY for sign in (-1, 1)]
            found = confirm_depth(
                read(place), [read(other) for other in others if 0 <= other < len(names)], k
            )
            image = read_image(record.paths(name)["rgb"]).astype(np.uint8)
            light = (image / 255.0).astype(np.float32)
            cloud = make_cloud(found.depth_mm, found.sigma_mm, light, k)
            fusion.add(cloud.transform(found.world_from_cam))
            if mesh is not None:
                mesh.add(found.depth_mm, image, found.world_from_cam)
            step("")
    write_cloud(record.folder / "fused.ply", fusion.result())
    if mesh is not None:
        corners, triangles = mesh.result()
        write_cloud(record.folder / "mesh.ply", corners, triangles)


def _read_depth(record: RgbdRecord, name: str, world_from_cam: RigidTransform) -> DepthMap:
    from lifcal.export.rgbd import decode_depth
    from lifcal.imaging.files import read_image
    from lifcal.metric import DepthMap

    paths, content = record.paths(name), record.content
    return DepthMap(
        decode_depth(read_image(paths["depth"]), content["depth_factor"]),
        decode_depth(read_image(paths["sigma"]), content["sigma_factor"]),
        world_from_cam,
    )


def _find_pose(poses: dict[float, RigidTransform], time: float) -> RigidTransform | None:
    nearest = min(poses, key=lambda other: abs(other - time), default=None)
    if nearest is None or abs(nearest - time) > _MOST_APART_S:
        return None
    return poses[nearest]


def _choose_voxel(record: RgbdRecord, k: PinholeIntrinsics) -> float:
    """Return two pixels at the median depth, or half of the median sigma if that is larger."""
    pixel = _median_of(record, "median_depth_mm") / k.fx
    return float(f"{max(2.0 * pixel, 0.5 * _median_of(record, 'median_sigma_mm')):.2g}")
