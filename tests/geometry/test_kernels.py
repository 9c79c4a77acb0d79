"""Small compiled helpers against NumPy."""

import numpy as np
import pytest

from lifcal.geometry._kernels import take_median


@pytest.mark.parametrize("n", [1, 2, 3, 8, 101])
def test_take_median(n, rng):
    values = rng.normal(size=n).round(1)  # with ties
    expected = np.median(values)
    in_order = np.sort(values)
    assert take_median(values) == expected
    np.testing.assert_array_equal(values, in_order)
