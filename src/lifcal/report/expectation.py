"""What a calibrated camera will do in use: error of depth, field of view, working range."""

from __future__ import annotations

import math
import shlex
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lifcal.arrays import FloatArray
from lifcal.camera import PlenopticCamera

DISTANCES_MM = (500.0, 1000.0, 2000.0, 5000.0)
"""Distances at which the report says what error of depth to expect."""
_NOISE_BINS = 8
"""Ranges of virtual depth, of equal counts, in which the noise of a pixel is measured."""
_LEAST_PIXELS = 200
"""Least number of pixels from which the noise is measured."""
_WORKING_SHARES = (0.005, 0.995)
"""Shares of the observations that are nearer than the ends of the working range."""
_SHARES = (0.16, 0.5, 0.84)
"""Pixels of a scene differ in texture: a good one, a usual one, a poor one."""


@dataclass(frozen=True, eq=False)
class PixelNoise:
    """Standard deviation of the virtual depth of single pixels, measured in depth maps.

    Parameters
    ----------
    u : (n,) float64
        Virtual depths, rising.
    sigma : (n, 3) float64
        Standard deviation of u there, of the pixel that is better than 84 %, 50 % and 16 % of all.
    """

    u: FloatArray
    sigma: FloatArray

    @classmethod
    def measure(
        cls, maps: Iterable[tuple[npt.NDArray[np.floating], npt.NDArray[np.floating]]]
    ) -> PixelNoise | None:
        """Measure it in maps of virtual depth and its sigma; None if too few pixels are known.

        Parameters
        ----------
        maps : iterable of ((rows, cols) float, (rows, cols) float)
            NaN where unknown.
        """
        u, sigma = [], []
        for values, spreads in maps:
            known = np.isfinite(values) & np.isfinite(spreads)
            u.append(values[known].astype(np.float64))
            sigma.append(spreads[known].astype(np.float64))
        if sum(map(len, u)) < _LEAST_PIXELS:
            return None
        all_u, all_sigma = np.concatenate(u), np.concatenate(sigma)
        order = np.argsort(all_u)
        parts = np.array_split(order, _NOISE_BINS)
        places = np.array([np.median(all_u[part]) for part in parts])
        spread = np.array([np.quantile(all_sigma[part], _SHARES) for part in parts])
        places, first = np.unique(places, return_index=True)
        return cls(places, spread[first])

    def at(self, u: float) -> FloatArray:
        """Return the three standard deviations at a virtual depth, (3,)."""
        return np.array([np.interp(u, self.u, column) for column in self.sigma.T])


def describe_expectation(
    camera: PlenopticCamera, depths_cam_mm: FloatArray, noise: PixelNoise | None
) -> dict[str, Any]:
    """Return what to expect of a camera, for JSON.

    Parameters
    ----------
    camera : PlenopticCamera
        With its covariance.
    depths_cam_mm : (n,) float64
        Depths of the observations of the calibration: they span the working range.
    noise : PixelNoise or None
        Noise of single pixels; without it, only the calibration's part is known.
    """
    metric = camera.scale_source is not None
    depths = depths_cam_mm[np.isfinite(depths_cam_mm) & (depths_cam_mm > 0.0)]
    rows = []
    near, far = np.quantile(depths, _WORKING_SHARES).tolist() if len(depths) else (0.0, 0.0)
    if metric and far > 0.0:
        wanted = list(DISTANCES_MM)
        if not any(near <= z <= far for z in wanted):
            wanted = sorted({*wanted, near, far})
        rows = [_expect_at(camera, z, noise, near <= z <= far) for z in wanted]
    return {
        "metric": metric,
        "depth": rows,
        "working_range": [near, far] if far > 0.0 else None,
        "field_of_view_deg": _measure_view(camera),
        "distortion_corner_px": measure_corner_distortion(camera),
        "pixel_noise": None
        if noise is None
        else {"u": noise.u.tolist(), "sigma": noise.sigma.tolist()},
    }


def _expect_at(
    camera: PlenopticCamera, z: float, noise: PixelNoise | None, inside: bool
) -> dict[str, Any]:
    """Return the error of depth at a distance in the middle of the image."""
    entry: dict[str, Any] = {"z_mm": z, "inside": inside}
    names = ("sigma_pixel_mm", "sigma_good_mm", "sigma_poor_mm", "sigma_calibration_mm", "sigma_mm")
    entry |= dict.fromkeys(names)
    if not inside:
        return entry
    array = camera.array
    u = array.alpha + array.beta_mm / z
    by_u = z * z / array.beta_mm  # of z, by u and by alpha; by beta it is z / beta
    total = 0.0
    if camera.covariance is not None:
        places = [camera.parameter_names.index(name) for name in ("alpha", "beta")]
        slope = np.array([by_u, z / array.beta_mm])
        variance = float(slope @ camera.covariance[np.ix_(places, places)] @ slope)
        entry["sigma_calibration_mm"] = math.sqrt(max(variance, 0.0))
        total += max(variance, 0.0)
    if noise is not None:
        good, usual, poor = (by_u * noise.at(u)).tolist()
        entry |= {"sigma_good_mm": good, "sigma_pixel_mm": usual, "sigma_poor_mm": poor}
        total += usual**2
    if total > 0.0:
        entry["sigma_mm"] = math.sqrt(total)
    return entry


def _measure_view(camera: PlenopticCamera) -> list[float]:
    """Return the angles of view, horizontal, vertical and diagonal, in degrees."""
    width, height = camera.image_size
    left, top, right, bottom = -0.5, -0.5, width - 0.5, height - 0.5
    x, y = camera.principal_point_px.tolist()
    ends = [(left, y), (right, y), (x, top), (x, bottom), (left, top), (right, bottom)]
    ideal = camera.distortion.undistort(np.array(ends), camera.principal_point_px)
    rays = np.column_stack(
        [(ideal - camera.principal_point_px) / camera.array.focal_px, np.ones(len(ends))]
    )
    rays /= np.linalg.norm(rays, axis=1, keepdims=True)
    cosines = np.einsum("nj,nj->n", rays[::2], rays[1::2])
    return [float(angle) for angle in np.rad2deg(np.arccos(np.clip(cosines, -1.0, 1.0)))]


def measure_corner_distortion(camera: PlenopticCamera) -> float:
    """Return by how many pixels the distortion moves the corner that it moves most."""
    width, height = camera.image_size
    corners = np.array([(x, y) for x in (-0.5, width - 0.5) for y in (-0.5, height - 0.5)])
    ideal = camera.distortion.undistort(corners, camera.principal_point_px)
    return float(np.linalg.norm(corners - ideal, axis=1).max())


def describe_command(arguments: Sequence[str] | None = None) -> str | None:
    """Return the command that this process runs, as it was typed; None if it is not lifcal's.

    Parameters
    ----------
    arguments : sequence of str, optional
        `sys.argv` without.
    """
    words = sys.argv if arguments is None else arguments
    if not words:
        return None
    program = Path(words[0])
    named = program.stem == "lifcal" or program.parts[-2:] == ("lifcal", "__main__.py")
    return shlex.join(["lifcal", *words[1:]]) if named else None
