"""Benchmarks of accuracy, speed and memory: `python -m benchmarks` prints them or writes JSON."""

import lifcal as lifcal  # before NumPy, because it sets an option for the threads of OpenBLAS
