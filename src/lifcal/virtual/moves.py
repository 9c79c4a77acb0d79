"""Where a micro image shows what a pinhole would show at distance `m` from its center.

A spline's value at a place `p` is the mean over the pixels around it, each of them the mean over
itself by light, and that again the mean over the used part of the micro aperture, the overlap of
two discs. So a wave on the surface appears moved by the phase of these means. For long waves that
is what the centroids of pixel and overlap say; for those that tell depth, a few pixels long, the
whole shape of the overlap counts (docs/theory/virtual-depth.md).
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from lifcal.arrays import Float32Array, FloatArray
from lifcal.camera.apertures import OverlapDiscs
from lifcal.virtual._kernels import (
    BENDS_PER_UNIT,
    BINS_PER_PX,
    FIRST_BEND,
    LAST_BEND,
    SPLINE_VARIANCE_PX2,
)

_WAVE_PX = 4.5
"""Length of the waves that depth is mostly measured with, on the raw image."""
_MOST_BLURRED = 1.6
"""Radius of the blur in radians of the wave: what is blurred more shows longer waves only."""
_CHORDS = 24
_NODES = 5
_DARK = 1e-6

Waves = npt.NDArray[np.complex128]


def make_moves(
    discs: OverlapDiscs | None, shape: tuple[int, int], pixel_px2: float
) -> Float32Array:
    """Return how far outward of `m` a point is seen, (n_types, n_bends, n_bins).

    Parameters
    ----------
    discs : OverlapDiscs or None
        Without them nothing moves.
    shape : (int, int)
        Lens types, and distances `m` in steps of 1 / BINS_PER_PX.
    pixel_px2 : float
        Variance of a pixel along an axis.
    """
    bends = np.arange(FIRST_BEND, LAST_BEND + 1.5 / BENDS_PER_UNIT, 1.0 / BENDS_PER_UNIT)
    moves = np.zeros((shape[0], len(bends), shape[1]), np.float32)
    if discs is None:
        return moves
    places = np.arange(shape[1]) / BINS_PER_PX
    for kind, radius in enumerate(discs.micro_px):
        chords = _cut_into_chords(radius, discs.main_px, places)
        light = chords[1].sum(axis=1)
        of_white = np.maximum(_average(light + 0j, 0.0, pixel_px2).real, _DARK)
        for row, bend in enumerate(bends):
            number = min(2.0 * math.pi / _WAVE_PX, _MOST_BLURRED / max(abs(bend) * radius, _DARK))
            wave = _see_through(chords, number * bend)
            of_pixels = _average(light * wave, number, pixel_px2) / of_white
            found = _average(of_pixels, number, SPLINE_VARIANCE_PX2)
            seen = np.maximum.accumulate(places + _unwrap(found) / number)
            moves[kind, row] = np.interp(places, seen, places) - places
    return moves


def _cut_into_chords(
    radius: float, other: float, places: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return (n, chords) positions and areas of chords of the overlap of two discs, `places` apart.

    Positions are from the middle of the first disc towards that of the second.
    """
    left = np.maximum(-radius, places - other)[:, None]
    half = np.maximum(0.5 * (np.minimum(radius, places + other)[:, None] - left), 0.0)
    angles = np.arange(1, _CHORDS + 1) * math.pi / (_CHORDS + 1)
    at = left + half * (1.0 - np.cos(angles))
    height = np.minimum(radius**2 - at**2, other**2 - (at - places[:, None]) ** 2)
    # Gauss' rule for a semicircle: the height is one, times something smooth.
    area = half * np.sin(angles) * np.sqrt(np.maximum(height, 0.0)) / radius**2
    return at, area


def _see_through(chords: tuple[FloatArray, FloatArray], number: float) -> Waves:
    """Return the mean of a wave over overlaps, of which point q shows it at `-number q`."""
    at, area = chords
    total = np.maximum(area.sum(axis=1), _DARK)
    return np.asarray((area * np.exp(-1j * number * at)).sum(axis=1) / total)


def _average(wave: Waves, number: float, variance_px2: float) -> Waves:
    """Return the mean around each place of a wave that is moved outward by its phase."""
    nodes, shares = np.polynomial.hermite_e.hermegauss(_NODES)
    nodes, shares = nodes * math.sqrt(variance_px2), shares / shares.sum()
    places = np.arange(len(wave)) / BINS_PER_PX
    along = places[:, None, None] + nodes[:, None]
    away = np.maximum(np.hypot(along, nodes), _DARK)
    size = np.interp(away, places, np.abs(wave))
    phase = np.interp(away, places, _unwrap(wave)) * along / away + number * nodes[:, None]
    return np.asarray(np.einsum("nij,i,j->n", size * np.exp(1j * phase), shares, shares))


def _unwrap(wave: Waves) -> FloatArray:
    return np.asarray(np.unwrap(np.angle(wave)))
