"""Compiled loops of the bundle adjustment: residuals, normal matrices, Schur elimination.

Observations are sorted by (point, view). A pair is one point in one view. All observations of a
pair share the point in camera coordinates X, so their normal matrix is accumulated in X and the
intrinsics, and expanded to pose and point once for each pair.

The intrinsics `theta` are F, c_x, c_y, alpha, beta, the distortion coefficients, the tilt t_x, t_y
of the array (if there is one) and, with the focus term, its strength g and the inverse focal plane
of each lens type.

Sums are reproducible: every sum is written by one thread, or is split into chunks that do not
depend on the number of threads and are added in order.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from lifcal.arrays import BoolArray, FloatArray, IntArray
from lifcal.camera._kernels import (
    ALPHA,
    BETA,
    C_X,
    C_Y,
    F,
    distort_by_parameters,
    distort_point,
)
from lifcal.geometry._kernels import take_median
from lifcal.threads import UNCOUNTED, in_parts

FOCUS_OFF = 0
FOCUS_LINEAR = 1
FOCUS_OVERLAP = 2
FOCUS_DEVIGNETTED = 3

LOSS_NONE = 0
LOSS_HUBER = 1
LOSS_CAUCHY = 2

DISTORTION = 5
"""Entry of `theta` at which the distortion coefficients begin; `F` to `BETA` are before them, and
the tilt follows them."""
POINT = 3
"""Number of columns of a Jacobian row that are derivatives by X. The derivative by theta[i] is in
column POINT + i."""
WHITE_XX, WHITE_XY, WHITE_YY = 0, 1, 2
"""Columns of the upper triangular matrices that whiten residuals."""
FIT_X, FIT_Y, FIT_RHO = 0, 1, 2
"""Columns of a fitted virtual point: X_u / u, Y_u / u and 1 / u."""

# A product and a sum may become one instruction, and a division by zero gives what IEEE says; NaN
# keeps its meaning.
_PARTS: Any = {"error_model": "numpy", "fastmath": {"contract"}}
_OPTIONS: Any = {"cache": True, **_PARTS}

VIEWS_PER_GROUP = 8
"""Views whose rows of the reduced system one task builds. Their strips must fit into the cache;
more groups would walk through all points more often."""
NEWTON_STEPS = 8
"""Newton steps for the place where a devignetted point is seen. Three are enough except at the edge
of the micro image's core."""
_NEAR_CENTER_PX = 1e-9
"""Distance from the micro-image center below which the limit of the focus term is used."""
_LEAST_PIVOT = 1e-14
"""Least pivot of a point's normal matrix relative to its trace; below it the point is not
determined."""
_MOST_CANDIDATES = 60
"""Approximate number of candidates that a robust fit of a virtual point tries."""
_REWEIGHTINGS = 5
"""Reweighted least-squares steps that follow; more do not change the fit."""
_LEAST_SPREAD_PX2 = 1e-6
"""Least squared distance of two centers that a virtual depth is computed from."""


class FocusModel(NamedTuple):
    """Shape of the focus term and radii of its discs, px.

    Parameters
    ----------
    shape : int
        `FOCUS_OFF` to `FOCUS_DEVIGNETTED`.
    main : float
    micro : (n_types,) float64
    """

    shape: int
    main: float
    micro: FloatArray


class CameraForm(NamedTuple):
    """Which formulas the camera has.

    Parameters
    ----------
    distortion : int
        Distortion formula, see `lifcal.camera._kernels`.
    focus : FocusModel
    n_tilt : int
        Number of tilt parameters, 0 or 2.
    """

    distortion: int
    focus: FocusModel
    n_tilt: int


class Camera(NamedTuple):
    """Intrinsics of the camera.

    Parameters
    ----------
    theta : (n_theta,) float64
        See the module's docstring.
    k : (n_k,) float64
        Distortion coefficients, which are also part of theta.
    form : CameraForm
    """

    theta: FloatArray
    k: FloatArray
    form: CameraForm


class Scene(NamedTuple):
    """Poses and points.

    Parameters
    ----------
    rotations, translations : (n_views, 3, 3) and (n_views, 3) float64
        From world to camera coordinates.
    points : (n_points, 3) float64
        World coordinates.
    """

    rotations: FloatArray
    translations: FloatArray
    points: FloatArray


class Pairs(NamedTuple):
    """(point, view) pairs.

    Parameters
    ----------
    points, views : (n_pairs,) int64
    first_obs : (n_pairs + 1,) int64
        The observations of pair i are first_obs[i] to first_obs[i + 1].
    """

    points: IntArray
    views: IntArray
    first_obs: IntArray


class Observed(NamedTuple):
    """Observations in micro images.

    Parameters
    ----------
    centers : (n_obs,) int64
        Row of `lifcal.camera._kernels.Centers`.
    xy : (n_obs, 2) float64
        Recorded place, raw px.
    types : (n_obs,) int64
        Lens type.
    whitening : (n_obs, 3) float64
        `WHITE_XX`, `WHITE_XY` and `WHITE_YY`.
    active : (n_obs,) bool
        Observations that count.
    """

    centers: IntArray
    xy: FloatArray
    types: IntArray
    whitening: FloatArray
    active: BoolArray


class LossModel(NamedTuple):
    """A robust loss, see `lifcal.bundle.linear.Loss`."""

    kind: int
    scale: float
    inverse_noise: float
    bends: bool


class Normals(NamedTuple):
    """Normal matrices of a linearization.

    Parameters
    ----------
    pairs : (n_pairs, 3, 4 + n_theta) float64
        Rows of X of each pair: by X, by the intrinsics, gradient.
    chunks : (n_chunks, n_theta, n_theta + 1) float64
        Upper triangle of the intrinsics and their gradient.
    costs : (n_chunks,) float64
        Sums of the loss.
    """

    pairs: FloatArray
    chunks: FloatArray
    costs: FloatArray


