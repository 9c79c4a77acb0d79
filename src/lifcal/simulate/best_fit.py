"""The best approximation of simulated optics by the camera model.

The camera model does not contain a main lens that distorts in object space, an aperture stop away
from the main lens, or a curved field. The best result that a calibration of such optics can have is
the camera whose projections are nearest to the exact chief rays. This module fits that camera, with
the true recorded micro-image centers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from lifcal.arrays import FloatArray
from lifcal.camera import ArrayTilt, BrownDistortion, PinholeArray, PlenopticCamera
from lifcal.errors import EstimationError, InputError
from lifcal.geometry import RigidTransform
from lifcal.simulate.chief_rays import trace_chief_rays
from lifcal.simulate.optics import Optics

_LENSES_PER_POINT = 8
"""Number of micro images of a point that are used; more would take time and add no information."""
_USED_RADIUS = 0.45
"""Largest distance of a used point from its micro-image center, in pitches: the rim is dark.
"""
_MOST_STEPS = 30
_SMALL_STEP_PX = 1e-9
"""The fit has converged when a step changes no projection by more than this."""
_UNDETERMINED = 1e-5
"""Combinations of parameters whose singular value is below this fraction of the largest one (with
all columns scaled to the same length) keep their physical values. One view of a flat scene, for
example, does not determine them (1e-7). Ordinary recordings have 1e-3."""


@dataclass(frozen=True, eq=False)
class BestFit:
    """The camera model fitted to exact chief rays.

    Parameters
    ----------
    camera : PlenopticCamera
        The fitted camera, with the true recorded centers, Brown's distortion and, unless left out,
        a tilt.
    rms_px : float
        Root mean square residual over all coordinates.
    worst_px : float
        The largest distance between a chief ray and its projection.
    n_observations : int
    """

    camera: PlenopticCamera
    rms_px: float
    worst_px: float
    n_observations: int


def fit_model(
    optics: Optics, views: Sequence[FloatArray], *, with_tilt: bool = True, seed: int = 0
) -> BestFit:
    """Fit the camera model to exact chief rays by least squares in the micro images.

    The points are held fixed, and the pose of each view is estimated, because a calibration defines
    the camera frame only by its poses.

    Parameters
    ----------
    optics : Optics
    views : sequence of (n_points, 3) float64
        Points of each view in camera coordinates, in mm.
    with_tilt : bool
        Whether the model has a tilt of the array.
    seed : int
        Seed of the choice of micro lenses for each point.

    Raises
    ------
    EstimationError
        If too few micro images see the points, or the fit does not converge.
    """
    view_of, points, lenses, seen = _observe(optics, views, np.random.default_rng(seed))
    if len(seen) < 100:
        raise EstimationError(
            f"only {len(seen)} micro-image points to fit the camera model to (need 100). Give "
            "points in the camera's field of view",
            stage="best fit",
            evidence={"observations": len(seen)},
        )
    camera = optics.camera
    if not isinstance(camera.distortion, BrownDistortion):
        camera = replace(camera, distortion=BrownDistortion())
    camera = replace(camera, tilt=(camera.tilt or ArrayTilt(0.0, 0.0)) if with_tilt else None)
    poses = [RigidTransform.identity() for _ in views]
    n_camera = len(camera.parameter_names)
    for _ in range(_MOST_STEPS):
        moved = _move(points, view_of, poses)
        found = camera.project_with_jacobian(moved, lenses)
        jacobian = np.zeros((len(seen), 2, n_camera + 6 * len(views)))
        jacobian[:, :, :5] = found.by_intrinsics
        jacobian[:, :, 5:10] = found.by_distortion
        if with_tilt:
            jacobian[:, :, 10:12] = found.by_tilt
        columns = n_camera + 6 * view_of[:, None] + np.arange(6)
        jacobian[np.arange(len(seen))[:, None], :, columns] = found.by_pose.transpose(0, 2, 1)
        rows = jacobian.reshape(2 * len(seen), -1)
        # Scale the columns, because their lengths differ by twenty orders of magnitude.
        scale = np.linalg.norm(rows, axis=0)
        residual = (seen - found.points_raw_px).ravel()
        step = np.linalg.lstsq(rows / scale, residual, rcond=_UNDETERMINED)[0] / scale
        camera = _step_camera(camera, step[:n_camera])
        poses = [
            pose.step(delta)
            for pose, delta in zip(poses, step[n_camera:].reshape(-1, 6), strict=True)
        ]
        if not np.abs(rows @ step).max() > _SMALL_STEP_PX:
            break
    else:
        raise EstimationError(
            f"the fit of the camera model to chief rays did not converge in {_MOST_STEPS} steps. "
            "Use milder imperfections",
            stage="best fit",
            evidence={"rms_px": float(np.sqrt(np.mean(residual**2)))},
        )
    left = seen - camera.project(_move(points, view_of, poses), lenses)
    return BestFit(
        camera,
        float(np.sqrt(np.mean(left**2))),
        float(np.hypot(left[:, 0], left[:, 1]).max()),
        len(left),
    )


def _observe(
    optics: Optics, views: Sequence[FloatArray], rng: np.random.Generator
) -> tuple[np.ndarray, FloatArray, np.ndarray, FloatArray]:
    """Return view, point, lens and recorded position of micro-image points on exact chief rays."""
    if not views:
        raise InputError("no views to fit the camera model to")
    grid = optics.camera.grid
    view_of = np.repeat(np.arange(len(views)), [len(points) for points in views])
    points = np.concatenate(views)
    virtual = optics.camera.virtual_from_cam(points)
    # Imperfections move a point by a few pixels in the virtual image, so search a little farther.
    groups = grid.index.within(
        virtual[:, :2], np.abs(virtual[:, 2]) * (_USED_RADIUS + 0.2) * grid.pitch_px
    )
    owners, lenses = groups.owners(), groups.indices
    places = trace_chief_rays(optics, points[owners], lenses)
    away = np.linalg.norm(places - grid.centers_raw_px[lenses], axis=1)
    good = np.flatnonzero(away <= _USED_RADIUS * grid.pitch_px)
    # Keep the first few micro images of each point, in random order.
    good = rng.permutation(good)
    good = good[np.argsort(owners[good], kind="stable")]
    begins = np.searchsorted(owners[good], owners[good])
    good = good[np.arange(len(good)) - begins < _LENSES_PER_POINT]
    return view_of[owners[good]], points[owners[good]], lenses[good], places[good]


def _move(points: FloatArray, view_of: np.ndarray, poses: Sequence[RigidTransform]) -> FloatArray:
    rotations = np.stack([pose.rotation for pose in poses])[view_of]
    shifts = np.stack([pose.translation_mm for pose in poses])[view_of]
    return np.asarray(np.einsum("nij,nj->ni", rotations, points) + shifts)


def _step_camera(camera: PlenopticCamera, step: FloatArray) -> PlenopticCamera:
    array = PinholeArray(*(camera.array.as_vector() + step[:5]))
    tilt = camera.tilt
    if tilt is not None:
        tilt = ArrayTilt(*(tilt.as_vector() + step[10:]))
    return replace(
        camera,
        parameters=array.to_physical(camera.pixel_size_mm),
        distortion=camera.distortion.with_parameters(camera.distortion.parameters + step[5:10]),
        tilt=tilt,
    )
