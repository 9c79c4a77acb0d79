"""Scale from a known distance between two points that a person picked in a focused image."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.ndimage import map_coordinates

from lifcal.arrays import FloatArray
from lifcal.distances import PickedDistance, find_name, is_inside
from lifcal.errors import DataError
from lifcal.listener import Listener
from lifcal.reconstruction import Reconstruction
from lifcal.scale.source import ScaleKnowledge, ScalePoints, ScaleViews

_PICK_HALF = 7
"""Half-width of the patch around a picked point, in pixels of the focused image. Such patches are
compared between views to find the point's depth."""
_PICK_SEARCH, _PICK_STEPS = 0.03, 121
"""Search range of the virtual depth of a picked point, as a fraction of u on both sides of the
depth map's value, and number of steps in this range."""


@dataclass(frozen=True)
class PickedPoints:
    """Known distances between picked points.

    Parameters
    ----------
    distances : tuple of PickedDistance
    """

    distances: tuple[PickedDistance, ...]

    def describe(self) -> dict[str, Any]:
        """Return the values on which the result depends."""
        return {"source": "distances", **asdict(self)}

    def find(self, views: ScaleViews, listener: Listener) -> ScaleKnowledge:
        """Find the picked points in all focused images."""

        def find_view(frame: str) -> int:
            return find_frame(frame, views.frame_names, views.view_names)

        with listener.status("finding the picked points"):
            points = place_picked(
                views.reconstruction,
                self.distances,
                find_view,
                views.sample_depth,
                views.read_focused,
                views.image_scale,
            )
        return ScaleKnowledge(points)


def find_frame(frame: str, names: Sequence[str], registered: Sequence[str]) -> int:
    """Return the index, among the registered frames, of a frame given as for `find_name`.

    Raises
    ------
    DataError
        If there is no such frame, or it was not registered.
    """
    name = find_name(frame, names)
    if name not in registered:
        raise DataError(
            f"frame {frame}, in which a distance was picked, was not registered: pick in another "
            "frame"
        )
    return registered.index(name)


def place_picked(
    geometry: Reconstruction,
    distances: Sequence[PickedDistance],
    find_view: Callable[[str], int],
    sample_u: Callable[[int, FloatArray], float],
    read_view: Callable[[int], npt.NDArray[np.uint8]],
    scale: float,
) -> ScalePoints:
    """Return picked points, at depths near those of the depth map at which the views agree best.

    Parameters
    ----------
    geometry : Reconstruction
    distances : sequence of PickedDistance
    find_view : callable
        Function that returns the view for a frame's name or index, or raises a DataError.
    sample_u : callable
        Function that returns the virtual depth at a raw position of a view; NaN where unknown.
    read_view : callable
        Function that returns the gray focused image of a view.
    scale : float
        Size of the focused images relative to the raw.
    """
    images = [read_view(view).astype(np.float64) for view in range(len(geometry.rotations))]
    points: list[FloatArray] = []
    references: list[int] = []
    places: list[FloatArray] = []
    for distance in distances:
        view = find_view(distance.frame)
        for pixel in (distance.first_px, distance.second_px):
            rows, cols = images[view].shape
            if not is_inside(pixel, (cols, rows)):
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
            points.append(find_point(geometry, images, scale, view, xy, u))
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


def find_point(
    geometry: Reconstruction,
    images: Sequence[npt.NDArray[np.floating]],
    scale: float,
    view: int,
    xy: FloatArray,
    u: float,
) -> FloatArray:
    """Return the point on the ray of a picked pixel at which the views look most similar, (3,).

    If u hardly changes with distance, the point of the depth map alone would be off by many pixels
    in the other views.

    Parameters
    ----------
    geometry : Reconstruction
    images : sequence of (rows, cols) float
        Focused images of all views, gray.
    scale : float
        Size of the focused images relative to the raws.
    view : int
        View that the point was picked in.
    xy : (2,) float64
        Position of the point in raw px.
    u : float
        Virtual depth there.
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
    # Steps are uniform in 1 / z, so that they are uniform in the images.
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
        # Use the better half of the views, because the others may not see the point.
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


def _sample(image: npt.NDArray[np.floating], places_px: FloatArray, scale: float) -> FloatArray:
    """Return the values of a focused image at raw positions; NaN outside."""
    at = (places_px + 0.5) * scale - 0.5
    return np.asarray(
        map_coordinates(image, [at[:, 1], at[:, 0]], order=1, mode="constant", cval=np.nan)
    )


def _correlate(first: FloatArray, second: FloatArray) -> float:
    """Return the correlation of two patches; NaN if one is incomplete or has no texture."""
    a, b = first - first.mean(), second - second.mean()
    size = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / size if size > 0.0 else math.nan
