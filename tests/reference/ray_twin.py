"""Reference of the camera by ray tracing through thin lenses, without the paper's formulas.

Light travels along the axis coordinate `w` (mm), which is 0 in the main lens, negative in front of
it and positive behind it, so a point with depth z is at w = -z. The lateral coordinates x and y are
the camera's (x right, y down) on both sides of the lens. The micro lenses are at w = b_L0, the
sensor at w = b_L0 + B. The picture on the sensor is upside down; the raw image is turned so that
it looks upright: raw px = c - (x, y) / s.

A ray is a point (x, y) at a place w and its slope d(x, y)/dw. A thin lens with focal length f
changes the slope by -(offset from the lens' centre) / f.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
Distort = Callable[[FloatArray], FloatArray]  # ideal to recorded raw px

LENS_POINTS_MM = ((1.0, 0.0), (-1.5, 0.5), (0.3, -2.0))  # any three that are not in one place


class Bench(NamedTuple):
    """The camera: lengths in mm, c in px (where the axis meets the sensor), s in mm/px."""

    f_L: float
    b_L0: float
    B: float
    c: tuple[float, float]
    s: float


class Ray(NamedTuple):
    """The straight line (x, y) = point_mm + slope (w - place_mm)."""

    point_mm: FloatArray
    slope: FloatArray
    place_mm: float

    def at(self, w: float) -> FloatArray:
        """Return the point of the ray at w."""
        return self.point_mm + self.slope * (w - self.place_mm)


class ObjectRay(NamedTuple):
    """A ray outside the camera, in camera coordinates; direction[2] is 1."""

    main_point_mm: FloatArray  # (2,) where it meets the plane of the main lens
    origin_cam_mm: FloatArray  # (3,) the same point
    direction_cam: FloatArray  # (3,)


def join(a: FloatArray, place_a: float, b: FloatArray, place_b: float) -> Ray:
    """The ray through two points."""
    return Ray(a, (b - a) / (place_b - place_a), place_a)


def refract(ray: Ray, place: float, lens_mm: npt.ArrayLike, focal_length: float) -> Ray:
    """The ray behind a thin lens at `place`, centred at lens_mm."""
    point = ray.at(place)
    return Ray(point, ray.slope - (point - np.asarray(lens_mm)) / focal_length, place)


def meet(first: Ray, second: Ray) -> tuple[FloatArray, float, float]:
    """Return the point between two rays at the w where they are nearest, that w, and the gap."""
    apart = first.at(0.0) - second.at(0.0)
    opening = first.slope - second.slope
    w = -float(apart @ opening) / float(opening @ opening)
    a, b = first.at(w), second.at(w)
    return (a + b) / 2, w, float(np.hypot(*(a - b)))


def raw_from_bench(point_mm: FloatArray, bench: Bench) -> FloatArray:
    """From mm on the sensor to ideal raw px: the raw image is turned upright."""
    return np.array(bench.c) - point_mm / bench.s


def bench_from_raw(point_px: npt.ArrayLike, bench: Bench) -> FloatArray:
    """From ideal raw px to mm on the sensor."""
    return (np.array(bench.c) - np.asarray(point_px)) * bench.s


def image_point(point_cam_mm: npt.ArrayLike, bench: Bench) -> tuple[FloatArray, float]:
    """Image of a point by the main lens: (x, y) and w, where real rays through the lens meet.

    Raises ArithmeticError if the traced rays do not all meet in one point.
    """
    x, y, z = np.asarray(point_cam_mm, dtype=float)
    start = np.array([x, y])
    behind = []
    for lens_point in LENS_POINTS_MM:
        in_front = join(start, -z, np.array(lens_point), 0.0)
        behind.append(refract(in_front, 0.0, (0.0, 0.0), bench.f_L))
    point, w, gap = meet(behind[0], behind[1])
    gap = max(gap, float(np.hypot(*(behind[2].at(w) - point))))
    if gap > 1e-9 * max(1.0, float(np.hypot(w, np.hypot(*point)))):
        raise ArithmeticError(f"the rays miss each other by {gap} mm")
    return point, w


def find_lens(center_und_px: npt.ArrayLike, bench: Bench) -> FloatArray:
    """Micro-lens centre (mm) whose chief ray ends in the given ideal micro-image centre.

    The chief ray starts in the centre of the main lens and passes both lens centres undeflected.
    The point where it meets the sensor is a linear function of the lens' position, so one secant
    step through two trials gives the solution.
    """
    target = bench_from_raw(center_und_px, bench)
    sensor = bench.b_L0 + bench.B

    def landing(lens: FloatArray) -> FloatArray:
        return join(np.zeros(2), 0.0, lens, bench.b_L0).at(sensor)

    first, second = np.zeros(2), np.ones(2)
    gain = (landing(second) - landing(first)) / (second - first)
    return first + (target - landing(first)) / gain


def project_ideal(
    point_cam_mm: npt.ArrayLike, center_und_px: npt.ArrayLike, bench: Bench
) -> FloatArray:
    """Ideal raw px of a point in the micro image with the given ideal centre.

    The ray through the centre of the micro lens is not bent there, so it is the straight line that
    joins the lens' centre and the image point, whether the image would be formed behind the
    sensor (Galilean) or is formed in front of the micro lenses (Keplerian).
    """
    image, w = image_point(point_cam_mm, bench)
    lens = find_lens(center_und_px, bench)
    ray = join(lens, bench.b_L0, image, w)
    return raw_from_bench(ray.at(bench.b_L0 + bench.B), bench)


def invert(distort: Distort, recorded_px: npt.ArrayLike) -> FloatArray:
    """Undistort by repeatedly subtracting what `distort` adds, which converges for real lenses."""
    recorded = np.asarray(recorded_px, dtype=float)
    point = recorded
    for _ in range(200):
        point = recorded - (distort(point) - point)
    if not np.allclose(distort(point), recorded, rtol=0, atol=1e-10):
        raise ArithmeticError(f"no undistorted point found for {recorded} px")
    return point


def project(
    point_cam_mm: npt.ArrayLike,
    center_raw_px: npt.ArrayLike,
    bench: Bench,
    distort: Distort | None = None,
) -> FloatArray:
    """Recorded raw px: the recorded centre is undistorted first, the point distorted last."""
    if distort is None:
        return project_ideal(point_cam_mm, center_raw_px, bench)
    return distort(project_ideal(point_cam_mm, invert(distort, center_raw_px), bench))


def brown_polar(k: npt.ArrayLike, p: npt.ArrayLike, c: npt.ArrayLike) -> Distort:
    """Brown's distortion in the complex plane, with zeta = x' + i y' and P = p0 + i p1.

    zeta_d = zeta (1 + k0 r^2 + k1 r^4 + k2 r^6) + 2 r^2 P + conj(P) zeta^2. Real px only.
    """
    k0, k1, k2 = np.asarray(k, dtype=float)
    p_complex = complex(*np.asarray(p, dtype=float))
    c_complex = complex(*np.asarray(c, dtype=float))

    def distort(point_und_px: FloatArray) -> FloatArray:
        zeta = complex(*point_und_px) - c_complex
        r2 = abs(zeta) ** 2
        radial = zeta * (k0 * r2 + k1 * r2**2 + k2 * r2**3)
        tangential = 2 * r2 * p_complex + p_complex.conjugate() * zeta**2
        result = c_complex + zeta + radial + tangential
        return np.array([result.real, result.imag])

    return distort


def trace_pixel(
    pixel_und_px: npt.ArrayLike,
    center_und_px: npt.ArrayLike,
    offset_mm: npt.ArrayLike,
    f_m: float,
    bench: Bench,
) -> ObjectRay:
    """Trace the light that reaches a sensor point back through one point of a micro lens.

    Parameters
    ----------
    pixel_und_px : (2,)
        Sensor point, ideal raw px.
    center_und_px : (2,)
        Ideal micro-image centre, which identifies the micro lens.
    offset_mm : (2,)
        Point of the micro lens' aperture, from its centre, along the camera's x and y.
    f_m : float
        Focal length of the micro lens, mm; may be infinite.
    bench : Bench

    Returns
    -------
    ObjectRay
        The ray outside the camera. No aperture is applied; the caller can apply one to
        `main_point_mm`.
    """
    sensor_point = bench_from_raw(pixel_und_px, bench)
    lens = find_lens(center_und_px, bench)
    lens_point = lens + np.asarray(offset_mm)
    between = join(lens_point, bench.b_L0, sensor_point, bench.b_L0 + bench.B)
    # Traced backwards, a lens changes the slope by the opposite amount.
    inside = refract(between, bench.b_L0, lens, -f_m)
    outside = refract(inside, 0.0, (0.0, 0.0), -bench.f_L)
    main_point = outside.at(0.0)
    return ObjectRay(
        main_point_mm=main_point,
        origin_cam_mm=np.array([main_point[0], main_point[1], 0.0]),
        direction_cam=np.array([-outside.slope[0], -outside.slope[1], 1.0]),
    )