class PointPairs(NamedTuple):
    """Pairs by point, and where the coupling of each pair is stored.

    Parameters
    ----------
    first : (n_points + 1,) int64
        The pairs of point i are first[i] to first[i + 1].
    views : (n_pairs,) int64
    kept : (n_points,) bool
        Points that are not eliminated.
    places : (n_pairs,) int64
        Index in `Eliminated.pair_half` of the first entry of a pair's (3, 6) coupling.
    strides : (n_points,) int64
        Distance from one row of a coupling to the next.
    """

    first: IntArray
    views: IntArray
    kept: BoolArray
    places: IntArray
    strides: IntArray


class Eliminated(NamedTuple):
    """Factors of the points' normal matrices, L L^T, and the couplings divided by L.

    Parameters
    ----------
    factors : (n_points, 3, 3) float64
        L; zero for kept points.
    pair_half : (size,) float64
        L^-1 W for the pose of each pair, placed as `PointPairs` says.
    point_half : (n_points, 3, n_theta + 1) float64
        L^-1 W for the intrinsics, and for the gradient.
    """

    factors: FloatArray
    pair_half: FloatArray
    point_half: FloatArray


class Reduced(NamedTuple):
    """The reduced system of the poses.

    Parameters
    ----------
    row_slots : (n_views, n_views) int64
        Index of the block of two views, upper triangle; -1 where there is none.
    blocks : (n_blocks, 6, 6) float64
    borders : (n_views, 6, n_theta + 1) float64
        Coupling to the intrinsics, and gradient, with the points eliminated.
    diagonals, gradients : (n_views, 6) float64
        Diagonal and gradient without the elimination.
    """

    row_slots: IntArray
    blocks: FloatArray
    borders: FloatArray
    diagonals: FloatArray
    gradients: FloatArray


class Magnification(NamedTuple):
    """Focus term of one micro image: h, its derivatives, and that of g h by g.

    `by_m` is (dh / dm) / m; `by_plane` is the derivative by the inverse focal plane.
    """

    h: float
    by_m: float
    by_u: float
    by_plane: float
    by_g: float


class Seen(NamedTuple):
    """Where a point is seen in a micro image, and what its derivatives need.

    Parameters
    ----------
    x, y : float
        Recorded place; NaN where the point is not in front of the camera.
    rx, ry : float
        The point before distortion, relative to c.
    mx, my : float
        Offset in the micro image without the focus term.
    w : float
        Denominator of the lens.
    h, h_by_m, h_by_u, h_by_plane, h_by_g : float
        Fields of the focus term's `Magnification`.
    jxx, jxy, jyx, jyy : float
        Derivative of the distortion.
    """

    x: float
    y: float
    rx: float
    ry: float
    mx: float
    my: float
    w: float
    h: float
    h_by_m: float
    h_by_u: float
    h_by_plane: float
    h_by_g: float
    jxx: float
    jxy: float
    jyx: float
    jyy: float


@njit(**_OPTIONS, **UNCOUNTED)
def overlap_centroid(a, b, d):
    """Return the centroid of the overlap of two discs, as a distance from the center of disc a.

    The two other values are its derivatives by the radius a and by the distance d of the centers.
    Discs that do not overlap give the limit: the point of disc a that is nearest to disc b.
    """
    if d >= a + b:
        return a, 1.0, 0.0
    if d <= abs(a - b):
        if b <= a:
            return d, 0.0, 1.0
        return 0.0, 0.0, 0.0
    chord_a = (d * d + a * a - b * b) / (2.0 * d)
    chord_b = d - chord_a
    half = math.sqrt(max(a * a - chord_a * chord_a, 0.0))
    angle_a = math.acos(min(max(chord_a / a, -1.0), 1.0))
    angle_b = math.acos(min(max(chord_b / b, -1.0), 1.0))
    segment_b = b * b * angle_b - chord_b * half
    area = a * a * angle_a - chord_a * half + segment_b
    if not area > 0.0:
        return a, 1.0, 0.0
    centroid = d * segment_b / area
    segment_by_a = 2.0 * half * a / d
    segment_by_d = -half * (1.0 + (a * a - b * b) / (d * d))
    by_a = (d * segment_by_a - centroid * 2.0 * a * angle_a) / area
    by_d = (segment_b + d * segment_by_d + centroid * 2.0 * half) / area
    return centroid, by_a, by_d


@njit(**_OPTIONS, **UNCOUNTED)
def focus_magnification(shape, strength, inverse_plane, main, micro, m, u):
    """Return the `Magnification` of the focus term.

    Defocus magnifies a micro image by 1 + g h about its center. `m` is the distance from the
    center, `inverse_plane` is 1 / u_T, `strength` is g.
    """
    if shape == FOCUS_LINEAR:
        h = inverse_plane - 1.0 / u
        return Magnification(h, 0.0, 1.0 / (u * u), 1.0, h)
    if shape == FOCUS_OVERLAP:
        # On the sensor the micro aperture has the radius micro |u_T / u|, and the centroid of the
        # overlap is multiplied by the defocus (1 / u_T - 1 / u) u.
        defocus = u * inverse_plane - 1.0
        a = micro / abs(u * inverse_plane)
        if m < _NEAR_CENTER_PX:
            share = 1.0 if main <= a else 0.0
            return Magnification(
                defocus * share, 0.0, share * inverse_plane, share * u, defocus * share
            )
        centroid, by_a, by_d = overlap_centroid(a, main, m)
        share = centroid / m
        shrink = defocus * by_a * a / m
        return Magnification(
            defocus * share,
            defocus * (by_d - share) / (m * m),
            share * inverse_plane - shrink / u,
            share * u - shrink / inverse_plane,
            defocus * share,
        )
    if shape == FOCUS_DEVIGNETTED:
        # A pixel shows the mean over the overlap that the white image has at that pixel, so the
        # centroid is taken where the point is seen: t = defocus centroid(m + g t), h = t / m.
        defocus = 1.0 - 1.0 / (u * inverse_plane)
        by_u = 1.0 / (u * u * inverse_plane)
        by_plane = 1.0 / (u * inverse_plane * inverse_plane)
        if m < _NEAR_CENTER_PX:
            share = 1.0 if main <= micro else 0.0
            rest = 1.0 / (1.0 - strength * defocus * share)
            h = defocus * share * rest
            more = share * rest * rest
            return Magnification(h, 0.0, more * by_u, more * by_plane, h * rest)
        t = 0.0
        for _ in range(NEWTON_STEPS):
            centroid, _, by_d = overlap_centroid(micro, main, max(m + strength * t, 0.0))
            step = (t - defocus * centroid) / (1.0 - strength * defocus * by_d)
            t -= step
            if abs(step) < 1e-14:
                break
        centroid, _, by_d = overlap_centroid(micro, main, max(m + strength * t, 0.0))
        rest = 1.0 / (1.0 - strength * defocus * by_d)
        h = t / m
        share = centroid * rest / m
        return Magnification(
            h,
            (defocus * by_d * rest - h) / (m * m),
            share * by_u,
            share * by_plane,
            h * rest,
        )
    return Magnification(0.0, 0.0, 0.0, 0.0, 0.0)


