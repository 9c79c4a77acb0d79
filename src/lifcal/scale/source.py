"""The interface of a source of the metric scale, its input and its result.

A calibration without scale determines every length up to one common factor. Each source in this
subpackage gives information that determines this factor: markers of known size, a distance between
picked points, a known trajectory, a known f_L and B. Other sources can be written: any object with
the methods of `ScaleSource` can be used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from lifcal.arrays import FloatArray, IntArray
from lifcal.bundle import CameraPositions, Distances, Prior
from lifcal.diagnostics import Finding
from lifcal.errors import InputError
from lifcal.listener import Listener
from lifcal.reconstruction import Reconstruction


@dataclass(frozen=True, eq=False)
class ScaleViews:
    """The input of a source: the registered frames of a recording, before the scale is known.

    Parameters
    ----------
    reconstruction : Reconstruction
        Poses of the views and a first estimate of the camera, in an arbitrary scale.
    frame_names : tuple of str
        Names of all frames of the recording.
    frame_indices : (n_views,) int64
        Index of each view's frame in `frame_names`.
    times : (n_views,) float64
        Timestamps of the views.
    image_scale : float
        Size of the focused images relative to the raw.
    read_focused : callable
        Function that returns the totally focused image of a view as (rows, cols) uint8.
    sample_depth : callable
        Function that returns the virtual depth of a view at a raw position (2,); NaN where it is
        unknown.
    """

    reconstruction: Reconstruction
    frame_names: tuple[str, ...]
    frame_indices: IntArray
    times: FloatArray
    image_scale: float
    read_focused: Callable[[int], npt.NDArray[np.uint8]]
    sample_depth: Callable[[int, FloatArray], float]

    @property
    def n_views(self) -> int:
        """Number of registered frames."""
        return len(self.frame_indices)

    @property
    def view_names(self) -> list[str]:
        """Names of the registered frames."""
        return [self.frame_names[index] for index in self.frame_indices.tolist()]


@dataclass(frozen=True, eq=False)
class ScalePoints:
    """Points that are measured for the scale, and known distances between them.

    Parameters
    ----------
    points_world : (n, 3) float64
        Approximate positions of the points, in the scale of `ScaleViews.reconstruction`.
    references : (n,) int64
        The view in which each point was picked or is seen well, 0 to `ScaleViews.n_views` - 1.
    normals_world : (n, 3) float64
        Normals of the surfaces on which the points are; NaN where unknown.
    seen_points, seen_views : (n_seen,) int64
        The point and the view of each detection or picked pixel.
    seen_px : (n_seen, 2) float64
        Its position in the recorded virtual image, in raw px. A pixel x of a focused image is
        `(x + 0.5) / image_scale - 0.5` there.
    ends : (n_distances, 2, 4) int64
        The two ends of each known distance, as indices into `points_world`: the four corners of a
        marker, whose mean is its center, or one point four times.
    lengths_mm, sigmas_mm : (n_distances,) float64
        The known distances and their standard deviations.
    source : str
        Name of the source in the summary and in camera.json.
    labels : tuple of str
        Name of each distance, for people.
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

    def distances(self, first_id: int) -> Distances:
        """Return the distances; the ids of the points start at `first_id`."""
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
            self.source if other.source == self.source else f"{self.source} and {other.source}",
            self.labels + other.labels,
        )


@dataclass(frozen=True, eq=False)
class ScaleKnowledge:
    """The result of one or several sources.

    Parameters
    ----------
    points : ScalePoints or None
        Points to measure, with distances between them. They refer to views by their index among the
        registered ones.
    positions : CameraPositions or None
        Known positions of the camera. Their `view_ids` are indices of frames in the recording, the
        `ScaleViews.frame_indices` of the views. The coordinate frame of the positions is free, so
        two positions at a known distance determine the scale too.
    fixed : mapping of str to float
        Parameters of the camera that are held fixed, in mm: f_L and B.
    findings : tuple of Finding
        Findings of the sources.
    priors : mapping of str to Prior
        Parameters of the camera that are known with a standard deviation.
    """

    points: ScalePoints | None = None
    positions: CameraPositions | None = None
    fixed: Mapping[str, float] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    priors: Mapping[str, Prior] = field(default_factory=dict)

    @property
    def is_metric(self) -> bool:
        """Whether anything is known that gives the scale."""
        return bool(
            self.points is not None or self.positions is not None or self.fixed or self.priors
        )

    def of_views(self, members: IntArray, label: str) -> ScaleKnowledge:
        """Return the same with numbers of views among all worlds, from those of one world.

        Parameters
        ----------
        members : (n,) int64
            Number of each view of the world among the views of all.
        label : str
            Is added to what people call each distance.
        """
        points = self.points
        if points is not None:
            points = replace(
                points,
                references=members[points.references],
                seen_views=members[points.seen_views],
                labels=tuple(f"{each}{label}" for each in points.labels),
            )
        return replace(self, points=points)

    def unite(self, other: ScaleKnowledge) -> ScaleKnowledge:
        """Return what is known of several worlds of one camera together.

        Raises
        ------
        InputError
            If two recordings give the same parameter of the camera with different values.
        """
        for name in sorted({*self.fixed, *self.priors} & {*other.fixed, *other.priors}):
            mine, theirs = ((each.fixed.get(name), each.priors.get(name)) for each in (self, other))
            if mine != theirs:
                raise InputError(f"two recordings give {name} differently: leave one of them out")
        points = self.points or other.points
        if self.points is not None and other.points is not None:
            points = self.points.join(other.points)
        positions = self.positions or other.positions
        if self.positions is not None and other.positions is not None:
            positions = self.positions.join(other.positions)
        return ScaleKnowledge(
            points,
            positions,
            {**self.fixed, **other.fixed},
            self.findings + other.findings,
            {**self.priors, **other.priors},
        )

    def join(self, other: ScaleKnowledge) -> ScaleKnowledge:
        """Return the combined result of two sources.

        Raises
        ------
        InputError
            If both give camera positions, or the same parameter.
        """
        twice = sorted({*self.fixed, *self.priors} & {*other.fixed, *other.priors})
        if twice:
            raise InputError(f"two sources give {twice[0]}: leave one of them out")
        if self.positions is not None and other.positions is not None:
            raise InputError("two sources give camera positions: leave one of them out")
        points = self.points or other.points
        if self.points is not None and other.points is not None:
            points = self.points.join(other.points)
        return ScaleKnowledge(
            points,
            self.positions or other.positions,
            {**self.fixed, **other.fixed},
            self.findings + other.findings,
            {**self.priors, **other.priors},
        )


class ScaleSource(Protocol):
    """A source of the metric scale.

    `lifcal.calibrate(..., scale_sources=[...])` and `ScaleOptions(others=(...,))` take any objects
    with these two methods. docs/how-to/calibrate.md has an example.
    """

    def describe(self) -> Mapping[str, Any]:
        """Return the values on which the result depends, as numbers and text.

        A finished calibration is taken from its folder only if these are the same.
        """
        ...

    def find(self, views: ScaleViews, listener: Listener) -> ScaleKnowledge:
        """Find the known lengths in the views.

        Raises
        ------
        DataError
            If the images or files do not contain what the source needs.
        """
        ...


def find_scale(
    sources: Sequence[ScaleSource], views: ScaleViews, listener: Listener
) -> ScaleKnowledge:
    """Return the combined result of several sources."""
    known = ScaleKnowledge()
    for source in sources:
        known = known.join(source.find(views, listener))
    return known
