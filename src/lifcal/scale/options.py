"""Options of the metric scale, for the command line and `lifcal.calibrate` alike."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from lifcal.distances import PickedDistance, find_name
from lifcal.errors import InputError
from lifcal.imaging.markers import DICTIONARY
from lifcal.scale.markers import Markers
from lifcal.scale.optics import EarlierOptics, KnownOptics
from lifcal.scale.picked import PickedPoints
from lifcal.scale.source import ScaleSource
from lifcal.scale.trajectory import KnownTrajectory


@dataclass(frozen=True, eq=False)
class ScaleOptions:
    """Known lengths. Without any of them, the calibration has no metric scale.

    Parameters
    ----------
    marker_size_mm : float or None
        Side of the black squares of the markers.
    marker_sigma_mm : float or None
        Standard deviation of the side; None stands for 0.2 % of it.
    marker_distances : tuple of (int, int, float, float)
        Ids of two markers, the distance between their centers and its standard deviation in mm.
    dictionary : str
        ArUco dictionary of the printed markers.
    distances : tuple of PickedDistance
    trajectory : Path or None
        File of known poses in the TUM format. The timestamp of a pose is that of its frame, or the
        frame's index.
    trajectory_sigma_mm : float
        Standard deviation of the known positions along each axis.
    length_error : float
        Relative error that marker sides and picked distances have in common, for example because
        they come from one print or were measured with one ruler. It increases the sigmas of all
        lengths.
    known : mapping of str to float
        f_L and B in mm, or B alone, which are held fixed as exact (recalibration).
    earlier : EarlierOptics or None
        f_L and B of an earlier calibration, with their covariance (recalibration).
    others : tuple of ScaleSource
        Further sources: any objects with the methods of `ScaleSource`.
    """

    marker_size_mm: float | None = None
    marker_sigma_mm: float | None = None
    marker_distances: tuple[tuple[int, int, float, float], ...] = ()
    dictionary: str = DICTIONARY
    distances: tuple[PickedDistance, ...] = ()
    trajectory: Path | None = None
    trajectory_sigma_mm: float = 1.0
    length_error: float = 0.001
    known: Mapping[str, float] = field(default_factory=dict)
    earlier: EarlierOptics | None = None
    others: tuple[ScaleSource, ...] = ()

    def __post_init__(self) -> None:
        self.list_sources()  # each source checks its arguments
        if not (math.isfinite(self.trajectory_sigma_mm) and self.trajectory_sigma_mm > 0.0):
            raise InputError(
                f"trajectory_sigma_mm is {self.trajectory_sigma_mm}, needs a positive number"
            )
        if not (math.isfinite(self.length_error) and self.length_error >= 0.0):
            raise InputError(f"length_error is {self.length_error}, needs 0 or a positive number")
        if self.known and (self.uses_markers or self.distances or self.trajectory is not None):
            raise InputError(
                "f_L and B that are known exactly give the scale: leave out markers, distances and "
                "the trajectory, or give --known camera.json, which has sigmas"
            )
        if self.known and self.earlier is not None:
            raise InputError("give f_L and B as numbers or by a camera file, not both")

    def list_sources(self) -> list[ScaleSource]:
        """Return a source for each of the known lengths."""
        markers = Markers(
            self.marker_size_mm, self.marker_sigma_mm, self.marker_distances, self.dictionary
        )
        sources: list[ScaleSource] = []
        if self.uses_markers:
            sources.append(markers)
        if self.distances:
            sources.append(PickedPoints(self.distances))
        if self.trajectory is not None:
            sources.append(KnownTrajectory(self.trajectory, self.trajectory_sigma_mm))
        if self.known:
            sources.append(KnownOptics(self.known))
        if self.earlier is not None:
            sources.append(self.earlier)
        return [*sources, *self.others]

    def select_picked(self, names: Sequence[str], frames: Collection[str]) -> ScaleOptions:
        """Return the same with the distances that were picked in some frames only.

        Parameters
        ----------
        names : sequence of str
            Names of all frames.
        frames : collection of str
            Names of those that are meant.
        """
        kept = tuple(each for each in self.distances if find_name(each.frame, names) in frames)
        return replace(self, distances=kept)

    @property
    def uses_markers(self) -> bool:
        """Whether markers have to be detected."""
        return self.marker_size_mm is not None or bool(self.marker_distances)
