"""F and alpha from rigidity: an estimate from pairs of plenoptic views, before poses are known.

With F, c and alpha, a virtual point (x_u, y_u, u) gives a point in space, in units of beta: it lies
at the depth 1 / (u - alpha), on the ray through ((x_u, y_u) - c) / F. Two views of a rigid scene
are related by one rotation and one translation in these units, and their scale is the same. A wrong
F or alpha distorts space projectively, and then no rigid motion fits. So each pair of views has a
misfit for every (F, alpha), and the sum over many pairs is smallest at the values of the camera.

The misfit of a pair compares the second view with the prediction from the first one, in x, y and u.
The uncertainty of the prediction follows from the noise of the image point and of the virtual depth
in the first view. Along epipolar lines, a match may therefore be off by as much as the noise of u
allows; across them, only by the noise of an image point. So the misfit contains the epipolar
geometry, the relation u = alpha + beta / z, and the rigidity of distances, each with its own
weight. (It is a maximum likelihood estimate of the motion, and of the true image point and virtual
depth of every match.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from scipy.spatial.transform import Rotation

from lifcal.arrays import BoolArray, FloatArray, IntArray, read_only
from lifcal.errors import EstimationError
from lifcal.sfm import _kernels
from lifcal.sfm._kernels import Matches

FOCAL_RANGE = (0.4, 12.0)
"""Range in which F is searched, in image widths: a field of view of 103 to 4.8 degrees."""
_FOCAL_STEPS = 16
"""Number of values of F in the scan; they are 25 % apart. Minima are reached from farther away: on
synthetic motions of all kinds, from start values that were off by a factor of 1.6
(tests/sfm/test_rigidity.py)."""
_ALPHA_STARTS = (0.15, 0.8, 4.0)
"""Start values of alpha, given by its distance below the 2 % quantile of u, in units of the range
of u (from the 2 % to the 98 % quantile). The minimization is started from each."""
_MOST_PAIRS, _MOST_MATCHES = 80, 80
"""Largest number of pairs of views, and of matches of each, with which minima are refined."""
_SCAN_PAIRS, _SCAN_MATCHES = 24, 30
"""Largest number of pairs of views, and of matches of each, in the scan, which only has to find
minima roughly."""
_SCAN_STEPS, _REFINE_STEPS = 6, 40
"""Number of steps of a minimization in the scan, which only has to find minima roughly, and in the
refinement, which ends earlier if it converges."""
_RELAX_ROUNDS, _FOLLOW_ROUNDS = 12, 4
"""Number of iterations over the motions for a new camera, and after a step of the camera."""
_MOST_TRIES = 5
"""Number of consecutive steps that may fail before a minimization ends. Each has ten times the
damping of the one before, so the last steps are tiny."""
_SETTLED = 2e-5
"""Relative change of the misfit below which a minimization ends."""
_NOISE_ROUNDS, _NOISE_SETTLED = 8, 0.05
"""Largest number of rounds in which the noise is estimated from the residuals, and the relative
change of the noise below which they end."""
_FOCAL_HELD, _ALL = (False, True, True), (True, True, True)
"""Masks that select the estimated parameters among F, alpha and the radial term."""
_FEWEST_MATCHES = 20
"""Smallest number of matches with a known virtual depth in a pair; a motion has six unknowns."""
_SIGMA_PX, _FACTOR_U = 1.5, 4.0
"""Start values of the noise of a feature's position in the virtual image, in raw px, and of the
factor by which the given sigmas of u are multiplied. Features are at edges, where errors of depth
maps are several times their sigmas (4 times on a real R5 recording). If the noise is assumed too
small, F is biased; if too large, the estimate is only less efficient."""
RESTS_PX, _MOVES_PX = 1.5, 4.0
"""A match that moved by less than the first number rests. A pair of views whose median match moved
by less than the second number gives no information about the camera."""
_FAR_PX = 15.0
"""Smallest median motion of a pair, in px, for which resting parts of the image can be
distinguished from those that move with the scene."""
_CELLS, _FEWEST_IN_CELL = 12, 10
"""Number of cells along each side of the image that are judged to rest or to move, and smallest
number of matches in a cell that is judged."""
_LIMIT, _UNSEEN = 9.0, 900.0
"""Squared scale of the Cauchy loss, in squared sigmas, and squared misfit of a match that cannot be
seen."""
_LEAST_CURVATURE = 1e-9
"""Number that is added to the diagonal of normal matrices, so that they are regular even for a
motion without matches."""
_LEAST_DEPTH = 1e-6
"""Smallest distance of u from alpha, the virtual depth of infinity. It keeps depths finite."""
_ALIGN_ROUNDS = 6
"""Number of rounds of the reweighted alignment of two views, which gives the minimization its start
value."""
_DISTINCT = 0.1
"""Two minima whose log F differ by less than this are taken to be the same."""
_STRANGE = 36.0
"""Squared misfit (6 sigma) above which a match does not follow the motion of its pair."""
_SURVIVES = 9.0
"""A minimum is kept if its misfit exceeds the smallest one by less than this (3 sigma)."""


@dataclass(frozen=True, eq=False)
class PairMatches:
    """Matches between two views, with their virtual depths.

    Parameters
    ----------
    first, second : int
        Indices of the two views.
    points_first, points_second : (n, 3) float64
        x_u, y_u in raw px and u; NaN where u is not known.
    sigma_first, sigma_second : (n,) float64
        Standard deviation of u.
    """

    first: int
    second: int
    points_first: FloatArray
    points_second: FloatArray
    sigma_first: FloatArray
    sigma_second: FloatArray

    @property
    def known(self) -> BoolArray:
        """Whether each match has a virtual depth in both views, (n,)."""
        total = self.points_first[:, 2] + self.points_second[:, 2]
        return np.isfinite(total + self.sigma_first + self.sigma_second)

    @property
    def moved_px(self) -> FloatArray:
        """Distance by which each match moved in the virtual image, (n,)."""
        return np.asarray(
            np.linalg.norm(self.points_first[:, :2] - self.points_second[:, :2], axis=1)
        )


@dataclass(frozen=True)
class FocalHypothesis:
    """A minimum of the misfit.

    Parameters
    ----------
    focal_px, alpha : float
    radial : float
        Radial term, which undistorts a recorded point x, relative to c and in image widths, to
        x (1 + radial |x|^2).
    sigma_log_focal : float
        Standard deviation of log F.
    misfit : float
        Difference between the sum of squares, in sigmas, and that of the best minimum.
    """

    focal_px: float
    alpha: float
    radial: float
    sigma_log_focal: float
    misfit: float


@dataclass(frozen=True, eq=False)
class RigidityScan:
    """The values of F that agree with the rigidity of the scene.

    Parameters
    ----------
    hypotheses : tuple of FocalHypothesis
        The minima that agree with the matches, the best first.
    focals_px, costs : (n,) float64
        The scan: values of F, and the smallest misfit for each, with the noise assumed at first.
    n_pairs : int
        Number of pairs of views used.
    noise_px, noise_u : float
        Noise of an image point, and the factor by which the given sigmas of u are multiplied.
    """

    hypotheses: tuple[FocalHypothesis, ...]
    focals_px: FloatArray
    costs: FloatArray
    n_pairs: int
    noise_px: float
    noise_u: float


class _Fit(NamedTuple):
    """A camera, the motions of the pairs, the true image points in first views, and the misfit."""

    camera: FloatArray
    """F in image widths, alpha, and the radial term for coordinates in image widths."""
    rotations: FloatArray
    shifts: FloatArray
    true: FloatArray
    cost: float

    @property
    def motions(self) -> _kernels.Motions:
        """The camera and the motions in the form that the kernels take."""
        return _kernels.Motions(self.camera, self.rotations, self.shifts)


def _with_noise(data: Matches, place: float, factor_u: float) -> Matches:
    """Return the same matches with other noise of image points, and another factor for u."""
    variances = data.variances.copy()
    variances[..., :2] = place**2
    variances[..., 2] *= factor_u**2
    return data._replace(variances=variances)


class _Normal(NamedTuple):
    """Normal equations of each pair in the parameters of `_parameters`, and squared misfits."""

    normals: FloatArray
    gradients: FloatArray
    squares: FloatArray

    @property
    def costs(self) -> FloatArray:
        """The Cauchy loss of each pair."""
        return np.asarray((_LIMIT * np.log1p(self.squares / _LIMIT)).sum(axis=1))


def scan_focal_length(
    pairs: Sequence[PairMatches], image_size: tuple[int, int], *, seed: int = 0
) -> RigidityScan:
    """Search F over `FOCAL_RANGE` image widths, with c in the middle of the image.

    Parameters
    ----------
    pairs : sequence of PairMatches
    image_size : (int, int)
        Width and height of the raw image.
    seed : int
        Random seed of the choice of matches, if there are more than are used.

    Raises
    ------
    EstimationError
        If no pair of views has moved, or too few matches have a virtual depth.
    """
    rng = np.random.default_rng(seed)
    width = float(image_size[0])
    middle = 0.5 * (np.array(image_size) - 1.0)
    chosen = _choose_pairs(pairs)
    few = _pack(chosen[:_SCAN_PAIRS], middle, width, _SCAN_MATCHES, rng)
    focals = np.geomspace(*FOCAL_RANGE, _FOCAL_STEPS)
    scan = _scan(_with_noise(few, _SIGMA_PX / width, _FACTOR_U), focals)
    plain = _pack(chosen, middle, width, _MOST_MATCHES, rng)
    place, factor = _SIGMA_PX / width, _FACTOR_U
    data = _with_noise(plain, place, factor)
    minima = [
        _solve(data, _align(data, *fit.camera[:2].tolist()), _ALL, _REFINE_STEPS)
        for fit in _find_minima(scan)
    ]
    for _ in range(_NOISE_ROUNDS):
        factors = _measure_noise(data, min(minima, key=lambda fit: fit.cost))
        place, factor = place * factors[0], factor * factors[1]
        data = _with_noise(plain, place, factor)
        minima = [_solve(data, fit, _ALL, _REFINE_STEPS) for fit in minima]
        if max(abs(np.log(factors))) < _NOISE_SETTLED:
            break
    views = np.array([(pair.first, pair.second) for pair in chosen])
    return RigidityScan(
        _judge(data, minima, views, width),
        read_only(width * np.array([fit.camera[0] for fit in scan])),
        read_only(np.array([fit.cost for fit in scan])),
        len(chosen),
        place * width,
        factor,
    )


def find_rest(pairs: Sequence[PairMatches]) -> tuple[float, float]:
    """Measure whether the camera rests.

    Returns
    -------
    float
        Fraction of the pairs of views, near and far in time, in which most matches do not move.
    float
        Fraction of all matches that move nevertheless.
    """
    judged = [pair.moved_px for pair in pairs if len(pair.points_first) >= _FEWEST_MATCHES]
    if not judged:
        return 0.0, 0.0
    rests = np.array([np.median(moved) < RESTS_PX for moved in judged])
    return float(rests.mean()), float(np.mean(np.concatenate(judged) > _MOVES_PX))


def find_strangers(
    pairs: Sequence[PairMatches], scan: RigidityScan, image_size: tuple[int, int]
) -> list[BoolArray]:
    """Tell, for each pair, which matches do not follow the motion of the majority.

    The image point and the virtual depth of each match are compared with the motion, for the camera
    of the best hypothesis. This finds objects that rest in the image while the scene rotates in
    front of them, and objects that move on their own. A match with unknown virtual depth may be at
    any depth.

    Parameters
    ----------
    pairs : sequence of PairMatches
    scan : RigidityScan
        The scan of these pairs.
    image_size : (int, int)
    """
    width = float(image_size[0])
    middle = 0.5 * (np.array(image_size) - 1.0)
    best = scan.hypotheses[0]
    found = [np.zeros(len(pair.points_first), np.bool_) for pair in pairs]
    for strange, pair in zip(found, pairs, strict=True):
        known = pair.known
        if known.sum() < _FEWEST_MATCHES:
            continue
        anywhere = float(np.median(pair.points_first[known, 2]))
        blind = replace(
            pair,
            points_first=_fill_u(pair.points_first, known, anywhere),
            points_second=_fill_u(pair.points_second, known, anywhere),
            sigma_first=np.where(known, pair.sigma_first, (anywhere - best.alpha) / scan.noise_u),
            sigma_second=np.where(known, pair.sigma_second, (anywhere - best.alpha) / scan.noise_u),
        )
        data = _pack([blind], middle, width, len(known), None)
        data = _with_noise(data, scan.noise_px / width, scan.noise_u)
        fit = _align(data, best.focal_px / width, best.alpha)
        fit = fit._replace(camera=np.array([*fit.camera[:2], best.radial]))
        _, normal = _relax(data, fit, _middle_u(data), _RELAX_ROUNDS)
        strange[:] = normal.squares[0] > _STRANGE
    return found


def _fill_u(points: FloatArray, known: BoolArray, value: float) -> FloatArray:
    """Return the points with u replaced by `value` where it is not known."""
    filled = points.copy()
    filled[~known, 2] = value
    return filled


def find_backdrop(
    pairs: Sequence[PairMatches], strange: Sequence[BoolArray], image_size: tuple[int, int]
) -> tuple[float, list[BoolArray]]:
    """Find the part of the image that rests while the scene moves.

    Far objects rest in the image too when the camera moves sideways, but they agree with the motion
    of the scene; a backdrop does not.

    Parameters
    ----------
    pairs : sequence of PairMatches
    strange : sequence of (n,) bool
        Result of `find_strangers`.
    image_size : (int, int)

    Returns
    -------
    float
        The fraction of the image that rests, of the part in which there are features.
    list of (n,) bool
        For each pair, the matches that are in this part and rest.
    """
    n_cells = _CELLS**2
    counts, still = np.zeros(n_cells), np.zeros(n_cells)
    cells = []
    for pair, odd in zip(pairs, strange, strict=True):
        place = pair.points_first[:, :2] / np.array(image_size) * _CELLS
        column, row = np.clip(place, 0, _CELLS - 1).astype(np.int64).T
        cells.append(row * _CELLS + column)
        moved = pair.moved_px
        if len(moved) and np.median(moved) > _FAR_PX:
            counts += np.bincount(cells[-1], minlength=n_cells)
            rests = odd & (moved < RESTS_PX)
            still += np.bincount(cells[-1][rests], minlength=n_cells)
    judged = counts >= _FEWEST_IN_CELL
    resting = judged & (still > 0.5 * counts)
    share = float(resting.sum() / max(judged.sum(), 1))
    return share, [
        resting[cell] & (pair.moved_px < RESTS_PX) for cell, pair in zip(cells, pairs, strict=True)
    ]


# Matches


def _choose_pairs(pairs: Sequence[PairMatches]) -> list[PairMatches]:
    """Return the most informative pairs: with many matches that moved far, from all views."""
    usable = []
    for pair in pairs:
        known, moved = pair.known, pair.moved_px
        if known.sum() < _FEWEST_MATCHES or np.median(moved[known]) < _MOVES_PX:
            continue
        # A match that rests while the camera (or a turntable) moves does not belong to the scene.
        known &= moved > RESTS_PX
        if known.sum() >= _FEWEST_MATCHES:
            usable.append((pair, known, float(np.median(moved[known]))))
    if not usable:
        raise EstimationError(
            f"none of {len(pairs)} pairs of views has {_FEWEST_MATCHES} matches that moved and "
            "have a virtual depth",
            stage="start",
            evidence={"pairs": len(pairs)},
        )
    # The worth of a pair is its motion, which grows with the time between its views, times the
    # number of matches, which decreases. Pairs are chosen for every view in turn, so that no part
    # of the recording is left out.
    worth = {(pair.first, pair.second): moved * float(known.sum()) for pair, known, moved in usable}
    order = sorted(usable, key=lambda entry: -worth[entry[0].first, entry[0].second])
    count: dict[int, int] = {}
    chosen: list[PairMatches] = []
    most = 0
    while order and len(chosen) < _MOST_PAIRS:
        most += 1
        later = []
        for entry in order:
            pair, known, _ = entry
            views = (pair.first, pair.second)
            if max(count.get(view, 0) for view in views) >= most:
                later.append(entry)
            elif len(chosen) < _MOST_PAIRS:
                chosen.append(_select(pair, known))
                for view in views:
                    count[view] = count.get(view, 0) + 1
        order = later
    return chosen


def _select(pair: PairMatches, keep: BoolArray) -> PairMatches:
    return PairMatches(
        pair.first,
        pair.second,
        pair.points_first[keep],
        pair.points_second[keep],
        pair.sigma_first[keep],
        pair.sigma_second[keep],
    )


def _pack(
    pairs: Sequence[PairMatches],
    middle: FloatArray,
    width: float,
    most: int,
    rng: np.random.Generator | None,
) -> Matches:
    """Return a limited number of matches of each pair: random ones, or (no generator) the first."""
    shape = (len(pairs), most)
    places = np.zeros((2, *shape, 3))
    variances = np.ones((*shape, 2, 3))
    used = np.zeros(shape, np.bool_)
    for i, pair in enumerate(pairs):
        n = len(pair.points_first)
        some = (np.arange(n) if rng is None else rng.permutation(n))[:most]
        n = len(some)
        used[i, :n] = True
        for side, points, sigma in (
            (0, pair.points_first, pair.sigma_first),
            (1, pair.points_second, pair.sigma_second),
        ):
            places[side, i, :n, :2] = (points[some, :2] - middle) / width
            places[side, i, :n, 2] = points[some, 2]
            variances[i, :n, side, 2] = sigma[some] ** 2
    return Matches(places[0], places[1], variances, used)


# The misfit of a camera, and its minimum over the motions


def _parameters(fit: _Fit, middle: float) -> FloatArray:
    """Return derivatives of (rotation, translation, log F, alpha, radial) by parameters, (p, 9, 9).

    The parameters are a rotation, the translation in units of the depth at the median u, log F, the
    logarithm of the distance of alpha from the median u, and the radial term. With these, points at
    the median depth do not move when alpha changes, and alpha stays below the median u.
    """
    distance = middle - float(fit.camera[1])
    derivatives = np.tile(np.eye(9), (len(fit.shifts), 1, 1))
    derivatives[:, [3, 4, 5], [3, 4, 5]] = 1.0 / distance
    derivatives[:, 3:6, 7] = -fit.shifts
    derivatives[:, 7, 7] = -distance
    return derivatives


def _accumulate(data: Matches, fit: _Fit, middle: float) -> _Normal:
    n = len(data.first)
    normals, gradients = np.empty((n, 9, 9)), np.empty((n, 9))
    squares = np.empty(data.used.shape)
    found = normals, gradients, squares
    _kernels.accumulate(fit.motions, data, fit.true, _LIMIT, _UNSEEN, *found)
    derivatives = _parameters(fit, middle)
    transposed = np.swapaxes(derivatives, 1, 2)
    return _Normal(
        transposed @ normals @ derivatives, (transposed @ gradients[..., None])[..., 0], squares
    )


def _step(data: Matches, fit: _Fit, steps: FloatArray, middle: float) -> _Fit:
    """Return the fit after each pair's step (p, 9); the last three are the same for all pairs."""
    linear = (_parameters(fit, middle) @ steps[..., None])[..., 0]
    true = np.empty_like(fit.true)
    _kernels.advance(fit.motions, data, fit.true, linear, true)
    distance = middle - float(fit.camera[1])
    farther = float(np.exp(steps[0, 7]))
    moved = _Fit(
        np.array(
            [
                fit.camera[0] * np.exp(steps[0, 6]),
                middle - distance * farther,
                fit.camera[2] + steps[0, 8],
            ]
        ),
        Rotation.from_rotvec(steps[:, :3]).as_matrix() @ fit.rotations,
        (fit.shifts + steps[:, 3:6] / distance) / farther,
        true,
        np.inf,
    )
    _kernels.keep_better(moved.motions, data, true, fit.true)
    return moved


