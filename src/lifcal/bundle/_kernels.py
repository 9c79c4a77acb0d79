"""Compiled loops of the bundle adjustment: residuals, normal matrices, Schur elimination.

Observations are sorted by (point, view). A pair is one point in one view; its observations share
the point in camera coordinates X, so their normal matrix is accumulated in (X, intrinsics) and
expanded to pose and point once. Intrinsics are F, c_x, c_y, alpha, beta, the distortion
coefficients, the tilt t_x, t_y of the array (if there is one) and, with the focus term, its
strength g and the inverse focal plane of each lens type. `terms` says what of these there is: shape
and discs of the focus term, and the number of tilt parameters, 0 or 2.

Sums are reproducible: every sum has one owner, or is split into chunks that do not depend on the
number of threads and are added in order.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

from lifcal.camera._kernels import distort_by_parameters, distort_point
from lifcal.geometry._kernels import take_median
from lifcal.threads import in_parts

FOCUS_OFF = 0
FOCUS_LINEAR = 1
FOCUS_OVERLAP = 2
FOCUS_DEVIGNETTED = 3

# A product and a sum may become one instruction, and a division by zero gives what IEEE says; NaN
# keeps its meaning.
_PARTS: Any = {"error_model": "numpy", "fastmath": {"contract"}}
_OPTIONS: Any = {"cache": True, **_PARTS}

VIEWS_PER_GROUP = 8

NEWTON_STEPS = 8
"""Of the place where a devignetted point is seen; three are enough but at the core's edge."""

LOSS_NONE = 0
LOSS_HUBER = 1
LOSS_CAUCHY = 2


@njit(**_OPTIONS)
def overlap_centroid(a, b, d):
    """Return where the centroid of the overlap of two discs is, from the center of disc a.

    Also its derivatives by a and by the distance d. Discs that are apart give the point of disc a
    that is nearest to b, which is the limit.
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


@njit(**_OPTIONS)
def focus_magnification(shape, strength, inverse_plane, main, micro, m, u):
    """Return h, (dh/dm) / m, dh/du, dh/d(inverse_plane) and d(g h)/dg.

    A micro image is magnified by 1 + g h about its center. `m` is the distance from the center,
    `inverse_plane` is 1 / u_T, `strength` is g.
    """
    if shape == FOCUS_LINEAR:
        h = inverse_plane - 1.0 / u
        return h, 0.0, 1.0 / (u * u), 1.0, h
    if shape == FOCUS_OVERLAP:
        # On the sensor the micro aperture has the radius micro |u_T / u|, and what the centroid of
        # the overlap moves by is the defocus (1 / u_T - 1 / u) u.
        defocus = u * inverse_plane - 1.0
        a = micro / abs(u * inverse_plane)
        if m < 1e-9:
            share = 1.0 if main <= a else 0.0
            return defocus * share, 0.0, share * inverse_plane, share * u, defocus * share
        centroid, by_a, by_d = overlap_centroid(a, main, m)
        share = centroid / m
        shrink = defocus * by_a * a / m
        return (
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
        if m < 1e-9:
            share = 1.0 if main <= micro else 0.0
            rest = 1.0 / (1.0 - strength * defocus * share)
            h = defocus * share * rest
            more = share * rest * rest
            return h, 0.0, more * by_u, more * by_plane, h * rest
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
        return (
            h,
            (defocus * by_d * rest - h) / (m * m),
            share * by_u,
            share * by_plane,
            h * rest,
        )
    return 0.0, 0.0, 0.0, 0.0, 0.0


@njit(**_OPTIONS)
def lens_tilt(theta, n_k, n_tilt, center_x, center_y):
    """Return tau of a lens: by how much its B_k / b_k differs from that at c, relative."""
    if n_tilt == 0:
        return 0.0
    return theta[5 + n_k] * (center_x - theta[1]) + theta[6 + n_k] * (center_y - theta[2])


@njit(**_OPTIONS)
def seen_point(theta, model, k, x, y, z, center_x, center_y, kind, terms):
    """Return where a point is seen in a micro image, and what its derivatives need.

    Returns x_Rd, y_Rd; the point before distortion, relative to c; the offset m in the micro image
    without the focus term; the denominator w of the lens; the focus term's h and its derivatives;
    and the distortion's 2 x 2 derivative. NaN where the point is not in front of the camera.
    """
    shape, main, micro, n_tilt = terms
    cx = theta[1]
    cy = theta[2]
    tau = lens_tilt(theta, k.shape[0], n_tilt, center_x, center_y)
    w = (theta[3] * z + theta[4] + tau * z) / (1.0 + tau)
    if not z > 0.0 or w == 0.0 or not tau > -1.0:
        w = math.nan
    mx = (theta[0] * x + (cx - center_x) * z) / w
    my = (theta[0] * y + (cy - center_y) * z) / w
    h = 0.0
    h_m = 0.0
    h_u = 0.0
    h_p = 0.0
    h_g = 0.0
    scale = 1.0
    if shape != FOCUS_OFF:
        g = 5 + k.shape[0] + n_tilt
        m = math.sqrt(mx * mx + my * my)
        # A micro lens has one focal length: where the array is farther from the sensor, it is in
        # focus at another virtual depth, 1 - 1 / u_T in proportion to B_k.
        inverse_plane = 1.0 - (1.0 - theta[g + 1 + kind]) * (1.0 + tau)
        h, h_m, h_u, h_p, h_g = focus_magnification(
            shape, theta[g], inverse_plane, main, micro[kind], m, w / z
        )
        scale = 1.0 + theta[g] * h
    rx = center_x - cx + mx * scale
    ry = center_y - cy + my * scale
    xd, yd, jxx, jxy, jyx, jyy = distort_point(model, k, rx, ry)
    return xd + cx, yd + cy, rx, ry, mx, my, w, h, h_m, h_u, h_p, h_g, jxx, jxy, jyx, jyy


@njit(**_OPTIONS)
def robust_loss(loss, scale, s):
    """Return rho, rho' and rho'' of a squared whitened residual s; rho(s) ~ s for small s."""
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


