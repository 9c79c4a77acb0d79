"""Optical tables of the micro lenses: the noise of their pixels, and where they show a point.

Two effects move the image of a point away from its pinhole position `m` in a micro image. Both
follow from the fall-off of brightness (docs/theory/virtual-depth.md):

- Focus: a devignetted pixel is the mean of what it sees through the used part of the micro
  aperture, the overlap of two discs. Out of focus, the image moves with the centroid of the
  overlap.
- Pixel width: the light of a pixel comes more from its brighter side, the inner one.

`lifcal.virtual.moves` tabulates both together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from lifcal.arrays import Float32Array, FloatArray, IntArray
from lifcal.camera.apertures import compute_disc_overlap
from lifcal.camera.grid import MicroLensGrid
from lifcal.camera.tilt import focal_rho_behind_tilt
from lifcal.virtual._kernels_lenses import BINS_PER_PX, Lenses
from lifcal.virtual.moves import make_moves

_USED_LIGHT = 0.35
"""Least brightness of the used part of a micro image, relative to its middle. The rim beyond is too
noisy, and the centroid of its overlap moves too far."""
_READ_NOISE = 0.2
"""Variance of the noise that does not depend on light, relative to the shot noise of mid gray in
the middle of a micro image."""
_CLEAR_OF_NEXT_PX = 1.75
"""Distance of the used part of a micro image from the border to the next one. Interpolation reaches
up to two pixels further and must not mix in the neighbor."""
PIXEL_VARIANCE_PX2 = 1.0 / 12.0
"""Variance along an axis of a square pixel of width 1."""
_LEAST_LIGHT = 0.02
"""Least relative brightness in the tables: noise and slopes are divided by it."""
_UNKNOWN_BLUR_PX = 1.0
"""Blur radius that is assumed where no focal plane is known."""
_BEYOND_PX = 3.0
"""Distance that tables reach beyond the used radius, for displaced points and for averages."""
_MOST_TAU = 0.1
"""Largest relative change of B_k over the array that tables are made for. A tilt of 0.05 degrees
changes it by 0.01 at the edge of a Raytrix R5."""
_TILT_STEPS = 33
"""Number of table rows for a tilted array and one lens type. A lens is off by at most half a step,
2 % of the tilt's largest effect."""