@njit(**_OPTIONS, **UNCOUNTED)
def lens_tilt(theta, n_k, n_tilt, center_x, center_y):
    """Return tau of a lens: the relative difference of its B_k / b_k from that at c."""
    if n_tilt == 0:
        return 0.0
    t = DISTORTION + n_k
    return theta[t] * (center_x - theta[C_X]) + theta[t + 1] * (center_y - theta[C_Y])


@njit(**_OPTIONS, **UNCOUNTED)
def seen_point(theta, k, form, x, y, z, center_x, center_y, kind):
    """Return the `Seen` of a point in camera coordinates, in the micro image at a center.

    The first three arguments are the fields of a `Camera`. The callers read them once, because
    reading an array from a pack costs as much as some arithmetic. `kind` is the lens type.
    """
    cx = theta[C_X]
    cy = theta[C_Y]
    tau = lens_tilt(theta, k.shape[0], form.n_tilt, center_x, center_y)
    w = (theta[ALPHA] * z + theta[BETA] + tau * z) / (1.0 + tau)
    if not z > 0.0 or w == 0.0 or not tau > -1.0:
        w = math.nan
    mx = (theta[F] * x + (cx - center_x) * z) / w
    my = (theta[F] * y + (cy - center_y) * z) / w
    h = 0.0
    h_m = 0.0
    h_u = 0.0
    h_p = 0.0
    h_g = 0.0
    scale = 1.0
    if form.focus.shape != FOCUS_OFF:
        focus = form.focus
        g = DISTORTION + k.shape[0] + form.n_tilt
        m = math.sqrt(mx * mx + my * my)
        # All micro lenses of a type have one focal length. Where the array is farther from the
        # sensor, another virtual depth is in focus: 1 - 1 / u_T is in proportion to B_k.
        inverse_plane = 1.0 - (1.0 - theta[g + 1 + kind]) * (1.0 + tau)
        h, h_m, h_u, h_p, h_g = focus_magnification(
            focus.shape, theta[g], inverse_plane, focus.main, focus.micro[kind], m, w / z
        )
        scale = 1.0 + theta[g] * h
    rx = center_x - cx + mx * scale
    ry = center_y - cy + my * scale
    xd, yd, jxx, jxy, jyx, jyy = distort_point(form.distortion, k, rx, ry)
    return Seen(xd + cx, yd + cy, rx, ry, mx, my, w, h, h_m, h_u, h_p, h_g, jxx, jxy, jyx, jyy)


@njit(**_OPTIONS, **UNCOUNTED)
def robust_loss(loss, scale, s):
    """Return the loss rho(s) of a squared whitened residual s, and its first two derivatives.

    For small s, rho(s) is about s.
    """
    if loss == LOSS_HUBER:
        limit = scale * scale
        if s > limit:
            root = math.sqrt(s)
            return 2.0 * scale * root - limit, scale / root, 0.0
        return s, 1.0, 0.0
    if loss == LOSS_CAUCHY:
        limit = scale * scale
        q = 1.0 / (1.0 + s / limit)
        return limit * math.log1p(s / limit), q, -q * q / limit
    return s, 1.0, 0.0


@njit(**_OPTIONS, **UNCOUNTED)
def camera_point(scene, view, point):
    """Return a point in the camera coordinates of a view."""
    px = scene.points[point, 0]
    py = scene.points[point, 1]
    pz = scene.points[point, 2]
    r = scene.rotations[view]
    t = scene.translations[view]
    return (
        r[0, 0] * px + r[0, 1] * py + r[0, 2] * pz + t[0],
        r[1, 0] * px + r[1, 1] * py + r[1, 2] * pz + t[1],
        r[2, 0] * px + r[2, 1] * py + r[2, 2] * pz + t[2],
    )


@in_parts(lambda pairs: len(pairs.points), least=16, **_PARTS, **UNCOUNTED)
def compute_residuals(begin, end, camera, scene, pairs, observed, centers, out):
    """Fill `out` (n_obs, 2) with seen minus measured, in raw px, not weighted."""
    theta, k, form = camera.theta, camera.k, camera.form
    pair_points, pair_views, first_obs = pairs.points, pairs.views, pairs.first_obs
    center_index, xy, types = observed.centers, observed.xy, observed.types
    places = centers.places
    for pair in range(begin, end):
        x, y, z = camera_point(scene, pair_views[pair], pair_points[pair])
        for i in range(first_obs[pair], first_obs[pair + 1]):
            c = center_index[i]
            seen = seen_point(theta, k, form, x, y, z, places[c, 0], places[c, 1], types[i])
            out[i, 0] = seen.x - xy[i, 0]
            out[i, 1] = seen.y - xy[i, 1]