@njit(**_OPTIONS)
def camera_point(rotations, translations, points, view, point):
    px = points[point, 0]
    py = points[point, 1]
    pz = points[point, 2]
    r = rotations[view]
    t = translations[view]
    return (
        r[0, 0] * px + r[0, 1] * py + r[0, 2] * pz + t[0],
        r[1, 0] * px + r[1, 1] * py + r[1, 2] * pz + t[1],
        r[2, 0] * px + r[2, 1] * py + r[2, 2] * pz + t[2],
    )


@in_parts(lambda pairs: len(pairs[0]), least=16, **_PARTS)
def compute_residuals(
    begin, end, theta, model, k, rotations, translations, points, pairs, obs, centers, terms, out
):
    """Fill `out` (n_obs, 2) with seen minus measured, in raw px, not weighted."""
    pair_points, pair_views, pair_obs = pairs
    obs_center, obs_xy, obs_type = obs
    for pair in range(begin, end):
        x, y, z = camera_point(rotations, translations, points, pair_views[pair], pair_points[pair])
        for i in range(pair_obs[pair], pair_obs[pair + 1]):
            c = obs_center[i]
            kind = obs_type[i]
            xd, yd, _, _, _, _, _, _, _, _, _, _, _, _, _, _ = seen_point(
                theta,
                model,
                k,
                x,
                y,
                z,
                centers[c, 0],
                centers[c, 1],
                kind,
                terms,
            )
            out[i, 0] = xd - obs_xy[i, 0]
            out[i, 1] = yd - obs_xy[i, 1]


