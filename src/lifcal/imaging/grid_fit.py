"""Fitting the micro-lens grid to a white image, to scene frames, or from a maker's grid.

Each micro image is compared with the mean one. Docs: docs/grid.md.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from lifcal.arrays import Float32Array, FloatArray, IntArray, read_only
from lifcal.camera.apertures import OverlapDiscs
from lifcal.camera.grid import Lattice, MicroLensGrid
from lifcal.errors import DataError, EstimationError, InputError
from lifcal.imaging import _kernels
from lifcal.imaging.frames import Frame, Frames
from lifcal.imaging.lattice_search import (
    CellIndex,
    compute_calm,
    find_lattice,
    fold,
    list_cells,
    measure_brightness,
    smooth_over_lenses,
)
from lifcal.imaging.overlap_fit import (
    BAYER_BLUR_PX2,
    find_types,
    fit_discs,
    measure_profiles,
)

_WINDOW = 0.78
"""Radius of the window of a micro image, in pitches: it must hold the gap all around."""
_FIRST_REACH = 10.0
_DEAD_GAIN = 0.25
_DARK_RIM = 0.05
_OUTLIER_SIGMAS = 5.0
_LEAST_SIGMA_PX = 0.01
"""Of centers: what is nearer than a few of these is no dust, however little noise there is."""
_EDGE_LEVEL = 0.3
_MOST_ROUNDS = 16
_SOME_LENSES = 1500
"""Enough for all rounds but the last."""
_SETTLED_PX = 0.003
_MOST_SATURATED = 0.002
_WORST_RMS = 0.08
"""Of the residuals, in pitches: beyond it the lattice is not the image's."""
WHITE_STRUCTURE = 0.11
"""A micro image of a white image differs from the mean one by less than this (rms, relative)."""


class LensFlag(enum.IntFlag):
    """What happened to a lens in the fit."""

    USED = 1
    """Its center took part in the lattice."""
    OUTLIER = 2
    """Its center or its shape is far from what the others say: dust, dirt, a reflection."""
    DEAD = 4
    """It is dark where its neighbors are not."""
    RIM = 8
    """Cut by the image's border, or in its dark corners."""


@dataclass(frozen=True, eq=False)
class GridFit:
    """A fitted grid, and how well it fits.

    Parameters
    ----------
    grid : MicroLensGrid
        With radius, lens types and overlap discs where they could be found.
    residuals_px : (n_lenses, 2) float64
        Measured minus fitted center for each lens of the grid; NaN where nothing was measured.
    flags : (n_lenses,) uint8
        Bits of `LensFlag`.
    rms_px : float
        Root mean square length of the residuals of the lenses used.
    source : str
        'white', 'frames' or 'scene' (one frame).
    structure : float
        Median over the lenses of the rms difference from the mean micro image of their type,
        relative: noise only for a white image, the scene's contrast otherwise.
    trend_px : float
        Rms of the smooth part of the residuals: a tilt or distortion that no lattice follows.
    notes : tuple of str
        What a user should know.
    """

    grid: MicroLensGrid
    residuals_px: FloatArray
    flags: npt.NDArray[np.uint8]
    rms_px: float
    source: str
    structure: float
    trend_px: float
    notes: tuple[str, ...] = ()

    @property
    def lattice(self) -> Lattice:
        """The fitted lattice."""
        assert self.grid.lattice is not None
        return self.grid.lattice

    @property
    def layout(self) -> str:
        """'hexagonal' or 'square'."""
        return self.lattice.layout

    @property
    def pitch_px(self) -> float:
        """Distance between neighbors."""
        return self.lattice.pitch_px

    @property
    def rotation_rad(self) -> float:
        """Angle from the x axis, see `Lattice.rotation_rad`."""
        return self.lattice.rotation_rad

    @property
    def discs(self) -> OverlapDiscs | None:
        """The two discs whose overlap is the fall-off inside the micro images."""
        return self.grid.discs

    @property
    def n_used(self) -> int:
        """Number of lenses that took part."""
        return int(np.count_nonzero(self.flags & LensFlag.USED))


