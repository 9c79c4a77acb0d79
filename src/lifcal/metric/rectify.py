"""The raw image without lens distortion, and the micro images in it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from lifcal.arrays import Float32Array, read_only
from lifcal.camera import MicroLensGrid, NoDistortion, PlenopticCamera
from lifcal.imaging.resample import resample
from lifcal.virtual import LensOptics, Workspace

_BAND = 256
"""Number of rows of the map that are computed at a time, which bounds the memory."""
_NOWHERE = -1000.0
"""Coordinate that is outside of every image, for pixels that were not recorded."""


@dataclass(frozen=True, eq=False)
class Rectification:
    """Resamples recorded raws to undistorted coordinates. It is computed once for a camera.

    Parameters
    ----------
    grid : MicroLensGrid
        Grid with undistorted micro-image centers. Micro images whose used part is not completely on
        the sensor are left out, because their missing part could be inside the undistorted image.
    map_x, map_y : (height, width) float32
        Recorded position of each undistorted pixel.
    workspace : Workspace or None
        If given, it keeps the rectified images, and `apply` returns the same arrays every time.
    """

    grid: MicroLensGrid
    map_x: Float32Array
    map_y: Float32Array
    workspace: Workspace | None = None

    @classmethod
    def from_camera(
        cls, camera: PlenopticCamera, workspace: Workspace | None = None
    ) -> Rectification | None:
        """Return the rectification of a camera, None if it has no distortion."""
        if isinstance(camera.distortion, NoDistortion) or not camera.distortion.parameters.any():
            return None
        width, height = camera.image_size
        map_x, map_y = (np.empty((height, width), np.float32) for _ in range(2))
        for first in range(0, height, _BAND):
            rows, cols = np.mgrid[first : min(first + _BAND, height), :width]
            places = np.column_stack([cols.ravel(), rows.ravel()]).astype(np.float64)
            recorded = camera.distortion.distort(places, camera.principal_point_px)
            # Beyond the fold radius the distorted radius decreases again, and nothing was recorded.
            radius = np.hypot(*(places - camera.principal_point_px).T)
            recorded[radius > camera.distortion.fold_radius_px] = _NOWHERE
            map_x[first : first + _BAND] = recorded[:, 0].reshape(rows.shape)
            map_y[first : first + _BAND] = recorded[:, 1].reshape(rows.shape)
        return cls(_undistort_grid(camera), read_only(map_x), read_only(map_y), workspace)

    def apply(self, image: Float32Array) -> Float32Array:
        """Return a (height, width) or (height, width, 3) image without distortion."""
        out = None
        if self.workspace is not None:
            out = self.workspace.take(f"rectified {image.ndim}", image.shape, np.float32)
        return resample(image, self.map_x, self.map_y, out)


def _undistort_grid(camera: PlenopticCamera) -> MicroLensGrid:
    grid = camera.grid
    recorded, centers = grid.centers_raw_px, camera.image_centers_und_px
    used = LensOptics.from_grid(grid).radius_px
    whole = (
        np.isfinite(centers).all(axis=1)
        & (recorded >= used).all(axis=1)
        & (recorded <= np.array(grid.image_size) - 1.0 - used).all(axis=1)
    )
    return replace(
        grid,
        centers_raw_px=centers[whole],
        lens_types=grid.lens_types[whole],
        lattice=None,
        indices_qr=None,
        bend=None,
        deviations_px=None,
    )
