"""How well everything is known: covariances, and in words what is known badly."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import linalg

from lifcal.arrays import FloatArray, read_only
from lifcal.bundle import _kernels_leave_out
from lifcal.bundle.linear import Layout, Loss, ReducedSystem, ScaledCholesky, pose_jacobians
from lifcal.bundle.problem import Problem
from lifcal.bundle.scale import Distances, compute_spans
from lifcal.camera import PHYSICAL_PARAMETERS, TILT_PARAMETERS, GridBend
from lifcal.diagnostics import Finding
from lifcal.errors import EstimationError
from lifcal.reconstruction import Reconstruction

_LITTLE_ERROR_PX = 0.001
"""Errors of the grid that move centers by less than this, rms, are left out of the covariance."""
_MOST_LEVERAGE = 0.98
"""Factor on the leverage of a point when it is left out. At 1, a point that determines a parameter
alone would leave it unknown, and the matrix singular."""


@dataclass(frozen=True, eq=False)
class Covariance:
    """Covariance of the unknowns, computed with the estimated noise.

    Covariances of poses and points are relative to the first view of their world (or, with known
    camera positions, in the frame of these). Rows and columns of parameters that were held are
    zero.

    Parameters
    ----------
    names : tuple of str
        Names of the intrinsics in the pinhole-array form, in the order of `array`.
    array : (n, n) float64
        Covariance of the intrinsics in the pinhole-array form.
    physical_names : tuple of str
        Names of the physical intrinsics, in the order of `physical`.
    physical : (n, n) float64
        Covariance of the physical intrinsics.
    poses : (n_views, 6, 6) float64 or None
        Covariance of each pose, in the coordinates of `RigidTransform.step` (rad and mm).
    points : (n_points, 3, 3) float64 or None
        Covariance of each point in mm^2.
    """

    names: tuple[str, ...]
    array: FloatArray
    physical_names: tuple[str, ...]
    physical: FloatArray
    poses: FloatArray | None = None
    points: FloatArray | None = None

    def sigmas(self) -> dict[str, float]:
        """Return the standard deviation of every intrinsic parameter, of both forms."""
        found = dict(zip(self.names, np.sqrt(np.diag(self.array)).tolist(), strict=True))
        physical = np.sqrt(np.diag(self.physical)).tolist()
        found.update(zip(self.physical_names, physical, strict=True))
        return found

    def correlation(self, first: str, second: str) -> float:
        """Return the correlation of two parameters of one form; 0 if one is held."""
        names, matrix = self.names, self.array
        if first not in names or second not in names:
            names, matrix = self.physical_names, self.physical
        i, j = names.index(first), names.index(second)
        scale = float(np.sqrt(matrix[i, i] * matrix[j, j]))
        return float(matrix[i, j]) / scale if scale > 0.0 else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return sigmas and correlations for JSON."""
        sigma = np.sqrt(np.diag(self.physical))
        scale = np.where(sigma > 0.0, sigma, 1.0)
        return {
            "sigmas": self.sigmas(),
            "correlation": {
                "parameters": list(self.physical_names),
                "matrix": (self.physical / scale[:, None] / scale).tolist(),
            },
        }


