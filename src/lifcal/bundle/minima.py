"""Whether an adjustment has another minimum, at another F.

A motion that leaves F nearly undetermined (a turntable's) may leave two minima, each with a sigma
that excludes the other. So F is pushed to both sides, held there until all else has followed, and
released: where it then settles is either the same minimum or another one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from lifcal.bundle.linear import Layout
from lifcal.bundle.problem import Problem
from lifcal.bundle.solver import SolverOptions, solve
from lifcal.diagnostics import Finding
from lifcal.errors import EstimationError
from lifcal.reconstruction import Reconstruction

_WEAK = 0.003
"""Relative sigma of F from which another minimum is looked for. In better recordings the cost is a
parabola over many sigmas, and there is only one."""
_PUSH_SIGMAS, _LEAST_PUSH, _MOST_PUSH = 4.0, 0.06, 0.3
"""How far log F is pushed to look for another minimum: in sigmas of it, and the least and the
largest push."""
_SAME = 1.0
"""Minima nearer to each other than this, in sigmas of F, are one."""
_HELD_ITERATIONS, _FREE_ITERATIONS = 15, 40
"""Iterations of the solve with F held at its new place, which only has to come near, and of the one
that follows with F free."""
_COMPARABLE = 4.5
"""Difference of the cost below which neither of two minima is excluded: half of a chi squared of 3
sigma."""


@dataclass(frozen=True, eq=False)
class OtherMinimum:
    """A minimum at another F.

    Parameters
    ----------
    state : Reconstruction
    excess : float
        By how much its cost is higher; negative if it is lower.
    comparable : bool
        Whether the observations exclude neither.
    """

    state: Reconstruction
    excess: float
    comparable: bool


def find_other_minimum(
    problem: Problem,
    state: Reconstruction,
    options: SolverOptions,
    sigma_focal_px: float,
    inflation: float,
) -> OtherMinimum | None:
    """Push F to both sides, release it, and return the best other minimum, if there is one.

    Parameters
    ----------
    problem : Problem
    state : Reconstruction
        Its solution.
    options : SolverOptions
        That it was solved with.
    sigma_focal_px : float
    inflation : float
        Variance of the estimate over that of least squares with independent observations.
    """
    focal = state.array.focal_px
    relative = sigma_focal_px / focal
    if relative < _WEAK or "F" in problem.fixed or problem.uses_physical:
        return None
    push = float(np.clip(_PUSH_SIGMAS * relative, _LEAST_PUSH, _MOST_PUSH))
    layout = Layout(problem)
    cost = layout.compute_cost(state, options.make_loss())
    best: OtherMinimum | None = None
    for factor in (np.exp(push), np.exp(-push)):
        pushed = replace(state, array=replace(state.array, focal_px=float(focal * factor)))
        held = replace(problem, fixed=(*problem.fixed, "F"), start=pushed)
        try:
            followed, _ = solve(
                held, replace(options, cost_tolerance=1e-5, max_iterations=_HELD_ITERATIONS)
            )
            moved, summary = solve(
                replace(problem, start=followed),
                replace(options, max_iterations=_FREE_ITERATIONS),
                layout=layout,
            )
        except EstimationError:  # no camera has that F
            continue
        excess = (summary.final_cost - cost) / inflation
        away = abs(moved.array.focal_px - focal) > _SAME * sigma_focal_px
        if summary.converged and away and (best is None or excess < best.excess):
            best = OtherMinimum(moved, excess, abs(excess) < _COMPARABLE)
    return best


def describe_other_minimum(state: Reconstruction, other: OtherMinimum) -> Finding:
    """Return a finding about two minima that the observations do not tell apart."""
    first, second = state.array, other.state.array
    return Finding.of(
        "two-minima",
        f"two cameras fit the images alike: F = {first.focal_px:.0f} px (alpha {first.alpha:.3g}) "
        f"and F = {second.focal_px:.0f} px (alpha {second.alpha:.3g}). The sigmas hold about the "
        "first only, so F is not known better than the difference: record views from other "
        "directions and distances",
        focal_px=[first.focal_px, second.focal_px],
        alpha=[first.alpha, second.alpha],
    )
