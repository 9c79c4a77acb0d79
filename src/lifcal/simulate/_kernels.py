"""Compiled loops of the simulator: rays from sensor pixels to textured surfaces.

Frames: the image side is mirrored, so that raw coordinates grow with camera coordinates; lateral
positions there are in mm relative to the principal point. A ray in object space is
`(origin_x, origin_y, 0) + t (slope_x, slope_y, 1)`, so `t` is the depth z.

`surfaces` is (near, quads, balls, world_from_cam); `textures` is (texture_of, n_levels, levels,
texels).
Row layouts, in camera coordinates:
quads: normal 0-2, plane distance 3, u 4-6, u offset 7, v 8-10, v offset 11, shade 12, texels a
       mm 13
balls: center 0-2, radius 3, shade 4, texels a mm 5
Surfaces are numbered quads first, then balls. Texture levels: (n_textures, n_levels, 3) offset,
width, height; a level stores its channels red, green, blue, luminance one after the other.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from lifcal.camera._kernels import cell_range, row_items
from lifcal.threads import in_parts

NEAREST_MM = 1e-6


@njit(cache=True, inline="always")
def pick_set(seed, row, col, n_sets):
    """Return a sample set for a pixel, from a hash of the seed and the place."""
    h = np.uint64(seed) ^ (np.uint64(row) << np.uint64(32)) ^ np.uint64(col)
    h = (h ^ (h >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    h = (h ^ (h >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    h = h ^ (h >> np.uint64(31))
    return np.int64(h % np.uint64(n_sets))


@njit(cache=True, inline="always")
def sample_texture(texels, levels, texture, level, channel, u, v):
    """Return the bilinear value at (u, v), 0 to 255, NaN outside [0, 1]^2; edges are extended."""
    if not (0.0 <= u <= 1.0 and 0.0 <= v <= 1.0):
        return math.nan
    offset = levels[texture, level, 0]
    width = levels[texture, level, 1]
    height = levels[texture, level, 2]
    base = offset + channel * width * height
    x = min(max(u * width - 0.5, 0.0), width - 1.0)
    y = min(max(v * height - 0.5, 0.0), height - 1.0)
    i = min(int(x), max(width - 2, 0))
    j = min(int(y), max(height - 2, 0))
    fx = x - i
    fy = y - j
    di = 1 if width > 1 else 0
    dj = width if height > 1 else 0
    at = base + j * width + i
    top = texels[at] * (1.0 - fx) + texels[at + di] * fx
    bottom = texels[at + dj] * (1.0 - fx) + texels[at + dj + di] * fx
    return top * (1.0 - fy) + bottom * fy


@njit(cache=True)
def find_surface(ox, oy, sx, sy, candidates, n_candidates, surfaces):
    """Return the first surface that a ray meets (-1: none), its depth and the place (u, v) on it.

    `candidates` are sorted by `near`, the least depth of each surface.
    """
    near, quads, balls, world_from_cam = surfaces
    n_quads = quads.shape[0]
    best = math.inf
    hit = -1
    hit_u = 0.0
    hit_v = 0.0
    for c in range(n_candidates):
        s = candidates[c]
        if near[s] > best:
            break
        if s < n_quads:
            q = quads[s]
            denominator = q[0] * sx + q[1] * sy + q[2]
            if denominator == 0.0:
                continue
            t = (q[3] - q[0] * ox - q[1] * oy) / denominator
            if not (t > NEAREST_MM and t < best):
                continue
            x = ox + t * sx
            y = oy + t * sy
            u = q[4] * x + q[5] * y + q[6] * t - q[7]
            if u < 0.0 or u > 1.0:
                continue
            v = q[8] * x + q[9] * y + q[10] * t - q[11]
            if v < 0.0 or v > 1.0:
                continue
            best = t
            hit = s
            hit_u = u
            hit_v = v
        else:
            b = balls[s - n_quads]
            px = ox - b[0]
            py = oy - b[1]
            pz = -b[2]
            a = sx * sx + sy * sy + 1.0
            half = px * sx + py * sy + pz
            discriminant = half * half - a * (px * px + py * py + pz * pz - b[3] * b[3])
            if discriminant < 0.0:
                continue
            t = (-half - math.sqrt(discriminant)) / a
            if t > NEAREST_MM and t < best:
                best = t
                hit = s
    if hit >= n_quads:
        b = balls[hit - n_quads]
        nx = (ox + best * sx - b[0]) / b[3]
        ny = (oy + best * sy - b[1]) / b[3]
        nz = (best - b[2]) / b[3]
        r = world_from_cam
        wx = r[0, 0] * nx + r[0, 1] * ny + r[0, 2] * nz
        wy = r[1, 0] * nx + r[1, 1] * ny + r[1, 2] * nz
        wz = r[2, 0] * nx + r[2, 1] * ny + r[2, 2] * nz
        hit_u = math.atan2(wx, -wz) / (2.0 * math.pi) + 0.5
        hit_v = math.asin(min(max(wy, -1.0), 1.0)) / math.pi + 0.5
    return hit, best, hit_u, hit_v


@njit(cache=True, inline="always")
def radiance_of(hit, u, v, footprint_mm, channel, surfaces, textures, background):
    """Return the radiance of a place on a surface, averaged over about `footprint_mm`."""
    _, quads, balls, _ = surfaces
    texture_of, n_levels, levels, texels = textures
    if hit < 0:
        return background[channel]
    n_quads = quads.shape[0]
    if hit < n_quads:
        shade = quads[hit, 12]
        size = footprint_mm * quads[hit, 13]
    else:
        shade = balls[hit - n_quads, 4]
        size = footprint_mm * balls[hit - n_quads, 5]
    texture = texture_of[hit]
    level = 0
    while size > 1.4142135623730951 and level < n_levels[texture] - 1:
        size *= 0.5
        level += 1
    value = sample_texture(texels, levels, texture, level, channel, u, v)
    return shade * value * (1.0 / 255.0)


@njit(cache=True)
def place_in_overlap(disc_x, disc_y, radius, other_radius, other_x, other_y):
    """Return a point in the overlap of two discs for one of the unit disc, and its weight.

    The first disc is around the origin. The unit disc is stretched along the line of the centers
    to the overlap's width, and across to its height there. Weighted with the area that a point
    stands for, relative to that of the first disc, evenly spread points of the unit disc give the
    mean over the first disc of what is 0 outside the overlap. None is lost: points at random in one
    disc, of which some miss the other, would make the brightness of a few rays noisy.
    """
    square = other_x * other_x + other_y * other_y
    if other_radius >= radius and square <= (other_radius - radius) ** 2:
        return radius * disc_x, radius * disc_y, 1.0
    if square >= (other_radius + radius) ** 2:
        return 0.0, 0.0, 0.0
    away = math.sqrt(square)
    left = max(-radius, away - other_radius)
    right = min(radius, away + other_radius)
    half = 0.5 * (right - left)
    along = 0.5 * (left + right) + half * disc_x
    rest = along - away
    square = min(radius * radius - along * along, other_radius * other_radius - rest * rest)
    stretch = math.sqrt(max(square, 0.0) / max(1.0 - disc_x * disc_x, 1e-12))
    across = stretch * disc_y
    weight = half * stretch / (radius * radius)
    cos, sin = 1.0, 0.0
    if away > 0.0:
        cos, sin = other_x / away, other_y / away
    return cos * along - sin * across, sin * along + cos * across, weight


@in_parts(lambda slopes: len(slopes))
def cull_surfaces(
    begin, end, slopes, spread, reach_mm, order, near, quad_slopes, balls, out, counts
):
    """List for each bundle of rays the surfaces that it can meet, in the order of `order`.

    A bundle's rays leave the main lens within `reach_mm` of its middle, with slopes within `spread`
    of `slopes[bundle]`. `quad_slopes` (n_quads, 4): bounds of (x / z, y / z) over the corners,
    infinite for quads that come too close.
    """
    n_quads = quad_slopes.shape[0]
    for bundle in range(begin, end):
        sx = slopes[bundle, 0]
        sy = slopes[bundle, 1]
        count = 0
        for i in range(order.shape[0]):
            s = order[i]
            if s < n_quads:
                margin = spread + (reach_mm / near[s] if near[s] > 0.0 else math.inf)
                b = quad_slopes[s]
                if sx < b[0] - margin or sx > b[1] + margin:
                    continue
                if sy < b[2] - margin or sy > b[3] + margin:
                    continue
            else:
                b = balls[s - n_quads]
                if b[2] + b[3] <= 0.0:
                    continue
                dx = b[0] - b[2] * sx
                dy = b[1] - b[2] * sy
                slope = math.sqrt(sx * sx + sy * sy)
                margin = b[3] * (1.0 + slope) + reach_mm + (b[2] + b[3]) * spread
                if dx * dx + dy * dy > margin * margin:
                    continue
            out[bundle, count] = s
            count += 1
        counts[bundle] = count


@njit(cache=True, inline="always")
def distort_slope(main_x, main_y, slope_x, slope_y, distortion):
    """Return the slope of a ray behind a main lens that distorts in object space.

    The ray meets the main lens at (main_x, main_y) and would leave a perfect one with (slope_x,
    slope_y). `distortion` is a, b and one over the distance that the distortion refers to.
    """
    a, b, nearness = distortion
    # Slope from the lens' center to where the ray is at the distance 1 / nearness. The object
    # side is turned: the ray starts at minus (main_x, main_y).
    from_x = slope_x - nearness * main_x
    from_y = slope_y - nearness * main_y
    square = from_x * from_x + from_y * from_y
    factor = 1.0 - a * square + b * square * square
    return factor * from_x + nearness * main_x, factor * from_y + nearness * main_y


@in_parts(lambda out: len(out))
def render_raw(
    begin,
    end,
    window,
    stop,
    distortion,
    with_distortion,
    with_cos4,
    pixel_mm,
    principal,
    main_radius,
    micro_radius,
    displacement,
    centers_raw,
    lenses,
    start,
    items,
    origin,
    shape,
    cell,
    reach_px,
    samples,
    seed,
    channels,
    candidates,
    n_candidates,
    surfaces,
    textures,
    background,
    footprint_alpha,
    footprint_beta,
    out,
):
    """Fill `out` with the light on each sensor pixel of `window` (first row, first column).

    1 is a pixel that sees white through the whole micro aperture. `samples` (n_sets, n_rays, 4):
    place in the pixel (0..1, 0..1; beyond for a blurred sensor) and in the used part of the
    aperture (unit disc).

    `stop` is the distance of the stop behind the main lens, `distortion` that in object space, see
    `distort_slope`. `lenses` (n_lenses, 8), mm from the axis: micro-image center x, y; lens center
    x, y; distance from the stop; distance to the sensor; how the points of the micro aperture are
    spread over the plane of the stop, see below; and the main lens' focal length for rays that come
    to this micro lens.
    """
    n_sets = samples.shape[0]
    n_rays = samples.shape[1]
    for i_row in range(begin, end):
        row = i_row + window[0]
        for i_col in range(out.shape[1]):
            col = i_col + window[1]
            chosen = pick_set(seed, row, col, n_sets)
            channel = channels[row & 1, col & 1]
            # Undistorted corners of the pixel, mm from the principal point.
            x00 = (col - 0.5 + displacement[row, col, 0] - principal[0]) * pixel_mm
            y00 = (row - 0.5 + displacement[row, col, 1] - principal[1]) * pixel_mm
            x10 = (col + 0.5 + displacement[row, col + 1, 0] - principal[0]) * pixel_mm
            y10 = (row - 0.5 + displacement[row, col + 1, 1] - principal[1]) * pixel_mm
            x01 = (col - 0.5 + displacement[row + 1, col, 0] - principal[0]) * pixel_mm
            y01 = (row + 0.5 + displacement[row + 1, col, 1] - principal[1]) * pixel_mm
            x11 = (col + 0.5 + displacement[row + 1, col + 1, 0] - principal[0]) * pixel_mm
            y11 = (row + 0.5 + displacement[row + 1, col + 1, 1] - principal[1]) * pixel_mm
            total = 0.0
            i0, i1 = cell_range(float(col), reach_px, origin[0], cell, shape[0])
            j0, j1 = cell_range(float(row), reach_px, origin[1], cell, shape[1])
            for j in range(j0, j1 + 1):
                first, last = row_items(start, j, i0, i1, shape[0])
                for item in range(first, last):
                    lens = items[item]
                    dx = centers_raw[lens, 0] - col
                    dy = centers_raw[lens, 1] - row
                    if dx * dx + dy * dy > reach_px * reach_px:
                        continue
                    cx = lenses[lens, 0]
                    cy = lenses[lens, 1]
                    lens_x = lenses[lens, 2]
                    lens_y = lenses[lens, 3]
                    from_stop = lenses[lens, 4]
                    to_sensor = lenses[lens, 5]
                    # Back through the lens, micro-aperture point r reaches the stop's plane at
                    # -ratio m + spread r, where m is the offset in the micro image.
                    ratio = from_stop / to_sensor
                    spread = lenses[lens, 6]
                    focal_length = lenses[lens, 7]
                    # Of its points, the stop lets through those of this disc.
                    disc_radius = main_radius / abs(spread)
                    light = 0.0
                    for s in range(n_rays):
                        fx = samples[chosen, s, 0]
                        fy = samples[chosen, s, 1]
                        x = (x00 * (1.0 - fx) + x10 * fx) * (1.0 - fy)
                        x += (x01 * (1.0 - fx) + x11 * fx) * fy
                        y = (y00 * (1.0 - fx) + y10 * fx) * (1.0 - fy)
                        y += (y01 * (1.0 - fx) + y11 * fx) * fy
                        shift_x = -ratio * (x - cx)
                        shift_y = -ratio * (y - cy)
                        rx, ry, weight = place_in_overlap(
                            samples[chosen, s, 2],
                            samples[chosen, s, 3],
                            micro_radius,
                            disc_radius,
                            -shift_x / spread,
                            -shift_y / spread,
                        )
                        if weight == 0.0:
                            continue
                        stop_x = shift_x + spread * rx
                        stop_y = shift_y + spread * ry
                        inner_x = (lens_x + rx - stop_x) / from_stop
                        inner_y = (lens_y + ry - stop_y) / from_stop
                        main_x = stop_x - stop * inner_x
                        main_y = stop_y - stop * inner_y
                        # The main lens bends the ray; on the object side x and z both flip.
                        slope_x = inner_x + main_x / focal_length
                        slope_y = inner_y + main_y / focal_length
                        if with_distortion:
                            slope_x, slope_y = distort_slope(
                                main_x, main_y, slope_x, slope_y, distortion
                            )
                        if with_cos4:
                            out_x = (x - lens_x - rx) / to_sensor
                            out_y = (y - lens_y - ry) / to_sensor
                            weight /= (1.0 + out_x * out_x + out_y * out_y) ** 2
                        hit, depth, u, v = find_surface(
                            -main_x,
                            -main_y,
                            slope_x,
                            slope_y,
                            candidates[lens],
                            n_candidates[lens],
                            surfaces,
                        )
                        footprint = abs(footprint_alpha * depth + footprint_beta)
                        light += weight * radiance_of(
                            hit, u, v, footprint, channel, surfaces, textures, background
                        )
                    total += light
            out[i_row, i_col] = total / n_rays


@in_parts(lambda out_depth: len(out_depth))
def render_pinhole(
    begin,
    end,
    focal_px,
    principal,
    samples,
    seed,
    tile_px,
    candidates,
    n_candidates,
    surfaces,
    textures,
    background,
    footprint,
    out_color,
    out_depth,
):
    """Fill the view of a pinhole at the main lens' center: mean color and central depth of pixels.

    Depth is NaN where the central ray meets nothing. Candidates are listed by square tiles.
    """
    n_rays = samples.shape[1]
    width = out_depth.shape[1]
    n_tiles = (width + tile_px - 1) // tile_px
    for row in range(begin, end):
        for col in range(width):
            tile = (row // tile_px) * n_tiles + col // tile_px
            chosen = pick_set(seed, row, col, samples.shape[0])
            red = 0.0
            green = 0.0
            blue = 0.0
            for s in range(n_rays):
                hit, depth, u, v = find_surface(
                    0.0,
                    0.0,
                    (col - 0.5 + samples[chosen, s, 0] - principal[0]) / focal_px,
                    (row - 0.5 + samples[chosen, s, 1] - principal[1]) / focal_px,
                    candidates[tile],
                    n_candidates[tile],
                    surfaces,
                )
                size = footprint * depth
                red += radiance_of(hit, u, v, size, 0, surfaces, textures, background)
                green += radiance_of(hit, u, v, size, 1, surfaces, textures, background)
                blue += radiance_of(hit, u, v, size, 2, surfaces, textures, background)
            out_color[row, col, 0] = red / n_rays
            out_color[row, col, 1] = green / n_rays
            out_color[row, col, 2] = blue / n_rays
            hit, depth, u, v = find_surface(
                0.0,
                0.0,
                (col - principal[0]) / focal_px,
                (row - principal[1]) / focal_px,
                candidates[tile],
                n_candidates[tile],
                surfaces,
            )
            out_depth[row, col] = depth if hit >= 0 else math.nan
