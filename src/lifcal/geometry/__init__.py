"""Rigid and similarity transforms, trajectories."""

from lifcal.geometry.rigid import RigidTransform
from lifcal.geometry.similarity import SimilarityTransform
from lifcal.geometry.trajectory import Trajectory, read_timestamps, read_tum, write_tum

__all__ = [
    "RigidTransform",
    "SimilarityTransform",
    "Trajectory",
    "read_timestamps",
    "read_tum",
    "write_tum",
]
