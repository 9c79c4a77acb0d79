"""The smooth bend of a micro-lens grid: how its centers deviate from a regular lattice.

Lens distortion, a tilted array or a tilted sensor move micro-image centers smoothly away from a
lattice, by tenths of a pixel to several pixels. See docs/grid.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from lifcal.arrays import FloatArray, IntArray, check_array, read_only
from lifcal.errors import InputError

LARGEST_ORDER = 7
"""Radial distortion with three terms is a polynomial of order seven in the coordinates."""


@dataclass(frozen=True, eq=False)
class GridBend:
    """A polynomial field of displacements, added to the centers of a lattice.

    The field is a sum of products of Legendre polynomials `P_i(x) P_j(y)` with `2 <= i + j <=
    order`, where x and y run from -1 to 1 over the image. Over the image these products are
    orthogonal to each other and to the constant and linear terms that the lattice stands for.
    Outside the image the field keeps the value of the nearest place on the image's border.

    Parameters
    ----------
    image_size : (int, int)
        Width and height of the raw image.
    coefficients_px : (n_terms, 2) float64
        Coefficients of the displacement along x and y, one term a row, in the order of `terms`.
        The number of rows gives the order of the field, 2 to 7.
    covariance_px2 : (n_terms + 3, n_terms + 3) float64 or None
        Covariance of the coefficients along x, and in the same way along y. The first three rows
        and columns belong to the terms 1, x and y, whose coefficients the lattice holds. None if
        it is not known.
    """

    image_size: tuple[int, int]
    coefficients_px: FloatArray
    covariance_px2: FloatArray | None = None

    def __post_init__(self) -> None:
        width, height = self.image_size
        coefficients = check_array(
            self.coefficients_px, "bend coefficients", (None, 2), finite=True
        )
        counts = [count_terms(order) - 3 for order in range(2, LARGEST_ORDER + 1)]
        if len(coefficients) not in counts:
            raise InputError(
                f"the bend has {len(coefficients)} coefficients along each axis, needs "
                f"{', '.join(map(str, counts))} for a field of order 2 to {LARGEST_ORDER}"
            )
        object.__setattr__(self, "coefficients_px", read_only(coefficients.copy()))
        if not self.largest_px < 0.5 * min(width, height):
            raise InputError(
                f"the bend reaches {self.largest_px:g} px in an image of {width} x {height} px, "
                "needs less than half its shorter side"
            )
        if self.covariance_px2 is not None:
            n = len(coefficients) + 3
            covariance = check_array(self.covariance_px2, "bend covariance", (n, n), finite=True)
            if not (np.diag(covariance) >= 0.0).all():
                raise InputError("the bend covariance has a negative variance")
            object.__setattr__(self, "covariance_px2", read_only(covariance.copy()))

    @property
    def order(self) -> int:
        """The highest total order `i + j` of a term."""
        return int(self.terms.sum(axis=1).max())

    @cached_property
    def terms(self) -> IntArray:
        """The orders (i, j) along x and y of each term, (n_terms, 2)."""
        order = next(n for n in range(2, 8) if count_terms(n) - 3 == len(self.coefficients_px))
        return list_terms(order)[3:]

    @property
    def rms_px(self) -> float:
        """Root mean square length of the displacement over the image."""
        weights = 1.0 / (2.0 * self.terms + 1.0).prod(axis=1)
        return math.sqrt(float(weights @ (self.coefficients_px**2).sum(axis=1)))

    @property
    def largest_px(self) -> float:
        """A bound that no displacement is longer than."""
        return float(np.hypot(*np.abs(self.coefficients_px).sum(axis=0)))

    def at(self, places_px: npt.ArrayLike) -> FloatArray:
        """Return the displacement at places of the lattice, (n_places, 2), in px."""
        values = evaluate_terms(places_px, self.image_size, self.order)[:, 3:]
        found: FloatArray = values @ self.coefficients_px
        return found

    def sigma_at(self, places_px: npt.ArrayLike) -> FloatArray:
        """Return the standard deviation along one axis of lattice plus bend, (n_places,), in px.

        NaN where the covariance is not known.
        """
        values = evaluate_terms(places_px, self.image_size, self.order)
        if self.covariance_px2 is None:
            return np.full(len(values), np.nan)
        variance = np.einsum("ni,ij,nj->n", values, self.covariance_px2, values, optimize=True)
        found: FloatArray = np.sqrt(np.maximum(variance, 0.0))
        return found


def count_terms(order: int) -> int:
    """Return the number of terms of a polynomial in two variables, with constant and linear."""
    return (order + 1) * (order + 2) // 2


def list_terms(order: int) -> IntArray:
    """Return the orders (i, j) along x and y of all terms up to a total order, lowest first.

    The first three are the constant, x and y.
    """
    pairs = [(n - j, j) for n in range(order + 1) for j in range(n + 1)]
    return np.array(pairs, np.int64)


def evaluate_terms(places_px: npt.ArrayLike, image_size: tuple[int, int], order: int) -> FloatArray:
    """Return `P_i(x) P_j(y)` at places of an image, (n_places, n_terms); see `GridBend`."""
    places = check_array(places_px, "places_px", (None, 2))
    size = np.array(image_size, np.float64)
    unit = np.clip((2.0 * places + 1.0) / size - 1.0, -1.0, 1.0)
    by_x = np.polynomial.legendre.legvander(unit[:, 0], order)
    by_y = np.polynomial.legendre.legvander(unit[:, 1], order)
    i, j = list_terms(order).T
    found: FloatArray = by_x[:, i] * by_y[:, j]
    return found
