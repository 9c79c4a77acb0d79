"""Scale from known camera positions."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lifcal.arrays import FloatArray, IntArray
from lifcal.bundle import CameraPositions
from lifcal.errors import DataError, InputError
from lifcal.files import digest_files
from lifcal.geometry import read_tum
from lifcal.listener import Listener
from lifcal.scale.source import ScaleKnowledge, ScaleViews

_SAME_TIME = 1e-3
"""Largest difference, in s, between the times of a frame and of its pose, because times in text
files are rounded."""


@dataclass(frozen=True)
class KnownTrajectory:
    """Camera positions that were measured by other means.

    Parameters
    ----------
    path : Path
        File of poses in the TUM format. The timestamp of a pose is that of its frame, or the
        frame's index.
    sigma_mm : float
        Standard deviation of each position along each axis.
    """

    path: Path
    sigma_mm: float = 1.0

    def __post_init__(self) -> None:
        if not (np.isfinite(self.sigma_mm) and self.sigma_mm > 0.0):
            raise InputError(f"trajectory_sigma_mm is {self.sigma_mm}, needs a positive number")
        if not self.path.is_file():
            raise DataError(f"{self.path}: no such file")

    def describe(self) -> dict[str, Any]:
        """Return the values on which the result depends."""
        content = digest_files({"trajectory": self.path})
        return {"source": "trajectory", "sigma_mm": self.sigma_mm, **content}

    def find(self, views: ScaleViews, listener: Listener) -> ScaleKnowledge:
        """Read the positions of the views."""
        del listener
        positions = read_positions(self.path, views.frame_indices, views.times, self.sigma_mm)
        return ScaleKnowledge(positions=positions)


def read_positions(
    path: Path, frame_indices: IntArray, times: FloatArray, sigma_mm: float
) -> CameraPositions:
    """Return the positions of the registered frames with the given times, from a TUM file.

    Raises
    ------
    DataError
        If fewer than three frames have a position.
    """
    trajectory = read_tum(path)
    positions = trajectory.positions_world_mm()
    ids, places = [], []
    for index, time in zip(frame_indices.tolist(), times.tolist(), strict=True):
        off = np.abs(trajectory.timestamps - time)
        if off.min(initial=np.inf) < _SAME_TIME:
            ids.append(index)
            places.append(positions[int(np.argmin(off))])
    if len(ids) < 3:
        raise DataError(
            f"{path}: has the position of {len(ids)} registered frames (need 3); without "
            "--timestamps a frame's time is its index in sorted order"
        )
    try:
        return CameraPositions(
            np.array(ids, np.int64), np.array(places), np.full(len(ids), sigma_mm)
        )
    except InputError as error:
        raise DataError(f"{path}: {error}") from None
