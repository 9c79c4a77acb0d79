"""Repeated noisy solves: are the estimates as good as they can be, and do they know it?"""

import pytest

from benchmarks.bundle import efficiency


def check(result, low, high, sigma_off):
    for name, (ratio, sigma) in result.items():
        assert low < ratio < high, (name, ratio)
        assert abs(sigma - 1.0) < sigma_off, (name, sigma)


def test_efficiency_in_short():
    # the spread of 25 solves is known to 14 %: three times that
    check(efficiency(25), 0.58, 1.42, 0.6)


def test_outliers_in_short():
    check(efficiency(25, outliers=0.1, loss="cauchy"), 0.58, 1.6, 0.6)


@pytest.mark.slow
def test_efficiency():
    check(efficiency(200), 0.9, 1.1, 0.2)


@pytest.mark.slow
def test_efficiency_with_outliers():
    check(efficiency(200, outliers=0.1, loss="cauchy"), 0.8, 1.5, 0.2)
