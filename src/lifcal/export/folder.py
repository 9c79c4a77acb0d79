"""Reading a calibration folder: camera, poses, points, observations and summary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from lifcal.arrays import FloatArray, IntArray, read_only
from lifcal.bundle import FocusTerm, Layout, Problem
from lifcal.bundle.files import name_for_world
from lifcal.camera import PlenopticCamera, read_camera
from lifcal.errors import ConfigError, DataError, InputError
from lifcal.files import read_bytes, read_json
from lifcal.geometry import RigidTransform, read_tum
from lifcal.reconstruction import Observations, Reconstruction, read_observations
from lifcal.sources import check_folder
from lifcal.virtual import DepthOptions

_SAME_TIME_S = 2e-6
"""Largest difference, in s, between a time in poses.txt and that of its frame, because the file
stores six decimals."""


@dataclass(frozen=True, eq=False)
class StoredCalibration:
    """The calibration in a folder: camera, poses, points, residuals and covariance.

    Camera and poses are read when the folder is opened. Points, observations and residuals are read
    or computed when they are first used, so a folder without them can be opened too.

    Parameters
    ----------
    folder : Path
    camera : PlenopticCamera
    views : (n_views,) int64
        Index of each registered frame, ascending.
    names : tuple of str
        Name of each registered frame: its raw's name without the suffix.
    world_from_cam : tuple of RigidTransform
        Pose of each registered frame.
    world : int
        Number of the world, from 1, that views, poses, points and observations are of.
    """

    folder: Path
    camera: PlenopticCamera
    views: IntArray
    names: tuple[str, ...]
    world_from_cam: tuple[RigidTransform, ...]
    world: int = 1

    @property
    def n_worlds(self) -> int:
        """Number of worlds: of scenes that share no point, but the camera."""
        return max(len(self.summary.get("worlds", ())), 1)

    @property
    def poses_path(self) -> Path:
        """The file of the poses."""
        return self.folder / name_for_world("poses.txt", self.world - 1)

    @property
    def points_path(self) -> Path:
        """The file of the scene points."""
        return self.folder / name_for_world("points.ply", self.world - 1)

    @property
    def covariance(self) -> FloatArray | None:
        """Covariance of `camera.parameter_names`, (n, n); None if camera.json has none.

        `camera.physical_covariance()` returns that of f_L, b_L0 and B.
        """
        return self.camera.covariance

    @cached_property
    def points_world_mm(self) -> FloatArray:
        """Scene points, (n_points, 3); DataError if points.ply is missing or broken."""
        return read_only(_read_ply(self.points_path)[0])

    @cached_property
    def seen(self) -> SeenPoints:
        """Observations of the scene points in the registered frames, with their rows.

        Observations in frames that are not registered, of points that are not listed, and of points
        behind the camera are left out. A DataError is raised if a file is missing or broken, or if
        the number of points in points.ply differs from the number of ids.
        """
        return _read_seen_points(self)

    @property
    def observations(self) -> Observations:
        """Measured positions of points in micro images; see `seen`."""
        return self.seen.observations

    @cached_property
    def residuals_px(self) -> FloatArray:
        """Projected minus measured position of each point, (n_observations, 2), in px.

        They are computed from camera, poses and points in the files, with the focus term that
        summary.json describes.
        """
        return read_only(_compute_residuals(self))

    @property
    def image_scale(self) -> float:
        """Size of the totally focused images relative to the raws; 0.5 if the summary has none."""
        settings = self.summary.get("provenance", {}).get("settings", {})
        return float(settings.get("scale", DepthOptions().scale))

    @cached_property
    def summary(self) -> Mapping[str, Any]:
        """Content of summary.json; empty if there is no such file."""
        path = self.folder / "summary.json"
        return read_json(path) if path.exists() else {}


@dataclass(frozen=True, eq=False)
class SeenPoints:
    """Scene points, and the observations of them in registered frames.

    Parameters
    ----------
    points_world_mm : (n_points, 3) float64
        The rows of points.ply.
    observations : Observations
    view_rows, point_rows : (n_observations,) int64
        Row of `StoredCalibration.views` and of `points_world_mm` for each observation.
    """

    points_world_mm: FloatArray
    observations: Observations
    view_rows: IntArray
    point_rows: IntArray

    @cached_property
    def pairs(self) -> tuple[IntArray, IntArray]:
        """View row and point row of each (view, point) pair that was observed, view by view."""
        n_points = len(self.points_world_mm)
        views, points = np.divmod(np.unique(self.view_rows * n_points + self.point_rows), n_points)
        return read_only(views), read_only(points)

    def pairs_cam_mm(self, calibration: StoredCalibration) -> FloatArray:
        """Return the point of each pair in its camera's coordinates, (n_pairs, 3)."""
        return points_in_cameras(calibration, self.points_world_mm, *self.pairs)


