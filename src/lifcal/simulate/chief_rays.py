"""Exact chief rays: where points appear behind the middle of each micro lens.

Plain geometry, with none of the camera model's formulas: straight rays, a thin main lens with its
errors, and the center of a thin micro lens, which bends no ray.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lifcal.arrays import FloatArray, IntArray, check_array, check_indices
from lifcal.errors import InputError
from lifcal.simulate.optics import Optics

_MOST_STEPS = 30
"""Newton steps; rays through lenses with mild errors need three to five."""
_CLOSE_MM = 1e-10
"""A ray is found when it passes the point within this distance, relative to its depth in metres:
far below a thousandth of a pixel on any sensor."""
_STEP_MM = 1e-4
"""Step of the differences for the derivative on the main lens. The map is nearly linear, so that
its size matters little."""


def trace_chief_rays(
    optics: Optics, points_cam_mm: npt.ArrayLike, lenses: npt.ArrayLike
) -> FloatArray:
    """Trace the ray from each point through the center of the micro lens beside it.

    Parameters
    ----------
    optics : Optics
    points_cam_mm : (n, 3) float64
    lenses : (n,) int
        Index into the camera's grid. Whether light passes the stop and the lens sees the point is
        not asked.

    Returns
    -------
    (n, 2) float64
        Recorded raw coordinates, after the camera's distortion. NaN for points not in front of the
        camera and where no ray was found.
    """
    points = check_array(points_cam_mm, "points_cam_mm", (None, 3))
    indices: IntArray = check_indices(lenses, "lenses", len(optics.micro_lenses.centers_mm))
    if len(points) != len(indices):
        raise InputError(f"{len(points)} points for {len(indices)} lenses")
    centers = optics.micro_lenses.centers_mm[indices]
    distances = optics.micro_lenses.distances_mm[indices, None]
    depth = np.where(points[:, 2:] > 0.0, points[:, 2:], np.nan)

    def miss(main_mm: FloatArray) -> FloatArray:
        """Return how far the ray through a place of the main lens passes from the point."""
        slopes = leave_main_lens(optics, (centers - main_mm) / distances, main_mm)
        # The image side is turned: a ray leaves the main lens at minus the place on it.
        return np.asarray(depth * slopes - main_mm - points[:, :2])

    main = np.zeros_like(centers)
    missed = miss(main)
    for _ in range(_MOST_STEPS):
        if not np.nanmax(np.abs(missed) / depth, initial=0.0) > 1e-3 * _CLOSE_MM:
            break
        columns = [(miss(main + step) - missed) / _STEP_MM for step in np.eye(2) * _STEP_MM]
        jacobian = np.stack(columns, axis=2)
        determinant = np.linalg.det(jacobian)
        jacobian[~(np.abs(determinant) > 0.0)] = np.nan
        main = main - np.linalg.solve(jacobian, missed[..., None])[..., 0]
        missed = miss(main)
    found = (np.abs(missed) <= _CLOSE_MM * depth).all(axis=1)
    p, camera = optics.camera.parameters, optics.camera
    total = p.lens_to_array_mm + p.array_to_sensor_mm
    landed = main + (centers - main) * (total / distances)
    landed[~found] = np.nan
    c = camera.principal_point_px
    return camera.distortion.distort(c + landed / camera.pixel_size_mm, c)


def leave_main_lens(optics: Optics, inner: FloatArray, main_mm: FloatArray) -> FloatArray:
    """Return the slopes in object space of rays that meet the main lens from behind.

    Parameters
    ----------
    optics : Optics
    inner : (n, 2) float64
        Slope of each ray between the main lens and the micro lens.
    main_mm : (n, 2) float64
        Where it meets the main lens.
    """
    errors = optics.imperfections
    power = (
        1.0 + errors.field_curvature * np.sum(inner**2, axis=1, keepdims=True)
    ) / optics.camera.parameters.focal_length_mm
    distance = errors.object_distortion_distance_mm
    back = 0.0 if distance is None else main_mm / distance
    slopes = inner + power * main_mm - back
    square = np.sum(slopes**2, axis=1, keepdims=True)
    stretch = 1.0 - errors.object_distortion_a * square + errors.object_distortion_b * square**2
    return np.asarray(stretch * slopes + back)
