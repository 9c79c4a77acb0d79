"""Compiled loops of the measure room: each track has one texture, each micro image one position.

The texture of a track is a cubic B-spline surface over (s, t), measured in raw pixels of a micro
image of the reference view, with the measured point at its origin. Micro image k shows it at

    p = place_k + shift_k + A_k (s, t),    A_k = jacobian_k + tilt_k slope^T

in recorded raw coordinates. The slope of the surface is common to all images of the track. Before
the fit, each pixel is moved to where a pinhole would have seen its content (see
`lifcal.virtual.optics`). Pixel values are compared as they were recorded: only the texture, which
many images determine together, is interpolated.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from lifcal.arrays import BoolArray, Float32Array, FloatArray, IntArray
from lifcal.geometry._kernels import take_median
from lifcal.threads import UNCOUNTED, in_parts
from lifcal.virtual._kernels_lenses import BINS_PER_PX

MEASURED = 0
TOO_FEW_PIXELS = 1
NO_AGREEMENT = 2
RAN_AWAY = 3

PIXEL_X, PIXEL_Y, PIXEL_VALUE, PIXEL_WEIGHT = 0, 1, 2, 3
PIXEL_COLUMNS = 4
"""Number of columns of a list of pixels: raw x and y at which a pinhole would see them, value, and
weight."""

FOUND_X, FOUND_Y, FOUND_GAIN, FOUND_OFFSET = 0, 1, 2, 3
FOUND_XX, FOUND_XY, FOUND_YY = 4, 5, 6
FOUND_SQUARE, FOUND_VARIATION, FOUND_PIXELS = 7, 8, 9
FOUND_COLUMNS = 10
"""Number of columns of the result for an image: shift in px, gain and offset of the brightness; the
information on the shift for noise of variance 1; the weighted sums of squares of the residuals and
of the image about its own mean; and the number of pixels."""

SLOPE_XX, SLOPE_XY, SLOPE_YY, SLOPE_X, SLOPE_Y = 0, 1, 2, 3, 4
SLOPE_SUMS = 5
"""Number of entries of the normal equations of a surface's slope: information (3), then right-hand
side (2)."""

_FIRST_STEPS = 3
"""Number of Gauss-Newton steps of an image in the first round. Later rounds start so close to the
solution that one step is enough."""
_LONGEST_STEP_PX = 0.7
"""Longest Gauss-Newton step, because the linear equations hold for less than a pixel."""
_FEWEST_PIXELS = 12
"""Smallest number of pixels of an image that is measured: three for each of its four unknowns."""
_UNKNOWNS = 4.0
"""Number of unknowns of an image (shift x and y, gain, offset), by which the degrees of freedom are
reduced."""
_LEAST_GAIN, _MOST_GAIN = 0.2, 5.0
"""Range of the gain between an image and the texture. Outside of it, the image shows something
else."""
_MOST_UNEXPLAINED = 0.5
"""Largest fraction of an image's variation that the texture may leave unexplained."""
_TEXTURE_MARGIN_PX = 0.75
"""Distance beyond the window up to which pixels still determine the texture, so that the window
stays on the texture when an image is shifted."""
_SMOOTHNESS = 1e-3
"""Weight of the differences of neighboring coefficients, relative to the mean information on a
coefficient. Coefficients that no pixel reaches follow their neighbors."""
_OVERSHOOT = 1.3
"""Factor by which the step of the slope is multiplied. The texture was fitted with the old slope
and adapts only in the next round, so the computed step is too small."""
_OPTIONS: Any = {"cache": True, "fastmath": {"contract", "reassoc", "nsz", "arcp"}}
"""Numba options of the loops over pixels. All their numbers are finite, so relaxed floating-point
rules change only the last digits."""


class OpticalTables(NamedTuple):
    """Tables over the lens type and the distance from the micro-image center, see `LensOptics`.

    Parameters
    ----------
    weights, shifts, drifts : (n_types, n_bins) float64
        Inverse noise variance of a pixel; displacement of a pixel caused by the aperture, and that
        caused by the pixel's width.
    radius : float
        Radius in px of the part of a micro image that is used.
    """

    weights: FloatArray
    shifts: FloatArray
    drifts: FloatArray
    radius: float


