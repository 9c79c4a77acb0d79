"""Compiled loops of the measure room: one texture for each track, one place in each micro image.

A track's texture is a cubic B-spline surface over (s, t), raw pixels of a micro image of the
reference view, with the measured point at its origin. Micro image k shows it at

    p = position_k + shift_k + A_k (s, t),    A_k = jacobian_k + tilt_k slope^T

in recorded raw coordinates, where the slope of the surface is common to all images of the track,
after each pixel has been moved to where a pinhole would have seen what it shows (see
`lifcal.virtual.optics`). Pixels are compared as they were recorded: nothing but the texture, which
many images determine, is interpolated.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

from lifcal.geometry._kernels import take_median
from lifcal.threads import in_parts
from lifcal.virtual._kernels_lenses import BINS_PER_PX

MEASURED = 0
TOO_FEW_PIXELS = 1
NO_AGREEMENT = 2
RAN_AWAY = 3

_FIRST_STEPS = 3
"""Of Gauss-Newton in the first round; later ones begin near enough for one."""
_OPTIONS: Any = {"cache": True, "fastmath": {"contract", "reassoc", "nsz", "arcp"}}
"""Of the loops over pixels, which are finite."""


@njit(cache=True)
def look_up(table, kind, away):
    """Return a table's value for a lens type at a distance in px, linear between bins.

    Beyond the last bin the line through the last two goes on. NaN for a distance that is NaN or
    negative.
    """
    at = away * BINS_PER_PX
    if not at >= 0.0:
        return math.nan
    b = int(min(at, table.shape[1] - 2.0))
    return table[kind, b] + (at - b) * (table[kind, b + 1] - table[kind, b])


@in_parts(lambda points: len(points), least=256)
def shift_points(begin, end, points, centers, types, bends, shifts, out):
    """Fill `out` with where devignetted images show pinhole points: t = bend shift(m + t).

    NaN for points that are NaN, or farther from the center than the table of shifts reaches.
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


@njit(**_OPTIONS)
def spline(f, w, d, e):
    """Fill the four weights of a cubic B-spline at f in [0, 1), and first and second slopes."""
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


@njit(cache=True, inline="always")
def on_texture(gs, gt, size):
    """Tell whether the 4 x 4 coefficients around a place are all on the texture; not for NaN."""
    return 1.0 <= gs < size - 2 and 1.0 <= gt < size - 2


@njit(**_OPTIONS)
def solve_band(matrix, rhs):
    """Solve a symmetric positive definite band system in place; `matrix` (n, band) is its lower
    half, matrix[i, j] at row i, column i - j. Returns False if it is not positive definite.
    """
    n, band = matrix.shape
    for i in range(n):
        for j in range(max(0, i - band + 1), i + 1):
            total = matrix[i, i - j]
            for k in range(max(0, i - band + 1, j - band + 1), j):
                total -= matrix[i, i - k] * matrix[j, j - k]
            if i == j:
                if not total > 0.0:
                    return False
                matrix[i, 0] = math.sqrt(total)
            else:
                matrix[i, i - j] = total / matrix[j, 0]
    for i in range(n):
        total = rhs[i]
        for k in range(max(0, i - band + 1), i):
            total -= matrix[i, i - k] * rhs[k]
        rhs[i] = total / matrix[i, 0]
    for i in range(n - 1, -1, -1):
        total = rhs[i]
        for k in range(i + 1, min(n, i + band)):
            total -= matrix[k, k - i] * rhs[k]
        rhs[i] = total / matrix[i, 0]
    return True


@njit(cache=True)
def pull_pixels(patch, corner, center, kind, bend, tables, radius, pixels):
    """List the usable pixels of a patch: where a pinhole would see them, value, weight.

    Returns how many; `pixels` is (at least side^2, 4).
    """
    weights, shifts, drifts = tables
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
            pixels[n, 0] = center[0] + dx * factor
            pixels[n, 1] = center[1] + dy * factor
            pixels[n, 2] = value
            pixels[n, 3] = look_up(weights, kind, m)
            n += 1
    return n


