"""Comparison of virtual depth and focused images with the simulator's truth, pixel by pixel.

The truth is a pinhole view without distortion; maps and focused images have the distortion of the
recorded raw. Every pixel of a map is undistorted and looked up in the true view, by the nearest
neighbor for depth and by Lanczos interpolation for brightness. To first order, distortion does not
change `u` itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np

from lifcal.arrays import BoolArray, Float32Array, FloatArray, IntArray
from lifcal.camera import MicroLensGrid, PlenopticCamera
from lifcal.geometry import RigidTransform
from lifcal.simulate import PinholeView, Scene, SensorOptions
from lifcal.virtual import FocusedImage, VirtualDepth

BORDER_PX = 24
"""Width of the border of a map, in px, that is not compared."""
EDGE_PX = 12
"""Smallest distance from depth edges, in px of a map, at which brightness is compared."""
_EDGE_STEP = 0.02
_TEXTURE_WINDOW = 13
_GROSS = 0.05
_CLIP_SIGMAS = 5.0
_MATCH_PX = 2.0
_RATIO = 0.8
PROFILE_PX = 3.0
"""Distance to either side of an edge, in px, up to which brightness is sampled."""
_LEAST_CONTRAST = 30.0


def raw_noise(sensor: SensorOptions) -> float:
    """Return the noise of a raw pixel that sees mid gray, where white is 255."""
    white_e = sensor.exposure * sensor.full_well_e
    return 255.0 * math.sqrt(0.5 * white_e + sensor.read_noise_e**2) / white_e


@dataclass(frozen=True, eq=False)
class Truth:
    """The true values for the maps of a frame.

    Parameters
    ----------
    u : (rows, cols) float64
        True virtual depth; NaN where there is no surface.
    luminance : (rows, cols) float32
        Linear luminance; white is 255.
    gradient : (rows, cols) float32
        Gradient of the luminance per pixel of the true view, rms over a window of 13 x 13 pixels.
    edge_distance_px : (rows, cols) float32
        Distance to the nearest jump of depth.
    points_raw_px : (rows, cols, 2) float64
        Positions of the pixels in the recorded raw.
    inside : (rows, cols) bool
        Whether a pixel is away from the border.
    """

    u: FloatArray
    luminance: Float32Array
    gradient: Float32Array
    edge_distance_px: Float32Array
    points_raw_px: FloatArray
    inside: BoolArray

    def textured(self, least_gradient: float) -> BoolArray:
        """Return a mask of the pixels with enough texture to measure depth."""
        return self.inside & np.isfinite(self.u) & (self.gradient >= least_gradient)


def make_truth(
    camera: PlenopticCamera,
    view: PinholeView,
    shape: tuple[int, int],
    scale: float,
    border_px: int = BORDER_PX,
) -> Truth:
    """Warp a true view to the pixels of a map, which have the distortion of the raw.

    Parameters
    ----------
    camera : PlenopticCamera
    view : PinholeView
    shape : (int, int)
        Rows and columns of the map.
    scale : float
        Size of the map relative to the raw.
    border_px : int
    """
    points = _pixel_places(shape, scale)
    places = _places_in_view(camera, view, points.reshape(-1, 2)).reshape(*shape, 2)
    light = 255.0 * view.luminance
    u_view = camera.virtual_depth_from_depth(view.depth_mm)
    rows, cols = (
        np.clip(np.rint(places[..., axis]).astype(np.int64), 0, view.depth_mm.shape[1 - axis] - 1)
        for axis in (1, 0)
    )
    distance = _edge_distance(u_view)
    inside = np.zeros(shape, np.bool_)
    inside[border_px : shape[0] - border_px, border_px : shape[1] - border_px] = True
    return Truth(
        u_view[rows, cols],
        _warp_light(camera, view, light, shape, scale),
        _rms_gradient(light)[rows, cols],
        distance[rows, cols],
        points,
        inside,
    )


def _warp_light(
    camera: PlenopticCamera,
    view: PinholeView,
    light: Float32Array,
    shape: tuple[int, int],
    scale: float,
) -> Float32Array:
    """Return the true brightness of a map's pixels; if the view's pixels are smaller, their means.

    A view that is smaller than the map lacks detail, so it should be rendered as large as the map.
    """
    parts = max(round(view.focal_px / camera.array.focal_px / scale), 1)
    fine = (shape[0] * parts, shape[1] * parts)
    points = _pixel_places(fine, scale * parts).reshape(-1, 2)
    at = _places_in_view(camera, view, points).astype(np.float32).reshape(*fine, 2)
    values = cv2.remap(
        light, at[..., 0], at[..., 1], cv2.INTER_LANCZOS4, borderMode=cv2.BORDER_REPLICATE
    )
    blocks = values.reshape(shape[0], parts, shape[1], parts)
    return np.asarray(blocks.mean(axis=(1, 3)), np.float32)


def _pixel_places(shape: tuple[int, int], scale: float) -> FloatArray:
    """Return the raw coordinates of a map's pixels, (rows, cols, 2)."""
    y, x = np.mgrid[: shape[0], : shape[1]].astype(np.float64)
    return np.stack([(x + 0.5) / scale - 0.5, (y + 0.5) / scale - 0.5], axis=-1)