class Images(NamedTuple):
    """Micro images to measure, sorted by track; n of them.

    Parameters
    ----------
    patches : (n, side, side) float32
        Raw pixels; NaN where a pixel is not usable.
    corners : (n, 2) float64
        Raw x, y of each patch's first pixel.
    centers : (n, 2) float64
        Micro-image centers.
    places : (n, 2) float64
        Predicted positions of the points.
    starts : (n, 2) float64
        Shift from `places` at which the search starts, and which defines the texture's origin.
    anchored : (n,) bool
        Whether the start of an image is known to be the point itself.
    jacobians, tilts : (n, 2, 2) and (n, 2) float64
        See the module's docstring.
    types : (n,) int64
        Row of the optical tables.
    bends : (n,) float64
        Relative defocus, by which the tabulated shifts are multiplied.
    blurs : (n,) float64
        Variance of the blur along an axis, px^2.
    """

    patches: Float32Array
    corners: FloatArray
    centers: FloatArray
    places: FloatArray
    starts: FloatArray
    anchored: BoolArray
    jacobians: FloatArray
    tilts: FloatArray
    types: IntArray
    bends: FloatArray
    blurs: FloatArray


class SlopePrior(NamedTuple):
    """Prior of the surfaces' slopes: means (n_tracks, 2) and standard deviations (n_tracks,)."""

    means: FloatArray
    sigmas: FloatArray


class TextureGrid(NamedTuple):
    """Spacing in px of a texture's size x size spline coefficients."""

    spacing: float
    size: int


class Settings(NamedTuple):
    """Settings of a measurement, see `MeasureOptions`.

    Parameters
    ----------
    window : float
        Radius of the window around the point, in px of the texture.
    texture : TextureGrid
    pixel : float
        Variance of a pixel along an axis, px^2.
    rounds : int
    most_shift, most_misfit : float
    """

    window: float
    texture: TextureGrid
    pixel: float
    rounds: int
    most_shift: float
    most_misfit: float


class Patch(NamedTuple):
    """Usable pixels of one micro image, and the map from it to the texture.

    Parameters
    ----------
    pixels : (at least n, PIXEL_COLUMNS) float64
    n : int
        Number of pixels.
    inverse : (2, 2) float64
        Inverse of A, which maps raw pixels to the texture.
    curve : (3,) float64
        Result of `curve_texture`.
    """

    pixels: FloatArray
    n: int
    inverse: FloatArray
    curve: FloatArray


@njit(cache=True, error_model="numpy", fastmath=False, **UNCOUNTED)
def look_up(table, kind, away):
    """Return a table's value for a lens type at a distance in px, interpolated linearly.

    Beyond the last bin it is extrapolated linearly. It is NaN for a distance that is NaN or
    negative.
    """
    at = away * BINS_PER_PX
    if not at >= 0.0:
        return math.nan
    b = int(min(at, table.shape[1] - 2.0))
    return table[kind, b] + (at - b) * (table[kind, b + 1] - table[kind, b])


@in_parts(lambda points: len(points), least=256)
def shift_points(begin, end, points, centers, types, bends, shifts, out):
    """Fill `out` with positions in flat-fielded images; a pinhole would see the points at `points`.

    A point at distance m from its center is seen at m + t, where t = bend shift(m + t). The result
    is NaN for points that are NaN, or farther from the center than the table of shifts reaches.
    """
    reach = (shifts.shape[1] - 1.0) / BINS_PER_PX
    for k in range(begin, end):
        dx = points[k, 0] - centers[k, 0]
        dy = points[k, 1] - centers[k, 1]
        m = math.sqrt(dx * dx + dy * dy)
        if not m <= reach:
            out[k, 0] = math.nan
            out[k, 1] = math.nan
            continue
        t = 0.0
        for _ in range(12):
            t = bends[k] * look_up(shifts, types[k], max(m + t, 0.0))
        factor = 1.0 + t / m if m > 1e-9 else 1.0
        out[k, 0] = centers[k, 0] + dx * factor
        out[k, 1] = centers[k, 1] + dy * factor


@njit(**_OPTIONS, **UNCOUNTED)
def spline(f, w, d, e):
    """Fill the four weights of a cubic B-spline at f in [0, 1), and their first two derivatives."""
    g = 1.0 - f
    w[0] = g * g * g / 6.0
    w[1] = (4.0 - 6.0 * f * f + 3.0 * f * f * f) / 6.0
    w[2] = (4.0 - 6.0 * g * g + 3.0 * g * g * g) / 6.0
    w[3] = f * f * f / 6.0
    d[0] = -0.5 * g * g
    d[1] = -2.0 * f + 1.5 * f * f
    d[2] = 2.0 * g - 1.5 * g * g
    d[3] = 0.5 * f * f
    e[0] = g
    e[1] = 3.0 * f - 2.0
    e[2] = 3.0 * g - 2.0
    e[3] = f


