"""Where blurred micro images show waves, against a micro image put together point by point."""

import numpy as np
import pytest

from lifcal.camera.apertures import OverlapDiscs
from lifcal.virtual import _kernels_lenses, _kernels_sampling
from lifcal.virtual.depth import make_spline
from lifcal.virtual.moves import make_moves

DISCS = OverlapDiscs(9.3, (4.5, 2.8))
N_BINS = 100
REACH = 13


def record_wave(kind, bend, number, phase, middle):
    """Devignetted pixels of one micro image of the wave cos(number m + phase), m along x.

    Every pixel is the mean over places in it and points of the aperture that pass both discs. The
    micro image is around `middle`, near the middle of the array.
    """
    radius = DISCS.micro_px[kind]
    steps = np.linspace(-radius, radius, 41)
    q = np.stack(np.meshgrid(steps, steps), axis=2).reshape(-1, 2)
    q = q[np.hypot(*q.T) <= radius]
    pixels = np.arange(-REACH, REACH + 1)
    fine = (np.arange(5) + 0.5) / 5 - 0.5
    value, light = (np.zeros((9, len(pixels))) for _ in range(2))
    for dy in fine:
        for dx in fine:
            x = pixels[None, :, None] + dx - middle[0]
            y = np.arange(-4, 5)[:, None, None] + dy - middle[1]
            passes = (q[:, 0] - x) ** 2 + (q[:, 1] - y) ** 2 <= DISCS.main_px**2
            value += (passes * np.cos(number * (x - bend * q[:, 0]) + phase)).sum(axis=2)
            light += passes.sum(axis=2)
    return np.asarray(value / np.maximum(light, 1), np.float32)


def see_wave(kind, bend, wave_px, middle, places):
    """Return which m the spline shows at places along x, from the wave's phase."""
    number = 2.0 * np.pi / wave_px
    splines = [
        make_spline(record_wave(kind, bend, number, phase, middle)) for phase in (0.0, -np.pi / 2)
    ]
    waves = [
        complex(
            *(
                _kernels_sampling.sample_spline(s, p + middle[0] + REACH, middle[1] + 4.0)[0]
                for s in splines
            )
        )
        for p in places
    ]
    return places + np.angle(waves * np.exp(-1j * number * places)) / number


@pytest.mark.parametrize(("kind", "bend"), [(0, 0.15), (0, 0.0), (1, -0.38), (1, 0.25)])
def test_waves_are_seen_where_the_table_says(kind, bend, rng):
    table = make_moves(DISCS, (2, N_BINS), 1.0 / 12.0)[kind]
    row = (bend - _kernels_lenses.FIRST_BEND) * _kernels_lenses.BENDS_PER_UNIT
    k = int(row)
    moves = table[k] + (row - k) * (table[k + 1] - table[k])
    bins = np.arange(2 * 8, int(9.5 * 8), 8)
    m = bins / 8.0
    # Splines show where pixels are, by some 1/1000 px: over several middles that goes away.
    errors = [
        see_wave(kind, bend, 5.0, rng.uniform(-0.5, 0.5, 2), m + moves[bins]) - m for _ in range(4)
    ]
    mean = np.mean(errors, axis=0)
    assert np.abs(mean).max() < 0.012
    # As it acts on depth, which far places tell.
    assert abs(mean @ m / (m @ m)) < 8e-4
    if bend != 0.0:
        unmoved = see_wave(kind, bend, 5.0, np.zeros(2), m) - m
        assert abs(unmoved @ m / (m @ m)) > 0.004


def test_in_the_core_nothing_moves():
    moves = make_moves(DISCS, (2, N_BINS), 1.0 / 12.0)
    assert np.abs(moves[0, :, : int((9.3 - 4.5 - 1.7) * 8)]).max() < 1e-3
    assert np.abs(moves[1, :, : int((9.3 - 2.8 - 1.7) * 8)]).max() < 1e-3
    in_focus = moves[:, int(-_kernels_lenses.FIRST_BEND * _kernels_lenses.BENDS_PER_UNIT)]
    assert (in_focus[:, 8 * 8] > 0.005).all()  # the inner side of a pixel is brighter


def test_without_discs_nothing_moves():
    assert not make_moves(None, (3, 20), 1.0 / 12.0).any()
    assert make_moves(None, (3, 20), 1.0 / 12.0).shape == (3, 34, 20)