@dataclass(frozen=True, eq=False)
class LensOptics:
    """Tables by lens type and distance from the micro-image center, in steps of 1 / BINS_PER_PX.

    Parameters
    ----------
    lens_types : (n_lenses,) int64
    radius_px : float
        Radius of the part of a micro image that is used.
    weights : (n_types, n_bins) float32
        Inverse variance of a devignetted pixel's noise.
    shifts_px : (n_types, n_bins) float32
        Centroid of the used part of the micro aperture, as the white image shows it. An image with
        defocus `d = rho_T - rho` is displaced outward by `d / rho_T` times the centroid.
    focal_rhos : (n_types,) float64
        1 / u in focus; NaN where unknown.
    blur_px : float
        Radius of the blur for each unit of defocus.
    drifts_px : (n_types, n_bins) float32
        Displacement outward because the light of a pixel comes more from its inner side.
    moves_px : (n_types, n_bends, n_bins) float32
        Total displacement outward of `m` in the spline through the pixels (`make_moves`), for
        `d / rho_T` in steps of 1 / BENDS_PER_UNIT.
    shared_noise : float
        Factor on the variance of what is measured over several pixels, because demosaicing makes
        neighboring pixels share noise.
    pixel_px2 : float
        Variance of a pixel along an axis, including what demosaicing adds.
    """

    lens_types: IntArray
    radius_px: float
    weights: Float32Array
    shifts_px: Float32Array
    focal_rhos: FloatArray
    blur_px: float
    drifts_px: Float32Array
    moves_px: Float32Array
    shared_noise: float = 1.0
    pixel_px2: float = PIXEL_VARIANCE_PX2

    @classmethod
    def from_grid(
        cls, grid: MicroLensGrid, *, blur_variance_px2: float = 0.0, shared_noise: float = 1.0
    ) -> LensOptics:
        """Build the tables from a grid's overlap discs and focal planes, as far as it has them.

        Parameters
        ----------
        grid : MicroLensGrid
        blur_variance_px2 : float
            Variance along an axis of the blur that was applied to the raw image before
            devignetting (demosaicing).
        shared_noise : float
            Factor on variances that this blur causes, see `LensOptics`.
        """
        n_types = grid.n_types
        focal_rhos = np.full(n_types, np.nan)
        if grid.focal_planes is not None:
            focal_rhos = 1.0 / grid.focal_planes
        limit = max(0.5 * grid.pitch_px - _CLEAR_OF_NEXT_PX, 0.25 * grid.pitch_px)
        if grid.discs is None:
            radius = min(0.8 * grid.radius_px, limit)
            bins = _count_bins(radius)
            flat = np.zeros((n_types, bins), np.float32)
            blur = 0.5 * grid.pitch_px
            even = flat + np.float32(1.0)
            still = make_moves(None, flat.shape, PIXEL_VARIANCE_PX2)
            return cls(
                grid.lens_types, radius, even, flat, focal_rhos, blur, flat, still, shared_noise
            )
        micro = np.array(grid.discs.micro_px)
        offsets = np.arange(_count_bins(grid.discs.reach_px)) / BINS_PER_PX
        light = np.stack([grid.discs.compute_illumination(offsets, t) for t in range(n_types)])
        used = (light >= _USED_LIGHT).all(axis=0)
        radius = min(float(offsets[np.flatnonzero(used)[-1]]), limit)
        pixel = PIXEL_VARIANCE_PX2 + blur_variance_px2
        main = np.full(n_types, grid.discs.main_px)
        tables = _make_tables(micro, main, _count_bins(radius), pixel)
        # All micro apertures have one size; on the sensor they appear in proportion to rho_T.
        known = np.isfinite(focal_rhos)
        blur = (
            float(np.mean(micro[known] / np.abs(focal_rhos[known])))
            if known.any()
            else 0.5 * grid.pitch_px
        )
        return cls(
            grid.lens_types,
            radius,
            tables.weights,
            tables.shifts_px,
            focal_rhos,
            blur,
            tables.drifts_px,
            make_moves(grid.discs, tables.shifts_px.shape, pixel),
            shared_noise,
            pixel,
        )

    def behind_tilt(self, grid: MicroLensGrid, tau: FloatArray) -> LensOptics:
        """Return the tables for measuring with a tilted array, whose lenses differ.

        Where the array is farther from the sensor by the share tau, a lens is in focus at another
        virtual depth u_T (`focal_rho_behind_tilt`), the main aperture is seen larger by tau, and
        the micro aperture in proportion to `1 / u_T`. Lenses of one type and nearly the same tau
        share a row of the tables, so a row takes the place of a lens type. `moves_px`, which
        measuring does not use, stay those of the types.

        Parameters
        ----------
        grid : MicroLensGrid
            The grid that these optics were built from.
        tau : (n_lenses,) float64
            Relative change of B_k, from `ArrayTilt.at`. An unknown tau (NaN) counts as zero; one
            that is larger than that of any real array is clipped.
        """
        discs = grid.discs
        if discs is None or grid.focal_planes is None:
            return self
        # Compiled loops use the row as an index, so it must be valid whatever the adjustment found.
        tau = np.clip(np.where(np.isfinite(tau), tau, 0.0), -_MOST_TAU, _MOST_TAU)
        steps = np.linspace(tau.min(), tau.max(), _TILT_STEPS)
        nearest = np.rint((tau - steps[0]) / max(steps[1] - steps[0], 1e-12)).astype(np.int64)
        types, steps = np.repeat(np.arange(grid.n_types), len(steps)), np.tile(steps, grid.n_types)
        usual = self.focal_rhos[types]
        own = focal_rho_behind_tilt(usual, steps)
        tables = _make_tables(
            np.array(discs.micro_px)[types] * own / usual,
            discs.main_px * (1.0 + steps),
            self.shifts_px.shape[1],
            self.pixel_px2,
        )
        return replace(
            self,
            lens_types=self.lens_types * _TILT_STEPS + nearest,
            weights=tables.weights,
            shifts_px=tables.shifts_px,
            focal_rhos=own,
            drifts_px=tables.drifts_px,
        )

    def compute_least_blur(self, rho: Float32Array) -> Float32Array:
        """Return the blur of the sharpest lens type at inverse virtual depths, px.

        If no focal plane is known, the blur is taken as 1 px everywhere.
        """
        known = self.focal_rhos[np.isfinite(self.focal_rhos)].astype(np.float32)
        if len(known) == 0:
            return np.full_like(rho, _UNKNOWN_BLUR_PX)
        defocus = np.abs(rho - known[0])
        for focal in known[1:]:
            np.minimum(defocus, np.abs(rho - focal), out=defocus)
        return np.asarray(np.float32(self.blur_px) * defocus)

    def pack(self) -> Lenses:
        """Return the tables as the kernels take them."""
        return Lenses(
            types=self.lens_types,
            radius=self.radius_px,
            weights=self.weights,
            moves=self.moves_px,
            focal_rhos=self.focal_rhos,
            blur_px=self.blur_px,
        )


class _Tables(NamedTuple):
    """Rows of `LensOptics`, (n_rows, n_bins) each."""

    weights: Float32Array
    shifts_px: Float32Array
    drifts_px: Float32Array


def _make_tables(
    micro_px: FloatArray, main_px: FloatArray, n_bins: int, pixel_px2: float
) -> _Tables:
    """Return the tables that follow from the radii of the two discs, (n_rows,) each."""
    micro, main = micro_px[:, None], main_px[:, None]
    offsets = np.arange(n_bins)[None, :] / BINS_PER_PX
    area, _ = compute_disc_overlap(main, micro, offsets)
    light = np.maximum(area / (np.pi * np.minimum(main, micro) ** 2), _LEAST_LIGHT)
    _, centroids = compute_disc_overlap(micro, main, offsets)
    slopes = np.gradient(np.log(light), 1.0 / BINS_PER_PX, axis=1)
    variance = 1.0 / light + _READ_NOISE / light**2
    return _Tables(
        ((1.0 + _READ_NOISE) / variance).astype(np.float32),
        np.nan_to_num(centroids).astype(np.float32),
        (-pixel_px2 * slopes).astype(np.float32),
    )


def _count_bins(radius_px: float) -> int:
    """Return the number of bins up to `radius_px` and `_BEYOND_PX` further."""
    return math.ceil((radius_px + _BEYOND_PX) * BINS_PER_PX) + 2
