"""Fitting the micro-lens grid to a white image, to scene frames, or from a maker's grid.

Each micro image is compared with the mean one. See docs/theory/grid.md.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from lifcal.arrays import Float32Array, FloatArray, IntArray, read_only
from lifcal.camera.apertures import OverlapDiscs, compute_disc_overlap
from lifcal.camera.bend import LARGEST_ORDER, FieldFit, cut_tiles, evaluate_terms, fit_field
from lifcal.camera.grid import Lattice, MicroLensGrid, find_rows
from lifcal.diagnostics import Finding
from lifcal.errors import DataError, EstimationError, InputError
from lifcal.grid.lattice_search import compute_calm, find_lattice
from lifcal.grid.lens_match import OWN_WINDOW, LensMatch, match_by_type, match_lenses
from lifcal.grid.overlap_fit import (
    BAYER_BLUR_PX2,
    find_types,
    fit_discs,
    measure_profiles,
)
from lifcal.imaging.frames import Frame, Frames

_FIRST_REACH = 10.0
"""Radius in pitches, from the middle of the image, at which the fit begins. So far a lattice that
the spectrum shows to 0.1 % stays within a small part of the pitch, and some 300 lenses are
there."""
_ORDER_INNER, _ORDER_WHOLE = 3, 5
"""Highest orders of the bend that are tried while the fit grows outward, inside half of the image's
diagonal and beyond it. A higher order extrapolates worse than it describes."""
_OUTLIER_SIGMAS = 5.0
"""A center that is farther from the fit than this many robust standard deviations is an outlier:
dust, for example."""
_LEAST_SIGMA_PX = 0.01
"""Least standard deviation of centers for that comparison: a center that is nearer than a few of
these is no dust, however little noise there is."""
_EDGE_LEVEL = 0.3
"""Brightness, as a part of that in the middle, at which a micro image ends."""
_MOST_ROUNDS = 16
"""Rounds of matching and fitting at most, while the fit grows outward and until it settles."""
_SOME_LENSES = 1500
"""Lenses that are matched in all rounds but the last, in which all are: they determine lattice and
bend well enough on the way."""
_SETTLED_PX = 0.003
"""The fit has settled if its centers moved by less than this, a small part of what matters to
virtual depth."""
_MOST_SATURATED = 0.002
"""Share of saturated pixels from which a finding says that an image is overexposed."""
_WORST_RMS = 0.08
"""Root mean square of the residuals in pitches beyond which the lattice is not the image's."""
_PIXEL_BLUR_PX2 = 1.0 / 12.0
"""Variance, along an axis, of a uniform distribution over the area of a pixel."""
_CLEAR_SPREAD = 1.0
"""Variance of the lenses' own deviations over that of their noise. Below it a deviation tells more
about the noise than about the lens."""
_LARGE_TREND = {"white": 0.004, "frames": 0.015, "scene": 0.015}
"""What is left smoothly, in pitches, from which a finding says so: 0.1 px at 25 px. A center that
is wrong by that much moves a virtual point by up to 0.4 px, several times what a measured point is
off by. What frames of a scene have in common looks like a trend of up to 0.005 pitches."""
_BORDER_SHADING = 0.005
"""Root mean square over the image, in pitches, by which shading stretches a grid that is fitted to
rough borders: 0.067 px at a pitch of 12.6 px for `mini-real`, whose micro lenses see 17 degrees."""
_CLEAR_SHADING = 4.0
"""Number of standard deviations from which a shading is more than noise."""
_APERTURE = (0.35, 0.1)
"""Radius of a micro aperture in pitches, and its standard deviation, before looking at the image:
between masked arrays (0.25) and those filled to the border (0.47)."""
_RIM = 0.9
"""Where shading is compared with that in the middle: a part of the way to the corners."""
_SAMPLES = 64
"""Samples along each side of a micro image's window, where its shading is integrated."""
_STEP_PX = 1e-4
"""Step of a difference quotient across an outline."""
WHITE_STRUCTURE = 0.11
"""A micro image of a white image differs from the mean one by less than this (rms, relative)."""


