"""The paper's camera model, formula by formula: one point, one micro lens, plain scalars.

This slow reference is easy to check by reading, and uses no code of the package. Every function
also accepts complex numbers, so that derivatives can be taken by complex steps; therefore it uses
no abs(), no conjugates and no casts to float. Equations are named by their labels in the source of
the paper (Sec. 3.1, and "Distortion Model" in the supplement).

Frames: camera (mm; x right, y down, z forward, origin in the main lens), virtual image and raw
image (px, pixel centres at integers). The paper has a pixel size for each axis, s_x and s_y; here
there is one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Scalar = Any  # float or complex: complex steps go through every argument
Vector = npt.NDArray[Any]


class Camera(NamedTuple):
    """The paper's parameters: lengths in mm, c in px, pixel size s in mm per px."""

    f_L: Scalar
    b_L0: Scalar
    B: Scalar
    c_x: Scalar
    c_y: Scalar
    s: Scalar


class Pinholes(NamedTuple):
    """The same camera as an array of pinholes: F, c in px, alpha without unit, beta in mm."""

    F: Scalar
    c_x: Scalar
    c_y: Scalar
    alpha: Scalar
    beta: Scalar


class NoDistortion(NamedTuple):
    """Recorded and ideal raw coordinates are the same."""


class Brown(NamedTuple):
    """Radial k0, k1, k2 and tangential p0, p1, on raw px about c."""

    k0: Scalar
    k1: Scalar
    k2: Scalar
    p0: Scalar
    p1: Scalar


class Division(NamedTuple):
    """One-parameter division model, on raw px about c."""

    lam: Scalar


Distortion = NoDistortion | Brown | Division


# --- the paper's projection, Sec. 3.1 --------------------------------------------------------


def image_distance(z: Scalar, f_L: Scalar) -> Scalar:
    """Distance b_L from the main lens to the image of a point at depth z (eq:bL)."""
    return 1.0 / (1.0 / f_L - 1.0 / z)


def virtual_point(point_cam_mm: npt.ArrayLike, camera: Camera) -> Vector:
    """(x_V', y_V') in px: eq:projectionXcToXv, then eq:projectionXvToXvPrime."""
    x, y, z = np.asarray(point_cam_mm)
    b_L = image_distance(z, camera.f_L)
    x_V = b_L * x / z
    y_V = b_L * y / z
    return np.array([x_V / camera.s + camera.c_x, y_V / camera.s + camera.c_y])


def virtual_depth(z: Scalar, camera: Camera) -> Scalar:
    """v = (b_L - b_L0) / B (eq:virtualDepth): negative in Keplerian mode."""
    return (image_distance(z, camera.f_L) - camera.b_L0) / camera.B


def lens_center(center_und_px: npt.ArrayLike, camera: Camera) -> Vector:
    """C_ML from the undistorted micro-image centre C_I (eq:projIToML).

    The equation scales a vector that starts in the centre of the main lens, so C_I and C_ML in it
    are relative to the principal point; in raw px, this is a scaling about c.
    """
    C_x, C_y = np.asarray(center_und_px)
    ratio = camera.b_L0 / (camera.b_L0 + camera.B)
    return np.array(
        [camera.c_x + (C_x - camera.c_x) * ratio, camera.c_y + (C_y - camera.c_y) * ratio]
    )


def raw_point(virtual_px: npt.ArrayLike, v: Scalar, lens_center_px: npt.ArrayLike) -> Vector:
    """x_R = (x_V' - C_ML) / v + C_ML (eq:projectionXV)."""
    x_V, y_V = np.asarray(virtual_px)
    x_ML, y_ML = np.asarray(lens_center_px)
    return np.array([(x_V - x_ML) / v + x_ML, (y_V - y_ML) / v + y_ML])


