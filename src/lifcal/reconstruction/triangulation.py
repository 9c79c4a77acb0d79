"""Points from where several views show them."""

from __future__ import annotations

import numpy as np

from lifcal.arrays import FloatArray, IntArray
from lifcal.reconstruction.reconstruction import Reconstruction


def triangulate(
    reconstruction: Reconstruction, views: IntArray, points_virt_px: FloatArray
) -> FloatArray:
    """Return the point nearest to the rays through places in virtual images, (3,).

    Parameters
    ----------
    reconstruction : Reconstruction
        Its points have no part in it.
    views : (n,) int64
        Two or more.
    points_virt_px : (n, 2) float64
        Where the recorded virtual images of these views show the point, raw px.
    """
    principal, focal = reconstruction.principal_px, reconstruction.array.focal_px
    ideal = reconstruction.distortion.undistort(points_virt_px, principal)
    rays = np.column_stack([(ideal - principal) / focal, np.ones(len(views))])
    rotations, shifts = reconstruction.rotations[views], reconstruction.translations_mm[views]
    rays = np.einsum("nji,nj->ni", rotations, rays)
    origins = -np.einsum("nji,nj->ni", rotations, shifts)
    weights = np.ones(len(views))
    point = np.zeros(3)
    for _ in range(3):
        # x - o minus its part along the ray, over the distance: an angle
        direction = rays / np.linalg.norm(rays, axis=1, keepdims=True)
        across = np.eye(3) - direction[:, :, None] * direction[:, None, :]
        matrix = np.einsum("n,nij->ij", weights, across)
        point = np.linalg.solve(matrix, np.einsum("n,nij,nj->i", weights, across, origins))
        weights = 1.0 / np.maximum(np.sum((point - origins) ** 2, axis=1), 1e-12)
    return point