@njit(**_OPTIONS)
def add_to_texture(
    pixels, n, place, inverse, curve, gain, offset, window, spacing, size, matrix, rhs
):
    """Add an image's pixels to the normal equations of a texture's coefficients."""
    w = np.empty(4)
    v = np.empty(4)
    dw = np.empty(4)
    dv = np.empty(4)
    ew = np.empty(4)
    ev = np.empty(4)
    row = np.empty(16)
    half = 0.5 * (size - 1)
    xx, xy, yy = curve[0], curve[1], curve[2]
    for k in range(n):
        dx = pixels[k, 0] - place[0]
        dy = pixels[k, 1] - place[1]
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
        weight = pixels[k, 3] * gain * gain
        target = (pixels[k, 2] - offset) / gain
        first = (j - 1) * size + i - 1
        for b in range(16):
            r = first + (b // 4) * size + b % 4
            scaled = weight * row[b]
            rhs[r] += scaled * target
            for a in range(b + 1):
                c = first + (a // 4) * size + a % 4
                matrix[r, r - c] += scaled * row[a]


@njit(**_OPTIONS)
def fit_place(
    pixels, n, start, inverse, curve, coefficients, window, spacing, size, steps, last, found
):
    """Move one image over the texture: Gauss-Newton on the place, the gain and the offset.

    After `steps` steps; if `last`, what is found is evaluated once more where they end.

    `found` gets: shift x, y; gain; offset; the information xx, xy, yy on the shift for noise 1;
    weighted sum of squares; that of the image about its mean; number of pixels.
    """
    w = np.empty(4)
    v = np.empty(4)
    dw = np.empty(4)
    dv = np.empty(4)
    ew = np.empty(4)
    ev = np.empty(4)
    half = 0.5 * (size - 1)
    xx, xy, yy = curve[0], curve[1], curve[2]
    gain = found[2]
    offset = found[3]
    normal = np.empty((4, 4))
    rhs = np.empty(4)
    row = np.empty(4)
    for turn in range(steps + last):
        normal[:] = 0.0
        rhs[:] = 0.0
        square = s0 = s1 = s2 = 0.0
        used = 0
        for k in range(n):
            # The pixels are those of the window at the start, whatever the shift.
            dx = pixels[k, 0] - start[0]
            dy = pixels[k, 1] - start[1]
            s = inverse[0, 0] * dx + inverse[0, 1] * dy
            t = inverse[1, 0] * dx + inverse[1, 1] * dy
            if s * s + t * t > window * window:
                continue
            s -= inverse[0, 0] * found[0] + inverse[0, 1] * found[1]
            t -= inverse[1, 0] * found[0] + inverse[1, 1] * found[1]
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
                for a in range(4):
                    c = coefficients[(j - 1 + b) * size + i - 1 + a]
                    blurred = xx * ew[a] * v[b] + xy * dw[a] * dv[b] + yy * w[a] * ev[b]
                    value += c * (w[a] * v[b] + blurred)
                    slope_s += c * dw[a] * v[b]
                    slope_t += c * w[a] * dv[b]
            slope_s /= spacing
            slope_t /= spacing
            row[0] = -gain * (slope_s * inverse[0, 0] + slope_t * inverse[1, 0])
            row[1] = -gain * (slope_s * inverse[0, 1] + slope_t * inverse[1, 1])
            row[2] = value
            row[3] = 1.0
            off = pixels[k, 2] - gain * value - offset
            weight = pixels[k, 3]
            for a in range(4):
                rhs[a] += weight * row[a] * off
                for b in range(a + 1):
                    normal[a, b] += weight * row[a] * row[b]
            square += weight * off * off
            s0 += weight
            s1 += weight * pixels[k, 2]
            s2 += weight * pixels[k, 2] * pixels[k, 2]
            used += 1
        found[7] = square
        found[8] = s2 - s1 * s1 / s0 if s0 > 0.0 else 0.0
        found[9] = used
        if used < 12:
            return False
        # Eliminate gain and offset: what is left is the information on the shift.
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
        found[4] = hxx
        found[5] = hxy
        found[6] = hyy
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
        if length > 0.7:
            sx *= 0.7 / length
            sy *= 0.7 / length
        found[0] += sx
        found[1] += sy
        r2 = rhs[2] - normal[0, 2] * sx - normal[1, 2] * sy
        r3 = rhs[3] - normal[0, 3] * sx - normal[1, 3] * sy
        gain += i22 * r2 + i23 * r3
        offset += i23 * r2 + i33 * r3
        found[2] = gain
        found[3] = offset
        if not (0.2 < gain < 5.0):
            return False
    return True


FOUND = 10


@njit(cache=True)
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


@njit(cache=True)
def curve_texture(inverse, blur, pixel, spacing, out):
    """Fill `out` with the factors of the texture's second slopes xx, xy, yy in an image's values.

    Blur (a variance in px^2 of the image, along an axis) and the pixel itself are as `inverse` puts
    them on the texture, which shows everything through the pixels of the reference already.
    """
    wide = blur + pixel
    scale = 0.5 / (spacing * spacing)
    i = inverse
    out[0] = scale * (wide * (i[0, 0] * i[0, 0] + i[0, 1] * i[0, 1]) - pixel)
    out[1] = 2.0 * scale * wide * (i[0, 0] * i[1, 0] + i[0, 1] * i[1, 1])
    out[2] = scale * (wide * (i[1, 0] * i[1, 0] + i[1, 1] * i[1, 1]) - pixel)


@njit(cache=True)
def pin_origin(status, anchored, starts, jacobians, tilts, slope, found):
    """Take from all images the displacement that they have in common along the surface.

    A texture and all its images may slide together at no cost: over the rounds the origin would
    leave the point that it was put on. Images count by what they know of their place; if some are
    anchored (it is known that they began on the point itself), the others do not count.
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
        hxx, hxy, hyy = found[k, 4], found[k, 5], found[k, 6]
        dx = found[k, 0] - starts[k, 0]
        dy = found[k, 1] - starts[k, 1]
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
            found[k, 0] -= jacobians[k, 0, 0] * s + jacobians[k, 0, 1] * t + tilts[k, 0] * lean
            found[k, 1] -= jacobians[k, 1, 0] * s + jacobians[k, 1, 1] * t + tilts[k, 1] * lean


@njit(**_OPTIONS)
def add_to_slope(
    pixels, n, found, place, inverse, curve, tilt, coefficients, window, spacing, size, sums
):
    """Add what an image says about the surface's slope, whatever its place, gain and offset.

    `sums`: information xx, xy, yy, and the right-hand side x, y.
    """
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
    # A change of the slope moves what is at (s, t) by tilt (slope . (s, t)) in the image.
    move_s = inverse[0, 0] * tilt[0] + inverse[0, 1] * tilt[1]
    move_t = inverse[1, 0] * tilt[0] + inverse[1, 1] * tilt[1]
    for k in range(n):
        dx = pixels[k, 0] - place[0] - found[0]
        dy = pixels[k, 1] - place[1] - found[1]
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
            for a in range(4):
                c = coefficients[(j - 1 + b) * size + i - 1 + a]
                blurred = xx * ew[a] * v[b] + xy * dw[a] * dv[b] + yy * w[a] * ev[b]
                value += c * (w[a] * v[b] + blurred)
                slope_s += c * dw[a] * v[b]
                slope_t += c * w[a] * dv[b]
        slope_s *= -found[2] / spacing
        slope_t *= -found[2] / spacing
        change = slope_s * move_s + slope_t * move_t
        row[0] = slope_s * inverse[0, 0] + slope_t * inverse[1, 0]
        row[1] = slope_s * inverse[0, 1] + slope_t * inverse[1, 1]
        row[2] = value
        row[3] = 1.0
        row[4] = change * s
        row[5] = change * t
        off = pixels[k, 2] - found[2] * value - found[3]
        weight = pixels[k, 3]
        for a in range(6):
            rhs[a] += weight * row[a] * off
            for b in range(a + 1):
                normal[a, b] += weight * row[a] * row[b]
    # Eliminate place, gain and offset.
    for a in range(4):
        if not normal[a, a] > 1e-12:
            return
        for c in range(a + 1, 6):
            factor = normal[c, a] / normal[a, a]
            rhs[c] -= factor * rhs[a]
            for b in range(a + 1, c + 1):
                normal[c, b] -= factor * normal[b, a]
    sums[0] += max(normal[4, 4], 0.0)
    sums[1] += normal[5, 4]
    sums[2] += max(normal[5, 5], 0.0)
    sums[3] += rhs[4]
    sums[4] += rhs[5]


@in_parts(lambda offsets: len(offsets) - 1)
def measure_tracks(
    begin,
    end,
    offsets,
    patches,
    corners,
    centers,
    places,
    starts,
    anchored,
    jacobians,
    tilts,
    types,
    bends,
    blurs,
    pixel,
    tables,
    radius,
    window,
    spacing,
    size,
    rounds,
    most_shift,
    most_misfit,
    slope_means,
    slope_sigmas,
    slopes,
    found,
    status,
    noises,
):
    """Measure every image of every track; images of track i are offsets[i] to offsets[i + 1].

    `blurs` (n_images,) and `pixel` are variances along an axis, px^2.
    `found` (n_images, FOUND) as in `fit_place`, shifts from `places`, beginning at `starts`, which
    say what the texture's origin is; `status` (n_images,);
    `noises` (n_tracks,) is the variance of a pixel in the middle of a micro image about its
    texture; `slopes` (n_tracks, 2) are where to start and what is found, with a prior of
    `slope_sigmas` (n_tracks,) about `slope_means` (n_tracks, 2).
    """
    band = 3 * size + 4
    side = patches.shape[1]
    for track in range(begin, end):
        matrix = np.empty((size * size, band))
        rhs = np.empty(size * size)
        first = offsets[track]
        last = offsets[track + 1]
        n_images = last - first
        pixels = np.empty((max(n_images, 1), side * side, 4))
        counts = np.empty(n_images, np.int64)
        place = np.empty(2)
        for k in range(n_images):
            image = first + k
            counts[k] = pull_pixels(
                patches[image],
                corners[image],
                centers[image],
                types[image],
                bends[image],
                tables,
                radius,
                pixels[k],
            )
            if not blurs[image] <= window * window:  # so blurred that the window shows nothing
                counts[k] = 0
            for a in range(FOUND):
                found[image, a] = 0.0
            found[image, 0] = starts[image, 0]
            found[image, 1] = starts[image, 1]
            found[image, 2] = 1.0
            status[image] = MEASURED
        noises[track] = math.nan
        inverse = np.empty((max(n_images, 1), 2, 2))
        curves = np.empty((max(n_images, 1), 3))
        sums = np.empty(5)
        misfits = np.empty(n_images)
        for turn in range(rounds):
            matrix[:] = 0.0
            rhs[:] = 0.0
            for k in range(n_images):
                image = first + k
                invert_affine(jacobians[image], tilts[image], slopes[track], inverse[k])
                curve_texture(inverse[k], blurs[image], pixel, spacing, curves[k])
                if status[image] != MEASURED:
                    continue
                place[0] = places[image, 0] + found[image, 0]
                place[1] = places[image, 1] + found[image, 1]
                add_to_texture(
                    pixels[k],
                    counts[k],
                    place,
                    inverse[k],
                    curves[k],
                    found[image, 2],
                    found[image, 3],
                    window + 0.75,
                    spacing,
                    size,
                    matrix,
                    rhs,
                )
            total = 0.0
            for r in range(size * size):
                total += matrix[r, 0]
            ridge = 1e-3 * total / (size * size) + 1e-12
            # Coefficients that no pixel reaches follow their neighbors.
            for r in range(size * size):
                for step in (1, size):
                    if r >= step and (step == size or r % size > 0):
                        matrix[r, 0] += ridge
                        matrix[r - step, 0] += ridge
                        matrix[r, step] -= ridge
                matrix[r, 0] += 1e-6 * ridge
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
                    pixels[k],
                    counts[k],
                    places[image],
                    inverse[k],
                    curves[k],
                    rhs,
                    window,
                    spacing,
                    size,
                    _FIRST_STEPS if turn == 0 else 1,
                    1 if turn == rounds - 1 else 0,
                    found[image],
                )
                if not good:
                    status[image] = TOO_FEW_PIXELS
                    found[image, 0] = starts[image, 0]
                    found[image, 1] = starts[image, 1]
                    found[image, 2] = 1.0
                    found[image, 3] = 0.0
                    continue
                shift = math.hypot(found[image, 0], found[image, 1])
                if not shift < most_shift:
                    status[image] = RAN_AWAY
                    found[image, 0] = starts[image, 0]
                    found[image, 1] = starts[image, 1]
                    found[image, 2] = 1.0
                    found[image, 3] = 0.0
                    continue
                status[image] = MEASURED
                misfits[n_good] = found[image, 7] / max(found[image, 9] - 4.0, 1.0)
                n_good += 1
            if n_good == 0:
                break
            limit = most_misfit * take_median(misfits[:n_good])
            for k in range(n_images):
                image = first + k
                if status[image] != MEASURED:
                    continue
                misfit = found[image, 7] / max(found[image, 9] - 4.0, 1.0)
                if misfit > limit or found[image, 7] > 0.5 * found[image, 8]:
                    status[image] = NO_AGREEMENT
                else:
                    square += found[image, 7]
                    freedom += found[image, 9] - 4.0
            noises[track] = square / freedom if freedom > 0.0 else math.nan
            pin_origin(
                status[first:last],
                anchored[first:last],
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
                        pixels[k],
                        counts[k],
                        found[image],
                        places[image],
                        inverse[k],
                        curves[k],
                        tilts[image],
                        rhs,
                        window,
                        spacing,
                        size,
                        sums,
                    )
            prior = noises[track] / slope_sigmas[track] ** 2
            sums[0] += prior
            sums[2] += prior
            sums[3] -= prior * (slopes[track, 0] - slope_means[track, 0])
            sums[4] -= prior * (slopes[track, 1] - slope_means[track, 1])
            det = sums[0] * sums[2] - sums[1] * sums[1]
            if det > 0.0:
                # What the texture took over comes back in the next round only: go a little beyond.
                slopes[track, 0] += 1.3 * (sums[2] * sums[3] - sums[1] * sums[4]) / det
                slopes[track, 1] += 1.3 * (sums[0] * sums[4] - sums[1] * sums[3]) / det
