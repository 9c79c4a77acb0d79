"""How shading moves the image of a point that is out of focus.

Light that arrives obliquely is dimmer (cos^4 of its angle). A point out of focus is seen through
all of the micro aperture, and the part that it is seen through less obliquely counts more. So the
blurred spot is moved, in proportion to its blur. See docs/theory/camera-model.md,
"Focus times shading".
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from lifcal.arrays import FloatArray
from lifcal.camera import MicroLensGrid, compute_disc_overlap, focal_rho_behind_tilt
from lifcal.measure.prediction import MicroImages
from lifcal.reconstruction import Reconstruction

_SLOPE_STEP_PX = 1.0
"""The slope of a shift is taken between places this far before and behind a point. It is a part of
a window, over which the slope is used."""


def compute_shading_shifts(
    images: MicroImages,
    geometry: Reconstruction,
    grid: MicroLensGrid,
    array_to_sensor_px: float | None = None,
) -> FloatArray:
    """Return how far shading moves points from where they would be seen without it, (n, 2) px.

    Zero where the grid shows no shading, or has no discs or focal planes.

    Parameters
    ----------
    images : MicroImages
    geometry : Reconstruction
    grid : MicroLensGrid
    array_to_sensor_px : float or None
        B in px. None: that which the shading tells, to some 10 %.

    Notes
    -----
    A pixel at offset m in the micro image at C gets light from the point r of the micro aperture
    with the weight `w = cos^4`, whose angle has the tangent `s = (m + (B / L) (C - c) - r) / B`. So
    `d ln w / d r = 4 s / (B (1 + s^2))`, and the centroid of the aperture, a disc of radius a,
    moves by `a^2 / 4` of that. A defocus turns it into a shift on the sensor, as it does with the
    centroid of the overlap (`FocusTerm`). All lengths are in px, and `L = b_L0 + B` is F. From lens
    to lens, the slope of the brightness inside micro images changes by `-4 / (B L)` for each px:
    that tells B where there is no scale.
    """
    shifts = np.zeros((len(images), 2))
    discs, planes = grid.discs, grid.focal_planes
    if discs is None or planes is None or not discs.shading_px2 > 0.0:
        return shifts
    total = geometry.array.focal_px  # L
    distance = array_to_sensor_px or 4.0 / (discs.shading_px2 * total)
    kinds = grid.lens_types[images.lenses]
    centers = grid.centers_raw_px[images.lenses]
    off = images.places_px - centers + distance / total * (centers - geometry.principal_px)
    square = (off**2).sum(axis=1) / distance**2
    # The discs show the aperture smaller, by the factor `seen`.
    seen = total / (total - distance) / planes[kinds]
    micro = np.array(discs.micro_px)[kinds]
    # The weight is not linear over the aperture: its curvature takes off a^2 / B^2.
    aperture = (micro / (seen * distance)) ** 2
    lean = seen * aperture / (1.0 + square + aperture)
    defocus = 1.0 - planes[kinds] * images.rhos
    shifts[:] = (defocus * lean)[:, None] * off
    return shifts


def spread_windows(
    images: MicroImages,
    geometry: Reconstruction,
    grid: MicroLensGrid,
    array_to_sensor_px: float | None = None,
) -> MicroImages:
    """Return micro images whose surroundings are spread as shading spreads them.

    The tables of `measure` (`LensOptics`) move every pixel of a window to where a pinhole would
    have seen what it shows, but they know nothing of shading. Its shift changes over the window, so
    the window shows the texture a little larger or smaller. Where the rim of the micro image cuts
    the window off, that would be taken for a shift.

    Parameters
    ----------
    images : MicroImages
    geometry : Reconstruction
    grid : MicroLensGrid
    array_to_sensor_px : float or None
        As for `compute_shading_shifts`.
    """

    def left_out(places_px: FloatArray) -> FloatArray:
        moved = replace(images, places_px=places_px)
        return compute_shading_shifts(moved, geometry, grid, array_to_sensor_px)

    spread = np.empty((len(images), 2, 2))
    for axis, step in enumerate(_SLOPE_STEP_PX * np.eye(2)):
        ahead, behind = left_out(images.places_px + step), left_out(images.places_px - step)
        spread[:, :, axis] = (ahead - behind) / (2.0 * _SLOPE_STEP_PX)
    spread += np.eye(2)
    return replace(
        images,
        jacobians=np.matmul(spread, images.jacobians),
        tilts=np.einsum("nij,nj->ni", spread, images.tilts),
    )


def compute_tilt_shifts(
    images: MicroImages, geometry: Reconstruction, grid: MicroLensGrid
) -> FloatArray:
    """Return how far a tilted array moves blurred points by its apertures, (n, 2) px.

    Where the array is farther from the sensor by the share tau, the main aperture is seen larger by
    it through a micro lens, and the micro aperture smaller, because the lens is in focus at another
    virtual depth: `1 - 1 / u_T` grows by tau. So blurred points are moved by another part of the
    aperture than `FocusTerm` says, which knows the other focal plane but has the discs of the whole
    grid. Zero without a tilt, discs or focal planes.
    """
    shifts = np.zeros((len(images), 2))
    discs, planes = grid.discs, grid.focal_planes
    if discs is None or planes is None or geometry.array_tilt is None:
        return shifts
    kinds = grid.lens_types[images.lenses]
    recorded = grid.centers_raw_px[images.lenses]
    tau = geometry.tau(geometry.distortion.undistort(recorded, geometry.principal_px))
    inverse = focal_rho_behind_tilt(1.0 / planes[kinds], tau)
    micro = np.array(discs.micro_px)[kinds]
    off = images.places_px - recorded
    distance = np.hypot(off[:, 0], off[:, 1])
    _, own = compute_disc_overlap(
        micro * inverse * planes[kinds], discs.main_px * (1.0 + tau), distance
    )
    _, usual = compute_disc_overlap(micro, discs.main_px, distance)
    defocus = 1.0 - images.rhos / inverse
    outward = defocus * np.nan_to_num(own - usual)
    shifts[:] = (outward / np.maximum(distance, 1e-9))[:, None] * off
    return shifts
