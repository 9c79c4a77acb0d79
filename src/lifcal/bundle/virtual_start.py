"""Start values from tracks over focused images: the adjustment of places and virtual depths.

A depth map knows each tracked place with its virtual depth. Before any micro image is measured,
these give F, alpha, the poses and the points by one adjustment, with c held in the middle of the
image. It weighs what a pinhole camera knows (places) and what only a plenoptic one knows (virtual
depths) by their noise, which it estimates.

A place (x_u, y_u) with sigma s and a virtual depth u with sigma s_u say the same as two micro
images, left and right of the place at the distance d = s |u| / s_u, with sigma sqrt(2) s / |u| in
each of them. So the solver for micro images solves this problem too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from lifcal.arrays import BoolArray, FloatArray, IntArray
from lifcal.bundle.covariance import compute_covariance
from lifcal.bundle.linear import Layout
from lifcal.bundle.problem import Problem
from lifcal.bundle.solver import SolverOptions, solve
from lifcal.camera import BrownDistortion
from lifcal.errors import EstimationError
from lifcal.reconstruction import Observations, Reconstruction

_NOISE_PX, _FACTOR_U = 1.0, 4.0
"""Noise of tracked places in raw px, and factor on the sigmas of depth maps, to begin with. Both
are estimated on the way; see `lifcal.sfm.rigidity`."""
_NOISE_ROUNDS = 3
"""Rounds of solving and estimating the noise, after which it has settled well enough for a
start."""
_HELD = ("c_x", "c_y", "k1", "k2", "p0", "p1")
"""Intrinsics that tracks over focused images do not determine well enough for a start."""
_ANY_PIXEL_MM = 1.0
"""The pixel size has no part in a problem whose lengths are F, alpha and beta."""
_DISTANCES_PX = (0.05, 200.0)
"""Least and largest distance of the two micro images of the start from the place of a point. Nearer
ones would be one; farther ones would lie where the lens distorts differently. The virtual depth is
known well enough for a start."""
_FEWEST = 50
"""Places with a virtual depth that the start needs."""


@dataclass(frozen=True, eq=False)
class VirtualTracks:
    """Tracked places in focused images, with their virtual depths.

    Parameters
    ----------
    point_indices, view_indices : (n,) int64
        Into the points and poses of a start.
    points_virt_px : (n, 2) float64
        Recorded virtual image, raw px.
    u, sigma_u : (n,) float64
        Virtual depth and its standard deviation; NaN where they are not known.
    """

    point_indices: IntArray
    view_indices: IntArray
    points_virt_px: FloatArray
    u: FloatArray
    sigma_u: FloatArray

    @property
    def known(self) -> BoolArray:
        """Which places have a virtual depth, (n,)."""
        return np.isfinite(self.u) & (self.sigma_u > 0.0) & (np.abs(self.u) > 0.0)

    def select(self, keep: BoolArray) -> VirtualTracks:
        """Return some of the places."""
        return VirtualTracks(
            self.point_indices[keep],
            self.view_indices[keep],
            self.points_virt_px[keep],
            self.u[keep],
            self.sigma_u[keep],
        )


@dataclass(frozen=True, eq=False)
class VirtualStart:
    """The adjusted start.

    Parameters
    ----------
    state : Reconstruction
        With all poses and points of the start that was given; those without places are as before.
    sigma_focal_px : float
        Standard deviation of F, from the residuals and with c held.
    misfit : float
        Mean loss of a place, with the noise that all starts were given to begin with: comparable
        between starts from the same tracks.
    noise_px : float
        Noise of tracked places.
    noise_u : float
        Factor on the given sigmas of virtual depths.
    """

    state: Reconstruction
    sigma_focal_px: float
    misfit: float
    noise_px: float
    noise_u: float


def adjust_virtual(
    tracks: VirtualTracks, start: Reconstruction, held: tuple[str, ...] = ()
) -> VirtualStart:
    """Adjust F, alpha, one radial term, poses and points to tracked places and virtual depths.

    Parameters
    ----------
    tracks : VirtualTracks
        Tracks of points in focused images.
    start : Reconstruction
        Poses and points from structure from motion, alpha and beta from a line of u over 1 / z. Its
        principal point is held.
    held : tuple of str
        Further intrinsics that are held: F, alpha and k0 to bring poses and points to a camera that
        is known.

    Raises
    ------
    EstimationError
        If too few places have a virtual depth, or the places do not determine the poses.
    """
    tracks = tracks.select(_is_ahead(tracks, start))
    views = np.bincount(tracks.point_indices, minlength=len(start.points_world_mm))
    tracks = tracks.select(views[tracks.point_indices] >= 2)
    if tracks.known.sum() < _FEWEST:
        raise EstimationError(
            f"only {int(tracks.known.sum())} tracked points have a virtual depth (need {_FEWEST})",
            stage="start",
        )
    radial = start.distortion.k0 if isinstance(start.distortion, BrownDistortion) else 0.0
    state = replace(start, distortion=BrownDistortion(k0=radial))
    noise_px, noise_u, misfit = _NOISE_PX, _FACTOR_U, np.nan
    problem = _make_problem(tracks, state, noise_px, noise_u, held)
    options = SolverOptions(loss="cauchy", cost_tolerance=1e-6)
    for turn in range(_NOISE_ROUNDS):
        problem = _make_problem(tracks, state, noise_px, noise_u, held)
        solved, summary = solve(problem, options)
        if turn == 0:
            misfit = summary.final_cost / len(tracks.u)
        state = _merge(state, solved, problem.observations)
        noise_px, noise_u = _measure_noise(tracks, state)
    covariance = compute_covariance(
        Layout(problem), solved, 1.0, clustered=options.make_loss()
    ).sigmas()
    return VirtualStart(state, covariance["F"], misfit, noise_px, noise_u)


def _is_ahead(tracks: VirtualTracks, state: Reconstruction) -> BoolArray:
    return np.asarray(_cam_points(tracks, state)[:, 2] > 0.0)


def _cam_points(tracks: VirtualTracks, state: Reconstruction) -> FloatArray:
    views, points = tracks.view_indices, tracks.point_indices
    turned = np.einsum("pij,pj->pi", state.rotations[views], state.points_world_mm[points])
    return np.asarray(turned + state.translations_mm[views])


def _make_problem(
    tracks: VirtualTracks,
    state: Reconstruction,
    noise_px: float,
    noise_u: float,
    held: tuple[str, ...],
) -> Problem:
    """Return the problem of micro images that say the same as the tracks."""
    known = tracks.known
    size = np.where(known, np.abs(tracks.u), np.median(np.abs(tracks.u[known])))
    u = np.where(known, tracks.u, size)
    distance = np.zeros(len(u))
    distance[known] = noise_px * size[known] / (noise_u * tracks.sigma_u[known])
    distance[known] = np.clip(distance[known], *_DISTANCES_PX)
    sigma = np.where(known, np.sqrt(2.0), 1.0) * noise_px / size
    # a place without a virtual depth is one micro image, right at the place
    index = np.concatenate([np.arange(len(u)), np.flatnonzero(known)])
    sides = np.concatenate([distance, -distance[known]])
    places = tracks.points_virt_px[index]
    centers = places + np.column_stack([sides, np.zeros(len(sides))])
    observations = Observations.from_arrays(
        tracks.view_indices[index],
        tracks.point_indices[index],
        centers,
        centers + (places - centers) / u[index, None],
        sigma_px=sigma[index],
    )
    views, points = observations.view_ids, observations.point_ids
    some = replace(
        state,
        rotations=state.rotations[views],
        translations_mm=state.translations_mm[views],
        points_world_mm=state.points_world_mm[points],
    )
    return Problem(observations, _ANY_PIXEL_MM, some, fixed=(*_HELD, *held))


def _merge(
    state: Reconstruction, solved: Reconstruction, observations: Observations
) -> Reconstruction:
    """Return all poses and points, with those that were adjusted in their places."""
    rotations, shifts = state.rotations.copy(), state.translations_mm.copy()
    points = state.points_world_mm.copy()
    rotations[observations.view_ids] = solved.rotations
    shifts[observations.view_ids] = solved.translations_mm
    points[observations.point_ids] = solved.points_world_mm
    return replace(solved, rotations=rotations, translations_mm=shifts, points_world_mm=points)


def _measure_noise(tracks: VirtualTracks, state: Reconstruction) -> tuple[float, float]:
    """Return the noise of places and the factor on the sigmas of u, from the residuals."""
    cam = _cam_points(tracks, state)
    array = state.array
    principal = np.array([array.principal_x_px, array.principal_y_px])
    seen = principal + array.focal_px * cam[:, :2] / cam[:, 2:]
    seen = state.distortion.distort(seen, principal)
    known = tracks.known
    off = (array.alpha + array.beta_mm / cam[known, 2] - tracks.u[known]) / tracks.sigma_u[known]
    place = 1.4826 * float(np.median(np.abs(seen - tracks.points_virt_px)))
    return max(place, 0.05), max(1.4826 * float(np.median(np.abs(off))), 0.1)