@in_parts(lambda chunk_pairs: len(chunk_pairs) - 1, **_PARTS, **UNCOUNTED)
def compute_cost(begin, end, camera, scene, pairs, observed, centers, loss, chunk_pairs, costs):
    """Fill `costs` (n_chunks,) with the sums of the loss over the active observations.

    The cost is NaN if one of them has no projection. Chunk i has the pairs chunk_pairs[i] to
    chunk_pairs[i + 1].
    """
    theta, k, form = camera.theta, camera.k, camera.form
    pair_points, pair_views, first_obs = pairs.points, pairs.views, pairs.first_obs
    center_index, xy, types = observed.centers, observed.xy, observed.types
    whitening, active, places = observed.whitening, observed.active, centers.places
    inverse_noise = loss.inverse_noise
    for chunk in range(begin, end):
        total = 0.0
        for pair in range(chunk_pairs[chunk], chunk_pairs[chunk + 1]):
            x, y, z = camera_point(scene, pair_views[pair], pair_points[pair])
            for i in range(first_obs[pair], first_obs[pair + 1]):
                if not active[i]:
                    continue
                c = center_index[i]
                seen = seen_point(theta, k, form, x, y, z, places[c, 0], places[c, 1], types[i])
                ex = seen.x - xy[i, 0]
                ey = seen.y - xy[i, 1]
                ax = (whitening[i, WHITE_XX] * ex + whitening[i, WHITE_XY] * ey) * inverse_noise
                ay = whitening[i, WHITE_YY] * ey * inverse_noise
                rho, _, _ = robust_loss(loss.kind, loss.scale, ax * ax + ay * ay)
                total += rho
        costs[chunk] = total


@njit(**_OPTIONS, **UNCOUNTED)
def fill_rows(theta, k, form, x, y, z, centers, c, kind, row_x, row_y, tail):
    """Fill the two Jacobian rows of an observation; return where the point is seen.

    The rows are by X and by the intrinsics (`POINT`). The first three arguments are the fields of a
    `Camera`, as for `seen_point`. `c` is the row of `centers`, `kind` the lens
    type; `tail` (2, n_k) is scratch space for the distortion's columns.
    """
    center_x = centers.places[c, 0]
    center_y = centers.places[c, 1]
    center_by_c = centers.by_c[c]
    center_by_k = centers.by_k[c]
    n_k = k.shape[0]
    seen = seen_point(theta, k, form, x, y, z, center_x, center_y, kind)
    rx, ry, mx, my, w = seen.rx, seen.ry, seen.mx, seen.my, seen.w
    jxx, jxy, jyx, jyy = seen.jxx, seen.jxy, seen.jyx, seen.jyy
    h, h_m, h_u, h_p, h_g = seen.h, seen.h_by_m, seen.h_by_u, seen.h_by_plane, seen.h_by_g
    shape, n_tilt = form.focus.shape, form.n_tilt
    focal = theta[F]
    tau = lens_tilt(theta, n_k, n_tilt, center_x, center_y)
    shrink = 1.0 / (1.0 + tau)
    alpha = (theta[ALPHA] + tau) * shrink
    first_tilt = DISTORTION + n_k
    first_focus = first_tilt + n_tilt
    inv = 1.0 / w
    direct = z * inv
    # d(seen) = J (M dm + q du), with the distortion's derivative J.
    if shape != FOCUS_OFF:
        g = theta[first_focus]
        scale = 1.0 + g * h
        bend = g * h_m
        mxx = scale + bend * mx * mx
        mxy = bend * mx * my
        myy = scale + bend * my * my
        dxx = jxx * mxx + jxy * mxy
        dxy = jxx * mxy + jxy * myy
        dyx = jyx * mxx + jyy * mxy
        dyy = jyx * mxy + jyy * myy
        qx = g * h_u * (jxx * mx + jxy * my)
        qy = g * h_u * (jyx * mx + jyy * my)
    else:
        dxx = jxx
        dxy = jxy
        dyx = jyx
        dyy = jyy
        qx = 0.0
        qy = 0.0
    u_z = -theta[BETA] * shrink / (z * z)
    # By the point.
    s = focal * inv
    row_x[0] = dxx * s
    row_y[0] = dyx * s
    row_x[1] = dxy * s
    row_y[1] = dyy * s
    ax = (theta[C_X] - center_x - mx * alpha) * inv
    ay = (theta[C_Y] - center_y - my * alpha) * inv
    row_x[2] = dxx * ax + dxy * ay + qx * u_z
    row_y[2] = dyx * ax + dyy * ay + qy * u_z
    # By F.
    row_x[POINT + F] = (dxx * x + dxy * y) * inv
    row_y[POINT + F] = (dyx * x + dyy * y) * inv
    # By alpha and beta, through the denominator of the lens.
    gx = -(dxx * mx + dxy * my) * inv * shrink
    gy = -(dyx * mx + dyy * my) * inv * shrink
    row_x[POINT + ALPHA] = gx * z + qx * shrink
    row_y[POINT + ALPHA] = gy * z + qy * shrink
    row_x[POINT + BETA] = gx + qx * shrink / z
    row_y[POINT + BETA] = gy + qy * shrink / z
    # By the undistorted center: J - direct D.
    bxx = jxx - direct * dxx
    bxy = jxy - direct * dxy
    byx = jyx - direct * dyx
    byy = jyy - direct * dyy
    # By c: through the pinhole, and as the center of the distortion.
    row_x[POINT + C_X] = direct * dxx + 1.0 - jxx
    row_y[POINT + C_X] = direct * dyx - jyx
    row_x[POINT + C_Y] = direct * dxy - jxy
    row_y[POINT + C_Y] = direct * dyy + 1.0 - jyy
    if n_tilt > 0:
        # By the tilt, and through tau by the center and by c.
        by_tau_x = gx * (z - w) + qx * shrink * (1.0 - w / z)
        by_tau_y = gy * (z - w) + qy * shrink * (1.0 - w / z)
        if shape != FOCUS_OFF:
            by_plane = theta[first_focus] * h_p * (theta[first_focus + 1 + kind] - 1.0)
            by_tau_x += by_plane * (jxx * mx + jxy * my)
            by_tau_y += by_plane * (jyx * mx + jyy * my)
        t_x = theta[first_tilt]
        t_y = theta[first_tilt + 1]
        row_x[POINT + first_tilt] = by_tau_x * (center_x - theta[C_X])
        row_y[POINT + first_tilt] = by_tau_y * (center_x - theta[C_X])
        row_x[POINT + first_tilt + 1] = by_tau_x * (center_y - theta[C_Y])
        row_y[POINT + first_tilt + 1] = by_tau_y * (center_y - theta[C_Y])
        bxx += by_tau_x * t_x
        bxy += by_tau_x * t_y
        byx += by_tau_y * t_x
        byy += by_tau_y * t_y
        row_x[POINT + C_X] -= by_tau_x * t_x
        row_y[POINT + C_X] -= by_tau_y * t_x
        row_x[POINT + C_Y] -= by_tau_x * t_y
        row_y[POINT + C_Y] -= by_tau_y * t_y
    # By c, through the center.
    row_x[POINT + C_X] += bxx * center_by_c[0, 0] + bxy * center_by_c[1, 0]
    row_y[POINT + C_X] += byx * center_by_c[0, 0] + byy * center_by_c[1, 0]
    row_x[POINT + C_Y] += bxx * center_by_c[0, 1] + bxy * center_by_c[1, 1]
    row_y[POINT + C_Y] += byx * center_by_c[0, 1] + byy * center_by_c[1, 1]
    # By the distortion: at the point itself, and through the center.
    if n_k > 0:
        distort_by_parameters(form.distortion, k, rx, ry, tail)
        for j in range(n_k):
            sx = center_by_k[0, j]
            sy = center_by_k[1, j]
            row_x[POINT + DISTORTION + j] = tail[0, j] + bxx * sx + bxy * sy
            row_y[POINT + DISTORTION + j] = tail[1, j] + byx * sx + byy * sy
    # By the focus strength and the inverse focal planes.
    if shape != FOCUS_OFF:
        px = jxx * mx + jxy * my
        py = jyx * mx + jyy * my
        strength = POINT + first_focus
        row_x[strength] = h_g * px
        row_y[strength] = h_g * py
        for j in range(strength + 1, row_x.shape[0]):
            row_x[j] = 0.0
            row_y[j] = 0.0
        row_x[strength + 1 + kind] = theta[first_focus] * h_p * (1.0 + tau) * px
        row_y[strength + 1 + kind] = theta[first_focus] * h_p * (1.0 + tau) * py
    return seen.x, seen.y