def _places_in_view(
    camera: PlenopticCamera, view: PinholeView, points_raw_px: FloatArray
) -> FloatArray:
    """Return the positions in the true view of points of the recorded raw."""
    ratio = view.focal_px / camera.array.focal_px
    ideal = camera.distortion.undistort(points_raw_px, camera.principal_point_px)
    return (ideal + 0.5) * ratio - 0.5


def _places_in_map(
    camera: PlenopticCamera, view: PinholeView, points_view_px: FloatArray, scale: float
) -> FloatArray:
    """Return the positions in a map, which has the raw's distortion, of points of the true view."""
    ratio = view.focal_px / camera.array.focal_px
    ideal = (points_view_px + 0.5) / ratio - 0.5
    recorded = camera.distortion.distort(ideal, camera.principal_point_px)
    return (recorded + 0.5) * scale - 0.5


def _rms_gradient(light: Float32Array) -> Float32Array:
    dy, dx = np.gradient(light)
    mean = cv2.blur(np.asarray(dx * dx + dy * dy, np.float32), (_TEXTURE_WINDOW, _TEXTURE_WINDOW))
    return np.asarray(np.sqrt(np.maximum(mean, 0.0)), np.float32)


def _edge_distance(u: FloatArray) -> Float32Array:
    """Return the distance, in px, to the nearest jump of u by more than 2 % between neighbors."""
    filled = np.where(np.isfinite(u), u, 1e9)
    edges = np.zeros(u.shape, np.uint8)
    for axis in (0, 1):
        step = np.abs(np.diff(filled, axis=axis))
        low = np.minimum(np.abs(np.delete(filled, -1, axis)), np.abs(np.delete(filled, 0, axis)))
        jump = step > _EDGE_STEP * low
        before, after = (slice(None, -1), slice(1, None))
        for part in (before, after):
            edges[(part, slice(None)) if axis == 0 else (slice(None), part)] |= jump
    if not edges.any():
        return np.full(u.shape, np.inf, np.float32)
    return np.asarray(cv2.distanceTransform(1 - edges, cv2.DIST_L2, 5), np.float32)


@dataclass(frozen=True, eq=False)
class DepthErrors:
    """Errors of virtual depth in textured places.

    Parameters
    ----------
    textured_share : float
        Fraction of the pixels away from the border that have texture.
    coverage : float
        Fraction of the textured pixels where u is known.
    relative : (n,) float64
        Relative error u / true u - 1, where both are known.
    normalized : (n,) float64
        Error divided by sigma.
    u : (n,) float64
        True virtual depth.
    points_raw_px : (n, 2) float64
    edge_distance_px : (n,) float32
    """

    textured_share: float
    coverage: float
    relative: FloatArray
    normalized: FloatArray
    u: FloatArray
    points_raw_px: FloatArray
    edge_distance_px: Float32Array

    @property
    def median_error(self) -> float:
        """Median of the absolute relative error."""
        return float(np.median(np.abs(self.relative)))

    @property
    def gross_share(self) -> float:
        """Fraction of the pixels that are off by more than 5 %."""
        return float(np.mean(np.abs(self.relative) > _GROSS))

    @property
    def robust_spread(self) -> float:
        """1.4826 times the median distance of the normalized error from its median."""
        middle = np.median(self.normalized)
        return 1.4826 * float(np.median(np.abs(self.normalized - middle)))

    @property
    def clipped_spread(self) -> float:
        """Rms about zero of the normalized errors below 5, so that a mean error counts too."""
        kept = self.normalized[np.abs(self.normalized) < _CLIP_SIGMAS]
        return float(np.sqrt(np.mean(kept**2)))

    @property
    def beyond_share(self) -> float:
        """Fraction of the normalized errors beyond 5."""
        return float(np.mean(np.abs(self.normalized) >= _CLIP_SIGMAS))