def project_ideal(
    point_cam_mm: npt.ArrayLike,
    center_und_px: npt.ArrayLike,
    camera: Camera,
    slopes: npt.ArrayLike | None = None,
) -> Vector:
    """x_R of a point seen by the micro lens whose undistorted micro-image centre is given.

    With `slopes` (tan of the array's two angles) the micro lenses are on a tilted plane.
    """
    z = np.asarray(point_cam_mm)[2]
    if slopes is not None:
        return project_tilted(point_cam_mm, center_und_px, camera, slopes)
    return raw_point(
        virtual_point(point_cam_mm, camera),
        virtual_depth(z, camera),
        lens_center(center_und_px, camera),
    )


def project_tilted(
    point_cam_mm: npt.ArrayLike,
    center_und_px: npt.ArrayLike,
    camera: Camera,
    slopes: npt.ArrayLike,
) -> Vector:
    """x_R with an array in the plane z' = b_L0 + x' slopes[0] + y' slopes[1].

    All lengths are in mm from the main lens' centre. The micro lens is where the line from this
    centre to the micro-image centre meets the plane; the line through the micro lens and the
    virtual point meets the sensor in x_R.
    """
    x, y, z = np.asarray(point_cam_mm)
    slope_x, slope_y = np.asarray(slopes)
    C_x, C_y = np.asarray(center_und_px)
    L = camera.b_L0 + camera.B
    X, Y = (C_x - camera.c_x) * camera.s, (C_y - camera.c_y) * camera.s
    part = camera.b_L0 / (L - X * slope_x - Y * slope_y)
    lens_x, lens_y, lens_z = part * X, part * Y, part * L
    b_L = image_distance(z, camera.f_L)
    virtual_x, virtual_y = b_L * x / z, b_L * y / z
    way = (L - lens_z) / (b_L - lens_z)
    return np.array(
        [
            camera.c_x + (lens_x + way * (virtual_x - lens_x)) / camera.s,
            camera.c_y + (lens_y + way * (virtual_y - lens_y)) / camera.s,
        ]
    )


def slopes_from_tilt(t: npt.ArrayLike, camera: Camera) -> Vector:
    """The slopes of the array's plane for t, the relative change of B_k / b_k for each px."""
    return -np.asarray(t) * camera.B / camera.s


def project(
    point_cam_mm: npt.ArrayLike,
    center_raw_px: npt.ArrayLike,
    camera: Camera,
    distortion: Distortion,
    t: npt.ArrayLike | None = None,
) -> Vector:
    """x_Rd, the whole chain: the recorded centre is undistorted first, the point distorted last."""
    c = np.array([camera.c_x, camera.c_y])
    center_und_px = undistort(center_raw_px, c, distortion)
    slopes = None if t is None else slopes_from_tilt(t, camera)
    return distort(project_ideal(point_cam_mm, center_und_px, camera, slopes), c, distortion)


# --- distortion, supplement ------------------------------------------------------------------


def distort_brown(point_und_px: npt.ArrayLike, c: npt.ArrayLike, brown: Brown) -> Vector:
    """x_Rd = x_R + radial + tangential (eq:deltaXrad to eq:yRD)."""
    x_R, y_R = np.asarray(point_und_px)
    c_x, c_y = np.asarray(c)
    x = x_R - c_x
    y = y_R - c_y
    r2 = x * x + y * y
    radial = brown.k0 * r2 + brown.k1 * r2**2 + brown.k2 * r2**3
    x_tan = brown.p0 * (r2 + 2 * x * x) + 2 * brown.p1 * x * y
    y_tan = brown.p1 * (r2 + 2 * y * y) + 2 * brown.p0 * x * y
    return np.array([x_R + x * radial + x_tan, y_R + y * radial + y_tan])


def distort_brown_jacobian(point_und_px: npt.ArrayLike, c: npt.ArrayLike, brown: Brown) -> Vector:
    """d x_Rd / d x_R, 2 by 2."""
    x_R, y_R = np.asarray(point_und_px)
    c_x, c_y = np.asarray(c)
    x = x_R - c_x
    y = y_R - c_y
    r2 = x * x + y * y
    radial = brown.k0 * r2 + brown.k1 * r2**2 + brown.k2 * r2**3
    slope = brown.k0 + 2 * brown.k1 * r2 + 3 * brown.k2 * r2**2  # d radial / d r2
    mixed = 2 * x * y * slope + 2 * brown.p0 * y + 2 * brown.p1 * x
    return np.array(
        [
            [1 + radial + 2 * x * x * slope + 6 * brown.p0 * x + 2 * brown.p1 * y, mixed],
            [mixed, 1 + radial + 2 * y * y * slope + 6 * brown.p1 * y + 2 * brown.p0 * x],
        ]
    )


