"""The result of structure from motion: poses, points and tracks."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from lifcal.arrays import BoolArray, FloatArray, IntArray, check_array
from lifcal.camera import BrownDistortion
from lifcal.diagnostics import Finding
from lifcal.errors import InputError
from lifcal.geometry import RigidTransform


@dataclass(frozen=True, eq=False)
class SfmModel:
    """Poses, points and tracks in a frame of arbitrary scale.

    Parameters
    ----------
    focal_px : float
        F of the virtual image, in raw pixels.
    principal_px : (2,) float64
        The principal point c, in raw pixels.
    distortion : BrownDistortion
        Distortion with one radial term.
    cam_from_sfm : tuple of RigidTransform or None
        The pose of each image; None if it was not registered. A pose transforms points of the scene
        to the camera's frame (x right, y down, z along the view), so poses "camera to world" have
        to be inverted.
    points_sfm : (n_points, 3) float64
    point_indices, view_indices : (n_tracked,) int64
        The point and the image of each track entry, sorted by point and image. All these images
        have a pose, and a point appears at most once in an image.
    points_virt_px : (n_tracked, 2) float64
        Position of the point in the recorded virtual image, in raw pixels with centers at integers.
        A pixel x of an image of the size `scale` relative to the raw is `(x + 0.5) / scale - 0.5`
        here.
    mean_error_px : float
        Mean reprojection error, in pixels of the images.
    findings : tuple of Finding
        Findings about the estimate of F, and about matches that were left out.

    Raises
    ------
    InputError
        If tracks and poses do not fit each other.
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

    def __post_init__(self) -> None:
        poses = tuple(self.cam_from_sfm)
        for pose in poses:
            if pose is not None and not isinstance(pose, RigidTransform):
                raise InputError(
                    f"cam_from_sfm has a {type(pose).__name__}, needs RigidTransform or None"
                )
        object.__setattr__(self, "cam_from_sfm", poses)
        for name, shape in (("principal_px", (2,)), ("points_sfm", (None, 3))):
            object.__setattr__(self, name, check_array(getattr(self, name), name, shape))
        points = _check_indices(self.point_indices, "point_indices", len(self.points_sfm))
        views = _check_indices(self.view_indices, "view_indices", len(poses))
        places = check_array(self.points_virt_px, "points_virt_px", (len(points), 2))
        if len(views) != len(points):
            raise InputError(f"{len(views)} view_indices for {len(points)} point_indices")
        lost = ~self.registered[views]
        if lost.any():
            raise InputError(
                f"a point was found in image {views[lost][0]}, which has no pose: leave out the "
                "tracks of images that are not registered"
            )
        step = np.diff(points)
        if not ((step > 0) | ((step == 0) & (np.diff(views) > 0))).all():
            raise InputError(
                "tracks are not sorted by point and image, or have a point twice in an image: "
                "sort by numpy.lexsort((view_indices, point_indices))"
            )
        object.__setattr__(self, "point_indices", points)
        object.__setattr__(self, "view_indices", views)
        object.__setattr__(self, "points_virt_px", places)

    def spread(self, places: IntArray, count: int) -> SfmModel:
        """Return the model of `count` images, of which those at ascending `places` are its own."""
        poses: list[RigidTransform | None] = [None] * count
        for place, pose in zip(places.tolist(), self.cam_from_sfm, strict=True):
            poses[place] = pose
        return replace(self, cam_from_sfm=tuple(poses), view_indices=places[self.view_indices])

    @property
    def registered(self) -> BoolArray:
        """Whether each image has a pose, (n_images,)."""
        return np.array([pose is not None for pose in self.cam_from_sfm], np.bool_)


def _check_indices(values: IntArray, name: str, count: int) -> IntArray:
    """Return indices as int64; InputError if one of them is not below `count`."""
    found = np.asarray(values)
    if found.ndim != 1 or (found.size and not np.issubdtype(found.dtype, np.integer)):
        raise InputError(f"{name} is {found.dtype} {found.shape}, needs (n,) integers")
    if found.size and not 0 <= found.min() <= found.max() < count:
        raise InputError(f"{name} has {found.min()} to {found.max()}, needs 0 to {count - 1}")
    return found.astype(np.int64, copy=False)
