"""Filters against sums written out."""

import numpy as np

from lifcal.imaging.filters import (
    double,
    range_around,
    sharpen,
    smooth,
    sum_around,
    widen_mask,
)


def test_sharpen(rng):
    image = rng.random((9, 8)).astype(np.float32)
    out = np.empty_like(image)
    sharpen(image, 0.1, out)
    kernel = np.array([-0.1, 1.2, -0.1])
    assert abs(out[4, 3] - kernel @ image[3:6, 2:5] @ kernel) < 1e-6
    sharpen(np.ones_like(image), 0.1, out)
    np.testing.assert_allclose(out, 1.0, atol=1e-6)  # at the border too


def test_around(rng):
    values = rng.random((9, 8))
    assert abs(sum_around(values, 3)[4, 3] - values[3:6, 2:5].sum()) < 1e-12
    assert abs(sum_around(values, 3)[0, 0] - values[:2, :2].sum()) < 1e-12
    floats = values.astype(np.float32)
    assert range_around(floats)[4, 3] == np.ptp(floats[3:6, 2:5])
    mask = np.zeros((9, 8), np.bool_)
    mask[4, 3] = True
    assert widen_mask(mask, 5).sum() == 25


def test_double_keeps_places():
    rows, cols = np.mgrid[:12, :10].astype(np.float32)
    for values in (rows, cols):
        twice = np.empty((24, 20), np.float32)
        double(values, twice)
        # Pixel i of the large image is at (i + 0.5) / 2 - 0.5 of the small one.
        assert abs(twice[11, 9] - ((11 if values is rows else 9) / 2 - 0.25)) < 1e-6


def test_smooth():
    image = np.zeros((31, 31), np.float32)
    image[15, 15] = 1.0
    out = smooth(image, 2.0)
    away = np.arange(31) - 15
    assert abs(out.sum() - 1.0) < 1e-5
    assert abs((out.sum(axis=0) * away**2).sum() - 4.0) < 0.1
