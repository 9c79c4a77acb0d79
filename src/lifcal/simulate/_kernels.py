"""Compiled loops of the simulator: rays from sensor pixels to textured surfaces.

The image side is mirrored, so that raw coordinates grow with camera coordinates; lateral positions
there are in mm relative to the principal point. A ray in object space is
`(origin_x, origin_y, 0) + t (slope_x, slope_y, 1)`, so `t` is the depth z. Surfaces are in camera
coordinates, in mm, and are numbered quads first, then balls.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from lifcal.arrays import Float32Array, FloatArray, IntArray
from lifcal.camera._kernels import LensTable, cell_range, row_items
from lifcal.threads import UNCOUNTED, in_parts

NEAREST_MM = 1e-6
"""Smallest depth at which a ray can meet a surface: none is at the main lens itself."""
_LARGEST_TEXEL = math.sqrt(2.0)
"""Size of a sample, in texels, above which the next coarser mip level is used. It is the geometric
mean of one texel and two."""

QUAD_NORMAL, QUAD_DISTANCE = 0, 3
QUAD_U, QUAD_U_OFFSET = 4, 7
QUAD_V, QUAD_V_OFFSET = 8, 11
QUAD_SHADE, QUAD_DENSITY = 12, 13
QUAD_COLUMNS = 14
"""Number of columns of a quad: normal (3) and distance of its plane; gradient (3) and offset of the
texture coordinate u, and of v; factor by which its texture is multiplied; texels per mm."""

BOUND_LEFT, BOUND_RIGHT, BOUND_TOP, BOUND_BOTTOM = 0, 1, 2, 3
"""Columns of the bounds of a quad's slopes: smallest and largest x / z, the same for y / z."""

BALL_X, BALL_Y, BALL_Z, BALL_RADIUS, BALL_SHADE, BALL_DENSITY = 0, 1, 2, 3, 4, 5
BALL_COLUMNS = 6
"""Number of columns of a ball: center (3), radius, factor by which its texture is multiplied,
texels per mm at the equator."""

LEVEL_OFFSET, LEVEL_WIDTH, LEVEL_HEIGHT = 0, 1, 2
"""Entries of a mip level: position of its first texel in the array of all texels, and its size."""

LENS_IMAGE_X, LENS_IMAGE_Y, LENS_X, LENS_Y = 0, 1, 2, 3
LENS_FROM_STOP, LENS_TO_SENSOR, LENS_SPREAD, LENS_MAIN_FOCAL = 4, 5, 6, 7
"""Columns of a micro lens, in mm: micro-image center; lens center; distances from the aperture stop
and to the sensor; magnification of the micro aperture on the plane of the stop; focal length of the
main lens for rays to this micro lens."""

SAMPLE_X, SAMPLE_Y, SAMPLE_DISC_X, SAMPLE_DISC_Y = 0, 1, 2, 3
"""Columns of a ray sample: position in the pixel (0 to 1, or outside if the sensor is blurred), and
position in the used part of the aperture (unit disc)."""


_OPTIONS: Any = {"cache": True, "error_model": "numpy", "fastmath": False, **UNCOUNTED}
"""Numba options of the functions that are called for every ray or pixel."""


class Surfaces(NamedTuple):
    """Surfaces in camera coordinates.

    Parameters
    ----------
    near : (n_surfaces,) float64
        Smallest depth of each surface.
    quads : (n_quads, QUAD_COLUMNS) float64
    balls : (n_balls, BALL_COLUMNS) float64
    world_from_cam : (3, 3) float64
        Rotation of the camera. It is needed because the texture of a ball is fixed in the world.
    """

    near: FloatArray
    quads: FloatArray
    balls: FloatArray
    world_from_cam: FloatArray


class Textures(NamedTuple):
    """Textures with their mip levels.

    Parameters
    ----------
    texture_of : (n_surfaces,) int64
        Texture of each surface.
    n_levels : (n_textures,) int64
    levels : (n_textures, most levels, 3) int64
        `LEVEL_OFFSET`, `LEVEL_WIDTH` and `LEVEL_HEIGHT`.
    texels : (n_texels,) uint8
        A level stores its channels red, green, blue and luminance one after the other.
    """

    texture_of: IntArray
    n_levels: IntArray
    levels: IntArray
    texels: npt.NDArray[np.uint8]


