"""Exact chief rays: images of points through the center of each micro lens.

The computation uses straight rays, a thin main lens with its errors, and the center of a thin micro
lens, which does not deflect rays. It uses none of the camera model's formulas.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lifcal.arrays import FloatArray, IntArray, check_array, check_indices
from lifcal.errors import InputError
from lifcal.simulate.imperfections import Imperfections
from lifcal.simulate.optics import Optics

_MOST_STEPS = 30
"""Largest number of Newton steps; rays through lenses with mild errors need three to five."""
_SMALL_SLOPE = 1e-13
"""A ray is found if its slope differs from that toward the point by less than this. In a micro
image, it is far less than a millionth of a pixel; but it is larger than rounding errors."""
_STEP_MM = 1e-4
"""Step of the finite differences that give the derivative by the position on the main lens. The
function is nearly linear, so the size of the step matters little."""


def trace_chief_rays(
    optics: Optics, points_cam_mm: npt.ArrayLike, lenses: npt.ArrayLike
) -> FloatArray:
    """Trace the ray from each point through the center of the micro lens beside it.

    Parameters
    ----------
    optics : Optics
    points_cam_mm : (n, 3) float64
    lenses : (n,) int
        Index into the camera's grid. It is not checked whether the light passes the stop, and
        whether the lens sees the point.

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
    focal_lengths = optics.main_focal_lengths_mm[indices, None]
    depth = np.where(points[:, 2:] > 0.0, points[:, 2:], np.nan)

    def miss(main_mm: FloatArray) -> FloatArray:
        """Return the difference of slopes by which a ray through the main lens misses the point."""
        slopes = (centers - main_mm) / distances + main_mm / focal_lengths
        slopes = _distort_slopes(slopes, main_mm, optics.imperfections)
        # The image side is rotated by 180 degrees, so on the object side the ray leaves the main
        # lens at minus the position on it.
        return np.asarray(slopes - (main_mm + points[:, :2]) / depth)

    main = np.zeros_like(centers)
    missed = miss(main)
    for _ in range(_MOST_STEPS):
        if not np.nanmax(np.abs(missed), initial=0.0) > _SMALL_SLOPE:
            break
        by_x, by_y = ((miss(main + step) - missed) / _STEP_MM for step in np.eye(2) * _STEP_MM)
        determinant = by_x[:, 0] * by_y[:, 1] - by_x[:, 1] * by_y[:, 0]
        determinant = np.where(determinant == 0.0, np.nan, determinant)
        main[:, 0] -= (by_y[:, 1] * missed[:, 0] - by_y[:, 0] * missed[:, 1]) / determinant
        main[:, 1] -= (by_x[:, 0] * missed[:, 1] - by_x[:, 1] * missed[:, 0]) / determinant
        missed = miss(main)
    found = (np.abs(missed) <= _SMALL_SLOPE).all(axis=1)
    p, camera = optics.camera.parameters, optics.camera
    total = p.lens_to_array_mm + p.array_to_sensor_mm
    landed = main + (centers - main) * (total / distances)
    landed[~found] = np.nan
    c = camera.principal_point_px
    return camera.distortion.distort(c + landed / camera.pixel_size_mm, c)


def _distort_slopes(slopes: FloatArray, main_mm: FloatArray, errors: Imperfections) -> FloatArray:
    """Return the slopes of rays, (n, 2), behind a main lens that distorts in object space."""
    distance = errors.object_distortion_distance_mm
    back = np.zeros_like(main_mm) if distance is None else main_mm / distance
    toward = slopes - back
    square = np.sum(toward**2, axis=1, keepdims=True)
    stretch = 1.0 - errors.object_distortion_a * square + errors.object_distortion_b * square**2
    return np.asarray(stretch * toward + back)
