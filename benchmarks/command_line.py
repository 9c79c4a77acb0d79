"""The time that the command line takes to start."""

from __future__ import annotations

import subprocess
import sys

from benchmarks.figures import Figure, best_time_s


def run() -> list[Figure]:
    def ask() -> None:
        subprocess.run(
            [sys.executable, "-m", "lifcal", "--help"], check=True, stdout=subprocess.DEVNULL
        )

    return [Figure("lifcal --help", best_time_s(ask), "s", "lower", 0.5, noisy=True)]
