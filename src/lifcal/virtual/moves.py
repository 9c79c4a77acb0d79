"""Table of displacements: where a micro image shows what a pinhole would show at distance `m`.

The value of the spline at a place `p` is a mean over the pixels around it. The value of a pixel is
a mean over its area, weighted by light, and each point of it is a mean over the used part of the
micro aperture, the overlap of two discs. So a wave on the surface appears displaced by the phase of
these means. For long waves the phase follows from the centroids of pixel and overlap. For waves of
a few pixels, which tell most about depth, the whole shape of the overlap matters
(docs/theory/virtual-depth.md).
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from lifcal.arrays import Float32Array, FloatArray
from lifcal.camera.apertures import OverlapDiscs
from lifcal.virtual._kernels_lenses import BENDS_PER_UNIT, BINS_PER_PX, FIRST_BEND, LAST_BEND
from lifcal.virtual._kernels_sampling import SPLINE_VARIANCE_PX2

_WAVE_PX = 4.5
"""Wavelength, in px of the raw image, of the texture that depth is mostly measured with."""
_MOST_BLURRED = 1.6
"""Largest blur radius in radians of the wave. Where the blur is larger, a longer wave is followed,
because the blur leaves nothing of the short one."""
_CHORDS = 24
"""Number of chords that an overlap is cut into, the nodes of a Gauss rule. The integrands are waves
no shorter than a few chords, so the rule converges fast."""
_NODES = 5
"""Nodes along each axis of the Gauss-Hermite rule that averages over a pixel."""
_DARK = 1e-6
"""Least divisor, where an overlap is empty."""

Waves = npt.NDArray[np.complex128]


def make_moves(
    discs: OverlapDiscs | None, shape: tuple[int, int], pixel_px2: float
) -> Float32Array:
    """Return how far outward of `m` a point is seen, px, (n_types, n_bends, n_bins).

    Parameters
    ----------
    discs : OverlapDiscs or None
        Overlap discs of the grid; without them all displacements are zero.
    shape : (int, int)
        Number of lens types, and of distances `m` in steps of 1 / BINS_PER_PX.
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
    """Return positions and areas of the chords of overlaps of two discs, (n, chords) each.

    `places` (n,) are the distances of the two centers. Positions are measured from the center of
    the first disc towards that of the second.
    """
    left = np.maximum(-radius, places - other)[:, None]
    half = np.maximum(0.5 * (np.minimum(radius, places + other)[:, None] - left), 0.0)
    angles = np.arange(1, _CHORDS + 1) * math.pi / (_CHORDS + 1)
    at = left + half * (1.0 - np.cos(angles))
    height = np.minimum(radius**2 - at**2, other**2 - (at - places[:, None]) ** 2)
    # Gauss' rule for integrands that are a semicircle times a smooth function, as the height is.
    area = half * np.sin(angles) * np.sqrt(np.maximum(height, 0.0)) / radius**2
    return at, area


def _see_through(chords: tuple[FloatArray, FloatArray], number: float) -> Waves:
    """Return the mean of a wave over overlaps; point q of one has the phase `-number q`."""
    at, area = chords
    total = np.maximum(area.sum(axis=1), _DARK)
    return np.asarray((area * np.exp(-1j * number * at)).sum(axis=1) / total)


def _average(wave: Waves, number: float, variance_px2: float) -> Waves:
    """Return the mean of a wave over a Gaussian of `variance_px2` around each place.

    The phase of `wave` (n,) is that of a displacement outward; `number` is the wave number.
    """
    nodes, shares = np.polynomial.hermite_e.hermegauss(_NODES)
    nodes, shares = nodes * math.sqrt(variance_px2), shares / shares.sum()
    places = np.arange(len(wave)) / BINS_PER_PX
    along = places[:, None, None] + nodes[:, None]
    away = np.maximum(np.hypot(along, nodes), _DARK)
    size = np.interp(away, places, np.abs(wave))
    phase = np.interp(away, places, _unwrap(wave)) * along / away + number * nodes[:, None]
    return np.asarray(np.einsum("nij,i,j->n", size * np.exp(1j * phase), shares, shares))


def _unwrap(wave: Waves) -> FloatArray:
    """Return the phase, without jumps by 2 pi from one place to the next."""
    return np.asarray(np.unwrap(np.angle(wave)))
