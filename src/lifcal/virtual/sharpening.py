"""Wiener filters that sharpen the focused image, one for each virtual depth.

The mean over the micro images is blurred by the raw pixels, which are `|u|` times as wide in the
virtual image, and by the defocus of the lens types. For each virtual depth a small filter minimizes
the mean squared difference from what the output's pixels would see: a Wiener filter of finite size,
for scenes whose power falls with frequency as it does in most images.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import j1

from lifcal.arrays import Float32Array, FloatArray, IntArray
from lifcal.virtual._kernels_lenses import FOCUS_BLUR_PX
from lifcal.virtual._kernels_synthesis import FILTER_RINGS, Filters
from lifcal.virtual.optics import LensOptics

_POWER = 2.2
"""Exponent of the scene's power spectrum: power falls as frequency to the minus 2.2."""
_NOISE = 1.6
"""Power of noise and aliasing, relative to the scene's power at one period per output pixel."""
_WIDE_PIXEL = 2.5
"""Width of raw pixels, in output pixels, from which on filters only grow in size. There the errors
of the model (edges, aliasing) are as large as the scene's power at the size of a raw pixel."""
_WHITE = 0.1
"""Power of white noise relative to `_NOISE`, besides the noise that interpolation smooths as it
smooths the scene."""
_UNKNOWN_BLUR_PX = 0.7
"""Blur radius of lens types whose focal planes are not known: the mean over a working range."""
_LEAST_RHO, _MOST_RHO = 1.0 / 24.0, 1.0 / 1.4
"""Range of |rho| that filters are made for: a little wider than the depths that are searched."""
_N_DEPTHS = 64
"""Number of filters: neighbors differ by less than 5 % in depth."""
_N_FREQUENCIES = 65
"""Number of frequencies from 0 to half a period per pixel that integrals are summed over."""
_LOWEST_FREQUENCY = 0.01
"""Frequency below which the scene's power is taken as constant; it would be infinite at zero."""
_WIDE_PX = 0.6
"""Distance of neighboring taps as a fraction of a raw pixel. It is rounded to whole pixels of the
output, at least one."""


@dataclass(frozen=True, eq=False)
class SharpeningFilters:
    """Filters for even steps of `ln |rho|`; all taps of a ring have the same weight.

    Parameters
    ----------
    first, step : float
        Natural logarithm of |rho| of the first filter, and its step.
    weights : (n_depths, n_rings) float32
        Weight of one tap of each of `FILTER_RINGS`; all taps together sum to 1.
    spacings : (n_depths,) int64
        Distance of neighboring taps, in pixels of the output.
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
            Size of the output relative to the raw image.
        """
        logs = np.linspace(np.log(_LEAST_RHO), np.log(_MOST_RHO), _N_DEPTHS)
        # The sign of rho matters only for the defocus; focal planes have the sign of the scene.
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

    def pack(self) -> Filters:
        """Return the filters as the kernels take them."""
        return Filters(self.first, self.step, self.weights, self.spacings)


def _solve(optics: LensOptics, rho: float, width: float, spacing: int) -> FloatArray:
    """Return the weights of the rings for raw pixels that are `width` pixels of the output wide.

    The mean square of `filtered mean - truth` is a quadratic form of the weights, given by the
    covariances of the mean with itself and with the truth. The result minimizes it under the
    condition that all taps sum to 1.
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
    """Return the transfer function of the interpolation in `_kernels_synthesis.synthesise`."""
    t = np.linspace(0.0, 2.0, 201)
    inner = 1.0 + t * t * (1.5 * t - 2.5)
    outer = 2.0 + t * (-4.0 + t * (2.5 - 0.5 * t))
    kernel = np.where(t < 1.0, inner, outer)
    waves = np.cos(2.0 * np.pi * frequencies[:, None] * t)
    return np.asarray(2.0 * np.trapezoid(kernel * waves, t, axis=1))


def _mean_defocus(optics: LensOptics, rho: float, frequencies: FloatArray) -> FloatArray:
    """Return the mean transfer function of the lens types' blur discs, weighted by focus.

    `frequencies` are in periods per raw px.
    """
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
