"""The pose of a frame from a map of points: plenoptic PnP.

A feature with a virtual depth is a point of space in the camera's frame. So a pose is a rigid
motion between two clouds of points, found from three matches and no baseline. The depth of such a
point is much less certain than its direction: hypotheses are made in space, but judged and refined
in x_u, y_u and u, each with its own noise.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from lifcal.arrays import BoolArray, FloatArray, read_only
from lifcal.geometry import RigidTransform
from lifcal.reconstruction import Reconstruction

_TRIES = 120
"""Hypotheses of three matches. With half of the matches wrong, one in eight has three right ones,
so all 120 fail with a probability of 1e-7; depths are noisy, so the more right ones the better."""
_REFINED = 5
"""Best hypotheses that are refined. Hypotheses from near points with a noisy depth can look worse
than wrong ones until they are refined."""
_MOST_AGREE = 0.6
"""Share of matches that agree with a pose from which no other pose is looked for: another one could
have fewer only."""
_STEPS = 12
"""Gauss-Newton steps at most; five are usual."""
_BEND = 2.4
"""Where the Cauchy loss bends, in standard deviations of a match."""
_GATE = 16.3
"""Largest square of a match that agrees with a pose, in sigmas: 99.9 % of those with three normal
coordinates."""
_CLOSE_PX = 6.0
"""Noise of places, raw px, with which hypotheses are judged before they are refined: three matches
with noisy depths place the others only so well."""
_LOOSE = 10.0
"""Factor on the noise of virtual depths where only places are to tell the pose. A lens that was
focused anew by 0.3 % moves all virtual depths by 4 %, ten times their noise."""
_LEAST_DEPTH = 1e-6
"""Least distance of u from alpha, which is that of infinity: a depth stays finite."""


@dataclass(frozen=True)
class MatchNoise:
    """Noise of features.

    Parameters
    ----------
    place_px : float
        Standard deviation of a place along each axis, raw px.
    factor_u : float
        Factor on the given sigmas of virtual depths. Features sit at edges, where depth maps err by
        several of their sigmas.
    """

    place_px: float = 1.0
    factor_u: float = 4.0


def loosen(noise: MatchNoise) -> MatchNoise:
    """Return the noise with virtual depths that hardly count: those of a camera that changed."""
    return replace(noise, factor_u=_LOOSE * noise.factor_u)


@dataclass(frozen=True, eq=False)
class PoseFit:
    """A pose and how well it fits.

    Parameters
    ----------
    cam_from_world : RigidTransform
    inliers : (n,) bool
        Matches that agree with the pose.
    squares : (n,) float64
        Squared misfit of each match in sigmas, infinite behind the camera.
    information : (6, 6) float64
        Normal matrix of a step of the pose, by the matches that agree.
    """

    cam_from_world: RigidTransform
    inliers: BoolArray
    squares: FloatArray
    information: FloatArray


class _Matches(NamedTuple):
    """Points of the world with the virtual points that show them; see `estimate_pose`."""

    points_world: FloatArray
    points_virt_px: FloatArray
    u: FloatArray
    sigma_u: FloatArray


def points_from_virtual(
    camera: Reconstruction, points_virt_px: FloatArray, u: FloatArray
) -> FloatArray:
    """Return virtual points as points of the camera's frame, (n, 3); NaN where u is not known.

    Points beyond infinity (u at or beyond alpha) are NaN too.
    """
    array, principal = camera.array, camera.principal_px
    ideal = camera.distortion.undistort(points_virt_px, principal)
    if camera.array_tilt is not None:
        u = 1.0 + (u - 1.0) * (1.0 + camera.tau(ideal))
    above = (u - array.alpha) * np.sign(array.beta_mm)
    with np.errstate(invalid="ignore", divide="ignore"):
        z = np.where(above > _LEAST_DEPTH, np.abs(array.beta_mm) / above, np.nan)
    directions = np.column_stack([(ideal - principal) / array.focal_px, np.ones(len(ideal))])
    return np.asarray(directions * z[:, None])


def estimate_pose(
    camera: Reconstruction,
    points_world: FloatArray,
    points_virt_px: FloatArray,
    u: FloatArray,
    sigma_u: FloatArray,
    *,
    noise: MatchNoise | None = None,
    prior: RigidTransform | None = None,
    seed: int = 0,
) -> PoseFit | None:
    """Find the pose from which a camera sees points of the world at virtual places.

    Parameters
    ----------
    camera : Reconstruction
        Only its intrinsics are used.
    points_world : (n, 3) float64
    points_virt_px : (n, 2) float64
        Matched places in the recorded virtual image, raw px.
    u, sigma_u : (n,) float64
        Virtual depths there and their standard deviations; NaN where they are not known.
    noise : MatchNoise, optional
    prior : RigidTransform, optional
        A pose that is near, `cam_from_world` of the frame before for example. If most matches
        agree with it after a refinement, no other is looked for.
    seed : int
        Seed of the random choice of matches.

    Returns
    -------
    PoseFit or None
        None with fewer than four matches that have a depth, or without any pose that fits some.
    """
    noise = noise or MatchNoise()
    matches = _Matches(points_world, points_virt_px, u, sigma_u)
    rough = replace(noise, place_px=max(noise.place_px, _CLOSE_PX))
    if prior is not None:
        # Frames that follow each other are near each other: most of the time this is enough.
        follows = prior
        for each in (rough, noise):
            follows = _refine(camera, matches, follows, each)
        fit = _judge(camera, matches, follows, noise)
        if fit is not None and fit.inliers.mean() > _MOST_AGREE:
            return fit
    cam = points_from_virtual(camera, points_virt_px, u)
    known = np.flatnonzero(np.isfinite(cam).all(axis=1) & np.isfinite(sigma_u))
    if len(known) < 4:
        return None
    rng = np.random.default_rng(seed)
    triples = np.array([rng.choice(known, 3, replace=False) for _ in range(_TRIES)])
    rotations, shifts = align(points_world[triples], cam[triples])
    costs = np.array(
        [
            _cost(_squares(camera, matches, rotation, shift, rough))
            for rotation, shift in zip(rotations, shifts, strict=True)
        ]
    )
    best: tuple[float, RigidTransform] | None = None
    for index in np.argsort(costs, kind="stable")[:_REFINED].tolist():
        start = RigidTransform(rotations[index], shifts[index])
        for each in (rough, noise):
            start = _refine(camera, matches, start, each)
        squares = _squares(camera, matches, start.rotation, start.translation_mm, noise)
        cost = _cost(squares)
        if best is None or cost < best[0]:
            best = (cost, start)
    assert best is not None
    return _judge(camera, matches, best[1], noise)


def _judge(
    camera: Reconstruction, matches: _Matches, pose: RigidTransform, noise: MatchNoise
) -> PoseFit | None:
    """Return the pose with the matches that agree with it; None if those are fewer than four."""
    squares = _squares(camera, matches, pose.rotation, pose.translation_mm, noise)
    inliers = squares < _GATE
    if inliers.sum() < 4:
        return None
    rows, _ = _rows_at(camera, matches, pose, noise)
    rows = rows[inliers].reshape(-1, 6)
    return PoseFit(pose, read_only(inliers), read_only(squares), read_only(rows.T @ rows))


def align(source: FloatArray, target: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the rigid motions that bring source points nearest to target points.

    Parameters
    ----------
    source, target : (n, n_points, 3) float64

    Returns
    -------
    (n, 3, 3) float64, (n, 3) float64
        Rotations and translations.
    """
    mean_s, mean_t = source.mean(axis=1), target.mean(axis=1)
    products = np.swapaxes(target - mean_t[:, None], 1, 2) @ (source - mean_s[:, None])
    u, _, vt = np.linalg.svd(products)
    u[..., 2] *= np.sign(np.linalg.det(u @ vt))[:, None]
    rotations = u @ vt
    return rotations, mean_t - np.einsum("pij,pj->pi", rotations, mean_s)


