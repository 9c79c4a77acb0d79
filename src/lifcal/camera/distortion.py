"""Lens distortion on raw image coordinates, about the principal point.

As in the supplement of the paper, distortion acts on every point of the sensor: on observed points
and on micro-image centers alike. To add a model, write a class here, add it to `DISTORTION_MODELS`,
and add a branch to each of the kernels `distort_point`, `distort_by_parameters` and
`undistort_point`. Commands and files then accept its name; CONTRIBUTING.md lists the tests and
pages that name the models.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from lifcal.arrays import FloatArray, check_array, read_only
from lifcal.camera import _kernels
from lifcal.errors import ConfigError, InputError


class Distortion(ABC):
    """Interface of all distortion models.

    A model is a frozen dataclass whose fields are its coefficients, in the order of the columns of
    every Jacobian. All coefficients have default values, with which the model distorts nothing. The
    adjustment starts from these values. The names of the coefficients must differ from those of the
    other parameters of a camera.
    """

    name: ClassVar[str]
    """Name of the model in options and files."""
    model_id: ClassVar[int]
    """Number of the model in the kernels."""
    units: ClassVar[tuple[str, ...]]
    """Unit of each coefficient."""

    @classmethod
    def parameter_names(cls) -> tuple[str, ...]:
        """Return the names of the coefficients."""
        return tuple(field.name for field in fields(cls))  # type: ignore[arg-type]

    @cached_property
    def parameters(self) -> FloatArray:
        """The coefficients, (n_parameters,)."""
        values = np.array([getattr(self, name) for name in self.parameter_names()], np.float64)
        return read_only(values)

    @property
    def fold_radius_px(self) -> float:
        """Undistorted radius at which the distorted radius stops growing, or infinity.

        Beyond this fold, two undistorted points would have the same distorted point.
        """
        return float("inf")

    def with_parameters(self, parameters: npt.ArrayLike) -> Distortion:
        """Return the same model with other coefficients."""
        values = check_array(parameters, "parameters", (len(self.parameters),))
        return type(self)(*map(float, values))

    def distort(self, points_und_px: npt.ArrayLike, center_px: npt.ArrayLike) -> FloatArray:
        """Convert undistorted (ideal) to recorded raw coordinates.

        Parameters
        ----------
        points_und_px : (n_points, 2) float64
            Points to distort. NaN stays NaN. For points beyond `fold_radius_px` the result has no
            physical meaning.
        center_px : (2,) float64
            The principal point.

        Returns
        -------
        (n_points, 2) float64
        """
        points = check_array(points_und_px, "points_und_px", (None, 2))
        cx, cy = check_array(center_px, "center_px", (2,), finite=True)
        out = np.empty_like(points)
        _kernels.distort_points(self.model_id, self.parameters, cx, cy, points, out)
        return out

    def undistort(self, points_raw_px: npt.ArrayLike, center_px: npt.ArrayLike) -> FloatArray:
        """Convert recorded to undistorted (ideal) raw coordinates.

        Returns
        -------
        (n_points, 2) float64
            Undistorted points, exact to 1e-11 px; NaN where no point within `fold_radius_px` is
            distorted to the given one.
        """
        points = check_array(points_raw_px, "points_raw_px", (None, 2))
        cx, cy = check_array(center_px, "center_px", (2,), finite=True)
        out = np.empty_like(points)
        _kernels.undistort_points(
            self.model_id, self.parameters, self.fold_radius_px, cx, cy, points, out
        )
        return out

    def compute_jacobians(
        self, points_und_px: npt.ArrayLike, center_px: npt.ArrayLike
    ) -> tuple[FloatArray, FloatArray]:
        """Return the derivatives of `distort` with respect to the point and the coefficients.

        The derivative with respect to the center is the identity minus that with respect to the
        point.

        Returns
        -------
        by_point : (n_points, 2, 2) float64
        by_parameters : (n_points, 2, n_parameters) float64
        """
        points = check_array(points_und_px, "points_und_px", (None, 2))
        cx, cy = check_array(center_px, "center_px", (2,), finite=True)
        by_point = np.empty((len(points), 2, 2))
        by_parameters = np.empty((len(points), 2, len(self.parameters)))
        _kernels.distort_jacobians(
            self.model_id, self.parameters, cx, cy, points, by_point, by_parameters
        )
        return by_point, by_parameters


@dataclass(frozen=True)
class NoDistortion(Distortion):
    """A lens without distortion."""

    name: ClassVar[str] = "none"
    model_id: ClassVar[int] = _kernels.NO_DISTORTION
    units: ClassVar[tuple[str, ...]] = ()


@dataclass(frozen=True)
class BrownDistortion(Distortion):
    """Brown's model as in the paper's supplement: three radial terms, two tangential.

    With `x, y` relative to the principal point and `r` their distance, in px::

        x_d = x (1 + k0 r^2 + k1 r^4 + k2 r^6) + p0 (r^2 + 2 x^2) + 2 p1 x y
        y_d = y (1 + k0 r^2 + k1 r^4 + k2 r^6) + p1 (r^2 + 2 y^2) + 2 p0 x y

    OpenCV's (k1, k2, k3, p1, p2) on coordinates divided by the focal length are
    (k0 F^2, k1 F^4, k2 F^6, p1 F, p0 F).
    """

    name: ClassVar[str] = "brown"
    model_id: ClassVar[int] = _kernels.BROWN
    units: ClassVar[tuple[str, ...]] = ("px^-2", "px^-4", "px^-6", "px^-1", "px^-1")

    k0: float = 0.0
    k1: float = 0.0
    k2: float = 0.0
    p0: float = 0.0
    p1: float = 0.0

    def __post_init__(self) -> None:
        _check_finite(self)

    @cached_property
    def fold_radius_px(self) -> float:
        """Smallest radius where the radial part stops growing: 1 + 3 k0 r^2 + ... = 0."""
        # As a polynomial in q = 1 / r^2 it is monic, and the largest root q gives the smallest
        # radius.
        roots = np.roots([1.0, 3.0 * self.k0, 5.0 * self.k1, 7.0 * self.k2])
        real = roots.real[(np.abs(roots.imag) <= 1e-9 * np.abs(roots)) & (roots.real > 0)]
        return float(1.0 / np.sqrt(real.max())) if real.size else float("inf")


@dataclass(frozen=True)
class DivisionDistortion(Distortion):
    """The one-parameter division model, `x = x_d / (1 + strength r_d^2)`.

    Its inverse has a closed form. The one coefficient can describe even strong barrel distortion,
    for which it is negative.
    """

    name: ClassVar[str] = "division"
    model_id: ClassVar[int] = _kernels.DIVISION
    units: ClassVar[tuple[str, ...]] = ("px^-2",)

    strength: float = 0.0

    def __post_init__(self) -> None:
        _check_finite(self)

    @property
    def fold_radius_px(self) -> float:
        """Undistorted radius beyond which no recorded point exists."""
        return 0.5 / float(np.sqrt(self.strength)) if self.strength > 0 else float("inf")


def _check_finite(model: Distortion) -> None:
    for name, value in zip(model.parameter_names(), model.parameters, strict=True):
        if not np.isfinite(value):
            raise InputError(f"distortion coefficient {name} is {value}, needs a finite number")


DISTORTION_MODELS: Mapping[str, type[Distortion]] = {
    model.name: model for model in (NoDistortion, BrownDistortion, DivisionDistortion)
}


def make_distortion(name: str, parameters: Mapping[str, float] | None = None) -> Distortion:
    """Build a model by name; coefficients not given are zero.

    Raises
    ------
    ConfigError
        If the model or a coefficient is not known.
    """
    if name not in DISTORTION_MODELS:
        raise ConfigError.unknown("distortion model", name, DISTORTION_MODELS)
    model = DISTORTION_MODELS[name]
    values: dict[str, Any] = dict(parameters or {})
    for key in values:
        if key not in model.parameter_names():
            raise ConfigError.unknown(f"{name} coefficient", key, model.parameter_names())
    return model(**values)