class LensFlag(enum.IntFlag):
    """Role of a lens in the fit."""

    USED = 1
    """Its center took part in the lattice."""
    OUTLIER = 2
    """Its center or its shape is far from what the others say: dust, dirt, a reflection."""
    DEAD = 4
    """It is dark where its neighbors are not."""
    RIM = 8
    """It is cut by the image's border, or lies in the dark corners."""


@dataclass(frozen=True, eq=False)
class GridFit:
    """A fitted grid, and how well it fits.

    Parameters
    ----------
    grid : MicroLensGrid
        The grid with radius, lens types and overlap discs, where they could be found.
    residuals_px : (n_lenses, 2) float64
        Measured center minus lattice and bend for each lens of the grid; NaN where nothing was
        measured. The lens' own deviation is part of it.
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
        Rms of what is left smoothly: neither lattice, bend nor the deviations of lenses follow it.
    sigma_px : float
        Standard deviation of lattice and bend, rms over the lenses.
    findings : tuple of Finding
        Findings about the images.
    """

    grid: MicroLensGrid
    residuals_px: FloatArray
    flags: npt.NDArray[np.uint8]
    rms_px: float
    source: str
    structure: float
    trend_px: float
    sigma_px: float
    findings: tuple[Finding, ...] = ()

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
        Mean of the frames, each scaled to the same brightness.
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
    found = _fit(image, _make_start(image))
    fit = _finish(*found, "white", image, n_types, discs, outlines=True, mosaic=_is_mosaic(white))
    return _note_saturation(fit, white)


def fit_grid_to_frames(
    frames: Frames | FrameAverage | Sequence[Frame | npt.NDArray[np.generic]],
    *,
    max_frames: int = 40,
    n_types: int | None = None,
    discs: bool = True,
    on_frame: Callable[[int, int], None] | None = None,
) -> GridFit:
    """Fit the grid to scene frames, where there is no white image.

    The scene changes from frame to frame, but the lenses do not: their borders have large gradients
    in all frames (`compute_calm`), which gives the lattice. The final centers are fitted to the
    mean over the frames, with outlines and shading together, as in a white image. Where the mean
    still shows the scene, they are fitted to the borders instead.

    Parameters
    ----------
    frames : Frames, sequence of Frame or array, or FrameAverage
        Frames of a moving camera. One frame is enough, but several times less accurate.
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
        found = _fit(average.calm, _make_start(average.calm))
        found, outlines = _prefer_mean(average, found)
    except EstimationError:
        # Hardly any texture: then the mean is as good as a white image.
        found, outlines = _fit(average.mean, _make_start(average.mean)), True
    return _finish(
        *found, source, average.mean, n_types, discs, outlines=outlines, mosaic=average.mosaic
    )


def refine_grid(
    grid: MicroLensGrid,
    image: Frame | FrameAverage | npt.NDArray[np.generic],
    *,
    source: str = "white",
    discs: bool = True,
) -> GridFit:
    """Move a given grid, for instance a maker's, to the micro images of an image.

    The lens types and focal planes are kept. The grid may be off by up to a quarter of the pitch
    in the middle of the image. With a single raw the grid is moved as a whole, because the maker
    knows its pitch and angle better than one view of a scene shows them.

    Parameters
    ----------
    grid : MicroLensGrid
        A grid that has a lattice.
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
    if grid.lattice is None or grid.indices_qr is None:
        raise InputError("a grid that is a list of centers cannot be refined: needs a lattice")
    if grid.image_size != (width, height):
        raise InputError(
            f"the grid is for {grid.image_size[0]} x {grid.image_size[1]} px, the image has "
            f"{width} x {height}"
        )
    start = replace(grid, radius_px=grid.pitch_px / 2.0, discs=None)
    if source == "white":
        start = replace(start, deviations_px=None)
    start = start.on_lattice(grid.lattice, grid.bend)
    found, outlines = _fit(pattern, start, only_shift=source == "scene"), source == "white"
    if isinstance(image, FrameAverage):
        found, outlines = _prefer_mean(image, found)
    fit = _finish(
        *found,
        source,
        array,
        grid.n_types,
        discs,
        outlines=outlines,
        keep_types=True,
        mosaic=mosaic,
    )
    assert fit.grid.indices_qr is not None
    rows = find_rows(fit.grid.indices_qr, grid.indices_qr)
    known = rows >= 0
    moved = np.median(fit.grid.centers_raw_px[rows[known]] - grid.centers_raw_px[known], axis=0)
    finding = Finding.of(
        "grid-refined",
        f"the grid moved by ({moved[0]:+.2f}, {moved[1]:+.2f}) px",
        moved_px=moved.tolist(),
    )
    return replace(fit, findings=(*fit.findings, finding))


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
    finding = Finding.of(
        "image-saturated",
        f"{100 * image.saturated:.1f} % of the pixels are saturated: do not trust the overlap "
        "discs and lens types; expose shorter",
        share=image.saturated,
    )
    return replace(fit, findings=(*fit.findings, finding))


