"""The camera of the totally focused images in OpenCV's terms: K and distortion coefficients.

A totally focused image is a pinhole image with focal length F and principal point c, distorted as
the raw is. OpenCV distorts in the same direction as lifcal, from ideal to recorded coordinates, but
in coordinates that are divided by the focal length. Brown's coefficients are therefore rescaled
exactly; other models are fitted over the image.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lifcal.arrays import FloatArray, read_only
from lifcal.camera.distortion import BrownDistortion, NoDistortion
from lifcal.errors import EstimationError

if TYPE_CHECKING:
    from lifcal.camera.model import PlenopticCamera

LARGEST_ERROR_PX = 0.1
"""Largest error of fitted coefficients, anywhere in the image, that is accepted. It is about the
accuracy with which points are measured."""
_SMALL_ERROR_PX = 0.01
"""Error up to which a fit with fewer coefficients is preferred to one with more."""
_GRID = 65
"""Number of points along each side of the image at which coefficients are fitted."""


@dataclass(frozen=True, eq=False)
class OpencvCamera:
    """A camera as OpenCV describes it; pixel centers are integers.

    Parameters
    ----------
    image_size : (int, int)
        Width and height.
    matrix : (3, 3) float64
        K: focal lengths and principal point.
    distortion : (4,), (5,) or (8,) float64
        k1, k2, p1, p2, then k3, then k4, k5, k6.
    largest_error_px : float
        Largest distance, over the image, between the projections of a point by this camera and by
        lifcal's. If the coefficients were converted exactly and not fitted, it is 0 up to rounding.
    """

    image_size: tuple[int, int]
    matrix: FloatArray
    distortion: FloatArray
    largest_error_px: float

    def project(self, slopes: FloatArray) -> FloatArray:
        """Project points, given as (x/z, y/z), (n, 2), by OpenCV's formulas to px, (n, 2)."""
        k1, k2, p1, p2, k3, k4, k5, k6 = np.pad(self.distortion, (0, 8 - len(self.distortion)))
        x, y = slopes.T
        q = x * x + y * y
        radial = (1 + q * (k1 + q * (k2 + q * k3))) / (1 + q * (k4 + q * (k5 + q * k6)))
        distorted = [
            x * radial + 2 * p1 * x * y + p2 * (q + 2 * x * x),
            y * radial + p1 * (q + 2 * y * y) + 2 * p2 * x * y,
            np.ones_like(x),
        ]
        found: FloatArray = (self.matrix[:2] @ np.array(distorted)).T
        return found


def make_opencv_camera(
    camera: PlenopticCamera, scale: float = 0.5, n_terms: Sequence[int] = (5, 8)
) -> OpencvCamera:
    """Return the camera of the totally focused images, with their distortion.

    Parameters
    ----------
    camera : PlenopticCamera
    scale : float
        Size of the images relative to the raw.
    n_terms : sequence of int
        Numbers of coefficients that may be used, 4, 5 or 8, ascending. The first one that agrees
        with the camera to 0.01 px is taken, otherwise the last one.

    Raises
    ------
    EstimationError
        If no coefficients agree with the camera to 0.1 px over the whole image.
    """
    pinhole = camera.pinhole(scale)
    matrix = np.array(
        [[pinhole.fx, 0.0, pinhole.cx], [0.0, pinhole.fy, pinhole.cy], [0.0, 0.0, 1.0]]
    )
    size = (pinhole.width, pinhole.height)
    width, height = camera.image_size
    xs, ys = np.meshgrid(np.linspace(0, width - 1, _GRID), np.linspace(0, height - 1, _GRID))
    raw = np.column_stack([xs.ravel(), ys.ravel()])
    center, focal = camera.principal_point_px, camera.array.focal_px
    und = (camera.distortion.undistort(raw, center) - center) / focal
    known = np.isfinite(und).all(axis=1)
    if not known.any():
        raise EstimationError("the distortion has no inverse anywhere in the image", stage="export")
    und, recorded = und[known], (raw[known] - center) / focal
    for count in n_terms:
        terms = _convert(camera, count)
        if terms is None:
            terms = _fit_linear(und, recorded, count) if count < 8 else _fit_rational(und, recorded)
        found = OpencvCamera(size, read_only(matrix), read_only(terms), 0.0)
        apart = found.project(und) - (recorded * pinhole.fx + matrix[:2, 2])
        error_px = float(np.hypot(*apart.T).max())
        if error_px <= _SMALL_ERROR_PX:
            break
    if error_px > LARGEST_ERROR_PX:
        raise EstimationError(
            f"{len(found.distortion)} coefficients of OpenCV's model miss the distortion "
            f"{camera.distortion.name!r} of this camera by up to {error_px:.2g} px "
            f"(at most {LARGEST_ERROR_PX} px are allowed). Use images without distortion "
            "(--undistorted)",
            stage="export",
            evidence={"largest_error_px": error_px},
        )
    return OpencvCamera(size, found.matrix, found.distortion, error_px)


def _convert(camera: PlenopticCamera, count: int) -> FloatArray | None:
    """Return coefficients that represent the camera's distortion exactly, or None."""
    model, focal = camera.distortion, camera.array.focal_px
    terms = np.zeros(count)
    if isinstance(model, NoDistortion):
        return terms
    if not isinstance(model, BrownDistortion) or (count < 5 and model.k2 != 0.0):
        return None
    terms[:4] = (model.k0 * focal**2, model.k1 * focal**4, model.p1 * focal, model.p0 * focal)
    terms[4:5] = model.k2 * focal**6
    return terms


def _fit_linear(und: FloatArray, recorded: FloatArray, count: int) -> FloatArray:
    """Return k1, k2, p1, p2 and perhaps k3 by linear least squares."""
    x, y = und.T
    q = x * x + y * y
    columns = [
        np.concatenate([x * q, y * q]),
        np.concatenate([x * q**2, y * q**2]),
        np.concatenate([2 * x * y, q + 2 * y * y]),
        np.concatenate([q + 2 * x * x, 2 * x * y]),
        np.concatenate([x * q**3, y * q**3]),
    ][:count]
    rows = np.column_stack(columns)
    sizes = np.linalg.norm(rows, axis=0)  # powers of the radius differ by orders of magnitude
    solution = np.linalg.lstsq(rows / sizes, (recorded - und).T.ravel(), rcond=None)[0]
    terms: FloatArray = solution / sizes
    return terms


def _fit_rational(und: FloatArray, recorded: FloatArray) -> FloatArray:
    """Return the eight coefficients of OpenCV's rational model, fitted to radii, with p1 = p2 = 0.

    The model is `r_d / r = (1 + k1 r^2 + ...) / (1 + k4 r^2 + ...)`.
    """
    r = np.hypot(*und.T)
    und_r, ratio = r[r > 0.0], np.hypot(*recorded.T)[r > 0.0] / r[r > 0.0]
    largest = und_r.max()
    powers = (und_r[:, None] / largest) ** [2, 4, 6]
    rows = np.column_stack([powers, -ratio[:, None] * powers]) * und_r[:, None]
    solution = np.linalg.lstsq(rows, (ratio - 1.0) * und_r, rcond=None)[0]
    radial = solution / np.tile(largest ** np.array([2.0, 4.0, 6.0]), 2)
    return np.array([*radial[:2], 0.0, 0.0, *radial[2:]])