@njit(cache=True, error_model="numpy", fastmath=False, **UNCOUNTED)
def on_texture(gs, gt, size):
    """Tell whether all 4 x 4 coefficients around a position exist; False for NaN."""
    return 1.0 <= gs < size - 2 and 1.0 <= gt < size - 2


@njit(**_OPTIONS, **UNCOUNTED)
def solve_band(matrix, rhs):
    """Solve a symmetric positive definite band system in place, by Cholesky's method.

    `matrix` (n, band) holds the lower half, with the entry of row i and column j at [i, band - 1 +
    j - i], so that the diagonal is the last column. Neighboring columns of a row lie side by side,
    and the compiler can multiply several of them at a time. Returns False if the system is not
    positive definite; both arguments are then partly overwritten.
    """
    n, band = matrix.shape
    last = band - 1
    for i in range(n):
        begin = max(0, i - last)
        row = matrix[i]
        mine = row[begin - i + last :]
        for j in range(begin, i + 1):
            others = matrix[j][begin - j + last :]
            total = mine[j - begin]
            for k in range(j - begin):
                total -= mine[k] * others[k]
            if i == j:
                if not total > 0.0:
                    return False
                mine[j - begin] = math.sqrt(total)
            else:
                mine[j - begin] = total / matrix[j, last]
        total = rhs[i]
        earlier = rhs[begin:i]
        for k in range(i - begin):
            total -= mine[k] * earlier[k]
        rhs[i] = total / matrix[i, last]
    for i in range(n - 1, -1, -1):
        begin = max(0, i - last)
        mine = matrix[i][begin - i + last :]
        earlier = rhs[begin:i]
        value = rhs[i] / matrix[i, last]
        rhs[i] = value
        for k in range(i - begin):
            earlier[k] -= mine[k] * value
    return True


@njit(cache=True, error_model="numpy", fastmath=False, **UNCOUNTED)
def pull_pixels(patch, corner, center, kind, bend, tables, pixels):
    """List the usable pixels of a patch, and return how many there are.

    `tables` is an `OpticalTables`. `pixels` (at least side^2, PIXEL_COLUMNS) gets the positions at
    which a pinhole would see them, values and weights.
    """
    weights, shifts, drifts, radius = tables.weights, tables.shifts, tables.drifts, tables.radius
    n = 0
    side = patch.shape[0]
    for j in range(side):
        for i in range(side):
            value = patch[j, i]
            if math.isnan(value):
                continue
            dx = corner[0] + i - center[0]
            dy = corner[1] + j - center[1]
            m = math.sqrt(dx * dx + dy * dy)
            if not m <= radius:
                continue
            back = bend * look_up(shifts, kind, m) + look_up(drifts, kind, m)
            factor = 1.0 - back / m if m > 1e-9 else 1.0
            pixels[n, PIXEL_X] = center[0] + dx * factor
            pixels[n, PIXEL_Y] = center[1] + dy * factor
            pixels[n, PIXEL_VALUE] = value
            pixels[n, PIXEL_WEIGHT] = look_up(weights, kind, m)
            n += 1
    return n


