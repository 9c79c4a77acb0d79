"""Start values of the adjustment, from structure from motion or from the observations alone.

In each view, the micro images of a point give its virtual image (x_u, y_u, u) without any
calibration, because `x_R = C + ((x_u, y_u) - C) / u` is linear in ((x_u, y_u) / u, 1 / u). With F,
c and alpha known, these virtual image points give points in space, up to one scale for all views.
The distances between these points must be the same in every view, which determines F and alpha.
Views are then registered by aligning their 3D points (3D-3D registration).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from lifcal.arrays import BoolArray, FloatArray, IntArray, check_array, read_only
from lifcal.bundle import _kernels
from lifcal.bundle._kernels import FIT_RHO
from lifcal.camera import Distortion, NoDistortion, PinholeArray
from lifcal.errors import EstimationError, InputError
from lifcal.geometry import RigidTransform
from lifcal.reconstruction import Observations, Reconstruction

_MIN_COMMON = 5
"""Smallest number of points that a view must share with the registered views. Three points
determine the six unknowns of a rigid motion, and a robust fit needs some more."""

_ODD_FACTOR, _ODD_ERROR = 4.0, 0.02
"""A view is left out if its alignment error, as a fraction of the depth, is larger than the first
number times the median error of all views plus the second number."""

_RAYLEIGH_MEDIAN = 1.1774
"""Median of a Rayleigh distribution: the median length of a residual whose two coordinates have
normal distributions, in units of their standard deviation."""


@dataclass(frozen=True, eq=False)
class VirtualPoints:
    """The virtual image point of each (point, view) pair.

    Parameters
    ----------
    point_indices, view_indices : (n_pairs,) int64
    points_virt : (n_pairs, 3) float64
        x_u, y_u in px and u; NaN where only one micro image shows the point, and where 1 / u is
        within three sigmas of zero.
    sigma_inverse : (n_pairs,) float64
        Standard deviation of 1 / u, for noise of the size `noise_px`.
    scaled : (n_pairs, 3) float64
        x_u / u, y_u / u, 1 / u.
    information : (n_pairs, 3, 3) float64
        Inverse covariance of `scaled`.
    noise_px : float
        Standard deviation of the observations from the fits of their pairs, along each axis.
    """

    point_indices: IntArray
    view_indices: IntArray
    points_virt: FloatArray
    sigma_inverse: FloatArray
    scaled: FloatArray
    information: FloatArray
    noise_px: float


@dataclass(frozen=True, eq=False)
class Start:
    """Start values of the adjustment.

    Parameters
    ----------
    state : Reconstruction
        Camera, poses and points. Views that are not registered have the identity as their pose, and
        points that are not placed are at the origin.
    registered : (n_views,) bool
        Whether a pose was found for the view.
    placed : (n_points,) bool
        Whether a position was found for the point.
    """

    state: Reconstruction
    registered: BoolArray
    placed: BoolArray


def fit_virtual_points(
    observations: Observations,
    distortion: Distortion = NoDistortion(),  # noqa: B008 (frozen)
    principal_px: npt.ArrayLike = (0.0, 0.0),
) -> VirtualPoints:
    """Fit robustly the virtual image point of each (point, view) pair to its observations.

    Parameters
    ----------
    observations : Observations
    distortion : Distortion
    principal_px : (2,) float64
        Center of the distortion. It has no effect if there is no distortion.
    """
    table, index = observations.centers
    measured = observations.points_raw_px
    if len(distortion.parameters):
        table = distortion.undistort(table, principal_px)
        measured = distortion.undistort(measured, principal_px)
    points, views, offsets = observations.pairs
    n = len(points)
    scaled = np.empty((n, 3))
    information = np.empty((n, 3, 3))
    misfit = np.empty(n)
    _kernels.fit_virtual_points(offsets, index, measured, table, scaled, information, misfit)
    rho = scaled[:, FIT_RHO]
    # The residuals of a pair with few micro images are too small. The noise is therefore estimated
    # from pairs with six or more, or with the median number of micro images if that is smaller.
    counts = np.diff(offsets)
    known = np.isfinite(misfit) & (counts >= min(6, int(np.median(counts))))
    noise = float(np.median(misfit[known])) / _RAYLEIGH_MEDIAN if known.any() else 1.0
    noise = max(noise, 1e-9)
    information /= noise**2
    # The Schur complement with respect to (x_u / u, y_u / u) is the information on 1 / u alone.
    weight = np.maximum(information[:, 0, 0], 1e-300)
    spread = information[:, 2, 2] - (information[:, 0, 2] ** 2 + information[:, 1, 2] ** 2) / weight
    with np.errstate(divide="ignore", invalid="ignore"):
        sigma = 1.0 / np.sqrt(np.maximum(spread, 1e-300))
        virtual = np.column_stack([scaled[:, :FIT_RHO] / rho[:, None], 1.0 / rho])
    # Where 1 / u is within three sigmas of zero, the virtual image point is not determined.
    virtual[~(np.abs(rho) > 3.0 * sigma)] = np.nan
    return VirtualPoints(points, views, virtual, sigma, scaled, information, noise)


def start_from_sfm(
    observations: Observations,
    focal_px: float,
    principal_px: npt.ArrayLike,
    cam_from_sfm: Sequence[RigidTransform],
    points_sfm: npt.ArrayLike,
    distortion: Distortion = NoDistortion(),  # noqa: B008 (frozen)
    virtual_depths: npt.ArrayLike | None = None,
) -> Start:
    """Return start values from poses and points of structure from motion.

    A robust line fit of virtual depth u against 1 / z gives alpha and beta.

    Parameters
    ----------
    observations : Observations
    focal_px, principal_px : float and (2,) float64
        Focal length and principal point of the focused image, in raw pixels.
    cam_from_sfm : sequence of RigidTransform
        Pose of each view; the scale is arbitrary.
    points_sfm : (n_points, 3) float64
        Scene points at the same scale.
    distortion : Distortion
    virtual_depths : (n_pairs,) float64, optional
        Measured u of each pair of a point and a view in `observations.pairs`; NaN where it is not
        known. If not given, u is computed from the observations.

    Raises
    ------
    EstimationError
        If no line can be fitted: too few points have a virtual depth, all are at one depth, or the
        virtual depth does not rise with 1 / z.
    """
    points = check_array(points_sfm, "points_sfm", (len(observations.point_ids), 3), finite=True)
    if len(cam_from_sfm) != len(observations.view_ids):
        raise InputError(f"{len(cam_from_sfm)} poses for {len(observations.view_ids)} views")
    cx, cy = check_array(principal_px, "principal_px", (2,), finite=True)
    fitted = fit_virtual_points(observations, distortion, (cx, cy))
    u = fitted.points_virt[:, 2]
    sigma = fitted.sigma_inverse * u**2
    if virtual_depths is not None:
        u = check_array(virtual_depths, "virtual_depths", (len(u),))
        sigma = np.ones(len(u))
    rotations = np.array([pose.rotation for pose in cam_from_sfm])
    shifts = np.array([pose.translation_mm for pose in cam_from_sfm])
    views = fitted.view_indices
    depth = (
        np.einsum("pj,pj->p", rotations[views, 2], points[fitted.point_indices]) + shifts[views, 2]
    )
    alpha, beta = fit_depth_line(depth, u, sigma)
    state = Reconstruction(
        PinholeArray(float(focal_px), float(cx), float(cy), alpha, beta),
        distortion,
        rotations,
        shifts,
        points,
    )
    ones = np.ones(len(points), np.bool_)
    return Start(state, np.ones(len(rotations), np.bool_), ones)


def refit_depth(observations: Observations, state: Reconstruction) -> Reconstruction:
    """Return the state with alpha and beta from a line fit of u against 1 / z.

    Poses, points and their scale are not changed. If the physical parameters are only roughly
    known, alpha has a large error, because it depends on the difference of the nearly equal lengths
    f_L and b_L0; the fit corrects it. If no line can be fitted, the state is returned unchanged.
    """
    array = state.array
    principal = (array.principal_x_px, array.principal_y_px)
    try:
        start = start_from_sfm(
            observations,
            array.focal_px,
            principal,
            state.cam_from_world,
            state.points_world_mm,
            state.distortion,
        )
    except EstimationError:
        return state
    return replace(state, array=start.state.array)


def fit_depth_line(
    depth: FloatArray, u: FloatArray, sigma: FloatArray, fewest: int = 3
) -> tuple[float, float]:
    """Fit alpha and beta of `u = alpha + beta / z` robustly.

    Parameters
    ----------
    depth : (n,) float64
        Depth z of each point in its view, at any scale. Points whose z is not positive are left
        out.
    u, sigma : (n,) float64
        Virtual depths and their standard deviations; NaN where they are not known.
    fewest : int
        Smallest number of points for a fit.

    Raises
    ------
    EstimationError
        If there are fewer points, all of them are at one depth, or the virtual depth does not rise
        with 1 / z.
    """
    good = np.isfinite(u) & np.isfinite(sigma) & (sigma > 0.0) & (depth > 0.0)
    if good.sum() < fewest:
        raise EstimationError(
            f"only {int(good.sum())} points have a virtual depth and lie before the camera (need "
            f"{fewest}): show things with more texture",
            stage="start",
        )
    if np.ptp(1.0 / depth[good]) == 0.0:
        raise EstimationError(
            "all points are at one depth, so no line fits virtual depth against 1 / z: show near "
            "and far things",
            stage="start",
        )
    alpha, beta = fit_line(1.0 / depth[good], u[good], sigma[good])
    if not beta > 0.0:
        raise EstimationError(
            f"virtual depth does not rise with 1 / z (slope {beta:.3g}): all points are at one "
            "depth, or the poses are wrong. Show near and far things, and move sideways",
            stage="start",
            evidence={"alpha": alpha, "beta": beta},
        )
    return alpha, beta


def fit_line(x: FloatArray, y: FloatArray, sigma: FloatArray) -> tuple[float, float]:
    """Fit y = a + b x robustly and return a and b.

    The medians of the lowest and of the highest third of x give a first line, which least squares
    with Cauchy weights then refine.
    """
    order = np.argsort(x)
    third = max(len(x) // 3, 1)
    low, high = order[:third], order[-third:]
    run = float(np.median(x[high]) - np.median(x[low]))
    slope = float(np.median(y[high]) - np.median(y[low])) / run if run > 0.0 else 0.0
    offset = float(np.median(y - slope * x))
    for _ in range(20):
        pull = (y - offset - slope * x) / sigma
        scale = 1.4826 * float(np.median(np.abs(pull))) * 2.0 + 1e-12
        weight = 1.0 / (1.0 + (pull / scale) ** 2) / sigma**2
        mean_x, mean_y = np.average(x, weights=weight), np.average(y, weights=weight)
        slope = float(
            (weight * (x - mean_x)) @ (y - mean_y) / ((weight * (x - mean_x)) @ (x - mean_x))
        )
        offset = float(mean_y - slope * mean_x)
    return offset, slope


def start_from_observations(
    observations: Observations,
    focal_px: float,
    principal_px: npt.ArrayLike,
    *,
    focal_range: tuple[float, float] = (0.85, 1.3),
    seed: int = 0,
) -> Start:
    """Return start values from the observations alone, without structure from motion.

    The scale is arbitrary: the median depth is 1000.

    Parameters
    ----------
    observations : Observations
    focal_px : float
        Rough value of F, for example the nominal focal length divided by the pixel size.
    principal_px : (2,) float64
        Rough value of c, for example the middle of the image.
    focal_range : (float, float)
        F is searched between these multiples of `focal_px`. Focusing a lens at a nearer distance
        makes its F larger.
    seed : int
        Seed of the random choices; the same seed gives the same start values.

    Raises
    ------
    EstimationError
        If there is only one view, or no two views can be registered to each other.
    """
    if not (np.isfinite(focal_px) and focal_px > 0.0):
        raise InputError(f"focal_px is {focal_px}, needs a positive number")
    if len(observations.view_ids) < 2:
        raise EstimationError(
            "there is one view only: record the scene from several places", stage="start"
        )
    principal = check_array(principal_px, "principal_px", (2,), finite=True)
    fitted = fit_virtual_points(observations)
    rng = np.random.default_rng(seed)
    quads = _choose_quads(fitted, len(observations.point_ids), rng)
    candidates = _search_rigid(fitted, quads, focal_px, principal, focal_range)
    best: Start | None = None
    best_score = (-1, -np.inf)
    for focal, alpha in candidates:
        array = PinholeArray(focal, float(principal[0]), float(principal[1]), alpha, 1.0)
        start, error = _register(fitted, observations, array, rng)
        score = (int(start.registered.sum()), -error)
        if score > best_score:
            best, best_score = start, score
    if best is None or best.registered.sum() < 2:
        raise EstimationError(
            "no two views could be joined: they need at least "
            f"{_MIN_COMMON} points in common, each in two micro images or more, and depth that "
            "differs between points or views",
            stage="start",
            evidence={"views": len(observations.view_ids)},
        )
    depth = _depths(best, fitted)
    return Start(best.state.scaled(1000.0 / float(np.median(depth))), best.registered, best.placed)


def register_views(
    observations: Observations,
    array: PinholeArray,
    distortion: Distortion = NoDistortion(),  # noqa: B008 (frozen)
    *,
    seed: int = 0,
) -> Start:
    """Return start values of poses and points for intrinsics that are roughly known."""
    principal = (array.principal_x_px, array.principal_y_px)
    fitted = fit_virtual_points(observations, distortion, principal)
    start, _ = _register(fitted, observations, array, np.random.default_rng(seed), distortion)
    return start


# Search of F and alpha


def _choose_quads(
    fitted: VirtualPoints, n_points: int, rng: np.random.Generator, n_quads: int = 2500
) -> IntArray:
    """Choose at random two points i and j that two views v and w share, about `n_quads` times.

    Returns
    -------
    (n, 4) int64
        Indices of the pairs (i, v), (j, v), (i, w) and (j, w) in `fitted`.
    """
    good = np.flatnonzero(np.isfinite(fitted.points_virt).all(axis=1))
    of_view: dict[int, dict[int, int]] = {}
    for pair in good.tolist():
        view = int(fitted.view_indices[pair])
        of_view.setdefault(view, {})[int(fitted.point_indices[pair])] = pair
    joined = []
    views = sorted(of_view)
    # If there are more than 400 pairs of views, 400 of them are chosen at random.
    all_pairs = [(v, w) for i, v in enumerate(views) for w in views[i + 1 :]]
    if len(all_pairs) > 400:
        chosen = rng.choice(len(all_pairs), 400, replace=False)
        all_pairs = [all_pairs[i] for i in sorted(chosen.tolist())]
    for v, w in all_pairs:
        shared = sorted(of_view[v].keys() & of_view[w].keys())
        if len(shared) >= _MIN_COMMON:
            joined.append((v, w, np.array(shared, np.int64)))
    if not joined:
        raise EstimationError(
            f"no two views share {_MIN_COMMON} points that are seen in two micro images each",
            stage="start",
            evidence={"points": n_points, "views": len(views)},
        )
    each = max(n_quads // len(joined), 10)
    rows = []
    for v, w, common in joined:
        first = rng.integers(0, len(common), each)
        second = (first + rng.integers(1, len(common), each)) % len(common)
        for i, j in zip(common[first].tolist(), common[second].tolist(), strict=True):
            rows.append((of_view[v][i], of_view[v][j], of_view[w][i], of_view[w][j]))
    return np.array(rows, np.int64)


def _search_rigid(
    fitted: VirtualPoints,
    quads: IntArray,
    focal_px: float,
    principal_px: FloatArray,
    focal_range: tuple[float, float],
    n_best: int = 3,
) -> list[tuple[float, float]]:
    """Return the values of (F, alpha) for which distances between points agree best between views.

    Up to `n_best` values are returned, whose alpha differ clearly.
    """
    xy = fitted.points_virt[quads, :2] - principal_px
    u = fitted.points_virt[quads, 2]
    seen = fitted.points_virt[:, 2]
    seen = seen[np.isfinite(seen)]
    low, high = np.percentile(seen, [2.0, 98.0])
    spread = max(high - low, 1e-3 * abs(high))
    # alpha is smaller than every u. How much smaller is not known, so the search covers four orders
    # of magnitude.
    below = np.geomspace(0.02, 300.0, 80) * spread
    scores = []
    for focal in focal_px * np.geomspace(*focal_range, 17):
        for distance in below:
            alpha = low - distance
            scores.append((_disagreement(xy, u, focal, alpha), focal, alpha))
    scores.sort()
    found: list[tuple[float, float]] = []
    for _, focal, alpha in scores:
        ratio = [abs(np.log((low - alpha) / (low - other))) for _, other in found]
        if all(r > 0.5 for r in ratio):
            polished, alpha = _polish(xy, u, focal, alpha, low)
            focal = float(np.clip(polished, *(focal_px * np.array(focal_range))))
            found.append((focal, alpha))
        if len(found) == n_best:
            break
    return found


def _disagreement(xy: FloatArray, u: FloatArray, focal: float, alpha: float) -> float:
    """Return the mean of a bounded loss for the difference of distances between two views.

    The residual is the logarithm of the ratio of a distance between two points in one view to the
    distance between the same points in the other view.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        depth = np.where(u > alpha, 1.0 / (u - alpha), np.nan)
        points = np.concatenate([xy / focal * depth[:, :, None], depth[:, :, None]], axis=2)
        first = np.linalg.norm(points[:, 0] - points[:, 1], axis=1)
        second = np.linalg.norm(points[:, 2] - points[:, 3], axis=1)
        ratio = np.log(first / second)
    # A ratio that cannot be computed counts as a large residual.
    square = np.where(np.isfinite(ratio), ratio, 10.0) ** 2
    return float(np.mean(square / (square + 0.05**2)))


