"""Rigid transforms, named after the frames they join: `cam_from_world @ world_from_board`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.spatial.transform import Rotation

from lifcal.arrays import FloatArray, check_array, read_only
from lifcal.errors import InputError


@dataclass(frozen=True, eq=False)
class RigidTransform:
    """A rotation followed by a translation: `x_target = rotation @ x_source + translation_mm`.

    Parameters
    ----------
    rotation : (3, 3) float64
        Orthonormal, determinant +1 (checked to 1e-6).
    translation_mm : (3,) float64
    """

    rotation: FloatArray
    translation_mm: FloatArray

    def __post_init__(self) -> None:
        rotation = check_array(self.rotation, "rotation", (3, 3), finite=True)
        translation = check_array(self.translation_mm, "translation_mm", (3,), finite=True)
        defect = float(np.abs(rotation @ rotation.T - np.eye(3)).max())
        if defect > 1e-6 or np.linalg.det(rotation) < 0:
            raise InputError(f"rotation is not a rotation matrix: R R^T is off by {defect:.2g}")
        object.__setattr__(self, "rotation", read_only(rotation.copy()))
        object.__setattr__(self, "translation_mm", read_only(translation.copy()))

    @classmethod
    def identity(cls) -> RigidTransform:
        """Return the transform that changes nothing."""
        return cls(np.eye(3), np.zeros(3))

    @classmethod
    def from_rotation_vector(
        cls, rotation_vector: npt.ArrayLike, translation_mm: npt.ArrayLike
    ) -> RigidTransform:
        """Build from a rotation vector (axis times angle in radians) and a translation."""
        vector = check_array(rotation_vector, "rotation_vector", (3,), finite=True)
        translation = check_array(translation_mm, "translation_mm", (3,), finite=True)
        return cls(Rotation.from_rotvec(vector).as_matrix(), translation)

    @classmethod
    def from_quaternion(
        cls, quaternion_xyzw: npt.ArrayLike, translation_mm: npt.ArrayLike
    ) -> RigidTransform:
        """Build from a quaternion (x, y, z, w) of any length but zero, and a translation."""
        quaternion = check_array(quaternion_xyzw, "quaternion_xyzw", (4,), finite=True)
        if not np.linalg.norm(quaternion) > 0:
            raise InputError("quaternion_xyzw is zero")
        translation = check_array(translation_mm, "translation_mm", (3,), finite=True)
        return cls(Rotation.from_quat(quaternion).as_matrix(), translation)

    def quaternion_xyzw(self) -> FloatArray:
        """Return the rotation as a unit quaternion (x, y, z, w) with w >= 0."""
        quaternion: FloatArray = Rotation.from_matrix(self.rotation).as_quat(canonical=True)
        return quaternion

    def apply(self, points: npt.ArrayLike) -> FloatArray:
        """Transform points.

        Parameters
        ----------
        points : (n_points, 3) float64
            Points in the source frame. NaN stays NaN.

        Returns
        -------
        (n_points, 3) float64
            The points in the target frame.
        """
        array = check_array(points, "points", (None, 3))
        transformed: FloatArray = array @ self.rotation.T + self.translation_mm
        return transformed

    def inverse(self) -> RigidTransform:
        """Return the inverse transform."""
        return RigidTransform(self.rotation.T, -self.rotation.T @ self.translation_mm)

    def __matmul__(self, other: RigidTransform) -> RigidTransform:
        return RigidTransform(
            self.rotation @ other.rotation,
            self.rotation @ other.translation_mm + self.translation_mm,
        )

    def step(self, delta: npt.ArrayLike) -> RigidTransform:
        """Take a step on the manifold of poses: rotate by `delta[:3]`, then shift by `delta[3:]`.

        A transformed point `x` becomes `exp(delta[:3]) x + delta[3:]`, so its derivative at
        `delta = 0` is `[-[x]_x | I]`. All pose derivatives in lifcal are with respect to this step.

        Parameters
        ----------
        delta : (6,) float64
            Rotation vector in rad, translation in mm.
        """
        array = check_array(delta, "delta", (6,), finite=True)
        turn = Rotation.from_rotvec(array[:3]).as_matrix()
        return RigidTransform(turn @ self.rotation, turn @ self.translation_mm + array[3:])
