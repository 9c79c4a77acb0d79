"""What `lifcal pick` knows of a folder: focused images, where depth is known, and poses if any."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lifcal.arrays import Float32Array, FloatArray, spread_choice
from lifcal.calibration.views import to_gray
from lifcal.camera import PlenopticCamera, read_camera
from lifcal.distances import (
    PICKED,
    DistancesFile,
    PickedDistance,
    estimate_sigma_mm,
    find_name,
    is_inside,
)
from lifcal.errors import DataError, InputError
from lifcal.files import read_bytes, read_json
from lifcal.geometry import RigidTransform, read_tum
from lifcal.image_headers import read_header
from lifcal.imaging.files import encode_png, read_image
from lifcal.measure.tracks import sample_map
from lifcal.reconstruction import Reconstruction
from lifcal.scale.picked import find_point

_MOST_COMPARED = 12
"""Views that are compared to find where a picked point is: more take longer and say little more."""
_MOST_SHOWN = 6
"""Other views that show a picked point."""


@dataclass(frozen=True, eq=False)
class _Poses:
    """A finished calibration.

    Parameters
    ----------
    camera : PlenopticCamera
    cam_from_world : mapping of int to RigidTransform
        Poses by the number of the frame.
    worlds : mapping of int to int
        The world in which the pose of each frame is: frames of two worlds show no common point.
    metric : bool
        Whether it has a scale.
    """

    camera: PlenopticCamera
    cam_from_world: dict[int, RigidTransform]
    worlds: dict[int, int]
    metric: bool

    def list_others(self, frame: int) -> list[int]:
        """Return the other frames with poses in the world of a frame."""
        world = self.worlds[frame]
        return [
            each for each in self.cam_from_world if each != frame and self.worlds[each] == world
        ]


class PickFolder:
    """A folder of `lifcal focus` or `lifcal calibrate` in which points are picked.

    Parameters
    ----------
    folder : Path
    path : Path or None
        File of distances; distances.txt in the folder if it is not given.

    Raises
    ------
    DataError
        If it is no such folder, or the file of distances holds something else.
    """

    def __init__(self, folder: Path, path: Path | None = None) -> None:
        if not (folder / "focus.json").is_file():
            raise DataError(f"{folder}: not a folder of lifcal focus or lifcal calibrate")
        content = read_json(folder / "focus.json")
        try:
            self.scale = float(content["settings"]["scale"])
            names = [str(name) for name in content["frames"]]
        except (KeyError, TypeError, ValueError):
            raise DataError(f"{folder / 'focus.json'}: not as lifcal focus writes it") from None
        self.folder = folder
        self.names = [name for name in names if self._image_path(name).is_file()]
        if not self.names:
            raise DataError(f"{folder}: has no focused images")
        header = read_header(self.read_image(0))
        if header is None or not header.width:
            raise DataError(f"{self._image_path(self.names[0])}: not a PNG file")
        self.size = (header.width, header.height)
        self.file = DistancesFile(path or folder / PICKED)
        self._poses = _read_poses(folder, self.names)
        self._gray = lru_cache(maxsize=_MOST_COMPARED + 2)(self._load_gray)
        self._find = lru_cache(maxsize=64)(self._find_point)

    def _image_path(self, name: str) -> Path:
        return self.folder / "focused" / f"{name}.png"

    def _depth_path(self, name: str) -> Path:
        return self.folder / "virtual_depth" / f"{name}.tiff"

    def _load_gray(self, frame: int) -> Float32Array:
        return to_gray(read_image(self._image_path(self.names[frame]))).astype(np.float32)

    def _read_u(self, frame: int) -> Float32Array | None:
        path = self._depth_path(self.names[frame])
        return np.asarray(read_image(path), np.float32) if path.is_file() else None

    # What the page shows

    def describe(self) -> dict[str, Any]:
        """Return frames, distances and what is known, for JSON."""
        poses = self._poses
        return {
            "folder": str(self.folder),
            "file": str(self.file.path),
            "width": self.size[0],
            "height": self.size[1],
            "frames": self.names,
            "posed": [] if poses is None else sorted(poses.cam_from_world),
            "metric": poses is not None and poses.metric,
            "maps": self._depth_path(self.names[0]).is_file(),
            "distances": self.list_distances(),
        }

    def list_distances(self) -> list[dict[str, Any]]:
        """Return the distances of the file, for JSON; `frame` is None if it is not there."""
        found = []
        for line, each in self.file.read():
            try:
                frame = self.names.index(find_name(each.frame, self.names))
            except DataError:
                frame = None
            found.append(
                {
                    "line": line,
                    "name": each.frame,
                    "frame": frame,
                    "first": list(each.first_px),
                    "second": list(each.second_px),
                    "mm": each.length_mm,
                    "sigma": each.sigma_mm,
                }
            )
        return found

    def read_image(self, frame: int) -> bytes:
        """Return the PNG file of a focused image."""
        return read_bytes(self._image_path(self.names[self._check_frame(frame)]))

    def draw_unknown(self, frame: int) -> bytes:
        """Return a PNG file: 255 where depth is unknown, 0 elsewhere."""
        u = self._read_u(self._check_frame(frame))
        unknown = np.zeros((1, 1), np.bool_) if u is None else ~np.isfinite(u)
        return encode_png(unknown.astype(np.uint8) * np.uint8(255))

    # Points

    def locate(self, frame: int, points_px: list[tuple[float, float]]) -> dict[str, Any]:
        """Return what is known of one or two picked points, for JSON.

        Returns
        -------
        dict
            `points`: for each, `known` (whether its depth is known, null if there are no maps),
            `depth_mm` (null without a metric calibration), `views` (frame, x, y of other views).
            `length_mm`: the distance by the calibration, or null.
        """
        frame = self._check_frame(frame)
        u_map = self._read_u(frame)
        found: list[dict[str, Any]] = []
        world: list[FloatArray] = []
        for pixel in points_px:
            self._check_pixel(pixel)
            place = (np.array(pixel, np.float64) + 0.5) / self.scale - 0.5
            u = math.nan if u_map is None else float(sample_map(u_map, self.scale, place[None])[0])
            entry: dict[str, Any] = {
                "known": None if u_map is None else math.isfinite(u),
                "depth_mm": None,
                "views": [],
            }
            poses = self._poses
            if math.isfinite(u) and poses is not None:
                if not u > poses.camera.array.alpha:
                    entry["known"] = False
                elif frame in poses.cam_from_world:
                    point = self._find(poses, frame, (float(place[0]), float(place[1])), u)
                    world.append(point)
                    if poses.metric:
                        depth = float(poses.cam_from_world[frame].apply(point[None])[0, 2])
                        entry["depth_mm"] = round(depth, 1)
                    entry["views"] = self._show_elsewhere(poses, frame, point)
            found.append(entry)
        length = None
        if len(world) == 2 and self._poses is not None and self._poses.metric:
            length = round(float(np.linalg.norm(world[0] - world[1])), 2)
        return {"points": found, "length_mm": length}

    def suggest(self, points_px: list[tuple[float, float]], length_mm: float) -> float:
        """Return the sigma of a distance for which none is given, in mm."""
        return estimate_sigma_mm(points_px[0], points_px[1], length_mm)

    def _find_point(
        self, poses: _Poses, frame: int, place: tuple[float, float], u: float
    ) -> npt.NDArray[np.float64]:
        """Return the world point that is picked at a raw place of a frame."""
        others = poses.list_others(frame)
        chosen = [others[i] for i in spread_choice(len(others), _MOST_COMPARED)] if others else []
        views = [frame, *chosen]
        geometry = Reconstruction.from_poses(
            poses.camera.array,
            poses.camera.distortion,
            [poses.cam_from_world[view] for view in views],
            np.zeros((0, 3)),
        )
        images = [self._gray(view) for view in views]
        return find_point(geometry, images, self.scale, 0, np.array(place), u)

    def _show_elsewhere(
        self, poses: _Poses, frame: int, point_world: FloatArray
    ) -> list[dict[str, Any]]:
        found = []
        camera = poses.camera
        for other in poses.list_others(frame):
            cam = poses.cam_from_world[other].apply(point_world[None])
            if not cam[0, 2] > 0.0:
                continue
            ideal = camera.virtual_from_cam(cam)[:, :2]
            seen = camera.distortion.distort(ideal, camera.principal_point_px)[0]
            x, y = ((seen + 0.5) * self.scale - 0.5).tolist()
            if is_inside((x, y), self.size):
                found.append({"frame": other, "x": round(x, 2), "y": round(y, 2)})
        return [found[i] for i in spread_choice(len(found), _MOST_SHOWN)] if found else []

    # Distances

    def add(
        self,
        frame: int,
        points_px: list[tuple[float, float]],
        length_mm: float,
        sigma_mm: float | None,
    ) -> None:
        """Write a distance to the file.

        Raises
        ------
        InputError
            If a point is outside the image, its depth is unknown, or a length is not positive.
        """
        if len(points_px) != 2:
            raise InputError("a distance needs two points")
        if not (math.isfinite(length_mm) and length_mm > 0.0):
            raise InputError(f"the distance is {length_mm:g} mm, needs a positive number")
        if sigma_mm is not None and not (math.isfinite(sigma_mm) and sigma_mm > 0.0):
            raise InputError(f"sigma is {sigma_mm:g} mm, needs a positive number, or none")
        for number, entry in enumerate(self.locate(frame, points_px)["points"], start=1):
            if entry["known"] is False:
                raise InputError(
                    f"depth is unknown at point {number}, so a calibration could not use it: pick "
                    "a place with texture"
                )
        first, second = points_px
        sigma = self.suggest(points_px, length_mm) if sigma_mm is None else sigma_mm
        self.file.add(PickedDistance(self.names[frame], first, second, length_mm, sigma))

    def remove(self, entry: Any) -> None:
        """Remove a distance from the file; `entry` is what `list_distances` said of it."""
        for (number, distance), there in zip(self.file.read(), self.list_distances(), strict=True):
            if there == entry:
                self.file.remove(number, distance)
                return
        raise InputError(f"{self.file.path} was changed meanwhile: nothing was removed")

    def _check_frame(self, frame: int) -> int:
        if not 0 <= frame < len(self.names):
            raise InputError(f"there is no frame {frame}")
        return frame

    def _check_pixel(self, pixel: tuple[float, float]) -> None:
        if not is_inside(pixel, self.size):
            raise InputError(f"({pixel[0]:g}, {pixel[1]:g}) is outside the focused image")


def _read_poses(folder: Path, names: list[str]) -> _Poses | None:
    """Return camera and poses of a finished calibration, or None if there is none."""
    if not all((folder / name).is_file() for name in ("camera.json", "poses.txt", "summary.json")):
        return None
    camera = read_camera(folder / "camera.json")
    summary = read_json(folder / "summary.json")
    poses, worlds = {}, {}
    try:
        known = {int(entry["index"]): entry["name"] for entry in summary["frames"]}
        for world in summary["worlds"]:
            path = folder / str(world["poses"])
            # Poses are in the order of the frames. Times are not compared: frames of two recordings
            # may have the same.
            found = read_tum(path).world_from_cam
            if len(found) != len(world["frames"]):
                raise DataError(
                    f"{path}: {len(found)} poses for {len(world['frames'])} frames: not as lifcal "
                    "calibrate wrote it"
                )
            for index, pose in zip(world["frames"], found, strict=True):
                if known.get(index) in names:
                    frame = names.index(known[index])
                    poses[frame], worlds[frame] = pose.inverse(), int(world["number"])
    except (KeyError, TypeError, ValueError):
        raise DataError(f"{folder / 'summary.json'}: not as lifcal calibrate writes it") from None
    return _Poses(camera, poses, worlds, camera.scale_source is not None) if poses else None