@dataclass(frozen=True, eq=False)
class FrameAverage:
    """Several frames as one.

    Parameters
    ----------
    mean : (height, width) float32
        Of the frames, each scaled to the same brightness.
    calm : (height, width) float32
        Mean of `compute_calm`.
    count : int
    mosaic : bool
        Whether they were interpolated from a color mosaic.
    """

    mean: Float32Array
    calm: Float32Array
    count: int
    mosaic: bool = False


def fit_grid_to_white(
    white: Frame | npt.NDArray[np.generic], *, n_types: int | None = None, discs: bool = True
) -> GridFit:
    """Fit the grid to a white image.

    Parameters
    ----------
    white : Frame or (height, width) array
        An evenly lit surface, any exposure that does not saturate.
    n_types : int or None
        Number of lens types; found from the image if None.
    discs : bool
        Whether the overlap discs and lens types are looked for.

    Raises
    ------
    EstimationError
        If there is no lattice of micro images in it.
    """
    image = _as_image(white)
    fit = _fit(image, find_lattice(image), "white")
    return _finish(_note_saturation(fit, white), image, n_types, discs, mosaic=_is_mosaic(white))


def fit_grid_to_frames(
    frames: Frames | FrameAverage | Sequence[Frame | npt.NDArray[np.generic]],
    *,
    max_frames: int = 40,
    n_types: int | None = None,
    discs: bool = True,
    on_frame: Callable[[int, int], None] | None = None,
) -> GridFit:
    """Fit the grid to scene frames, where there is no white image.

    What the scene shows differs from frame to frame, the lenses stay: their borders are where the
    image is rough in all frames (`compute_calm`). The fall-off of brightness is that of the mean.

    Parameters
    ----------
    frames : Frames, sequence of Frame or array, or FrameAverage
        Of a moving camera. One frame works too, several times worse.
    max_frames : int
        At most this many are read, evenly spread.
    n_types, discs
        As for `fit_grid_to_white`.
    on_frame : callable
        Called with the number of frames read and to be read.

    Raises
    ------
    EstimationError
        If there is no lattice of micro images in them.
    DataError
        If a frame cannot be read.
    """
    average = (
        frames
        if isinstance(frames, FrameAverage)
        else average_frames(frames, max_frames=max_frames, on_frame=on_frame)
    )
    source = "frames" if average.count > 1 else "scene"
    try:
        fit = _fit(average.calm, find_lattice(average.calm), source)
    except EstimationError:
        # Hardly any texture: then the mean is as good as a white image.
        fit = _fit(average.mean, find_lattice(average.mean), source)
    return _finish(fit, average.mean, n_types, discs, mosaic=average.mosaic)


def refine_grid(
    grid: MicroLensGrid,
    image: Frame | FrameAverage | npt.NDArray[np.generic],
    *,
    source: str = "white",
    discs: bool = True,
) -> GridFit:
    """Move a grid, for instance a maker's, to where an image shows it.

    The lens types and focal planes are kept. The grid may be off by up to a quarter of the pitch
    in the middle of the image. By a single raw the grid is moved as a whole: its pitch and angle
    are better known to the maker than to one view of a scene.

    Parameters
    ----------
    grid : MicroLensGrid
        With a lattice.
    image : Frame, (height, width) array, or FrameAverage
        A white image, a raw, or `average_frames` of several.
    source : str
        'white' or 'scene': what the image is.
    discs : bool
        Whether the overlap discs are fitted.
    """
    if isinstance(image, FrameAverage):
        array, pattern, mosaic = image.mean, image.calm, image.mosaic
        source = "frames" if image.count > 1 else "scene"
    else:
        array, mosaic = _as_image(image), _is_mosaic(image)
        pattern = array if source == "white" else compute_calm(array)
    height, width = array.shape
    if grid.lattice is None:
        raise InputError("a grid that is a list of centers cannot be refined: needs a lattice")
    if grid.image_size != (width, height):
        raise InputError(
            f"the grid is for {grid.image_size[0]} x {grid.image_size[1]} px, the image has "
            f"{width} x {height}"
        )
    fit = _fit(pattern, grid.lattice, source, only_shift=source == "scene")
    moved = fit.lattice.centers(np.zeros((1, 2)))[0] - grid.lattice.origin_px
    fit = replace(
        fit,
        grid=replace(fit.grid, focal_planes=grid.focal_planes),
        notes=(*fit.notes, f"the grid moved by ({moved[0]:+.2f}, {moved[1]:+.2f}) px"),
    )
    return _finish(fit, array, grid.n_types, discs, keep_types=True, mosaic=mosaic)