def points_in_cameras(
    calibration: StoredCalibration, points_world_mm: FloatArray, views: IntArray, points: IntArray
) -> FloatArray:
    """Return points in camera coordinates.

    Parameters
    ----------
    calibration : StoredCalibration
    points_world_mm : (n_points, 3) float64
    views, points : (n,) int64
        Index of the view and of the point for each result.

    Returns
    -------
    (n, 3) float64
    """
    poses = [pose.inverse() for pose in calibration.world_from_cam]
    rotations = np.array([pose.rotation for pose in poses])
    translations = np.array([pose.translation_mm for pose in poses])
    turned = np.einsum("nij,nj->ni", rotations[views], points_world_mm[points])
    points_cam: FloatArray = turned + translations[views]
    return points_cam


def open_calibration(folder: str | Path, world: int = 1) -> StoredCalibration:
    """Open a folder that `lifcal calibrate` or `lifcal adjust` wrote.

    Parameters
    ----------
    folder : str or Path
    world : int
        Number of the world whose poses and points are read, from 1. Several recordings of one
        camera are several worlds; a single recording is one.

    Raises
    ------
    InputError
        If there is no such world.
    DataError
        If the folder, camera.json or poses.txt is missing or broken.
    """
    folder = Path(folder)
    check_folder(folder, "lifcal calibrate")
    camera = read_camera(folder / "camera.json")
    known, n_worlds = _read_frames(folder, world)
    if not 1 <= world <= n_worlds:
        raise InputError(f"world is {world}: {folder} has worlds 1 to {n_worlds}")
    path = folder / name_for_world("poses.txt", world - 1)
    trajectory = read_tum(path)
    if len(trajectory.timestamps) == 0:
        raise DataError(f"{path}: holds no pose")
    views = _find_views(trajectory.timestamps, known, path)
    order = np.argsort(views, kind="stable")
    views = views[order]
    if (np.diff(views) == 0).any():
        raise DataError(f"{path}: frame {views[:-1][np.diff(views) == 0][0]} appears twice")
    names = tuple(known[view].name if view in known else f"{view:04d}" for view in views.tolist())
    poses = tuple(trajectory.world_from_cam[i] for i in order)
    return StoredCalibration(folder, camera, read_only(views), names, poses, world)


def _read_seen_points(calibration: StoredCalibration) -> SeenPoints:
    folder = calibration.folder
    points = calibration.points_world_mm
    observations = read_observations(folder / "observations.csv")
    ids = observations.point_ids
    listed = calibration.summary.get("point_ids")
    if listed is not None:
        if not (isinstance(listed, list) and all(type(value) is int for value in listed)):
            raise DataError(f"{folder / 'summary.json'}: point_ids needs a list of whole numbers")
        ids = np.unique(np.array(listed, np.int64))
    if calibration.n_worlds > 1:
        own = _read_ply(calibration.points_path)[1]
        ids = ids if own is None else own
    if len(ids) != len(points):
        where = "observations.csv" if listed is None else "point_ids of summary.json"
        raise DataError(
            f"{calibration.points_path}: {len(points)} points for {len(ids)} ids of {where}"
        )
    view_ids = observations.view_ids[observations.view_indices]
    point_ids = observations.point_ids[observations.point_indices]
    views = np.minimum(np.searchsorted(calibration.views, view_ids), len(calibration.views) - 1)
    rows = np.minimum(np.searchsorted(ids, point_ids), len(ids) - 1)
    depth = points_in_cameras(calibration, points, views, rows)[:, 2]
    keep = (calibration.views[views] == view_ids) & (ids[rows] == point_ids) & (depth > 0.0)
    if not keep.any():
        raise DataError(
            f"{folder / 'observations.csv'}: no observation is of a point of points.ply in a frame "
            "of poses.txt"
        )
    # The observations are sorted already, and selecting some of them keeps the order.
    return SeenPoints(
        points, observations.select(keep), read_only(views[keep]), read_only(rows[keep])
    )