def pose_rows(
    camera: Reconstruction,
    points_cam: FloatArray,
    points_virt_px: FloatArray,
    u: FloatArray,
    sigma_u: FloatArray,
    noise: MatchNoise,
) -> tuple[FloatArray, FloatArray]:
    """Return derivatives by a step of the pose, (n, 3, 6), and residuals, (n, 3), in sigmas.

    Rows of u are 0 where it is not known, and all rows behind the camera.
    """
    array = camera.array
    z = points_cam[:, 2]
    ahead = z > 0.0
    safe = np.where(ahead, z, 1.0)
    places, depths = camera.virtual_points(np.column_stack([points_cam[:, :2], safe]))
    by_cam = np.zeros((len(z), 3, 3))
    by_cam[:, 0, 0] = by_cam[:, 1, 1] = array.focal_px / safe
    by_cam[:, :2, 2] = -array.focal_px * points_cam[:, :2] / safe[:, None] ** 2
    by_cam[:, 2, 2] = -array.beta_mm / safe**2
    known = np.isfinite(u) & np.isfinite(sigma_u) & (sigma_u > 0.0)
    weights = np.zeros((len(z), 3))
    weights[:, :2] = 1.0 / noise.place_px
    weights[known, 2] = 1.0 / (noise.factor_u * sigma_u[known])
    weights[~ahead] = 0.0
    residuals = np.column_stack([places - points_virt_px, np.where(known, depths - u, 0.0)])
    # distortion bends places by little over a step, so its own derivative is left out
    by_cam *= weights[:, :, None]
    rows = np.empty((len(z), 3, 6))
    rows[:, :, :3] = np.cross(points_cam[:, None, :], by_cam)
    rows[:, :, 3:] = by_cam
    return rows, residuals * weights


