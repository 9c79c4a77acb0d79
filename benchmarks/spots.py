"""Measured and predicted positions of small bright balls in rendered micro images.

A pinhole has no blur and no vignetting, so with tiny micro apertures the images of balls must be at
the projected points. With full apertures this must hold in focus; out of focus, the overlap of the
two apertures shifts them by an amount that `Apertures.compute_spot` predicts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lifcal.arrays import FloatArray, IntArray
from lifcal.geometry import RigidTransform
from lifcal.simulate import Ball, Optics, PackedScene, Renderer, Scene, Texture

_WHITE = Texture(np.full((4, 4, 3), 255, np.uint8))
_BALL_PX = 0.61
"""Radius of a ball's image in px. The spectrum of a disc of this size is zero at the frequency of
the pixels (first zero of the Bessel function J1 at 2 pi 0.61), so the pixels do not bias its
centroid."""


@dataclass(frozen=True, eq=False)
class Spots:
    """Measured images of balls.

    Parameters
    ----------
    offset_px : (n, 2) float64
        Projected point minus micro-image center.
    error_px : (n, 2) float64
        Measured centroid minus projected point.
    predicted_px : (n,) float64
        Shift along the offset that the apertures predict, outward positive. It includes that a ball
        is not a point and that its outer half is dimmer.
    defocus : (n,) float64
        Defocus 1 / v_T - 1 / v.
    lens_types : (n,) int64
    """

    offset_px: FloatArray
    error_px: FloatArray
    predicted_px: FloatArray
    defocus: FloatArray
    lens_types: IntArray

    def outward_px(self) -> FloatArray:
        """Return the error along the offset, (n,)."""
        length = np.hypot(self.offset_px[:, 0], self.offset_px[:, 1])
        return np.asarray(np.sum(self.error_px * self.offset_px, axis=1) / length)

    def residual_px(self) -> FloatArray:
        """Return the error that is left after the predicted shift, (n, 2)."""
        length = np.hypot(self.offset_px[:, 0], self.offset_px[:, 1])[:, None]
        return self.error_px - self.predicted_px[:, None] * self.offset_px / length

    def where(self, rows: np.ndarray) -> Spots:
        """Return some of the spots."""
        return Spots(
            self.offset_px[rows],
            self.error_px[rows],
            self.predicted_px[rows],
            self.defocus[rows],
            self.lens_types[rows],
        )


def rms(values: FloatArray) -> float:
    """Return the root mean square."""
    return float(np.sqrt(np.mean(np.square(values))))


def measure_spots(
    optics: Optics,
    depths_v: FloatArray,
    rng: np.random.Generator,
    *,
    balls_per_depth: int = 4,
    n_rays: int = 1024,
    reach: float = 0.72,
) -> Spots:
    """Render balls one at a time and measure the centroid of each of their images.

    Parameters
    ----------
    optics : Optics
    depths_v : (n,) float64
        Virtual depths (the paper's) at which to place balls.
    balls_per_depth : int
    n_rays : int
        Number of rays per pixel.
    reach : float
        Images farther than this from the micro-image center, in micro-image radii, are left out,
        because the hard edge of a micro image would cut them.
    """
    camera, renderer = optics.camera, Renderer(optics, n_rays)
    array = camera.array
    width, height = camera.image_size
    rows: list[tuple[FloatArray, FloatArray, float, float, int]] = []
    for v in depths_v:
        depth = float(camera.depth_from_virtual_depth(camera.virtual_depth_from_paper(v)))
        footprint_mm = abs(array.alpha * depth + array.beta_mm) / array.focal_px
        for _ in range(balls_per_depth):
            place = rng.uniform(0.1, 0.9, 2) * [width, height]
            xy = (place - camera.principal_point_px) * depth / array.focal_px
            point = np.array([*xy, depth])
            ball = Ball(point, _BALL_PX * footprint_mm, _WHITE)
            scene = Scene("ball", (), (ball,), (), np.zeros(3), np.zeros(3), 1.0, 1.0)
            packed = PackedScene(scene)
            seen = camera.project_all(point[None, :])
            for lens, expected in zip(seen.lens_indices, seen.points_raw_px, strict=True):
                center = camera.image_centers_und_px[lens]
                ideal = camera.distortion.undistort(expected[None], camera.principal_point_px)[0]
                offset = ideal - center
                length = float(np.hypot(*offset))
                kind = int(camera.grid.lens_types[lens])
                defocus = 1.0 / optics.focal_planes_v[kind] - 1.0 / v
                blur = optics.micro_radius_mm / camera.pixel_size_mm * abs(defocus)
                half = int(np.ceil(blur + _BALL_PX + 2))
                corner = np.rint(expected).astype(int) - half
                size = 2 * half + 1
                if length > reach * camera.grid.radius_px or length < 0.5:
                    continue
                if corner.min() < 0 or corner[0] + size > width or corner[1] + size > height:
                    continue
                light = renderer.render_raw(
                    packed, RigidTransform.identity(), lens, (corner[0], corner[1], size, size)
                ).astype(np.float64)
                # Images of the same ball by other lenses are a large fraction of a pitch away.
                if light.sum() < 1e-3:
                    continue
                y, x = np.mgrid[:size, :size]
                found = corner + np.array([(light * x).sum(), (light * y).sum()]) / light.sum()
                shift = _predict_shift_px(optics, offset, kind, float(v))
                rows.append((offset, found - expected, shift, defocus, kind))
    return Spots(
        np.array([row[0] for row in rows]),
        np.array([row[1] for row in rows]),
        np.array([row[2] for row in rows]),
        np.array([row[3] for row in rows]),
        np.array([row[4] for row in rows], np.int64),
    )


def _predict_shift_px(optics: Optics, offset_px: FloatArray, kind: int, v: float) -> float:
    """Return the shift along the offset, averaged over the ball's image weighted by light."""
    steps = (np.arange(9) + 0.5) / 9 * 2.0 - 1.0
    around = np.stack(np.meshgrid(steps, steps), axis=2).reshape(-1, 2)
    around = _BALL_PX * around[np.hypot(around[:, 0], around[:, 1]) <= 1.0]
    places = offset_px + around
    length = np.hypot(places[:, 0], places[:, 1])
    pixel = optics.camera.pixel_size_mm
    light, shift_mm = optics.apertures.compute_spot(length * pixel, optics.focal_planes_v[kind], v)
    moved = around + np.nan_to_num(shift_mm / pixel / length)[:, None] * places
    mean = (light[:, None] * moved).sum(axis=0) / light.sum()
    return float(mean @ offset_px / np.hypot(*offset_px))