def average_frames(
    frames: Frames | Sequence[Frame | npt.NDArray[np.generic]],
    *,
    max_frames: int = 40,
    on_frame: Callable[[int, int], None] | None = None,
    on_problem: Callable[[DataError], None] | None = None,
) -> FrameAverage:
    """Return the mean over frames, at most `max_frames` of them, evenly spread.

    Parameters
    ----------
    on_frame : callable
        Called with the number of frames read and to be read.
    on_problem : callable
        Called with what is wrong with a frame, which is then left out; without it, the error is
        raised.
    """
    if len(frames) == 0:
        raise InputError("no frames to average")
    picks = np.unique(np.linspace(0, len(frames) - 1, min(max_frames, len(frames))).astype(int))
    total: Float32Array | None = None
    calm: Float32Array | None = None
    n, mosaic = 0, False
    for count, index in enumerate(picks):
        try:
            item = frames.read(int(index)) if isinstance(frames, Frames) else frames[int(index)]
        except DataError as error:
            if on_problem is None:
                raise
            on_problem(error)
            continue
        image = _as_image(item)
        level = max(float(image.mean()), 1e-6)
        if total is None or calm is None:
            total, calm = np.zeros_like(image), np.zeros_like(image)
        elif total.shape != image.shape:
            raise InputError(f"frame {index} is {image.shape}, the others are {total.shape}")
        total += image / np.float32(level)
        calm += compute_calm(image)
        n += 1
        mosaic = mosaic or _is_mosaic(item)
        if on_frame is not None:
            on_frame(count + 1, len(picks))
    if total is None or calm is None:
        raise DataError(f"none of the {len(picks)} frames could be read")
    return FrameAverage(total / np.float32(n), calm / np.float32(n), n, mosaic)


def _is_mosaic(image: object) -> bool:
    return isinstance(image, Frame) and image.bayer is not None


def _note_saturation(fit: GridFit, image: object) -> GridFit:
    if not (isinstance(image, Frame) and image.saturated > _MOST_SATURATED):
        return fit
    note = (
        f"{100 * image.saturated:.1f} % of the pixels are saturated: do not trust the overlap "
        "discs and lens types; expose shorter"
    )
    return replace(fit, notes=(*fit.notes, note))


def _as_image(image: Frame | npt.NDArray[np.generic]) -> Float32Array:
    array = image.gray if isinstance(image, Frame) else np.asarray(image)
    if array.ndim != 2 or not np.issubdtype(array.dtype, np.number):
        raise InputError(f"the image has shape {array.shape}, needs gray values (height, width)")
    return np.ascontiguousarray(array, np.float32)


