"""Camera, poses and points in one record, and the projection of the points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
from scipy.spatial.transform import Rotation

from lifcal.arrays import FloatArray, IntArray, check_array, read_only
from lifcal.camera import ArrayTilt, Distortion, PinholeArray
from lifcal.errors import InputError
from lifcal.geometry import RigidTransform


@dataclass(frozen=True, eq=False)
class Reconstruction:
    """A camera, its poses and the points of a scene: all unknowns of an adjustment.

    Lengths are in millimeters once the scale is known, and have an arbitrary scale before.

    Parameters
    ----------
    array : PinholeArray
    distortion : Distortion
    rotations : (n_views, 3, 3) float64
    translations_mm : (n_views, 3) float64
        Rotation and translation of `cam_from_world` for each view.
    points_world_mm : (n_points, 3) float64
    focus : (0,) or (1 + n_types,) float64
        Strength g of the focus-vignetting term, and 1 / u_T of each lens type; empty if the term is
        not used.
    tilt : (0,) or (2,) float64
        t_x and t_y of the micro-lens array; empty if the array is taken as parallel to the sensor.
    """

    array: PinholeArray
    distortion: Distortion
    rotations: FloatArray
    translations_mm: FloatArray
    points_world_mm: FloatArray
    focus: FloatArray = field(default_factory=lambda: np.zeros(0))
    tilt: FloatArray = field(default_factory=lambda: np.zeros(0))

    def __post_init__(self) -> None:
        rotations = check_array(self.rotations, "rotations", (None, 3, 3), finite=True)
        shifts = check_array(
            self.translations_mm, "translations_mm", (len(rotations), 3), finite=True
        )
        points = check_array(self.points_world_mm, "points_world_mm", (None, 3), finite=True)
        focus = check_array(self.focus, "focus", (None,), finite=True)
        tilt = check_array(self.tilt, "tilt", (None,), finite=True)
        if len(tilt) not in (0, 2):
            raise InputError(f"tilt has {len(tilt)} numbers, needs none or two")
        object.__setattr__(self, "focus", read_only(focus))
        object.__setattr__(self, "tilt", read_only(tilt))
        object.__setattr__(self, "rotations", read_only(rotations))
        object.__setattr__(self, "translations_mm", read_only(shifts))
        object.__setattr__(self, "points_world_mm", read_only(points))

    @classmethod
    def from_poses(
        cls,
        array: PinholeArray,
        distortion: Distortion,
        cam_from_world: Sequence[RigidTransform],
        points_world_mm: npt.ArrayLike,
    ) -> Reconstruction:
        """Build a reconstruction whose poses are given as rigid transforms."""
        return cls(
            array,
            distortion,
            np.array([pose.rotation for pose in cam_from_world]).reshape(-1, 3, 3),
            np.array([pose.translation_mm for pose in cam_from_world]).reshape(-1, 3),
            np.asarray(points_world_mm, np.float64),
        )

    @property
    def cam_from_world(self) -> tuple[RigidTransform, ...]:
        """The poses as transforms."""
        return tuple(map(RigidTransform, self.rotations, self.translations_mm))

    @property
    def focus_strength(self) -> float:
        """Strength of the focus-vignetting term; 0 if the term is not used."""
        return float(self.focus[0]) if len(self.focus) else 0.0

    @property
    def focal_planes(self) -> FloatArray:
        """Focal plane u_T of each lens type; empty if the focus-vignetting term is not used."""
        return np.asarray(1.0 / self.focus[1:])

    @property
    def array_tilt(self) -> ArrayTilt | None:
        """The tilt in the form that a camera holds; None if the array is taken as parallel."""
        return ArrayTilt(*self.tilt.tolist()) if len(self.tilt) else None

    @property
    def principal_px(self) -> FloatArray:
        """The principal point c, (2,)."""
        return np.array([self.array.principal_x_px, self.array.principal_y_px])

    def cam_points(self, points: IntArray, views: IntArray) -> FloatArray:
        """Return points in the camera frames of the given views, (n, 3)."""
        return np.asarray(
            np.einsum("nij,nj->ni", self.rotations[views], self.points_world_mm[points])
            + self.translations_mm[views]
        )

    def virtual_points(self, points_cam: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the positions of points in the recorded virtual image, (n, 2), and their u, (n,).

        If the array is tilted, u is the virtual depth at which the lenses around that position see
        the point. The results are NaN for points behind the camera.
        """
        z = np.where(points_cam[:, 2] > 0.0, points_cam[:, 2], np.nan)
        principal = self.principal_px
        ideal = principal + self.array.focal_px * points_cam[:, :2] / z[:, None]
        u = self.array.alpha + self.array.beta_mm / z
        return self.distortion.distort(ideal, principal), 1.0 + (u - 1.0) / (1.0 + self.tau(ideal))

    def tau(self, points_und_px: FloatArray) -> FloatArray:
        """Return the relative change of B_k / b_k by the tilt at undistorted image points, (n,)."""
        tilt = self.array_tilt
        if tilt is None:
            return np.zeros(len(points_und_px))
        return tilt.at(points_und_px, self.principal_px)

    def with_focus(self, focal_planes: FloatArray | None, strength: float = 0.0) -> Reconstruction:
        """Return the reconstruction with a focus-vignetting term for focal planes u_T.

        If the focal planes are None, the term is removed.
        """
        if focal_planes is None:
            return replace(self, focus=np.zeros(0))
        return replace(self, focus=np.concatenate([[strength], 1.0 / focal_planes]))

    def positions_world_mm(self) -> FloatArray:
        """Return the position of the camera in each view, (n_views, 3)."""
        return np.asarray(-np.einsum("vji,vj->vi", self.rotations, self.translations_mm))

    def as_vector(self) -> FloatArray:
        """Return the vector F, c_x, c_y, alpha, beta, distortion, tilt, focus-vignetting term."""
        return np.concatenate(
            [self.array.as_vector(), self.distortion.parameters, self.tilt, self.focus]
        )

    def with_intrinsics(self, values: FloatArray) -> Reconstruction:
        """Return the reconstruction with other intrinsics, in the order of `as_vector`."""
        tilt = 5 + len(self.distortion.parameters)
        focus = tilt + len(self.tilt)
        return replace(
            self,
            array=PinholeArray.from_vector(values[:5]),
            distortion=self.distortion.with_parameters(values[5:tilt]),
            tilt=values[tilt:focus],
            focus=values[focus:],
        )

    def step(self, intrinsics: FloatArray, poses: FloatArray, points: FloatArray) -> Reconstruction:
        """Apply a step to all unknowns: poses by `RigidTransform.step`, the others by addition."""
        turns = Rotation.from_rotvec(poses[:, :3])
        rotations = (turns * Rotation.from_matrix(self.rotations.copy())).as_matrix()
        moved = replace(
            self,
            rotations=rotations,
            translations_mm=turns.apply(self.translations_mm.copy()) + poses[:, 3:],
            points_world_mm=self.points_world_mm + points,
        )
        return moved.with_intrinsics(self.as_vector() + intrinsics)

    def with_scene(
        self, rotations: FloatArray, translations_mm: FloatArray, points_world_mm: FloatArray
    ) -> Reconstruction:
        """Return the same camera with other poses and points."""
        return replace(
            self,
            rotations=rotations,
            translations_mm=translations_mm,
            points_world_mm=points_world_mm,
        )

    def scaled(self, factor: float) -> Reconstruction:
        """Return the reconstruction of a scene `factor` times as large, with the same images."""
        return replace(
            self,
            array=replace(self.array, beta_mm=self.array.beta_mm * factor),
            translations_mm=self.translations_mm * factor,
            points_world_mm=self.points_world_mm * factor,
        )

    def moved(self, new_from_old: RigidTransform) -> Reconstruction:
        """Return the same scene in another world frame."""
        old_from_new = new_from_old.inverse()
        return replace(
            self,
            rotations=self.rotations @ old_from_new.rotation,
            translations_mm=self.rotations @ old_from_new.translation_mm + self.translations_mm,
            points_world_mm=new_from_old.apply(self.points_world_mm),
        )
