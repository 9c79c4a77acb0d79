"""Scenes of a finished calibration beside new ones: observations are adjusted together again.

This is what `Workbench.add_finished` needs. What was measured, and the start values of its poses
and points, enter as they are; nothing is measured anew, so the raws are not needed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from lifcal.arrays import IntArray
from lifcal.bundle import Adjustment, CameraPositions, Distances
from lifcal.bundle.problem import LENGTHS, Problem
from lifcal.reconstruction import Observations, Reconstruction
from lifcal.scale import ScaleKnowledge


@dataclass(frozen=True, eq=False)
class Finished:
    """What a finished calibration measured, and where its poses and points are now.

    Parameters
    ----------
    problem : Problem
        With all observations, and what is known of lengths.
    state : Reconstruction
        Camera, poses and points; replaced as adjustments go on.
    camera_values : mapping of str to float
        f_L, b_L0 and B in mm.
    """

    problem: Problem
    state: Reconstruction
    camera_values: dict[str, float]

    @classmethod
    def of(cls, found: Adjustment) -> Finished:
        """Take over an adjustment."""
        p = found.camera.parameters
        values = (p.focal_length_mm, p.lens_to_array_mm, p.array_to_sensor_mm)
        return cls(found.problem, found.state, dict(zip(LENGTHS, values, strict=True)))

    @property
    def n_views(self) -> int:
        """Number of its views."""
        return len(self.state.rotations)

    @property
    def known(self) -> ScaleKnowledge:
        """What it knows of f_L, b_L0 and B beforehand; its distances are told apart from these."""
        fixed = {n: self.camera_values[n] for n in LENGTHS if n in self.problem.fixed}
        priors = {n: self.problem.priors[n] for n in LENGTHS if n in self.problem.priors}
        return ScaleKnowledge(fixed=fixed, priors=priors)

    def join_observations(
        self, new: Observations, first_view: int, first_point: int
    ) -> Observations:
        """Return new observations and these, whose views and points are numbered from there on."""
        old = self.problem.observations
        return Observations.from_arrays(
            np.concatenate([new.view_ids[new.view_indices], old.view_indices + first_view]),
            np.concatenate([new.point_ids[new.point_indices], old.point_indices + first_point]),
            np.concatenate([new.centers_raw_px, old.centers_raw_px]),
            np.concatenate([new.points_raw_px, old.points_raw_px]),
            covariances_px2=np.concatenate([new.covariances_px2, old.covariances_px2]),
            lens_types=np.concatenate([new.lens_types, old.lens_types]),
        )

    def join_state(self, new: Reconstruction) -> Reconstruction:
        """Return poses and points of both, at the scale of the new one."""
        old = self.state.scaled(new.array.beta_mm / self.state.array.beta_mm)
        return new.with_scene(
            np.concatenate([new.rotations, old.rotations]),
            np.concatenate([new.translations_mm, old.translations_mm]),
            np.concatenate([new.points_world_mm, old.points_world_mm]),
        )

    def join_distances(self, new: Distances | None, first_point: int) -> Distances | None:
        """Return the known distances of both."""
        old = self.problem.distances
        if old is None:
            return new
        ends = self.problem.distance_points + first_point
        if ends.shape[2] == 1:
            ends = np.repeat(ends, 4, axis=2)
        moved = replace(old, point_ids=ends)
        if new is None:
            return moved
        return Distances(
            np.concatenate([new.point_ids, moved.point_ids]),
            np.concatenate([new.lengths_mm, moved.lengths_mm]),
            np.concatenate([new.sigmas_mm, moved.sigmas_mm]),
            new.source if new.source == old.source else f"{new.source} and {old.source}",
            new.labels + moved.labels,
        )

    def join_positions(
        self, new: CameraPositions | None, first_view: int
    ) -> CameraPositions | None:
        """Return the known camera positions of both."""
        if self.problem.positions is None:
            return new
        old = replace(self.problem.positions, view_ids=self.problem.position_views + first_view)
        return old if new is None else new.join(old)

    def follow(self, found: Reconstruction, views: IntArray, points: IntArray) -> Finished:
        """Return it with poses and points of an adjustment, whose views and points are these."""
        rotations, shifts = self.state.rotations.copy(), self.state.translations_mm.copy()
        places = self.state.points_world_mm * (found.array.beta_mm / self.state.array.beta_mm)
        shifts *= found.array.beta_mm / self.state.array.beta_mm
        n_views, n_points = len(views), len(points)
        rotations[views] = found.rotations[len(found.rotations) - n_views :]
        shifts[views] = found.translations_mm[len(found.rotations) - n_views :]
        places[points] = found.points_world_mm[len(found.points_world_mm) - n_points :]
        camera = replace(self.state, array=found.array, distortion=found.distortion)
        return replace(self, state=camera.with_scene(rotations, shifts, places))
