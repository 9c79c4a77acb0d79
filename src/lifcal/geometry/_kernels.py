"""Compiled loops that several rooms use."""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from lifcal.threads import UNCOUNTED


@njit(cache=True, fastmath=False, **UNCOUNTED)
def pixels_within(position, reach, count):
    """Return the first pixel within `reach` of a position along an axis, and one past the last.

    The axis has pixels 0 to count - 1. A position that is NaN, infinite or farther than `reach`
    from all of them, and a `reach` that is NaN, give an empty range. The limits are applied before
    a float is converted to an integer, because the conversion of NaN or of a number that is too
    large is undefined.
    """
    if not (-reach <= position <= count - 1 + reach) or math.isinf(position):
        return 0, 0
    first = int(np.ceil(max(position - reach, 0.0)))
    return first, int(np.floor(min(position + reach, count - 1.0))) + 1


@njit(cache=True)
def take_median(values):
    """Sort a few finite values in place and return their median; NaN if there are none.

    Kernels pass at most some hundred values, for which insertion sort is fast enough. It compiles
    in a fraction of the time that NumPy's median takes.
    """
    n = values.shape[0]
    if n == 0:
        return math.nan
    for i in range(1, n):
        value = values[i]
        j = i - 1
        while j >= 0 and values[j] > value:
            values[j + 1] = values[j]
            j -= 1
        values[j + 1] = value
    return 0.5 * (values[(n - 1) // 2] + values[n // 2])