class World(NamedTuple):
    """Everything that rays can meet; `background` (4,) float64 has the channels of textures."""

    surfaces: Surfaces
    textures: Textures
    background: FloatArray


class Bundles(NamedTuple):
    """Bundles of rays in object space.

    Parameters
    ----------
    slopes : (n_bundles, 2) float64
        Central slope of each bundle.
    spread : float
        Largest difference between the slope of a ray and the central slope.
    reach_mm : float
        Largest distance from the main lens' center at which rays start.
    """

    slopes: FloatArray
    spread: float
    reach_mm: float


class Candidates(NamedTuple):
    """Surfaces that the rays of each bundle can meet, sorted by their smallest depth.

    Parameters
    ----------
    surfaces : (n_bundles, n_surfaces) int16
        Indices of surfaces. In each row, only the first `counts` entries are valid.
    counts : (n_bundles,) int64
    """

    surfaces: npt.NDArray[np.int16]
    counts: IntArray


class Sampling(NamedTuple):
    """Sets of ray samples; each pixel uses one of the sets.

    Parameters
    ----------
    samples : (n_sets, n_rays, 4) float32
        `SAMPLE_X` to `SAMPLE_DISC_Y`.
    extent : float
        Largest distance of a sample from the middle of its pixel, px.
    seed : uint64
    """

    samples: Float32Array
    extent: float
    seed: np.uint64


class Sensor(NamedTuple):
    """The part of the sensor that is rendered.

    Parameters
    ----------
    first_row, first_col : int
    pixel_mm : float
    principal : (2,) float64
        Principal point, raw px.
    displacement : (height + 1, width + 1, 2) float32
        Undistorted minus recorded position of the pixels' corners, px.
    channels : (2, 2) int64
        Color channel of each pixel of the 2 x 2 mosaic.
    """

    first_row: int
    first_col: int
    pixel_mm: float
    principal: FloatArray
    displacement: Float32Array
    channels: IntArray


class ObjectDistortion(NamedTuple):
    """Distortion of the main lens in object space, see `distort_slope`.

    `nearness` is the reciprocal of `Imperfections.object_distortion_distance_mm`, in 1 / mm.
    """

    a: float
    b: float
    nearness: float


class MainLens(NamedTuple):
    """The main lens: distance of the stop behind it, radius of the stop, distortion."""

    stop: float
    radius: float
    distortion: ObjectDistortion
    distorts: bool


class MicroLenses(NamedTuple):
    """The micro lenses.

    Parameters
    ----------
    table : LensTable
        Table that finds the lenses around a pixel by their recorded micro-image centers.
    lenses : (n_lenses, 8) float64
        `LENS_IMAGE_X` to `LENS_MAIN_FOCAL`.
    radius : float
        Radius of the micro apertures, mm.
    reach_px : float
        Largest distance from a micro-image center that the light of its lens reaches.
    cos4 : bool
        Whether brightness falls off with the fourth power of the cosine of the angle of incidence.
    """

    table: LensTable
    lenses: FloatArray
    radius: float
    reach_px: float
    cos4: bool


class Footprint(NamedTuple):
    """Size of a sample on a surface at depth z: |alpha z + beta| mm."""

    alpha: float
    beta: float


RAY_X, RAY_Y, RAY_SLOPE_X, RAY_SLOPE_Y, RAY_WEIGHT = 0, 1, 2, 3, 4
RAY_ROWS = 5
"""Rows of a list of rays: the point of the main lens where a ray leaves it, its slope in object
space, and its weight, which is 0 for rays that an aperture stops."""


class PinholeView(NamedTuple):
    """A pinhole at the main lens' center; each tile of `tile_px` pixels has its own candidates."""

    focal_px: float
    principal: FloatArray
    tile_px: int


