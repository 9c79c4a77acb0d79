"""Choice of the points to measure, well spread and on smooth surfaces, and of their views."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.spatial import cKDTree

from lifcal.arrays import BoolArray, Float32Array, FloatArray, IntArray, read_only
from lifcal.reconstruction import Reconstruction

_CELLS = 10
"""Number of cells along each side of the image over which tracks are spread, so that points are not
only in strongly textured parts."""
_DEPTH_BINS = 5
"""Number of ranges of virtual depth over which the tracks of a cell are spread, because near and
far points together determine alpha and beta."""
_RINGS, _RING_POINTS = 2, 8
"""Number of rings around the middle of a patch, the last one at its rim, and of places on each, at
which its surface must be near a plane. Patches are round, so a square of places would leave out
points whose patches end before an edge."""
_MOST_BEND = 0.012
"""Largest deviation of a surface from a plane within a patch, as a fraction of u. A larger
deviation shows an edge or a strong curvature, which one plane texture does not describe."""
_SAME_DEPTH = 0.03
"""Largest relative difference between the depth map of a view and the predicted u. If it is larger,
the view sees something else there."""

DepthMap = Callable[[int], tuple[Float32Array, float]]
"""Virtual depth of a view, NaN where unknown, (rows, cols), and its size relative to the raw."""


@dataclass(frozen=True, eq=False)
class Tracks:
    """Points to measure.

    Parameters
    ----------
    points : (n_tracks,) int64
        Index of each point in the geometry that they were chosen from.
    references : (n_tracks,) int64
        The reference view of each point, in which its texture is upright and has the scale 1.
    """

    points: IntArray
    references: IntArray

    def __len__(self) -> int:
        return len(self.points)


def choose_tracks(
    geometry: Reconstruction,
    point_indices: IntArray,
    view_indices: IntArray,
    depth_map: DepthMap,
    image_size: tuple[int, int],
    window_px: float,
    count: int,
    besides: FloatArray | None = None,
) -> Tracks:
    """Choose tracks that are long, on smooth surfaces, apart, and spread over image and depth.

    Feature detectors may find the same corner several times. Two tracks that share most of their
    pixels have the same errors, so the second one adds no information but would make the sigmas too
    small.

    Parameters
    ----------
    geometry : Reconstruction
    point_indices, view_indices : (n_tracked,) int64
        Which point is tracked in which view, sorted by point.
    depth_map : callable
        Called once for each view, in ascending order.
    image_size : (int, int)
        Width and height of the raw image.
    window_px : float
        Radius of the patch that is to be measured, in px of a micro image.
    count : int
        Largest number of tracks to choose.
    besides : (n, 3) float64, optional
        Other points of the scene that are measured too; tracks near to them are not chosen.
    """
    points, first, lengths = np.unique(point_indices, return_index=True, return_counts=True)
    references = _middle_views(geometry, points, first, lengths, view_indices)
    cam = geometry.cam_points(points, references)
    xy, u = geometry.virtual_points(cam)
    smooth = np.zeros(len(points), np.bool_)
    for view in np.unique(references).tolist():
        here = np.flatnonzero(references == view)
        u_map, scale = depth_map(view)
        smooth[here] = _is_smooth(u_map, scale, xy[here], u[here], window_px)
    good = np.flatnonzero(smooth & (lengths >= 2))
    good = good[np.argsort(-lengths[good], kind="stable")]
    if besides is not None and len(besides):
        reach = window_px * np.abs(u[good]) * cam[good, 2] / geometry.array.focal_px
        places = geometry.points_world_mm[points[good]]
        good = good[cKDTree(besides).query(places)[0] > reach]
    twins = _find_twins(geometry, points[good], references[good], xy[good], u[good], window_px)
    good = np.sort(good[_leave_out_twins(twins, len(good))])
    chosen = good[_spread(xy[good], u[good], lengths[good], image_size, count)]
    chosen.sort()
    return Tracks(read_only(points[chosen]), read_only(references[chosen]))


def find_views(
    geometry: Reconstruction,
    tracks: Tracks,
    depth_map: DepthMap,
    image_size: tuple[int, int],
    most_views: int,
    worlds: IntArray | None = None,
) -> tuple[IntArray, IntArray]:
    """Return (track, view) for every view whose depth map agrees with the depth of a track's point.

    There are at most `most_views` views of a track, evenly spread over the recording. The pairs are
    sorted by track and view. If the views belong to several `worlds`, (n_views,), a point is looked
    for only in views of the world of its reference view.
    """
    n = len(tracks)
    width, height = image_size
    found_tracks: list[IntArray] = []
    found_views: list[IntArray] = []
    for view in range(len(geometry.rotations)):
        u_map, scale = depth_map(view)
        views = np.full(n, view)
        cam = geometry.cam_points(tracks.points, views)
        xy, u = geometry.virtual_points(cam)
        with np.errstate(invalid="ignore"):
            inside = (xy >= 0.0).all(axis=1) & (xy[:, 0] < width) & (xy[:, 1] < height)
        there = np.full(n, np.nan)
        there[inside] = sample_map(u_map, scale, xy[inside])
        with np.errstate(invalid="ignore"):
            same = np.abs(there / u - 1.0) < _SAME_DEPTH
        if worlds is not None:
            same &= worlds[tracks.references] == worlds[view]
        seen = np.flatnonzero(same)
        found_tracks.append(seen)
        found_views.append(np.full(len(seen), view))
    all_tracks, all_views = np.concatenate(found_tracks), np.concatenate(found_views)
    order = np.lexsort((all_views, all_tracks))
    all_tracks, all_views = all_tracks[order], all_views[order]
    keep = _thin_out(all_tracks, n, most_views)
    return all_tracks[keep], all_views[keep]


def sample_map(u_map: Float32Array, scale: float, points_px: FloatArray) -> FloatArray:
    """Return the virtual depth at raw positions, from the nearest pixel; NaN where unknown."""
    rows, cols = u_map.shape
    at = np.rint((points_px + 0.5) * scale - 0.5)
    i = np.clip(at[..., 0], 0, cols - 1).astype(np.int64)
    j = np.clip(at[..., 1], 0, rows - 1).astype(np.int64)
    return np.asarray(u_map[j, i], np.float64)


def _middle_views(
    geometry: Reconstruction,
    points: IntArray,
    first: IntArray,
    lengths: IntArray,
    view_indices: IntArray,
) -> IntArray:
    """Return, for each point, the view in which its distance is the median over its views."""
    owners = np.repeat(np.arange(len(points)), lengths)
    depth = geometry.cam_points(points[owners], view_indices)[:, 2]
    order = np.lexsort((depth, owners))
    return np.asarray(view_indices[order][first + (lengths - 1) // 2])


def _is_smooth(
    u_map: Float32Array, scale: float, xy: FloatArray, u: FloatArray, window_px: float
) -> BoolArray:
    """Tell whether the surface around each point is known, nearly plane, and at the right depth."""
    angles = 2.0 * np.pi * np.arange(_RING_POINTS) / _RING_POINTS
    radii = np.arange(1, _RINGS + 1) / _RINGS
    dx, dy = (np.append(0.0, np.outer(radii, each)) for each in (np.cos(angles), np.sin(angles)))
    reach = window_px * np.abs(u)
    places = xy[:, None, :] + reach[:, None, None] * np.stack([dx, dy], axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        rho = 1.0 / sample_map(u_map, scale, places)
        square = float(dx @ dx)  # and dy @ dy
        middle = rho.mean(axis=1, keepdims=True)
        fitted = middle + np.outer(rho @ dx / square, dx) + np.outer(rho @ dy / square, dy)
        bend = np.abs(rho / fitted - 1.0).max(axis=1)
        return np.asarray((bend < _MOST_BEND) & (np.abs(middle[:, 0] * u - 1.0) < _SAME_DEPTH))


def _find_twins(
    geometry: Reconstruction,
    points: IntArray,
    references: IntArray,
    xy: FloatArray,
    u: FloatArray,
    window_px: float,
) -> IntArray:
    """Return pairs of tracks that share pixels: one lies in the window of the other, (n, 2).

    Tracks are compared in the reference view of the first one. There, two tracks of one corner are
    at the same place. In space they need not be: the depth of a point that few views see is much
    less certain than its direction.
    """
    pairs = [np.zeros((0, 2), np.int64)]
    for view in np.unique(references).tolist():
        here = np.flatnonzero(references == view)
        cam = geometry.cam_points(points, np.full(len(points), view))
        places, depths = geometry.virtual_points(cam)
        visible = np.flatnonzero((cam[:, 2] > 0.0) & np.isfinite(places).all(axis=1))
        near = cKDTree(places[visible]).query_ball_point(xy[here], window_px * np.abs(u[here]))
        first = np.repeat(here, [len(each) for each in near])
        second = visible[np.concatenate(near).astype(np.int64)]
        same = np.abs(depths[second] / u[first] - 1.0) < _SAME_DEPTH
        pairs.append(np.stack([first, second], axis=1)[same & (first != second)])
    return np.concatenate(pairs)


def _leave_out_twins(twins: IntArray, count: int) -> BoolArray:
    """Tell which of `count` tracks to keep, the first ones first, so that no two are twins."""
    pairs = np.sort(twins, axis=1)
    kept = np.ones(count, np.bool_)
    for first, second in pairs[np.argsort(pairs[:, 0], kind="stable")].tolist():
        if kept[first]:
            kept[second] = False
    return kept


def _spread(
    xy: FloatArray, u: FloatArray, lengths: IntArray, image_size: tuple[int, int], count: int
) -> IntArray:
    """Return up to `count` indices: the longest tracks of every cell and depth range in turn."""
    if len(xy) <= count:
        return np.arange(len(xy))
    cells = np.floor(xy / np.array(image_size) * _CELLS).astype(np.int64)
    depth_bin = np.searchsorted(np.quantile(u, np.linspace(0.0, 1.0, _DEPTH_BINS + 1)[1:-1]), u)
    bucket = (cells[:, 1] * _CELLS + cells[:, 0]) * _DEPTH_BINS + depth_bin
    order = np.lexsort((np.arange(len(u)), -lengths, bucket))
    _, first, counts = np.unique(bucket[order], return_index=True, return_counts=True)
    rank = np.arange(len(order)) - np.repeat(first, counts)
    turn = np.lexsort((-lengths[order], rank))
    return np.asarray(order[turn[:count]])


def _thin_out(owners: IntArray, n_owners: int, most: int) -> IntArray:
    """Return the indices of at most `most` entries of each owner, evenly spread."""
    counts = np.bincount(owners, minlength=n_owners)
    start = np.concatenate([[0], np.cumsum(counts)])
    kept = [
        start[owner] + np.unique(np.floor(np.linspace(0, size - 1e-9, most)).astype(np.int64))
        if size > most
        else np.arange(start[owner], start[owner + 1])
        for owner, size in enumerate(counts.tolist())
    ]
    return np.concatenate(kept) if kept else np.zeros(0, np.int64)
