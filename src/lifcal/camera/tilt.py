"""The tilt of the micro-lens array against the sensor.

In a tilted array every micro lens has its own distances: B_k to the sensor and b_k to the main
lens, with B_k + b_k = L. For a plane array their ratio is exactly linear in the micro-image center:

    B_k / b_k = (B / b_L0) (1 + tau_k),     tau_k = t . (C_k - c)

Lens k is then still a projective pinhole, with

    alpha_k = (alpha + tau_k) / (1 + tau_k),     beta_k = beta / (1 + tau_k)

so it sees a point at the virtual depth u_k, with u_k - 1 = (u - 1) / (1 + tau_k). The derivation is
in docs/theory/camera-model.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lifcal.arrays import FloatArray
from lifcal.camera.pinhole_array import PhysicalParameters
from lifcal.errors import InputError

TILT_PARAMETERS = ("t_x", "t_y")
"""Order of the tilt in Jacobians and covariances."""

_LEAST_FOCAL_SHARE = 0.2

MOST_TILT_DEG = 5.0
"""No camera is built with a larger tilt; the array of a real one is within about 0.1 degrees."""


@dataclass(frozen=True)
class ArrayTilt:
    """The tilt of the array, given by the change of the ratio B_k / b_k across the image.

    Parameters
    ----------
    x_per_px, y_per_px : float
        t, the relative change of B_k / b_k for each raw pixel along x and y.
    """

    x_per_px: float
    y_per_px: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.x_per_px) and math.isfinite(self.y_per_px)):
            raise InputError(
                f"the tilt is ({self.x_per_px}, {self.y_per_px}) per px, needs finite numbers"
            )

    @classmethod
    def from_angles(
        cls, angles_deg: npt.ArrayLike, array_to_sensor_mm: float, pixel_size_mm: float
    ) -> ArrayTilt:
        """Build from the array's angles.

        Parameters
        ----------
        angles_deg : (2,) float64
            The array is the plane `z' = b_L0 + x' tan(angle_x) + y' tan(angle_y)`, with z' the
            distance from the main lens, and x', y' in the directions of the raw image's axes. A
            positive angle_x puts lenses with a larger x nearer to the sensor.
        array_to_sensor_mm : float
            B.
        pixel_size_mm : float
        """
        x, y = (float(angle) for angle in np.asarray(angles_deg, np.float64))
        if not max(abs(x), abs(y)) <= MOST_TILT_DEG:
            raise InputError(
                f"the array's tilt is ({x}, {y}) deg, needs at most {MOST_TILT_DEG:g} deg"
            )
        factor = -pixel_size_mm / array_to_sensor_mm
        return cls(factor * math.tan(math.radians(x)), factor * math.tan(math.radians(y)))

    def angles_deg(self, parameters: PhysicalParameters, pixel_size_mm: float) -> FloatArray:
        """Return the angles of `from_angles`, (2,), in degrees."""
        slopes = -self.as_vector() * parameters.array_to_sensor_mm / pixel_size_mm
        return np.degrees(np.arctan(slopes)) + 0.0  # no negative zeros

    def as_vector(self) -> FloatArray:
        """Return the values in the order of TILT_PARAMETERS."""
        return np.array([self.x_per_px, self.y_per_px])

    def at(self, points_und_px: npt.ArrayLike, principal_point_px: npt.ArrayLike) -> FloatArray:
        """Return tau at undistorted image points, (...,)."""
        offsets = np.asarray(points_und_px, np.float64) - np.asarray(principal_point_px)
        return np.asarray(offsets @ self.as_vector())


def focal_rho_behind_tilt(focal_rho: FloatArray, tau: FloatArray) -> FloatArray:
    """Return the inverse virtual depth 1 / u at which lenses of a tilted array are in focus.

    All lenses of a type have one focal length. By the thin-lens equation, `1 - 1 / u_T` is then
    proportional to the distance B_k from the sensor.

    Parameters
    ----------
    focal_rho : (...) float64
        1 / u_T of the lenses' types, for lenses at the principal point.
    tau : (...) float64
        The relative change of B_k / b_k. It is taken for that of B_k, which is smaller by the
        fraction B / b_L0 of it.

    Returns
    -------
    (...) float64
        Inverse virtual depths, never less than a fifth of `focal_rho`. No real array is tilted so
        much that this limit matters; it avoids a division by zero for a lens in focus at infinity.
    """
    own = 1.0 - (1.0 - focal_rho) * (1.0 + tau)
    least = _LEAST_FOCAL_SHARE * np.asarray(focal_rho)
    return np.asarray(np.where(own / focal_rho > _LEAST_FOCAL_SHARE, own, least))
