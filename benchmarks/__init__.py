"""Figures of merit, measured: `python -m benchmarks` prints them, and writes JSON."""

import lifcal as lifcal  # before NumPy, whose threads it lets sleep
