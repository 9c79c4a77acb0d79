"""The steps of a calibration in order: all views at once, until nothing changes."""

from __future__ import annotations

import numpy as np

from lifcal.bundle import Adjustment, cross_validate
from lifcal.calibration.workbench import Workbench
from lifcal.listener import Listener, choose_listener


def calibrate_bench(bench: Workbench, listener: Listener | None = None) -> Adjustment:
    """Measure and adjust until nothing changes, then cross-validate.

    Parameters
    ----------
    bench : Workbench
        After `start` and `choose_points`.
    listener : Listener, optional

    Raises
    ------
    EstimationError
        If what is measured does not determine the camera.
    """
    listener = choose_listener(listener)
    if bench.windows.patches is None:
        bench.read_pixels(listener)
    found: Adjustment | None = None
    rounds = bench.options.rounds
    text = "measuring and adjusting (compiling, the first time only)"
    with listener.steps(text, rounds) as step:
        for _ in range(rounds):
            before = found
            if before is not None:
                bench.accept(before)
            found = bench.adjust(bench.measure())
            step("measuring and adjusting")
            if before is not None and is_settled(before, found, bench.options.settled_sigmas):
                break
    assert found is not None
    bench.check(found)
    with listener.status("cross-validating: solving halves of the recording"):
        found = cross_validate(found, bench.adjust_options)
    bench.check_worlds(found)
    return found


def is_settled(before: Adjustment, after: Adjustment, sigmas_moved: float) -> bool:
    """Tell whether no intrinsic moved by more than this part of its sigma."""
    sigmas = after.covariance.sigmas()
    names = after.problem.names
    if before.problem.names != names:
        return False
    moved = np.abs(after.state.as_vector() - before.state.as_vector())
    limits = np.array([sigmas.get(name, 0.0) for name in names])
    held = limits <= 0.0
    return bool((moved <= sigmas_moved * limits)[~held].all())