def _rows_at(
    camera: Reconstruction, matches: _Matches, pose: RigidTransform, noise: MatchNoise
) -> tuple[FloatArray, FloatArray]:
    """Return `pose_rows` of matches at a pose."""
    points_world, points_virt_px, u, sigma_u = matches
    return pose_rows(camera, pose.apply(points_world), points_virt_px, u, sigma_u, noise)


def _squares(
    camera: Reconstruction,
    matches: _Matches,
    rotation: FloatArray,
    shift: FloatArray,
    noise: MatchNoise,
) -> FloatArray:
    """Return the squared misfit of each match in sigmas; infinite behind the camera."""
    points_world, points_virt_px, u, sigma_u = matches
    cam = points_world @ rotation.T + shift
    places, depths = camera.virtual_points(cam)
    squares = np.sum((places - points_virt_px) ** 2, axis=1) / noise.place_px**2
    off = (depths - u) / (noise.factor_u * sigma_u)
    squares = squares + np.where(np.isfinite(u) & np.isfinite(sigma_u), off**2, 0.0)
    return np.where(np.isfinite(squares), squares, np.inf)


def _cost(squares: FloatArray) -> float:
    """Return the Cauchy loss; what is far off costs no more than what is at the gate's tenfold."""
    return float(np.log1p(np.minimum(squares, 10.0 * _GATE) / _BEND**2).sum())


def _refine(
    camera: Reconstruction, matches: _Matches, pose: RigidTransform, noise: MatchNoise
) -> RigidTransform:
    """Return the pose after Gauss-Newton steps with the Cauchy loss."""
    for _ in range(_STEPS):
        rows, residuals = _rows_at(camera, matches, pose, noise)
        weights = 1.0 / (1.0 + np.sum(residuals**2, axis=1) / _BEND**2)
        normal = np.einsum("n,nki,nkj->ij", weights, rows, rows)
        gradient = np.einsum("n,nki,nk->i", weights, rows, residuals)
        size = np.sqrt(np.maximum(np.diag(normal), 1e-300))
        scaled = normal / size[:, None] / size + 1e-9 * np.eye(6)
        step = -np.linalg.solve(scaled, gradient / size) / size
        moved = float(np.abs(step * size).max())
        if not np.isfinite(step).all() or np.abs(step[:3]).max() > 1.0:
            break
        pose = pose.step(step)
        if moved < 1e-3:
            break
    return pose
