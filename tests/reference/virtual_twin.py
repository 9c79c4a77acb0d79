"""Slow references of the virtual room's kernels, one pixel at a time, as the documentation states.

They share no code with the package; lenses are found by testing all of them.
"""

import math

import numpy as np
from scipy.interpolate import BSpline

BINS_PER_PX = 8
BENDS_PER_UNIT = 8
FOCUS_BLUR_PX = 0.65


def see(x, y, rho, centers, optics):
    """Yield (lens, weight, focus, place in the raw, offset) for all lenses that see a point."""
    for lens, (cx, cy) in enumerate(centers):
        dx, dy = x - cx, y - cy
        away = math.hypot(dx, dy)
        m = away * abs(rho)
        if m > optics.radius_px:
            continue
        kind = optics.lens_types[lens]
        focal = optics.focal_rhos[kind]
        focus, bend = 1.0, 0.0
        if not math.isnan(focal):
            focus = 1.0 / (1.0 + ((focal - rho) * optics.blur_px / FOCUS_BLUR_PX) ** 2)
            bend = (focal - rho) / focal
        b = int(m * BINS_PER_PX)
        part = m * BINS_PER_PX - b
        row = (min(max(bend, -3.0), 1.0) + 3.0) * BENDS_PER_UNIT
        k = int(row)
        near, far = (
            table[b] + part * (table[b + 1] - table[b])
            for table in optics.moves_px[kind, k : k + 2]
        )
        move = near + (row - k) * (far - near)
        outward = np.array([dx, dy]) / max(away, 1e-3) * math.copysign(1.0, rho)
        place = np.array([cx, cy]) + np.array([dx, dy]) * rho + move * outward
        parallax = 1.0
        if not math.isnan(focal):
            parallax -= (far - near) * BENDS_PER_UNIT / (abs(focal) * away)
        weight = focus * optics.weights[kind, b]
        yield lens, weight, focus, place, np.array([dx, dy]) * parallax


def linear(image, place):
    i, j = int(place[0]), int(place[1])
    f, g = place[0] - i, place[1] - j
    return (
        (1 - f) * (1 - g) * image[j, i]
        + f * (1 - g) * image[j, i + 1]
        + (1 - f) * g * image[j + 1, i]
        + f * g * image[j + 1, i + 1]
    )


def spline(image, place):
    """Value and gradient, at a place, of the cubic B-spline whose coefficients are the pixels."""
    i, j = int(place[0]), int(place[1])
    bump = BSpline.basis_element([-2.0, -1.0, 0.0, 1.0, 2.0], extrapolate=False)
    taps = np.arange(-1, 3)
    (a, da), (b, db) = (
        [np.nan_to_num(part(x - k - taps)) for part in (bump, bump.derivative())]
        for x, k in ((place[0], i), (place[1], j))
    )
    patch = image[j - 1 : j + 3, i - 1 : i + 3].astype(np.float64)
    return b @ patch @ a, np.array([b @ patch @ da, db @ patch @ a])


def variance(image, x, y, rho, centers, optics):
    """Weighted sum of squares over lenses with linear interpolation, and its degrees of freedom."""
    seen = list(see(x, y, rho, centers, optics))
    weights = np.array([entry[1] for entry in seen])
    values = np.array([linear(image, entry[3]) for entry in seen])
    mean = weights @ values / weights.sum()
    return weights @ (values - mean) ** 2, weights.sum() - weights @ weights / weights.sum()


def measure(image, points, rho, centers, optics):
    """The first four sums of the kernel `measure`, over points."""
    sums = np.zeros(4)
    for x, y in points:
        seen = list(see(x, y, rho, centers, optics))
        if len(seen) < 2:
            continue
        w = np.array([entry[1] for entry in seen], np.float64)
        focus = np.array([entry[2] for entry in seen])
        samples = [spline(image, entry[3]) for entry in seen]
        values = np.array([value for value, _ in samples])
        gradient = w @ np.array([slope for _, slope in samples]) / w.sum()
        slopes = np.array([entry[4] for entry in seen]) @ gradient
        slopes = slopes - w @ slopes / w.sum()
        values = values - w @ values / w.sum()
        sums += [
            w @ (slopes * values),
            w @ slopes**2,
            w @ values**2,
            focus.sum() - w @ focus / w.sum(),
        ]
    return sums


def catmull_rom(image, place):
    """Value of Catmull-Rom interpolation between pixels."""
    i, j = int(place[0]), int(place[1])

    def weights(f):
        t = np.abs(f - np.arange(-1, 3))
        near = 1.5 * t**3 - 2.5 * t**2 + 1.0
        far = -0.5 * t**3 + 2.5 * t**2 - 4.0 * t + 2.0
        return np.where(t < 1.0, near, far)

    patch = image[j - 1 : j + 3, i - 1 : i + 3].astype(np.float64)
    return weights(place[1] - j) @ patch @ weights(place[0] - i)


def synthesise(image, x, y, rho, centers, optics):
    """Mean of the micro images at a virtual point, and the sum of their weights."""
    seen = list(see(x, y, rho, centers, optics))
    weights = np.array([entry[1] for entry in seen], np.float64)
    values = np.array([catmull_rom(image, entry[3]) for entry in seen])
    return weights @ values / weights.sum(), weights.sum()


def detail(image, x, y, rho, centers, optics, mean_at):
    """Difference between the four raw pixels around each position and the mean at their centers.

    `mean_at` returns the mean at virtual points.
    """
    total = count = 0.0
    for lens, weight, _, place, _ in see(x, y, rho, centers, optics):
        # Distances in the raw and in the virtual image have the ratio of those from the center.
        center = centers[lens]
        ratio = np.linalg.norm(place - center) / np.hypot(x - center[0], y - center[1])
        ratio = math.copysign(ratio, rho)
        left, top = int(place[0]), int(place[1])
        for j in (top, top + 1):
            for i in (left, left + 1):
                off = np.array([i, j]) - place
                near = weight * math.exp(-0.5 * float(off @ off) / 0.3**2)
                total += near * (image[j, i] - mean_at(np.array([x, y]) + off / ratio))
                count += near
    return total / count


def semi_global(cost, small, large):
    """Semi-global matching: sum of the path costs from four directions."""
    levels = cost.shape[2]
    jump = np.abs(np.subtract.outer(np.arange(levels), np.arange(levels)))
    price = np.where(jump == 0, 0.0, np.where(jump == 1, small, large))
    total = np.zeros(cost.shape)
    for turn in range(4):
        turned = np.rot90(cost, turn)
        way = np.zeros(turned.shape)
        for row in range(turned.shape[0]):
            before = np.zeros(levels)
            for col in range(turned.shape[1]):
                best = (before[None, :] + price).min(axis=1) - before.min()
                before = turned[row, col] + best
                way[row, col] = before
        total += np.rot90(way, -turn)
    return total