@in_parts(lambda chunk_pairs: len(chunk_pairs) - 1, **_PARTS)
def compute_cost(
    begin,
    end,
    theta,
    model,
    k,
    rotations,
    translations,
    points,
    pairs,
    obs,
    whitening,
    active,
    centers,
    terms,
    loss,
    chunk_pairs,
    costs,
):
    """Fill `costs` (n_chunks,) with the sums of rho over the active observations.

    NaN if one has no projection.
    """
    pair_points, pair_views, pair_obs = pairs
    obs_center, obs_xy, obs_type = obs
    loss_id, loss_scale, inverse_noise, _ = loss
    for chunk in range(begin, end):
        total = 0.0
        for pair in range(chunk_pairs[chunk], chunk_pairs[chunk + 1]):
            x, y, z = camera_point(
                rotations, translations, points, pair_views[pair], pair_points[pair]
            )
            for i in range(pair_obs[pair], pair_obs[pair + 1]):
                if not active[i]:
                    continue
                c = obs_center[i]
                kind = obs_type[i]
                xd, yd, _, _, _, _, _, _, _, _, _, _, _, _, _, _ = seen_point(
                    theta,
                    model,
                    k,
                    x,
                    y,
                    z,
                    centers[c, 0],
                    centers[c, 1],
                    kind,
                    terms,
                )
                ex = xd - obs_xy[i, 0]
                ey = yd - obs_xy[i, 1]
                ax = (whitening[i, 0] * ex + whitening[i, 1] * ey) * inverse_noise
                ay = whitening[i, 2] * ey * inverse_noise
                rho, _, _ = robust_loss(loss_id, loss_scale, ax * ax + ay * ay)
                total += rho
        costs[chunk] = total


