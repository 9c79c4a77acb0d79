"""White images whose centers are not on a lattice, rendered without using code of the package.

A pixel at offset m from a micro-image center sees the main aperture (a disc of radius MAIN px)
through each point p of the micro aperture (a disc of radius APERTURE px), displaced by p / v. Light
along the direction (m - p) / DISTANCE + t is dimmed by cos^4; t is the direction of the chief ray.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from lifcal.arrays import Float32Array, FloatArray, IntArray
from lifcal.camera import MicroLensGrid

SIZE = (760, 580)
PITCH = 20.3
MAIN = 8.3
DISTANCE = 58.0
"""Distance from the micro lens to the sensor, in px."""
FAR = 1500.0
"""Distance from the main lens to the sensor, in px; the image's corner is seen at 18 degrees."""
FOCUS = (2.6, 3.4, 4.8)


@dataclass(frozen=True)
class White:
    """A rendered white image, (height, width), with the true centers and types of its lenses."""

    image: Float32Array
    centers_px: FloatArray
    types: IntArray

    def errors(self, grid: MicroLensGrid) -> FloatArray:
        """Return found minus true centers of the lenses that are completely in the image."""
        whole = ((self.centers_px > PITCH) & (self.centers_px < np.array(SIZE) - PITCH)).all(axis=1)
        true = self.centers_px[whole]
        off: FloatArray = grid.centers_raw_px[grid.nearest(true)] - true
        return off


def rms(errors: FloatArray) -> float:
    """Return the root mean square length."""
    return math.sqrt(float(np.mean(np.sum(errors**2, axis=1))))


def bend_brown(places: FloatArray, largest_px: float) -> FloatArray:
    """Return displacements by barrel distortion, `largest_px` in the image's corners; its center is
    not the image's middle.
    """
    off = places - np.array([SIZE[0] * 0.52, SIZE[1] * 0.47])
    square = np.sum(off**2, axis=1, keepdims=True)
    corner = math.hypot(*SIZE) / 2.0
    found: FloatArray = (
        -largest_px * off / corner * (square / corner**2) * (1.0 - 0.2 * square / corner**2)
    )
    return found


def bend_tilt(places: FloatArray, largest_px: float) -> FloatArray:
    """Return the quadratic field of displacements that a tilted array causes."""
    off = (places - np.array(SIZE) / 2.0) / (math.hypot(*SIZE) / 2.0)
    found: FloatArray = largest_px * off * (off @ np.array([0.8, -0.6]))[:, None]
    return found


def render_white(
    rng: np.random.Generator,
    *,
    brown_px: float = 0.0,
    tilt_px: float = 0.0,
    jitter_px: float = 0.0,
    cos4: bool = False,
    aperture_px: float = 5.0,
    dust: float = 0.0,
    noise: float = 0.01,
    n_types: int = 3,
) -> White:
    """Render a white image of a hexagonal array.

    Parameters
    ----------
    rng : Generator
    brown_px, tilt_px : float
        Displacement of the centers in the corners by barrel distortion, and by a tilt of the array.
    jitter_px : float
        Standard deviation, along each axis, of the displacement of single lenses.
    cos4 : bool
        Whether brightness falls off with cos^4 of the angle of incidence.
    aperture_px : float
        Radius of the micro apertures.
    dust : float
        Fraction of the lenses that are dirty.
    noise : float
        Relative standard deviation of the photon noise at full brightness.
    n_types : int
    """
    a = PITCH * np.array([math.cos(0.02), math.sin(0.02)])
    b = PITCH * np.array([math.cos(0.02 + math.pi / 3.0), math.sin(0.02 + math.pi / 3.0)])
    q, r = (axis.ravel() for axis in np.mgrid[-60:61, -60:61])
    places = np.array([381.3, 288.4]) + q[:, None] * a + r[:, None] * b
    near = ((places > -1.5 * PITCH) & (places < np.array(SIZE) + 1.5 * PITCH)).all(axis=1)
    places, types = places[near], ((q + 2 * r) % n_types)[near]
    centers = places + bend_brown(places, brown_px) + bend_tilt(places, tilt_px)
    centers = centers + rng.normal(scale=jitter_px, size=centers.shape)
    steps = np.arange(-3, 4) / 3.0
    points = np.array([(x, y) for x in steps for y in steps if x * x + y * y <= 1.0]) * aperture_px
    width, height = SIZE
    image = np.zeros((height + 60, width + 60))
    offsets = np.arange(-14, 15)
    for center, kind in zip(centers, types, strict=True):
        corner = np.floor(center).astype(int)
        if not (-15 < corner[0] < width + 15 and -15 < corner[1] < height + 15):
            continue
        y, x = np.meshgrid(offsets + corner[1] - center[1], offsets + corner[0] - center[0],
                           indexing="ij")  # fmt: skip
        light = np.zeros_like(x)
        for point in points:
            moved = np.hypot(x - point[0] / FOCUS[kind], y - point[1] / FOCUS[kind])
            seen = np.clip(MAIN + 0.5 - moved, 0.0, 1.0)
            if cos4:
                t_x = (center[0] - width / 2.0) / FAR + (x - point[0]) / DISTANCE
                t_y = (center[1] - height / 2.0) / FAR + (y - point[1]) / DISTANCE
                seen = seen / (1.0 + t_x**2 + t_y**2) ** 2
            light += seen / len(points)
        if rng.uniform() < dust:
            light *= np.clip(1.0 - rng.uniform(0.0, 2.0) * (x > rng.uniform(-4, 4)), 0.1, 1.0)
        rows, cols = corner[1] + offsets + 30, corner[0] + offsets + 30
        image[rows[0] : rows[-1] + 1, cols[0] : cols[-1] + 1] += light
    image = image[30 : 30 + height, 30 : 30 + width]
    image = image + rng.normal(scale=noise, size=image.shape) * np.sqrt(image + 0.02)
    return White(np.round(200.0 * image).clip(0, 255).astype(np.float32), centers, types)
