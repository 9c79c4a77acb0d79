"""Sources of the metric scale: known distances, sides of markers, and known camera positions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from lifcal.arrays import BoolArray, FloatArray, IntArray, check_array, read_only
from lifcal.errors import DataError, InputError
from lifcal.files import read_bytes

_LEAST_SIGMA = 1e-7
"""Smallest relative sigma of a known length. With a smaller one, rounding errors of this residual
would be larger than all other residuals."""


@dataclass(frozen=True, eq=False)
class Distances:
    """Known distances between scene points, or between the centers of square markers.

    Parameters
    ----------
    point_ids : (n, 2, n_members) int64
        Ids of the points at both ends of each distance, as in the observations. An end is one point
        (n_members is 1), or the mean of the four corners of a square, in order around it (n_members
        is 4). If a point is repeated four times, the end is this point. If the shape is (n, 2), all
        ends are single points.
    lengths_mm, sigmas_mm : (n,) float64
        Known lengths and their standard deviations.
    source : str
        Name of this source of scale in the summary and in camera.json.
    labels : tuple of str
        Name of each distance in messages; by default, it is made of the ids of its points.
    """

    point_ids: IntArray
    lengths_mm: FloatArray
    sigmas_mm: FloatArray
    source: str = "distances"
    labels: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        ids = np.asarray(self.point_ids)
        if ids.ndim == 2:
            ids = ids[:, :, None]
        if ids.shape[1:] not in ((2, 1), (2, 4)) or not np.issubdtype(ids.dtype, np.integer):
            raise InputError(
                f"point_ids has shape {np.shape(self.point_ids)}, needs (n, 2) or (n, 2, 4) "
                "integers"
            )
        lengths = check_array(self.lengths_mm, "lengths_mm", (len(ids),))
        sigmas = check_array(self.sigmas_mm, "sigmas_mm", (len(ids),))
        if len(ids) == 0:
            raise InputError("there are no distances")
        for name, values in (("distance", lengths), ("sigma", sigmas)):
            good = np.isfinite(values) & (values > 0.0)
            if not good.all():
                i = int(np.argmin(good))
                raise InputError(
                    f"{name} between {_name_ends(ids[i])} is {values[i]:g} mm, needs a positive "
                    "number"
                )
        tiny = sigmas < _LEAST_SIGMA * lengths
        if tiny.any():
            i = int(np.argmax(tiny))
            raise InputError(
                f"sigma of the distance between {_name_ends(ids[i])} is {sigmas[i]:g} mm, less "
                f"than {_LEAST_SIGMA:g} of it: nobody measures so well"
            )
        same = (ids[:, 0] == ids[:, 1]).all(axis=1)
        if same.any():
            raise InputError(f"a distance from point {ids[np.argmax(same), 0, 0]} to itself")
        if not self.labels:
            object.__setattr__(self, "labels", tuple(map(_name_ends, ids)))
        if len(self.labels) != len(ids):
            raise InputError(f"{len(self.labels)} labels for {len(ids)} distances")
        object.__setattr__(self, "point_ids", read_only(ids.astype(np.int64)))
        object.__setattr__(self, "lengths_mm", read_only(lengths.copy()))
        object.__setattr__(self, "sigmas_mm", read_only(sigmas.copy()))

    @classmethod
    def from_markers(cls, corner_ids: npt.ArrayLike, side_mm: float, sigma_mm: float) -> Distances:
        """Build the side lengths of square markers.

        Parameters
        ----------
        corner_ids : (n_markers, 4) int
            The corners of each marker in order around it.
        side_mm, sigma_mm : float
        """
        corners = np.asarray(corner_ids)
        if corners.ndim != 2 or corners.shape[1] != 4:
            raise InputError(f"corner_ids has shape {corners.shape}, needs (n_markers, 4)")
        sides = np.stack([corners, np.roll(corners, -1, axis=1)], axis=2).reshape(-1, 2)
        return cls(
            sides, np.full(len(sides), side_mm), np.full(len(sides), sigma_mm), source="markers"
        )

    def are_between(self, point_ids: IntArray) -> BoolArray:
        """Tell which distances have both their ends among these points."""
        return np.asarray(np.isin(self._ends_among(point_ids), point_ids).all(axis=(1, 2)))

    def among(self, point_ids: IntArray) -> Distances:
        """Return the distances that have both their ends among these points.

        If a corner of a square is not among the points, the middle of the two opposite corners that
        are among them takes the place of the square's center.

        Raises
        ------
        InputError
            If no distance is left.
        """
        ends = replace(self, point_ids=self._ends_among(point_ids))
        return ends.select(self.are_between(point_ids))

    def _ends_among(self, point_ids: IntArray) -> IntArray:
        """Return the ends, where a complete diagonal replaces a square that lacks a corner."""
        ends = self.point_ids
        if ends.shape[2] == 4:
            there = np.isin(ends, point_ids)
            incomplete = ~there.all(axis=2, keepdims=True)
            for diagonal in ([0, 2, 0, 2], [1, 3, 1, 3]):
                whole = there[:, :, diagonal].all(axis=2, keepdims=True)
                ends = np.where(incomplete & whole, self.point_ids[:, :, diagonal], ends)
        return ends

    def select(self, keep: BoolArray) -> Distances:
        """Return the distances for which `keep` is true.

        Raises
        ------
        InputError
            If no distance is left.
        """
        if not keep.any():
            raise InputError("none of the distances is between points that fit the images")
        return replace(
            self,
            point_ids=self.point_ids[keep],
            lengths_mm=self.lengths_mm[keep],
            sigmas_mm=self.sigmas_mm[keep],
            labels=tuple(self.labels[i] for i in np.flatnonzero(keep)),
        )


@dataclass(frozen=True, eq=False)
class CameraPositions:
    """Known positions of the camera, such as a robot's trajectory.

    The result is in the frame of these positions.

    Parameters
    ----------
    view_ids : (n,) int64
        As the observations call the views.
    positions_world_mm : (n, 3) float64
        Positions of the main lens' center.
    sigmas_mm : (n,) float64
        Standard deviation of each coordinate.
    """

    view_ids: IntArray
    positions_world_mm: FloatArray
    sigmas_mm: FloatArray

    def __post_init__(self) -> None:
        ids = np.asarray(self.view_ids)
        if ids.ndim != 1 or not np.issubdtype(ids.dtype, np.integer):
            raise InputError(f"view_ids has shape {ids.shape}, needs (n,) integers")
        places = check_array(
            self.positions_world_mm, "positions_world_mm", (len(ids), 3), finite=True
        )
        sigmas = check_array(self.sigmas_mm, "sigmas_mm", (len(ids),), finite=True)
        if not (sigmas > 0.0).all():
            raise InputError(f"sigmas_mm has {sigmas.min():g}, needs positive numbers")
        if len(np.unique(ids)) != len(ids):
            raise InputError("a view has two known positions")
        if len(ids) < 2 or np.linalg.norm(places - places.mean(axis=0), axis=1).max() == 0.0:
            raise InputError("known positions need at least two different places")
        object.__setattr__(self, "view_ids", read_only(ids.astype(np.int64)))
        object.__setattr__(self, "positions_world_mm", read_only(places.copy()))
        object.__setattr__(self, "sigmas_mm", read_only(sigmas.copy()))

    def join(self, other: CameraPositions) -> CameraPositions:
        """Return these positions and those of other views, each world in its own frame."""
        return CameraPositions(
            np.concatenate([self.view_ids, other.view_ids]),
            np.concatenate([self.positions_world_mm, other.positions_world_mm]),
            np.concatenate([self.sigmas_mm, other.sigmas_mm]),
        )

    def select(self, keep: BoolArray) -> CameraPositions:
        """Return some of the positions."""
        return CameraPositions(
            self.view_ids[keep], self.positions_world_mm[keep], self.sigmas_mm[keep]
        )


def compute_spans(points_world_mm: FloatArray, ends: IntArray) -> FloatArray:
    """Return the vectors from the second to the first ends of distances, (n, 3).

    Parameters
    ----------
    points_world_mm : (n_points, 3) float64
    ends : (n, 2, n_members) int64
        Point indices; an end is the mean of its members.
    """
    means = points_world_mm[ends].mean(axis=2)
    return np.asarray(means[:, 0] - means[:, 1])


def _name_ends(ends: IntArray) -> str:
    """Return what the ends (2, n_members) of a distance are called in messages."""
    first, second = (
        str(members[0]) if len(set(members)) == 1 else "/".join(map(str, members))
        for members in ends.tolist()
    )
    return f"points {first} and {second}"


def read_distances(path: str | Path) -> Distances:
    """Read `point1 point2 mm sigma` a line; `#` begins a comment.

    Raises
    ------
    DataError
        Names the line that is wrong.
    """
    path = Path(path)
    rows: list[tuple[int, int, float, float]] = []
    text = read_bytes(path).decode("utf-8-sig", errors="replace")
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        try:
            first, second, length, sigma = words
            rows.append((int(first), int(second), float(length), float(sigma)))
        except ValueError:
            raise DataError(
                f"{path}: line {number}: needs 'point1 point2 mm sigma', found {line.strip()!r}"
            ) from None
    if not rows:
        raise DataError(f"{path}: holds no distances")
    try:
        return Distances(
            np.array([row[:2] for row in rows], np.int64),
            np.array([row[2] for row in rows]),
            np.array([row[3] for row in rows]),
        )
    except InputError as error:
        raise DataError(f"{path}: {error}") from None


def find_ids(ids: IntArray, known: IntArray, what: str) -> IntArray:
    """Return the index of each of `ids` in the ascending `known`; InputError names a stranger."""
    places = np.minimum(np.searchsorted(known, ids), len(known) - 1)
    strange = known[places] != ids
    if strange.any():
        first = ids[strange][0]
        raise InputError(f"{what} {first} is not in the observations")
    return places.astype(np.int64)