@in_parts(lambda pairs: len(pairs.points), least=16, **_PARTS)
def compute_rows(begin, end, camera, scene, pairs, observed, centers, rows):
    """Fill `rows` (n_obs, 2, POINT + n_theta): by X in camera coordinates and the intrinsics."""
    theta, k, form = camera.theta, camera.k, camera.form
    for pair in range(begin, end):
        tail = np.zeros((2, max(k.shape[0], 1)))
        x, y, z = camera_point(scene, pairs.views[pair], pairs.points[pair])
        for i in range(pairs.first_obs[pair], pairs.first_obs[pair + 1]):
            c = observed.centers[i]
            kind = observed.types[i]
            fill_rows(theta, k, form, x, y, z, centers, c, kind, rows[i, 0], rows[i, 1], tail)


@in_parts(lambda chunk_pairs: len(chunk_pairs) - 1, **_PARTS)
def linearize(begin, end, camera, scene, pairs, observed, centers, loss, chunk_pairs, normals):
    """Accumulate the normal matrices and the cost, a `Normals`.

    The costs are those of `compute_cost`.
    """
    theta, k, form = camera.theta, camera.k, camera.form
    pair_points, pair_views, first_obs = pairs.points, pairs.views, pairs.first_obs
    center_index, xy, types = observed.centers, observed.xy, observed.types
    whitening, active = observed.whitening, observed.active
    inverse_noise = loss.inverse_noise
    pair_normal, chunk_normal, costs = normals.pairs, normals.chunks, normals.costs
    n_theta = theta.shape[0]
    n = POINT + n_theta
    for chunk in range(begin, end):
        row_x = np.zeros(n)
        row_y = np.zeros(n)
        tail = np.zeros((2, max(k.shape[0], 1)))
        normal = np.zeros((n, n + 1))
        total = 0.0
        own = chunk_normal[chunk]
        own[:, :] = 0.0
        for pair in range(chunk_pairs[chunk], chunk_pairs[chunk + 1]):
            x, y, z = camera_point(scene, pair_views[pair], pair_points[pair])
            for a in range(POINT):
                for b in range(n + 1):
                    normal[a, b] = 0.0
            for i in range(first_obs[pair], first_obs[pair + 1]):
                if not active[i]:
                    continue
                c = center_index[i]
                kind = types[i]
                xd, yd = fill_rows(theta, k, form, x, y, z, centers, c, kind, row_x, row_y, tail)
                ex = xd - xy[i, 0]
                ey = yd - xy[i, 1]
                w0 = whitening[i, WHITE_XX] * inverse_noise
                w1 = whitening[i, WHITE_XY] * inverse_noise
                w2 = whitening[i, WHITE_YY] * inverse_noise
                ax = w0 * ex + w1 * ey
                ay = w2 * ey
                s = ax * ax + ay * ay
                rho, weight, second = robust_loss(loss.kind, loss.scale, s)
                total += rho
                # Gradient and curvature of the loss. Along the residual the exact curvature is
                # weight + 2 second s, replaced by zero where it is negative. Far from the solution
                # only the weight is used, which converges sooner from there.
                gx = weight * w0 * ax
                gy = weight * (w1 * ax + w2 * ay)
                ixx = weight * w0 * w0
                ixy = weight * w0 * w1
                iyy = weight * (w1 * w1 + w2 * w2)
                if loss.bends and second != 0.0:
                    bend = max(2.0 * second, -weight / s)
                    ox = w0 * ax
                    oy = w1 * ax + w2 * ay
                    ixx += bend * ox * ox
                    ixy += bend * ox * oy
                    iyy += bend * oy * oy
                for a in range(n):
                    px = ixx * row_x[a] + ixy * row_y[a]
                    py = ixy * row_x[a] + iyy * row_y[a]
                    line = normal[a]
                    for b in range(a, n):
                        line[b] += px * row_x[b] + py * row_y[b]
                    line[n] += gx * row_x[a] + gy * row_y[a]
            out = pair_normal[pair]
            for a in range(POINT):
                for b in range(a):
                    out[a, b] = normal[b, a]
                for b in range(a, n + 1):
                    out[a, b] = normal[a, b]
        for a in range(n_theta):
            for b in range(n_theta + 1):
                own[a, b] = normal[POINT + a, POINT + b]
        costs[chunk] = total