def compare_depth(depth: VirtualDepth, truth: Truth, least_gradient: float) -> DepthErrors:
    """Compare a map of virtual depth with the truth where there is texture."""
    textured = truth.textured(least_gradient)
    both = textured & depth.known
    u = truth.u[both]
    error = depth.u[both] - u
    return DepthErrors(
        float(textured.sum() / max(truth.inside.sum(), 1)),
        float(both.sum() / max(textured.sum(), 1)),
        error / u,
        error / depth.sigma[both],
        u,
        truth.points_raw_px[both],
        truth.edge_distance_px[both],
    )


def join_errors(parts: Sequence[DepthErrors]) -> DepthErrors:
    """Return the errors of several frames as one."""
    return DepthErrors(
        float(np.mean([part.textured_share for part in parts])),
        float(np.mean([part.coverage for part in parts])),
        np.concatenate([part.relative for part in parts]),
        np.concatenate([part.normalized for part in parts]),
        np.concatenate([part.u for part in parts]),
        np.concatenate([part.points_raw_px for part in parts]),
        np.concatenate([part.edge_distance_px for part in parts]),
    )


def compute_phases(points_raw_px: FloatArray, u: FloatArray, grid: MicroLensGrid) -> FloatArray:
    """Return the positions of points in the micro image of the nearest lens modulo 1 px, (n, 2)."""
    centers = grid.centers_raw_px[grid.index.nearest(points_raw_px)]
    return np.asarray((centers + (points_raw_px - centers) / u[:, None]) % 1.0)


@dataclass(frozen=True, eq=False)
class Ripple:
    """Median errors as a function of the sub-pixel phase of a disparity.

    Parameters
    ----------
    phases, errors : (n,) float64
        Phase and median relative error for narrow bins of 1/u, after a linear function of 1/u was
        subtracted for each frame.
    amplitude : float
        Amplitude of the first harmonic.
    """

    phases: FloatArray
    errors: FloatArray
    amplitude: float


def compute_ripple(parts: Sequence[DepthErrors], spacing_px: float, fewest: int = 1500) -> Ripple:
    """Measure pixel locking between micro images that are `spacing_px` apart.

    The positions of a point in two micro images differ by `spacing / u`. With pixel locking, the
    error is periodic in this difference. The median errors in bins of 1/u are fitted by a linear
    function of 1/u for each part (one frame, or several similar ones), because slow trends have
    other causes, and by one sine and cosine of `spacing / u` for all parts.
    """
    edges = np.arange(-0.6, 0.6, 0.001)
    rhos, medians, owners = [], [], []
    for index, part in enumerate(parts):
        bias = compute_bias(1.0 / part.u, part.relative, edges, fewest)
        known = np.isfinite(bias.medians)
        rhos.append(bias.middles[known])
        medians.append(bias.medians[known])
        owners.append(np.full(int(known.sum()), index))
    rho, found, owner = np.concatenate(rhos), np.concatenate(medians), np.concatenate(owners)
    own = (owner[:, None] == np.arange(len(parts))).astype(np.float64)
    turn = 2.0 * np.pi * spacing_px * rho
    design = np.column_stack([own, own * rho[:, None], np.cos(turn), np.sin(turn)])
    solution = np.linalg.lstsq(design, found, rcond=None)[0]
    trend = design[:, :-2] @ solution[:-2]
    return Ripple(
        (spacing_px * rho) % 1.0, found - trend, float(np.hypot(solution[-2], solution[-1]))
    )