def _polish(
    xy: FloatArray, u: FloatArray, focal: float, alpha: float, low: float
) -> tuple[float, float]:
    """Refine (F, alpha) by local minimization, which starts at a point of the search grid."""
    from scipy.optimize import minimize

    done = minimize(
        lambda x: _disagreement(xy, u, focal * np.exp(x[0]), low - (low - alpha) * np.exp(x[1])),
        np.zeros(2),
        method="Nelder-Mead",
        options={"xatol": 1e-3, "fatol": 1e-6, "maxiter": 80},
    )
    return focal * float(np.exp(done.x[0])), low - (low - alpha) * float(np.exp(done.x[1]))


# Registration of views


def _register(
    fitted: VirtualPoints,
    observations: Observations,
    array: PinholeArray,
    rng: np.random.Generator,
    distortion: Distortion = NoDistortion(),  # noqa: B008 (frozen)
) -> tuple[Start, float]:
    """Register views one by one; also return their median alignment error relative to the depth.

    Views whose error is much larger than that of the others are left out, and the others are then
    registered again.
    """
    n_views, n_points = len(observations.view_ids), len(observations.point_ids)
    cam = _cam_points(fitted, array)
    finite = np.isfinite(cam).all(axis=1)
    left_out = np.zeros(n_views, np.bool_)
    for _ in range(3):
        use = finite & ~left_out[fitted.view_indices]
        pairs_of = [np.flatnonzero((fitted.view_indices == v) & use) for v in range(n_views)]
        rotations, shifts, registered, errors = _join(fitted, cam, pairs_of, n_points, rng)
        known = errors[np.isfinite(errors)]
        middle = float(np.median(known)) if len(known) else np.inf
        odd = np.isfinite(errors) & (errors > _ODD_FACTOR * middle + _ODD_ERROR)
        if not odd.any() or odd.sum() > 0.4 * registered.sum():
            break
        left_out |= odd
    points, placed = _place_points(fitted, cam, rotations, shifts, registered, n_points)
    state = Reconstruction(array, distortion, rotations, shifts, points)
    return Start(state, read_only(registered), read_only(placed)), middle