@njit(**_OPTIONS)
def fill_rows(
    theta,
    model,
    k,
    x,
    y,
    z,
    center_x,
    center_y,
    center_by_c,
    center_by_k,
    kind,
    terms,
    row_x,
    row_y,
    tail,
):
    """Fill the two Jacobian rows by X (3) and the intrinsics; return the recorded point.

    `tail` (2, n_k) is room for the distortion's columns.
    """
    n_k = k.shape[0]
    xd, yd, rx, ry, mx, my, w, h, h_m, h_u, h_p, h_g, jxx, jxy, jyx, jyy = seen_point(
        theta, model, k, x, y, z, center_x, center_y, kind, terms
    )
    shape, _, _, n_tilt = terms
    focal = theta[0]
    tau = lens_tilt(theta, n_k, n_tilt, center_x, center_y)
    shrink = 1.0 / (1.0 + tau)
    alpha = (theta[3] + tau) * shrink
    first_focus = 5 + n_k + n_tilt
    inv = 1.0 / w
    direct = z * inv
    # d(seen) = M dm + q du, then the distortion's derivative J on top
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
    u_z = -theta[4] * shrink / (z * z)
    # by the point
    s = focal * inv
    row_x[0] = dxx * s
    row_y[0] = dyx * s
    row_x[1] = dxy * s
    row_y[1] = dyy * s
    ax = (theta[1] - center_x - mx * alpha) * inv
    ay = (theta[2] - center_y - my * alpha) * inv
    row_x[2] = dxx * ax + dxy * ay + qx * u_z
    row_y[2] = dyx * ax + dyy * ay + qy * u_z
    # by F
    row_x[3] = (dxx * x + dxy * y) * inv
    row_y[3] = (dyx * x + dyy * y) * inv
    # by alpha and beta, through the denominator of the lens
    gx = -(dxx * mx + dxy * my) * inv * shrink
    gy = -(dyx * mx + dyy * my) * inv * shrink
    row_x[6] = gx * z + qx * shrink
    row_y[6] = gy * z + qy * shrink
    row_x[7] = gx + qx * shrink / z
    row_y[7] = gy + qy * shrink / z
    # by the undistorted center: J - direct D
    bxx = jxx - direct * dxx
    bxy = jxy - direct * dxy
    byx = jyx - direct * dyx
    byy = jyy - direct * dyy
    # by c: through the pinhole and as the center of the distortion
    row_x[4] = direct * dxx + 1.0 - jxx
    row_y[4] = direct * dyx - jyx
    row_x[5] = direct * dxy - jxy
    row_y[5] = direct * dyy + 1.0 - jyy
    if n_tilt > 0:
        # by the tilt, and through tau by the center and by c
        by_tau_x = gx * (z - w) + qx * shrink * (1.0 - w / z)
        by_tau_y = gy * (z - w) + qy * shrink * (1.0 - w / z)
        if shape != FOCUS_OFF:
            by_plane = theta[first_focus] * h_p * (theta[first_focus + 1 + kind] - 1.0)
            by_tau_x += by_plane * (jxx * mx + jxy * my)
            by_tau_y += by_plane * (jyx * mx + jyy * my)
        t_x = theta[5 + n_k]
        t_y = theta[6 + n_k]
        row_x[8 + n_k] = by_tau_x * (center_x - theta[1])
        row_y[8 + n_k] = by_tau_y * (center_x - theta[1])
        row_x[9 + n_k] = by_tau_x * (center_y - theta[2])
        row_y[9 + n_k] = by_tau_y * (center_y - theta[2])
        bxx += by_tau_x * t_x
        bxy += by_tau_x * t_y
        byx += by_tau_y * t_x
        byy += by_tau_y * t_y
        row_x[4] -= by_tau_x * t_x
        row_y[4] -= by_tau_y * t_x
        row_x[5] -= by_tau_x * t_y
        row_y[5] -= by_tau_y * t_y
    # by c through the center
    row_x[4] += bxx * center_by_c[0, 0] + bxy * center_by_c[1, 0]
    row_y[4] += byx * center_by_c[0, 0] + byy * center_by_c[1, 0]
    row_x[5] += bxx * center_by_c[0, 1] + bxy * center_by_c[1, 1]
    row_y[5] += byx * center_by_c[0, 1] + byy * center_by_c[1, 1]
    # by the distortion: at the point itself, and through the center
    if n_k > 0:
        distort_by_parameters(model, k, rx, ry, tail)
        for j in range(n_k):
            sx = center_by_k[0, j]
            sy = center_by_k[1, j]
            row_x[8 + j] = tail[0, j] + bxx * sx + bxy * sy
            row_y[8 + j] = tail[1, j] + byx * sx + byy * sy
    # by the focus strength and the inverse focal planes
    if shape != FOCUS_OFF:
        px = jxx * mx + jxy * my
        py = jyx * mx + jyy * my
        strength = 3 + first_focus
        row_x[strength] = h_g * px
        row_y[strength] = h_g * py
        for j in range(strength + 1, row_x.shape[0]):
            row_x[j] = 0.0
            row_y[j] = 0.0
        row_x[strength + 1 + kind] = theta[first_focus] * h_p * (1.0 + tau) * px
        row_y[strength + 1 + kind] = theta[first_focus] * h_p * (1.0 + tau) * py
    return xd, yd


@in_parts(lambda pairs: len(pairs[0]), least=16, **_PARTS)
def compute_rows(
    begin,
    end,
    theta,
    model,
    k,
    rotations,
    translations,
    points,
    pairs,
    obs,
    centers,
    center_by_c,
    center_by_k,
    terms,
    rows,
):
    """Fill `rows` (n_obs, 2, 3 + n_theta): by X in camera coordinates and the intrinsics."""
    pair_points, pair_views, pair_obs = pairs
    obs_center, _, obs_type = obs
    for pair in range(begin, end):
        tail = np.zeros((2, max(k.shape[0], 1)))
        x, y, z = camera_point(rotations, translations, points, pair_views[pair], pair_points[pair])
        for i in range(pair_obs[pair], pair_obs[pair + 1]):
            c = obs_center[i]
            kind = obs_type[i]
            fill_rows(
                theta,
                model,
                k,
                x,
                y,
                z,
                centers[c, 0],
                centers[c, 1],
                center_by_c[c],
                center_by_k[c],
                kind,
                terms,
                rows[i, 0],
                rows[i, 1],
                tail,
            )