@njit(**_OPTIONS, **UNCOUNTED)
def expand_to_pose(block, x, y, z, out):
    """Fill `out` (n, 6) with block (n, 3) @ [-[X]_x | I], the derivative by the step of a pose."""
    for a in range(block.shape[0]):
        bx = block[a, 0]
        by = block[a, 1]
        bz = block[a, 2]
        out[a, 0] = y * bz - z * by
        out[a, 1] = z * bx - x * bz
        out[a, 2] = x * by - y * bx
        out[a, 3] = bx
        out[a, 4] = by
        out[a, 5] = bz


@in_parts(lambda point_pairs: len(point_pairs.first) - 1, least=16, **_PARTS, **UNCOUNTED)
def sum_points(begin, end, scene, point_pairs, pair_normal, point_normal):
    """Fill `point_normal` (n_points, 3, 4 + n_theta): by the point, by the intrinsics, gradient.

    `pair_normal` is `Normals.pairs`, summed over the pairs of each point in world coordinates.
    """
    width = pair_normal.shape[2]
    for point in range(begin, end):
        out = point_normal[point]
        out[:, :] = 0.0
        for pair in range(point_pairs.first[point], point_pairs.first[point + 1]):
            r = scene.rotations[point_pairs.views[pair]]
            block = pair_normal[pair]
            for a in range(3):
                for b in range(3):
                    # (R^T A R)_ab
                    value = 0.0
                    for c in range(3):
                        value += r[c, a] * (
                            block[c, 0] * r[0, b] + block[c, 1] * r[1, b] + block[c, 2] * r[2, b]
                        )
                    out[a, b] += value
                for b in range(3, width):
                    out[a, b] += (
                        r[0, a] * block[0, b] + r[1, a] * block[1, b] + r[2, a] * block[2, b]
                    )


@in_parts(lambda chunk_points: len(chunk_points) - 1, **_PARTS)
def eliminate_points(
    begin,
    end,
    scene,
    point_pairs,
    pair_normal,
    point_normal,
    damping,
    chunk_points,
    eliminated,
    chunk_out,
    failed,
):
    """Factor each point's damped block L L^T and divide its coupling by L.

    `point_pairs` is a `PointPairs`, `eliminated` the `Eliminated` to fill. `chunk_out` (n_chunks,
    n_theta, n_theta + 1) gets the products of the couplings to the intrinsics and to the gradient.
    Kept points are not eliminated and get zeros. `failed` (n_chunks,), zero before, counts points
    whose block has no factor.
    """
    first, views, kept = point_pairs.first, point_pairs.views, point_pairs.kept
    half_places, half_strides = point_pairs.places, point_pairs.strides
    factors, pair_half, point_half = (
        eliminated.factors,
        eliminated.pair_half,
        eliminated.point_half,
    )
    n_theta = point_half.shape[2] - 1
    for chunk in range(begin, end):
        own = chunk_out[chunk]
        own[:, :] = 0.0
        coupling = np.empty((3, 3))
        wide = np.empty((3, 6))
        for point in range(chunk_points[chunk], chunk_points[chunk + 1]):
            lower = factors[point]
            half = point_half[point]
            row = half_strides[point]
            if kept[point]:
                lower[:, :] = 0.0
                half[:, :] = 0.0
                for pair in range(first[point], first[point + 1]):
                    place = half_places[pair]
                    for a in range(3):
                        pair_half[place + a * row : place + a * row + 6] = 0.0
                continue
            block = point_normal[point]
            l00 = block[0, 0] * (1.0 + damping)
            l11 = block[1, 1] * (1.0 + damping)
            l22 = block[2, 2] * (1.0 + damping)
            limit = _LEAST_PIVOT * (l00 + l11 + l22)
            l00 = math.sqrt(l00)
            l10 = block[1, 0] / l00
            l20 = block[2, 0] / l00
            l11 = l11 - l10 * l10
            good = l11 > limit
            l11 = math.sqrt(l11) if good else math.nan
            l21 = (block[2, 1] - l20 * l10) / l11
            l22 = l22 - l20 * l20 - l21 * l21
            good = good and l22 > limit
            l22 = math.sqrt(l22) if good else math.nan
            if not good:
                failed[chunk] += 1
            lower[0, 0] = l00
            lower[1, 0] = l10
            lower[2, 0] = l20
            lower[1, 1] = l11
            lower[2, 1] = l21
            lower[2, 2] = l22
            lower[0, 1] = 0.0
            lower[0, 2] = 0.0
            lower[1, 2] = 0.0
            for b in range(n_theta + 1):
                half[0, b] = block[0, 3 + b] / l00
                half[1, b] = (block[1, 3 + b] - l10 * half[0, b]) / l11
                half[2, b] = (block[2, 3 + b] - l20 * half[0, b] - l21 * half[1, b]) / l22
            for a in range(n_theta):
                for b in range(a, n_theta + 1):
                    own[a, b] += (
                        half[0, a] * half[0, b] + half[1, a] * half[1, b] + half[2, a] * half[2, b]
                    )
            for pair in range(first[point], first[point + 1]):
                view = views[pair]
                r = scene.rotations[view]
                x, y, z = camera_point(scene, view, point)
                normal = pair_normal[pair]
                for a in range(3):
                    for b in range(3):
                        coupling[a, b] = (
                            r[0, a] * normal[0, b] + r[1, a] * normal[1, b] + r[2, a] * normal[2, b]
                        )
                expand_to_pose(coupling, x, y, z, wide)
                place = half_places[pair]
                for b in range(6):
                    h0 = wide[0, b] / l00
                    h1 = (wide[1, b] - l10 * h0) / l11
                    pair_half[place + b] = h0
                    pair_half[place + row + b] = h1
                    pair_half[place + 2 * row + b] = (wide[2, b] - l20 * h0 - l21 * h1) / l22