def _reduce(normal: _Normal, dampings: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Eliminate the motions from the normal equations (Schur complement).

    Return the solutions (p, 6, 4) of the motions for the camera's three columns and the gradient,
    the reduced matrix of the camera, and the contribution of each pair to its gradient, (p, 3).
    """
    own = normal.normals[:, :6, :6].copy()
    diagonal = np.einsum("pii->pi", own)  # a view of the array, so that damping changes it
    diagonal += dampings[:, None] * diagonal + _LEAST_CURVATURE
    cross = normal.normals[:, :6, 6:]
    right = np.concatenate([cross, normal.gradients[:, :6, None]], axis=2)
    solved = np.linalg.solve(own, right)
    matrix = (normal.normals[:, 6:, 6:] - np.swapaxes(cross, 1, 2) @ solved[..., :3]).sum(axis=0)
    pulls = normal.gradients[:, 6:] - np.einsum("pij,pi->pj", cross, solved[..., 3])
    return solved, matrix, pulls


def _relax(data: Matches, fit: _Fit, middle: float, rounds: int) -> tuple[_Fit, _Normal]:
    """Minimize over the motions alone; each pair has its own damping."""
    dampings = np.full(len(data.first), 1e-3)
    normal = _accumulate(data, fit, middle)
    for _ in range(rounds):
        before = normal.costs
        steps = np.zeros((len(data.first), 9))
        steps[:, :6] = _limit(-_reduce(normal, dampings)[0][..., 3])
        moved = _step(data, fit, steps, middle)
        tried = _accumulate(data, moved, middle)
        better = tried.costs < before
        dampings = np.clip(np.where(better, 0.2, 10.0) * dampings, 1e-9, 1e6)
        fit = fit._replace(
            rotations=_pick(better, moved.rotations, fit.rotations),
            shifts=_pick(better, moved.shifts, fit.shifts),
            true=_pick(better, moved.true, fit.true),
        )
        normal = _Normal(*(_pick(better, *both) for both in zip(tried, normal, strict=True)))
        if (before - normal.costs).sum() < _SETTLED * before.sum():
            break
    return fit._replace(cost=float(normal.costs.sum())), normal


def _solve(data: Matches, fit: _Fit, free: tuple[bool, bool, bool], iterations: int) -> _Fit:
    """Minimize over the motions and the free parameters of the camera (Levenberg-Marquardt).

    Matches are so much more accurate across epipolar lines than along them that the linear
    equations hold for small steps of the camera only. Therefore a step of the camera is judged
    after the motions have been optimized for it.
    """
    chosen = np.flatnonzero(free)
    middle = _middle_u(data)
    fit, normal = _relax(data, fit, middle, _RELAX_ROUNDS)
    damping, tries = 1e-2, 0
    for _ in range(iterations):
        solved, matrix, pulls = _reduce(normal, np.full(len(data.first), 1e-6))
        matrix = matrix[np.ix_(chosen, chosen)]
        matrix = matrix + damping * np.diag(np.diag(matrix))
        camera = np.zeros(3)
        camera[chosen] = _limit(-np.linalg.solve(matrix, pulls.sum(axis=0)[chosen]))
        steps = np.empty((len(data.first), 9))
        steps[:, :6] = _limit(-solved[..., 3] - solved[..., :3] @ camera)
        steps[:, 6:] = camera
        moved, tried = _relax(data, _step(data, fit, steps, middle), middle, _FOLLOW_ROUNDS)
        gain = fit.cost - moved.cost
        if gain > 0.0:
            fit, normal, damping, tries = moved, tried, 0.2 * damping, 0
            if gain < _SETTLED * fit.cost:
                break
        else:
            damping, tries = 10.0 * damping, tries + 1
            if tries == _MOST_TRIES:
                break
    return fit


def _limit(step: FloatArray) -> FloatArray:
    """Limit steps to the size for which the linear equations are a good approximation."""
    return np.clip(step, -0.5, 0.5)


def _pick(better: BoolArray, new: FloatArray, old: FloatArray) -> FloatArray:
    return np.where(better.reshape(-1, *(1,) * (new.ndim - 1)), new, old)


def _middle_u(data: Matches) -> float:
    return float(np.median(data.first[..., 2][data.used]))


def _align(data: Matches, focal: float, alpha: float) -> _Fit:
    """Return the motions that best align the points of first views with those of second views."""
    clouds = []
    for points in (data.first, data.second):
        depth = 1.0 / np.maximum(points[..., 2:] - alpha, _LEAST_DEPTH)
        clouds.append(np.concatenate([points[..., :2] / focal, np.ones_like(depth)], -1) * depth)
    source, target = clouds
    # Variance of the depth 1 / (u - alpha) of each point.
    spread = source[..., 2] ** 4 * data.variances[..., 0, 2]
    spread += target[..., 2] ** 4 * data.variances[..., 1, 2]
    trust = np.where(data.used, 1.0 / np.maximum(spread, 1e-300), 0.0)
    weights = trust
    rotations, shifts = np.zeros((len(source), 3, 3)), np.zeros((len(source), 3))
    for _ in range(_ALIGN_ROUNDS):
        total = weights / weights.sum(axis=1, keepdims=True)
        mean_s = np.einsum("pn,pni->pi", total, source)
        mean_t = np.einsum("pn,pni->pi", total, target)
        u, _, vt = np.linalg.svd(
            np.swapaxes((target - mean_t[:, None]) * total[..., None], 1, 2)
            @ (source - mean_s[:, None])
        )
        u[..., 2] *= np.sign(np.linalg.det(u @ vt))[:, None]
        rotations = u @ vt
        shifts = mean_t - np.einsum("pij,pj->pi", rotations, mean_s)
        moved = source @ np.swapaxes(rotations, 1, 2) + shifts[:, None]
        off = np.linalg.norm(moved - target, axis=-1) * np.sqrt(trust)
        scale = 2.0 * np.nanmedian(np.where(data.used, off, np.nan), axis=1) + 1e-12
        weights = trust / (1.0 + (off / scale[:, None]) ** 2) ** 2
    return _Fit(np.array([focal, alpha, 0.0]), rotations, shifts, data.first, np.inf)


def _scan(data: Matches, focals: FloatArray) -> list[_Fit]:
    """Return the best fit for each F."""
    low, high = np.percentile(data.first[..., 2][data.used], [2.0, 98.0])
    spread = max(high - low, 1e-3 * abs(high))
    found: list[_Fit] = []
    for focal in focals.tolist():
        starts = [_align(data, focal, float(low - below * spread)) for below in _ALPHA_STARTS]
        if found:
            starts.append(found[-1]._replace(camera=np.array([focal, *found[-1].camera[1:]])))
        tries = [_solve(data, start, _FOCAL_HELD, _SCAN_STEPS) for start in starts]
        found.append(min(tries, key=lambda fit: fit.cost))
    return found


def _find_minima(scan: Sequence[_Fit]) -> list[_Fit]:
    """Return the fits that are better than their neighbors in the scan."""
    costs = np.array([np.inf, *(fit.cost for fit in scan), np.inf])
    lower = (costs[1:-1] <= costs[:-2]) & (costs[1:-1] <= costs[2:])
    return [fit for fit, chosen in zip(scan, lower, strict=True) if chosen]


def _judge(
    data: Matches, minima: Sequence[_Fit], views: IntArray, width: float
) -> tuple[FocalHypothesis, ...]:
    """Return the minima to keep; their sigmas allow for errors that matches of a view share."""
    least = min(fit.cost for fit in minima)
    found: list[FocalHypothesis] = []
    for fit in sorted(minima, key=lambda fit: fit.cost):
        _, matrix, pulls = _reduce(
            _accumulate(data, fit, _middle_u(data)), np.zeros(len(data.first))
        )
        plain = np.linalg.inv(matrix)
        # Pairs that share a view are not independent. Their gradients are summed view by view (a
        # sandwich estimate, clustered by view); each pair counts half for each of its two views.
        by_view = np.zeros((int(views.max()) + 1, 3))
        for side in range(2):
            np.add.at(by_view, views[:, side], pulls)
        clustered = 0.5 * plain @ by_view.T @ by_view @ plain
        shared = max(float(clustered[0, 0] / plain[0, 0]), 1.0)
        hypothesis = FocalHypothesis(
            width * float(fit.camera[0]),
            float(fit.camera[1]),
            float(fit.camera[2]),
            float(np.sqrt(shared * plain[0, 0])),
            (fit.cost - least) / shared,
        )
        apart = (abs(np.log(other.focal_px / hypothesis.focal_px)) > _DISTINCT for other in found)
        if hypothesis.misfit < _SURVIVES and all(apart):
            found.append(hypothesis)
    return tuple(found)


def _measure_noise(data: Matches, fit: _Fit) -> tuple[float, float]:
    """Return factors for the noise of image points and for that of u, from the residuals of a fit.

    Across epipolar lines, only the noise of image points matters. Along them, the noise of u adds
    to it, in proportion to the parallax of a match; errors of u that both views share are visible
    only there. The factor of u is the larger of two estimates: from the residuals along epipolar
    lines, and from the differences between the u of the two views.
    """
    residuals, jacobians = np.empty((*data.used.shape, 3)), np.empty((*data.used.shape, 3, 3))
    _kernels.list_residuals(fit.motions, data, residuals, jacobians)
    good = np.isfinite(residuals).all(axis=-1)
    residuals, jacobians, variances = residuals[good], jacobians[good], data.variances[good]
    parallax = np.linalg.norm(jacobians[:, :2, 2], axis=1)
    along = jacobians[:, :2, 2] / np.maximum(parallax, 1e-12)[:, None]
    across = np.column_stack([-along[:, 1], along[:, 0]])
    off = np.einsum("ni,ni->n", across, residuals[:, :2])
    by_first = np.einsum("ni,nij->nj", across, jacobians[:, :2, :2])
    expected = variances[:, 1, 0] + np.sum(by_first**2 * variances[:, 0, :2], axis=1)
    place = _measure_spread(off / np.sqrt(expected))
    expected = variances[:, 1, 2] + jacobians[:, 2, 2] ** 2 * variances[:, 0, 2]
    depth = _measure_spread(residuals[:, 2] / np.sqrt(expected))
    expected = parallax * np.sqrt(variances[:, 0, 2])
    tells = expected > 2.0 * place * np.sqrt(variances[:, 1, 0])
    if tells.sum() >= _FEWEST_MATCHES:
        off = np.einsum("ni,ni->n", along, residuals[:, :2])
        depth = max(depth, _measure_spread(off[tells] / expected[tells]))
    return place, depth


def _measure_spread(values: FloatArray) -> float:
    """Return a robust standard deviation about zero, from the median of the absolute values."""
    return 1.4826 * float(np.median(np.abs(values)))