@in_parts(lambda chunk_pairs: len(chunk_pairs) - 1, **_PARTS)
def linearize(
    begin,
    end,
    theta,
    model,
    k,
    rotations,
    translations,
    points,
    pairs,
    obs,
    whitening,
    active,
    centers,
    center_by_c,
    center_by_k,
    terms,
    loss,
    chunk_pairs,
    pair_normal,
    chunk_normal,
    costs,
):
    """Accumulate the normal matrices, and `costs` (n_chunks,) as `compute_cost` does.

    `pair_normal` (n_pairs, 3, 4 + n_theta) gets, for each pair, the rows of X: by X, by the
    intrinsics, gradient. `chunk_normal` (n_chunks, n_theta, n_theta + 1) gets the intrinsics' upper
    triangle and gradient.
    """
    pair_points, pair_views, pair_obs = pairs
    obs_center, obs_xy, obs_type = obs
    loss_id, loss_scale, inverse_noise, bends = loss
    n_theta = theta.shape[0]
    n = 3 + n_theta
    for chunk in range(begin, end):
        row_x = np.zeros(n)
        row_y = np.zeros(n)
        tail = np.zeros((2, max(k.shape[0], 1)))
        normal = np.zeros((n, n + 1))
        total = 0.0
        own = chunk_normal[chunk]
        own[:, :] = 0.0
        for pair in range(chunk_pairs[chunk], chunk_pairs[chunk + 1]):
            x, y, z = camera_point(
                rotations, translations, points, pair_views[pair], pair_points[pair]
            )
            for a in range(3):
                for b in range(n + 1):
                    normal[a, b] = 0.0
            for i in range(pair_obs[pair], pair_obs[pair + 1]):
                if not active[i]:
                    continue
                c = obs_center[i]
                kind = obs_type[i]
                xd, yd = fill_rows(
                    theta,
                    model,
                    k,
                    x,
                    y,
                    z,
                    centers[c, 0],
                    centers[c, 1],
                    center_by_c[c],
                    center_by_k[c],
                    kind,
                    terms,
                    row_x,
                    row_y,
                    tail,
                )
                ex = xd - obs_xy[i, 0]
                ey = yd - obs_xy[i, 1]
                w0 = whitening[i, 0] * inverse_noise
                w1 = whitening[i, 1] * inverse_noise
                w2 = whitening[i, 2] * inverse_noise
                ax = w0 * ex + w1 * ey
                ay = w2 * ey
                s = ax * ax + ay * ay
                rho, weight, second = robust_loss(loss_id, loss_scale, s)
                total += rho
                # Gradient and curvature of the loss. Along the residual the curvature is
                # weight + 2 second s (where that is negative, zero), or, far from the solution,
                # just the weight, which leads there sooner.
                gx = weight * w0 * ax
                gy = weight * (w1 * ax + w2 * ay)
                ixx = weight * w0 * w0
                ixy = weight * w0 * w1
                iyy = weight * (w1 * w1 + w2 * w2)
                if bends and second != 0.0:
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
            for a in range(3):
                for b in range(a):
                    out[a, b] = normal[b, a]
                for b in range(a, n + 1):
                    out[a, b] = normal[a, b]
        for a in range(n_theta):
            for b in range(n_theta + 1):
                own[a, b] = normal[3 + a, 3 + b]
        costs[chunk] = total


@njit(**_OPTIONS)
def expand_to_pose(block, x, y, z, out):
    """Fill `out` (n, 6) with block (n, 3) @ [-[X]_x | I]."""
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