@njit(**_OPTIONS)
def pick_set(seed, row, col, n_sets):
    """Return the index of the sample set of a pixel: a hash of the seed and the position."""
    h = np.uint64(seed) ^ (np.uint64(row) << np.uint64(32)) ^ np.uint64(col)
    h = (h ^ (h >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    h = (h ^ (h >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    h = h ^ (h >> np.uint64(31))
    return np.int64(h % np.uint64(n_sets))


@njit(**_OPTIONS)
def sample_texture(texels, levels, texture, level, channel, u, v):
    """Return the bilinear value of a texture at (u, v), 0 to 255; NaN outside [0, 1]^2.

    In the half texel between the outermost texel centers and the border, the value is constant.
    """
    if not (0.0 <= u <= 1.0 and 0.0 <= v <= 1.0):
        return math.nan
    offset = levels[texture, level, LEVEL_OFFSET]
    width = levels[texture, level, LEVEL_WIDTH]
    height = levels[texture, level, LEVEL_HEIGHT]
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


@njit(**_OPTIONS)
def find_surface(ox, oy, sx, sy, candidates, n_candidates, surfaces):
    """Return the first surface that a ray meets, the depth there, and texture coordinates (u, v).

    The surface is -1 if the ray meets none. `candidates` are sorted by `surfaces.near`.
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
            denominator = q[QUAD_NORMAL] * sx + q[QUAD_NORMAL + 1] * sy + q[QUAD_NORMAL + 2]
            if denominator == 0.0:
                continue
            t = (q[QUAD_DISTANCE] - q[QUAD_NORMAL] * ox - q[QUAD_NORMAL + 1] * oy) / denominator
            if not (t > NEAREST_MM and t < best):
                continue
            x = ox + t * sx
            y = oy + t * sy
            u = q[QUAD_U] * x + q[QUAD_U + 1] * y + q[QUAD_U + 2] * t - q[QUAD_U_OFFSET]
            if u < 0.0 or u > 1.0:
                continue
            v = q[QUAD_V] * x + q[QUAD_V + 1] * y + q[QUAD_V + 2] * t - q[QUAD_V_OFFSET]
            if v < 0.0 or v > 1.0:
                continue
            best = t
            hit = s
            hit_u = u
            hit_v = v
        else:
            b = balls[s - n_quads]
            px = ox - b[BALL_X]
            py = oy - b[BALL_Y]
            pz = -b[BALL_Z]
            a = sx * sx + sy * sy + 1.0
            half = px * sx + py * sy + pz
            radius = b[BALL_RADIUS]
            discriminant = half * half - a * (px * px + py * py + pz * pz - radius * radius)
            if discriminant < 0.0:
                continue
            t = (-half - math.sqrt(discriminant)) / a
            if t > NEAREST_MM and t < best:
                best = t
                hit = s
    if hit >= n_quads:
        b = balls[hit - n_quads]
        nx = (ox + best * sx - b[BALL_X]) / b[BALL_RADIUS]
        ny = (oy + best * sy - b[BALL_Y]) / b[BALL_RADIUS]
        nz = (best - b[BALL_Z]) / b[BALL_RADIUS]
        r = world_from_cam
        wx = r[0, 0] * nx + r[0, 1] * ny + r[0, 2] * nz
        wy = r[1, 0] * nx + r[1, 1] * ny + r[1, 2] * nz
        wz = r[2, 0] * nx + r[2, 1] * ny + r[2, 2] * nz
        hit_u = math.atan2(wx, -wz) / (2.0 * math.pi) + 0.5
        hit_v = math.asin(min(max(wy, -1.0), 1.0)) / math.pi + 0.5
    return hit, best, hit_u, hit_v


@njit(**_OPTIONS)
def radiance_of(hit, u, v, footprint_mm, channel, surfaces, textures, background):
    """Return the radiance at a point of a surface, averaged over about `footprint_mm`.

    `hit`, u and v are from `find_surface`; the last three arguments are the fields of a `World`.
    """
    quads, balls = surfaces.quads, surfaces.balls
    texture_of, n_levels = textures.texture_of, textures.n_levels
    levels, texels = textures.levels, textures.texels
    if hit < 0:
        return background[channel]
    n_quads = quads.shape[0]
    if hit < n_quads:
        shade = quads[hit, QUAD_SHADE]
        size = footprint_mm * quads[hit, QUAD_DENSITY]
    else:
        shade = balls[hit - n_quads, BALL_SHADE]
        size = footprint_mm * balls[hit - n_quads, BALL_DENSITY]
    texture = texture_of[hit]
    level = 0
    while size > _LARGEST_TEXEL and level < n_levels[texture] - 1:
        size *= 0.5
        level += 1
    value = sample_texture(texels, levels, texture, level, channel, u, v)
    return shade * value * (1.0 / 255.0)


@njit(**_OPTIONS)
def place_in_overlap(disc_x, disc_y, radius, other_radius, other_x, other_y):
    """Map a point of the unit disc into the overlap of two discs; return it and its weight.

    The first disc is centered at the origin. The unit disc is stretched along the line of the
    centers to the overlap's width, and across it to the overlap's height there. The weight is the
    area that the point represents, relative to that of the first disc. With uniformly distributed
    points of the unit disc, the weighted mean is therefore the mean over the first disc of a
    function that is 0 outside the overlap. All rays pass both discs; if points were drawn in one
    disc and some of them missed the other, the brightness would be noisier.
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


@njit(**_OPTIONS)
def sum_until(edge, running, size):
    """Return a running sum (size + 1,) at a place between two entries, linearly interpolated.

    The result is NaN for a place that is NaN or outside of 0 to `size`.
    """
    if not 0.0 <= edge <= size:
        return math.nan
    whole = min(int(edge), size - 1)
    part = edge - whole
    return running[whole] * (1.0 - part) + running[whole + 1] * part


@in_parts(lambda out: out.shape[0] * out.shape[1])
def halve_columns(begin, end, planes, edges, out):
    """Fill `out` (planes, rows, cols // 2) with averages over columns of `planes`.

    If the number of columns is odd, each new texel covers a little more than two old ones, and its
    sum is the difference of the running sum at its `edges` (cols // 2 + 1,).
    """
    n_rows, size = planes.shape[1], planes.shape[2]
    half = out.shape[2]
    running = np.zeros(size + 1)
    for item in range(begin, end):
        plane = item // n_rows
        row = item % n_rows
        if size % 2 == 0:
            for i in range(half):
                left, right = planes[plane, row, 2 * i], planes[plane, row, 2 * i + 1]
                out[plane, row, i] = np.float32(0.5) * (left + right)
            continue
        for i in range(size):
            running[i + 1] = running[i] + planes[plane, row, i]
        before = sum_until(edges[0], running, size)
        for i in range(half):
            after = sum_until(edges[i + 1], running, size)
            out[plane, row, i] = (after - before) * (half / size)
            before = after


@in_parts(lambda out: out.shape[0])
def halve_rows(begin, end, planes, edges, out):
    """Fill `out` (planes, rows // 2, cols) with averages over rows, as `halve_columns` does."""
    size, n_cols = planes.shape[1], planes.shape[2]
    half = out.shape[1]
    for plane in range(begin, end):
        if size % 2 == 0:
            for i in range(half):
                for col in range(n_cols):
                    above, below = planes[plane, 2 * i, col], planes[plane, 2 * i + 1, col]
                    out[plane, i, col] = np.float32(0.5) * (above + below)
            continue
        running = np.zeros((size + 1, n_cols))
        for i in range(size):
            for col in range(n_cols):
                running[i + 1, col] = running[i, col] + planes[plane, i, col]
        for i in range(half):
            for col in range(n_cols):
                after = sum_until(edges[i + 1], running[:, col], size)
                before = sum_until(edges[i], running[:, col], size)
                out[plane, i, col] = (after - before) * (half / size)


@in_parts(lambda out: out.shape[0] * out.shape[1], **UNCOUNTED)
def halve_both(begin, end, planes, out):
    """Fill `out` (planes, rows // 2, cols // 2) as `halve_rows` and `halve_columns` do together.

    The numbers of rows and columns of `planes` are even.
    """
    half_rows, half_cols = out.shape[1], out.shape[2]
    half = np.float32(0.5)
    for item in range(begin, end):
        plane = item // half_rows
        row = item % half_rows
        for i in range(half_cols):
            left = half * (planes[plane, 2 * row, 2 * i] + planes[plane, 2 * row + 1, 2 * i])
            right = half * (
                planes[plane, 2 * row, 2 * i + 1] + planes[plane, 2 * row + 1, 2 * i + 1]
            )
            out[plane, row, i] = half * (left + right)


@in_parts(lambda out: out.shape[0], **UNCOUNTED)
def round_planes(begin, end, planes, out):
    """Fill `out` (planes, rows, cols) uint8 with the rounded values of `planes`."""
    for plane in range(begin, end):
        for row in range(out.shape[1]):
            for col in range(out.shape[2]):
                value = planes[plane, row, col]
                if not value > 0.0:  # NaN too
                    value = np.float32(0.0)
                out[plane, row, col] = np.uint8(np.rint(min(value, np.float32(255.0))))


@in_parts(lambda bundles: len(bundles.slopes), **UNCOUNTED)
def cull_surfaces(begin, end, bundles, order, near, quad_slopes, balls, candidates):
    """List, for each bundle of rays, the surfaces that it can meet, in the given `order`.

    `bundles` is a `Bundles`, `candidates` the `Candidates` to fill. `quad_slopes` (n_quads, 4) are
    the bounds of (x / z, y / z) over the corners; they are infinite for quads too near to the lens.
    """
    slopes, spread, reach_mm = bundles.slopes, bundles.spread, bundles.reach_mm
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
                if sx < b[BOUND_LEFT] - margin or sx > b[BOUND_RIGHT] + margin:
                    continue
                if sy < b[BOUND_TOP] - margin or sy > b[BOUND_BOTTOM] + margin:
                    continue
            else:
                b = balls[s - n_quads]
                if b[BALL_Z] + b[BALL_RADIUS] <= 0.0:
                    continue
                dx = b[BALL_X] - b[BALL_Z] * sx
                dy = b[BALL_Y] - b[BALL_Z] * sy
                slope = math.sqrt(sx * sx + sy * sy)
                margin = b[BALL_RADIUS] * (1.0 + slope) + reach_mm
                margin += (b[BALL_Z] + b[BALL_RADIUS]) * spread
                if dx * dx + dy * dy > margin * margin:
                    continue
            candidates.surfaces[bundle, count] = s
            count += 1
        candidates.counts[bundle] = count


@njit(**_OPTIONS)
def distort_slope(main_x, main_y, slope_x, slope_y, distortion):
    """Return the slope of a ray behind a main lens that distorts in object space.

    The ray meets the main lens at (main_x, main_y) and would leave a perfect one with (slope_x,
    slope_y). `distortion` is an `ObjectDistortion`.
    """
    a, b, nearness = distortion.a, distortion.b, distortion.nearness
    # This is the slope from the lens center to the point of the ray at the distance 1 / nearness.
    # The object side is mirrored, so the ray starts at minus (main_x, main_y).
    from_x = slope_x - nearness * main_x
    from_y = slope_y - nearness * main_y
    square = from_x * from_x + from_y * from_y
    factor = 1.0 - a * square + b * square * square
    return factor * from_x + nearness * main_x, factor * from_y + nearness * main_y


@njit(**_OPTIONS)
def place_rays(corners, samples, extent, main, micro, lens, rays):
    """Fill `rays` (RAY_ROWS, n_rays) with the rays of a pixel through a micro lens.

    `corners` are x and y of the pixel's corners (upper left, upper right, lower left, lower right)
    in mm from the principal point, without distortion. `samples` (n_rays, 4) is one sample set and
    `extent` that of the `Sampling`. The rays do not depend on each other, so the compiler can place
    several of them at a time. Returns False if no ray can pass both apertures.
    """
    x00, y00, x10, y10, x01, y01, x11, y11 = corners
    stop, distortion, lenses = main.stop, main.distortion, micro.lenses
    cx = lenses[lens, LENS_IMAGE_X]
    cy = lenses[lens, LENS_IMAGE_Y]
    lens_x = lenses[lens, LENS_X]
    lens_y = lenses[lens, LENS_Y]
    from_stop = lenses[lens, LENS_FROM_STOP]
    to_sensor = lenses[lens, LENS_TO_SENSOR]
    # A ray traced back through point r of the micro aperture meets the plane of the stop at
    # -ratio m + spread r, where m is the offset in the micro image.
    ratio = from_stop / to_sensor
    spread = lenses[lens, LENS_SPREAD]
    focal_length = lenses[lens, LENS_MAIN_FOCAL]
    # The stop lets through those points of the micro aperture that are in this disc.
    disc_radius = main.radius / abs(spread)
    # No ray passes both discs if not even the nearest sample is near enough to the center.
    diagonal = max(math.hypot(x11 - x00, y11 - y00), math.hypot(x10 - x01, y10 - y01))
    away = math.hypot(0.25 * (x00 + x10 + x01 + x11) - cx, 0.25 * (y00 + y10 + y01 + y11) - cy)
    if (away - extent * diagonal) * abs(ratio / spread) > micro.radius + disc_radius:
        return False
    for s in range(samples.shape[0]):
        fx = samples[s, SAMPLE_X]
        fy = samples[s, SAMPLE_Y]
        x = (x00 * (1.0 - fx) + x10 * fx) * (1.0 - fy)
        x += (x01 * (1.0 - fx) + x11 * fx) * fy
        y = (y00 * (1.0 - fx) + y10 * fx) * (1.0 - fy)
        y += (y01 * (1.0 - fx) + y11 * fx) * fy
        shift_x = -ratio * (x - cx)
        shift_y = -ratio * (y - cy)
        rx, ry, weight = place_in_overlap(
            samples[s, SAMPLE_DISC_X],
            samples[s, SAMPLE_DISC_Y],
            micro.radius,
            disc_radius,
            -shift_x / spread,
            -shift_y / spread,
        )
        stop_x = shift_x + spread * rx
        stop_y = shift_y + spread * ry
        inner_x = (lens_x + rx - stop_x) / from_stop
        inner_y = (lens_y + ry - stop_y) / from_stop
        main_x = stop_x - stop * inner_x
        main_y = stop_y - stop * inner_y
        # The main lens refracts the ray; on the object side both x and z change sign.
        slope_x = inner_x + main_x / focal_length
        slope_y = inner_y + main_y / focal_length
        if main.distorts:
            slope_x, slope_y = distort_slope(main_x, main_y, slope_x, slope_y, distortion)
        if micro.cos4:
            out_x = (x - lens_x - rx) / to_sensor
            out_y = (y - lens_y - ry) / to_sensor
            weight /= (1.0 + out_x * out_x + out_y * out_y) ** 2
        rays[RAY_X, s] = -main_x
        rays[RAY_Y, s] = -main_y
        rays[RAY_SLOPE_X, s] = slope_x
        rays[RAY_SLOPE_Y, s] = slope_y
        rays[RAY_WEIGHT, s] = weight
    return True


@njit(**_OPTIONS)
def trace_rays(rays, footprint, channel, listed, n_listed, world):
    """Return the weighted sum of the radiance that rays find; see `place_rays`, `find_surface`."""
    surfaces, textures, background = world.surfaces, world.textures, world.background
    light = 0.0
    for s in range(rays.shape[1]):
        weight = rays[RAY_WEIGHT, s]
        if weight == 0.0:
            continue
        hit, depth, u, v = find_surface(
            rays[RAY_X, s],
            rays[RAY_Y, s],
            rays[RAY_SLOPE_X, s],
            rays[RAY_SLOPE_Y, s],
            listed,
            n_listed,
            surfaces,
        )
        size = abs(footprint.alpha * depth + footprint.beta)
        light += weight * radiance_of(hit, u, v, size, channel, surfaces, textures, background)
    return light


@njit(**_OPTIONS)
def render_row(row, sensor, sampling, main, micro, candidates, world, footprint, rays, out):
    """Fill `out` with the light on the pixels of a row of the sensor; see `render_raw`."""
    # Fields are read once here, because each access in the innermost loops would cost time.
    pixel_mm, principal, displacement = sensor.pixel_mm, sensor.principal, sensor.displacement
    channels, samples, reach_px = sensor.channels, sampling.samples, micro.reach_px
    listed, counts, table = candidates.surfaces, candidates.counts, micro.table
    centers_raw, start, items = table.centers, table.start, table.items
    origin, shape, cell = table.origin, table.shape, table.cell
    n_sets = samples.shape[0]
    for i_col in range(out.shape[0]):
        col = i_col + sensor.first_col
        chosen = pick_set(sampling.seed, row, col, n_sets)
        channel = channels[row & 1, col & 1]
        corners = (
            (col - 0.5 + displacement[row, col, 0] - principal[0]) * pixel_mm,
            (row - 0.5 + displacement[row, col, 1] - principal[1]) * pixel_mm,
            (col + 0.5 + displacement[row, col + 1, 0] - principal[0]) * pixel_mm,
            (row - 0.5 + displacement[row, col + 1, 1] - principal[1]) * pixel_mm,
            (col - 0.5 + displacement[row + 1, col, 0] - principal[0]) * pixel_mm,
            (row + 0.5 + displacement[row + 1, col, 1] - principal[1]) * pixel_mm,
            (col + 0.5 + displacement[row + 1, col + 1, 0] - principal[0]) * pixel_mm,
            (row + 0.5 + displacement[row + 1, col + 1, 1] - principal[1]) * pixel_mm,
        )
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
                if place_rays(corners, samples[chosen], sampling.extent, main, micro, lens, rays):
                    n_listed = counts[lens]
                    total += trace_rays(rays, footprint, channel, listed[lens], n_listed, world)
        out[i_col] = total / samples.shape[1]


@in_parts(lambda out: len(out))
def render_raw(begin, end, sensor, sampling, main, micro, candidates, world, footprint, out):
    """Fill `out` with the light on each pixel of a part of the sensor.

    A pixel that sees white through the whole micro aperture has the value 1. The arguments
    are a `Sensor`, a `Sampling`, a `MainLens`, a `MicroLenses`, the `Candidates` of each micro
    lens, a `World` and a `Footprint`.
    """
    rays = np.empty((RAY_ROWS, sampling.samples.shape[1]))
    for i in range(begin, end):
        row = i + sensor.first_row
        render_row(row, sensor, sampling, main, micro, candidates, world, footprint, rays, out[i])


@in_parts(lambda out_depth: len(out_depth), **UNCOUNTED)
def render_pinhole(begin, end, view, sampling, candidates, world, footprint, out_color, out_depth):
    """Fill the view of a pinhole: mean color of pixels, and depth of their central rays.

    Depth is NaN where the central ray meets nothing. The arguments are a `PinholeView`, a
    `Sampling`, the `Candidates` of square tiles, a `World` and a `Footprint`.
    """
    focal_px, principal, tile_px = view.focal_px, view.principal, view.tile_px
    samples, listed, counts = sampling.samples, candidates.surfaces, candidates.counts
    surfaces, textures, background = world.surfaces, world.textures, world.background
    n_rays = samples.shape[1]
    width = out_depth.shape[1]
    n_tiles = (width + tile_px - 1) // tile_px
    for row in range(begin, end):
        for col in range(width):
            tile = (row // tile_px) * n_tiles + col // tile_px
            chosen = pick_set(sampling.seed, row, col, samples.shape[0])
            red = 0.0
            green = 0.0
            blue = 0.0
            for s in range(n_rays):
                hit, depth, u, v = find_surface(
                    0.0,
                    0.0,
                    (col - 0.5 + samples[chosen, s, SAMPLE_X] - principal[0]) / focal_px,
                    (row - 0.5 + samples[chosen, s, SAMPLE_Y] - principal[1]) / focal_px,
                    listed[tile],
                    counts[tile],
                    surfaces,
                )
                size = abs(footprint.alpha * depth + footprint.beta)
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
                listed[tile],
                counts[tile],
                surfaces,
            )
            out_depth[row, col] = depth if hit >= 0 else math.nan
