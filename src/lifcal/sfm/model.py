"""What structure from motion finds: poses, points and tracks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lifcal.arrays import BoolArray, FloatArray, IntArray
from lifcal.camera import BrownDistortion
from lifcal.diagnostics import Finding
from lifcal.geometry import RigidTransform


@dataclass(frozen=True, eq=False)
class SfmModel:
    """Poses, points and tracks in a frame of arbitrary scale.

    Parameters
    ----------
    focal_px : float
        F of the virtual image, in raw pixels.
    principal_px : (2,) float64
        c, raw pixels.
    distortion : BrownDistortion
        One radial term.
    cam_from_sfm : tuple of RigidTransform or None
        One for each image; None where it was not registered.
    points_sfm : (n_points, 3) float64
    point_indices, view_indices : (n_tracked,) int64
        Which point was found in which image, sorted by point and image.
    points_virt_px : (n_tracked, 2) float64
        Where, in the recorded virtual image, raw pixels.
    mean_error_px : float
        Mean reprojection error, pixels of the images.
    findings : tuple of Finding
        What is good to know about how F was found, and about what was left out.
    """

    focal_px: float
    principal_px: FloatArray
    distortion: BrownDistortion
    cam_from_sfm: tuple[RigidTransform | None, ...]
    points_sfm: FloatArray
    point_indices: IntArray
    view_indices: IntArray
    points_virt_px: FloatArray
    mean_error_px: float
    findings: tuple[Finding, ...] = ()

    @property
    def registered(self) -> BoolArray:
        """Which images have a pose, (n_images,)."""
        return np.array([pose is not None for pose in self.cam_from_sfm], np.bool_)
