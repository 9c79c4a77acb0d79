"""Rigid transforms and trajectories."""

from lifcal.geometry.rigid import RigidTransform
from lifcal.geometry.trajectory import Trajectory, read_timestamps, read_tum, write_tum

__all__ = ["RigidTransform", "Trajectory", "read_timestamps", "read_tum", "write_tum"]
