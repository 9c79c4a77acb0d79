"""A simulated recording: its frames, and the folder that holds them with their ground truth.

raw/0000.png ...           what the sensor records; .jpg if it records JPEG files
white.png                  the same sensor looking at white
simulation.json            what made it
truth/camera.json          the camera, exactly
truth/best_fit.json        for optics outside the camera model: the model nearest to them
truth/recording.json       dust, and the exposure of each frame
truth/grid.json            the micro-image centers as recorded, to 0.0005 px
truth/poses.txt            TUM format, metres, camera to world
truth/markers.json         printed markers: corners and distances, mm
truth/pinhole.json         intrinsics of the true pinhole views
truth/pinhole/0000.png     what a pinhole at the main lens' center sees, linear, 8 bit
truth/depth/0000.tiff      its metric depth z, mm, float32, NaN where there is nothing
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.spatial.transform import Rotation

from lifcal import __version__
from lifcal.arrays import Float32Array, ImageArray
from lifcal.camera import write_camera, write_grid
from lifcal.errors import DataError, InputError
from lifcal.files import read_json, write_bytes, write_json
from lifcal.geometry import RigidTransform, Trajectory, write_tum
from lifcal.imaging.files import encode_jpeg, write_float_tiff, write_png
from lifcal.imaging.markers import DICTIONARY
from lifcal.simulate.best_fit import BestFit, fit_model
from lifcal.simulate.cameras import CAMERAS, build_camera
from lifcal.simulate.imperfections import Imperfections
from lifcal.simulate.optics import Optics
from lifcal.simulate.paths import build_path, compute_standoff_mm
from lifcal.simulate.render import PackedScene, PinholeView, Renderer
from lifcal.simulate.scene import Scene
from lifcal.simulate.scenes import build_scene
from lifcal.simulate.sensor import (
    JPEG_QUALITY,
    SensorOptions,
    compress,
    draw_dust,
    expose,
    shade_by_dust,
)

_WHITE_RAYS = 64
_SHUTTER_STEPS = 8
"""Number of poses over which the light of an exposure is averaged. With eight poses and a motion
blur of a few pixels, neighboring images of a point overlap."""
_DUST_STREAM = 2**31
"""Index of the random stream of the dust. It is larger than the index of any frame, so that the
random numbers are independent of those of the frames."""
_FIT_VIEWS = 16
_FIT_POINTS = 100
_FIT_VIEW_PX = 64
"""Data for the fit of the camera model: number of frames, number of points in each, and longer side
in px of the views from which they are taken. Larger numbers change B by less than 0.02 %."""


@dataclass(frozen=True)
class SimulationOptions:
    """Options of a simulated recording.

    Parameters
    ----------
    camera, scene, path : str
        Names from `CAMERAS`, `SCENES`, `PATHS`.
    frames : int
    seed : int
        Random seed of the scene's textures, the path and the noise.
    rays_per_pixel : int
    bayer : str or None
        Color filter of the sensor; None is a mono sensor.
    sensor : SensorOptions
    imperfections : Imperfections or None
        Imperfections of optics and recording; None takes those of the named camera.
    micro_aperture : float
        Factor by which the radius of the micro apertures is multiplied; with small apertures, all
        micro images are sharp.
    scene_scale : float or None
        Factor by which all lengths of the scene are multiplied. None takes 1, or a factor that
        brings the scene into the camera's working range.
    pinhole_scale : float
        Size of the true pinhole views relative to the raw image.
    """

    camera: str = "r5-16mm"
    scene: str = "desk"
    path: str = "winding"
    frames: int = 36
    seed: int = 1
    rays_per_pixel: int = 16
    bayer: str | None = None
    sensor: SensorOptions = field(default_factory=SensorOptions)
    micro_aperture: float = 1.0
    scene_scale: float | None = None
    pinhole_scale: float = 0.5
    imperfections: Imperfections | None = None

    def __post_init__(self) -> None:
        if self.frames < 1:
            raise InputError(f"frames is {self.frames}, needs at least 1")
        if self.frames > 10_000:
            raise InputError(f"frames is {self.frames}, needs at most 10000")
        if not 0 <= self.seed < 2**31:
            raise InputError(f"seed is {self.seed}, needs 0 to 2147483647")
        if not 1e-3 <= self.micro_aperture <= 1.0:
            raise InputError(f"micro_aperture is {self.micro_aperture}, needs 0.001 to 1")
        if self.scene_scale is not None and not 1e-3 <= self.scene_scale <= 1e3:
            raise InputError(f"scene_scale is {self.scene_scale}, needs 0.001 to 1000")
        if not 1 <= self.rays_per_pixel <= 65_536:
            raise InputError(f"rays per pixel is {self.rays_per_pixel}, needs 1 to 65536")
        if not 0.0 < self.pinhole_scale <= 1.0:
            raise InputError(f"pinhole_scale is {self.pinhole_scale}, needs 0 to 1")
        errors = self.imperfections
        if errors is not None and errors.compression != "none" and self.sensor.bits != 8:
            raise InputError(
                f"bits is {self.sensor.bits}: compressed files hold 8 bits. Use bits 8 or "
                "compression 'none'"
            )


@dataclass(frozen=True, eq=False)
class SimulatedFrame:
    """One frame and its ground truth.

    Parameters
    ----------
    raw : (height, width) uint8 or uint16
    view : PinholeView
    world_from_cam : RigidTransform
    """

    raw: ImageArray
    view: PinholeView
    world_from_cam: RigidTransform


class Simulation:
    """A simulated camera that moves through a scene.

    Frames can be rendered in any order; each depends only on the options and its index.
    """

    def __init__(self, options: SimulationOptions) -> None:
        self.options = options
        optics = build_camera(options.camera, options.imperfections, options.seed)
        if options.micro_aperture != 1.0:
            optics = optics.stopped_down(options.micro_aperture)
        self.optics: Optics = optics
        self._renderer = Renderer(optics, options.rays_per_pixel, options.bayer)
        scene = build_scene(options.scene, options.seed)
        self.scene_scale = _choose_scale(scene, optics, options)
        self.scene: Scene = scene.scaled(self.scene_scale) if self.scene_scale != 1.0 else scene
        self.trajectory = Trajectory.from_poses(
            build_path(
                options.path, self.scene, options.frames, options.seed, optics.field_of_view_rad
            )
        )
        self._packed = PackedScene(self.scene)
        self._gain = _compute_gain(optics)
        self._imperfections = errors = optics.imperfections
        rng = np.random.default_rng([options.seed, _DUST_STREAM])
        size = optics.camera.image_size
        self.dust = draw_dust(errors.dust, size, rng)
        self.white_dust = draw_dust(errors.white_dust, size, rng)
        # The exposure follows one period of a sine around its nominal value.
        phase = 2.0 * np.pi * np.arange(options.frames) / options.frames
        self.exposures = 1.0 + errors.exposure_drift * np.sin(phase)

    def warm_up(self) -> None:
        """Render a few pixels, so that the kernels are compiled or loaded from the cache."""
        pose = self.trajectory.world_from_cam[0].inverse()
        self._renderer.render_raw(self._packed, pose, 0, window=(0, 0, 2, 2))
        self._renderer.render_pinhole(self._packed, pose, 2.0 / min(self.optics.camera.image_size))

    def render_white(self) -> ImageArray:
        """Return the white image."""
        optics = replace(
            self.optics,
            main_radius_mm=self.optics.main_radius_mm * self._imperfections.white_aperture,
        )
        light = Renderer(optics, _WHITE_RAYS).render_white(self._seed_of(-1))
        light = shade_by_dust(light * _compute_gain(optics), self.dust + self.white_dust)
        return self._record(light, -1)

    def render_frame(self, index: int) -> SimulatedFrame:
        """Return frame `index` with its ground truth."""
        pose = self.trajectory.world_from_cam[index]
        light = self._render_light(index) * self._gain
        light = shade_by_dust(light * np.float32(self.exposures[index]), self.dust)
        raw = self._record(light, index)
        view = self._renderer.render_pinhole(
            self._packed, pose.inverse(), self.options.pinhole_scale
        )
        return SimulatedFrame(raw, view, pose)

    def _render_light(self, index: int) -> Float32Array:
        """Return the light of a frame, averaged over the poses during the exposure."""
        open_for, seed = self._imperfections.motion_blur, self._seed_of(index)
        if open_for == 0.0 or self.options.frames == 1:
            pose = self.trajectory.world_from_cam[index]
            return self._renderer.render_raw(self._packed, pose.inverse(), seed)
        times = index + open_for * ((np.arange(_SHUTTER_STEPS) + 0.5) / _SHUTTER_STEPS - 0.5)
        rays = max(1, round(self.options.rays_per_pixel / _SHUTTER_STEPS))
        renderer = Renderer(self.optics, rays, self.options.bayer)
        light = [
            renderer.render_raw(self._packed, self.pose_at(time).inverse(), (seed + step) % 2**64)
            for step, time in enumerate(times)
        ]
        return np.asarray(np.mean(light, axis=0), np.float32)

    def pose_at(self, time: float) -> RigidTransform:
        """Return `world_from_cam` at a time in units of frames, which may be fractional."""
        poses = self.trajectory.world_from_cam
        first = min(max(math.floor(time), 0), len(poses) - 2)
        a, b, part = poses[first], poses[first + 1], time - first
        turn = Rotation.from_matrix(a.rotation.T @ b.rotation).as_rotvec()
        shift = b.translation_mm - a.translation_mm
        return RigidTransform(
            a.rotation @ Rotation.from_rotvec(part * turn).as_matrix(),
            a.translation_mm + part * shift,
        )

    def _record(self, light: Float32Array, index: int) -> ImageArray:
        errors = self._imperfections
        raw = expose(light, self.options.sensor, self._noise_of(index), gamma=errors.gamma)
        if errors.compression == "none":
            return raw
        return compress(raw.astype(np.uint8), errors.compression)

    def fit_best_model(self) -> BestFit:
        """Fit the camera model to exact chief rays of points that the frames see."""
        rng = np.random.default_rng(self.options.seed)
        frames = np.unique(np.linspace(0, self.options.frames - 1, _FIT_VIEWS).astype(int))
        scale = _FIT_VIEW_PX / max(self.optics.camera.image_size)
        views = []
        for index in frames:
            pose = self.trajectory.world_from_cam[index]
            view = self._renderer.render_pinhole(self._packed, pose.inverse(), scale)
            rows, cols = np.nonzero(np.isfinite(view.depth_mm))
            chosen = rng.permutation(len(rows))[:_FIT_POINTS]
            depth = view.depth_mm[rows[chosen], cols[chosen]].astype(np.float64)
            places = np.column_stack([cols[chosen], rows[chosen]])
            xy = (places - view.principal_point_px) * (depth / view.focal_px)[:, None]
            views.append(np.column_stack([xy, depth]))
        return fit_model(self.optics, views)

    def _seed_of(self, index: int) -> int:
        state = np.random.SeedSequence([self.options.seed, index + 1]).generate_state(1, np.uint64)
        return int(state[0])

    def _noise_of(self, index: int) -> np.random.Generator:
        return np.random.default_rng([self.options.seed, index + 1, 1])


def _compute_gain(optics: Optics) -> np.float32:
    """Return the factor with which white is 1 in the middle of the brightest micro images."""
    illumination = optics.apertures.compute_illumination(0.0, optics.focal_planes_v)
    return np.float32(1.0 / float(np.max(illumination)))


def _choose_scale(scene: Scene, optics: Optics, options: SimulationOptions) -> float:
    if options.scene_scale is not None:
        return options.scene_scale
    near, far = CAMERAS[options.camera].working_range_mm
    distance = compute_standoff_mm(scene, optics.field_of_view_rad)
    if near <= distance <= far:
        return 1.0
    # Round to two digits, which are easier to read in a caption.
    middle = 2.0 / (1.0 / near + 1.0 / far)
    return float(f"{middle / distance:.2g}")


def describe(options: SimulationOptions) -> dict[str, Any]:
    """Return the values that identify a simulation: a change of any of them changes the files."""
    content = asdict(options)
    if options.imperfections is None and options.camera in CAMERAS:
        content["imperfections"] = asdict(CAMERAS[options.camera].imperfections)
    return {
        "format": "lifcal-simulation",
        "format_version": "1.1",
        "lifcal_version": __version__,
        **content,
    }


def write_sequence(
    folder: str | Path,
    simulation: Simulation,
    *,
    on_frame: Callable[[int, SimulatedFrame | None], None] | None = None,
) -> None:
    """Write a sequence to `folder`. Frames that exist already are kept, so that a run can resume.

    Parameters
    ----------
    folder : str or Path
        The folder is created if it does not exist. It may contain an unfinished run with the same
        options, but nothing else.
    simulation : Simulation
    on_frame : callable
        Called after each frame with its index, and with the frame unless it existed already.

    Raises
    ------
    DataError
        If the folder holds another simulation, or a file cannot be written.
    """
    folder, options = Path(folder), simulation.options
    check_folder(folder, options)
    write_json(
        folder / "simulation.json",
        {
            **describe(options),
            "scene_scale_used": simulation.scene_scale,
            "f_number": simulation.optics.f_number,
            "main_radius_mm": simulation.optics.main_radius_mm,
            "micro_radius_mm": simulation.optics.micro_radius_mm,
            "focal_planes_v": simulation.optics.focal_planes_v.tolist(),
        },
    )
    truth = folder / "truth"
    write_camera(truth / "camera.json", simulation.optics.camera)
    write_grid(truth / "grid.json", simulation.optics.camera.grid)
    write_tum(truth / "poses.txt", simulation.trajectory)
    write_json(truth / "markers.json", _markers(simulation.scene))
    write_json(
        truth / "recording.json",
        {
            "exposures": simulation.exposures.tolist(),
            "dust": [asdict(speck) for speck in simulation.dust],
            "white_dust": [asdict(speck) for speck in simulation.white_dust],
        },
    )
    best_fit = truth / "best_fit.json"
    if not simulation.optics.imperfections.is_inside_the_model and not _is_there(best_fit):
        fit = simulation.fit_best_model()
        write_camera(
            best_fit,
            fit.camera,
            {
                "best_fit": {
                    "rms_px": fit.rms_px,
                    "worst_px": fit.worst_px,
                    "observations": fit.n_observations,
                }
            },
        )
    if not _is_there(folder / "white.png"):
        write_png(folder / "white.png", simulation.render_white())
    for index in range(options.frames):
        name = f"{index:04d}"
        raw_path = folder / "raw" / f"{name}{simulation.optics.imperfections.suffix}"
        view_path = truth / "pinhole" / f"{name}.png"
        depth_path = truth / "depth" / f"{name}.tiff"
        frame = None
        if not all(_is_there(path) for path in (raw_path, view_path, depth_path)):
            frame = simulation.render_frame(index)
            if index == 0:
                write_json(truth / "pinhole.json", _pinhole(frame.view))
            write_png(view_path, to_8_bit(frame.view.color))
            write_float_tiff(depth_path, frame.view.depth_mm)
            write_raw(raw_path, frame.raw)
        if on_frame is not None:
            on_frame(index, frame)


def write_raw(path: Path, raw: ImageArray) -> None:
    """Write a raw image as PNG, or as JPEG if the name ends with .jpg.

    An image that has been JPEG-compressed before changes only by rounding when it is written again.
    """
    if path.suffix == ".jpg":
        write_bytes(path, encode_jpeg(raw.astype(np.uint8), JPEG_QUALITY))
    else:
        write_png(path, raw)


def _is_there(path: Path) -> bool:
    """Whether an earlier run wrote this file; it is then complete, because writing is atomic."""
    return path.is_file() and path.stat().st_size > 0


def check_folder(folder: Path, options: SimulationOptions) -> None:
    """Raise DataError if `folder` contains anything else than a run with these options."""
    try:
        if folder.exists() and not folder.is_dir():
            raise DataError(f"{folder}: is a file, needs a folder")
        used = folder.exists() and any(folder.iterdir())
    except OSError as error:
        raise DataError(f"{folder}: cannot use this folder: {error.strerror}") from error
    record = folder / "simulation.json"
    if record.exists():
        found, wanted = read_json(record), describe(options)
        for key, value in wanted.items():
            if found.get(key) != value:
                raise DataError(
                    f"{folder}: holds another simulation ({key} is {found.get(key)!r}, not "
                    f"{value!r}). Choose another folder, or remove this one"
                )
    elif used:
        raise DataError(f"{folder}: is not empty and holds no simulation. Choose another folder")


def to_8_bit(color: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
    """Return linear values 0..1 as 0..255."""
    return np.asarray(np.clip(np.rint(color * 255.0), 0, 255), np.uint8)


def _pinhole(view: PinholeView) -> dict[str, Any]:
    height, width = view.depth_mm.shape
    return {
        "width": width,
        "height": height,
        "fx": view.focal_px,
        "fy": view.focal_px,
        "cx": float(view.principal_point_px[0]),
        "cy": float(view.principal_point_px[1]),
        "depth_unit": "mm",
        "pixel_centers": "integer",
    }


def _markers(scene: Scene) -> dict[str, Any]:
    centers = {marker.id: marker.corners_world_mm.mean(axis=0) for marker in scene.markers}
    ids = sorted(centers)
    return {
        "dictionary": DICTIONARY,
        "markers": [
            {
                "id": marker.id,
                "side_mm": float(
                    np.linalg.norm(marker.corners_world_mm[1] - marker.corners_world_mm[0])
                ),
                "corners_world_mm": marker.corners_world_mm.tolist(),
            }
            for marker in scene.markers
        ],
        "distances_mm": [
            {"id1": a, "id2": b, "mm": math.dist(centers[a], centers[b])}
            for i, a in enumerate(ids)
            for b in ids[i + 1 :]
        ],
    }
