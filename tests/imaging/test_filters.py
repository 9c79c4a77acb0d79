"""Filters against sums written out."""

import numpy as np

from lifcal.imaging.filters import range_around, sharpen, sum_around, widen_mask


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