@dataclass(frozen=True, eq=False)
class Bias:
    """Median error as a function of a quantity.

    Parameters
    ----------
    middles, medians : (n_bins,) float64
        Middle of each bin and the median error in it; NaN where there are too few values.
    counts : (n_bins,) int
    """

    middles: FloatArray
    medians: FloatArray
    counts: np.ndarray

    @property
    def largest(self) -> float:
        """The largest absolute median."""
        return float(np.nanmax(np.abs(self.medians)))

    @property
    def first_harmonic(self) -> float:
        """Amplitude of `a cos 2 pi p + b sin 2 pi p` fitted to the medians, for a phase p."""
        known = np.isfinite(self.medians)
        turn = 2.0 * np.pi * self.middles[known]
        design = np.column_stack([np.ones(len(turn)), np.cos(turn), np.sin(turn)])
        found = np.linalg.lstsq(design, self.medians[known], rcond=None)[0]
        return float(np.hypot(found[1], found[2]))


def compute_bias(
    quantity: FloatArray, errors: FloatArray, edges: FloatArray, fewest: int = 500
) -> Bias:
    """Return the median error in each bin of a quantity."""
    bins = np.digitize(quantity, edges) - 1
    n_bins = len(edges) - 1
    order = np.argsort(bins, kind="stable")
    ends = np.searchsorted(bins[order], np.arange(n_bins + 1))
    medians = np.full(n_bins, np.nan)
    for index in range(n_bins):
        part = errors[order[ends[index] : ends[index + 1]]]
        if len(part) >= fewest:
            medians[index] = np.median(part)
    return Bias(0.5 * (edges[1:] + edges[:-1]), medians, np.diff(ends))


def detrend_by(
    quantity: FloatArray, errors: FloatArray, edges: FloatArray, fewest: int = 500
) -> FloatArray:
    """Return errors minus the median of their bin of a quantity; NaN in bins with too few."""
    bias = compute_bias(quantity, errors, edges, fewest)
    bins = np.clip(np.digitize(quantity, edges) - 1, 0, len(bias.medians) - 1)
    return np.asarray(errors - bias.medians[bins])


@dataclass(frozen=True)
class ImageErrors:
    """Differences between a focused image and the true view.

    Parameters
    ----------
    psnr_db : float
        PSNR for a peak of 255, away from depth edges.
    psnr_edges_db : float
        PSNR within `EDGE_PX` of depth edges.
    gain : float
        Factor by which the focused image is multiplied so that white is 255.
    """

    psnr_db: float
    psnr_edges_db: float
    gain: float


def compare_image(focused: FocusedImage, truth: Truth) -> ImageErrors:
    """Compare the luminance of a focused image with the truth, after fitting one gain."""
    known = truth.inside & focused.valid & np.isfinite(truth.u)
    calm = known & (truth.edge_distance_px >= EDGE_PX)
    found, wanted = focused.image[calm].astype(np.float64), truth.luminance[calm]
    gain = float(found @ wanted / (found @ found))

    def psnr_db(where: BoolArray) -> float:
        error = gain * focused.image[where].astype(np.float64) - truth.luminance[where]
        return 20.0 * math.log10(255.0 / math.sqrt(float(np.mean(error**2))))

    return ImageErrors(psnr_db(calm), psnr_db(known & ~calm), gain)


@dataclass(frozen=True, eq=False)
class StraightEdge:
    """Points of one straight edge, undistorted, in pixels of a map.

    Parameters
    ----------
    along_px, off_px : (n,) float64
        Coordinates along the true line, and distances from it.
    """

    along_px: FloatArray
    off_px: FloatArray

    @property
    def bend_px(self) -> float:
        """Rms distance from the best straight line."""
        fit = np.polyfit(self.along_px, self.off_px, 1)
        return float(np.sqrt(np.mean((self.off_px - np.polyval(fit, self.along_px)) ** 2)))

    @property
    def bow_px(self) -> float:
        """Height of the best parabola: deviation of its middle from the line through its ends."""
        fit = np.polyfit(self.along_px, self.off_px, 2)
        length = float(np.ptp(self.along_px))
        return abs(float(fit[0])) * length**2 / 4.0

    @property
    def off_true_px(self) -> float:
        """Mean signed distance from the true line."""
        return float(np.mean(self.off_px))


def list_marker_lines(scene: Scene) -> list[list[FloatArray]]:
    """Return straight lines of the scene, each as a list of black-and-white edges (2, 3) on it.

    Edges of different markers that are on one line in space belong to the same line.
    """
    edges = [
        np.stack([marker.corners_world_mm[i], marker.corners_world_mm[(i + 1) % 4]])
        for marker in scene.markers
        for i in range(4)
    ]
    lines: list[list[FloatArray]] = []
    for edge in edges:
        for line in lines:
            start = line[0][0]
            along = line[0][1] - start
            along = along / np.linalg.norm(along)
            offsets = edge - start
            across = offsets - np.outer(offsets @ along, along)
            if np.abs(across).max() < 1e-3:
                line.append(edge)
                break
        else:
            lines.append([edge])
    return lines


