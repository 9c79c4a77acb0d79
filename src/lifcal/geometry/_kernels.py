"""Compiled loops that several rooms use."""

from __future__ import annotations

from numba import njit


@njit(cache=True)
def take_median(values):
    """Sort a few finite values in place and return their median.

    By insertion: for the hundreds of values that kernels have at most, and a fraction of the time
    that NumPy's median takes to compile.
    """
    n = values.shape[0]
    for i in range(1, n):
        value = values[i]
        j = i - 1
        while j >= 0 and values[j] > value:
            values[j + 1] = values[j]
            j -= 1
        values[j + 1] = value
    return 0.5 * (values[(n - 1) // 2] + values[n // 2])