def _join(
    fitted: VirtualPoints,
    cam: FloatArray,
    pairs_of: list[IntArray],
    n_points: int,
    rng: np.random.Generator,
) -> tuple[FloatArray, FloatArray, BoolArray, FloatArray]:
    """Register views one by one to the points of the views before.

    Returns
    -------
    rotations, shifts : (n_views, 3, 3) and (n_views, 3) float64
        Rotation and translation of each view.
    registered : (n_views,) bool
        Whether the view was registered.
    errors : (n_views,) float64
        Median alignment error of the view, relative to the depth. It is NaN for the first view and
        for views that were not registered.
    """
    n_views = len(pairs_of)
    rotations = np.tile(np.eye(3), (n_views, 1, 1))
    shifts = np.zeros((n_views, 3))
    registered = np.zeros(n_views, np.bool_)
    sums = np.zeros((n_points, 3))
    weights = np.zeros(n_points)
    # The weight is 1 / sigma_z^2, up to a factor that is the same for all points.
    with np.errstate(divide="ignore", invalid="ignore"):
        trust = (fitted.scaled[:, FIT_RHO] ** 2 / (fitted.sigma_inverse * cam[:, 2] ** 2)) ** 2
    trust[~np.isfinite(trust)] = 0.0

    def place(view: int) -> None:
        registered[view] = True
        pairs = pairs_of[view]
        world = (cam[pairs] - shifts[view]) @ rotations[view]
        ids = fitted.point_indices[pairs]
        sums[ids] += world * trust[pairs, None]
        weights[ids] += trust[pairs]

    place(int(np.argmax(_connections(pairs_of, fitted, n_points))))
    errors = np.full(n_views, np.nan)
    tried: set[int] = set()
    while True:
        known = weights > 0.0
        common = [
            0
            if registered[v] or v in tried
            else int(known[fitted.point_indices[pairs_of[v]]].sum())
            for v in range(n_views)
        ]
        view = int(np.argmax(common))
        if common[view] < _MIN_COMMON:
            break
        pairs = pairs_of[view][known[fitted.point_indices[pairs_of[view]]]]
        ids = fitted.point_indices[pairs]
        world = sums[ids] / weights[ids, None]
        found = _align(world, cam[pairs], rng)
        if found is None:
            tried.add(view)
            continue
        rotations[view], shifts[view], errors[view] = found
        place(view)
        tried.clear()  # Views that failed before may now share more points with the others.
    return rotations, shifts, registered, errors


