"""The plenoptic camera as an array of projective pinholes, and conversions to and from it.

With the pixel size s, the parameters

    F = L / s,  alpha = (L / B) (1 - b_L0 / f_L),  beta = (L / B) b_L0,  L = b_L0 + B

turn the paper's model exactly into `x_R = C + (F (x, y) + (c - C) z) / (alpha z + beta)`. The
derivation is in docs/theory/camera-model.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lifcal.arrays import FloatArray
from lifcal.errors import InputError

PHYSICAL_PARAMETERS = ("f_L", "b_L0", "B", "c_x", "c_y")
"""Order of the physical parameters in Jacobians and covariances."""

ARRAY_PARAMETERS = ("F", "c_x", "c_y", "alpha", "beta")
"""Order of the pinhole-array parameters in Jacobians and covariances."""


@dataclass(frozen=True)
class PhysicalParameters:
    """The paper's five parameters.

    Parameters
    ----------
    focal_length_mm : float
        f_L, focal length of the main lens.
    lens_to_array_mm : float
        b_L0, distance from the main lens to the micro-lens array.
    array_to_sensor_mm : float
        B, distance from the micro-lens array to the sensor.
    principal_x_px, principal_y_px : float
        c, the principal point in raw pixels.
    """

    focal_length_mm: float
    lens_to_array_mm: float
    array_to_sensor_mm: float
    principal_x_px: float
    principal_y_px: float

    def __post_init__(self) -> None:
        for name, value in (
            ("focal length f_L", self.focal_length_mm),
            ("distance b_L0", self.lens_to_array_mm),
            ("distance B", self.array_to_sensor_mm),
        ):
            if not (math.isfinite(value) and value > 0.0):
                raise InputError(f"{name} is {value} mm, needs a positive number")
        if self.array_to_sensor_mm >= self.lens_to_array_mm:
            raise InputError(
                f"distance B ({self.array_to_sensor_mm} mm) is not smaller than b_L0 "
                f"({self.lens_to_array_mm} mm): the micro lenses sit just before the sensor. "
                "Are the two swapped?"
            )
        if not (math.isfinite(self.principal_x_px) and math.isfinite(self.principal_y_px)):
            raise InputError(
                f"principal point is ({self.principal_x_px}, {self.principal_y_px}) px, "
                "needs finite numbers"
            )

    def as_vector(self) -> FloatArray:
        """Return the values in the order of PHYSICAL_PARAMETERS."""
        return np.array(
            [
                self.focal_length_mm,
                self.lens_to_array_mm,
                self.array_to_sensor_mm,
                self.principal_x_px,
                self.principal_y_px,
            ]
        )

    def to_pinhole_array(self, pixel_size_mm: float) -> PinholeArray:
        """Return the equivalent pinhole array."""
        f, b0, b = self.focal_length_mm, self.lens_to_array_mm, self.array_to_sensor_mm
        ratio = (b0 + b) / b
        return PinholeArray(
            focal_px=(b0 + b) / pixel_size_mm,
            principal_x_px=self.principal_x_px,
            principal_y_px=self.principal_y_px,
            alpha=ratio * (1.0 - b0 / f),
            beta_mm=ratio * b0,
        )

    def array_jacobian(self, pixel_size_mm: float) -> FloatArray:
        """Return the derivative of ARRAY_PARAMETERS with respect to PHYSICAL_PARAMETERS, (5, 5)."""
        f, b0, b = self.focal_length_mm, self.lens_to_array_mm, self.array_to_sensor_mm
        ratio = (b0 + b) / b
        jacobian = np.zeros((5, 5))
        jacobian[0, 1] = jacobian[0, 2] = 1.0 / pixel_size_mm
        jacobian[1, 3] = jacobian[2, 4] = 1.0
        jacobian[3, 0] = ratio * b0 / f**2
        jacobian[3, 1] = (1.0 - b0 / f) / b - ratio / f
        jacobian[3, 2] = -(b0 / b**2) * (1.0 - b0 / f)
        jacobian[4, 1] = 1.0 + 2.0 * b0 / b
        jacobian[4, 2] = -((b0 / b) ** 2)
        return jacobian


@dataclass(frozen=True)
class PinholeArray:
    """The same camera as an array of projective pinholes.

    Depth can be computed from these parameters alone: `u = alpha + beta / z`.

    Parameters
    ----------
    focal_px : float
        F, the focal length of the totally focused image.
    principal_x_px, principal_y_px : float
        c, its principal point.
    alpha : float
        Virtual depth of a point at infinity.
    beta_mm : float
        Factor in `u = alpha + beta / z`; the only parameter that depends on the scale of the scene.
    """

    focal_px: float
    principal_x_px: float
    principal_y_px: float
    alpha: float
    beta_mm: float

    def as_vector(self) -> FloatArray:
        """Return the values in the order of ARRAY_PARAMETERS."""
        return np.array(
            [self.focal_px, self.principal_x_px, self.principal_y_px, self.alpha, self.beta_mm]
        )

    @classmethod
    def from_vector(cls, values: npt.ArrayLike) -> PinholeArray:
        """Build from values in the order of ARRAY_PARAMETERS."""
        return cls(*(float(value) for value in np.asarray(values, np.float64)))

    def to_physical(self, pixel_size_mm: float) -> PhysicalParameters:
        """Return the equivalent physical parameters.

        Raises
        ------
        InputError
            If no thin-lens camera has these values.
        """
        length = self.focal_px * pixel_size_mm
        if not (length > 0.0 and self.beta_mm > 0.0):
            raise InputError(
                f"F = {self.focal_px} px and beta = {self.beta_mm} mm need to be positive"
            )
        b = length**2 / (self.beta_mm + length)
        b0 = length - b
        remainder = 1.0 - self.alpha * b / length
        if not remainder > 0.0:
            raise InputError(
                f"alpha = {self.alpha} is impossible: it must be below 1 + b_L0 / B = "
                f"{length / b:.6g} for a main lens with a positive focal length (are known lengths "
                "in mm?)"
            )
        return PhysicalParameters(
            focal_length_mm=b0 / remainder,
            lens_to_array_mm=b0,
            array_to_sensor_mm=b,
            principal_x_px=self.principal_x_px,
            principal_y_px=self.principal_y_px,
        )

    def physical_jacobian(self, pixel_size_mm: float) -> FloatArray:
        """Return the derivative of PHYSICAL_PARAMETERS with respect to ARRAY_PARAMETERS, (5, 5)."""
        s = pixel_size_mm
        length = self.focal_px * s
        total = self.beta_mm + length
        b = length**2 / total
        b0 = length - b
        ratio = b / length  # B / L = L / (beta + L)
        remainder = 1.0 - self.alpha * ratio
        b_by = {"F": s * (2.0 * length / total - ratio**2), "beta": -(ratio**2)}
        b0_by = {"F": s - b_by["F"], "beta": -b_by["beta"]}
        ratio_by = {"F": s * self.beta_mm / total**2, "beta": -length / total**2}
        jacobian = np.zeros((5, 5))
        for column, name in ((0, "F"), (4, "beta")):
            jacobian[0, column] = (
                b0_by[name] / remainder + b0 * self.alpha * ratio_by[name] / remainder**2
            )
            jacobian[1, column] = b0_by[name]
            jacobian[2, column] = b_by[name]
        jacobian[0, 3] = b0 * ratio / remainder**2
        jacobian[3, 1] = jacobian[4, 2] = 1.0
        return jacobian
