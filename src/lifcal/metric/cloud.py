"""Point clouds of single frames, and fusion of the clouds of several frames with known poses."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lifcal.arrays import Float32Array, FloatArray, IntArray, read_only
from lifcal.camera import PinholeIntrinsics
from lifcal.errors import InputError
from lifcal.geometry import RigidTransform
from lifcal.metric import _kernels
from lifcal.metric.depth import compute_steps

_NORMAL_HALF = 4
"""Half-width in pixels of the window to which a normal is fitted. Smaller windows are noisier,
larger ones round off edges."""
_MOST_CELLS = 1 << 20
"""Largest number of cells along an axis in each direction, so that the indices of three axes fit
into one number of 63 bits."""


@dataclass(frozen=True, eq=False)
class PointCloud:
    """Points with color, normals and standard deviation, one row each.

    Parameters
    ----------
    points_mm : (n, 3) float32
    colors : (n, 3) uint8
        Red, green, blue.
    normals : (n, 3) float32
        Unit vectors that face the camera; NaN where not known.
    sigma_mm : (n,) float32
        Standard deviation along the viewing direction.
    """

    points_mm: Float32Array
    colors: npt.NDArray[np.uint8]
    normals: Float32Array
    sigma_mm: Float32Array

    def __len__(self) -> int:
        return len(self.points_mm)

    def transform(self, target_from_source: RigidTransform) -> PointCloud:
        """Return the cloud in another frame."""
        turned = self.normals @ target_from_source.rotation.T.astype(np.float32)
        moved = target_from_source.apply(self.points_mm.astype(np.float64))
        return PointCloud(
            moved.astype(np.float32), self.colors, turned.astype(np.float32), self.sigma_mm
        )


def make_cloud(
    depth_mm: Float32Array,
    sigma_mm: Float32Array,
    image: Float32Array,
    intrinsics: PinholeIntrinsics,
) -> PointCloud:
    """Return the known pixels of a depth map as points in camera coordinates.

    Parameters
    ----------
    depth_mm, sigma_mm : (rows, cols) float32
        NaN where unknown.
    image : (rows, cols) or (rows, cols, 3) float32
        Brightness from 0 to 1.
    intrinsics : PinholeIntrinsics
    """
    k = intrinsics
    normals = np.empty((*depth_mm.shape, 3), np.float32)
    step = compute_steps(depth_mm, sigma_mm)
    pinhole = _kernels.Pinhole(k.fx, k.fy, k.cx, k.cy)
    _kernels.fit_normals(depth_mm, step, pinhole, _NORMAL_HALF, normals)
    rows, cols = np.nonzero(np.isfinite(depth_mm))
    z = depth_mm[rows, cols]
    points = np.empty((len(z), 3), np.float32)
    points[:, 0] = (cols - k.cx) / k.fx * z
    points[:, 1] = (rows - k.cy) / k.fy * z
    points[:, 2] = z
    colors = to_8_bit(image[rows, cols])
    if colors.ndim == 1:
        colors = np.repeat(colors[:, None], 3, axis=1)
    return PointCloud(points, colors, normals[rows, cols], sigma_mm[rows, cols])


def to_8_bit(image: Float32Array) -> npt.NDArray[np.uint8]:
    """Return values from 0 to 1 as 8-bit numbers from 0 to 255."""
    stored: npt.NDArray[np.uint8] = np.clip(np.rint(image * 255.0), 0, 255).astype(np.uint8)
    return stored


def check_voxel(voxel_mm: float) -> None:
    """Raise InputError if the side of a voxel is not a positive length."""
    if not 1e-3 <= voxel_mm <= 1e6:
        raise InputError(f"voxel size is {voxel_mm} mm, needs a positive length")


class CloudFusion:
    """Fuses clouds on a grid of cubes (voxels).

    Each cube gets one point, the mean of the points in it with weights 1 / sigma^2. Pixels of one
    frame have common errors, and so have frames that were confirmed by each other
    (`confirm_depth`). Therefore the sigma of the mean is that of a single point.

    Parameters
    ----------
    voxel_mm : float
        Side of a cube.
    """

    def __init__(self, voxel_mm: float) -> None:
        check_voxel(voxel_mm)
        self.voxel_mm = voxel_mm
        self._keys: IntArray = np.empty(0, np.int64)
        self._sums: FloatArray = np.empty((0, 10))
        self._counts: FloatArray = np.empty(0)

    def add(self, cloud_world: PointCloud) -> None:
        """Add a cloud in world coordinates; points without a sigma are left out."""
        cells = np.floor(cloud_world.points_mm.astype(np.float64) / self.voxel_mm)
        good = (cloud_world.sigma_mm > 0.0) & (np.abs(cells) < _MOST_CELLS).all(axis=1)
        cells = cells[good].astype(np.int64) + _MOST_CELLS
        keys = (cells[:, 0] << 42) | (cells[:, 1] << 21) | cells[:, 2]
        weight = 1.0 / cloud_world.sigma_mm[good].astype(np.float64) ** 2
        values = np.column_stack(
            [
                np.ones(len(weight)),
                cloud_world.points_mm[good],
                cloud_world.colors[good],
                np.nan_to_num(cloud_world.normals[good]),
            ]
        )
        sums = values * weight[:, None]
        # Each cloud counts once in a cube, however many of its points are in it.
        own, place, counts = np.unique(keys, return_inverse=True, return_counts=True)
        fresh = np.zeros((len(own), sums.shape[1]))
        for column in range(sums.shape[1]):
            fresh[:, column] = np.bincount(place, sums[:, column], len(own)) / counts
        union, back = np.unique(np.concatenate([self._keys, own]), return_inverse=True)
        total = np.zeros((len(union), sums.shape[1]))
        total[back[: len(self._keys)]] = self._sums
        total[back[len(self._keys) :]] += fresh
        clouds = np.zeros(len(union))
        clouds[back[: len(self._keys)]] = self._counts
        clouds[back[len(self._keys) :]] += 1.0
        self._keys, self._sums, self._counts = union, total, clouds

    def result(self) -> PointCloud:
        """Return the cloud so far."""
        weight = self._sums[:, :1]
        means = self._sums / np.where(weight > 0.0, weight, 1.0)
        lengths = np.linalg.norm(means[:, 7:10], axis=1, keepdims=True)
        normals = np.where(lengths > 0.0, means[:, 7:10] / np.maximum(lengths, 1e-12), np.nan)
        return PointCloud(
            read_only(means[:, 1:4].astype(np.float32)),
            read_only(np.rint(means[:, 4:7]).astype(np.uint8)),
            read_only(normals.astype(np.float32)),
            read_only(np.sqrt(self._counts / weight[:, 0]).astype(np.float32)),
        )
