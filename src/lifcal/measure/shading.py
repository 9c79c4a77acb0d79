"""The shift of a point's image that shading causes.

Light that arrives obliquely is dimmer (by cos^4 of its angle). A defocused point is seen through
all of the micro aperture, and parts of the aperture through which light arrives less obliquely
contribute more. So the centroid of the blurred spot is shifted, in proportion to its blur. A pixel
is a small aperture as well: more of its light comes from its brighter side. See
docs/theory/camera-model.md, "Focus times shading".
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from lifcal.arrays import FloatArray
from lifcal.camera import MicroLensGrid, compute_disc_overlap, focal_rho_behind_tilt
from lifcal.measure.prediction import MicroImages
from lifcal.reconstruction import Reconstruction
from lifcal.virtual.optics import PIXEL_VARIANCE_PX2

_SLOPE_STEP_PX = 1.0
"""Step of the finite difference, on each side of a point, that gives the derivative of a shift. It
is smaller than the window over which the derivative is used."""


def compute_shading_shifts(
    images: MicroImages,
    geometry: Reconstruction,
    grid: MicroLensGrid,
    array_to_sensor_px: float | None = None,
    pixel_px2: float = PIXEL_VARIANCE_PX2,
) -> FloatArray:
    """Return the shifts of points that shading causes, (n, 2) px.

    They are zero if the grid shows no shading, or has no overlap discs or focal planes.

    Parameters
    ----------
    images : MicroImages
    geometry : Reconstruction
    grid : MicroLensGrid
    array_to_sensor_px : float or None
        B in px. If None, it is computed from the shading, with an accuracy of about 10 %.
    pixel_px2 : float
        Variance of a pixel along an axis, including what demosaicing adds.

    Notes
    -----
    A pixel at offset m in the micro image at C gets light from the point r of the micro aperture
    with the weight `w = cos^4` of an angle whose tangent is `s = (m + (B / L) (C - c) - r) / B`. So
    `d ln w / d r = 4 s / (B (1 + s^2))`, and the centroid of the aperture, a disc of radius a,
    is shifted by `a^2 / 4` times this. If the point is out of focus, this shifts its image on the
    sensor in the same way as the shift of the overlap's centroid does (`FocusTerm`). All lengths
    are in px, and `L = b_L0 + B` is F. The slope of the brightness inside a micro image changes
    with the position of the lens by `-4 / (B L)` for each px, from which B follows if there is no
    scale. Over the width of a pixel, the weight changes by the same derivative with the other sign.
    So the pixel shows what lies inward of its center, at a distance of the pixel's variance times
    `4 s / (B (1 + s^2))`.
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
    # On the sensor, the overlap disc of the micro aperture is enlarged by the factor `seen`.
    seen = total / (total - distance) / planes[kinds]
    micro = np.array(discs.micro_px)[kinds]
    # The weight is not linear over the aperture; its curvature reduces the shift by a^2 / B^2.
    aperture = (micro / (seen * distance)) ** 2
    lean = seen * aperture / (1.0 + square + aperture)
    defocus = 1.0 - planes[kinds] * images.rhos
    width = 4.0 * pixel_px2 / (distance**2 * (1.0 + square + aperture))
    shifts[:] = (defocus * lean + width)[:, None] * off
    return shifts


def spread_windows(
    images: MicroImages,
    geometry: Reconstruction,
    grid: MicroLensGrid,
    array_to_sensor_px: float | None = None,
    pixel_px2: float = PIXEL_VARIANCE_PX2,
) -> MicroImages:
    """Return micro images whose Jacobians include the magnification that shading causes.

    The tables of `measure` (`LensOptics`) move every pixel of a window to where a pinhole would
    have seen its content, but they do not include shading. The shift by shading changes over the
    window, so the window shows the texture slightly larger or smaller. Where the rim of the micro
    image cuts off a part of the window, this would bias the measured position.

    Parameters
    ----------
    images : MicroImages
    geometry : Reconstruction
    grid : MicroLensGrid
    array_to_sensor_px, pixel_px2 : float
        B in px and the variance of a pixel, as for `compute_shading_shifts`.
    """

    def left_out(places_px: FloatArray) -> FloatArray:
        moved = replace(images, places_px=places_px)
        return compute_shading_shifts(moved, geometry, grid, array_to_sensor_px, pixel_px2)

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
    """Return the shifts of blurred points due to changed overlap discs in a tilted array, (n, 2).

    Where the array is farther from the sensor by the fraction tau, the disc of the main aperture is
    larger by this fraction. The disc of the micro aperture is smaller, because the lens is in focus
    at another virtual depth: `1 - 1 / u_T` grows by tau. Blurred points are therefore shifted by
    another amount than `FocusTerm` computes, which uses the focal plane of each lens, but the same
    discs for the whole grid. The shifts are in px. They are zero if the geometry has no tilt, or if
    the grid has no overlap discs or no focal planes.
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