def _as_image(image: Frame | npt.NDArray[np.generic]) -> Float32Array:
    array = image.gray if isinstance(image, Frame) else np.asarray(image)
    if array.ndim != 2 or not np.issubdtype(array.dtype, np.number):
        raise InputError(f"the image has shape {array.shape}, needs gray values (height, width)")
    return np.ascontiguousarray(array, np.float32)


def _make_start(image: Float32Array) -> MicroLensGrid:
    height, width = image.shape
    return MicroLensGrid.from_lattice(find_lattice(image), (width, height))


def _fit(
    image: Float32Array, start: MicroLensGrid, *, only_shift: bool = False
) -> tuple[MicroLensGrid, LensMatch]:
    """Fit lattice and bend, from the middle of the image outwards.

    It returns the grid and the match of each of its lenses.
    """
    height, width = image.shape
    pitch = start.pitch_px
    farthest = math.hypot(width, height) / 2.0 + pitch
    reach = _FIRST_REACH * pitch
    grid = start
    for _ in range(_MOST_ROUNDS):
        whole = reach >= farthest
        match = match_lenses(image, grid, reach, _SOME_LENSES)
        order = _ORDER_WHOLE if 2.0 * reach >= farthest else _ORDER_INNER
        grid, moved = _follow(grid, match, 0 if only_shift else order)
        if whole and moved < _SETTLED_PX:
            break
        # Further out when the field has settled here.
        if moved < 0.03 * pitch:
            reach *= 2.0
    for _ in range(2):
        match = match_lenses(image, grid, 2.0 * farthest)
        grid, moved = _follow(grid, match, 0 if only_shift else LARGEST_ORDER)
        if moved < _SETTLED_PX:
            break
    rms = _rms(_residuals(grid, match)[match.good])
    if not rms < _WORST_RMS * pitch:
        raise EstimationError(
            f"the micro images do not follow the lattice that their spectrum shows (pitch "
            f"{grid.pitch_px:.2f} px): centers scatter by {rms:.1f} px rms. Give a white "
            "image, more frames, or the maker's XML",
            stage="grid",
            evidence={"rms_px": rms, "pitch_px": grid.pitch_px},
        )
    return grid, match


def _prefer_mean(
    average: FrameAverage, found: tuple[MicroLensGrid, LensMatch]
) -> tuple[tuple[MicroLensGrid, LensMatch], bool]:
    """Fit the mean over frames too; return the better of both fits, and whether it is the mean's.

    Shading moves the borders of micro images by an unknown amount, and outlines by a known one. The
    mean shows outlines, and the remains of the scene.
    """
    if average.count < 2:
        return found, False
    try:
        mean = _fit(average.mean, found[0])
    except EstimationError:
        return found, False
    unsure = math.hypot(_measure_sigma(*found), _BORDER_SHADING * found[0].pitch_px)
    return (mean, True) if _measure_sigma(*mean) < unsure else (found, False)


