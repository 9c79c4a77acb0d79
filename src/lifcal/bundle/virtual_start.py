"""Start values from feature tracks in totally focused images and from their virtual depths.

The depth map of a frame contains the virtual depth of each tracked image point. Before anything is
measured in micro images, one adjustment computes F, alpha, the poses and the scene points from
these data, with c held in the middle of the image. The positions of image points, which any pinhole
camera measures, and their virtual depths, which only a plenoptic camera measures, are weighted by
their noise. The noise is estimated too.

An image point (x_u, y_u) with the standard deviation s and a virtual depth u with the standard
deviation s_u contain the same information as observations in two micro images. The centers of these
micro images lie to the left and to the right of the image point, at the distance d = s |u| / s_u,
and each observation has the standard deviation sqrt(2) s / |u|. So the solver for observations in
micro images solves this problem too.
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
"""Initial values of the noise of tracked image points, in raw px, and of the factor on the sigmas
of depth maps. The adjustment then estimates both; see `lifcal.sfm.rigidity`."""
_NOISE_ROUNDS = 3
"""Number of rounds that solve the problem and estimate the noise. After them, the noise is known
well enough for start values."""
_HELD = ("c_x", "c_y", "k1", "k2", "p0", "p1")
"""Intrinsics that are held, because tracks in focused images do not determine them well enough for
start values."""
_ANY_PIXEL_MM = 1.0
"""Arbitrary pixel size: a problem with the intrinsics F, c, alpha and beta does not depend on
it."""
_DISTANCES_PX = (0.05, 200.0)
"""Smallest and largest distance d of the two micro-image centers from their image point. Nearer
centers would coincide; farther centers would lie where the distortion is different. Where the
distance is limited, the weight of the virtual depth is not exact, which does not matter for start
values."""
_FEWEST = 50
"""Smallest number of image points with a virtual depth from which start values are computed."""


@dataclass(frozen=True, eq=False)
class VirtualTracks:
    """Tracked image points in focused images, with their virtual depths.

    Parameters
    ----------
    point_indices, view_indices : (n,) int64
        Indices of the scene points and poses in the start values.
    points_virt_px : (n, 2) float64
        Positions in the recorded virtual image, in raw px.
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
        """Which image points have a virtual depth, (n,)."""
        return np.isfinite(self.u) & (self.sigma_u > 0.0) & (np.abs(self.u) > 0.0)

    def select(self, keep: BoolArray) -> VirtualTracks:
        """Return the image points for which `keep` is true."""
        return VirtualTracks(
            self.point_indices[keep],
            self.view_indices[keep],
            self.points_virt_px[keep],
            self.u[keep],
            self.sigma_u[keep],
        )


@dataclass(frozen=True, eq=False)
class VirtualStart:
    """The adjusted start values.

    Parameters
    ----------
    state : Reconstruction
        The camera, and all poses and points that were given. Those that have no image points keep
        their given values.
    sigma_focal_px : float
        Standard deviation of F, computed from the residuals while c is held.
    misfit : float
        Mean loss of an image point in the first round. The noise in that round is always the same,
        so start values from the same tracks can be compared by their misfit.
    noise_px : float
        Estimated noise of tracked image points.
    noise_u : float
        Estimated factor on the given sigmas of virtual depths.
    """

    state: Reconstruction
    sigma_focal_px: float
    misfit: float
    noise_px: float
    noise_u: float


def adjust_virtual(
    tracks: VirtualTracks, start: Reconstruction, held: tuple[str, ...] = ()
) -> VirtualStart:
    """Adjust F, alpha, k0, poses and scene points to tracked image points and virtual depths.

    Parameters
    ----------
    tracks : VirtualTracks
        Tracks of points in focused images.
    start : Reconstruction
        Poses and points from structure from motion; alpha and beta from a line fit of u over 1 / z.
        Its principal point is held.
    held : tuple of str
        Further intrinsics that are held. If the camera is known, F, alpha and k0 are held, and only
        poses and points are fitted to it.

    Raises
    ------
    EstimationError
        If too few image points have a virtual depth, or if they do not determine the poses.
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
    """Return the problem whose observations in micro images are equivalent to the tracks."""
    known = tracks.known
    size = np.where(known, np.abs(tracks.u), np.median(np.abs(tracks.u[known])))
    u = np.where(known, tracks.u, size)
    distance = np.zeros(len(u))
    distance[known] = noise_px * size[known] / (noise_u * tracks.sigma_u[known])
    distance[known] = np.clip(distance[known], *_DISTANCES_PX)
    sigma = np.where(known, np.sqrt(2.0), 1.0) * noise_px / size
    # An image point without a virtual depth becomes one observation, in a micro image whose center
    # is that point.
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
    """Return all poses and points, where those that were adjusted replace those of `state`."""
    rotations, shifts = state.rotations.copy(), state.translations_mm.copy()
    points = state.points_world_mm.copy()
    rotations[observations.view_ids] = solved.rotations
    shifts[observations.view_ids] = solved.translations_mm
    points[observations.point_ids] = solved.points_world_mm
    return replace(solved, rotations=rotations, translations_mm=shifts, points_world_mm=points)


def _measure_noise(tracks: VirtualTracks, state: Reconstruction) -> tuple[float, float]:
    """Estimate the noise of image points and the factor on the sigmas of u from the residuals."""
    cam = _cam_points(tracks, state)
    array = state.array
    principal = np.array([array.principal_x_px, array.principal_y_px])
    seen = principal + array.focal_px * cam[:, :2] / cam[:, 2:]
    seen = state.distortion.distort(seen, principal)
    known = tracks.known
    off = (array.alpha + array.beta_mm / cam[known, 2] - tracks.u[known]) / tracks.sigma_u[known]
    place = 1.4826 * float(np.median(np.abs(seen - tracks.points_virt_px)))
    return max(place, 0.05), max(1.4826 * float(np.median(np.abs(off))), 0.1)
