"""Figures of merit, measured: `python -m benchmarks` prints them, and writes JSON."""