def measure_straight_edges(
    image: Float32Array,
    scale: float,
    lines: Sequence[Sequence[FloatArray]],
    camera: PlenopticCamera,
    view: PinholeView,
    cam_from_world: RigidTransform,
    *,
    fewest: int = 60,
) -> list[StraightEdge]:
    """Locate black-and-white edges with sub-pixel accuracy in an image with the raw's distortion.

    Brightness is sampled across the true line at every pixel, at undistorted positions; the edge is
    where it passes half way between the two sides. Edges that are hidden or not completely in the
    image are left out.

    Parameters
    ----------
    image : (rows, cols) float32
        The image; white is about 255.
    scale : float
        Size of the image relative to the raw.
    lines : sequence of sequences of (2, 3) float64
        Result of `list_marker_lines`.
    camera, view, cam_from_world
        The true camera, view and pose.
    fewest : int
        Smallest number of points of a line.
    """
    found = []
    across = np.arange(-PROFILE_PX, PROFILE_PX + 0.01, 0.25)
    for line in lines:
        ends = [_project_to_view(view, cam_from_world.apply(edge)) for edge in line]
        start = ends[0][0]
        along = (ends[-1][1] - start) / np.linalg.norm(ends[-1][1] - start)
        normal = np.array([-along[1], along[0]])
        off, place = [], []
        for edge_view, edge_world in zip(ends, line, strict=True):
            length = float(np.linalg.norm(edge_view[1] - edge_view[0]))
            depth = cam_from_world.apply(edge_world)[:, 2]
            count = int(length - 2.0 * (PROFILE_PX + 1.0))
            if count < 5:
                continue
            share = (PROFILE_PX + 1.0 + np.arange(count)) / length
            middles = edge_view[0] + share[:, None] * (edge_view[1] - edge_view[0])
            # With perspective projection, 1 / z is linear along the image of a line.
            true_depth = 1.0 / ((1.0 - share) / depth[0] + share / depth[1])
            if not _is_visible(view, middles, true_depth):
                continue
            places = middles[:, None, :] + across[None, :, None] * normal
            at = _places_in_map(camera, view, places.reshape(-1, 2), scale).astype(np.float32)
            values = cv2.remap(image, at[:, 0], at[:, 1], cv2.INTER_CUBIC).reshape(count, -1)
            crossing = find_half_crossings(np.asarray(values, np.float32), across)
            good = np.isfinite(crossing)
            off.append(crossing[good] + (middles[good] - start) @ normal)
            place.append((middles[good] - start) @ along)
        if off and sum(map(len, off)) >= fewest:
            found.append(StraightEdge(np.concatenate(place), np.concatenate(off)))
    return found


def _project_to_view(view: PinholeView, points_cam_mm: FloatArray) -> FloatArray:
    projected = view.focal_px * points_cam_mm[:, :2] / points_cam_mm[:, 2:]
    return np.asarray(projected + view.principal_point_px)


def _is_visible(view: PinholeView, points_view_px: FloatArray, depth_mm: FloatArray) -> bool:
    height, width = view.depth_mm.shape
    cols, rows = np.rint(points_view_px).astype(np.int64).T
    margin = BORDER_PX
    if cols.min() < margin or rows.min() < margin:
        return False
    if cols.max() >= width - margin or rows.max() >= height - margin:
        return False
    return bool((np.abs(view.depth_mm[rows, cols] / depth_mm - 1.0) < 0.01).all())


def find_half_crossings(values: Float32Array, across: FloatArray) -> FloatArray:
    """Return the position at which each row passes half way between its first and last values."""
    low, high = values[:, :3].mean(axis=1), values[:, -3:].mean(axis=1)
    share = (values - low[:, None]) / np.where(high == low, 1.0, high - low)[:, None] - 0.5
    out = np.full(len(values), np.nan)
    for row in np.flatnonzero(np.abs(high - low) > _LEAST_CONTRAST):
        signs = np.flatnonzero((share[row, :-1] < 0.0) & (share[row, 1:] >= 0.0))
        if len(signs):
            i = signs[np.argmin(np.abs(across[signs]))]
            part = -share[row, i] / (share[row, i + 1] - share[row, i])
            out[row] = across[i] + part * (across[i + 1] - across[i])
    return out


