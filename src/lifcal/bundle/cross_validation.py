"""Do the parts of a recording agree on the camera? What they disagree by beyond noise enters sigma.

The recording is split in two in several ways (by views, by place in the image, by depth, and by
worlds where there are several), both halves are solved on their own, and their intrinsics are
compared. Noise makes them differ by as much as their sigmas say. A camera that the model does not
describe (a bent array, a lens that distorts in another way, a wrong pixel response) makes them
differ by more, because each half sees another part of the model's error. That is the idea of
mrcal's cross-validation; how the excess becomes a factor on sigma is the Birge ratio of
metrology.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from lifcal.arrays import BoolArray, FloatArray, IntArray, read_only
from lifcal.bundle.covariance import compute_covariance
from lifcal.bundle.linear import Layout
from lifcal.bundle.problem import Problem
from lifcal.bundle.scale import CameraPositions
from lifcal.bundle.selection import are_known, restrict, select_distances, select_positions
from lifcal.bundle.solver import SolverOptions, solve
from lifcal.errors import EstimationError, InputError
from lifcal.reconstruction import Observations, Reconstruction, Worlds, find_worlds

if TYPE_CHECKING:
    from lifcal.bundle.adjustment import Adjustment, AdjustOptions

_FEWEST_IMAGES = 2
"""Micro images of a point that a view must have: fewer do not tell its virtual depth."""
_FEWEST_VIEWS_OF_POINT = 2
"""Views that must see a point: one view alone does not check it."""
_FEWEST_POINTS_OF_VIEW = 10
"""Points that a view must see. A pose has six unknowns; three plenoptic points determine it, ten do
so robustly."""
_FEWEST_VIEWS, _FEWEST_POINTS = 3, 30
"""Views and points that a half must have. With fewer it is not solved, because its own sigmas would
be worth little."""
_PRIOR_WEIGHT = 4.0
"""How many splits' worth of agreement is assumed beforehand for each parameter. Without it, chance
alone would make the factor of the worst of ten parameters larger than two."""
_MAX_ITERATIONS = 30
"""Iterations of the solve of a half at most. It starts from the solution of the whole, so a few are
usual."""
_COST_TOLERANCE = 1e-7
"""A half whose cost falls by a smaller part has moved by less than a hundredth of its sigmas."""
_RAYS = 15
"""Rays along each side of the image at which the halves' cameras are compared."""


@dataclass(frozen=True, eq=False)
class Split:
    """Two halves of a recording, solved on their own.

    Parameters
    ----------
    name : str
        What was split: 'even and odd views', 'left and right', ...
    differences : mapping of str to (float, float)
        For each intrinsic parameter that both halves determine: first half minus second, and its
        standard deviation by the noise of both.
    reprojection_px : float
        Root mean square distance in the virtual image between the two cameras' images of the same
        rays, after the rotation that brings them nearest.
    """

    name: str
    differences: Mapping[str, tuple[float, float]]
    reprojection_px: float

    def in_sigmas(self) -> dict[str, float]:
        """Return each difference in its standard deviations."""
        return {name: value / sigma for name, (value, sigma) in self.differences.items()}


@dataclass(frozen=True, eq=False)
class CrossValidation:
    """What the splits say.

    Parameters
    ----------
    splits : tuple of Split
        Those of which both halves could be solved.
    factors : mapping of str to float
        By which the sigma of each parameter is multiplied: 1 where the halves agree.
    """

    splits: tuple[Split, ...]
    factors: Mapping[str, float]

    def worst(self) -> tuple[Split, str, float] | None:
        """Return the split and parameter that disagree most, and by how many sigmas."""
        found = [
            (split, name, value)
            for split in self.splits
            for name, value in split.in_sigmas().items()
        ]
        return max(found, key=lambda entry: abs(entry[2]), default=None)

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {
            "splits": [
                {
                    "name": split.name,
                    "differences": {
                        name: {"value": value, "sigma": sigma}
                        for name, (value, sigma) in split.differences.items()
                    },
                    "reprojection_px": split.reprojection_px,
                }
                for split in self.splits
            ],
            "factors": dict(self.factors),
        }


def cross_validate(adjustment: Adjustment, options: AdjustOptions) -> Adjustment:
    """Return the adjustment with the disagreement of its parts in all sigmas.

    What the parts say is in its `cross_validation`.

    Parameters
    ----------
    adjustment, options
        As for `compare_halves`.
    """
    found = compare_halves(adjustment, options)
    return replace(_widen_sigmas(adjustment, found.factors), cross_validation=found)


