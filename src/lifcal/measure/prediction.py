"""Prediction of the positions of points in micro images, and of the view of the surface there."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lifcal.arrays import BoolArray, FloatArray, IntArray
from lifcal.camera import MicroLensGrid
from lifcal.reconstruction import Reconstruction


@dataclass(frozen=True, eq=False)
class MicroImages:
    """Micro images that see a point, sorted by track.

    Parameters
    ----------
    tracks, views, lenses : (n,) int64
    places_px : (n, 2) float64
        Position of the point, in recorded raw px, if the micro lens were a pinhole.
    jacobians : (n, 2, 2) float64
        Derivative of the raw position with respect to texture coordinates in px, for a surface that
        faces the reference view.
    tilts : (n, 2) float64
        Derivative of the raw position with respect to the surface's slope times texture px.
    rhos : (n,) float64
        Inverse virtual depth 1 / u of the point in the view.
    offsets_px : (n,) float64
        Distance from the micro-image center.
    """

    tracks: IntArray
    views: IntArray
    lenses: IntArray
    places_px: FloatArray
    jacobians: FloatArray
    tilts: FloatArray
    rhos: FloatArray
    offsets_px: FloatArray

    def __len__(self) -> int:
        return len(self.tracks)

    def select(self, keep: BoolArray | IntArray) -> MicroImages:
        """Return the selected micro images."""
        return MicroImages(
            self.tracks[keep],
            self.views[keep],
            self.lenses[keep],
            self.places_px[keep],
            self.jacobians[keep],
            self.tilts[keep],
            self.rhos[keep],
            self.offsets_px[keep],
        )


def compute_tangents(geometry: Reconstruction, points: IntArray, views: IntArray) -> FloatArray:
    """Return the derivatives of world points with respect to texture coordinates, (n, 3, 3).

    The first two columns are the displacements for one px of the texture along x and y, on a
    surface that faces the reference view. The third is the displacement that a slope of 1 adds (a
    relative change of z of 1 per px).

    Parameters
    ----------
    geometry : Reconstruction
    points, views : (n,) int64
        Points and their reference views.
    """
    cam = geometry.cam_points(points, views)
    u = geometry.array.alpha + geometry.array.beta_mm / cam[:, 2]
    tangents = np.zeros((len(points), 3, 3))
    # A pixel of the texture is a pixel of a micro image, which is |u| px of the virtual image.
    tangents[:, 0, 0] = tangents[:, 1, 1] = np.abs(u) * cam[:, 2] / geometry.array.focal_px
    tangents[:, :, 2] = cam
    return np.asarray(np.einsum("nji,njk->nik", geometry.rotations[views], tangents))


def slopes_of_planes(tangents_world: FloatArray, normals_world: FloatArray) -> FloatArray:
    """Return the slopes of surfaces with given normals, (n, 2); NaN where a normal is not known.

    Parameters
    ----------
    tangents_world : (n, 3, 3) float64
        Result of `compute_tangents`.
    normals_world : (n, 3) float64
        Normals of the surfaces; NaN where unknown.
    """
    along = np.einsum("nij,ni->nj", tangents_world, normals_world)
    with np.errstate(invalid="ignore", divide="ignore"):
        slopes = -along[:, :2] / along[:, 2:]
    return np.where(np.isfinite(slopes).all(axis=1, keepdims=True), slopes, np.nan)


def find_micro_images(
    geometry: Reconstruction,
    grid: MicroLensGrid,
    tracks: IntArray,
    views: IntArray,
    most_offset_px: float,
) -> tuple[IntArray, IntArray]:
    """Return, for each micro image that shows a point, the index of its (track, view) pair and its
    lens.
    """
    cam = geometry.cam_points(tracks, views)
    xy, u = geometry.virtual_points(cam)
    ok = np.isfinite(u) & np.isfinite(xy).all(axis=1)
    reach = np.where(ok, most_offset_px * np.abs(u), 0.0)
    groups = grid.index.within(np.where(ok[:, None], xy, -1e9), reach)
    return groups.owners(), groups.indices


def predict(
    geometry: Reconstruction,
    grid: MicroLensGrid,
    tangents_world: FloatArray,
    tracks: IntArray,
    views: IntArray,
    lenses: IntArray,
) -> MicroImages:
    """Predict the positions of points in micro images.

    Parameters
    ----------
    geometry : Reconstruction
    grid : MicroLensGrid
    tangents_world : (n_tracks, 3, 3) float64
        Result of `compute_tangents`.
    tracks, views, lenses : (n,) int64
    """
    array, distortion, principal = geometry.array, geometry.distortion, geometry.principal_px
    recorded = grid.centers_raw_px[lenses]
    center = distortion.undistort(recorded, principal)
    cam = geometry.cam_points(tracks, views)
    z = cam[:, 2]
    tau = geometry.tau(center)
    alpha = (array.alpha + tau) / (1.0 + tau)
    w = alpha * z + array.beta_mm / (1.0 + tau)
    offset = (array.focal_px * cam[:, :2] + (principal - center) * z[:, None]) / w[:, None]
    by_cam = np.zeros((len(z), 2, 3))
    by_cam[:, 0, 0] = by_cam[:, 1, 1] = array.focal_px / w
    by_cam[:, :, 2] = (principal - center - alpha[:, None] * offset) / w[:, None]
    by_point, _ = distortion.compute_jacobians(center + offset, principal)
    tangents = np.einsum("nij,njk->nik", geometry.rotations[views], tangents_world[tracks])
    places = distortion.distort(center + offset, principal)
    moves = np.matmul(by_point, np.matmul(by_cam, tangents))
    return MicroImages(
        tracks,
        views,
        lenses,
        places,
        np.ascontiguousarray(moves[:, :, :2]),
        np.ascontiguousarray(moves[:, :, 2]),
        z / w,
        np.linalg.norm(places - recorded, axis=1),
    )