@in_parts(lambda point_pairs: len(point_pairs) - 1, least=16, **_PARTS)
def sum_points(begin, end, rotations, pair_views, point_pairs, pair_normal, point_normal):
    """Fill `point_normal` (n_points, 3, 4 + n_theta): by the point, by the intrinsics, gradient."""
    width = pair_normal.shape[2]
    for point in range(begin, end):
        out = point_normal[point]
        out[:, :] = 0.0
        for pair in range(point_pairs[point], point_pairs[point + 1]):
            r = rotations[pair_views[pair]]
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
    rotations,
    translations,
    points,
    pair_views,
    point_pairs,
    kept,
    pair_normal,
    point_normal,
    damping,
    chunk_points,
    half_places,
    half_strides,
    factors,
    pair_half,
    point_half,
    chunk_out,
    failed,
):
    """Factor each point's damped block L L^T and divide its coupling by L.

    `factors` (n_points, 3, 3) gets L; `pair_half` gets L^-1 W of the poses, the (3, 6) of a pair at
    `half_places` (n_pairs) with its rows `half_strides` (n_points) apart; `point_half` (n_points,
    3, n_theta + 1) that of the intrinsics and of the gradient; `chunk_out` (n_chunks, n_theta,
    n_theta + 1) their products. Kept points are not eliminated: zeros. `failed` (n_chunks,), zero
    before, counts points whose block has no factor.
    """
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
                for pair in range(point_pairs[point], point_pairs[point + 1]):
                    place = half_places[pair]
                    for a in range(3):
                        pair_half[place + a * row : place + a * row + 6] = 0.0
                continue
            block = point_normal[point]
            l00 = block[0, 0] * (1.0 + damping)
            l11 = block[1, 1] * (1.0 + damping)
            l22 = block[2, 2] * (1.0 + damping)
            limit = 1e-14 * (l00 + l11 + l22)
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
            for pair in range(point_pairs[point], point_pairs[point + 1]):
                view = pair_views[pair]
                r = rotations[view]
                x, y, z = camera_point(rotations, translations, points, view, point)
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
def reduce_group(
    low,
    high,
    rotations,
    translations,
    points,
    pair_views,
    point_pairs,
    pair_normal,
    half_places,
    half_strides,
    pair_half,
    point_half,
    multiplied,
    row_slots,
    blocks,
    borders,
    diagonals,
    gradients,
):
    """Fill the rows of the views low to high - 1; see `reduce_views`."""
    n_theta = borders.shape[2] - 1
    n_views = row_slots.shape[1]
    # One strip of the matrix for each view of the group, small enough for the cache.
    strips = np.zeros((high - low, 6, 6 * n_views))
    own = np.zeros((high - low, 6, 6))
    narrow = np.empty((n_theta + 4, 3))
    wide = np.empty((n_theta + 4, 6))
    borders[low:high] = 0.0
    gradients[low:high] = 0.0
    for point in range(point_pairs.shape[0] - 1):
        first = point_pairs[point]
        end = point_pairs[point + 1]
        row = half_strides[point]
        half = point_half[point]
        for pair in range(first + np.searchsorted(pair_views[first:end], low), end):
            view = pair_views[pair]
            if view >= high:
                break
            x, y, z = camera_point(rotations, translations, points, view, point)
            normal = pair_normal[pair]
            border = borders[view]
            block = own[view - low]
            # rows: by X (3), by the intrinsics, gradient; all times [-[X]_x | I]
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
            # Runs of consecutive views are one long loop.
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


