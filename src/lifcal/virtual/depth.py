"""Virtual depth: at which `u` the micro images agree, for each pixel of the virtual image.

From coarse to fine: a sweep over levels of 1/u with a semi-global sum finds the surface; the
micro images' own gradients then move it between the levels, with a plane through each window; last
the planes are evaluated at the output's pixels. Method and limits:
docs/theory/virtual-depth.md; figures: docs/figures/virtual-depth.md.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from lifcal.arrays import Float32Array, FloatArray, cut_rows
from lifcal.camera.grid import MicroLensGrid
from lifcal.errors import EstimationError, InputError
from lifcal.imaging.filters import sharpen
from lifcal.virtual import _kernels
from lifcal.virtual.optics import LensOptics
from lifcal.virtual.widening import widen
from lifcal.virtual.workspace import NoWorkspace, Workspace

_LEVEL_PX = 0.42
"""How far the outermost sample moves from one level to the next."""
_MOST_STEP = 0.042
"""Of rho from one level to the next: the refinement starts within half of it."""
_CELLS_A_PITCH = 6.0
_ROUNDS = ((1, 4), (2, 6))
"""Of refinement: points along a cell's side, and half the width of the window in cells."""
_SWEEP_HALF = 2
_SMALL_JUMP = 0.4
_LARGE_JUMP = 2.0
_EDGE = 0.05
_MOST_CHANGE = 0.06
_CHOICE_WINDOW = 1
_RANGE_U = (1.7, 16.0)
_RANGE_NEAR_U = 4.0
"""Beyond this so many lenses see a point that the cores of their images are enough."""
_RANGE_CORE = 0.6
_RANGE_STEP = 0.08
RANGE_MARGIN = 0.08
_CLEAR_MARGIN = 1.2
_FEWEST_CLEAR = 50
_CERTAIN_SHARE = 0.05
"""Of places that are clear at one sign of u: hundreds of times what the wrong sign has."""
_LEAST_FREEDOM = 6.0
SYSTEMATIC = 0.0003
_SYSTEMATIC_BLUR = 0.0005
"""Of u: what resampling and the lens model leave, and for each pixel of blur that the sharpest lens
type has (docs/theory/virtual-depth.md)."""
_NOT_PLANE = 1.8
"""By which variances are raised for what planes through windows leave: steps and bends of a surface
that cannot be told from noise (docs/theory/virtual-depth.md)."""
_CORRELATED = 0.42
"""Share of the interpolated noise that neighboring samples have in common, at the frequencies of
the gradients (docs/theory/virtual-depth.md)."""


class DepthFlag(enum.IntFlag):
    """Why a pixel's virtual depth is unknown or to be taken with care."""

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
        Where sigma is beyond this part of u, it is unknown.
    """

    scale: float = 0.5
    depth_range: tuple[float, float] | None = None
    most_sigma: float = 0.03

    def __post_init__(self) -> None:
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
        What was searched.
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
        """Where u is known."""
        found: npt.NDArray[np.bool_] = np.isfinite(self.u)
        return found


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
    step = max(fine, grid.pitch_px / _CELLS_A_PITCH)
    shape = (math.ceil(height / step), math.ceil(width / step))
    rhos = make_levels(depth_range, optics.radius_px)

    cost = space.take("cost", (*shape, len(rhos)), np.float32)
    _kernels.sweep(image, table, lenses, rhos, _interleave(len(rhos)), step, _SWEEP_HALF, cost)
    _kernels.compress(cost, _typical_noise(cost))
    total = space.take("total", cost.shape, np.float32)
    _add_up_ways(cost, total)
    rho, margin = np.empty(shape), np.empty(shape, np.float32)
    _kernels.pick(total, rhos, rho, margin)
    del cost, total

    first = rho
    sums = space.take("sums", (_kernels.SUMS, *shape), np.float64)
    fused = space.take("fused", (*shape, _kernels.FUSED), np.float64)
    spline = make_spline(image, space)
    for parts, half in _ROUNDS:
        measured_at = rho
        _kernels.measure(spline, table, lenses, rho, step, parts, sums)
        _kernels.fuse(rho, sums, half, _EDGE, fused)
        settled = np.abs(fused[..., 0] / first - 1.0) < _MOST_CHANGE
        fused[..., 0] = np.where(settled, fused[..., 0], first)
        fused[~settled, 1:3] = 0.0
        rho = fused[..., 0].copy()
    inflation = optics.shared_noise * _correlation(rho, step / parts)
    fused[..., 3] *= inflation
    widen(fused, measured_at, sums, half, _EDGE, inflation, space)
    flags = _flag_cells(fused, settled, margin, options)
    return _evaluate(image, grid, optics, fused, flags, step, options, depth_range, space)


def find_depth_range(
    image: Float32Array, grid: MicroLensGrid, *, optics: LensOptics | None = None
) -> tuple[float, float]:
    """Return the least and greatest virtual depth in an image, with a margin.

    A Keplerian camera has negative virtual depths: they are searched unless positive ones are
    certain.

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
            _kernels.sweep(image, grid.index.table, part.pack(), rhos, order, step, 1, cost)
        _kernels.compress(cost, _typical_noise(cost))
        rho, margin = np.empty(shape), np.empty(shape, np.float32)
        _kernels.pick(cost, rhos, rho, margin)
        count = int((margin > _CLEAR_MARGIN).sum())
        if count > best[0]:
            # Clear places may miss a part of the scene with less texture; their neighbors help.
            total = np.empty_like(cost)
            _add_up_ways(cost, total)
            _kernels.pick(total, rhos, rho, margin)
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
    low, high = np.quantile(rho, [0.005, 0.995])
    ends = (1.0 / high / (1.0 + RANGE_MARGIN), 1.0 / low * (1.0 + RANGE_MARGIN))
    if ends[0] < 0.0:
        ends = (1.0 / high * (1.0 + RANGE_MARGIN), 1.0 / low / (1.0 + RANGE_MARGIN))
    return float(ends[0]), float(ends[1])


