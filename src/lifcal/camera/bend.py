"""The smooth bend of a micro-lens grid: the deviation of its centers from a regular lattice.

Lens distortion, a tilted array or a tilted sensor move micro-image centers smoothly away from a
lattice, by tenths of a pixel to several pixels. See docs/theory/grid.md.
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
"""Highest order of a bend: radial distortion with three terms is a polynomial of order seven in the
coordinates."""
_BEYOND = 1.05
"""Limit up to which the polynomial is evaluated, in half image sizes from the middle. It is larger
than 1 because the bend can move a micro image into the image whose place in the lattice is
outside."""
_TILES = 64
"""Number of tiles for cross-validation; each is predicted from the others. A tile is several lenses
wide, which is also the extent over which errors of centers measured in images of a scene are
correlated. With fewer tiles, the bend in a corner would be undetermined when its tile is left
out."""
_POINTS_A_TERM = 10
"""Number of points needed per coefficient; with fewer, cross-validation cannot judge the order."""
_CLEAR_SIGMAS = 3.0
"""A higher order must predict better by this many standard errors of the difference. With two
standard errors, the two halves of the frames of one real recording got different orders, 6 and
3."""
_CLEAR_SHARE = 0.25
"""A higher order is also accepted if it reduces the sum of squares by this fraction. This finds a
bend in the corners alone: it concerns few tiles, so its standard error is large even if it is
clear."""
_FAR_SIGMAS = 10.0
"""Points that are off by more than this many sigmas get no weight: they show dust or the wrong
lens."""
_LITTLE = 1e-9
"""Regularization on the diagonal of the scaled normal equations; it has no visible effect."""
_MOST_ROUNDS, _SETTLED = 25, 1e-3
"""Largest number of reweighting rounds, and the mean change of a weight at which they end. Five
rounds are usual."""


@dataclass(frozen=True, eq=False)
class GridBend:
    """A polynomial field of displacements, added to the centers of a lattice.

    The field is a sum of products of Legendre polynomials `P_i(x) P_j(y)` with `2 <= i + j <=
    order`, where x and y run from -1 to 1 over the image. Over the image these products are
    orthogonal to each other and to the constant and linear terms that the lattice stands for.
    Beyond -1.05 and 1.05 the field keeps the value that it has there. So it is right for the lenses
    at the rim, and the polynomial cannot grow without bound outside.

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
        """An upper bound of the length of the displacements."""
        at_corner = np.polynomial.legendre.legvander(np.array([_BEYOND]), self.order)[0]
        highest = at_corner[self.terms].prod(axis=1)
        return float(np.hypot(*(highest @ np.abs(self.coefficients_px))))

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

    def list_errors(self, places_px: npt.ArrayLike, least_px: float) -> FloatArray:
        """Return principal components of the error of lattice plus bend, (n_errors, n_places).

        Each is a smooth field of displacements along one axis with the size of one standard
        deviation. The components are independent and sorted from large to small; their squares add
        up to the square of `sigma_at`. Those with a root mean square below `least_px` over the
        places are left out. Without a covariance there are none.
        """
        values = evaluate_terms(places_px, self.image_size, self.order)
        if self.covariance_px2 is None or not len(values):
            return np.empty((0, len(values)))
        # Principal components of the displacements, not of the coefficients: those depend on the
        # size of the polynomials.
        triangle = np.linalg.qr(values)[1]
        variances, axes = np.linalg.eigh(triangle @ self.covariance_px2 @ triangle.T)
        kept = np.flatnonzero(variances > len(values) * least_px**2)[::-1]
        inner = self.covariance_px2 @ triangle.T @ (axes[:, kept] / np.sqrt(variances[kept]))
        found: FloatArray = (values @ inner).T
        return found


@dataclass(frozen=True, eq=False)
class FieldFit:
    """A polynomial fitted to displacements, with its constant and linear terms.

    Parameters
    ----------
    image_size : (int, int)
    order : int
        The highest total order; 1 if no bend predicts the displacements better.
    coefficients_px : (n_terms, 2) float64
        Coefficients for x and y, in the order of `list_terms`.
    covariance_px2 : (n_terms, n_terms) float64
        Covariance of the coefficients along one axis, the mean of x and y.
    """

    image_size: tuple[int, int]
    order: int
    coefficients_px: FloatArray
    covariance_px2: FloatArray

    @property
    def bend(self) -> GridBend | None:
        """The terms of order 2 and higher, which a lattice cannot represent."""
        if self.order < 2:
            return None
        return GridBend(self.image_size, self.coefficients_px[3:], self.covariance_px2)

    @property
    def affine(self) -> tuple[FloatArray, FloatArray]:
        """The constant and linear terms: `shift` (2,) and `matrix` (2, 2).

        They move a place x, written as a row vector, by `shift + x matrix`.
        """
        constant, by_x, by_y = self.coefficients_px[:3]
        width, height = self.image_size
        matrix = np.stack([2.0 * by_x / width, 2.0 * by_y / height])
        shift = constant + by_x * (1.0 / width - 1.0) + by_y * (1.0 / height - 1.0)
        return shift, matrix