def _place_points(
    fitted: VirtualPoints,
    cam: FloatArray,
    rotations: FloatArray,
    shifts: FloatArray,
    registered: BoolArray,
    n_points: int,
) -> tuple[FloatArray, BoolArray]:
    """Return a position for each point and which points have one.

    The position is a robust weighted mean of those that the registered views give.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        sigma = fitted.sigma_inverse * cam[:, 2] ** 2 / fitted.scaled[:, FIT_RHO] ** 2
    use = registered[fitted.view_indices] & np.isfinite(cam).all(axis=1) & (sigma > 0.0)
    ids, views, depth = fitted.point_indices[use], fitted.view_indices[use], cam[use, 2]
    world = np.einsum("pji,pj->pi", rotations[views], cam[use] - shifts[views])
    trust = 1.0 / sigma[use] ** 2
    weights = trust.copy()
    points = np.zeros((n_points, 3))
    placed = np.bincount(ids, minlength=n_points) > 0
    for _ in range(10):
        total = np.maximum(np.bincount(ids, weights, n_points), 1e-300)
        for axis in range(3):
            points[:, axis] = np.bincount(ids, weights * world[:, axis], n_points) / total
        off = np.linalg.norm(world - points[ids], axis=1) / depth
        scale = 2.0 * float(np.median(off)) + 1e-12
        weights = trust / (1.0 + (off / scale) ** 2) ** 2
    return points, placed


def _cam_points(fitted: VirtualPoints, array: PinholeArray) -> FloatArray:
    u = fitted.points_virt[:, 2]
    with np.errstate(divide="ignore", invalid="ignore"):
        depth = np.where(u > array.alpha, array.beta_mm / (u - array.alpha), np.nan)
    principal = np.array([array.principal_x_px, array.principal_y_px])
    xy = (fitted.points_virt[:, :2] - principal) * (depth / array.focal_px)[:, None]
    return np.column_stack([xy, depth])


def _connections(pairs_of: list[IntArray], fitted: VirtualPoints, n_points: int) -> FloatArray:
    """Return for each view how often its points are seen by other views."""
    counts = np.zeros(n_points)
    for pairs in pairs_of:
        counts[fitted.point_indices[pairs]] += 1.0
    return np.array(
        [float(np.sum(counts[fitted.point_indices[pairs]] - 1.0)) for pairs in pairs_of]
    )


def _align(
    world: FloatArray, cam: FloatArray, rng: np.random.Generator, n_tries: int = 100
) -> tuple[FloatArray, FloatArray, float] | None:
    """Return cam_from_world as rotation and translation, and the median error over the depth.

    Return None if no rigid motion fits.
    """
    n = len(world)
    depth = cam[:, 2]
    best: tuple[FloatArray, FloatArray] | None = None
    best_error = np.inf
    for turn in range(n_tries + 1):
        chosen = np.arange(n) if turn == 0 else rng.choice(n, min(4, n), replace=False)
        rotation, shift = _kabsch(world[chosen], cam[chosen], 1.0 / depth[chosen] ** 2)
        moved = world @ rotation.T + shift
        error = float(np.median(np.linalg.norm(moved - cam, axis=1) / depth))
        if error < best_error and (moved[:, 2] > 0.0).mean() > 0.5:
            best, best_error = (rotation, shift), error
    if best is None:
        return None
    rotation, shift = best
    for _ in range(15):
        error = np.linalg.norm(world @ rotation.T + shift - cam, axis=1) / depth
        scale = 2.0 * float(np.median(error)) + 1e-12
        rotation, shift = _kabsch(world, cam, 1.0 / (depth**2 * (1.0 + (error / scale) ** 2) ** 2))
    error = np.linalg.norm(world @ rotation.T + shift - cam, axis=1) / depth
    middle = float(np.median(error))
    return (rotation, shift, middle) if middle < 0.3 else None


def _kabsch(
    source: FloatArray, target: FloatArray, weights: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return the rotation and translation that bring `source` nearest to `target` (Kabsch)."""
    weights = weights / weights.sum()
    mean_s, mean_t = weights @ source, weights @ target
    u, _, vt = np.linalg.svd((target - mean_t).T @ ((source - mean_s) * weights[:, None]))
    sign = np.array([1.0, 1.0, np.sign(np.linalg.det(u @ vt))])
    rotation = (u * sign) @ vt
    return rotation, mean_t - rotation @ mean_s


def _depths(start: Start, fitted: VirtualPoints) -> FloatArray:
    state = start.state
    use = start.registered[fitted.view_indices] & start.placed[fitted.point_indices]
    views, points = fitted.view_indices[use], fitted.point_indices[use]
    depth = (
        np.einsum("pj,pj->p", state.rotations[views, 2], state.points_world_mm[points])
        + state.translations_mm[views, 2]
    )
    return np.asarray(depth[depth > 0.0])
