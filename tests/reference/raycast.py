"""Slow reference of the renderer's kernel: rays that meet parallelograms and balls, in NumPy."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from lifcal.arrays import FloatArray, IntArray
from lifcal.geometry.rigid import RigidTransform
from lifcal.simulate.scene import Ball, Quad, Scene, Texture


class Hits(NamedTuple):
    """The first surfaces that n rays meet.

    Parameters
    ----------
    depth : (n,) float64
        Factor such that the point is `origin + depth * direction`. It is the depth if directions
        have a z of 1 in the camera's frame, and the range if they are unit vectors. It is infinite
        if the ray meets nothing.
    surface : (n,) int64
        Index of the quad, or the number of quads plus the index of the ball, or -1 for none.
    radiance : (n, 3) float64
        Albedo (0..1, of the nearest texel) times shade, or the background.
    """

    depth: FloatArray
    surface: IntArray
    radiance: FloatArray


def cast_rays(scene: Scene, origins_world_mm: FloatArray, directions_world: FloatArray) -> Hits:
    """Find the nearest hit in front of each origin.

    Parameters
    ----------
    scene : Scene
    origins_world_mm : (n, 3) or (3,) float64
        One origin for each ray, or one for all.
    directions_world : (n, 3) float64
        Directions of the rays, of any length but zero.
    """
    directions = np.asarray(directions_world, dtype=np.float64)
    origins = np.atleast_2d(np.asarray(origins_world_mm, dtype=np.float64))
    n_rays = len(directions)
    depth = np.full(n_rays, np.inf)
    surface = np.full(n_rays, -1, dtype=np.int64)
    radiance = np.tile(scene.background, (n_rays, 1))
    shapes: tuple[Quad | Ball, ...] = (*scene.quads, *scene.balls)
    for number, shape in enumerate(shapes):
        if isinstance(shape, Quad):
            hit_depth, across, down = meet_quad(shape, origins, directions)
        else:
            hit_depth, across, down = meet_ball(shape, origins, directions)
        nearer = hit_depth < depth
        depth[nearer] = hit_depth[nearer]
        surface[nearer] = number
        radiance[nearer] = shape.shade * look_up(shape.texture, across[nearer], down[nearer])
    return Hits(depth, surface, radiance)


def meet_quad(
    quad: Quad, origins: FloatArray, directions: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the depth (infinity for a miss) and texture coordinates, 0..1 across and down."""
    normal = np.cross(quad.edge_u_world_mm, quad.edge_v_world_mm)
    # Coordinates along the two edges and the normal: the quad is 0 <= u, v <= 1 at n = 0.
    unit_from_world = np.linalg.inv(
        np.column_stack([quad.edge_u_world_mm, quad.edge_v_world_mm, normal])
    )
    start = _turn(unit_from_world, origins - quad.origin_world_mm)
    slope = _turn(unit_from_world, directions)
    with np.errstate(divide="ignore", invalid="ignore"):
        depth = -start[:, 2] / slope[:, 2]
        across = start[:, 0] + depth * slope[:, 0]
        down = start[:, 1] + depth * slope[:, 1]
        inside = (across >= 0) & (across <= 1) & (down >= 0) & (down <= 1) & (depth > 0)
    return np.where(inside, depth, np.inf), across, down


def meet_ball(
    ball: Ball, origins: FloatArray, directions: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the depth (infinity for a miss) and texture coordinates, 0..1 around and down.

    The first column is at the side that faces -z; half way round is the side that faces +z.
    """
    start = origins - ball.center_world_mm
    # |start + depth * direction|^2 = radius^2
    a = np.sum(directions**2, axis=1)
    b = np.sum(start * directions, axis=1)
    c = np.sum(start**2, axis=1) - ball.radius_mm**2
    discriminant = b**2 - a * c
    root = np.sqrt(np.where(discriminant >= 0, discriminant, np.nan))
    near, far = (-b - root) / a, (-b + root) / a
    depth = np.where(near > 0, near, far)
    depth = np.where(depth > 0, depth, np.inf)
    reach = np.where(np.isfinite(depth), depth, 0.0)
    normal = (start + reach[:, None] * directions) / ball.radius_mm
    across = 0.5 + np.arctan2(normal[:, 0], -normal[:, 2]) / (2 * np.pi)
    down = np.arccos(np.clip(-normal[:, 1], -1, 1)) / np.pi
    return depth, across, down


def _turn(matrix: FloatArray, vectors: FloatArray) -> FloatArray:
    # `@` is not used: with so short an inner sum, threads of BLAS cost more than they save.
    turned: FloatArray = np.einsum("ij,nj->ni", matrix, vectors)
    return turned


def look_up(texture: Texture, across: FloatArray, down: FloatArray) -> FloatArray:
    """Return the nearest texel (n, 3) in 0..1 for texture coordinates in 0..1 across and down."""
    rows, cols, _ = texture.albedo.shape
    row = np.minimum((down * rows).astype(int), rows - 1)
    col = np.minimum((across * cols).astype(int), cols - 1)
    albedo: FloatArray = texture.albedo[row, col] / 255.0
    return albedo


def pinhole_directions_cam(n_px: int, field_of_view_rad: float) -> FloatArray:
    """Return the rays (n_px * n_px, 3) of a square image, row by row, each with a z of 1."""
    center = 0.5 * (n_px - 1)
    slope = (np.arange(n_px) - center) * (2 * np.tan(field_of_view_rad / 2) / n_px)
    across, down = np.meshgrid(slope, slope)
    return np.stack([across.ravel(), down.ravel(), np.ones(n_px * n_px)], axis=1)


def cast_pinhole(
    scene: Scene, world_from_cam: RigidTransform, n_px: int, field_of_view_rad: float
) -> Hits:
    """Render a square pinhole image; `depth` is the depth (z) in the camera's frame."""
    directions_cam = pinhole_directions_cam(n_px, field_of_view_rad)
    directions_world = directions_cam @ world_from_cam.rotation.T
    return cast_rays(scene, world_from_cam.translation_mm, directions_world)


def project_pinhole(
    points_world_mm: FloatArray,
    world_from_cam: RigidTransform,
    n_px: int,
    field_of_view_rad: float,
) -> FloatArray:
    """Return the pixels (n, 2), as (x, y), of points in the image that `cast_pinhole` renders."""
    points_cam_mm = world_from_cam.inverse().apply(points_world_mm)
    focal_length_px = 0.5 * n_px / np.tan(field_of_view_rad / 2)
    slopes = points_cam_mm[:, :2] / points_cam_mm[:, 2:]
    pixels: FloatArray = focal_length_px * slopes + 0.5 * (n_px - 1)
    return pixels