def _compute_residuals(calibration: StoredCalibration) -> FloatArray:
    camera, seen = calibration.camera, calibration.seen
    observations = seen.observations
    poses = [
        calibration.world_from_cam[row].inverse()
        for row in np.searchsorted(calibration.views, observations.view_ids).tolist()
    ]
    rows = np.zeros(len(observations.point_ids), np.int64)
    rows[observations.point_indices] = seen.point_rows
    state = Reconstruction.from_poses(
        camera.array, camera.distortion, poses, seen.points_world_mm[rows]
    )
    if camera.tilt is not None:
        state = replace(state, tilt=camera.tilt.as_vector())
    term = _read_focus_term(calibration)
    if term is not None:
        state = state.with_focus(term[0].focal_planes, term[1])
    problem = Problem(
        observations, camera.pixel_size_mm, state, focus=None if term is None else term[0]
    )
    return Layout(problem).compute_residuals(state)


def _read_focus_term(calibration: StoredCalibration) -> tuple[FocusTerm, float] | None:
    """Return the focus term that the camera was adjusted with, and its strength."""
    content = calibration.summary.get("focus")
    if content is None:
        return None
    try:
        planes = np.array(content["estimated_focal_planes"], np.float64)
        term = FocusTerm(planes, content["shape"], calibration.camera.grid.discs)
        return term, float(content["strength"])
    except (KeyError, TypeError, ValueError, ConfigError) as error:
        raise DataError(
            f"{calibration.folder / 'summary.json'}: focus cannot be used: {error}"
        ) from None


@dataclass(frozen=True)
class _Frame:
    name: str
    time: float


def _read_frames(folder: Path, world: int) -> tuple[dict[int, _Frame], int]:
    """Return name and timestamp of a world's frames by their index, and the number of worlds.

    If there is only one world, these are all frames that summary.json lists.
    """
    path = folder / "summary.json"
    content = read_json(path) if path.exists() else {}
    try:
        worlds = [[int(index) for index in entry["frames"]] for entry in content.get("worlds", [])]
        frames = {
            int(frame["index"]): _Frame(
                str(frame["name"]), float(frame.get("time", frame["index"]))
            )
            for frame in content.get("frames", [])
        }
    except (AttributeError, KeyError, TypeError, ValueError):
        raise DataError(
            f"{path}: frames needs a list of {{name, index, registered, time}}, and worlds a list "
            "of {frames}"
        ) from None
    if len(worlds) > 1 and 1 <= world <= len(worlds):
        frames = {index: frames[index] for index in worlds[world - 1] if index in frames}
    return frames, max(len(worlds), 1)


def _find_views(times: FloatArray, known: dict[int, _Frame], path: Path) -> IntArray:
    """Return the indices of the frames with these timestamps.

    If summary.json lists no frames, the timestamps are the indices.
    """
    if not known:
        views = np.rint(times).astype(np.int64)
        off = np.abs(views - times)
    else:
        listed = np.array([frame.time for frame in known.values()])
        nearest = np.argmin(np.abs(times[:, None] - listed), axis=1)
        views = np.array(list(known), np.int64)[nearest]
        off = np.abs(listed[nearest] - times)
    if (off > _SAME_TIME_S).any():
        raise DataError(f"{path}: no frame has the timestamp {times[off > _SAME_TIME_S][0]:g}")
    return views


def _read_ply(path: Path) -> tuple[FloatArray, IntArray | None]:
    """Read the points of a PLY text file, which are in meters; return them in mm, and their ids."""
    text = read_bytes(path, limit=1 << 30).decode("ascii", errors="replace").replace("\r\n", "\n")
    head, end, body = text.partition("end_header\n")
    lines = [line.split() for line in head.splitlines()]
    if not end or lines[:2] != [["ply"], ["format", "ascii", "1.0"]]:
        raise DataError(f"{path}: not a PLY file of format 'ascii 1.0'")
    elements = [line for line in lines if line[:1] == ["element"]]
    columns = [line[-1] for line in lines if line[:1] == ["property"]]
    try:
        ((_, kind, number),) = elements
        places = [columns.index(axis) for axis in "xyz"]
        rows = [line.split() for line in body.splitlines()]
        if kind != "vertex" or len(rows) != int(number):
            raise ValueError
        values = np.array(rows, np.float64).reshape(len(rows), len(columns))
    except ValueError:
        raise DataError(
            f"{path}: needs one element 'vertex' with x, y, z and as many rows as it says"
        ) from None
    points: FloatArray = np.ascontiguousarray(values[:, places]) * 1000.0
    if not np.isfinite(points).all():
        raise DataError(f"{path}: has points that are not finite")
    if "point" not in columns:
        return points, None
    return points, np.rint(values[:, columns.index("point")]).astype(np.int64)
