"""Where millimetres come from: markers, picked points, a trajectory, known optics."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy.ndimage import map_coordinates

from lifcal.arrays import FloatArray, IntArray
from lifcal.bundle import CameraPositions, Distances
from lifcal.diagnostics import Finding
from lifcal.errors import ConfigError, DataError, InputError
from lifcal.files import read_bytes
from lifcal.geometry import read_tum
from lifcal.imaging.markers import (
    DICTIONARIES,
    DICTIONARY,
    Marker,
    detect_markers,
    guess_dictionary,
)
from lifcal.pipeline.listener import Listener
from lifcal.pipeline.tracking import read_gray
from lifcal.reconstruction import Reconstruction, triangulate
from lifcal.virtual.engine import spread_choice

KNOWN = ("f_L", "B")
_FEWEST_VIEWS = 2
_MOST_MISS_PX = 3.0
"""Of a corner in a virtual image, raw px: farther off is a wrong detection ..."""
_MOST_EVER_PX = 12.0
"""... even where poses are so rough that most are farther off."""
_SIDE_SIGMA = 0.002
"""Of a marker's side, relative: how well people print and measure."""
_GUESS_FRAMES = 5
"""In which other dictionaries are tried."""
_SAME_TIME = 1e-3
_PICK_HALF = 7
"""Of a patch around a picked point, pixels of the focused image."""
_PICK_SEARCH, _PICK_STEPS = 0.03, 121
"""Of u, on both sides of the depth map's."""


@dataclass(frozen=True)
class PickedDistance:
    """A known distance between two points that a person picked in a focused image.

    Parameters
    ----------
    frame : str
        Name or index of the frame.
    first_px, second_px : (float, float)
        x, y in the focused image.
    length_mm, sigma_mm : float
    """

    frame: str
    first_px: tuple[float, float]
    second_px: tuple[float, float]
    length_mm: float
    sigma_mm: float


@dataclass(frozen=True, eq=False)
class ScaleOptions:
    """What is known of lengths. Without any, the calibration is up to scale.

    Parameters
    ----------
    marker_size_mm : float or None
        Side of the black squares.
    marker_sigma_mm : float or None
        Its standard deviation; 0.2 % without.
    marker_distances : tuple of (int, int, float, float)
        Two markers' ids, the distance between their centers and its sigma, mm.
    dictionary : str
        Of the markers.
    distances : tuple of PickedDistance
    trajectory : Path or None
        Known poses, TUM format; the timestamp is the frame's index.
    trajectory_sigma_mm : float
    known : mapping of str to float
        f_L and B in mm, both: recalibration.
    """

    marker_size_mm: float | None = None
    marker_sigma_mm: float | None = None
    marker_distances: tuple[tuple[int, int, float, float], ...] = ()
    dictionary: str = DICTIONARY
    distances: tuple[PickedDistance, ...] = ()
    trajectory: Path | None = None
    trajectory_sigma_mm: float = 1.0
    known: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("marker_size_mm", "marker_sigma_mm", "trajectory_sigma_mm"):
            value = getattr(self, name)
            if value is not None and not (np.isfinite(value) and value > 0.0):
                raise InputError(f"{name} is {value}, needs a positive number")
        for name, value in self.known.items():
            if name not in KNOWN:
                raise ConfigError.unknown("parameter of --known", name, KNOWN)
            if not (np.isfinite(value) and value > 0.0):
                raise InputError(f"known {name} is {value}, needs a positive number of mm")
        if self.known and set(self.known) != set(KNOWN):
            raise InputError("recalibration needs both f_L and B, as in f_L=16.7,B=0.38")
        if self.dictionary not in DICTIONARIES:
            raise ConfigError.unknown("marker dictionary", self.dictionary, DICTIONARIES)
        if self.trajectory is not None and not self.trajectory.is_file():
            raise DataError(f"{self.trajectory}: no such file")
        if self.known and (self.uses_markers or self.distances or self.trajectory is not None):
            raise InputError(
                "known f_L and B give the scale: leave out markers, distances and the trajectory"
            )

    @property
    def uses_markers(self) -> bool:
        """Whether markers are to be looked for."""
        return self.marker_size_mm is not None or bool(self.marker_distances)