def compare_halves(adjustment: Adjustment, options: AdjustOptions) -> CrossValidation:
    """Solve halves of a recording, and compare their cameras.

    Parameters
    ----------
    adjustment : Adjustment
        The solution of the whole; halves start from it, and use the observations that it used.
    options : AdjustOptions
        Those of the adjustment.
    """
    splits = []
    names = adjustment.problem.names[: adjustment.problem.n_camera]
    solver = SolverOptions(
        loss=options.loss,
        noise=adjustment.summary.noise,
        max_iterations=_MAX_ITERATIONS,
        cost_tolerance=_COST_TOLERANCE,
    )
    clusters = _measure_clusters(adjustment, solver) if options.clustered else {}
    for name, first in _list_splits(adjustment):
        halves = []
        for part in (first, ~first):
            half = _solve_half(adjustment, solver, clusters, part)
            if half is None:
                break
            halves.append(half)
        if len(halves) < 2:
            continue
        (state_a, sigmas_a), (state_b, sigmas_b) = halves
        moved = state_a.as_vector() - state_b.as_vector()
        differences = {
            parameter: (float(moved[i]), float(np.hypot(sigmas_a[parameter], sigmas_b[parameter])))
            for i, parameter in enumerate(names)
            if sigmas_a[parameter] > 0.0 and sigmas_b[parameter] > 0.0
        }
        size = adjustment.camera.image_size
        splits.append(Split(name, differences, _compare_rays(state_a, state_b, size)))
    return CrossValidation(tuple(splits), _compute_factors(splits, names))


def _widen_sigmas(adjustment: Adjustment, factors: Mapping[str, float]) -> Adjustment:
    problem, covariance = adjustment.problem, adjustment.covariance
    n_camera = problem.n_camera
    wide = np.array([factors.get(name, 1.0) for name in covariance.names])
    if problem.uses_physical:
        # Lengths are held: one common factor keeps what depends on them consistent.
        common = float(np.mean(wide[:n_camera] ** 2))
        array, physical = covariance.array * common, covariance.physical * common
    else:
        array = covariance.array * wide[:, None] * wide
        conversion = np.eye(len(array))
        conversion[:5, :5] = adjustment.state.array.physical_jacobian(problem.pixel_size_mm)
        physical = conversion @ array @ conversion.T
    wider = replace(
        covariance, array=read_only(array), physical=read_only((physical + physical.T) / 2.0)
    )
    camera = replace(adjustment.camera, covariance=array[:n_camera, :n_camera])
    return replace(adjustment, camera=camera, covariance=wider)


def _measure_clusters(adjustment: Adjustment, solver: SolverOptions) -> dict[str, float]:
    """Return by how much errors that observations of one point share widen each sigma.

    It is measured on the whole recording once, and taken to be the same in its halves.
    """
    layout = Layout(replace(adjustment.problem, start=adjustment.state))
    plain, clustered = (
        compute_covariance(layout, adjustment.state, solver.noise, clustered=loss).sigmas()
        for loss in (None, solver.make_loss())
    )
    return {name: clustered[name] / sigma for name, sigma in plain.items() if sigma > 0.0}


def _list_splits(adjustment: Adjustment) -> Iterator[tuple[str, BoolArray]]:
    """Yield the name of each split, and which observations are in its first half."""
    observations, state = adjustment.problem.observations, adjustment.state
    views, points = observations.view_indices, observations.point_indices
    yield "even and odd views", views % 2 == 0
    worlds = adjustment.problem.worlds
    rank, size = _rank_views(worlds)
    yield "first and second half of the views", (2 * rank < size)[views]
    xy = observations.centers_raw_px
    for axis, name in enumerate(("left and right of the image", "top and bottom of the image")):
        yield name, xy[:, axis] < np.median(xy[:, axis])
    radius = np.hypot(*(xy - np.median(xy, axis=0)).T)
    yield "middle and border of the image", radius < np.median(radius)
    depth = (
        np.einsum("nj,nj->n", state.rotations[views, 2], state.points_world_mm[points])
        + state.translations_mm[views, 2]
    )
    yield "near and far points", depth < np.median(depth)
    # Two worlds are one split: the first, and the others.
    for world in range(len(worlds) if len(worlds) > 2 else len(worlds) - 1):
        yield name_world_split(world), worlds.of_views[views] == world


def name_world_split(world: int) -> str:
    """Return what the split of one world from the others is called; worlds count from 0."""
    return f"world {world + 1} and the others"


def _rank_views(worlds: Worlds) -> tuple[IntArray, IntArray]:
    """Return the place of each view among those of its world, and their number, (n_views,)."""
    rank = np.zeros(len(worlds.of_views), np.int64)
    for world in range(len(worlds)):
        mine = np.flatnonzero(worlds.of_views == world)
        rank[mine] = np.arange(len(mine))
    return rank, np.bincount(worlds.of_views)[worlds.of_views]