def _measure_sigma(grid: MicroLensGrid, match: LensMatch) -> float:
    """Return the standard deviation of lattice and bend, rms over the lenses in px."""
    good = match.good
    places, _, deviations = _expect(grid, match.cells.indices[good])
    shifts = match.centers_px[good] - deviations - places
    field = fit_field(places, shifts, grid.image_size)
    values = evaluate_terms(places, grid.image_size, field.order)
    variances = np.einsum("ni,ij,nj->n", values, field.covariance_px2, values, optimize=True)
    if grid.bend is not None and grid.bend.covariance_px2 is not None:
        # The covariance also contains errors that the scatter does not show, such as shading.
        variances = np.maximum(variances, grid.bend.sigma_at(places) ** 2)
    return math.sqrt(2.0 * float(variances.mean()))


def _follow(
    grid: MicroLensGrid, match: LensMatch, largest_order: int
) -> tuple[MicroLensGrid, float]:
    """Return the grid moved to the measured centers, and the longest move of a lens measured.

    With `largest_order` 0 the grid is moved as a whole, and keeps its bend.
    """
    lattice = grid.lattice
    assert lattice is not None
    good = match.good
    if good.sum() < 12:
        raise EstimationError(
            f"only {int(good.sum())} micro images could be placed (need 12): the image is too "
            "small, too dark, or not of this grid",
            stage="grid",
            evidence={"placed": int(good.sum())},
        )
    places, smooth, deviations = _expect(grid, match.cells.indices[good])
    # Shifts beyond a quarter of the pitch belong to the next lens, or are wrong.
    shifts = match.shifts[good]
    length = np.hypot(*shifts.T)
    shifts = shifts * np.minimum(1.0, 0.25 * lattice.pitch_px / np.maximum(length, 1e-12))[:, None]
    centers = match.cells.centers[good] + shifts - deviations
    held = smooth if largest_order == 0 else places
    field = fit_field(places, centers - held, grid.image_size, largest_order=largest_order)
    shift, matrix = field.affine
    new = Lattice(
        lattice.origin_px + shift + lattice.origin_px @ matrix,
        lattice.basis_px + lattice.basis_px @ matrix,
        lattice.n_types,
        lattice.type_rule,
    )
    bend = field.bend if largest_order > 0 else grid.bend
    fitted = held + evaluate_terms(places, grid.image_size, field.order) @ field.coefficients_px
    return grid.on_lattice(new, bend), float(np.hypot(*(fitted - smooth).T).max())