def compute_covariance(
    layout: Layout,
    state: Reconstruction,
    noise: float,
    *,
    inflation: float = 1.0,
    clustered: Loss | None = None,
    bend: GridBend | None = None,
    poses: bool = False,
    points: bool = False,
) -> Covariance:
    """Return the covariance at a solution.

    Parameters
    ----------
    layout : Layout
    state : Reconstruction
        The solution.
    noise : float
        Factor on the observations' standard deviations.
    inflation : float
        Factor on the variance of the observations, for the efficiency of a robust loss.
    clustered : Loss, optional
        The loss of the solution. If it is given, errors of observations of one point may be
        correlated (these observations share a texture and a surface). The correlation is estimated
        from the gradients of the points, and the sigmas of the intrinsics grow accordingly.
    bend : GridBend, optional
        Bend of the grid. Its covariance describes smooth errors of the centers, which are carried
        over to intrinsics and poses; the covariances of points are those of noise alone.
    poses, points : bool
        Whether the covariances of poses and of points are computed too.

    Raises
    ------
    EstimationError
        If the observations do not determine all unknowns.
    """
    loss = Loss("none", 1.0, noise * float(np.sqrt(inflation)))
    system = layout.linearize(state, loss).reduce(0.0)
    if system.failed:
        raise EstimationError(
            f"{system.failed} points are not determined: they need two micro images or two views",
            stage="covariance",
            evidence={"points": system.failed},
        )
    free = np.flatnonzero(layout.determined)
    inverse = _invert(system.dense()[np.ix_(free, free)])
    if inverse is None:
        raise EstimationError(
            "the normal matrix is singular: the observations do not determine all unknowns",
            stage="covariance",
        )
    whole = np.zeros((layout.size, layout.size))
    whole[np.ix_(free, free)] = inverse
    part = layout.theta_part
    if clustered is not None:
        factors = np.ones(layout.size)
        factors[part] = _cluster_factors(layout, state, clustered, whole, loss)[part]
        whole *= factors[:, None] * factors
    point_blocks = _point_covariances(system, whole) if points else None
    if bend is not None:
        moves = _list_center_gradients(layout, state, loss, system.reduced_gradient, bend)
        moves[:, free] = -moves[:, free] @ inverse
        moves[:, ~layout.determined] = 0.0
        whole += moves.T @ moves
    theta = system.change @ whole[part, part] @ system.change.T
    theta = (theta + theta.T) / 2.0
    problem = layout.problem
    if problem.uses_physical:
        physical = whole[part, part]  # as it is: what is held stays exactly zero
    else:
        conversion = np.eye(len(theta))
        conversion[:5, :5] = state.array.physical_jacobian(problem.pixel_size_mm)
        physical = conversion @ theta @ conversion.T
    names = problem.names
    blocks = None
    if poses:
        places = 6 * np.arange(layout.n_views)[:, None] + np.arange(6)
        blocks = whole[places[:, :, None], places[:, None, :]]
    return Covariance(
        names,
        read_only(theta),
        (*PHYSICAL_PARAMETERS, *names[5:]),
        read_only((physical + physical.T) / 2.0),
        blocks,
        point_blocks,
    )


def hold_uncertain(covariance: Covariance, held: tuple[str, ...], error: FloatArray) -> Covariance:
    """Return what is known if some parameters are held at values that have an error of their own.

    Parameters
    ----------
    covariance : Covariance
        With all of them free.
    held : tuple of str
        Names of intrinsics, of both forms.
    error : (n_held, n_held) float64
        Covariance of their values, which the observations did not give.

    Notes
    -----
    An error of a held parameter moves the others by the slope of their regression on it, so what is
    left is the covariance given the held ones, and the error carried over by that slope. This is
    for what small systematic errors of very many observations would seem to determine, and do not.
    """

    def carry(matrix: FloatArray, names: tuple[str, ...]) -> FloatArray:
        ours = np.array([names.index(name) for name in held])
        between, among = matrix[:, ours], matrix[np.ix_(ours, ours)]
        slope = np.linalg.solve(among, between.T).T
        found = matrix - slope @ between.T + slope @ error @ slope.T
        return read_only((found + found.T) / 2.0)

    return replace(
        covariance,
        array=carry(covariance.array, covariance.names),
        physical=carry(covariance.physical, covariance.physical_names),
    )


def add_scale_error(
    covariance: Covariance, state: Reconstruction, pixel_size_mm: float, relative: float
) -> Covariance:
    """Return the covariance if all known lengths may be wrong by one common factor.

    Markers of one print are all too large or all too small: their number does not help. Only beta
    carries the scale.
    """
    return _add_common(covariance, state, pixel_size_mm, {"beta": relative * state.array.beta_mm})