def _solve_half(
    adjustment: Adjustment, solver: SolverOptions, clusters: Mapping[str, float], part: BoolArray
) -> tuple[Reconstruction, dict[str, float]] | None:
    """Return state and sigmas of a half; None where it does not determine a camera."""
    whole = adjustment.problem
    keep = _prune(whole.observations, part & whole.active_mask)
    if keep is None:
        return None
    observations, start = restrict(whole.observations, adjustment.state, keep)
    problem = _restrict_problem(whole, observations, start)
    layout = Layout(problem)
    try:
        state, _ = solve(problem, solver, layout=layout)
        sigmas = compute_covariance(layout, state, solver.noise).sigmas()
    except EstimationError:
        return None
    return state, {name: clusters.get(name, 1.0) * sigma for name, sigma in sigmas.items()}


def _prune(observations: Observations, keep: BoolArray) -> BoolArray | None:
    """Leave out points and views that a half sees too little of; None if too few are left."""
    n_views, n_points = len(observations.view_ids), len(observations.point_ids)
    pair_points, pair_views, pair_obs = observations.pairs
    pair_of = np.repeat(np.arange(len(pair_points)), np.diff(pair_obs))
    good = np.bincount(pair_of[keep], minlength=len(pair_points)) >= _FEWEST_IMAGES
    while True:
        in_views = np.bincount(pair_points[good], minlength=n_points)
        in_points = np.bincount(pair_views[good], minlength=n_views)
        left = (
            good
            & (in_views[pair_points] >= _FEWEST_VIEWS_OF_POINT)
            & (in_points[pair_views] >= _FEWEST_POINTS_OF_VIEW)
        )
        if left.sum() == good.sum():
            break
        good = left
    enough = (in_points > 0).sum() >= _FEWEST_VIEWS and (in_views > 0).sum() >= _FEWEST_POINTS
    return np.asarray(keep & good[pair_of]) if enough else None


def _restrict_problem(whole: Problem, observations: Observations, start: Reconstruction) -> Problem:
    """Return the problem of some of the observations, with what is known of their scale."""
    distances, positions = whole.distances, whole.positions
    if distances is not None:
        there = are_known(distances, observations)
        distances = select_distances(distances, observations) if there.any() else None
    if positions is not None:
        there = np.isin(positions.view_ids, observations.view_ids)
        positions = positions.select(there) if there.sum() >= _FEWEST_VIEWS else None
    if positions is not None and len(find_worlds(observations)) > 1:
        positions = _keep_positions(positions, observations)
    return replace(
        whole,
        observations=observations,
        start=start,
        distances=distances,
        positions=positions,
        active=None,
    )


def _keep_positions(
    positions: CameraPositions, observations: Observations
) -> CameraPositions | None:
    """Return the positions of worlds that have several; None if none has."""
    try:
        return select_positions(positions, observations)
    except InputError:  # fewer than two places are left
        return None


def _compute_factors(splits: list[Split], names: tuple[str, ...]) -> dict[str, float]:
    """Return the factor on each sigma: the root of the mean square disagreement, at least 1."""
    factors = {}
    for name in names:
        squares = [split.in_sigmas()[name] ** 2 for split in splits if name in split.differences]
        ratio = (_PRIOR_WEIGHT + sum(squares)) / (_PRIOR_WEIGHT + len(squares))
        factors[name] = float(np.sqrt(max(ratio, 1.0)))
    return factors


def _compare_rays(first: Reconstruction, second: Reconstruction, size: tuple[int, int]) -> float:
    """Return `Split.reprojection_px` of two cameras."""
    columns, rows = np.meshgrid(*(np.linspace(0.0, length - 1.0, _RAYS) for length in size))
    places = np.column_stack([columns.ravel(), rows.ravel()])
    array = first.array
    principal = np.array([array.principal_x_px, array.principal_y_px])
    x, y = ((places - principal) / array.focal_px).T
    seen: list[FloatArray] = []
    for state in (first, second):
        own = np.array([state.array.principal_x_px, state.array.principal_y_px])
        ideal = own + state.array.focal_px * np.column_stack([x, y])
        seen.append(state.distortion.distort(ideal, own))
    off = (seen[0] - seen[1]).ravel()
    # by a small rotation of the camera about x, y and z
    turns = np.stack(
        [
            np.column_stack([x * y, 1.0 + y * y]),
            np.column_stack([-(1.0 + x * x), -x * y]),
            np.column_stack([y, -x]),
        ],
        axis=-1,
    ).reshape(-1, 3)
    left = off - turns @ np.linalg.lstsq(turns, off, rcond=None)[0]
    return float(np.sqrt(np.mean(np.sum(left.reshape(-1, 2) ** 2, axis=1))))