def undistort_brown(point_raw_px: npt.ArrayLike, c: npt.ArrayLike, brown: Brown) -> Vector:
    """Invert `distort_brown` by Newton's method, starting at the recorded point.

    Convergence is judged on the real part; a few more steps then let the imaginary part of a
    complex step converge too. Raises ArithmeticError if there is no solution, or only one beyond
    the fold of the polynomial, where the distorted radius decreases again.
    """
    recorded = np.asarray(point_raw_px)
    point = recorded
    extra = 4
    for _ in range(60):
        misfit = recorded - distort_brown(point, c, brown)
        (a, b), (d, e) = distort_brown_jacobian(point, c, brown)
        determinant = a * e - b * d
        if determinant == 0:
            break
        step = np.array(
            [
                (e * misfit[0] - b * misfit[1]) / determinant,
                (a * misfit[1] - d * misfit[0]) / determinant,
            ]
        )
        point = point + step
        if np.sum(np.real(step) ** 2) < 1e-8**2:
            extra -= 1
        if extra < 0:
            if np.real(determinant) <= 0 or np.real(a + e) <= 0:
                break
            return point
    raise ArithmeticError(f"no undistorted point found for {np.real(recorded)} px")


def distort_division(point_und_px: npt.ArrayLike, c: npt.ArrayLike, division: Division) -> Vector:
    """x_d = c + x_u 2 / (1 + sqrt(1 - 4 lambda r_u^2)), x_u and r_u counted from c."""
    x_R, y_R = np.asarray(point_und_px)
    c_x, c_y = np.asarray(c)
    x = x_R - c_x
    y = y_R - c_y
    stretch = 2.0 / (1.0 + np.sqrt(1.0 - 4.0 * division.lam * (x * x + y * y)))
    return np.array([c_x + x * stretch, c_y + y * stretch])


def undistort_division(point_raw_px: npt.ArrayLike, c: npt.ArrayLike, division: Division) -> Vector:
    """x_u = c + (x_d - c) / (1 + lambda r_d^2)."""
    x_Rd, y_Rd = np.asarray(point_raw_px)
    c_x, c_y = np.asarray(c)
    x = x_Rd - c_x
    y = y_Rd - c_y
    shrink = 1.0 / (1.0 + division.lam * (x * x + y * y))
    return np.array([c_x + x * shrink, c_y + y * shrink])


def distort(point_und_px: npt.ArrayLike, c: npt.ArrayLike, distortion: Distortion) -> Vector:
    """Ideal to recorded raw px."""
    if isinstance(distortion, Brown):
        return distort_brown(point_und_px, c, distortion)
    if isinstance(distortion, Division):
        return distort_division(point_und_px, c, distortion)
    return np.array(point_und_px)


def undistort(point_raw_px: npt.ArrayLike, c: npt.ArrayLike, distortion: Distortion) -> Vector:
    """Recorded to ideal raw px."""
    if isinstance(distortion, Brown):
        return undistort_brown(point_raw_px, c, distortion)
    if isinstance(distortion, Division):
        return undistort_division(point_raw_px, c, distortion)
    return np.array(point_raw_px)


# --- the array of pinholes -------------------------------------------------------------------


def pinholes_from_camera(camera: Camera) -> Pinholes:
    """(F, c, alpha, beta) of a camera."""
    L = camera.b_L0 + camera.B
    return Pinholes(
        F=L / camera.s,
        c_x=camera.c_x,
        c_y=camera.c_y,
        alpha=(L / camera.B) * (1.0 - camera.b_L0 / camera.f_L),
        beta=(L / camera.B) * camera.b_L0,
    )