def add_magnification_error(
    covariance: Covariance,
    state: Reconstruction,
    pixel_size_mm: float,
    virtual_depths: FloatArray,
    relative: float,
) -> Covariance:
    """Return the covariance if micro images may be too large by a share that changes with depth.

    By `-relative` at one end of the depths and `relative` at the other: what blur, vignetting and
    their corrections leave. It turns the line of u over 1 / z about its middle, the more the
    shorter the line is, and no number of observations makes it smaller.

    Parameters
    ----------
    covariance : Covariance
    state : Reconstruction
    pixel_size_mm : float
    virtual_depths : (n,) float64
        Virtual depths of the observations.
    relative : float
        One sigma.
    """
    low, middle, high = np.quantile(virtual_depths, [0.05, 0.5, 0.95]).tolist()
    turn = relative * abs(middle) / max(0.5 * (high - low), 1e-12)
    moves = {"alpha": turn * (state.array.alpha - middle), "beta": turn * state.array.beta_mm}
    return _add_common(covariance, state, pixel_size_mm, moves)


def add_tilt_error(
    covariance: Covariance,
    state: Reconstruction,
    pixel_size_mm: float,
    virtual_depths: FloatArray,
    reach_px: FloatArray,
    relative: float,
) -> Covariance:
    """Return the covariance if the size of micro images may change across the image by itself.

    A tilt of the array makes micro images larger on one side of the image. So does whatever blur,
    vignetting and their corrections leave there, and the two cannot be told apart. The covariance
    is returned as it is if it does not contain the tilt.

    Parameters
    ----------
    covariance : Covariance
    state : Reconstruction
    pixel_size_mm : float
    virtual_depths : (n,) float64
        Virtual depths of the observations.
    reach_px : (2,) float64
        Distance from the middle of the image to its borders, along x and y.
    relative : float
        Change of the size of micro images from the middle to a border, one sigma.
    """
    u = float(np.median(virtual_depths))
    for name, reach in zip(TILT_PARAMETERS, reach_px.tolist(), strict=True):
        if name in covariance.names and covariance.sigmas()[name] > 0.0:
            # u_k - 1 is proportional to 1 / (1 + tau), and micro images to 1 / u_k.
            move = relative / reach * abs(u / (u - 1.0))
            covariance = _add_common(covariance, state, pixel_size_mm, {name: move})
    return covariance


def _add_common(
    covariance: Covariance, state: Reconstruction, pixel_size_mm: float, moves: dict[str, float]
) -> Covariance:
    """Add an error that moves parameters of the pinhole form together, by so much at one sigma."""
    move = np.zeros(len(covariance.names))
    for name, value in moves.items():
        move[covariance.names.index(name)] = value
    conversion = np.eye(len(move))
    conversion[:5, :5] = state.array.physical_jacobian(pixel_size_mm)
    physical = conversion @ move
    return replace(
        covariance,
        array=read_only(covariance.array + np.outer(move, move)),
        physical=read_only(covariance.physical + np.outer(physical, physical)),
    )


def _cluster_factors(
    layout: Layout, state: Reconstruction, robust: Loss, whole: FloatArray, plain: Loss
) -> FloatArray:
    """Return the factor on each sigma if observations are independent between points only.

    With S the reduced normal matrix, S_p what point p adds to it, and g_p what it adds to the
    gradient, the estimate without that point is off by (S - S_p)^-1 g_p, and the covariance is the
    sum over points of its square: the jackknife, or the clustered sandwich of robust statistics
    with the residuals as large as they are for a point that had no part in the fit. It is never
    taken to be smaller than for independent observations.

    Parameters
    ----------
    layout : Layout
    state : Reconstruction
    robust : Loss
        Loss of the solution.
    whole : (size, size) float64
        S^-1.
    plain : Loss
        Loss with which S was computed.
    """
    scores, square = _point_scores(layout, state, robust)
    moves = _leave_points_out(layout, state, plain, whole, scores)
    spread = moves.T @ moves * (robust.noise / plain.noise) ** 2 / square
    variance = np.diag(whole)
    ratio = np.where(variance > 0.0, np.diag(spread) / np.where(variance > 0.0, variance, 1.0), 1.0)
    return np.asarray(np.sqrt(np.maximum(ratio, 1.0)))


