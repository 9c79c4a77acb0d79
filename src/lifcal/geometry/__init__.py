"""Rigid and similarity transforms, and trajectories in the TUM format.

`RigidTransform` and `SimilarityTransform` map points between frames; `Trajectory` holds poses with
their timestamps; `read_tum`, `write_tum` and `read_timestamps` read and write them.
"""

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
