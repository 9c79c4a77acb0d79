"""Levenberg-Marquardt."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from lifcal.bundle.linear import LOSSES, Layout, Loss
from lifcal.bundle.problem import Problem
from lifcal.errors import ConfigError, EstimationError, InputError
from lifcal.reconstruction import Reconstruction


@dataclass(frozen=True)
class SolverOptions:
    """How a problem is solved.

    Parameters
    ----------
    loss : 'none', 'huber' or 'cauchy'
    loss_scale : float or None
        Where the loss begins to bend, in standard deviations of an observation. None: 1.345 for
        Huber, 2.385 for Cauchy (95 % efficient for normal noise in each coordinate).
    noise : float
        Factor on the observations' standard deviations; `adjust` estimates it.
    max_iterations : int
    cost_tolerance : float
        Stop when a step lowers the cost by less than this part of it.
    gradient_tolerance : float
        Stop when no unknown, on its own, would move by more than this many of its standard
        deviations (a unit-free gradient).
    step_tolerance : float
        Stop when no unknown moved by more than this many standard deviations.
    sparse_from_views : int
        From so many views on the reduced system is factored sparsely.
    """

    loss: str = "none"
    loss_scale: float | None = None
    noise: float = 1.0
    max_iterations: int = 50
    cost_tolerance: float = 1e-8
    gradient_tolerance: float = 1e-8
    step_tolerance: float = 1e-8
    sparse_from_views: int = 400

    def __post_init__(self) -> None:
        if self.loss not in LOSSES:
            raise ConfigError.unknown("loss", self.loss, LOSSES)
        if not self.noise > 0.0:
            raise InputError(f"noise is {self.noise}, needs a positive number")
        if self.max_iterations < 1:
            raise InputError(f"max_iterations is {self.max_iterations}, needs at least 1")

    def make_loss(self) -> Loss:
        """Return the loss with its scale."""
        default = {"none": 1.0, "huber": 1.345, "cauchy": 2.385}[self.loss]
        scale = default if self.loss_scale is None else self.loss_scale
        return Loss(self.loss, scale, self.noise)


@dataclass(frozen=True)
class Iteration:
    """One line of the solver's protocol."""

    cost: float
    largest_gradient: float
    damping: float
    tries: int
    seconds: float


@dataclass(frozen=True, eq=False)
class SolverSummary:
    """How a solve went.

    Parameters
    ----------
    converged : bool
    reason : str
        Why it stopped, in words.
    initial_cost, final_cost : float
        Half the sum of squares, or what the loss makes of them.
    iterations : tuple of Iteration
    """

    converged: bool
    reason: str
    initial_cost: float
    final_cost: float
    iterations: tuple[Iteration, ...]


def solve(
    problem: Problem,
    options: SolverOptions | None = None,
    *,
    layout: Layout | None = None,
    on_iteration: Callable[[Iteration], None] | None = None,
) -> tuple[Reconstruction, SolverSummary]:
    """Minimise the problem's cost from its start.

    Parameters
    ----------
    problem : Problem
    options : SolverOptions, optional
    layout : Layout, optional
        The layout of this problem, if it was made before.
    on_iteration : callable, optional
        Told of every iteration.

    Raises
    ------
    EstimationError
        If a point of the start lies behind its camera, or no step can be computed.
    """
    options = options or SolverOptions()
    layout = layout or Layout(problem)
    loss = options.make_loss()
    state = problem.start
    current = layout.linearize(state, loss)
    if not current.cost < float("inf"):
        raise EstimationError(
            "the start has points behind their camera or beyond the distortion's fold: check "
            "poses, depths (z > 0) and that all observations are of one camera",
            stage="bundle",
        )
    initial = current.cost
    damping, growth = 1e-4, 2.0
    protocol: list[Iteration] = []
    reason, converged = f"the limit of {options.max_iterations} iterations was reached", False
    for _ in range(options.max_iterations):
        begin = time.perf_counter()
        tries = 0
        accepted = False
        gradient = float("nan")
        step = None
        while tries < 15:
            tries += 1
            system = current.reduce(damping)
            if tries == 1:
                gradient = system.largest_gradient()
                if gradient < options.gradient_tolerance:
                    break
            step = system.solve(options.sparse_from_views)
            if step is not None:
                try:
                    moved = problem.step(state, step.intrinsics, step.poses, step.points)
                    cost = layout.compute_cost(moved, loss)
                except InputError:  # no camera has these values
                    cost = float("nan")
                gain = (current.cost - cost) / max(step.predicted, 1e-300)
                if cost < current.cost and gain > 1e-3:
                    accepted = True
                    break
                if abs(step.predicted) <= 1e-12 * current.cost:
                    break  # what is left to gain drowns in rounding
            damping *= growth
            growth *= 2.0
            if damping > 1e12:
                break
        if not accepted:
            if gradient < options.gradient_tolerance:
                reason, converged = f"the gradient vanished ({gradient:.1e})", True
            elif step is None:
                raise EstimationError(
                    "the normal matrix is singular: some unknown is not determined by the "
                    "observations",
                    stage="bundle",
                    evidence={"points_not_determined": system.failed},
                )
            else:
                reason, converged = "no step lowers the cost any more (rounding)", True
            break
        assert step is not None
        drop = current.cost - cost
        previous = current.cost
        state = moved
        damping *= max(0.1, 1.0 - (2.0 * gain - 1.0) ** 3)
        damping, growth = max(damping, 1e-10), 2.0
        loss = replace(loss, bends=drop < 0.05 * previous)
        current = layout.linearize(state, loss)
        protocol.append(
            Iteration(current.cost, gradient, damping, tries, time.perf_counter() - begin)
        )
        if on_iteration is not None:
            on_iteration(protocol[-1])
        if drop <= options.cost_tolerance * previous:
            reason, converged = f"the cost fell by only {drop / previous:.1e} of itself", True
            break
        if step.largest < options.step_tolerance:
            reason, converged = f"the step was only {step.largest:.1e} standard deviations", True
            break
    # back to the frame of the start: each world is that of its first view
    before, after = problem.start.cam_from_world, state.cam_from_world
    back = {
        world: before[view].inverse() @ after[view] for world, view in problem.held_views.items()
    }
    state = problem.worlds.move(state, back)
    return state, SolverSummary(converged, reason, initial, current.cost, tuple(protocol))
