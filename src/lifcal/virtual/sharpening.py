"""Filters that undo what the width of the raw pixels and defocus do to a focused image.

The mean over the micro images shows the scene through the raw pixels, `|u|` times as wide in the
virtual image, and through the blur of the lens types out of focus. For each virtual depth a small
filter brings it nearest, in the mean of squares, to what pixels of the output would see: a Wiener
filter of finite size, for scenes whose power falls with frequency as that of most scenes does.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import j1

from lifcal.arrays import Float32Array, FloatArray, IntArray
from lifcal.virtual._kernels import FILTER_RINGS, FOCUS_BLUR_PX
from lifcal.virtual.optics import LensOptics

_POWER = 2.2
"""Of a scene falls as frequency to the minus this."""
_NOISE = 1.6
"""Relative to the scene's power at one period a pixel: noise, and what aliasing leaves."""
_WIDE_PIXEL = 2.5
"""Pixels of the output: where raw pixels are wider, what the model leaves out (edges, aliasing) is
as large as the scene's power at their own size, and filters are the same but for their size."""
_WHITE = 0.1
"""Of it, besides what interpolation smooths as it does the scene."""
_UNKNOWN_BLUR_PX = 0.7
"""Radius, of lens types whose focal planes are not known: that of the mean over a working range."""
_LEAST_RHO, _MOST_RHO = 1.0 / 24.0, 1.0 / 1.4
_N_DEPTHS = 64
_N_FREQUENCIES = 65
_LOWEST_FREQUENCY = 0.01
_WIDE_PX = 0.6
"""Taps are this part of a raw pixel apart, in whole pixels of the output, and one at least."""


@dataclass(frozen=True, eq=False)
class SharpeningFilters:
    """Filters for even steps of `ln |rho|`, the taps of a ring all alike.

    Parameters
    ----------
    first, step : float
        Natural logarithm of |rho| of the first filter, and its step.
    weights : (n_depths, n_rings) float32
        Of one tap of each of `FILTER_RINGS`; all taps together sum to 1.
    spacings : (n_depths,) int64
        Of the taps, in pixels of the output.
    """

    first: float
    step: float
    weights: Float32Array
    spacings: IntArray

    @classmethod
    def from_optics(cls, optics: LensOptics, scale: float) -> SharpeningFilters:
        """Compute the filters of a camera.

        Parameters
        ----------
        optics : LensOptics
        scale : float
            Of the output, relative to the raw.
        """
        logs = np.linspace(np.log(_LEAST_RHO), np.log(_MOST_RHO), _N_DEPTHS)
        # The sign of rho matters to defocus only, and focal planes have that of the scene.
        sign = -1.0 if np.nansum(np.sign(optics.focal_rhos)) < 0.0 else 1.0
        widths = scale / np.exp(logs)
        spacings = np.maximum((_WIDE_PX * widths + 0.5).astype(np.int64), 1)
        weights = [
            _solve(optics, sign * scale / width, width, spacing)
            for width, spacing in zip(widths, spacings, strict=True)
        ]
        return cls(
            float(logs[0]), float(logs[1] - logs[0]), np.array(weights, np.float32), spacings
        )

    def pack(self) -> tuple[float, float, Float32Array, IntArray]:
        """Return what `_kernels.sharpen` takes as `filters`."""
        return self.first, self.step, self.weights, self.spacings


def _solve(optics: LensOptics, rho: float, width: float, spacing: int) -> FloatArray:
    """Return the weights of the rings for raw pixels that are `width` pixels of the output wide.

    The mean square of `filtered mean - truth` is a quadratic form of the weights, by the
    covariances of the mean with itself and with the truth; its minimum with a sum of 1 is asked.
    """
    f = np.linspace(0.0, 0.5, _N_FREQUENCIES)
    # Cosine sums over a quarter of the plane, the borders half: both axes are symmetric.
    share = np.full(_N_FREQUENCIES, 2.0)
    share[[0, -1]] = 1.0
    waves = share * np.cos(2.0 * np.pi * spacing * np.arange(2 * _REACH + 1)[:, None] * f)
    radial = np.hypot(f[:, None], f[None, :])
    smooth = _outer(_catmull_rom(f * width))
    seen = smooth * _outer(np.sinc(f * width)) * _mean_defocus(optics, rho, width * radial)
    wanted = _outer(np.sinc(f))
    power = np.maximum(radial, _LOWEST_FREQUENCY) ** -_POWER
    noise = _NOISE * max(width / _WIDE_PIXEL, 1.0) ** _POWER * (smooth**2 + _WHITE)
    own = waves @ (seen**2 * power + noise) @ waves.T
    cross = waves @ (seen * wanted * power) @ waves.T
    taps, rings = _list_taps()
    lags = np.abs(taps[:, None, :] - taps[None, :, :])
    in_ring = (rings[:, None] == np.arange(len(FILTER_RINGS))).astype(np.float64)
    n = len(FILTER_RINGS)
    normal = np.zeros((n + 1, n + 1))
    normal[:n, :n] = in_ring.T @ own[lags[..., 0], lags[..., 1]] @ in_ring
    normal[n, :n] = normal[:n, n] = in_ring.sum(axis=0)
    right = np.append(in_ring.T @ cross[np.abs(taps[:, 0]), np.abs(taps[:, 1])], 1.0)
    return np.asarray(np.linalg.solve(normal, right)[:n])


def _outer(values: FloatArray) -> FloatArray:
    return np.asarray(values[:, None] * values[None, :])


def _catmull_rom(frequencies: FloatArray) -> FloatArray:
    """Return the transfer of the interpolation that `_kernels.synthesise` uses."""
    t = np.linspace(0.0, 2.0, 201)
    inner = 1.0 + t * t * (1.5 * t - 2.5)
    outer = 2.0 + t * (-4.0 + t * (2.5 - 0.5 * t))
    kernel = np.where(t < 1.0, inner, outer)
    waves = np.cos(2.0 * np.pi * frequencies[:, None] * t)
    return np.asarray(2.0 * np.trapezoid(kernel * waves, t, axis=1))


def _mean_defocus(optics: LensOptics, rho: float, frequencies: FloatArray) -> FloatArray:
    """Return the transfer of the lens types' blur discs, by their weights; in periods a raw px."""
    focal = optics.focal_rhos
    radii = np.where(np.isnan(focal), _UNKNOWN_BLUR_PX, optics.blur_px * np.abs(focal - rho))
    shares = np.where(np.isnan(focal), 1.0, 1.0 / (1.0 + (radii / FOCUS_BLUR_PX) ** 2))
    turns = 2.0 * np.pi * np.multiply.outer(radii, frequencies)
    small = turns < 1e-6
    safe = np.where(small, 1.0, turns)
    discs = np.where(small, 1.0, 2.0 * j1(safe) / safe)
    return np.asarray(np.tensordot(shares / shares.sum(), discs, 1))


_REACH = max(max(ring) for ring in FILTER_RINGS)


def _list_taps() -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return all taps (n, 2), in units of their spacing, and the ring of each."""
    taps, rings = [], []
    for index, (a, b) in enumerate(FILTER_RINGS):
        ring = {(i * p, j * q) for p, q in ((a, b), (b, a)) for i in (-1, 1) for j in (-1, 1)}
        taps += sorted(ring)
        rings += [index] * len(ring)
    return np.array(taps, np.int64), np.array(rings, np.int64)