def camera_from_pinholes(pinholes: Pinholes, s: Scalar) -> Camera:
    """The paper's parameters of an array of pinholes, given the pixel size."""
    L = pinholes.F * s
    B = L * L / (pinholes.beta + L)
    b_L0 = L - B
    f_L = b_L0 / (1.0 - pinholes.alpha * B / L)
    return Camera(f_L=f_L, b_L0=b_L0, B=B, c_x=pinholes.c_x, c_y=pinholes.c_y, s=s)


def project_from_pinholes(
    point_cam_mm: npt.ArrayLike,
    center_raw_px: npt.ArrayLike,
    pinholes: Pinholes,
    s: Scalar,
    distortion: Distortion,
    t: npt.ArrayLike | None = None,
) -> Vector:
    """Run the paper's chain for a camera given as (F, c, alpha, beta): convert back, `project`.

    The result does not depend on s, which only determines the unit of intermediate lengths.
    """
    return project(point_cam_mm, center_raw_px, camera_from_pinholes(pinholes, s), distortion, t)


def project_equivalent(
    point_cam_mm: npt.ArrayLike, center_und_px: npt.ArrayLike, pinholes: Pinholes
) -> Vector:
    """x_R = C + (F (x, y) + (c - C) z) / (alpha z + beta): the equivalence, without distortion."""
    x, y, z = np.asarray(point_cam_mm)
    C_x, C_y = np.asarray(center_und_px)
    w = pinholes.alpha * z + pinholes.beta
    return np.array(
        [
            C_x + (pinholes.F * x + (pinholes.c_x - C_x) * z) / w,
            C_y + (pinholes.F * y + (pinholes.c_y - C_y) * z) / w,
        ]
    )


# --- pose ------------------------------------------------------------------------------------


def cross_matrix(w: npt.ArrayLike) -> Vector:
    """[w]x, so that [w]x y = w x y."""
    w_x, w_y, w_z = np.asarray(w)
    zero = 0.0 * w_x
    return np.array([[zero, -w_z, w_y], [w_z, zero, -w_x], [-w_y, w_x, zero]])


def rotation_exponential(w: npt.ArrayLike) -> Vector:
    """exp([w]x) by the exponential series, which needs no angle and so no special case at 0.

    Sixty terms are exact up to rounding for angles up to a full turn, more than the tests need.
    """
    if np.sum(np.real(np.asarray(w)) ** 2) > (2 * np.pi) ** 2:
        raise ArithmeticError("the rotation vector is longer than a full turn")
    generator = cross_matrix(w)
    term = np.eye(3, dtype=generator.dtype)
    total = np.eye(3, dtype=generator.dtype)
    for k in range(1, 60):
        term = term @ generator / k
        total = total + term
    return total


def transform_point(
    point_world_mm: npt.ArrayLike,
    rotation: npt.ArrayLike,
    translation_mm: npt.ArrayLike,
    w: npt.ArrayLike = (0.0, 0.0, 0.0),
    tau: npt.ArrayLike = (0.0, 0.0, 0.0),
) -> Vector:
    """X_C = exp([w]x) (R X_W + t) + tau: the pose (R, t) with a small motion (w, tau) after it."""
    moved = np.asarray(rotation) @ np.asarray(point_world_mm) + np.asarray(translation_mm)
    return rotation_exponential(w) @ moved + np.asarray(tau)


def project_world(
    point_world_mm: npt.ArrayLike,
    rotation: npt.ArrayLike,
    translation_mm: npt.ArrayLike,
    w: npt.ArrayLike,
    tau: npt.ArrayLike,
    center_raw_px: npt.ArrayLike,
    camera: Camera,
    distortion: Distortion,
    t: npt.ArrayLike | None = None,
) -> Vector:
    """x_Rd of a world point: `transform_point`, then `project`."""
    point_cam_mm = transform_point(point_world_mm, rotation, translation_mm, w, tau)
    return project(point_cam_mm, center_raw_px, camera, distortion, t)
