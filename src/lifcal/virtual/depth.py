"""Virtual depth: at which `u` the micro images agree, for each pixel of the virtual image.

The estimate goes from coarse to fine. A plane sweep over levels of 1/u with semi-global matching
finds the surface. The gradients of the micro images then refine it between the levels, with a plane
fitted to each window. Last, the planes are evaluated at the output's pixels. The method, its
figures and its limits are in docs/theory/virtual-depth.md.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from lifcal.arrays import Float32Array, FloatArray, cut_rows
from lifcal.camera.grid import MicroLensGrid
from lifcal.errors import ConfigError, EstimationError, InputError
from lifcal.imaging.filters import sharpen
from lifcal.virtual import _kernels_cost, _kernels_refine
from lifcal.virtual._kernels_refine import (
    FUSED_COLUMNS,
    N_SUMS,
    PLANE_FREEDOM,
    PLANE_NOISE,
    PLANE_RHO,
    PLANE_SLOPE_X,
    PLANE_SLOPE_Y,
    PLANE_VARIANCE,
)
from lifcal.virtual._kernels_sampling import SHARPENING, SPLINE_NOISE
from lifcal.virtual.edges import resolve_edges
from lifcal.virtual.optics import LensOptics
from lifcal.virtual.widening import widen
from lifcal.virtual.workspace import NoWorkspace, Workspace

QUALITIES = ("full", "fast")
"""How much work is put into a frame: see `DepthOptions.quality`."""


class _Effort(NamedTuple):
    """How finely a quality samples.

    Parameters
    ----------
    cells_a_pitch : float
        Number of cells of the sweep along one lens pitch: a compromise between detail and time.
    level_px : float
        Distance in px that the outermost sample of a micro image moves from one level of the sweep
        to the next. At less than half a pixel, the cost between two levels is close to a parabola.
    most_step : float
        Largest relative step of rho from one level to the next, for cameras with small micro
        images. The refinement starts within half a step and may change rho by `_MOST_CHANGE`.
    core : float
        Fraction of the used radius of a micro image that the sweep samples.
    half : int
        Half the width, in cells, of the window that the sweep averages costs over.
    rounds : tuple of (int, int)
        Rounds of refinement: sample points along a cell's side, and half the width of the window
        in cells. All rounds but the last only have to bring rho near enough for the next.
    edge_rounds : int
        Number of times that the micro images are compared at depth edges.
    """

    cells_a_pitch: float
    level_px: float
    most_step: float
    core: float
    half: int
    rounds: tuple[tuple[int, int], ...]
    edge_rounds: int


_EFFORTS = {
    "full": _Effort(4.5, 0.46, 0.046, 0.85, 2, ((1, 3), (2, 4)), 2),
    "fast": _Effort(3.3, 0.5, 0.06, 0.7, 2, ((1, 2), (1, 3)), 1),
}
"""The windows of both qualities have about the same size in pixels
(docs/figures/virtual-depth.md compares their results)."""
_SMALL_JUMP = 0.4
_LARGE_JUMP = 2.0
"""Penalties of semi-global matching for a change by one level and by more, in units of
log(1 + cost / noise). docs/figures/virtual-depth.md compares the result with larger windows."""
_EDGE = 0.05
"""Relative change of rho from which on two neighbors are on different surfaces: a little more than
one level."""
_MOST_CHANGE = 0.06
"""Largest relative change of rho by the refinement. Farther away the linear equations do not hold,
so the estimate is flagged as ambiguous."""
_CHOICE_WINDOW = 1
"""Half the width in output pixels of the window over which two surfaces are compared at a depth
edge. It is small, because the window itself may reach across the edge."""
_RANGE_U = (1.7, 16.0)
"""Virtual depths that are searched if no range is given. At smaller u hardly any point is seen by
two lenses; at larger u more lenses see a point than the kernels list (`MOST_LENSES`)."""
_RANGE_NEAR_U = 4.0
"""Virtual depth beyond which so many lenses see a point that the cores of their micro images are
enough to find the range."""
_RANGE_CORE = 0.6
"""Radius of that core as a fraction of the radius in use."""
_RANGE_STEP = 0.08
"""Relative step of rho while the range is searched: about twice that of the depth map, to save
time."""
RANGE_MARGIN = 0.08
"""Fraction by which the found range is widened at both ends: one step of that search."""
_RANGE_QUANTILES = (0.005, 0.995)
"""Fractions of the places between which the range lies; what is beyond is mostly wrong."""
_CLEAR_MARGIN = 1.2
"""Least margin at which a place has a clear depth: 1 + cost / noise of every level that is not near
the best one is at least exp(1.2) = 3.3 times as large as that of the best."""
_FEWEST_CLEAR = 50
"""Least number of places with a clear depth that a range is taken from."""
_CERTAIN_SHARE = 0.05
"""Fraction of places with a clear depth at one sign of u that makes the sign certain: the wrong
sign has hundreds of times fewer."""
_LEAST_FREEDOM = 6.0
"""Least degrees of freedom of a window with a depth: fewer say too little about their own noise."""
SYSTEMATIC = 0.0003
_SYSTEMATIC_BLUR = 0.0005
"""Relative error of u that resampling and the lens model leave, and the error added for each pixel
of blur of the sharpest lens type (set by hand, docs/theory/virtual-depth.md)."""
_NOT_PLANE = 1.8
"""Factor on variances for what planes through windows cannot follow: steps and bends of a surface
that cannot be told from noise (set by hand, docs/theory/virtual-depth.md)."""
_CORRELATED = 0.42
"""Fraction of the interpolated noise that neighboring samples share, at the frequencies of the
gradients (set by hand, docs/theory/virtual-depth.md)."""


class DepthFlag(enum.IntFlag):
    """Reasons why the virtual depth of a pixel is unknown or less certain."""

    NO_TEXTURE = 1
    """The micro images look alike at many depths: sigma is beyond the limit. u is NaN."""
    FEW_LENSES = 2
    """Hardly any point of the window is seen by two lenses. u is NaN."""
    AMBIGUOUS = 4
    """Another depth fits nearly as well, or the estimate did not settle. u is NaN."""
    OUT_OF_RANGE = 8
    """The best depth is an end of the range. u is NaN."""
    OCCLUSION = 16
    """Behind an edge: some lenses do not see this pixel. u is given."""


UNKNOWN = DepthFlag.NO_TEXTURE | DepthFlag.FEW_LENSES | DepthFlag.AMBIGUOUS | DepthFlag.OUT_OF_RANGE


@dataclass(frozen=True)
class DepthOptions:
    """How to estimate virtual depth.

    Parameters
    ----------
    scale : float
        Size of the maps relative to the raw image.
    depth_range : (float, float) or None
        Virtual depths `u` to search, both positive or both negative; None finds them.
    most_sigma : float
        Largest sigma as a fraction of u; where it is larger, u is unknown.
    quality : 'full' or 'fast'
        Full samples the micro images so densely that hardly anything of their information is lost.
        Fast takes about a third of the time: fewer samples for depth, and a focused image without
        the detail of single raw pixels. It is meant for features, tracking and previews.
    """

    scale: float = 0.5
    depth_range: tuple[float, float] | None = None
    most_sigma: float = 0.03
    quality: str = "full"

    def __post_init__(self) -> None:
        if self.quality not in QUALITIES:
            raise ConfigError.unknown("quality", self.quality, QUALITIES)
        if not 0.05 <= self.scale <= 1.25:
            raise InputError(f"scale is {self.scale}, needs 0.05 to 1.25")
        if not self.most_sigma > 0.0:
            raise InputError(f"most_sigma is {self.most_sigma}, needs a positive number")
        if self.depth_range is not None:
            near, far = self.depth_range
            if not (math.isfinite(near) and math.isfinite(far) and near * far > 0.0):
                raise InputError(
                    f"depth_range is {self.depth_range}, needs two virtual depths of one sign"
                )
            if min(abs(near), abs(far)) < 1.0 or near == far:
                raise InputError(
                    f"depth_range is {self.depth_range}, needs two different depths beyond 1"
                )


@dataclass(frozen=True, eq=False)
class VirtualDepth:
    """A map of virtual depth. Pixel (row, col) is at raw ((col + 0.5) / scale - 0.5, ...).

    Parameters
    ----------
    u : (rows, cols) float32
        NaN where unknown.
    sigma : (rows, cols) float32
        Standard deviation of u; NaN where unknown.
    flags : (rows, cols) uint8
        Bits of `DepthFlag`.
    filled : (rows, cols) float32
        Like u, with the most likely surface where it is unknown: for synthesis, not for measuring.
    scale : float
        Size relative to the raw image.
    depth_range : (float, float)
        Virtual depths that were searched.
    noise : float
        Median standard deviation of a value between devignetted pixels, in the image's unit.
    """

    u: Float32Array
    sigma: Float32Array
    flags: npt.NDArray[np.uint8]
    filled: Float32Array
    scale: float
    depth_range: tuple[float, float]
    noise: float

    @property
    def known(self) -> npt.NDArray[np.bool_]:
        """Mask of the pixels whose u is known, (rows, cols)."""
        found: npt.NDArray[np.bool_] = np.isfinite(self.u)
        return found

    def find_range(self, margin: float = RANGE_MARGIN) -> tuple[float, float] | None:
        """Return the virtual depths to search in the next frame: those of this one, widened.

        Parameters
        ----------
        margin : float
            Fraction by which the range is widened at both ends: how much nearer or farther the
            scene may be in the next frame.

        Returns
        -------
        (float, float) or None
            None if so little is known that it says nothing about the next frame.
        """
        known = self.u[::2, ::2]
        known = known[np.isfinite(known)]
        if len(known) < _FEWEST_CLEAR:
            return None
        low, high = np.quantile(known, _RANGE_QUANTILES).tolist()
        if low < 0.0:
            return max(low * (1.0 + margin), -_RANGE_U[1]), min(high / (1.0 + margin), -1.01)
        return max(low / (1.0 + margin), 1.01), min(high * (1.0 + margin), _RANGE_U[1])


def estimate_virtual_depth(
    image: Float32Array,
    grid: MicroLensGrid,
    options: DepthOptions | None = None,
    *,
    optics: LensOptics | None = None,
    workspace: Workspace | None = None,
) -> VirtualDepth:
    """Estimate the virtual depth of every pixel of the virtual image.

    Parameters
    ----------
    image : (height, width) float32
        Devignetted raw image, finite (0 outside the micro images).
    grid : MicroLensGrid
    options : DepthOptions or None
    optics : LensOptics or None
        Tables for the grid, if the caller has them already.
    workspace : Workspace or None
        Keeps the large arrays for the next frame.

    Raises
    ------
    EstimationError
        If no depth range is given and none can be found: too little texture.
    """
    options = options or DepthOptions()
    optics = optics or LensOptics.from_grid(grid)
    space = workspace or NoWorkspace()
    check_raw(image, grid)
    depth_range = options.depth_range or find_depth_range(image, grid, optics=optics)
    table, lenses = grid.index.table, optics.pack()
    height, width = image.shape
    fine = 1.0 / options.scale
    effort = _EFFORTS[options.quality]
    step = max(fine, grid.pitch_px / effort.cells_a_pitch)
    shape = (math.ceil(height / step), math.ceil(width / step))
    core = replace(optics, radius_px=effort.core * optics.radius_px)
    rhos = make_levels(depth_range, core.radius_px, effort.level_px, effort.most_step)

    cost = space.take("cost", (*shape, len(rhos)), np.float32)
    order = _interleave(len(rhos))
    _kernels_cost.sweep(image, table, core.pack(), rhos, order, step, effort.half, cost)
    _kernels_cost.compress(cost, _typical_noise(cost))
    total = space.take("total", cost.shape, np.float32)
    _sum_path_costs(cost, total)
    rho, margin = np.empty(shape), np.empty(shape, np.float32)
    _kernels_cost.pick(total, rhos, rho, margin)
    del cost, total

    first = rho
    sums = space.take("sums", (N_SUMS, *shape), np.float64)
    fused = space.take("fused", (*shape, FUSED_COLUMNS), np.float64)
    spline = make_spline(image, space)
    for parts, half in effort.rounds:
        measured_at = rho
        _kernels_refine.measure(spline, table, lenses, rho, step, parts, sums)
        _kernels_refine.fuse(rho, sums, half, _EDGE, fused)
        settled = np.abs(fused[..., PLANE_RHO] / first - 1.0) < _MOST_CHANGE
        fused[..., PLANE_RHO] = np.where(settled, fused[..., PLANE_RHO], first)
        fused[~settled, PLANE_SLOPE_X] = 0.0
        fused[~settled, PLANE_SLOPE_Y] = 0.0
        rho = fused[..., PLANE_RHO].copy()
    inflation = optics.shared_noise * _correlation(rho, step / parts)
    fused[..., PLANE_VARIANCE] *= inflation
    widen(fused, measured_at, sums, half, _EDGE, inflation, space)
    flags = _flag_cells(fused, settled, margin, options)
    return _evaluate(
        image,
        grid,
        optics,
        fused,
        flags,
        settled & (margin >= 0.0),
        step,
        half,
        options,
        depth_range,
        space,
    )


def find_depth_range(
    image: Float32Array, grid: MicroLensGrid, *, optics: LensOptics | None = None
) -> tuple[float, float]:
    """Return the least and greatest virtual depth in an image, with a margin.

    A Keplerian camera has negative virtual depths. They are searched too unless the positive ones
    are certain.

    Raises
    ------
    EstimationError
        If hardly any place has a clear depth.
    """
    optics = optics or LensOptics.from_grid(grid)
    check_raw(image, grid)
    height, width = image.shape
    core = replace(optics, radius_px=_RANGE_CORE * optics.radius_px)
    step = grid.pitch_px / 2.2
    shape = (math.ceil(height / step), math.ceil(width / step))
    near, far = _RANGE_U
    n_levels = math.ceil(math.log(far / near) / _RANGE_STEP) + 1
    galilean = np.geomspace(1.0 / far, 1.0 / near, n_levels)
    best: tuple[int, FloatArray] = (0, np.empty(0))
    for rhos in (galilean, -galilean):
        cost = np.empty((*shape, n_levels), np.float32)
        many = np.abs(rhos) < 1.0 / _RANGE_NEAR_U
        for chosen, part in ((many, core), (~many, optics)):
            order = np.flatnonzero(chosen)
            order = order[_interleave(len(order))]
            _kernels_cost.sweep(image, grid.index.table, part.pack(), rhos, order, step, 1, cost)
        _kernels_cost.compress(cost, _typical_noise(cost))
        rho, margin = np.empty(shape), np.empty(shape, np.float32)
        _kernels_cost.pick(cost, rhos, rho, margin)
        count = int((margin > _CLEAR_MARGIN).sum())
        if count > best[0]:
            # Parts of the scene with less texture have no clear place of their own: semi-global
            # matching fills them in from their neighbors.
            total = np.empty_like(cost)
            _sum_path_costs(cost, total)
            _kernels_cost.pick(total, rhos, rho, margin)
            best = (count, rho[margin > 0.0])
        if count > _CERTAIN_SHARE * rho.size:
            break
    count, rho = best
    if count < _FEWEST_CLEAR:
        raise EstimationError(
            f"only {count} of {shape[0] * shape[1]} places have a clear virtual depth (need "
            f"{_FEWEST_CLEAR}): the frame has too little texture, or the grid is not its own",
            stage="virtual depth",
            evidence={"clear_places": count, "places": shape[0] * shape[1]},
        )
    low, high = np.quantile(rho, _RANGE_QUANTILES)
    ends = (1.0 / high / (1.0 + RANGE_MARGIN), 1.0 / low * (1.0 + RANGE_MARGIN))
    if ends[0] < 0.0:
        ends = (1.0 / high * (1.0 + RANGE_MARGIN), 1.0 / low / (1.0 + RANGE_MARGIN))
    return float(ends[0]), float(ends[1])


def make_spline(image: Float32Array, workspace: Workspace | None = None) -> Float32Array:
    """Return the B-spline coefficients that values and gradients are sampled from."""
    out = (workspace or NoWorkspace()).take("spline", image.shape, np.float32)
    sharpen(image, SHARPENING, out)
    return out


def make_levels(
    depth_range: tuple[float, float],
    radius_px: float,
    level_px: float = _EFFORTS["full"].level_px,
    most_step: float = _EFFORTS["full"].most_step,
) -> FloatArray:
    """Return inverse virtual depths in even steps of their logarithm, ascending in size.

    A level moves the sample at `radius_px` by `level_px` at most, and rho by the fraction
    `most_step` at most.
    """
    low, high = sorted(1.0 / abs(end) for end in depth_range)
    step = min(level_px / radius_px, most_step)
    count = max(math.ceil(math.log(high / low) / step) + 1, 5)
    levels: FloatArray = np.geomspace(low, high, count) * math.copysign(1.0, depth_range[0])
    return levels


def check_raw(image: Float32Array, grid: MicroLensGrid) -> None:
    """Raise InputError if the kernels of this room cannot take an image."""
    width, height = grid.image_size
    if image.shape != (height, width) or image.dtype != np.float32:
        raise InputError(
            f"image is {image.dtype} of shape {image.shape}, needs float32 of ({height}, {width})"
        )
    if not np.isfinite(image).all():
        raise InputError("image has NaN or infinite values; use 0 outside the micro images")


def _interleave(count: int) -> npt.NDArray[np.int64]:
    """Return 0, 2, 4 ... 1, 3, 5 ...: threads that take parts of it get about equal work."""
    return np.concatenate([np.arange(0, count, 2), np.arange(1, count, 2)])


def _typical_noise(cost: Float32Array) -> np.float32:
    """Return the typical least cost of a place: at its true level only noise is left."""
    some = cost[::3, ::3].reshape(-1, cost.shape[2])
    known = np.isfinite(some).all(axis=1)
    if not known.any():
        return np.float32(1.0)
    return np.float32(max(float(np.quantile(some[known].min(axis=1), 0.3)), 1e-12))


def _sum_path_costs(cost: Float32Array, total: Float32Array) -> None:
    """Fill `total` by semi-global matching: the sum of the path costs from four directions."""
    small, large = np.float32(_SMALL_JUMP), np.float32(_LARGE_JUMP)
    _kernels_cost.pass_along_rows(cost, small, large, total)
    _kernels_cost.pass_along_columns(cost, small, large, total)


def _median_noise(fused: FloatArray) -> float:
    """Return the median standard deviation of a value; 0 if no window has one."""
    noise = fused[..., PLANE_NOISE]
    known = np.isfinite(noise)
    return float(np.sqrt(np.median(noise[known]))) if known.any() else 0.0


def _correlation(rho: FloatArray, spacing_px: float) -> FloatArray:
    """Return the factor on the variance because neighboring samples share raw pixels.

    A raw pixel covers |u| raw px of the virtual image, so it is sampled `(|u| / spacing)^2` times.
    """
    samples = (1.0 / (np.abs(rho) * spacing_px)) ** 2
    return np.maximum(1.0, _CORRELATED * samples / SPLINE_NOISE**2)


def _flag_cells(
    fused: FloatArray,
    settled: npt.NDArray[np.bool_],
    margin: Float32Array,
    options: DepthOptions,
) -> npt.NDArray[np.uint8]:
    """Return the flags of the cells, before their planes are evaluated at the output's pixels."""
    flags = np.zeros(settled.shape, np.uint8)
    relative = np.sqrt(fused[..., PLANE_VARIANCE]) / np.abs(fused[..., PLANE_RHO])
    flags[~(relative < options.most_sigma)] |= np.uint8(DepthFlag.NO_TEXTURE)
    flags[fused[..., PLANE_FREEDOM] < _LEAST_FREEDOM] |= np.uint8(DepthFlag.FEW_LENSES)
    flags[~settled] |= np.uint8(DepthFlag.AMBIGUOUS)
    flags[margin < 0.0] |= np.uint8(DepthFlag.OUT_OF_RANGE)
    return flags


