"""Simulated observations for the bundle adjustment: projected points; no images are rendered."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from lifcal.arrays import BoolArray, FloatArray
from lifcal.bundle import Distances
from lifcal.camera import PlenopticCamera
from lifcal.geometry import RigidTransform
from lifcal.reconstruction import Observations, Reconstruction


@dataclass(frozen=True, eq=False)
class Scene:
    """Exact observations, and the true camera, poses and points."""

    camera: PlenopticCamera
    observations: Observations
    truth: Reconstruction

    def noisy(
        self, sigma_px: float, rng: np.random.Generator, outliers: float = 0.0
    ) -> tuple[Observations, BoolArray]:
        """Return observations with noise, and a mask of those that are gross outliers."""
        exact = self.observations
        noise = rng.normal(scale=sigma_px, size=(len(exact), 2))
        wrong = rng.random(len(exact)) < outliers
        radius = self.camera.grid.radius_px
        noise[wrong] = rng.uniform(-radius, radius, (int(wrong.sum()), 2))
        limits = np.array(self.camera.image_size) - 0.5
        points = np.clip(exact.points_raw_px + noise, -0.5, limits)
        return replace(exact, points_raw_px=points), wrong

    def distances(self, n: int, sigma_mm: float, rng: np.random.Generator) -> Distances:
        """Return true distances between random pairs of points."""
        ids = np.array(
            [rng.choice(len(self.truth.points_world_mm), 2, replace=False) for _ in range(n)]
        )
        ends = self.truth.points_world_mm[ids]
        lengths = np.linalg.norm(ends[:, 0] - ends[:, 1], axis=1)
        return Distances(self.observations.point_ids[ids], lengths, np.full(n, sigma_mm))


def make_scene(
    camera: PlenopticCamera,
    depth_mm: tuple[float, float],
    n_points: int,
    n_views: int,
    rng: np.random.Generator,
    *,
    views_per_point: int | None = None,
    images_per_pair: int | None = None,
    focus_strength: float = 0.0,
) -> Scene:
    """Return the observations of a camera that moves around a cloud of points.

    Parameters
    ----------
    camera : PlenopticCamera
    depth_mm : (float, float)
        Nearest and farthest depth of the cloud in the first view.
    n_points, n_views : int
    rng : Generator
    views_per_point, images_per_pair : int or None
        Largest number of views of a point, and of micro images of a point in a view.
    focus_strength : float
        Factor g of the focus term with the paper's v: `m (1 + g (1 / v_T - 1 / v))`.
    """
    near, far = depth_mm
    array = camera.array
    width, height = camera.image_size
    depth = 1.0 / rng.uniform(1.0 / far, 1.0 / near, n_points)
    places = rng.uniform(0.02, 0.98, (n_points, 2)) * (width, height)
    xy = (places - camera.principal_point_px) * (depth / array.focal_px)[:, None]
    points = np.column_stack([xy, depth])
    middle = np.array([0.0, 0.0, float(np.median(depth))])
    reach = 0.25 * near
    poses = [RigidTransform.identity()]
    for _ in range(n_views - 1):
        turn = rng.uniform(-1.0, 1.0, 3) * (0.15, 0.15, 1.5)
        place = rng.uniform(-1.0, 1.0, 3) * (reach, reach, 0.6 * reach)
        look = RigidTransform.from_rotation_vector(turn, np.zeros(3))
        # The camera is rotated about the middle of the cloud and then moved.
        shift = middle - look.rotation @ middle - place
        poses.append(RigidTransform(look.rotation, shift))
    rows: list[FloatArray] = []
    for view, pose in enumerate(poses):
        order = np.arange(n_points)
        seen = camera.project_all(pose.apply(points))
        keep = np.ones(len(seen.lens_indices), np.bool_)
        if images_per_pair is not None:
            draw = rng.random(len(keep))
            rank = np.lexsort((draw, seen.point_indices))
            first = np.searchsorted(seen.point_indices, order)
            place_in_pair = np.empty(len(keep), np.int64)
            place_in_pair[rank] = np.arange(len(keep)) - first[seen.point_indices]
            keep &= place_in_pair < images_per_pair
        rows.append(
            np.column_stack(
                [
                    np.full(int(keep.sum()), view),
                    seen.point_indices[keep],
                    seen.lens_indices[keep],
                    seen.points_raw_px[keep],
                ]
            )
        )
    table = np.concatenate(rows)
    if views_per_point is not None:
        draw = rng.random((n_points, n_views))
        rank = np.argsort(np.argsort(draw, axis=1), axis=1)
        table = table[
            rank[table[:, 1].astype(np.int64), table[:, 0].astype(np.int64)] < views_per_point
        ]
    views, ids, lenses = (table[:, i].astype(np.int64) for i in range(3))
    # For the start from observations, a point needs two views with at least two micro images each.
    pair = ids * n_views + views
    _, pair_index, pair_counts = np.unique(pair, return_inverse=True, return_counts=True)
    several = pair_counts[pair_index] >= 2
    views, ids, lenses, xy_raw = views[several], ids[several], lenses[several], table[several, 3:]
    counts = np.zeros(n_points, np.int64)
    for point in np.unique(ids * n_views + views) // n_views:
        counts[point] += 1
    good = counts[ids] >= 2
    views, ids, lenses, xy_raw = views[good], ids[good], lenses[good], xy_raw[good]
    if focus_strength:
        cam = np.concatenate([pose.apply(points)[None] for pose in poses])[views, ids]
        xy_raw = _defocused(camera, cam, lenses, focus_strength)
    observations = Observations.from_arrays(
        views,
        ids,
        camera.grid.centers_raw_px[lenses],
        xy_raw,
        lens_types=camera.grid.lens_types[lenses],
    )
    truth = Reconstruction.from_poses(
        array,
        camera.distortion,
        [poses[view] for view in observations.view_ids],
        points[observations.point_ids],
    )
    if camera.tilt is not None:
        truth = replace(truth, tilt=camera.tilt.as_vector())
    return Scene(camera, observations, truth)


def _defocused(
    camera: PlenopticCamera, points_cam: FloatArray, lenses: np.ndarray, strength: float
) -> FloatArray:
    """Project with `m (1 + g (1 / v_T - 1 / v))`, by the paper's formulas."""
    p = camera.parameters
    planes = camera.grid.focal_planes
    assert planes is not None
    v_T = camera.paper_from_virtual_depth(planes)[camera.grid.lens_types[lenses]]
    b_L = 1.0 / (1.0 / p.focal_length_mm - 1.0 / points_cam[:, 2])
    v = (b_L - p.lens_to_array_mm) / p.array_to_sensor_mm
    c = camera.principal_point_px
    x_V = c + (b_L / camera.pixel_size_mm / points_cam[:, 2])[:, None] * points_cam[:, :2]
    C_ML, C_I = camera.lens_centers_px[lenses], camera.image_centers_und_px[lenses]
    x_R = C_ML + (x_V - C_ML) / v[:, None]
    seen = C_I + (x_R - C_I) * (1.0 + strength * (1.0 / v_T - 1.0 / v))[:, None]
    return camera.distortion.distort(seen, c)