def _leave_points_out(
    layout: Layout, state: Reconstruction, loss: Loss, whole: FloatArray, scores: FloatArray
) -> FloatArray:
    """Return how the unknowns move without each point, (n_points, size).

    (S - S_p)^-1 g_p = S^-1 (1 - S_p S^-1)^-1 g_p, and S_p is not zero for the poses that see the
    point and for the intrinsics only. Kept points (ends of known distances) are not left out.
    """
    rows, _ = _whiten(layout, state, loss.noise)
    rows *= layout.active[:, None, None]
    pair_points, pair_views, pair_rows = layout.pairs
    world = state.points_world_mm[pair_points]
    cam = np.einsum("pij,pj->pi", state.rotations[pair_views], world)
    seen = _kernels_leave_out.SeenPoints(
        rows=rows,
        pair_rows=pair_rows,
        views=pair_views,
        points_cam=cam + state.translations_mm[pair_views],
        rotations=state.rotations,
        first=layout.point_pairs,
        kept=layout.kept,
    )
    grown = scores.copy()
    change = np.ascontiguousarray(layout.problem.step_jacobian(state))
    begin = layout.theta_part.start
    _kernels_leave_out.leave_out(seen, change, whole, begin, _MOST_LEVERAGE, scores, grown)
    return np.asarray(grown @ whole)


def _list_center_gradients(
    layout: Layout, state: Reconstruction, loss: Loss, gradient: FloatArray, bend: GridBend
) -> FloatArray:
    """Return how errors of the centers change the reduced gradient, (n_errors, size).

    Each row is an independent error of the grid by one of its sigmas.
    """
    rows = []
    for field in bend.list_errors(layout.centers, _LITTLE_ERROR_PX):
        for axis in np.eye(2):
            moved = layout.with_centers(layout.centers + field[:, None] * axis)
            rows.append(moved.linearize(state, loss).reduce(0.0).reduced_gradient - gradient)
    return np.array(rows).reshape(-1, layout.size)


def _point_scores(layout: Layout, state: Reconstruction, loss: Loss) -> tuple[FloatArray, float]:
    """Return what each point adds to the reduced gradient, and the mean square of the scores."""
    pair_points, pair_views, pair_obs = layout.pairs
    rows, residuals = _whiten(layout, state, loss.noise)
    weights = loss.weights(np.sum(residuals**2, axis=1)) * layout.active
    scores = residuals * weights[:, None]
    square = float(np.sum(scores**2) / max(2 * int(layout.active.sum()), 1))
    # by pair: gradient and normal matrix by (X_C, intrinsics)
    gradient = np.add.reduceat(np.einsum("nki,nk->ni", rows, scores), pair_obs[:-1])
    normal = np.add.reduceat(
        np.einsum("n,nki,nkj->nij", weights, rows[:, :, :3], rows), pair_obs[:-1]
    )
    rotations = state.rotations[pair_views]
    world = state.points_world_mm[pair_points]
    cam = np.einsum("pij,pj->pi", rotations, world) + state.translations_mm[pair_views]
    to_pose = pose_jacobians(cam)
    pose_gradient = np.einsum("pij,pi->pj", to_pose, gradient[:, :3])
    pose_point = np.einsum("pij,pik,pkl->pjl", to_pose, normal[:, :, :3], rotations)
    first = layout.point_pairs[:-1]
    point_gradient = np.add.reduceat(np.einsum("pij,pi->pj", rotations, gradient[:, :3]), first)
    point_normal = np.add.reduceat(
        np.einsum("pij,pik,pkl->pjl", rotations, normal[:, :, :3], rotations), first
    )
    theta_gradient = np.add.reduceat(gradient[:, 3:], first)
    theta_point = np.add.reduceat(np.einsum("pit,pij->ptj", normal[:, :, 3:], rotations), first)
    moved = np.linalg.solve(_safe(point_normal), point_gradient[:, :, None])[:, :, 0]
    moved[layout.kept] = 0.0  # those are not eliminated
    out = np.zeros((layout.n_points, layout.size))
    reduced = pose_gradient - np.einsum("pij,pj->pi", pose_point, moved[pair_points])
    columns = 6 * pair_views[:, None] + np.arange(6)
    out[pair_points[:, None], columns] = reduced
    change = layout.problem.step_jacobian(state)
    theta = theta_gradient - np.einsum("pti,pi->pt", theta_point, moved)
    out[:, layout.theta_part] = theta @ change
    for i, point in enumerate(layout.kept_points):
        places = layout.n_poses + 3 * i + np.arange(3)
        out[point, places] = point_gradient[point]
    return out, square