def _evaluate(
    image: Float32Array,
    grid: MicroLensGrid,
    optics: LensOptics,
    fused: FloatArray,
    cell_flags: npt.NDArray[np.uint8],
    settled: npt.NDArray[np.bool_],
    step: float,
    half: int,
    options: DepthOptions,
    depth_range: tuple[float, float],
    space: Workspace,
) -> VirtualDepth:
    """Evaluate planes and flags at the output's pixels."""
    height, width = image.shape
    fine, effort = 1.0 / options.scale, _EFFORTS[options.quality]
    shape = (max(round(height * options.scale), 1), max(round(width * options.scale), 1))
    rho, variance = (space.take(name, shape, np.float32) for name in ("rho", "variance"))
    hidden = space.take("hidden", shape, np.bool_)
    maps = _kernels_refine.FineMaps(rho, variance, hidden)
    _kernels_refine.spread_out(
        image,
        grid.index.table,
        optics.pack(),
        fused,
        step,
        step / fine,
        _EDGE,
        _CHOICE_WINDOW,
        maps,
    )
    noise = _median_noise(fused)
    resolved = resolve_edges(
        image,
        grid,
        optics,
        fused,
        settled,
        half,
        step,
        fine,
        noise,
        maps,
        effort.edge_rounds,
        space,
    )
    rows = np.minimum((np.arange(shape[0]) + 0.5) * fine / step, len(cell_flags) - 1).astype(int)
    cols = np.minimum((np.arange(shape[1]) + 0.5) * fine / step, cell_flags.shape[1] - 1)
    flags = cell_flags[np.ix_(rows, cols.astype(int))]
    # At edges, depth is that of a plane beside it: what the window here lacked does not matter.
    flags[resolved] = 0
    low, high = sorted(1.0 / end for end in depth_range)
    margins = (1.0 - _EDGE, 1.0 + _EDGE) if low > 0.0 else (1.0 + _EDGE, 1.0 - _EDGE)
    u, sigma, filled = (np.empty(shape, np.float32) for _ in range(3))
    for part in cut_rows(rho):
        here, marks = rho[part], flags[part]
        marks[hidden[part]] |= np.uint8(DepthFlag.OCCLUSION)
        beyond = (here < low * margins[0]) | (here > high * margins[1])
        marks[beyond] |= np.uint8(DepthFlag.OUT_OF_RANGE)
        full = np.asarray(1.0 / np.clip(here, low, high), np.float32)
        systematic = SYSTEMATIC**2 + (_SYSTEMATIC_BLUR * optics.compute_least_blur(here)) ** 2
        spread = np.sqrt(_NOT_PLANE * variance[part] * full**4 + systematic * full**2)
        marks[~(spread < np.float32(options.most_sigma) * np.abs(full))] |= np.uint8(
            DepthFlag.NO_TEXTURE
        )
        unknown = (marks & UNKNOWN) != 0
        u[part] = np.where(unknown, np.float32(np.nan), full)
        sigma[part] = np.where(unknown, np.float32(np.nan), spread)
        filled[part] = full
    return VirtualDepth(u, sigma, flags, filled, options.scale, depth_range, noise)
