"""Trajectories against the truth, by evo (imported here and nowhere else)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lifcal.arrays import FloatArray
from lifcal.errors import MissingDependencyError
from lifcal.geometry import RigidTransform

_SMALLEST_SPREAD = 1e-3
"""Second extent of the positions relative to the first, below which they lie on a line."""


@dataclass(frozen=True)
class TrajectoryComparison:
    """Camera positions and orientations against the truth, after alignment.

    Parameters
    ----------
    n_frames : int
        With an estimated and a true pose.
    alignment : str
        'SE3', or 'Sim3' for a calibration without scale.
    translation_rmse_mm, rotation_rmse_deg : float
        evo's absolute pose error.
    length_mm : float
        Of the true path.
    scale : float
        Factor of the Sim3 alignment, which takes the estimated trajectory to the true one.
    """

    n_frames: int
    alignment: str
    translation_rmse_mm: float
    rotation_rmse_deg: float
    length_mm: float
    scale: float


@dataclass(frozen=True, eq=False)
class Alignment:
    """Estimated world to true world: `scale * rotation @ x + translation_mm`.

    Parameters
    ----------
    rotation : (3, 3) float64
    translation_mm : (3,) float64
    scale : float
    """

    rotation: FloatArray
    translation_mm: FloatArray
    scale: float

    def apply(self, points_mm: FloatArray) -> FloatArray:
        """Return points (n, 3) in the true world."""
        moved: FloatArray = self.scale * points_mm @ self.rotation.T + self.translation_mm
        return moved


def can_align(true: Sequence[RigidTransform]) -> bool:
    """Return whether positions fix a frame: three or more, not on one line."""
    if len(true) < 3:
        return False
    positions = np.array([pose.translation_mm for pose in true])
    spread = np.linalg.svd(positions - positions.mean(axis=0), compute_uv=False)
    return bool(spread[1] > _SMALLEST_SPREAD * spread[0])


def compare_trajectories(
    estimated: Sequence[RigidTransform], true: Sequence[RigidTransform], *, metric: bool
) -> tuple[TrajectoryComparison, Alignment]:
    """Align `world_from_cam` poses by their positions and compare them one by one.

    Parameters
    ----------
    estimated, true : sequence of RigidTransform
        Of the same frames; `can_align(true)`.
    metric : bool
        False: the scale is aligned too.

    Raises
    ------
    MissingDependencyError
        If evo is not installed.
    """
    try:
        from evo.core import metrics, trajectory
    except ImportError:
        raise MissingDependencyError(
            "comparing trajectories needs the package evo, which is not installed: pip install evo"
        ) from None
    reference = trajectory.PosePath3D(poses_se3=[_matrix(pose) for pose in true])
    moved = trajectory.PosePath3D(poses_se3=[_matrix(pose) for pose in estimated])
    scaled = trajectory.PosePath3D(poses_se3=[_matrix(pose) for pose in estimated])
    _, _, scale = scaled.align(reference, correct_scale=True)
    if metric:
        rotation, translation, used = moved.align(reference)
    else:
        rotation, translation, used = moved.align(reference, correct_scale=True)
    errors = []
    for relation in (
        metrics.PoseRelation.translation_part,
        metrics.PoseRelation.rotation_angle_deg,
    ):
        error = metrics.APE(relation)
        error.process_data((reference, moved))
        errors.append(float(error.get_statistic(metrics.StatisticsType.rmse)))
    comparison = TrajectoryComparison(
        len(true),
        "SE3" if metric else "Sim3",
        errors[0],
        errors[1],
        float(reference.path_length),
        float(scale),
    )
    return comparison, Alignment(np.asarray(rotation), np.asarray(translation), float(used))


def _matrix(pose: RigidTransform) -> FloatArray:
    matrix = np.eye(4)
    matrix[:3, :3] = pose.rotation
    matrix[:3, 3] = pose.translation_mm
    return matrix
