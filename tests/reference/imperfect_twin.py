"""Reference for a camera with imperfections: single rays in space, and no formula of lifcal.

Everything is in camera coordinates, mm: x right, y down, z forward, the main lens in the plane
z = 0, the sensor in z = -(b_L0 + B). The picture on the sensor is upside down, so a point with raw
coordinates (x, y) px is at (c - (x, y)) s on it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.optimize import fsolve

FloatArray = npt.NDArray[np.float64]


class Bench(NamedTuple):
    """Positions of all parts in mm and px, and their imperfections."""

    f_L: float
    b_L0: float
    B: float
    c: tuple[float, float]
    s: float
    tilt_deg: tuple[float, float] = (0.0, 0.0)
    stop: float = 0.0
    curvature: float = 0.0
    a: float = 0.0
    b: float = 0.0
    reference: float | None = None


def place_lens(lens_px: npt.ArrayLike, bench: Bench) -> FloatArray:
    """Return the center of the micro lens whose orthogonal projection on the sensor is given."""
    offset = (np.asarray(lens_px, float) - bench.c) * bench.s
    slope = np.tan(np.radians(bench.tilt_deg))
    behind = bench.b_L0 + offset[0] * slope[0] + offset[1] * slope[1]
    return np.array([-offset[0], -offset[1], -behind])


def place_pixel(pixel_px: npt.ArrayLike, bench: Bench) -> FloatArray:
    """Return the point on the sensor with these ideal raw px."""
    x, y = (bench.c - np.asarray(pixel_px, float)) * bench.s
    return np.array([x, y, -(bench.b_L0 + bench.B)])


def raw_px(place: FloatArray, bench: Bench) -> FloatArray:
    """Return the ideal raw px of a point on the sensor."""
    return np.array(bench.c) - place[:2] / bench.s


def walk(start: FloatArray, direction: FloatArray, z: float) -> FloatArray:
    """Return the point where a ray crosses the plane z."""
    return start + direction * ((z - start[2]) / direction[2])


def image_center(lens: FloatArray, bench: Bench) -> FloatArray:
    """Return the micro-image center in ideal raw px, on the line from the stop's middle through
    the lens.
    """
    stop = np.array([0.0, 0.0, -bench.stop])
    return raw_px(walk(stop, lens - stop, -(bench.b_L0 + bench.B)), bench)


def leave(place: FloatArray, backward: FloatArray, lens: FloatArray, bench: Bench) -> FloatArray:
    """Return the direction, with a z of 1, of a ray in object space, with the main lens' errors.

    The ray is traced out of the camera: `place` is where it meets the main lens, `backward` its
    direction before, `lens` the center of the micro lens that it comes from.
    """
    slope = backward[:2] / backward[2]
    field = lens[:2] / lens[2]
    power = (1.0 + bench.curvature * float(field @ field)) / bench.f_L
    # A thin lens deflects a ray that meets it at `place` toward the axis.
    slope = slope - place[:2] * power
    if bench.reference is None:
        square = float(slope @ slope)
        return np.array([*slope * (1.0 - bench.a * square + bench.b * square**2), 1.0])
    target = place[:2] + bench.reference * slope
    square = float(target @ target) / bench.reference**2
    target = target * (1.0 - bench.a * square + bench.b * square**2)
    return np.array([*(target - place[:2]) / bench.reference, 1.0])


def trace_out(
    pixel: FloatArray, lens: FloatArray, offset: npt.ArrayLike, f_m: float, bench: Bench
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Trace light back from the sensor through a point of a micro lens.

    Return where it crosses the plane of the stop, where it meets the main lens, and its direction
    in object space.
    """
    dx, dy = np.asarray(offset, float)
    through = lens + np.array([dx, dy, 0.0])
    before = (through - pixel) / (through[2] - pixel[2])  # slope by z, toward the scene
    behind = np.array([before[0] - dx / f_m, before[1] - dy / f_m, 1.0])
    main = walk(through, behind, 0.0)
    return walk(through, behind, -bench.stop), main, leave(main, behind, lens, bench)


def chief_ray(point_cam: npt.ArrayLike, lens: FloatArray, bench: Bench) -> FloatArray:
    """Return the ideal raw px at which the ray of a point through a micro lens' center ends."""
    point = np.asarray(point_cam, float)

    def miss(at: FloatArray) -> FloatArray:
        main = np.array([at[0], at[1], 0.0])
        direction = leave(main, main - lens, lens, bench)
        return (walk(main, direction, point[2]) - point)[:2] / point[2]

    main, _, status, message = fsolve(miss, np.zeros(2), full_output=True, xtol=1e-13)
    if status != 1 and np.abs(miss(main)).max() > 1e-12:
        raise ArithmeticError(message)
    start = np.array([main[0], main[1], 0.0])
    return raw_px(walk(start, lens - start, -(bench.b_L0 + bench.B)), bench)