def fit_field(
    places_px: FloatArray,
    shifts_px: FloatArray,
    image_size: tuple[int, int],
    *,
    largest_order: int = LARGEST_ORDER,
) -> FieldFit:
    """Fit a smooth field to displacements; outliers get less weight.

    The order is chosen by cross-validation: each tile of the image is predicted from all others,
    and a higher order is taken only if its predictions are better by three times the standard error
    of the difference, or by a quarter. The covariance is a jackknife over the same tiles. Errors
    that neighboring lenses have in common, which the content of a scene causes, therefore neither
    raise the order nor make the covariance too small.

    Parameters
    ----------
    places_px, shifts_px : (n_points, 2) float64
        Places and their displacements; at least 6 points.
    image_size : (int, int)
    largest_order : int
        Orders above it are not tried; 0 fits a shift of all points.
    """
    most = min(largest_order, LARGEST_ORDER)
    while most > 1 and len(places_px) < _POINTS_A_TERM * count_terms(most):
        most -= 1
    values = evaluate_terms(places_px, image_size, most)
    # Columns that are orthogonal over the points: sums of products are then well conditioned.
    # Lower orders stay the first columns.
    triangle = np.linalg.qr(values)[1]
    basis = np.linalg.solve(triangle.T, values.T).T
    tiles = cut_tiles(places_px)
    sums = _sum_tiles(basis, shifts_px, _weigh(basis, shifts_px), tiles)
    best = min(most, 1)
    scores = sums.predict(count_terms(best))[1]
    for order in range(2, most + 1):
        trial = sums.predict(count_terms(order))[1]
        gain = scores - trial
        error = math.sqrt(len(gain)) * float(gain.std())
        if gain.sum() > min(_CLEAR_SIGMAS * error, _CLEAR_SHARE * float(scores.sum())):
            best, scores = order, trial
    n = count_terms(best)
    sums = _sum_tiles(basis[:, :n], shifts_px, _weigh(basis[:, :n], shifts_px), tiles)
    to_terms = np.linalg.inv(triangle[:n, :n])
    whole = to_terms @ np.linalg.solve(sums.normal.sum(axis=0), sums.right.sum(axis=0))
    spread = to_terms @ sums.predict(n)[0] - whole
    count = len(spread)
    covariance = (count - 1) / count * np.einsum("bix,bjx->ij", spread, spread) / 2.0
    if best == 0:
        whole = np.vstack([whole, np.zeros((2, 2))])
        covariance = np.pad(covariance, (0, 2))
    return FieldFit(image_size, max(best, 1), whole, covariance)


@dataclass(frozen=True, eq=False)
class _TileSums:
    """Normal equations of tiles: matrix (n, k, k), right side (n, k, 2), sum of squares (n,)."""

    normal: FloatArray
    right: FloatArray
    squares: FloatArray

    def predict(self, n_terms: int) -> tuple[FloatArray, FloatArray]:
        """Predict each tile from all others.

        Return the coefficients fitted without each tile, (n_tiles, n_terms, 2), and the weighted
        sum of squares of the prediction errors in that tile, (n_tiles,).
        """
        normal, right = self.normal[:, :n_terms, :n_terms], self.right[:, :n_terms]
        others = normal.sum(axis=0) - normal
        # A term that the other tiles do not determine is kept small.
        others += _LITTLE * np.trace(normal.sum(axis=0)) / n_terms * np.eye(n_terms)
        found = np.linalg.solve(others, right.sum(axis=0) - right)
        scores = self.squares + np.einsum("bix,bix->b", found, normal @ found - 2.0 * right)
        return found, scores


def _sum_tiles(
    basis: FloatArray, shifts_px: FloatArray, weights: FloatArray, tiles: IntArray
) -> _TileSums:
    order = np.argsort(tiles, kind="stable")
    parts = np.split(order, np.flatnonzero(np.diff(tiles[order])) + 1)
    weighted = weights[:, None] * basis
    return _TileSums(
        np.array([weighted[own].T @ basis[own] for own in parts]),
        np.array([weighted[own].T @ shifts_px[own] for own in parts]),
        np.array([float(weights[own] @ (shifts_px[own] ** 2).sum(axis=1)) for own in parts]),
    )


def cut_tiles(places_px: FloatArray) -> IntArray:
    """Return the tile of each point, (n_points,); about 64 square tiles cover the points."""
    low, high = places_px.min(axis=0), places_px.max(axis=0)
    extent = np.maximum(high - low, 1e-6)
    side = math.sqrt(float(extent.prod()) / _TILES)
    shape = np.maximum(np.rint(extent / side), 1.0).astype(np.int64)
    cells = np.minimum((places_px - low) / extent * shape, shape - 1.0).astype(np.int64)
    tiles: IntArray = np.unique(cells @ np.array([1, shape[0]]), return_inverse=True)[1]
    return tiles.ravel()


def _weigh(basis: FloatArray, shifts_px: FloatArray) -> FloatArray:
    """Return robust weights of points: Huber's weights, and zero for points that are far off."""
    weights = np.ones(len(basis))
    for _ in range(_MOST_ROUNDS):
        weighted = weights[:, None] * basis
        fitted = basis @ np.linalg.solve(weighted.T @ basis, weighted.T @ shifts_px)
        left = np.hypot(*(shifts_px - fitted).T)
        sigma = max(float(np.median(left)) / 1.1774, 1e-6)  # median of a Rayleigh distribution
        new = np.minimum(1.0, 1.5 * sigma / np.maximum(left, 1e-12))
        new[left > _FAR_SIGMAS * sigma] = 0.0
        settled = np.abs(new - weights).mean() < _SETTLED
        weights = new
        if settled:
            break
    return weights


def count_terms(order: int) -> int:
    """Return the number of terms of a polynomial in two variables, from the constant one on."""
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
    unit = np.clip((2.0 * places + 1.0) / size - 1.0, -_BEYOND, _BEYOND)
    by_x = np.polynomial.legendre.legvander(unit[:, 0], order)
    by_y = np.polynomial.legendre.legvander(unit[:, 1], order)
    i, j = list_terms(order).T
    found: FloatArray = by_x[:, i] * by_y[:, j]
    return found
