"""Comparison of scene points with true depth maps."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.ndimage import distance_transform_edt, map_coordinates

from lifcal.arrays import BoolArray, FloatArray
from lifcal.camera import PinholeIntrinsics
from lifcal.errors import DataError
from lifcal.files import read_json
from lifcal.geometry import RigidTransform
from lifcal.imaging.files import read_image

_REACH_PX = 2.0
"""Largest distance, in px, from a point to the nearest pixel with a known depth."""


@dataclass(frozen=True)
class DepthComparison:
    """Errors of the depths of points, in the views that saw them, against true depth maps.

    Parameters
    ----------
    n_pairs, n_views : int
        Number of (view, point) pairs compared, and number of views that have such pairs.
    median_abs_percent : float
        Median of |z - z_true| / z_true.
    median_percent : float
        Median of (z - z_true) / z_true; it is negative if points are too near.
    """

    n_pairs: int
    n_views: int
    median_abs_percent: float
    median_percent: float


def read_pinhole(path: Path) -> PinholeIntrinsics:
    """Read truth/pinhole.json."""
    content = read_json(path)
    try:
        return PinholeIntrinsics(
            int(content["width"]),
            int(content["height"]),
            *(float(content[name]) for name in ("fx", "fy", "cx", "cy")),
        )
    except (KeyError, TypeError, ValueError):
        raise DataError(f"{path}: needs numbers width, height, fx, fy, cx, cy") from None


def measure_depth_errors(
    depth_path: Path,
    pinhole: PinholeIntrinsics,
    true_cam_from_world: RigidTransform,
    points_world_mm: FloatArray,
) -> FloatArray:
    """Return (z - z_true) / z_true of points in one view.

    The true depth is interpolated linearly in 1/z, which is exact on planes; next to unknown pixels
    it is the depth of the nearest known pixel.

    Parameters
    ----------
    depth_path : Path
        File of the true depth in mm, NaN where there is no surface.
    pinhole : PinholeIntrinsics
    true_cam_from_world : RigidTransform
    points_world_mm : (n, 3) float64
        Points in the true world.

    Returns
    -------
    (m,) float64
        Relative errors of the m <= n points that fall on the map, within two pixels of a known
        depth.
    """
    image = read_image(depth_path)
    if image.shape != (pinhole.height, pinhole.width):
        raise DataError(
            f"{depth_path}: has the shape {image.shape}, but pinhole.json says "
            f"{pinhole.width} x {pinhole.height}"
        )
    depth = image.astype(np.float64)
    missing: BoolArray = ~(depth > 0.0)
    if missing.all():
        return np.empty(0)
    points = true_cam_from_world.apply(points_world_mm)
    points = points[points[:, 2] > 0.0]
    col = pinhole.fx * points[:, 0] / points[:, 2] + pinhole.cx
    row = pinhole.fy * points[:, 1] / points[:, 2] + pinhole.cy
    inside = (abs(2 * col - pinhole.width + 1) < pinhole.width) & (
        abs(2 * row - pinhole.height + 1) < pinhole.height
    )
    col, row, z = col[inside], row[inside], points[inside, 2]
    inverse = np.where(missing, np.nan, 1.0 / np.where(missing, 1.0, depth))
    true = 1.0 / map_coordinates(inverse, [row, col], order=1, mode="nearest")
    if missing.any():
        distance, (rows, cols) = distance_transform_edt(missing, return_indices=True)
        at = (np.rint(row).astype(int), np.rint(col).astype(int))
        nearest = np.where(distance[at] <= _REACH_PX, depth[rows[at], cols[at]], np.nan)
        true = np.where(np.isfinite(true), true, nearest)
    errors: FloatArray = (z - true) / true
    return errors[np.isfinite(errors)]