@dataclass(frozen=True, eq=False)
class SeenImage:
    """An image with the raw's distortion, and the truth with which matches are checked.

    Parameters
    ----------
    image : (rows, cols) float32
        White about 255.
    scale : float
    view : PinholeView
    world_from_cam : RigidTransform
    """

    image: Float32Array
    scale: float
    view: PinholeView
    world_from_cam: RigidTransform


def count_matches(first: SeenImage, second: SeenImage, camera: PlenopticCamera) -> int:
    """Return the number of right matches between the SIFT features of two images.

    Matches are mutual and pass Lowe's ratio test with 0.8. A match is right if the true geometry
    maps the first feature to within 2 px of the second.
    """
    sift: Any = cv2.SIFT_create()  # type: ignore[attr-defined]
    points, codes = [], []
    for seen in (first, second):
        picture = np.clip(np.rint(seen.image), 0, 255).astype(np.uint8)
        keys, code = sift.detectAndCompute(picture, None)
        if code is None:
            return 0
        points.append(np.array([key.pt for key in keys], np.float64))
        codes.append(code)
    forth, back = _match(codes[0], codes[1])
    first_rows = np.flatnonzero(forth >= 0)
    mutual = first_rows[back[forth[first_rows]] == first_rows]
    pairs = np.column_stack([mutual, forth[mutual]])
    if not len(pairs):
        return 0
    expected = _transfer(points[0][pairs[:, 0]], first, second, camera)
    distance = np.linalg.norm(expected - points[1][pairs[:, 1]], axis=1)
    return int((distance < _MATCH_PX).sum())


def _match(a: Float32Array, b: Float32Array) -> tuple[IntArray, IntArray]:
    """Return, for each row of `a`, its match in `b`, and vice versa; -1 where there is none.

    The distance of a match is less than 0.8 times that of the next best.
    """
    squares_b = np.einsum("ij,ij->i", b, b)
    forth = np.full(len(a), -1, np.int64)
    least = np.full((2, len(b)), np.inf, np.float32)
    owner = np.full(len(b), -1, np.int64)
    columns = np.arange(len(b))
    for first in range(0, len(a), 1000):
        part = a[first : first + 1000]
        square = np.einsum("ij,ij->i", part, part)[:, None] + squares_b - 2.0 * part @ b.T
        rows = np.arange(len(part))
        # Update the best and next best entry of each column with those of this block.
        place = square.argmin(axis=0)
        best = square[place, columns]
        square[place, columns] = np.inf
        other = square.min(axis=0)
        square[place, columns] = best
        wins = best < least[0]
        least[1] = np.where(wins, np.minimum(least[0], other), np.minimum(least[1], best))
        owner[wins] = first + place[wins]
        least[0] = np.minimum(least[0], best)
        # Do the same along the rows, which are complete in each block.
        place = square.argmin(axis=1)
        best = square[rows, place]
        square[rows, place] = np.inf
        clear = best < _RATIO**2 * square.min(axis=1)
        forth[first + rows[clear]] = place[clear]
    back = np.where(least[0] < _RATIO**2 * least[1], owner, -1)
    return forth, back


def _transfer(
    points_px: FloatArray, first: SeenImage, second: SeenImage, camera: PlenopticCamera
) -> FloatArray:
    """Return the positions in the second image of points of the first."""
    raw = (points_px + 0.5) / first.scale - 0.5
    places = _places_in_view(camera, first.view, raw)
    height, width = first.view.depth_mm.shape
    cols = np.clip(np.rint(places[:, 0]).astype(np.int64), 0, width - 1)
    rows = np.clip(np.rint(places[:, 1]).astype(np.int64), 0, height - 1)
    depth = first.view.depth_mm[rows, cols].astype(np.float64)
    xy = (places - first.view.principal_point_px) * (depth / first.view.focal_px)[:, None]
    world = first.world_from_cam.apply(np.column_stack([xy, depth]))
    moved = second.world_from_cam.inverse().apply(world)
    projected = _project_to_view(second.view, moved)
    return _places_in_map(camera, second.view, projected, second.scale)