def _whiten(layout: Layout, state: Reconstruction, noise: float) -> tuple[FloatArray, FloatArray]:
    """Return the rows of the Jacobian and the residuals in units of their noise."""
    rows, residuals = layout.compute_rows(state), layout.compute_residuals(state)
    w = layout.whitening / noise
    for values in (rows.transpose(1, 0, 2), residuals.T[:, :, None]):
        values[0] = w[:, 0, None] * values[0] + w[:, 1, None] * values[1]
        values[1] = w[:, 2, None] * values[1]
    return rows, residuals


def _safe(normals: FloatArray) -> FloatArray:
    """Return 3 x 3 normal matrices that can be solved even if nothing was seen."""
    scale = np.einsum("pii->p", normals) / 3.0
    return np.asarray(normals + (1e-12 * scale[:, None, None] + 1e-300) * np.eye(3))


def _point_covariances(system: ReducedSystem, whole: FloatArray) -> FloatArray:
    """Return V^-1 + V^-1 W S^-1 W^T V^-1 for eliminated points, the block of S^-1 for kept ones."""
    layout = system.layout
    out = np.empty((layout.n_points, 3, 3))
    part = np.arange(layout.theta_part.start, layout.theta_part.stop)
    # the intrinsics of `point_half` are in the array form, those of `whole` are stepped
    intrinsics = system.point_half[:, :, :-1] @ system.change
    for point in range(layout.n_points):
        if layout.kept[point]:
            continue
        first, last = layout.point_pairs[point], layout.point_pairs[point + 1]
        views = layout.pairs[1][first:last]
        places = np.concatenate([(6 * views[:, None] + np.arange(6)).ravel(), part])
        columns = (layout.half_places[first:last, None] + np.arange(6)).ravel()
        poses = system.pair_half[layout.half_strides[point] * np.arange(3)[:, None] + columns]
        half = np.concatenate([poses, intrinsics[point]], axis=1)  # L^-1 W
        inner = np.eye(3) + half @ whole[np.ix_(places, places)] @ half.T
        root = linalg.solve_triangular(system.factors[point], np.eye(3), lower=True)
        out[point] = root.T @ inner @ root
    for i, point in enumerate(layout.kept_points):
        places = layout.n_poses + 3 * i + np.arange(3)
        out[point] = whole[np.ix_(places, places)]
    return out


def compare_lengths(
    problem: Problem, state: Reconstruction, distances: Distances, noise: float
) -> tuple[FloatArray, FloatArray | None]:
    """Return distances as they are at the minimum, and what the images know of them.

    Parameters
    ----------
    problem : Problem
        Without distances.
    state : Reconstruction
        A reconstruction near the minimum; its scale does not matter.
    distances : Distances
    noise : float

    Returns
    -------
    lengths : (n,) float64
    covariance : (n, n) float64 or None
        Covariance of the logarithms of the distances; the scale, which they have in common, counts
        as known to 1. None if points are not determined.
    """
    ends = replace(problem, distances=distances).distance_points
    span = compute_spans(state.points_world_mm, ends)
    lengths = np.linalg.norm(span, axis=1)
    if not (lengths > 0.0).all():
        return np.maximum(lengths, 1e-300), None
    # known to their own size, they hold nothing but keep their points in the reduced system
    loose = replace(distances, lengths_mm=lengths, sigmas_mm=lengths)
    layout = Layout(replace(problem, start=state, distances=loose))
    system = layout.linearize(state, Loss("none", 1.0, noise)).reduce(0.0)
    if system.failed:
        return lengths, None
    free = np.flatnonzero(layout.determined)
    inverse = _invert(system.dense()[np.ix_(free, free)])
    if inverse is None:
        return lengths, None
    design = np.zeros((len(lengths), layout.size))
    slope = span / lengths[:, None] ** 2
    rows = np.arange(len(lengths))[:, None]
    kept = layout.n_poses + 3 * np.searchsorted(layout.kept_points, ends)
    for end, sign in ((0, 1.0), (1, -1.0)):
        for member in range(ends.shape[2]):
            columns = kept[:, end, member, None] + np.arange(3)
            design[rows, columns] += sign * slope / ends.shape[2]
    design = design[:, free]
    # what the last step would still change: in a flat valley that is more than it seems
    step = -inverse @ system.reduced_gradient[free]
    return lengths * np.exp(np.clip(design @ step, -1.0, 1.0)), design @ inverse @ design.T


