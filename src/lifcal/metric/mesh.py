"""A mesh from several frames with known poses, by Open3D's truncated signed distance function."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from lifcal.arrays import Float32Array
from lifcal.camera import PinholeIntrinsics
from lifcal.errors import MissingDependencyError
from lifcal.geometry import RigidTransform
from lifcal.metric.cloud import PointCloud, check_voxel

_TRUNCATION = 8.0
"""Distance from a surface, in voxels, up to which signed distances are kept; Open3D's own
default."""
_BLOCK = 16
"""Number of voxels along each side of a block; Open3D's own default."""
_BLOCKS = 10_000
"""Initial number of blocks; Open3D allocates more when it needs them."""
_LEAST_WEIGHT = 0.5
"""Smallest weight of a voxel that is part of the mesh. One frame has the weight 1, so a single
frame is enough."""


class MeshFusion:
    """Fuses depth maps into a mesh.

    Parameters
    ----------
    intrinsics : PinholeIntrinsics
    voxel_mm : float

    Raises
    ------
    MissingDependencyError
        If Open3D is not installed; the extra `lifcal[mesh]` installs it.
    """

    def __init__(self, intrinsics: PinholeIntrinsics, voxel_mm: float) -> None:
        check_voxel(voxel_mm)
        self._o3d: Any = import_open3d()
        core, k = self._o3d.core, intrinsics
        self._matrix = core.Tensor(
            np.array([[k.fx, 0.0, k.cx], [0.0, k.fy, k.cy], [0.0, 0.0, 1.0]])
        )
        self._grid = self._o3d.t.geometry.VoxelBlockGrid(
            attr_names=("tsdf", "weight", "color"),
            attr_dtypes=(core.float32,) * 3,
            attr_channels=(1, 1, 3),
            voxel_size=voxel_mm / 1000.0,
            block_resolution=_BLOCK,
            block_count=_BLOCKS,
            device=core.Device("CPU:0"),
        )

    def add(
        self,
        depth_mm: Float32Array,
        image: npt.NDArray[np.uint8],
        world_from_cam: RigidTransform,
    ) -> None:
        """Add a frame: depth (rows, cols), NaN where unknown, and a gray or color image."""
        metres = np.nan_to_num(depth_mm * np.float32(0.001)).astype(np.float32)
        color = image if image.ndim == 3 else np.repeat(image[:, :, None], 3, axis=2)
        cam_from_world = world_from_cam.inverse()
        matrix = np.eye(4)
        matrix[:3, :3] = cam_from_world.rotation
        matrix[:3, 3] = cam_from_world.translation_mm / 1000.0
        depth = self._o3d.t.geometry.Image(np.ascontiguousarray(metres))
        light = self._o3d.t.geometry.Image((color / 255.0).astype(np.float32))
        pose = self._o3d.core.Tensor(matrix)
        ends = (1.0, float(metres.max()) + 1.0)  # units per meter, farthest depth
        blocks = self._grid.compute_unique_block_coordinates(
            depth, self._matrix, pose, *ends, _TRUNCATION
        )
        self._grid.integrate(blocks, depth, light, self._matrix, pose, *ends, _TRUNCATION)

    def result(self) -> tuple[PointCloud, npt.NDArray[np.int32]]:
        """Return corners in world coordinates (sigma is NaN) and triangles (n, 3)."""
        mesh = self._grid.extract_triangle_mesh(_LEAST_WEIGHT).to_legacy()
        mesh.compute_vertex_normals()
        corners = np.asarray(mesh.vertices, np.float64)
        colors = np.clip(np.rint(255.0 * np.asarray(mesh.vertex_colors)), 0, 255)
        cloud = PointCloud(
            (1000.0 * corners).astype(np.float32),
            colors.astype(np.uint8),
            np.asarray(mesh.vertex_normals).astype(np.float32),
            np.full(len(corners), np.nan, np.float32),
        )
        return cloud, np.asarray(mesh.triangles).astype(np.int32)


def import_open3d() -> ModuleType:
    """Return Open3D, or raise MissingDependencyError."""
    try:
        import open3d
    except ImportError as error:
        raise MissingDependencyError(
            f"this needs Open3D: pip install 'lifcal[mesh]' ({error})"
        ) from None
    module: ModuleType = open3d
    return module
