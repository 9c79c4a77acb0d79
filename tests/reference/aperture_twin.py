"""Reference for apertures by brute force: dense grids of points and traced rays, no closed forms.

The accuracy is about the width of a grid cell: 1e-3 of the radius for 1000 samples across.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]


class Spot(NamedTuple):
    """Rays of one object point through one micro lens: one row per sampled aperture point."""

    offset_mm: FloatArray  # (n, 2) where each ray meets the micro aperture, from its centre
    main_point_mm: FloatArray  # (n, 2) where it met the main lens, from the axis
    seen_mm: FloatArray  # (n, 2) where it lands, from the micro-image centre
    passes: npt.NDArray[np.bool_]  # (n,) whether the main aperture let it through


def disc_grid(radius: float, samples: int) -> tuple[FloatArray, float]:
    """Centres of the cells of a square grid that lie in a disc about 0, and the area of a cell."""
    cell = 2.0 * radius / samples
    line = -radius + cell * (np.arange(samples) + 0.5)
    x, y = np.meshgrid(line, line)
    inside = x**2 + y**2 <= radius**2
    return np.column_stack([x[inside], y[inside]]), cell**2


def disc_overlap(
    center_a: npt.ArrayLike,
    radius_a: float,
    center_b: npt.ArrayLike,
    radius_b: float,
    samples: int = 1000,
) -> tuple[float, FloatArray]:
    """Return area and centroid of the overlap of two discs; without overlap the centroid is NaN."""
    a, b = np.asarray(center_a, dtype=float), np.asarray(center_b, dtype=float)
    if radius_b < radius_a:  # sample the smaller disc, because its cells are finer
        a, b, radius_a, radius_b = b, a, radius_b, radius_a
    grid, cell_area = disc_grid(radius_a, samples)
    points = grid + a
    shared = points[((points - b) ** 2).sum(axis=1) <= radius_b**2]
    if len(shared) == 0:
        return 0.0, np.array([np.nan, np.nan])
    return len(shared) * cell_area, shared.mean(axis=0)


def trace_spot(
    m0_mm: npt.ArrayLike,
    v: float,
    v_T: float,
    micro_radius: float,
    main_radius: float,
    b_L0: float,
    B: float,
    lens_mm: npt.ArrayLike = (0.0, 0.0),
    samples: int = 401,
) -> Spot:
    """Trace the rays of one object point through a densely sampled micro aperture.

    Parameters
    ----------
    m0_mm : (2,)
        Where the ray through the micro lens' centre meets the sensor, from the micro-image centre,
        in the axes of the sensor. (Offsets in raw px have the opposite sign, but the ratio seen/m0
        is the same.)
    v : float
        The point's virtual depth: its image by the main lens is v B behind the micro lenses.
    v_T : float
        Virtual depth at which the micro lens is in focus: 1/f_m = (1 - 1/v_T) / B.
    micro_radius, main_radius : float
        Aperture radii of the micro lens and of the main lens, mm.
    b_L0, B : float
        Main lens to micro lenses, and micro lenses to sensor, mm.
    lens_mm : (2,)
        The micro lens' centre, from the axis.
    samples : int
        Number of samples across the micro aperture.
    """
    lens = np.asarray(lens_mm, dtype=float)
    offset, _ = disc_grid(micro_radius, samples)
    chief_slope = (lens - 0.0) / b_L0  # from the centre of the main lens to the lens' centre
    image_center = lens + B * chief_slope
    sensor_point = image_center + np.asarray(m0_mm, dtype=float)
    image = lens + (sensor_point - lens) / B * (v * B)  # on the straight ray through the centre

    lens_point = lens + offset
    slope_before = (image - lens_point) / (v * B)  # all rays go to (or come from) the image point
    main_point = lens_point - b_L0 * slope_before
    slope_after = slope_before - offset * (1.0 - 1.0 / v_T) / B
    landing = lens_point + B * slope_after
    return Spot(
        offset_mm=offset,
        main_point_mm=main_point,
        seen_mm=landing - image_center,
        passes=(main_point**2).sum(axis=1) <= main_radius**2,
    )


def spot_centroid(
    m0_mm: npt.ArrayLike,
    v: float,
    v_T: float,
    micro_radius: float,
    main_radius: float,
    b_L0: float,
    B: float,
    lens_mm: npt.ArrayLike = (0.0, 0.0),
    samples: int = 401,
) -> FloatArray:
    """Centroid, from the micro-image centre, of all rays that pass both apertures (`trace_spot`).

    The rays are evenly spread over the micro aperture, as light from a point is (paraxially). NaN
    if no ray passes.
    """
    spot = trace_spot(m0_mm, v, v_T, micro_radius, main_radius, b_L0, B, lens_mm, samples)
    if not spot.passes.any():
        return np.array([np.nan, np.nan])
    return spot.seen_mm[spot.passes].mean(axis=0)