def _invert(matrix: FloatArray) -> FloatArray | None:
    """Return the inverse; None where the matrix is not safely positive definite."""
    factored = ScaledCholesky.of(matrix)
    if factored is None or np.diag(factored.factor).min() < 1e-7:
        return None
    return factored.solve(np.eye(len(matrix)))


# In words

_HELP = {
    frozenset(("f_L", "b_L0")): "views at another distance would help",
    frozenset(("F", "alpha")): "views at another distance, or turned about the optical axis, "
    "would help",
    frozenset(("alpha", "beta")): "points over a wider range of depths would help",
    frozenset(("B", "g")): "the focus strength is not told from B: give it a prior",
    frozenset(("alpha", "g")): "the focus strength is not told from alpha: give it a prior",
    frozenset(("beta", "g")): "the focus strength is not told from beta: give it a prior",
}
"""What would tell two parameters apart that are correlated."""
_WEAK = {"f_L": 0.01, "b_L0": 0.01, "B": 0.02, "F": 0.01}
"""Relative standard deviation from which a parameter is called weak."""

_WEAK_CENTER_PX = 10.0
"""Standard deviation of the principal point, in pixels, from which it is called weak."""
_HIGH_CORRELATION = 0.99
"""Correlation from which two parameters cannot be told apart."""


def describe_weakness(
    covariance: Covariance, state: Reconstruction, pixel_size_mm: float, *, metric: bool = True
) -> list[Finding]:
    """Return what is known badly, and what would help."""
    sigmas = covariance.sigmas()
    values = dict(
        zip(PHYSICAL_PARAMETERS, state.array.to_physical(pixel_size_mm).as_vector(), strict=True)
    )
    values["F"] = state.array.focal_px
    found = []
    lengths = ("f_L", "b_L0", "B") if metric else ()  # without a scale they mean nothing
    for name, limit in _WEAK.items():
        if name != "F" and name not in lengths:
            continue
        relative = sigmas[name] / abs(values[name])
        if relative > limit:
            found.append(
                Finding.of(
                    "parameter-uncertain",
                    f"{name} is known to {100.0 * relative:.1f} % only: more views, turned about "
                    "the optical axis and from other distances, would help",
                    parameter=name,
                    relative_sigma=relative,
                )
            )
    center = max(sigmas["c_x"], sigmas["c_y"])
    if center > _WEAK_CENTER_PX:
        found.append(
            Finding.of(
                "center-uncertain",
                f"the principal point is known to {center:.0f} px only: views turned about the "
                "optical axis (portrait and landscape) would help",
                sigma_px=center,
            )
        )
    names = [*(lengths or ("F", "alpha")), "c_x", "c_y", *covariance.names[5:]]
    for i, first in enumerate(names):
        for second in names[i + 1 :]:
            value = covariance.correlation(first, second)
            if abs(value) > _HIGH_CORRELATION and not _alike(first, second):
                advice = _HELP.get(frozenset((first, second)))
                tail = f"; {advice}" if advice else ""
                found.append(
                    Finding.of(
                        "correlated",
                        f"{first} and {second} are correlated {value:.3f}{tail}",
                        parameters=f"{first} {second}",
                        correlation=value,
                    )
                )
    return found


def _alike(first: str, second: str) -> bool:
    """Radial terms always are, and so are focal planes: it says nothing."""
    return first[0] == second[0] and first[0] in "ki"