@njit(**_OPTIONS)
def reduce_group(low, high, scene, point_pairs, pair_normal, eliminated, multiplied, reduced):
    """Fill the rows of the views low to high - 1; see `reduce_views`."""
    starts, pair_views = point_pairs.first, point_pairs.views
    half_places, half_strides = point_pairs.places, point_pairs.strides
    pair_half, point_half = eliminated.pair_half, eliminated.point_half
    row_slots, blocks, borders = reduced.row_slots, reduced.blocks, reduced.borders
    diagonals, gradients = reduced.diagonals, reduced.gradients
    n_theta = borders.shape[2] - 1
    n_views = row_slots.shape[1]
    # One strip of the matrix for each view of the group; all strips fit into the cache.
    strips = np.zeros((high - low, 6, 6 * n_views))
    own = np.zeros((high - low, 6, 6))
    narrow = np.empty((n_theta + 4, 3))
    wide = np.empty((n_theta + 4, 6))
    borders[low:high] = 0.0
    gradients[low:high] = 0.0
    for point in range(starts.shape[0] - 1):
        first = starts[point]
        end = starts[point + 1]
        row = half_strides[point]
        half = point_half[point]
        for pair in range(first + np.searchsorted(pair_views[first:end], low), end):
            view = pair_views[pair]
            if view >= high:
                break
            x, y, z = camera_point(scene, view, point)
            normal = pair_normal[pair]
            border = borders[view]
            block = own[view - low]
            # Rows by X (3), by the intrinsics, and the gradient, all times [-[X]_x | I].
            for a in range(n_theta + 4):
                for b in range(3):
                    narrow[a, b] = normal[b, a]
            expand_to_pose(narrow, x, y, z, wide)
            for b in range(6):
                vx = wide[0, b]
                vy = wide[1, b]
                vz = wide[2, b]
                block[0, b] += y * vz - z * vy
                block[1, b] += z * vx - x * vz
                block[2, b] += x * vy - y * vx
                block[3, b] += vx
                block[4, b] += vy
                block[5, b] += vz
                gradients[view, b] += wide[3 + n_theta, b]
            mine = half_places[pair]
            for a in range(6):
                m0 = pair_half[mine + a]
                m1 = pair_half[mine + row + a]
                m2 = pair_half[mine + 2 * row + a]
                for b in range(n_theta + 1):
                    border[a, b] += wide[3 + b, a] - (
                        m0 * half[0, b] + m1 * half[1, b] + m2 * half[2, b]
                    )
            if multiplied:
                continue
            # Couplings of consecutive views lie side by side, so one loop does them all.
            strip = strips[view - low]
            other = pair
            while other < end:
                stop = other + 1
                while stop < end and pair_views[stop] == pair_views[stop - 1] + 1:
                    stop += 1
                width = 6 * (stop - other)
                theirs = half_places[other]
                target = 6 * pair_views[other]
                for a in range(6):
                    m0 = pair_half[mine + a]
                    m1 = pair_half[mine + row + a]
                    m2 = pair_half[mine + 2 * row + a]
                    for b in range(width):
                        strip[a, target + b] -= (
                            m0 * pair_half[theirs + b]
                            + m1 * pair_half[theirs + row + b]
                            + m2 * pair_half[theirs + 2 * row + b]
                        )
                other = stop
    for view in range(low, high):
        for other in range(view, n_views):
            slot = row_slots[view, other]
            if slot >= 0:
                for a in range(6):
                    for b in range(6):
                        blocks[slot, a, b] = strips[view - low, a, 6 * other + b]
        slot = row_slots[view, view]
        for a in range(6):
            diagonals[view, a] = own[view - low, a, a]
            for b in range(6):
                blocks[slot, a, b] += own[view - low, a, b]


