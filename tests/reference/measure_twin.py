"""Slow references of the measure room's kernels, written with functions of NumPy and SciPy.

They share no code with the package.
"""

import math

import numpy as np
from scipy.interpolate import BSpline
from scipy.optimize import brentq

from tests.reference.virtual_twin import BINS_PER_PX


def spline_weights(f, derivative=0):
    """Return the weights of the four cubic B-splines at the fraction f after a knot."""
    basis = BSpline.basis_element(np.arange(5.0), extrapolate=False)
    if derivative:
        basis = basis.derivative(derivative)
    return np.array([float(basis(f + 3.0 - k)) for k in range(4)])


def look_up(table, away):
    return np.interp(away * BINS_PER_PX, np.arange(len(table)), table)


def shifted_point(point, center, bend, table):
    """Return the point shifted by t with t = bend shift(m + t), which bisection finds."""
    away = point - center
    m = float(np.hypot(*away))

    def off(t):
        return t - bend * look_up(table, max(m + t, 0.0))

    t = brentq(off, -5.0, 5.0, xtol=1e-14)
    return center + away * (1.0 + t / m)


def pull_pixels(patch, corner, center, bend, tables, radius):
    """Return rows of (x, y, value, weight) of the pixels that can be used."""
    weights, shifts, drifts = tables
    rows = []
    for (j, i), value in np.ndenumerate(patch):
        away = np.array([corner[0] + i, corner[1] + j]) - center
        m = float(np.hypot(*away))
        if math.isnan(value) or m > radius:
            continue
        back = bend * look_up(shifts, m) + look_up(drifts, m)
        x, y = center + away * (1.0 - back / m if m > 1e-9 else 1.0)
        rows.append([x, y, value, look_up(weights, m)])
    return np.array(rows)


def texture_row(s, t, blur, spacing, size):
    """Return the weights of all coefficients in the texture's value at (s, t).

    A blur with a small covariance (2, 2) adds half of it times the second derivatives.
    """
    basis = BSpline.basis_element(np.arange(-2.0, 3.0), extrapolate=False)
    knots = np.arange(size) - 0.5 * (size - 1)

    def columns(value):
        return [
            np.nan_to_num(function(value / spacing - knots)) / spacing**order
            for order, function in enumerate((basis, basis.derivative(1), basis.derivative(2)))
        ]

    (w, dw, ew), (v, dv, ev) = columns(s), columns(t)
    row = np.outer(v, w) + 0.5 * blur[0, 0] * np.outer(v, ew) + 0.5 * blur[1, 1] * np.outer(ev, w)
    return (row + blur[0, 1] * np.outer(dv, dw)).ravel()


def texture_normal(pixels, place, inverse, blur, gain, offset, window, spacing, size):
    """Return the normal equations of a texture's coefficients from one image, dense."""
    matrix = np.zeros((size * size, size * size))
    rhs = np.zeros(size * size)
    for x, y, value, weight in pixels:
        st = inverse @ (np.array([x, y]) - place)
        if np.hypot(*st) > window:
            continue
        row = gain * texture_row(*st, blur, spacing, size)
        matrix += weight * np.outer(row, row)
        rhs += weight * row * (value - offset)
    return matrix, rhs


def fit_place(pixels, place, inverse, blur, coefficients, window, spacing, size, start):
    """Return (shift x, y, gain, offset) that fit an image best, found by SciPy on these pixels."""
    from scipy.optimize import least_squares

    away = (pixels[:, :2] - place) @ inverse.T
    inside = np.hypot(*away.T) <= window
    away, value, weight = away[inside], pixels[inside, 2], pixels[inside, 3]

    def residuals(x):
        moved = away - inverse @ x[:2]
        model = [texture_row(s, t, blur, spacing, size) @ coefficients for s, t in moved]
        return np.sqrt(weight) * (value - x[2] * np.array(model) - x[3])

    return least_squares(residuals, start, method="lm", xtol=1e-14, ftol=1e-14).x
