"""Comparison of trajectories with the truth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.spatial.transform import Rotation

from lifcal.arrays import FloatArray
from lifcal.geometry import RigidTransform, SimilarityTransform

_SMALLEST_SPREAD = 1e-3
"""Ratio of the second to the first extent of the positions below which they are taken to be on a
line."""


@dataclass(frozen=True)
class TrajectoryComparison:
    """Errors of camera positions and orientations after alignment with the truth.

    Parameters
    ----------
    n_frames : int
        Number of frames with an estimated and a true pose.
    alignment : str
        'SE3', or 'Sim3' for a calibration without scale.
    translation_rmse_mm, rotation_rmse_deg : float
        Root mean square of the absolute pose error.
    length_mm : float
        Length of the true path.
    scale : float
        Scale factor of the Sim3 alignment of the estimated to the true trajectory.
    """

    n_frames: int
    alignment: str
    translation_rmse_mm: float
    rotation_rmse_deg: float
    length_mm: float
    scale: float


def can_align(true: Sequence[RigidTransform]) -> bool:
    """Return whether positions determine an alignment: three or more, not on one line."""
    if len(true) < 3:
        return False
    positions = np.array([pose.translation_mm for pose in true])
    spread = np.linalg.svd(positions - positions.mean(axis=0), compute_uv=False)
    return bool(spread[1] > _SMALLEST_SPREAD * spread[0])


def compare_trajectories(
    estimated: Sequence[RigidTransform], true: Sequence[RigidTransform], *, metric: bool
) -> tuple[TrajectoryComparison, SimilarityTransform]:
    """Align `world_from_cam` poses by their positions and compare them one by one.

    The errors are those that evo and the SLAM literature call absolute pose error: the distance of
    positions, and the angle of the rotation between orientations.

    Parameters
    ----------
    estimated, true : sequence of RigidTransform
        Poses of the same frames, for which `can_align(true)` holds.
    metric : bool
        Whether the estimated poses are metric; if not, the scale is aligned too.

    Returns
    -------
    comparison : TrajectoryComparison
    alignment : SimilarityTransform
        Transform from the estimated world to the true one.
    """
    found, wanted = (
        np.array([pose.translation_mm for pose in poses]) for poses in (estimated, true)
    )
    scaled = SimilarityTransform.align(found, wanted, with_scale=True)
    alignment = SimilarityTransform.align(found, wanted) if metric else scaled
    distances = np.linalg.norm(alignment.apply(found) - wanted, axis=1)
    turns = [
        pose.rotation.T @ alignment.rotation @ other.rotation
        for other, pose in zip(estimated, true, strict=True)
    ]
    angles = np.degrees(Rotation.from_matrix(turns).magnitude())
    comparison = TrajectoryComparison(
        len(true),
        "SE3" if metric else "Sim3",
        _rms(distances),
        _rms(angles),
        float(np.linalg.norm(np.diff(wanted, axis=0), axis=1).sum()),
        scaled.scale,
    )
    return comparison, alignment


def _rms(values: FloatArray) -> float:
    return float(np.sqrt(np.mean(values**2)))