def _fit(image: Float32Array, start: Lattice, source: str, *, only_shift: bool = False) -> GridFit:
    """Fit origin and basis, from the middle of the image outwards."""
    height, width = image.shape
    size = (width, height)
    middle = np.array([(width - 1) / 2.0, (height - 1) / 2.0])
    n_types, rule, pitch = start.n_types, start.type_rule, start.pitch_px
    farthest = float(np.hypot(*middle)) + pitch
    reach = _FIRST_REACH * pitch
    lattice = start
    for _ in range(_MOST_ROUNDS):
        whole = reach >= farthest
        moved_lattice, measured = _measure(image, lattice, reach, middle, _SOME_LENSES)
        new = _fit_lattice(measured, moved_lattice, only_shift)
        moved = _largest_move(lattice, new, size)
        lattice = new
        if whole and moved < _SETTLED_PX:
            break
        # Further out when the lattice has settled here.
        if moved * min(1.0, reach / farthest) < 0.03 * pitch:
            reach *= 2.0
    for _ in range(2):
        moved_lattice, measured = _measure(image, lattice, 2.0 * farthest, middle)
        new = _fit_lattice(measured, moved_lattice, only_shift)
        moved = _largest_move(lattice, new, size)
        lattice = new
        if moved < _SETTLED_PX:
            break
    residuals = measured.cells.centers + measured.shifts - lattice.centers(measured.cells.indices)
    measured = replace(measured, shifts=residuals)
    lattice = Lattice(lattice.origin_px, lattice.basis_px, n_types, rule)
    fit = _judge(lattice, size, measured, source)
    if not fit.rms_px < _WORST_RMS * pitch:
        raise EstimationError(
            f"the micro images do not follow the lattice that their spectrum shows (pitch "
            f"{lattice.pitch_px:.2f} px): centers scatter by {fit.rms_px:.1f} px rms. Give a white "
            "image, more frames, or the maker's XML",
            stage="grid",
            evidence={"rms_px": fit.rms_px, "pitch_px": lattice.pitch_px},
        )
    return fit


@dataclass(frozen=True, eq=False)
class _Measured:
    cells: CellIndex
    shifts: FloatArray
    gains: FloatArray
    relative_gains: FloatArray
    errors: FloatArray
    inside: npt.NDArray[np.bool_]


def _measure(
    image: Float32Array,
    lattice: Lattice,
    reach_px: float,
    middle: FloatArray,
    at_most: int | None = None,
) -> tuple[Lattice, _Measured]:
    """Compare the micro images up to a distance from the middle with the mean one.

    Returns the lattice too, with its origin moved to the mean micro image's center of symmetry.
    """
    height, width = image.shape
    pitch = lattice.pitch_px
    cells = list_cells(lattice, (width, height), pitch / 2.0)
    _, level = measure_brightness(image, cells, 0.6 * pitch)
    dark = level < _DARK_RIM * np.nanpercentile(level, 95.0)
    usable = np.where(dark, np.nan, level)
    box = (
        max(0, math.floor(middle[0] - reach_px)),
        max(0, math.floor(middle[1] - reach_px)),
        min(width, math.ceil(middle[0] + reach_px) + 1),
        min(height, math.ceil(middle[1] + reach_px) + 1),
    )
    parts, table = _template(image, lattice, cells, usable, box)
    move = parts @ lattice.basis_px
    lattice = replace(lattice, origin_px=lattice.origin_px + move)
    cells = cells._replace(centers=cells.centers + move)
    near = (np.abs(cells.centers - middle) <= reach_px).all(axis=1)
    margin = 0.55 * pitch
    inside = (
        (cells.centers >= margin - 0.5)
        & (cells.centers <= np.array([width, height]) - 0.5 - margin)
    ).all(axis=1) & ~dark
    chosen = near & inside
    if at_most is not None and chosen.sum() > at_most:
        # The same lenses every time, evenly spread, of all types alike.
        order = np.flatnonzero(chosen)
        chosen = np.zeros(len(chosen), bool)
        chosen[np.random.default_rng(0).choice(order, at_most, replace=False)] = True
    centers = np.where(chosen[:, None], cells.centers, np.nan)
    shifts = np.empty((len(centers), 2))
    gains, errors = np.empty(len(centers)), np.empty(len(centers))
    _kernels.match_cells(
        image,
        centers,
        np.linalg.inv(lattice.basis_px),
        table,
        _WINDOW * pitch,
        shifts,
        gains,
        errors,
    )
    relative = gains / np.maximum(smooth_over_lenses(cells, gains), 1e-12)
    return lattice, _Measured(cells, shifts, gains, relative, errors, inside)