@in_parts(lambda reduced: -(-len(reduced.row_slots) // VIEWS_PER_GROUP), **_PARTS)
def reduce_views(begin, end, scene, point_pairs, pair_normal, eliminated, multiplied, reduced):
    """Build the reduced system of the poses, a `Reduced`; each group of views fills its own rows.

    If `multiplied`, the part of the points in `blocks` is left out: the caller subtracts it as one
    matrix product.
    """
    n_views = reduced.row_slots.shape[0]
    n_groups = (n_views + VIEWS_PER_GROUP - 1) // VIEWS_PER_GROUP
    for task in range(begin, end):
        # Take first and last groups in turn: the first have long rows, the last short ones.
        half = np.int64(task) // 2
        group = half if task % 2 == 0 else n_groups - 1 - half
        low = group * VIEWS_PER_GROUP
        reduce_group(
            low,
            min(low + VIEWS_PER_GROUP, n_views),
            scene,
            point_pairs,
            pair_normal,
            eliminated,
            multiplied,
            reduced,
        )


@in_parts(lambda point_pairs: len(point_pairs.first) - 1, least=16, **_PARTS, **UNCOUNTED)
def back_substitute(begin, end, point_pairs, eliminated, pose_steps, theta_step, out):
    """Fill `out` (n_points, 3) with the step of each eliminated point, zero for kept ones."""
    half_places, half_strides = point_pairs.places, point_pairs.strides
    pair_half = eliminated.pair_half
    n_theta = theta_step.shape[0]
    for point in range(begin, end):
        if point_pairs.kept[point]:
            out[point, :] = 0.0
            continue
        half = eliminated.point_half[point]
        v0 = -half[0, n_theta]
        v1 = -half[1, n_theta]
        v2 = -half[2, n_theta]
        for b in range(n_theta):
            v0 -= half[0, b] * theta_step[b]
            v1 -= half[1, b] * theta_step[b]
            v2 -= half[2, b] * theta_step[b]
        row = half_strides[point]
        for pair in range(point_pairs.first[point], point_pairs.first[point + 1]):
            place = half_places[pair]
            step = pose_steps[point_pairs.views[pair]]
            for b in range(6):
                v0 -= pair_half[place + b] * step[b]
                v1 -= pair_half[place + row + b] * step[b]
                v2 -= pair_half[place + 2 * row + b] * step[b]
        lower = eliminated.factors[point]
        s2 = v2 / lower[2, 2]
        s1 = (v1 - lower[2, 1] * s2) / lower[1, 1]
        out[point, 0] = (v0 - lower[1, 0] * s1 - lower[2, 0] * s2) / lower[0, 0]
        out[point, 1] = s1
        out[point, 2] = s2


@in_parts(lambda pair_obs: len(pair_obs) - 1, least=16, **_PARTS)
def fit_virtual_points(begin, end, pair_obs, obs_center, obs_xy, centers, out, information, misfit):
    """Fit a virtual point to the micro images of each pair, robustly: x - C = a - b C.

    `out` (n_pairs, 3) gets a and b, the columns `FIT_X`, `FIT_Y` and `FIT_RHO`; `information`
    (n_pairs, 3, 3) gets their normal matrix for unit noise, `misfit` (n_pairs,) the median length
    of the residuals. NaN for a pair with fewer than two different centers.
    """
    for pair in range(begin, end):
        first = pair_obs[pair]
        n = pair_obs[pair + 1] - first
        out[pair, :] = math.nan
        information[pair, :, :] = 0.0
        misfit[pair] = math.nan
        if n < 2:
            continue
        cx = np.empty(n)
        cy = np.empty(n)
        ox = np.empty(n)
        oy = np.empty(n)
        for i in range(n):
            c = obs_center[first + i]
            cx[i] = centers[c, 0]
            cy[i] = centers[c, 1]
            ox[i] = obs_xy[first + i, 0] - cx[i]
            oy[i] = obs_xy[first + i, 1] - cy[i]
        # Every candidate is computed from two micro images and judged by the median residual.
        weight = np.ones(n)
        length = np.empty(n)
        best = math.inf
        best_ax = 0.0
        best_ay = 0.0
        best_b = 0.0
        stride = max(1, n * (n - 1) // 2 // _MOST_CANDIDATES)
        count = 0
        for i in range(n):
            for j in range(i + 1, n):
                count += 1
                if (count - 1) % stride != 0:
                    continue
                dx = cx[j] - cx[i]
                dy = cy[j] - cy[i]
                d2 = dx * dx + dy * dy
                if d2 < _LEAST_SPREAD_PX2:
                    continue
                b = -((ox[j] - ox[i]) * dx + (oy[j] - oy[i]) * dy) / d2
                ax = 0.5 * (ox[i] + ox[j] + b * (cx[i] + cx[j]))
                ay = 0.5 * (oy[i] + oy[j] + b * (cy[i] + cy[j]))
                for m in range(n):
                    ex = ox[m] - ax + b * cx[m]
                    ey = oy[m] - ay + b * cy[m]
                    length[m] = math.sqrt(ex * ex + ey * ey)
                middle = take_median(length)
                if middle < best:
                    best = middle
                    best_ax = ax
                    best_ay = ay
                    best_b = b
        if not math.isfinite(best):
            continue
        ax = best_ax
        ay = best_ay
        b = best_b
        scale = best
        for _ in range(_REWEIGHTINGS):
            limit = 2.0 * scale + 1e-9
            sw = 0.0
            swx = 0.0
            swy = 0.0
            for m in range(n):
                ex = ox[m] - ax + b * cx[m]
                ey = oy[m] - ay + b * cy[m]
                weight[m] = 1.0 / (1.0 + (ex * ex + ey * ey) / (limit * limit)) ** 2
                sw += weight[m]
                swx += weight[m] * cx[m]
                swy += weight[m] * cy[m]
            mean_x = swx / sw
            mean_y = swy / sw
            spread = 0.0
            slope = 0.0
            mean_ox = 0.0
            mean_oy = 0.0
            for m in range(n):
                dx = cx[m] - mean_x
                dy = cy[m] - mean_y
                spread += weight[m] * (dx * dx + dy * dy)
                slope += weight[m] * (dx * ox[m] + dy * oy[m])
                mean_ox += weight[m] * ox[m]
                mean_oy += weight[m] * oy[m]
            if not spread > _LEAST_SPREAD_PX2:
                break
            b = -slope / spread
            ax = mean_ox / sw + b * mean_x
            ay = mean_oy / sw + b * mean_y
            for m in range(n):
                ex = ox[m] - ax + b * cx[m]
                ey = oy[m] - ay + b * cy[m]
                length[m] = math.sqrt(ex * ex + ey * ey)
            scale = take_median(length)
        out[pair, FIT_X] = ax
        out[pair, FIT_Y] = ay
        out[pair, FIT_RHO] = b
        misfit[pair] = scale
        info = information[pair]
        for m in range(n):
            info[0, 0] += weight[m]
            info[1, 1] += weight[m]
            info[0, 2] -= weight[m] * cx[m]
            info[1, 2] -= weight[m] * cy[m]
            info[2, 2] += weight[m] * (cx[m] * cx[m] + cy[m] * cy[m])
        info[2, 0] = info[0, 2]
        info[2, 1] = info[1, 2]