@dataclass(frozen=True, eq=False)
class ScalePoints:
    """Points that are measured for the scale, and what is known of them.

    Parameters
    ----------
    points_world : (n, 3) float64
        Where they are about, in the geometry's scale.
    references : (n,) int64
        The view in which each is as it was picked, or well seen.
    normals_world : (n, 3) float64
        Of the surfaces that they lie on; NaN where unknown.
    ends : (n_distances, 2, 4) int64
        Into `points_world`: a marker's four corners, whose mean is its center, or one point four
        times.
    lengths_mm, sigmas_mm : (n_distances,) float64
    seen_points, seen_views : (n_seen,) int64
        Where points were found or picked ...
    seen_px : (n_seen, 2) float64
        ... in the recorded virtual image, raw px.
    source : str
    labels : tuple of str
        What people call each distance.
    findings : tuple of Finding
    """

    points_world: FloatArray
    references: IntArray
    normals_world: FloatArray
    seen_points: IntArray
    seen_views: IntArray
    seen_px: FloatArray
    ends: IntArray
    lengths_mm: FloatArray
    sigmas_mm: FloatArray
    source: str
    labels: tuple[str, ...]
    findings: tuple[Finding, ...] = ()

    def distances(self, first_id: int) -> Distances:
        """Return the distances, points numbered from `first_id` on."""
        return Distances(
            self.ends + first_id, self.lengths_mm, self.sigmas_mm, self.source, self.labels
        )

    def join(self, other: ScalePoints) -> ScalePoints:
        """Return these points and those of another source."""
        first = len(self.points_world)
        return ScalePoints(
            np.concatenate([self.points_world, other.points_world]),
            np.concatenate([self.references, other.references]),
            np.concatenate([self.normals_world, other.normals_world]),
            np.concatenate([self.seen_points, other.seen_points + first]),
            np.concatenate([self.seen_views, other.seen_views]),
            np.concatenate([self.seen_px, other.seen_px]),
            np.concatenate([self.ends, other.ends + first]),
            np.concatenate([self.lengths_mm, other.lengths_mm]),
            np.concatenate([self.sigmas_mm, other.sigmas_mm]),
            f"{self.source} and {other.source}",
            self.labels + other.labels,
            self.findings + other.findings,
        )


def read_marker_distances(path: Path) -> tuple[tuple[int, int, float, float], ...]:
    """Read `id1 id2 mm sigma` a line, `#` comments: the authors' format."""
    rows = []
    for number, words in _read_rows(path):
        try:
            first, second, length, sigma = words
            rows.append((int(first), int(second), float(length), float(sigma)))
        except ValueError:
            raise DataError(
                f"{path}: line {number}: needs 'id1 id2 mm sigma', found {' '.join(words)!r}"
            ) from None
        _check_length(path, number, *rows[-1][2:])
        if rows[-1][0] == rows[-1][1]:
            raise DataError(f"{path}: line {number}: a distance from marker {first} to itself")
    return tuple(rows)


def read_picked_distances(path: Path) -> tuple[PickedDistance, ...]:
    """Read `frame x1 y1 x2 y2 mm sigma` a line, `#` comments."""
    rows = []
    for number, words in _read_rows(path):
        try:
            frame, *numbers = words
            x1, y1, x2, y2, length, sigma = map(float, numbers)
            if not np.isfinite([x1, y1, x2, y2]).all():
                raise ValueError
        except ValueError:
            raise DataError(
                f"{path}: line {number}: needs 'frame x1 y1 x2 y2 mm sigma', found "
                f"{' '.join(words)!r}"
            ) from None
        _check_length(path, number, length, sigma)
        rows.append(PickedDistance(frame, (x1, y1), (x2, y2), length, sigma))
    return tuple(rows)


def _read_rows(path: Path) -> list[tuple[int, list[str]]]:
    text = read_bytes(path).decode("utf-8-sig", errors="replace")
    rows = [
        (number, words)
        for number, line in enumerate(text.splitlines(), start=1)
        if (words := line.partition("#")[0].replace(",", " ").split())
    ]
    if not rows:
        raise DataError(f"{path}: holds no distances")
    return rows


def _check_length(path: Path, number: int, length: float, sigma: float) -> None:
    if not (np.isfinite([length, sigma]).all() and length > 0.0 and sigma > 0.0):
        raise DataError(
            f"{path}: line {number}: distance {length:g} +- {sigma:g} mm, needs positive numbers"
        )


# Markers