def _template(
    image: Float32Array,
    lattice: Lattice,
    cells: CellIndex,
    level: FloatArray,
    box: tuple[int, int, int, int],
) -> tuple[FloatArray, FloatArray]:
    """Return the mean micro image and its derivatives, a periodic table (size, size, 3).

    Its center of symmetry is searched for, near where the lattice says, and it is made symmetric
    about it. Returned first: that center in lattice units.
    """
    size = 2 * int(np.clip(round(1.2 * lattice.pitch_px), 12, 64))
    return _smooth_table(fold(image, lattice, cells, level, box, size), lattice, symmetric=True)


def _smooth_table(
    table: FloatArray, lattice: Lattice, *, symmetric: bool
) -> tuple[FloatArray, FloatArray]:
    """Return a folded cell without what pixels cannot show, as `_template` does."""
    size = len(table)
    transform = np.fft.fft2(table - table.mean())
    inverse = np.linalg.inv(lattice.basis_px)
    order = np.fft.fftfreq(size, 1.0 / size)
    r, q = np.meshgrid(order, order, indexing="ij")
    f_x = q * inverse[0, 0] + r * inverse[0, 1]
    f_y = q * inverse[1, 0] + r * inverse[1, 1]
    # Beyond the pixels' own frequency there is only noise.
    keep = (np.hypot(f_x, f_y) < 0.6) & (np.abs(q) < size / 2) & (np.abs(r) < size / 2)
    transform = np.where(keep, transform, 0.0)
    fine = 2 * size
    picks = np.r_[0 : size // 2, -(size // 2) : 0]
    parts = np.zeros(2)
    if symmetric:
        parts = _symmetry_center(transform, picks, 4 * size)
        turned = transform * np.exp(2j * np.pi * (q * parts[0] + r * parts[1]))
        transform = turned.real.astype(complex)  # the symmetric part
    transform[0, 0] = table.mean() * size * size
    out = np.empty((fine, fine, 3))
    for channel, factor in enumerate((1.0, 2j * np.pi * f_x, 2j * np.pi * f_y)):
        padded = np.zeros((fine, fine), complex)
        padded[np.ix_(picks, picks)] = (transform * factor)[np.ix_(picks, picks)]
        out[:, :, channel] = np.fft.ifft2(padded).real * 4.0
    return parts, out


def _symmetry_center(
    transform: npt.NDArray[np.complex128], picks: IntArray, size: int
) -> FloatArray:
    """Return the center of symmetry of a periodic table, in periods, at most 0.2 from zero.

    A table that is symmetric about `s` correlates with its mirror image at a shift of 2 s.
    """
    padded = np.zeros((size, size), complex)
    padded[np.ix_(picks, picks)] = transform[np.ix_(picks, picks)] ** 2
    likeness = np.fft.ifft2(padded).real
    reach = int(0.4 * size)
    near = np.roll(likeness, (reach, reach), axis=(0, 1))[: 2 * reach + 1, : 2 * reach + 1]
    row, col = np.unravel_index(int(np.argmax(near)), near.shape)
    place = np.array([float(col), float(row)])
    if 0 < row < 2 * reach and 0 < col < 2 * reach:
        for axis, line in enumerate((near[row, col - 1 : col + 2], near[row - 1 : row + 2, col])):
            curvature = line[0] - 2.0 * line[1] + line[2]
            if curvature < 0.0:
                place[axis] += 0.5 * (line[0] - line[2]) / curvature
    found: FloatArray = (place - reach) / size / 2.0
    return found


def _good(measured: _Measured) -> npt.NDArray[np.bool_]:
    """Return which lenses have a measurement worth fitting to."""
    known = np.isfinite(measured.shifts).all(axis=1)
    good: npt.NDArray[np.bool_] = known & (measured.relative_gains > _DEAD_GAIN)
    if good.sum() >= 8:
        log = np.log(np.maximum(measured.errors[good], 1e-9))
        center = np.median(log)
        spread = max(1.4826 * float(np.median(np.abs(log - center))), 0.1)
        with np.errstate(invalid="ignore"):
            good &= measured.errors < np.exp(center + 4.0 * spread)
    return good


def _fit_lattice(measured: _Measured, lattice: Lattice, only_shift: bool = False) -> Lattice:
    """Return the lattice nearest to the measured centers, outliers weighted down."""
    good = _good(measured)
    if good.sum() < 12:
        raise EstimationError(
            f"only {int(good.sum())} micro images could be placed (need 12): the image is too "
            "small, too dark, or not of this grid",
            stage="grid",
            evidence={"placed": int(good.sum())},
        )
    indices = measured.cells.indices[good].astype(np.float64)
    # Shifts beyond a quarter of the pitch are of the next lens, or of nothing.
    limit = 0.25 * lattice.pitch_px
    shifts = measured.shifts[good]
    length = np.hypot(shifts[:, 0], shifts[:, 1])
    shifts = shifts * np.minimum(1.0, limit / np.maximum(length, 1e-12))[:, None]
    design = np.column_stack([np.ones(len(indices)), indices])
    # Work about the middle of the indices: the columns are then nearly orthogonal.
    offset = design.mean(axis=0) * [0.0, 1.0, 1.0]
    design = design - offset
    if only_shift:
        design[:, 1:] = 0.0  # the least solution leaves what these columns stand for as it is
    weights = np.ones(len(indices))
    change = np.zeros((3, 2))
    for _ in range(25):
        root = np.sqrt(weights)[:, None]
        new = np.linalg.lstsq(design * root, shifts * root, rcond=None)[0]
        left = np.hypot(*(shifts - design @ new).T)
        sigma = max(float(np.median(left)) / 1.1774, 1e-6)  # median of a Rayleigh distribution
        weights = np.minimum(1.0, 1.5 * sigma / np.maximum(left, 1e-12))
        weights[left > 2.0 * _OUTLIER_SIGMAS * sigma] = 0.0
        if np.abs(new - change).max() < 1e-9:
            change = new
            break
        change = new
    origin = lattice.origin_px + change[0] - offset[1] * change[1] - offset[2] * change[2]
    return Lattice(origin, lattice.basis_px + change[1:], lattice.n_types, lattice.type_rule)


def _largest_move(old: Lattice, new: Lattice, size: tuple[int, int]) -> float:
    """Return how far the lattice moved at the image's corners, px."""
    width, height = size
    corners = np.array([[0, 0], [width, 0], [0, height], [width, height]], np.float64)
    indices = (corners - old.origin_px) @ np.linalg.inv(old.basis_px)
    moved = new.origin_px + indices @ new.basis_px - corners
    return float(np.hypot(moved[:, 0], moved[:, 1]).max())


def _judge(lattice: Lattice, size: tuple[int, int], measured: _Measured, source: str) -> GridFit:
    """Flag every lens and sum up the fit."""
    indices = measured.cells.indices
    grid = MicroLensGrid(
        size,
        lattice.centers(indices),
        lattice.types(indices),
        lattice.pitch_px / 2.0,
        lattice.n_types,
        None,
        lattice,
        read_only(indices),
    )
    good = _good(measured)
    length = np.hypot(measured.shifts[:, 0], measured.shifts[:, 1])
    sigma = max(float(np.median(length[good])) / 1.1774, _LEAST_SIGMA_PX)
    with np.errstate(invalid="ignore"):
        far = length > _OUTLIER_SIGMAS * sigma
        dead = measured.inside & (
            ~np.isfinite(measured.relative_gains) | (measured.relative_gains <= _DEAD_GAIN)
        )
    rim = ~measured.inside
    used = good & ~far
    outlier = ~used & ~dead & ~rim
    flags = (
        used * int(LensFlag.USED)
        + outlier * int(LensFlag.OUTLIER)
        + dead * int(LensFlag.DEAD)
        + rim * int(LensFlag.RIM)
    ).astype(np.uint8)
    rms = float(np.sqrt(np.mean(length[used] ** 2)))
    structure = float(np.median(measured.errors[good]))
    trend, curvature = _smooth_trend(measured, used)
    notes: list[str] = []
    share_bad = float(np.count_nonzero(dead | outlier)) / max(1, int(np.count_nonzero(~rim)))
    if share_bad > 0.2:
        notes.append(
            f"{100 * share_bad:.0f} % of the lenses are dead or do not fit: check the picture"
        )
    if curvature:
        notes.append(
            f"the centers bend away from a lattice by {trend:.2f} px rms (lens distortion, or a "
            "tilted sensor)"
        )
    return GridFit(
        grid,
        read_only(measured.shifts),
        read_only(flags),
        rms,
        source,
        structure,
        trend,
        tuple(notes),
    )


def _smooth_trend(measured: _Measured, used: npt.NDArray[np.bool_]) -> tuple[float, bool]:
    """Return the rms of a cubic fitted to the residuals, and whether it is more than noise."""
    centers, shifts = measured.cells.centers[used], measured.shifts[used]
    if len(centers) < 60:
        return 0.0, False
    low, high = centers.min(axis=0), centers.max(axis=0)
    x, y = (2.0 * (centers - low) / np.maximum(high - low, 1.0) - 1.0).T
    design = np.column_stack([x**i * y**j for i in range(4) for j in range(4) if i + j <= 3])
    smooth = design @ np.linalg.lstsq(design, shifts, rcond=None)[0]
    trend = float(np.sqrt(np.mean(np.sum(smooth**2, axis=1))))
    left = float(np.sqrt(np.mean(np.sum((shifts - smooth) ** 2, axis=1))))
    # Noise alone gives left * sqrt(10 / n).
    significant = trend > 5.0 * left * math.sqrt(10.0 / len(centers)) and trend > 0.05
    return trend, significant


def _finish(
    fit: GridFit,
    image: Float32Array,
    n_types: int | None,
    discs: bool,
    *,
    keep_types: bool = False,
    mosaic: bool = False,
) -> GridFit:
    """Add the radius, the lens types and the overlap discs."""
    grid = fit.grid
    assert grid.indices_qr is not None
    notes = list(fit.notes)
    used = (fit.flags & LensFlag.USED) > 0
    profiles = measure_profiles(image, grid, used)
    lattice = fit.lattice
    if not keep_types:
        found = find_types(profiles, lattice, grid.indices_qr, used, n_types)
        lattice = found.lattice
        notes += found.notes
    types: IntArray = lattice.types(grid.indices_qr)
    if fit.source == "white" and lattice.n_types > 1:
        structure = _structure_by_type(image, lattice, grid.indices_qr, used)
        fit = replace(fit, structure=structure)
    radius = profiles.edge_radius_px(_EDGE_LEVEL, grid.pitch_px / 2.0)
    fitted: OverlapDiscs | None = None
    if discs:
        result = fit_discs(
            profiles,
            lattice,
            types,
            used,
            from_scene=fit.source != "white",
            blur_px2=BAYER_BLUR_PX2 if mosaic else 0.0,
        )
        fitted = result.discs
        notes += result.notes
        if fitted is not None and not keep_types and lattice.n_types > 1:
            lattice, fitted = _sort_types(lattice, fitted)
    new = MicroLensGrid.from_lattice(
        lattice,
        grid.image_size,
        radius_px=radius,
        focal_planes=grid.focal_planes,
        discs=fitted,
    )
    return _align(replace(fit, notes=tuple(notes)), new)


def _structure_by_type(
    image: Float32Array, lattice: Lattice, indices_qr: IntArray, used: npt.NDArray[np.bool_]
) -> float:
    """Return `GridFit.structure` where each lens is compared with the mean one of its type."""
    height, width = image.shape
    steps = _type_steps(lattice)
    types = lattice.types(indices_qr)
    found = []
    for kind in range(lattice.n_types):
        own = np.flatnonzero(used & (types == kind))
        if len(own) < 5:
            continue
        centers = lattice.centers(indices_qr[own])
        coarse = Lattice(centers[0], steps @ lattice.basis_px)
        cells = list_cells(coarse, (width, height), lattice.pitch_px)
        _, level = measure_brightness(image, cells, lattice.pitch_px)
        size = 2 * int(np.clip(round(1.2 * coarse.pitch_px), 12, 64))
        folded = fold(image, coarse, cells, level, (0, 0, width, height), size)
        _, table = _smooth_table(folded, coarse, symmetric=False)
        chosen = centers[:: max(1, len(centers) // 300)]
        shifts, gains, errors = (np.empty((len(chosen), n)) for n in (2, 1, 1))
        _kernels.match_cells(
            image,
            np.ascontiguousarray(chosen),
            np.linalg.inv(coarse.basis_px),
            table,
            _WINDOW * lattice.pitch_px,
            shifts,
            gains[:, 0],
            errors[:, 0],
        )
        found.append(errors[np.isfinite(errors)])
    return float(np.median(np.concatenate(found))) if found else math.nan


def _type_steps(lattice: Lattice) -> IntArray:
    """Return two short steps (q, r), one a row, that lead from a lens to all others of its type."""
    i, j, _ = lattice.type_rule
    steps = [
        (q, r)
        for q in range(-3, 4)
        for r in range(-3, 4)
        if (q, r) != (0, 0) and (i * q + j * r) % lattice.n_types == 0
    ]
    steps.sort(key=lambda step: float(np.hypot(*(np.array(step) @ lattice.basis_px))))
    first = steps[0]
    for second in steps[1:]:
        if abs(first[0] * second[1] - first[1] * second[0]) == lattice.n_types:
            return np.array([first, second])
    raise AssertionError(f"no steps for the rule {lattice.type_rule}")


def _sort_types(lattice: Lattice, discs: OverlapDiscs) -> tuple[Lattice, OverlapDiscs]:
    """Number the types by falling micro disc, that is, by rising virtual depth in focus."""
    order = np.argsort(-np.array(discs.micro_px), kind="stable")
    n = lattice.n_types
    rank = np.argsort(order)
    i, j, k = lattice.type_rule
    # rank as a linear map of the type: rank(t) = s t + o (mod n), always so for n up to 3.
    for s in range(1, n):
        for o in range(n):
            if all((s * t + o) % n == rank[t] for t in range(n)):
                rule = ((s * i) % n, (s * j) % n, (s * k + o) % n)
                micro = tuple(discs.micro_px[index] for index in order)
                return replace(lattice, type_rule=rule), OverlapDiscs(discs.main_px, micro)
    return lattice, discs


def _align(fit: GridFit, grid: MicroLensGrid) -> GridFit:
    """Return the fit for a grid of the same lattice with another radius: some lenses less."""
    assert grid.indices_qr is not None
    assert fit.grid.indices_qr is not None
    place = {(int(q), int(r)): n for n, (q, r) in enumerate(fit.grid.indices_qr)}
    rows = np.array([place.get((int(q), int(r)), -1) for q, r in grid.indices_qr])
    residuals = np.where((rows >= 0)[:, None], fit.residuals_px[rows], np.nan)
    flags = np.where(rows >= 0, fit.flags[rows], np.uint8(LensFlag.RIM)).astype(np.uint8)
    return replace(fit, grid=grid, residuals_px=read_only(residuals), flags=read_only(flags))
