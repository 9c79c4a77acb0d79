"""Scale from ArUco markers: their sides, and distances between their centers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lifcal.arrays import FloatArray, IntArray, spread_choice
from lifcal.diagnostics import Finding
from lifcal.distances import check_length, read_rows
from lifcal.errors import ConfigError, DataError, InputError
from lifcal.imaging.markers import (
    DICTIONARIES,
    DICTIONARY,
    Marker,
    detect_markers,
    guess_dictionary,
)
from lifcal.listener import Listener
from lifcal.reconstruction import Reconstruction, triangulate
from lifcal.scale.source import ScaleKnowledge, ScalePoints, ScaleViews

_FEWEST_VIEWS = 2
"""Smallest number of views that must agree about the corners of a marker, because one view alone
could be a wrong detection."""
_MOST_MISS_PX = 3.0
"""A corner that is farther than this from its predicted position in a virtual image, in raw px, is
a wrong detection, unless most corners are farther off because the poses are inaccurate."""
_MOST_EVER_PX = 12.0
"""A corner that is farther off than this is a wrong detection, even if the poses are inaccurate."""
_SIDE_SIGMA = 0.002
"""Relative standard deviation of a marker's side if none is given. It is about the accuracy with
which people print and measure markers."""
_GUESS_FRAMES = 5
"""Number of frames in which other dictionaries are tried if no marker of the given one is found."""


@dataclass(frozen=True)
class Markers:
    """ArUco markers whose size, or whose distances from each other, are known.

    Parameters
    ----------
    size_mm : float or None
        Side of the black squares.
    sigma_mm : float or None
        Standard deviation of the side; None stands for 0.2 % of it.
    distances : tuple of (int, int, float, float)
        Ids of two markers, the distance between their centers and its standard deviation in mm.
    dictionary : str
        ArUco dictionary of the printed markers.
    """

    size_mm: float | None = None
    sigma_mm: float | None = None
    distances: tuple[tuple[int, int, float, float], ...] = ()
    dictionary: str = DICTIONARY

    def __post_init__(self) -> None:
        for name in ("size_mm", "sigma_mm"):
            value = getattr(self, name)
            if value is not None and not (np.isfinite(value) and value > 0.0):
                raise InputError(f"marker_{name} is {value}, needs a positive number")
        if self.dictionary not in DICTIONARIES:
            raise ConfigError.unknown("marker dictionary", self.dictionary, DICTIONARIES)

    def describe(self) -> dict[str, Any]:
        """Return the values on which the result depends."""
        return {"source": "markers", **asdict(self)}

    def find(self, views: ScaleViews, listener: Listener) -> ScaleKnowledge:
        """Look for the markers in all focused images."""
        seen = find_markers(views.n_views, views.read_focused, self.dictionary, listener)
        points, findings = place_markers(
            views.reconstruction, dict(enumerate(seen)), views.image_scale, self
        )
        return ScaleKnowledge(points, findings=tuple(findings))


def read_marker_distances(path: Path) -> tuple[tuple[int, int, float, float], ...]:
    """Read lines of the form `id1 id2 mm sigma`, with `#` comments.

    The code published with the paper uses the same format.
    """
    rows = []
    for number, words in read_rows(path):
        try:
            first, second, length, sigma = words
            rows.append((int(first), int(second), float(length), float(sigma)))
        except ValueError:
            raise DataError(
                f"{path}: line {number}: needs 'id1 id2 mm sigma', found {' '.join(words)!r}"
            ) from None
        check_length(path, number, *rows[-1][2:])
        if rows[-1][0] == rows[-1][1]:
            raise DataError(f"{path}: line {number}: a distance from marker {first} to itself")
    return tuple(rows)


def find_markers(
    n_views: int,
    read_focused: Callable[[int], npt.NDArray[np.uint8]],
    dictionary: str,
    listener: Listener,
) -> list[list[Marker]]:
    """Find the markers of each focused image.

    Raises
    ------
    DataError
        If there are no markers, or they belong to another dictionary.
    """
    found: list[list[Marker]] = []
    with listener.steps("looking for markers", n_views) as step:
        for view in range(n_views):
            found.append(detect_markers(read_focused(view), dictionary))
            step("")
    some = [read_focused(view) for view in spread_choice(n_views, _GUESS_FRAMES)]
    other = guess_dictionary(some, dictionary)
    if other is not None:
        raise DataError(
            f"the markers are of {other}, not of {dictionary}: give --dictionary {other}"
        )
    if not any(found):
        raise DataError(
            f"no marker of {dictionary} in any of {n_views} focused images: are they in "
            "the picture, flat, with a white margin, 20 pixels wide or more?"
        )
    return found


def place_markers(
    geometry: Reconstruction,
    seen: Mapping[int, Sequence[Marker]],
    scale: float,
    known: Markers,
) -> tuple[ScalePoints, list[Finding]]:
    """Return the markers' corners, sides and distances between their centers, and findings.

    A center is the mean of the four corners. Nothing is measured at the center itself, because many
    markers have no texture there.

    Parameters
    ----------
    geometry : Reconstruction
    seen : mapping of int to sequence of Marker
        Markers in the focused images of views.
    scale : float
        Size of the focused images relative to the raw.
    known : Markers
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
        if known.size_mm is not None or any(marker_id in row[:2] for row in known.distances)
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
    if known.size_mm is not None:
        side = known.size_mm
        sigma = known.sigma_mm or _SIDE_SIGMA * side
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
    for first_id, second_id, length, sigma in known.distances:
        missing = [i for i in (first_id, second_id) if i not in used]
        if missing:
            findings.append(
                Finding.of(
                    "marker-missing",
                    f"marker {missing[0]} was not found: its known distance is left out",
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
    points = ScalePoints(
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
    )
    return points, findings


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
    """Return the normal of a square, (3,): the cross product of its diagonals."""
    return np.cross(corners[2] - corners[0], corners[3] - corners[1])