def find_markers(
    paths: Sequence[Path], options: ScaleOptions, listener: Listener
) -> list[list[Marker]]:
    """Find the markers of each focused image.

    Raises
    ------
    DataError
        If there are none, or they are of another dictionary.
    """
    found: list[list[Marker]] = []
    with listener.steps("looking for markers", len(paths)) as step:
        for path in paths:
            found.append(detect_markers(read_gray(path), options.dictionary))
            step("")
    some = [read_gray(paths[i]) for i in spread_choice(len(paths), _GUESS_FRAMES)]
    other = guess_dictionary(some, options.dictionary)
    if other is not None:
        raise DataError(
            f"the markers are of {other}, not of {options.dictionary}: give --dictionary {other}"
        )
    if not any(found):
        raise DataError(
            f"no marker of {options.dictionary} in any of {len(paths)} focused images: are they in "
            "the picture, flat, with a white margin, 20 pixels wide or more?"
        )
    return found


def place_markers(
    geometry: Reconstruction,
    seen: Mapping[int, Sequence[Marker]],
    scale: float,
    options: ScaleOptions,
) -> ScalePoints:
    """Return the markers' corners, their sides, and the distances between markers' centers.

    A center is the mean of the four corners. Nothing is measured at the center itself, where many
    markers are plain.

    Parameters
    ----------
    geometry : Reconstruction
    seen : mapping of int to sequence of Marker
        Markers in the focused images of views.
    scale : float
        Of the focused images.
    options : ScaleOptions
    """
    sightings: dict[int, dict[int, FloatArray]] = {}
    for view, markers in seen.items():
        for marker in markers:
            corners = (marker.corners_px + 0.5) / scale - 0.5
            sightings.setdefault(marker.id, {})[view] = corners
    corners_of: dict[int, tuple[FloatArray, IntArray]] = {}
    for marker_id in sorted(sightings):
        placed = _triangulate_marker(geometry, sightings[marker_id])
        if placed is not None:
            corners_of[marker_id] = placed
    if not corners_of:
        raise DataError(
            f"markers {sorted(sightings)} were found, but none in {_FEWEST_VIEWS} views that agree"
        )
    used = {
        marker_id: place
        for marker_id, place in corners_of.items()
        if options.marker_size_mm is not None
        or any(marker_id in row[:2] for row in options.marker_distances)
    }
    corner_indices = {
        marker_id: [4 * i, 4 * i + 1, 4 * i + 2, 4 * i + 3] for i, marker_id in enumerate(used)
    }
    seen_at = [
        (corner, view, *place)
        for marker_id, (_, views) in used.items()
        for view in views.tolist()
        for corner, place in zip(
            corner_indices[marker_id], sightings[marker_id][view].tolist(), strict=True
        )
    ]
    ends: list[tuple[list[int], list[int]]] = []
    rows: list[tuple[float, float]] = []
    labels: list[str] = []
    findings: list[Finding] = []
    if options.marker_size_mm is not None:
        side = options.marker_size_mm
        sigma = options.marker_sigma_mm or _SIDE_SIGMA * side
        for marker_id, around in corner_indices.items():
            ends += [([around[i]] * 4, [around[(i + 1) % 4]] * 4) for i in range(4)]
            rows += [(side, sigma)] * 4
            labels += [f"marker {marker_id}, side {i + 1}" for i in range(4)]
        if len(used) == 1:
            only = next(iter(used))
            findings.append(
                Finding.of(
                    "one-marker",
                    f"the scale rests on one marker ({only}): a second one would check it",
                    marker=only,
                )
            )
    for first_id, second_id, length, sigma in options.marker_distances:
        missing = [i for i in (first_id, second_id) if i not in used]
        if missing:
            findings.append(
                Finding.of(
                    "marker-missing",
                    f"marker {missing[0]} of the distances was not found: left out",
                    marker=missing[0],
                )
            )
            continue
        ends.append((corner_indices[first_id], corner_indices[second_id]))
        rows.append((length, sigma))
        labels.append(f"markers {first_id} and {second_id}")
    if not rows:
        raise DataError(
            f"none of the marker distances is between markers that were found {list(corners_of)}"
        )
    table, seen_table = np.array(rows), np.array(seen_at)
    return ScalePoints(
        np.concatenate([corners for corners, _ in used.values()]),
        np.repeat([int(views[len(views) // 2]) for _, views in used.values()], 4),
        np.repeat([_normal(corners) for corners, _ in used.values()], 4, axis=0),
        seen_table[:, 0].astype(np.int64),
        seen_table[:, 1].astype(np.int64),
        seen_table[:, 2:],
        np.array(ends, np.int64),
        table[:, 0],
        table[:, 1],
        "markers",
        tuple(labels),
        tuple(findings),
    )


def _triangulate_marker(
    geometry: Reconstruction, sightings: Mapping[int, FloatArray]
) -> tuple[FloatArray, IntArray] | None:
    views = np.array(sorted(sightings), np.int64)
    corners = np.empty((4, 3))
    good = np.ones(len(views), np.bool_)
    for _ in range(2):
        if good.sum() < _FEWEST_VIEWS:
            return None
        misses = np.zeros(len(views))
        for i in range(4):
            xy = np.array([sightings[int(view)][i] for view in views])
            corners[i] = triangulate(geometry, views[good], xy[good])
            where = replace(geometry, points_world_mm=corners[i][None])
            cam = where.cam_points(np.zeros(len(views), np.int64), views)
            miss = np.linalg.norm(where.virtual_points(cam)[0] - xy, axis=1)
            misses = np.maximum(misses, np.where(np.isfinite(miss), miss, np.inf))
        limit = min(3.0 * float(np.median(misses)), _MOST_EVER_PX)
        good = misses < max(_MOST_MISS_PX, limit)
    return (corners, views[good]) if good.sum() >= _FEWEST_VIEWS else None


def _normal(corners: FloatArray) -> FloatArray:
    """Return the normal of a square, (3,): across its diagonals."""
    return np.cross(corners[2] - corners[0], corners[3] - corners[1])


# Picked points and the trajectory


def find_frame(frame: str, names: Sequence[str], registered: Sequence[str]) -> int:
    """Return which of the registered frames is meant: by name, with or without suffix, or index.

    Raises
    ------
    DataError
        If there is no such frame, or it was not registered.
    """
    name = next((n for n in (frame, Path(frame).stem) if n in names), None)
    if name is None and frame.isdecimal() and int(frame) < len(names):
        name = names[int(frame)]
    if name is None:
        raise DataError(f"there is no frame {frame}, of which the distances are")
    if name not in registered:
        raise DataError(f"frame {frame} of the distances was not registered: pick in another one")
    return registered.index(name)


def place_picked(
    geometry: Reconstruction,
    distances: Sequence[PickedDistance],
    find_view: Callable[[str], int],
    sample_u: Callable[[int, FloatArray], float],
    read_view: Callable[[int], npt.NDArray[np.uint8]],
    scale: float,
) -> ScalePoints:
    """Return picked points where the focused images of all views agree best, near the depth map's.

    Parameters
    ----------
    geometry : Reconstruction
    distances : sequence of PickedDistance
    find_view : callable
        View of a frame's name or index; raises DataError.
    sample_u : callable
        Virtual depth at a raw place of a view; NaN where unknown.
    read_view : callable
        Focused image of a view, gray.
    scale : float
        Of the focused images.
    """
    images = [read_view(view).astype(np.float64) for view in range(len(geometry.rotations))]
    points: list[FloatArray] = []
    references: list[int] = []
    places: list[FloatArray] = []
    for distance in distances:
        view = find_view(distance.frame)
        for pixel in (distance.first_px, distance.second_px):
            rows, cols = images[view].shape
            if not (-0.5 <= pixel[0] <= cols - 0.5 and -0.5 <= pixel[1] <= rows - 0.5):
                raise DataError(
                    f"the picked point ({pixel[0]:g}, {pixel[1]:g}) is outside the focused image "
                    f"of frame {distance.frame}, which has {cols} x {rows} px"
                )
            xy = (np.array(pixel) + 0.5) / scale - 0.5
            u = sample_u(view, xy)
            if not u > geometry.array.alpha:
                raise DataError(
                    f"the picked point ({pixel[0]:g}, {pixel[1]:g}) of frame {distance.frame} has "
                    "no known depth: pick one with texture around it"
                )
            points.append(_find_depth(geometry, images, scale, view, xy, u))
            references.append(view)
            places.append(xy)
    return ScalePoints(
        np.array(points),
        np.array(references, np.int64),
        np.full((len(points), 3), np.nan),
        np.arange(len(points), dtype=np.int64),
        np.array(references, np.int64),
        np.array(places),
        np.arange(len(points), dtype=np.int64).reshape(-1, 2, 1).repeat(4, axis=2),
        np.array([distance.length_mm for distance in distances]),
        np.array([distance.sigma_mm for distance in distances]),
        "distances",
        tuple(
            f"({d.first_px[0]:g}, {d.first_px[1]:g}) and ({d.second_px[0]:g}, {d.second_px[1]:g}) "
            f"in {d.frame}"
            for d in distances
        ),
    )


def _find_depth(
    geometry: Reconstruction,
    images: Sequence[FloatArray],
    scale: float,
    view: int,
    xy: FloatArray,
    u: float,
) -> FloatArray:
    """Return the world point on the ray of a picked pixel at which the views look alike, (3,).

    Where u hardly changes with distance, the depth map alone would be off by many pixels in the
    other views.
    """
    around = np.arange(-_PICK_HALF, _PICK_HALF + 1) / scale
    dx, dy = (part.ravel() for part in np.meshgrid(around, around))
    spots = xy + np.stack([dx, dy], axis=1)
    ideal = geometry.distortion.undistort(spots, geometry.principal_px)
    rays = np.column_stack(
        [(ideal - geometry.principal_px) / geometry.array.focal_px, np.ones(len(spots))]
    )
    reference = _sample(images[view], spots, scale)
    changes = np.linspace(-_PICK_SEARCH, _PICK_SEARCH, _PICK_STEPS)
    # evenly in 1 / z, so evenly in the images
    inverse = (u * (1.0 + changes) - geometry.array.alpha) / geometry.array.beta_mm
    scores = np.full(_PICK_STEPS, -1.0)
    for i in np.flatnonzero(inverse > 0.0).tolist():
        world = (rays / inverse[i] - geometry.translations_mm[view]) @ geometry.rotations[view]
        alike = [
            _correlate(reference, _sample(images[other], _project(geometry, world, other), scale))
            for other in range(len(images))
            if other != view
        ]
        known = [value for value in alike if np.isfinite(value)]
        # the better half: others may not see it
        scores[i] = float(np.mean(sorted(known)[len(known) // 2 :])) if known else -1.0
    best = int(np.argmax(scores))
    if 0 < best < _PICK_STEPS - 1:
        before, here, after = scores[best - 1 : best + 2]
        bend = before - 2.0 * here + after
        part = 0.5 * (before - after) / bend if bend < 0.0 else 0.0
        step = inverse[best + 1] - inverse[best]
        depth = 1.0 / (inverse[best] + part * step)
    else:
        depth = geometry.array.beta_mm / (u - geometry.array.alpha)
    middle = rays[len(rays) // 2] * depth
    return np.asarray(geometry.rotations[view].T @ (middle - geometry.translations_mm[view]))


def _project(geometry: Reconstruction, world: FloatArray, view: int) -> FloatArray:
    cam = world @ geometry.rotations[view].T + geometry.translations_mm[view]
    return geometry.virtual_points(cam)[0]


def _sample(image: FloatArray, places_px: FloatArray, scale: float) -> FloatArray:
    """Return the values of a focused image at raw places, NaN outside."""
    at = (places_px + 0.5) * scale - 0.5
    return np.asarray(
        map_coordinates(image, [at[:, 1], at[:, 0]], order=1, mode="constant", cval=np.nan)
    )


def _correlate(first: FloatArray, second: FloatArray) -> float:
    """Return the correlation of two patches; NaN if one is not all there or has no texture."""
    a, b = first - first.mean(), second - second.mean()
    size = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / size if size > 0.0 else math.nan


def read_positions(
    path: Path, frame_indices: IntArray, times: FloatArray, sigma_mm: float
) -> CameraPositions:
    """Return the positions of registered frames, which have these times, from a TUM file.

    Raises
    ------
    DataError
        If fewer than three frames have a position.
    """
    trajectory = read_tum(path)
    positions = trajectory.positions_world_mm()
    ids, places = [], []
    for index, time in zip(frame_indices.tolist(), times.tolist(), strict=True):
        off = np.abs(trajectory.timestamps - time)
        if off.min(initial=np.inf) < _SAME_TIME:
            ids.append(index)
            places.append(positions[int(np.argmin(off))])
    if len(ids) < 3:
        raise DataError(
            f"{path}: has the position of {len(ids)} registered frames (need 3); without "
            "--timestamps a frame's time is its index in sorted order"
        )
    try:
        return CameraPositions(
            np.array(ids, np.int64), np.array(places), np.full(len(ids), sigma_mm)
        )
    except InputError as error:
        raise DataError(f"{path}: {error}") from None