@njit(**_OPTIONS)
def add_to_texture(patch, place, gain, offset, window, texture, matrix, rhs):
    """Add an image's pixels to the normal equations of a texture's coefficients.

    `place` (2,) is the position of the texture's origin in the image; `matrix` and `rhs` are those
    of `solve_band`.
    """
    pixels, n, inverse, curve = patch.pixels, patch.n, patch.inverse, patch.curve
    spacing, size = texture.spacing, texture.size
    w = np.empty(4)
    v = np.empty(4)
    dw = np.empty(4)
    dv = np.empty(4)
    ew = np.empty(4)
    ev = np.empty(4)
    row = np.empty(16)
    half = 0.5 * (size - 1)
    last = matrix.shape[1] - 1
    xx, xy, yy = curve[0], curve[1], curve[2]
    for k in range(n):
        dx = pixels[k, PIXEL_X] - place[0]
        dy = pixels[k, PIXEL_Y] - place[1]
        s = inverse[0, 0] * dx + inverse[0, 1] * dy
        t = inverse[1, 0] * dx + inverse[1, 1] * dy
        if s * s + t * t > window * window:
            continue
        gs = s / spacing + half
        gt = t / spacing + half
        if not on_texture(gs, gt, size):
            continue
        i = int(gs)
        j = int(gt)
        spline(gs - i, w, dw, ew)
        spline(gt - j, v, dv, ev)
        for b in range(4):
            for a in range(4):
                blurred = xx * ew[a] * v[b] + xy * dw[a] * dv[b] + yy * w[a] * ev[b]
                row[4 * b + a] = w[a] * v[b] + blurred
        weight = pixels[k, PIXEL_WEIGHT] * gain * gain
        target = (pixels[k, PIXEL_VALUE] - offset) / gain
        first = (j - 1) * size + i - 1
        for b in range(16):
            r = first + (b // 4) * size + b % 4
            scaled = weight * row[b]
            rhs[r] += scaled * target
            for a in range(b + 1):
                c = first + (a // 4) * size + a % 4
                matrix[r, last + c - r] += scaled * row[a]


@njit(**_OPTIONS)
def fit_place(patch, start, coefficients, window, texture, steps, last, found):
    """Register one image with the texture: Gauss-Newton on its shift, gain and offset.

    `found` (FOUND_COLUMNS,) contains the start values of shift, gain and offset, and gets the
    result after `steps` steps. If `last` is 1, residuals and information are evaluated once more
    after the last step; if it is 0, they are those before it. Returns False if the image cannot be
    measured.
    """
    pixels, n, inverse, curve = patch.pixels, patch.n, patch.inverse, patch.curve
    spacing, size = texture.spacing, texture.size
    w = np.empty(4)
    v = np.empty(4)
    dw = np.empty(4)
    dv = np.empty(4)
    ew = np.empty(4)
    ev = np.empty(4)
    half = 0.5 * (size - 1)
    xx, xy, yy = curve[0], curve[1], curve[2]
    gain = found[FOUND_GAIN]
    offset = found[FOUND_OFFSET]
    normal = np.empty((4, 4))
    rhs = np.empty(4)
    row = np.empty(4)
    for turn in range(steps + last):
        normal[:] = 0.0
        rhs[:] = 0.0
        square = s0 = s1 = s2 = 0.0
        used = 0
        for k in range(n):
            # The window stays at its start position, so that every step uses the same pixels.
            dx = pixels[k, PIXEL_X] - start[0]
            dy = pixels[k, PIXEL_Y] - start[1]
            s = inverse[0, 0] * dx + inverse[0, 1] * dy
            t = inverse[1, 0] * dx + inverse[1, 1] * dy
            if s * s + t * t > window * window:
                continue
            s -= inverse[0, 0] * found[FOUND_X] + inverse[0, 1] * found[FOUND_Y]
            t -= inverse[1, 0] * found[FOUND_X] + inverse[1, 1] * found[FOUND_Y]
            gs = s / spacing + half
            gt = t / spacing + half
            if not on_texture(gs, gt, size):
                continue
            i = int(gs)
            j = int(gt)
            spline(gs - i, w, dw, ew)
            spline(gt - j, v, dv, ev)
            value = slope_s = slope_t = 0.0
            for b in range(4):
                at = (j - 1 + b) * size + i - 1
                along = slope = bend = 0.0
                for a in range(4):
                    along += w[a] * coefficients[at + a]
                    slope += dw[a] * coefficients[at + a]
                    bend += ew[a] * coefficients[at + a]
                value += (v[b] + yy * ev[b]) * along + xy * dv[b] * slope + xx * v[b] * bend
                slope_s += v[b] * slope
                slope_t += dv[b] * along
            slope_s /= spacing
            slope_t /= spacing
            row[0] = -gain * (slope_s * inverse[0, 0] + slope_t * inverse[1, 0])
            row[1] = -gain * (slope_s * inverse[0, 1] + slope_t * inverse[1, 1])
            row[2] = value
            row[3] = 1.0
            off = pixels[k, PIXEL_VALUE] - gain * value - offset
            weight = pixels[k, PIXEL_WEIGHT]
            for a in range(4):
                rhs[a] += weight * row[a] * off
                for b in range(a + 1):
                    normal[a, b] += weight * row[a] * row[b]
            square += weight * off * off
            s0 += weight
            s1 += weight * pixels[k, PIXEL_VALUE]
            s2 += weight * pixels[k, PIXEL_VALUE] * pixels[k, PIXEL_VALUE]
            used += 1
        found[FOUND_SQUARE] = square
        found[FOUND_VARIATION] = s2 - s1 * s1 / s0 if s0 > 0.0 else 0.0
        found[FOUND_PIXELS] = used
        if used < _FEWEST_PIXELS:
            return False
        # Eliminating gain and offset leaves the information on the shift.
        for a in range(4):
            for b in range(a):
                normal[b, a] = normal[a, b]
        det = normal[2, 2] * normal[3, 3] - normal[2, 3] * normal[2, 3]
        if not det > 1e-12 * normal[2, 2] * normal[3, 3]:
            return False
        i22 = normal[3, 3] / det
        i23 = -normal[2, 3] / det
        i33 = normal[2, 2] / det
        x2 = i22 * normal[0, 2] + i23 * normal[0, 3]
        x3 = i23 * normal[0, 2] + i33 * normal[0, 3]
        y2 = i22 * normal[1, 2] + i23 * normal[1, 3]
        y3 = i23 * normal[1, 2] + i33 * normal[1, 3]
        hxx = normal[0, 0] - x2 * normal[0, 2] - x3 * normal[0, 3]
        hxy = normal[0, 1] - x2 * normal[1, 2] - x3 * normal[1, 3]
        hyy = normal[1, 1] - y2 * normal[1, 2] - y3 * normal[1, 3]
        found[FOUND_XX] = hxx
        found[FOUND_XY] = hxy
        found[FOUND_YY] = hyy
        if turn == steps:
            return True
        bx = rhs[0] - x2 * rhs[2] - x3 * rhs[3]
        by = rhs[1] - y2 * rhs[2] - y3 * rhs[3]
        det = hxx * hyy - hxy * hxy
        if not det > 1e-6 * hxx * hyy:
            return False
        sx = (hyy * bx - hxy * by) / det
        sy = (hxx * by - hxy * bx) / det
        length = math.sqrt(sx * sx + sy * sy)
        if length > _LONGEST_STEP_PX:
            sx *= _LONGEST_STEP_PX / length
            sy *= _LONGEST_STEP_PX / length
        found[FOUND_X] += sx
        found[FOUND_Y] += sy
        r2 = rhs[2] - normal[0, 2] * sx - normal[1, 2] * sy
        r3 = rhs[3] - normal[0, 3] * sx - normal[1, 3] * sy
        gain += i22 * r2 + i23 * r3
        offset += i23 * r2 + i33 * r3
        found[FOUND_GAIN] = gain
        found[FOUND_OFFSET] = offset
        if not (_LEAST_GAIN < gain < _MOST_GAIN):
            return False
    return True


@njit(cache=True, error_model="numpy", fastmath=False, **UNCOUNTED)
def invert_affine(jacobian, tilt, slope, out):
    """Fill `out` with the inverse of jacobian + tilt slope^T; NaN if there is none."""
    a = jacobian[0, 0] + tilt[0] * slope[0]
    b = jacobian[0, 1] + tilt[0] * slope[1]
    c = jacobian[1, 0] + tilt[1] * slope[0]
    d = jacobian[1, 1] + tilt[1] * slope[1]
    det = a * d - b * c
    if det == 0.0:
        det = math.nan
    out[0, 0] = d / det
    out[0, 1] = -b / det
    out[1, 0] = -c / det
    out[1, 1] = a / det


@njit(cache=True, error_model="numpy", fastmath=False, **UNCOUNTED)
def curve_texture(inverse, blur, pixel, spacing, out):
    """Fill `out` (3,) with factors of the texture's second derivatives xx, xy, yy that model blur.

    A small blur adds half its covariance times the second derivatives to a value. The covariance is
    that of the image's blur and of its pixel (px^2, along an axis), transformed to the texture by
    `inverse`, minus that of a pixel of the reference view, which the texture contains already.
    """
    wide = blur + pixel
    scale = 0.5 / (spacing * spacing)
    i = inverse
    out[0] = scale * (wide * (i[0, 0] * i[0, 0] + i[0, 1] * i[0, 1]) - pixel)
    out[1] = 2.0 * scale * wide * (i[0, 0] * i[1, 0] + i[0, 1] * i[1, 1])
    out[2] = scale * (wide * (i[1, 0] * i[1, 0] + i[1, 1] * i[1, 1]) - pixel)


@njit(cache=True, error_model="numpy", fastmath=False, **UNCOUNTED)
def pin_origin(status, anchored, starts, jacobians, tilts, slope, found):
    """Subtract the displacement along the surface that all images of a track have in common.

    The texture and all its places can shift together without changing any residual (a gauge
    freedom), so the origin would drift from round to round. The common displacement is a least-
    squares mean, weighted by the images' information. If some images are anchored (their start is
    known to be the point itself), only those are averaged.
    """
    some = False
    for k in range(status.shape[0]):
        some = some or (anchored[k] and status[k] == MEASURED)
    n00 = n01 = n11 = b0 = b1 = 0.0
    for k in range(status.shape[0]):
        if status[k] != MEASURED or (some and not anchored[k]):
            continue
        a = jacobians[k, 0, 0] + tilts[k, 0] * slope[0]
        b = jacobians[k, 0, 1] + tilts[k, 0] * slope[1]
        c = jacobians[k, 1, 0] + tilts[k, 1] * slope[0]
        d = jacobians[k, 1, 1] + tilts[k, 1] * slope[1]
        hxx, hxy, hyy = found[k, FOUND_XX], found[k, FOUND_XY], found[k, FOUND_YY]
        dx = found[k, FOUND_X] - starts[k, 0]
        dy = found[k, FOUND_Y] - starts[k, 1]
        n00 += a * (hxx * a + hxy * c) + c * (hxy * a + hyy * c)
        n01 += a * (hxx * b + hxy * d) + c * (hxy * b + hyy * d)
        n11 += b * (hxx * b + hxy * d) + d * (hxy * b + hyy * d)
        gx = hxx * dx + hxy * dy
        gy = hxy * dx + hyy * dy
        b0 += a * gx + c * gy
        b1 += b * gx + d * gy
    det = n00 * n11 - n01 * n01
    if not det > 0.0:
        return
    s = (n11 * b0 - n01 * b1) / det
    t = (n00 * b1 - n01 * b0) / det
    lean = slope[0] * s + slope[1] * t
    for k in range(status.shape[0]):
        if status[k] == MEASURED:
            j = jacobians[k]
            found[k, FOUND_X] -= j[0, 0] * s + j[0, 1] * t + tilts[k, 0] * lean
            found[k, FOUND_Y] -= j[1, 0] * s + j[1, 1] * t + tilts[k, 1] * lean


@njit(**_OPTIONS)
def add_to_slope(patch, found, place, tilt, coefficients, window, texture, sums):
    """Add an image's information on the surface's slope to `sums` (SLOPE_SUMS,).

    The image's position, gain and offset are unknown as well and are eliminated.
    """
    pixels, n, inverse, curve = patch.pixels, patch.n, patch.inverse, patch.curve
    spacing, size = texture.spacing, texture.size
    w = np.empty(4)
    v = np.empty(4)
    dw = np.empty(4)
    dv = np.empty(4)
    ew = np.empty(4)
    ev = np.empty(4)
    row = np.empty(6)
    normal = np.zeros((6, 6))
    rhs = np.zeros(6)
    half = 0.5 * (size - 1)
    xx, xy, yy = curve[0], curve[1], curve[2]
    # A change of the slope moves the texture at (s, t) by tilt (slope . (s, t)) in the image.
    move_s = inverse[0, 0] * tilt[0] + inverse[0, 1] * tilt[1]
    move_t = inverse[1, 0] * tilt[0] + inverse[1, 1] * tilt[1]
    for k in range(n):
        dx = pixels[k, PIXEL_X] - place[0] - found[FOUND_X]
        dy = pixels[k, PIXEL_Y] - place[1] - found[FOUND_Y]
        s = inverse[0, 0] * dx + inverse[0, 1] * dy
        t = inverse[1, 0] * dx + inverse[1, 1] * dy
        if s * s + t * t > window * window:
            continue
        gs = s / spacing + half
        gt = t / spacing + half
        if not on_texture(gs, gt, size):
            continue
        i = int(gs)
        j = int(gt)
        spline(gs - i, w, dw, ew)
        spline(gt - j, v, dv, ev)
        value = slope_s = slope_t = 0.0
        for b in range(4):
            at = (j - 1 + b) * size + i - 1
            along = slope = bend = 0.0
            for a in range(4):
                along += w[a] * coefficients[at + a]
                slope += dw[a] * coefficients[at + a]
                bend += ew[a] * coefficients[at + a]
            value += (v[b] + yy * ev[b]) * along + xy * dv[b] * slope + xx * v[b] * bend
            slope_s += v[b] * slope
            slope_t += dv[b] * along
        slope_s *= -found[FOUND_GAIN] / spacing
        slope_t *= -found[FOUND_GAIN] / spacing
        change = slope_s * move_s + slope_t * move_t
        row[0] = slope_s * inverse[0, 0] + slope_t * inverse[1, 0]
        row[1] = slope_s * inverse[0, 1] + slope_t * inverse[1, 1]
        row[2] = value
        row[3] = 1.0
        row[4] = change * s
        row[5] = change * t
        off = pixels[k, PIXEL_VALUE] - found[FOUND_GAIN] * value - found[FOUND_OFFSET]
        weight = pixels[k, PIXEL_WEIGHT]
        for a in range(6):
            rhs[a] += weight * row[a] * off
            for b in range(a + 1):
                normal[a, b] += weight * row[a] * row[b]
    # Eliminate position, gain and offset, the first four unknowns.
    for a in range(4):
        if not normal[a, a] > 1e-12:
            return
        for c in range(a + 1, 6):
            factor = normal[c, a] / normal[a, a]
            rhs[c] -= factor * rhs[a]
            for b in range(a + 1, c + 1):
                normal[c, b] -= factor * normal[b, a]
    sums[SLOPE_XX] += max(normal[4, 4], 0.0)
    sums[SLOPE_XY] += normal[5, 4]
    sums[SLOPE_YY] += max(normal[5, 5], 0.0)
    sums[SLOPE_X] += rhs[4]
    sums[SLOPE_Y] += rhs[5]


@in_parts(lambda offsets: len(offsets) - 1)
def measure_tracks(
    begin, end, offsets, images, tables, prior, settings, slopes, found, status, noises
):
    """Measure every image of every track.

    The images of track i are offsets[i] to offsets[i + 1]. `images` is an `Images`, `tables` an
    `OpticalTables`, `prior` a `SlopePrior`, `settings` a `Settings`. `slopes` (n_tracks, 2)
    contains the start values and gets the result. `found` (n_images, FOUND_COLUMNS) gets the shifts
    from `images.places` and the other columns, `status` (n_images,) gets MEASURED or the reason why
    not, and `noises` (n_tracks,) gets the variance of the difference between a pixel in the middle
    of a micro image and the texture.
    """
    patches, places, starts = images.patches, images.places, images.starts
    jacobians, tilts, blurs = images.jacobians, images.tilts, images.blurs
    window, texture, rounds = settings.window, settings.texture, settings.rounds
    spacing, size = texture.spacing, texture.size
    band = 3 * size + 4
    side = patches.shape[1]
    for track in range(begin, end):
        matrix = np.empty((size * size, band))
        rhs = np.empty(size * size)
        first = offsets[track]
        last = offsets[track + 1]
        n_images = last - first
        pixels = np.empty((max(n_images, 1), side * side, PIXEL_COLUMNS))
        counts = np.empty(n_images, np.int64)
        place = np.empty(2)
        for k in range(n_images):
            image = first + k
            counts[k] = pull_pixels(
                patches[image],
                images.corners[image],
                images.centers[image],
                images.types[image],
                images.bends[image],
                tables,
                pixels[k],
            )
            if not blurs[image] <= window * window:  # too blurred to show detail in the window
                counts[k] = 0
            for a in range(FOUND_COLUMNS):
                found[image, a] = 0.0
            found[image, FOUND_X] = starts[image, 0]
            found[image, FOUND_Y] = starts[image, 1]
            found[image, FOUND_GAIN] = 1.0
            status[image] = MEASURED
        noises[track] = math.nan
        inverse = np.empty((max(n_images, 1), 2, 2))
        curves = np.empty((max(n_images, 1), 3))
        sums = np.empty(SLOPE_SUMS)
        misfits = np.empty(n_images)
        for turn in range(rounds):
            matrix[:] = 0.0
            rhs[:] = 0.0
            for k in range(n_images):
                image = first + k
                invert_affine(jacobians[image], tilts[image], slopes[track], inverse[k])
                curve_texture(inverse[k], blurs[image], settings.pixel, spacing, curves[k])
                if status[image] != MEASURED:
                    continue
                place[0] = places[image, 0] + found[image, FOUND_X]
                place[1] = places[image, 1] + found[image, FOUND_Y]
                add_to_texture(
                    Patch(pixels[k], counts[k], inverse[k], curves[k]),
                    place,
                    found[image, FOUND_GAIN],
                    found[image, FOUND_OFFSET],
                    window + _TEXTURE_MARGIN_PX,
                    texture,
                    matrix,
                    rhs,
                )
            total = 0.0
            for r in range(size * size):
                total += matrix[r, band - 1]
            ridge = _SMOOTHNESS * total / (size * size) + 1e-12
            # Penalize differences of neighboring coefficients; see `_SMOOTHNESS`.
            for r in range(size * size):
                for step in (1, size):
                    if r >= step and (step == size or r % size > 0):
                        matrix[r, band - 1] += ridge
                        matrix[r - step, band - 1] += ridge
                        matrix[r, band - 1 - step] -= ridge
                matrix[r, band - 1] += 1e-6 * ridge
            if not solve_band(matrix, rhs):
                for image in range(first, last):
                    status[image] = NO_AGREEMENT
                break
            n_good = 0
            square = 0.0
            freedom = 0.0
            for k in range(n_images):
                image = first + k
                good = fit_place(
                    Patch(pixels[k], counts[k], inverse[k], curves[k]),
                    places[image],
                    rhs,
                    window,
                    texture,
                    _FIRST_STEPS if turn == 0 else 1,
                    1 if turn == rounds - 1 else 0,
                    found[image],
                )
                if not good:
                    status[image] = TOO_FEW_PIXELS
                    found[image, FOUND_X] = starts[image, 0]
                    found[image, FOUND_Y] = starts[image, 1]
                    found[image, FOUND_GAIN] = 1.0
                    found[image, FOUND_OFFSET] = 0.0
                    continue
                shift = math.hypot(found[image, FOUND_X], found[image, FOUND_Y])
                if not shift < settings.most_shift:
                    status[image] = RAN_AWAY
                    found[image, FOUND_X] = starts[image, 0]
                    found[image, FOUND_Y] = starts[image, 1]
                    found[image, FOUND_GAIN] = 1.0
                    found[image, FOUND_OFFSET] = 0.0
                    continue
                status[image] = MEASURED
                misfits[n_good] = found[image, FOUND_SQUARE] / max(
                    found[image, FOUND_PIXELS] - _UNKNOWNS, 1.0
                )
                n_good += 1
            if n_good == 0:
                break
            limit = settings.most_misfit * take_median(misfits[:n_good])
            for k in range(n_images):
                image = first + k
                if status[image] != MEASURED:
                    continue
                misfit = found[image, FOUND_SQUARE] / max(
                    found[image, FOUND_PIXELS] - _UNKNOWNS, 1.0
                )
                most = _MOST_UNEXPLAINED * found[image, FOUND_VARIATION]
                if misfit > limit or found[image, FOUND_SQUARE] > most:
                    status[image] = NO_AGREEMENT
                else:
                    square += found[image, FOUND_SQUARE]
                    freedom += found[image, FOUND_PIXELS] - _UNKNOWNS
            noises[track] = square / freedom if freedom > 0.0 else math.nan
            pin_origin(
                status[first:last],
                images.anchored[first:last],
                starts[first:last],
                jacobians[first:last],
                tilts[first:last],
                slopes[track],
                found[first:last],
            )
            if turn == rounds - 1 or not freedom > 0.0:
                continue
            sums[:] = 0.0
            for k in range(n_images):
                image = first + k
                if status[image] == MEASURED:
                    add_to_slope(
                        Patch(pixels[k], counts[k], inverse[k], curves[k]),
                        found[image],
                        places[image],
                        tilts[image],
                        rhs,
                        window,
                        texture,
                        sums,
                    )
            weight = noises[track] / prior.sigmas[track] ** 2
            sums[SLOPE_XX] += weight
            sums[SLOPE_YY] += weight
            sums[SLOPE_X] -= weight * (slopes[track, 0] - prior.means[track, 0])
            sums[SLOPE_Y] -= weight * (slopes[track, 1] - prior.means[track, 1])
            xx, xy, yy = sums[SLOPE_XX], sums[SLOPE_XY], sums[SLOPE_YY]
            det = xx * yy - xy * xy
            if det > 0.0:
                slopes[track, 0] += _OVERSHOOT * (yy * sums[SLOPE_X] - xy * sums[SLOPE_Y]) / det
                slopes[track, 1] += _OVERSHOOT * (xx * sums[SLOPE_Y] - xy * sums[SLOPE_X]) / det