def make_spline(image: Float32Array, workspace: Workspace | None = None) -> Float32Array:
    """Return the coefficients of the spline that values and gradients are taken from."""
    out = (workspace or NoWorkspace()).take("spline", image.shape, np.float32)
    sharpen(image, _kernels.SHARPENING, out)
    return out


def make_levels(depth_range: tuple[float, float], radius_px: float) -> FloatArray:
    """Return inverse virtual depths, evenly spaced in their logarithm, ascending in size."""
    low, high = sorted(1.0 / abs(end) for end in depth_range)
    step = min(_LEVEL_PX / radius_px, _MOST_STEP)
    count = max(math.ceil(math.log(high / low) / step) + 1, 5)
    levels: FloatArray = np.geomspace(low, high, count) * math.copysign(1.0, depth_range[0])
    return levels


def check_raw(image: Float32Array, grid: MicroLensGrid) -> None:
    """Raise InputError if an image is not one that the kernels of this room take."""
    width, height = grid.image_size
    if image.shape != (height, width) or image.dtype != np.float32:
        raise InputError(
            f"image is {image.dtype} of shape {image.shape}, needs float32 of ({height}, {width})"
        )
    if not np.isfinite(image).all():
        raise InputError("image has NaN or infinite values; use 0 outside the micro images")


def _interleave(count: int) -> npt.NDArray[np.int64]:
    """Return 0, 2, 4 ... 1, 3, 5 ...: cores that take halves of it get equal work."""
    return np.concatenate([np.arange(0, count, 2), np.arange(1, count, 2)])


def _typical_noise(cost: Float32Array) -> np.float32:
    """Return the cost where the right level has nothing but noise."""
    some = cost[::3, ::3].reshape(-1, cost.shape[2])
    known = np.isfinite(some).all(axis=1)
    if not known.any():
        return np.float32(1.0)
    return np.float32(max(float(np.quantile(some[known].min(axis=1), 0.3)), 1e-12))


def _add_up_ways(cost: Float32Array, total: Float32Array) -> None:
    """Fill `total` with the cheapest ways to come to each pixel and level from four directions."""
    small, large = np.float32(_SMALL_JUMP), np.float32(_LARGE_JUMP)
    _kernels.pass_along_rows(cost, small, large, total)
    _kernels.pass_along_columns(cost, small, large, total)


def _median_noise(fused: FloatArray) -> float:
    known = np.isfinite(fused[..., 4])
    return float(np.sqrt(np.median(fused[known, 4]))) if known.any() else 0.0


def _correlation(rho: FloatArray, spacing_px: float) -> FloatArray:
    """Return by how much neighboring samples, which share pixels, raise the variance.

    A pixel of the raw covers |u| raw px of the virtual image: it is sampled `(|u| / spacing)^2`
    times.
    """
    samples = (1.0 / (np.abs(rho) * spacing_px)) ** 2
    return np.maximum(1.0, _CORRELATED * samples / _kernels.SPLINE_NOISE**2)


def _flag_cells(
    fused: FloatArray,
    settled: npt.NDArray[np.bool_],
    margin: Float32Array,
    options: DepthOptions,
) -> npt.NDArray[np.uint8]:
    flags = np.zeros(settled.shape, np.uint8)
    relative = np.sqrt(fused[..., 3]) / np.abs(fused[..., 0])
    flags[~(relative < options.most_sigma)] |= np.uint8(DepthFlag.NO_TEXTURE)
    flags[fused[..., 5] < _LEAST_FREEDOM] |= np.uint8(DepthFlag.FEW_LENSES)
    flags[~settled] |= np.uint8(DepthFlag.AMBIGUOUS)
    flags[margin < 0.0] |= np.uint8(DepthFlag.OUT_OF_RANGE)
    return flags


def _evaluate(
    image: Float32Array,
    grid: MicroLensGrid,
    optics: LensOptics,
    fused: FloatArray,
    cell_flags: npt.NDArray[np.uint8],
    step: float,
    options: DepthOptions,
    depth_range: tuple[float, float],
    space: Workspace,
) -> VirtualDepth:
    """Bring planes and flags to the output's pixels."""
    height, width = image.shape
    fine = 1.0 / options.scale
    shape = (max(round(height * options.scale), 1), max(round(width * options.scale), 1))
    rho, variance = (space.take(name, shape, np.float32) for name in ("rho", "variance"))
    hidden = space.take("hidden", shape, np.bool_)
    _kernels.spread_out(
        image,
        grid.index.table,
        optics.pack(),
        fused,
        step,
        step / fine,
        _EDGE,
        _CHOICE_WINDOW,
        rho,
        variance,
        hidden,
    )
    rows = np.minimum((np.arange(shape[0]) + 0.5) * fine / step, len(cell_flags) - 1).astype(int)
    cols = np.minimum((np.arange(shape[1]) + 0.5) * fine / step, cell_flags.shape[1] - 1)
    flags = cell_flags[np.ix_(rows, cols.astype(int))]
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
    return VirtualDepth(u, sigma, flags, filled, options.scale, depth_range, _median_noise(fused))