def _expect(grid: MicroLensGrid, indices_qr: IntArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the lattice positions of lenses (q, r), the same with the bend, and deviations."""
    assert grid.lattice is not None
    assert grid.indices_qr is not None
    places = grid.lattice.centers(indices_qr)
    smooth = places if grid.bend is None else places + grid.bend.at(places)
    deviations = np.zeros_like(places)
    if grid.deviations_px is not None:
        rows = find_rows(grid.indices_qr, indices_qr)
        deviations = np.where((rows >= 0)[:, None], grid.deviations_px[rows], 0.0)
    return places, smooth, deviations


def _residuals(grid: MicroLensGrid, match: LensMatch) -> FloatArray:
    """Return measured centers minus lattice and bend, (n_lenses, 2), for the lenses of `match`."""
    found: FloatArray = match.centers_px - _expect(grid, match.cells.indices)[1]
    return found


def _rms(residuals: FloatArray) -> float:
    return float(np.sqrt(np.mean(np.sum(residuals**2, axis=1))))


def _flag(residuals: FloatArray, match: LensMatch) -> npt.NDArray[np.uint8]:
    """Return the flags of all lenses of `match`."""
    good, dead, rim = match.good, match.dead, ~match.inside
    length = np.hypot(residuals[:, 0], residuals[:, 1])
    sigma = max(float(np.median(length[good])) / 1.1774, _LEAST_SIGMA_PX)
    used = good & (length <= _OUTLIER_SIGMAS * sigma)
    outlier = ~used & ~dead & ~rim
    flags: npt.NDArray[np.uint8] = (
        used * int(LensFlag.USED)
        + outlier * int(LensFlag.OUTLIER)
        + dead * int(LensFlag.DEAD)
        + rim * int(LensFlag.RIM)
    ).astype(np.uint8)
    return flags


def _finish(
    grid: MicroLensGrid,
    match: LensMatch,
    source: str,
    image: Float32Array,
    n_types: int | None,
    discs: bool,
    *,
    outlines: bool,
    keep_types: bool = False,
    mosaic: bool = False,
) -> GridFit:
    """Add radius, lens types and overlap discs; then correct the centers for shading.

    `outlines` says that the centers were fitted to outlines in `image` and not to borders.
    """
    assert grid.indices_qr is not None
    assert grid.lattice is not None
    findings: list[Finding] = []
    rows = find_rows(match.cells.indices, grid.indices_qr)
    flagged = (_flag(_residuals(grid, match), match) & LensFlag.USED) > 0
    used = (rows >= 0) & flagged[rows]
    profiles = measure_profiles(image, grid, used)
    lattice = grid.lattice
    if not keep_types:
        types = find_types(profiles, lattice, grid.indices_qr, used, n_types)
        lattice = types.lattice
        findings += types.findings
    if outlines and lattice.n_types > 1:
        match = match_by_type(image, match, lattice, flagged)
    blur = BAYER_BLUR_PX2 if mosaic else 0.0
    fitted: OverlapDiscs | None = None
    if discs:
        result = fit_discs(
            profiles,
            lattice,
            lattice.types(grid.indices_qr),
            used,
            from_scene=source != "white",
            blur_px2=blur,
        )
        fitted = result.discs
        findings += result.findings
        if fitted is not None and not keep_types and lattice.n_types > 1:
            lattice, fitted = _sort_types(lattice, fitted)
    if outlines:
        shading = _fit_shading(grid, match)
        if fitted is not None:
            fitted = replace(fitted, shading_px2=shading.px2)
        match, unsure = _take_off_shading(grid, match, lattice, fitted, blur, shading.field)
        grid, _ = _follow(grid, match, LARGEST_ORDER)
        grid = _widen_covariance(grid, match, unsure)
    elif source == "frames":
        unsure = _BORDER_SHADING * _make_stretch(grid, match)
        grid = _widen_covariance(grid, match, unsure)
    if source == "white":
        grid = _add_deviations(grid, match)
    assert grid.lattice is not None
    radius = profiles.edge_radius_px(_EDGE_LEVEL, grid.pitch_px / 2.0)
    typed = replace(grid.lattice, n_types=lattice.n_types, type_rule=lattice.type_rule)
    grid = replace(grid.on_lattice(typed, grid.bend, radius_px=radius), discs=fitted)
    return _judge(grid, match, source, findings)


class _Shading(NamedTuple):
    """How brightness changes across micro images."""

    field: FieldFit
    """Slopes over the image, in 1/px."""
    px2: float
    """By how much slopes fall from lens to lens in the middle, in 1/px^2; 0 if not clearly."""


def _fit_shading(grid: MicroLensGrid, match: LensMatch) -> _Shading:
    """Fit the slopes of the brightness inside micro images, in 1/px, over the image.

    Shading by cos^4 grows in proportion to the distance from the axis, and more slowly toward the
    corners: a field of third order follows it. What else makes slopes (the dark rim of the image
    circle, dust) does not depend on the direction of light, and grows faster toward the corners:
    then the field is linear.
    """
    good = match.good
    places, _, _ = _expect(grid, match.cells.indices[good])
    size = np.array(grid.image_size, np.float64)
    field = fit_field(places, match.slopes[good], grid.image_size, largest_order=3)
    step = 0.01 * size
    middle = 0.5 * (size - 1.0)
    around = middle + np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]]) * step
    terms = evaluate_terms(around, grid.image_size, field.order)
    change = (terms[::2] - terms[1::2]) / (2.0 * step[:, None])
    fall = -float(np.einsum("xt,tx->x", change, field.coefficients_px).mean())
    sigma = math.sqrt(float(np.einsum("xi,ij,xj->", change, field.covariance_px2, change))) / 2.0
    px2 = fall if fall > _CLEAR_SHADING * sigma else 0.0
    outward = _RIM * middle * np.array([[-1, -1], [-1, 1], [1, -1], [1, 1]])
    there = evaluate_terms(middle + outward, grid.image_size, field.order) @ field.coefficients_px
    falls = -float(np.sum(there * outward) / np.sum(outward**2))
    if not 0.0 < falls <= px2:
        field = fit_field(places, match.slopes[good], grid.image_size, largest_order=1)
    return _Shading(field, px2)


def _take_off_shading(
    grid: MicroLensGrid,
    match: LensMatch,
    lattice: Lattice,
    discs: OverlapDiscs | None,
    blur_px2: float,
    slope_field: FieldFit,
) -> tuple[LensMatch, FloatArray]:
    """Correct a match for the shift of blurred outlines by shading; also return its uncertainty.

    An outline is first shaded and then blurred. Where the relative brightness changes by `slope`
    per px across a micro image, a blur of variance c along an axis shifts it by -c slope. Pixels
    blur by 1/12 px^2. The micro aperture, a disc of radius `a` px that is seen from the main lens
    with the radius `micro_px`, and the light of neighbors shift it by what `_measure_shading_shift`
    says. Lens types with different `micro_px` are shifted differently, and that tells `a`; where
    types do not tell, `_APERTURE` does.

    The second return value is the shift, (n_lenses, 2), that one standard deviation of `a` makes.
    """
    good = match.good
    places, _, _ = _expect(grid, match.cells.indices)
    terms = evaluate_terms(places, grid.image_size, slope_field.order)
    slopes = terms @ slope_field.coefficients_px
    kinds = lattice.types(match.cells.indices)
    constant, by_aperture = (
        (np.zeros(lattice.n_types), np.zeros(lattice.n_types))
        if discs is None
        else _measure_shading_shift(discs, lattice)
    )
    match = replace(match, shifts=match.shifts - constant[kinds][:, None] * slopes)
    lengths = by_aperture[kinds]
    unit = lengths[:, None] * slopes
    trial, _ = _follow(grid, match, LARGEST_ORDER)
    residuals = _residuals(trial, match)[good]
    contrast = (unit - lengths[good].mean() * slopes)[good]
    noise = np.median((residuals**2).sum(axis=1)) / (2.0 * math.log(2.0))
    mean, sigma = (factor * lattice.pitch_px for factor in _APERTURE)
    weight = (contrast**2).sum() / noise
    aperture = (mean / sigma**2 + (contrast * residuals).sum() / noise) / (1.0 / sigma**2 + weight)
    aperture = float(np.clip(aperture, 0.0, 0.5 * lattice.pitch_px))
    shifts = match.shifts - aperture * unit + (_PIXEL_BLUR_PX2 + blur_px2) * slopes
    return replace(match, shifts=shifts), unit / math.sqrt(1.0 / sigma**2 + weight)


def _measure_shading_shift(discs: OverlapDiscs, lattice: Lattice) -> tuple[FloatArray, FloatArray]:
    """Return how far shading shifts the outlines of each lens type, in px per `slope` in 1/px.

    Light that leaves a micro aperture at `p` toward the pixel at `m` from its center has the
    relative brightness `1 + slope . (m - p)`. With q = p micro_px / a, a pixel gets light from the
    q that both discs of the overlap share, so the term in p is `-a slope . centroid / micro_px`
    times their area, with the centroid of what they share. Light of the neighbors that reaches the
    pixel is shaded relative to their own centers. `match_lenses` fits all this by a gain, a slope,
    a shift and a growth; so does this function, for a shading along x and one along y.

    Returns
    -------
    constant : (n_types,) float64
        What does not depend on the micro aperture `a`: the light of neighbors.
    by_aperture : (n_types,) float64
        What is proportional to `a`. For micro images with narrow rims it is -4/15 micro_px.
    """
    steps = np.array([(q, r) for q in range(-2, 3) for r in range(-2, 3)])
    centers = steps @ lattice.basis_px
    line = OWN_WINDOW * lattice.pitch_px * (2.0 * np.arange(_SAMPLES) + 1.0 - _SAMPLES) / _SAMPLES
    places = np.stack(np.meshgrid(line, line), axis=-1).reshape(-1, 2)
    own = np.flatnonzero((steps == 0).all(axis=1))[0]
    distances = np.linalg.norm(places[:, None] - centers, axis=2)
    places = places[distances.argmin(axis=1) == own]
    window = OWN_WINDOW * lattice.pitch_px
    weights = np.sqrt(np.clip(2.0 - 2.0 * np.sum(places**2, axis=1) / window**2, 0.0, 1.0))
    found = np.empty((lattice.n_types, 2))
    for kind in range(lattice.n_types):
        first = next(step for step in steps if lattice.types(step[None])[0] == kind)
        kinds = lattice.types(first + steps)
        total, slope = np.zeros(len(places)), np.zeros((len(places), 2))
        neighbors, apertures = np.zeros((len(places), 2)), np.zeros((len(places), 2))
        for center, micro in zip(centers, np.array(discs.micro_px)[kinds].tolist(), strict=True):
            off = places - center
            length = np.maximum(np.linalg.norm(off, axis=1), 1e-9)
            area, centroid = compute_disc_overlap(micro, discs.main_px, length)
            wider, _ = compute_disc_overlap(micro, discs.main_px, length + _STEP_PX)
            area, wider = area / micro**2, wider / micro**2  # all types let in the same light
            moment = np.where(area > 0.0, area * centroid / micro, 0.0)  # dark: no centroid
            total += area
            slope += ((wider - area) / _STEP_PX / length)[:, None] * off
            neighbors -= area[:, None] * center
            apertures -= (moment / length)[:, None] * off
        growth = np.sum(places * slope, axis=1)
        columns = np.column_stack([total, total[:, None] * places, -slope, -growth])
        columns *= weights[:, None]
        for case, targets in enumerate((neighbors, apertures)):
            solution = np.linalg.lstsq(columns, targets * weights[:, None], rcond=None)[0]
            found[kind, case] = 0.5 * (solution[3, 0] + solution[4, 1])
    return found[:, 0], found[:, 1]


def _make_stretch(grid: MicroLensGrid, match: LensMatch) -> FloatArray:
    """Return shifts away from the image's middle, (n_lenses, 2), one pitch rms."""
    off = match.cells.centers - 0.5 * (np.array(grid.image_size) - 1.0)
    found: FloatArray = grid.pitch_px * off / _rms(off)
    return found


def _widen_covariance(grid: MicroLensGrid, match: LensMatch, unsure: FloatArray) -> MicroLensGrid:
    """Return the grid with the covariance of one more error field, (n_lenses, 2) in px, added."""
    bend = grid.bend
    if bend is None or bend.covariance_px2 is None:
        return grid
    good = match.good
    places, _, _ = _expect(grid, match.cells.indices[good])
    values = evaluate_terms(places, grid.image_size, bend.order)
    field = np.linalg.lstsq(values, unsure[good], rcond=None)[0]
    covariance = bend.covariance_px2 + field @ field.T / 2.0
    return replace(grid, bend=replace(bend, covariance_px2=covariance))


def _add_deviations(grid: MicroLensGrid, match: LensMatch) -> MicroLensGrid:
    """Return the grid with the deviations of single lenses, if they are larger than their noise.

    Each is shrunk towards zero according to its noise and the spread of all: the best estimate.
    """
    assert grid.lattice is not None
    assert grid.indices_qr is not None
    residuals = _residuals(grid, match)
    used = (_flag(residuals, match) & LensFlag.USED) > 0
    total = float(np.median((residuals[used] ** 2).sum(axis=1))) / (2.0 * math.log(2.0))
    noise = float(np.median(match.sigmas[used] ** 2))
    spread = total - noise
    if not spread > _CLEAR_SPREAD * noise:
        return grid
    rows = find_rows(match.cells.indices, grid.indices_qr)
    known = (rows >= 0) & used[rows]
    deviations = np.zeros_like(grid.centers_raw_px)
    share = spread / (spread + match.sigmas[rows[known]] ** 2)
    deviations[known] = share[:, None] * residuals[rows[known]]
    return MicroLensGrid.from_lattice(
        grid.lattice,
        grid.image_size,
        radius_px=grid.radius_px,
        focal_planes=grid.focal_planes,
        bend=grid.bend,
        deviations_px=deviations,
    )


def _judge(grid: MicroLensGrid, match: LensMatch, source: str, findings: list[Finding]) -> GridFit:
    """Sum up the fit for the lenses of the grid; those not measured are at the rim."""
    assert grid.indices_qr is not None
    rows = find_rows(match.cells.indices, grid.indices_qr)
    residuals = _residuals(grid, match)
    flags = np.where(rows >= 0, _flag(residuals, match)[rows], LensFlag.RIM).astype(np.uint8)
    residuals = np.where((rows >= 0)[:, None], residuals[rows], np.nan)
    used = (flags & LensFlag.USED) > 0
    bad = (flags & (LensFlag.DEAD | LensFlag.OUTLIER)) > 0
    share_bad = float(bad.sum()) / max(1, int(((flags & LensFlag.RIM) == 0).sum()))
    if share_bad > 0.2:
        findings = [
            *findings,
            Finding.of(
                "lenses-dead",
                f"{100 * share_bad:.0f} % of the lenses are dead or do not fit: check the picture",
                share=share_bad,
            ),
        ]
    left = residuals[used] - (0.0 if grid.deviations_px is None else grid.deviations_px[used])
    trend = _measure_trend(grid.centers_raw_px[used], left)
    if trend > _LARGE_TREND[source] * grid.pitch_px:
        findings = [
            *findings,
            Finding.of(
                "grid-trend",
                f"centers deviate smoothly by another {trend:.2f} px rms from the lattice and the "
                "bend that were fitted: depth and focus suffer there; give a white image if there "
                "is none",
                trend_px=trend,
            ),
        ]
    return GridFit(
        grid,
        read_only(residuals),
        read_only(flags),
        _rms(residuals[used]),
        source,
        float(np.median(match.errors[match.good])),
        trend,
        _measure_sigma(grid, match),
        tuple(findings),
    )


def _measure_trend(centers: FloatArray, residuals: FloatArray) -> float:
    """Return the rms over image tiles of their mean residual, without the part due to noise."""
    tiles = cut_tiles(centers)
    count = np.bincount(tiles)
    means = (
        np.stack([np.bincount(tiles, residuals[:, axis]) for axis in range(2)], 1) / count[:, None]
    )
    noise = ((residuals - means[tiles]) ** 2).sum(axis=1).mean() / count
    square = float(count @ ((means**2).sum(axis=1) - noise)) / len(tiles)
    return math.sqrt(max(square, 0.0))


def _sort_types(lattice: Lattice, discs: OverlapDiscs) -> tuple[Lattice, OverlapDiscs]:
    """Number the types by decreasing micro disc, that is, by increasing virtual depth in focus."""
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
                return replace(lattice, type_rule=rule), replace(discs, micro_px=micro)
    return lattice, discs
