"""Trajectories, and the TUM text format that evo and most SLAM systems read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lifcal.arrays import FloatArray, check_array, read_only
from lifcal.errors import DataError, InputError
from lifcal.files import read_bytes, write_text
from lifcal.geometry.rigid import RigidTransform

_LEAST_STEP_S = 1e-6
"""Smallest difference of two times in s: files store six decimals, so smaller ones would vanish."""
_MOST_SECONDS = 1e11
"""Largest valid time in s since 1970, in the year 5138. Present times in ms or us are larger."""


@dataclass(frozen=True, eq=False)
class Trajectory:
    """Camera poses in time.

    Parameters
    ----------
    timestamps : (n_poses,) float64
        Seconds, or the index of the frame.
    world_from_cam : tuple of RigidTransform
        One pose for each timestamp.
    """

    timestamps: FloatArray
    world_from_cam: tuple[RigidTransform, ...]

    def __post_init__(self) -> None:
        timestamps = check_array(self.timestamps, "timestamps", (None,), finite=True)
        poses = tuple(self.world_from_cam)
        if len(timestamps) != len(poses):
            raise InputError(f"{len(timestamps)} timestamps for {len(poses)} poses")
        object.__setattr__(self, "timestamps", read_only(timestamps.copy()))
        object.__setattr__(self, "world_from_cam", poses)

    @classmethod
    def from_poses(cls, world_from_cam: Sequence[RigidTransform]) -> Trajectory:
        """Build from poses alone; the timestamp is the index."""
        return cls(np.arange(len(world_from_cam), dtype=np.float64), tuple(world_from_cam))

    def positions_world_mm(self) -> FloatArray:
        """Return where the camera was, (n_poses, 3)."""
        return np.array([pose.translation_mm for pose in self.world_from_cam]).reshape(-1, 3)

    def length_mm(self) -> float:
        """Return the length of the path through the positions."""
        steps = np.diff(self.positions_world_mm(), axis=0)
        return float(np.linalg.norm(steps, axis=1).sum())


def write_tum(
    path: str | Path,
    trajectory: Trajectory,
    labels: Sequence[str] = (),
    *,
    metric: bool = True,
) -> None:
    """Write one line `t tx ty tz qx qy qz qw` for each pose: camera to world, in metres.

    Parameters
    ----------
    path : str or Path
    trajectory : Trajectory
    labels : sequence of str
        A text for each pose, for example the name of its raw file; empty for none. Each text is
        written as a comment line (`# ...`) before its pose; readers of TUM files skip such lines.
    metric : bool
        False if the scale of the positions is not known; the first line says so.
    """
    if labels and len(labels) != len(trajectory.world_from_cam):
        raise InputError(f"{len(labels)} labels for {len(trajectory.world_from_cam)} poses")
    unit = "metres" if metric else "no scale"
    lines = [f"# timestamp tx ty tz qx qy qz qw (camera to world, {unit})"]
    for index, (timestamp, pose) in enumerate(
        zip(trajectory.timestamps, trajectory.world_from_cam, strict=True)
    ):
        if labels:
            # Labels are written in ASCII, because some readers do not open the file as UTF-8.
            label = labels[index].encode("ascii", "backslashreplace").decode()
            lines.append(f"# {' '.join(label.split())}")
        numbers = [*(pose.translation_mm / 1000.0), *pose.quaternion_xyzw()]
        lines.append(f"{timestamp:.6f} " + " ".join(f"{number:.12f}" for number in numbers))
    write_text(Path(path), "\n".join(lines) + "\n")


def read_tum(path: str | Path) -> Trajectory:
    """Read a trajectory in the TUM format; a DataError names the line that is wrong."""
    timestamps: list[float] = []
    poses: list[RigidTransform] = []
    text = read_bytes(Path(path)).decode("utf-8", errors="replace")
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            t, tx, ty, tz, qx, qy, qz, qw = (float(word) for word in line.split())
            pose = RigidTransform.from_quaternion([qx, qy, qz, qw], np.array([tx, ty, tz]) * 1000.0)
        except ValueError:
            raise DataError(
                f"{path}: line {number}: needs 8 numbers 't tx ty tz qx qy qz qw', found {line!r}"
            ) from None
        timestamps.append(t)
        poses.append(pose)
    return Trajectory(np.array(timestamps), tuple(poses))


def read_timestamps(path: Path) -> list[float]:
    """Read ascending times, the first word of each line; a DataError names a line that is wrong."""
    found: list[float] = []
    text = read_bytes(path).decode("utf-8", errors="replace")
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.split("#")[0].split()
        if not words:
            continue
        try:
            found.append(float(words[0]))
        except ValueError:
            found.append(math.nan)
        if not math.isfinite(found[-1]):
            raise DataError(f"{path}: line {number}: needs a number, found {line!r}")
        if found[-1] > _MOST_SECONDS:
            raise DataError(
                f"{path}: line {number}: {words[0]} s is later than the year 5000: needs seconds"
            )
        if len(found) > 1 and found[-1] < found[-2] + _LEAST_STEP_S:
            raise DataError(f"{path}: line {number}: {words[0]} is not later than the line before")
    return found