@in_parts(lambda row_slots: -(-len(row_slots) // VIEWS_PER_GROUP), **_PARTS)
def reduce_views(
    begin,
    end,
    rotations,
    translations,
    points,
    pair_views,
    point_pairs,
    pair_normal,
    half_places,
    half_strides,
    pair_half,
    point_half,
    multiplied,
    row_slots,
    blocks,
    borders,
    diagonals,
    gradients,
):
    """Build the reduced system of the poses; each group of views owns its rows of blocks.

    `blocks` (n_blocks, 6, 6) in the slots `row_slots` (n_views, n_views; -1: empty) of the upper
    triangle; `borders` (n_views, 6, n_theta + 1) the coupling to the intrinsics and the gradient,
    both with the points eliminated; `diagonals` (n_views, 6) and `gradients` (n_views, 6) without.
    With `multiplied`, what the points take from `blocks` is left to a matrix product elsewhere.
    """
    n_views = row_slots.shape[0]
    n_groups = (n_views + VIEWS_PER_GROUP - 1) // VIEWS_PER_GROUP
    for task in range(begin, end):
        # first and last groups in turn: the first have long rows, the last short ones
        half = np.int64(task) // 2
        group = half if task % 2 == 0 else n_groups - 1 - half
        low = group * VIEWS_PER_GROUP
        reduce_group(
            low,
            min(low + VIEWS_PER_GROUP, n_views),
            rotations,
            translations,
            points,
            pair_views,
            point_pairs,
            pair_normal,
            half_places,
            half_strides,
            pair_half,
            point_half,
            multiplied,
            row_slots,
            blocks,
            borders,
            diagonals,
            gradients,
        )


@in_parts(lambda point_pairs: len(point_pairs) - 1, least=16, **_PARTS)
def back_substitute(
    begin,
    end,
    point_pairs,
    pair_views,
    kept,
    factors,
    half_places,
    half_strides,
    pair_half,
    point_half,
    pose_steps,
    theta_step,
    out,
):
    """Fill `out` (n_points, 3) with the step of each eliminated point, zero for kept ones."""
    n_theta = theta_step.shape[0]
    for point in range(begin, end):
        if kept[point]:
            out[point, :] = 0.0
            continue
        half = point_half[point]
        v0 = -half[0, n_theta]
        v1 = -half[1, n_theta]
        v2 = -half[2, n_theta]
        for b in range(n_theta):
            v0 -= half[0, b] * theta_step[b]
            v1 -= half[1, b] * theta_step[b]
            v2 -= half[2, b] * theta_step[b]
        row = half_strides[point]
        for pair in range(point_pairs[point], point_pairs[point + 1]):
            place = half_places[pair]
            step = pose_steps[pair_views[pair]]
            for b in range(6):
                v0 -= pair_half[place + b] * step[b]
                v1 -= pair_half[place + row + b] * step[b]
                v2 -= pair_half[place + 2 * row + b] * step[b]
        lower = factors[point]
        s2 = v2 / lower[2, 2]
        s1 = (v1 - lower[2, 1] * s2) / lower[1, 1]
        out[point, 0] = (v0 - lower[1, 0] * s1 - lower[2, 0] * s2) / lower[0, 0]
        out[point, 1] = s1
        out[point, 2] = s2


@in_parts(lambda pair_obs: len(pair_obs) - 1, least=16, **_PARTS)
def fit_virtual_points(begin, end, pair_obs, obs_center, obs_xy, centers, out, information, misfit):
    """Fit x - C = a - b C to the micro images of each pair, robustly.

    `out` (n_pairs, 3) gets a_x, a_y and b, that is (X_u / u, 1 / u); `information` (n_pairs, 3, 3)
    its normal matrix for unit noise; `misfit` (n_pairs,) the median residual length. NaN for a pair
    with fewer than two different centers.
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
        # Candidates from two micro images each, judged by the median over all.
        weight = np.ones(n)
        length = np.empty(n)
        best = math.inf
        best_ax = 0.0
        best_ay = 0.0
        best_b = 0.0
        stride = max(1, n * (n - 1) // 2 // 60)
        count = 0
        for i in range(n):
            for j in range(i + 1, n):
                count += 1
                if (count - 1) % stride != 0:
                    continue
                dx = cx[j] - cx[i]
                dy = cy[j] - cy[i]
                d2 = dx * dx + dy * dy
                if d2 < 1e-6:
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
        for _ in range(5):
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
            if not spread > 1e-6:
                break
            b = -slope / spread
            ax = mean_ox / sw + b * mean_x
            ay = mean_oy / sw + b * mean_y
            for m in range(n):
                ex = ox[m] - ax + b * cx[m]
                ey = oy[m] - ay + b * cy[m]
                length[m] = math.sqrt(ex * ex + ey * ey)
            scale = take_median(length)
        out[pair, 0] = ax
        out[pair, 1] = ay
        out[pair, 2] = b
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
