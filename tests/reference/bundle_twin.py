"""Slow reference of the bundle adjustment: all residuals in one vector, dense matrices, SciPy.

It uses no code of the package. Functions accept complex numbers where derivatives are taken by
complex steps.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import least_squares

from tests.reference import paper_model


class Focus(NamedTuple):
    """The focus term: its strength, u_T of the lens, and the discs in px (None if it is linear).

    If `devignetted`, the overlap is that at the position at which the point is seen.
    """

    strength: Any
    plane_u: Any
    main_px: float | None = None
    micro_px: float | None = None
    devignetted: bool = False


def project(point_cam_mm, center_raw_px, pinholes, s, distortion, focus=None, t=None):
    """Return x_Rd with the focus term, by the paper's formulas: thin lens, C_ML, v, then the shift.

    With a tilt t, the micro lens has its own distances: it is at the point where the ray from the
    main lens' centre to the micro-image centre meets the array's plane.
    """
    camera = paper_model.camera_from_pinholes(pinholes, s)
    c = np.array([camera.c_x, camera.c_y])
    center = paper_model.undistort(center_raw_px, c, distortion)
    if t is not None:
        total = camera.b_L0 + camera.B
        climb = ((center - c) * s * paper_model.slopes_from_tilt(t, camera)).sum()
        own = camera.b_L0 * total / (total - climb)
        before = camera.B / camera.b_L0
        camera = camera._replace(b_L0=own, B=total - own)
        if focus is not None:
            # The micro lens keeps its focal length B (1 - 1/v_T)^-1. Terms in (B / b_L0)^2 are left
            # out here, because they would depend on the scale.
            farther = camera.B / camera.b_L0 / before
            inverse = 1.0 - (1.0 - 1.0 / focus.plane_u) * farther
            focus = focus._replace(plane_u=1.0 / inverse)
    ideal = paper_model.project_ideal(point_cam_mm, center, camera)
    if focus is not None:
        m = ideal - center
        k = camera.b_L0 / (camera.b_L0 + camera.B)
        v = paper_model.virtual_depth(np.asarray(point_cam_mm)[2], camera)
        v_T = k * focus.plane_u / (1.0 - (1.0 - k) * focus.plane_u)
        defocus = 1.0 / v_T - 1.0 / v
        if focus.main_px is None:
            # 1/u_T - 1/u = k (1/v_T - 1/v)
            ideal = center + m * (1.0 + focus.strength * k * defocus)
        elif focus.devignetted:
            u = 1.0 / (1.0 - k + k / v)
            distance = np.sqrt(m[0] ** 2 + m[1] ** 2)
            seen = distance
            for _ in range(300):  # a fixed-point iteration, which converges
                centroid = overlap_centroid(focus.micro_px, focus.main_px, seen)
                seen = distance + focus.strength * (1.0 - focus.plane_u / u) * centroid
            ideal = center + m / distance * seen
        else:
            ratio = camera.B / camera.b_L0
            distance = np.sqrt(m[0] ** 2 + m[1] ** 2)
            seen = ratio + 1.0 / v
            sign = np.sign(np.real(seen))
            at_focus = ratio + 1.0 / v_T
            micro = focus.micro_px / (at_focus * np.sign(np.real(at_focus)))  # on the micro lens
            centroid = overlap_centroid(
                micro, focus.main_px / (sign * seen), distance / (sign * seen)
            )
            ideal = center + m / distance * (distance + focus.strength * defocus * sign * centroid)
    return paper_model.distort(ideal, c, distortion)


def overlap_centroid(a, b, d):
    """Centroid of the overlap of two discs, from the center of the first; complex allowed."""
    if np.real(d) <= abs(np.real(a - b)):
        return d if np.real(b) <= np.real(a) else 0.0 * d
    if np.real(d) >= np.real(a + b):
        return a
    chord = (d * d + a * a - b * b) / (2.0 * d)
    rest = d - chord
    first = a * a * np.arccos(chord / a) - chord * np.sqrt(a * a - chord * chord)
    second = b * b * np.arccos(rest / b) - rest * np.sqrt(b * b - rest * rest)
    return d * second / (first + second)


def rho(loss, scale, s):
    """Return the robust loss of a squared length s."""
    if loss == "huber":
        return s if s <= scale**2 else 2.0 * scale * np.sqrt(s) - scale**2
    if loss == "cauchy":
        return scale**2 * np.log1p(s / scale**2)
    return s


def solve_without_distortion(
    array, poses, points, views, ids, centers, measured, sigma, loss, scale, lengths, held_beta
):
    """Minimise with SciPy over F, c, alpha (and beta), all poses but the first, and all points.

    `lengths` is a list of (i, j, mm, sigma). Returns the array parameters and half the cost.
    """
    n_views, n_points = len(poses), len(points)
    n_array = 4 if held_beta else 5

    def unpack(x):
        intrinsics = np.concatenate([x[:4], [array[4]]]) if held_beta else x[:5]
        moves = np.concatenate([np.zeros(6), x[n_array : n_array + 6 * (n_views - 1)]])
        return intrinsics, moves.reshape(n_views, 6), x[-3 * n_points :].reshape(n_points, 3)

    def residuals(x):
        (F, cx, cy, alpha, beta), moves, xyz = unpack(x)
        placed = []
        for move, (R, t) in zip(moves, poses, strict=True):
            turn = paper_model.rotation_exponential(move[:3])
            placed.append((turn @ R, turn @ t + move[3:]))
        cam = np.array(
            [placed[v][0] @ xyz[p] + placed[v][1] for v, p in zip(views, ids, strict=True)]
        )
        w = alpha * cam[:, 2] + beta
        seen = centers + (F * cam[:, :2] + (np.array([cx, cy]) - centers) * cam[:, 2:]) / w[:, None]
        error = (seen - measured) / sigma
        s = np.sum(error**2, axis=1)
        # Each residual keeps its direction; its squared length becomes the loss.
        lengthened = [np.sqrt(rho(loss, scale, value) / value) if value else 1.0 for value in s]
        rows = list(np.ravel(error * np.array(lengthened)[:, None]))
        rows += [
            (np.linalg.norm(xyz[i] - xyz[j]) - mm) / sigma_mm for i, j, mm, sigma_mm in lengths
        ]
        return np.array(rows)

    start = np.concatenate([array[:n_array], np.zeros(6 * (n_views - 1)), np.ravel(points)])
    scale_x = np.concatenate(
        [
            np.abs(array[:n_array]),
            np.tile([0.1, 0.1, 0.1, 50.0, 50.0, 50.0], n_views - 1),
            np.full(3 * n_points, 50.0),
        ]
    )
    done = least_squares(
        residuals, start, x_scale=scale_x, xtol=1e-15, ftol=1e-15, gtol=1e-12, max_nfev=8
    )
    return unpack(done.x)[0], done.cost
