"""The record of a measured figure, which every benchmark returns."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Figure:
    """One measured number.

    Parameters
    ----------
    name : str
    value : float
    unit : str
    direction : 'lower' or 'higher'
        Whether lower or higher values are better.
    tolerance : float
        The value must not be worse than this.
    noisy : bool
        Whether the value depends on the machine's load, as every wall time does.
    """

    name: str
    value: float
    unit: str
    direction: Literal["lower", "higher"]
    tolerance: float
    noisy: bool = False

    @property
    def holds(self) -> bool:
        """Whether the value is within its tolerance (NaN is not)."""
        if self.direction == "lower":
            return self.value <= self.tolerance
        return self.value >= self.tolerance

    def as_dict(self) -> dict[str, Any]:
        """Return the figure for JSON."""
        return {**asdict(self), "holds": self.holds}


def run_lifcal(*words: object) -> None:
    """Run a command; a result that is not to be trusted (exit code 3) is a result."""
    done = subprocess.run(
        [sys.executable, "-m", "lifcal", *map(str, words)], check=False, stdout=subprocess.DEVNULL
    )
    if done.returncode not in (0, 3):
        raise RuntimeError(f"lifcal {' '.join(map(str, words))} ended with {done.returncode}")


def best_time_s(function: Callable[[], object], repeats: int = 5) -> float:
    """Return the shortest wall time of several calls, after a first one that is not counted."""
    function()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)
