"""Triangulation of scene points from their positions in several views."""

from __future__ import annotations

import numpy as np

from lifcal.arrays import FloatArray, IntArray
from lifcal.reconstruction.reconstruction import Reconstruction


def triangulate(
    reconstruction: Reconstruction, views: IntArray, points_virt_px: FloatArray
) -> FloatArray:
    """Return the point nearest to the rays through its positions in virtual images, (3,).

    Parameters
    ----------
    reconstruction : Reconstruction
        Camera and poses; the points in it are not used.
    views : (n,) int64
        Indices of two or more views.
    points_virt_px : (n, 2) float64
        Position of the point in the recorded virtual images of these views, in raw px.
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
        # The residual is the component of x - o across the ray, divided by the distance: an angle.
        direction = rays / np.linalg.norm(rays, axis=1, keepdims=True)
        across = np.eye(3) - direction[:, :, None] * direction[:, None, :]
        matrix = np.einsum("n,nij->ij", weights, across)
        point = np.linalg.solve(matrix, np.einsum("n,nij,nj->i", weights, across, origins))
        weights = 1.0 / np.maximum(np.sum((point - origins) ** 2, axis=1), 1e-12)
    return point
