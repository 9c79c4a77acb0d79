"""Fitting the micro-lens grid to a white image, to scene frames, or from a maker's grid.

Each micro image is compared with the mean of all micro images, which gives its center. The method
is described in docs/theory/grid.md.
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
"""Radius around the middle of the image, in pitches, of the region in which the fit starts. The
spectrum gives the pitch to 0.1 %, so predicted centers in this region are wrong by a small fraction
of the pitch only. The region contains about 300 lenses."""
_ORDER_INNER, _ORDER_WHOLE = 3, 5
"""Highest orders of the bend that are tried while the fit grows outward, inside half of the image's
diagonal and beyond it. Higher orders would fit better inside the region that was measured, but
extrapolate badly."""
_OUTLIER_SIGMAS = 5.0
"""A center that is farther from the fit than this many robust standard deviations is an outlier:
dust, for example."""
_LEAST_SIGMA_PX = 0.01
"""Smallest standard deviation of centers that is assumed in this outlier test. With less noise, it
would reject lenses whose centers deviate by a few hundredths of a pixel for harmless reasons."""
_EDGE_LEVEL = 0.3
"""The radius of a micro image is where its brightness falls to this fraction of that in its
middle."""
_MOST_ROUNDS = 16
"""Largest number of rounds of matching and fitting, while the fit grows outward and until it
converges."""
_SOME_LENSES = 1500
"""Number of lenses that are matched in each round while the fit grows. They determine lattice and
bend well enough for the next round; the last rounds match all lenses."""
_SETTLED_PX = 0.003
"""The fit has converged if no center moved by more than this in a round. An error of this size has
no visible effect on virtual depth."""
_MOST_SATURATED = 0.002
"""If a larger fraction of the pixels is saturated, a finding says that the image is overexposed."""
_WORST_RMS = 0.08
"""If the root mean square of the residuals, in pitches, is larger than this, the lattice does not
describe the image, and the fit fails."""
_PIXEL_BLUR_PX2 = 1.0 / 12.0
"""Variance, along an axis, of a uniform distribution over the area of a pixel."""
_CLEAR_SPREAD = 1.0
"""Deviations of single lenses are stored if their variance, divided by that of the measurement
noise, is larger than this. Below it, a measured deviation is mostly noise."""
_LARGE_TREND = {"white": 0.004, "frames": 0.015, "scene": 0.015}
"""If the smooth part of the residuals (rms, in pitches) is larger than this, a finding reports it.
For a white image and a pitch of 25 px the limit is 0.1 px. A center that is wrong by that much
moves a virtual point by up to 0.4 px, several times the error of a measured point. The limit for
frames is larger, because content that the frames have in common causes smooth residuals of up to
0.005 pitches."""
_BORDER_SHADING = 0.005
"""Error (rms over the image, in pitches) of a grid that is fitted to the borders of micro images in
the gradient map, because shading stretches it. The value was measured on the simulated camera
`mini-real`, whose micro lenses see 17 degrees to each side: 0.067 px at a pitch of 12.6 px."""
_CLEAR_SHADING = 4.0
"""A measured shading is used if it is larger than this many of its standard deviations."""
_APERTURE = (0.35, 0.1)
"""Prior of the radius of a micro aperture, in pitches: mean and standard deviation. It covers
arrays with masked lenses (0.25) and arrays whose lenses fill their cells (0.47)."""
_RIM = 0.9
"""The shading near the corners is evaluated at this fraction of the way from the middle of the
image to its corners, and compared with that in the middle."""
_SAMPLES = 64
"""Number of samples along each side of the window of a micro image, for the numerical integration
of its shading."""
_STEP_PX = 1e-4
"""Step of the finite difference that gives the derivative of the overlap area by distance."""
WHITE_STRUCTURE = 0.11
"""In a white image, micro images differ from their mean by less than this (rms, relative to the
brightness). A larger difference shows that the image contains a scene."""


class LensFlag(enum.IntFlag):
    """Role of a lens in the fit."""

    USED = 1
    """The center of the lens was used to fit the lattice."""
    OUTLIER = 2
    """The center or the shape of the micro image does not fit the others, for example because of
    dust, dirt or a reflection."""
    DEAD = 4
    """The micro image is dark although its neighbors are not."""
    RIM = 8
    """The micro image is cut by the border of the image, or lies in its dark corners."""


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
        relative to the brightness. For a white image it is noise; otherwise it is the contrast of
        the scene.
    trend_px : float
        Rms of the smooth part of the residuals that remain after lattice, bend and the deviations
        of single lenses are subtracted.
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
        """Distance between the centers of neighboring micro images."""
        return self.lattice.pitch_px

    @property
    def rotation_rad(self) -> float:
        """Angle of the lattice from the x axis, see `Lattice.rotation_rad`."""
        return self.lattice.rotation_rad

    @property
    def discs(self) -> OverlapDiscs | None:
        """The two discs whose overlap describes the fall-off of brightness inside micro images."""
        return self.grid.discs

    @property
    def n_used(self) -> int:
        """Number of lenses whose centers were used to fit the lattice."""
        return int(np.count_nonzero(self.flags & LensFlag.USED))


@dataclass(frozen=True, eq=False)
class FrameAverage:
    """Mean over several frames, and mean over their gradient maps.

    Parameters
    ----------
    mean : (height, width) float32
        Mean of the frames, each scaled to the same brightness.
    calm : (height, width) float32
        Mean of the gradient maps of the frames, see `compute_calm`.
    count : int
        Number of frames.
    mosaic : bool
        Whether the frames were interpolated from a color mosaic.
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
        Image of an evenly lit surface, with any exposure that does not saturate.
    n_types : int or None
        Number of lens types; found from the image if None.
    discs : bool
        Whether the overlap discs and lens types are looked for.

    Raises
    ------
    EstimationError
        If the image shows no lattice of micro images.
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
        Largest number of frames that are read; they are spread evenly over the sequence.
    n_types, discs
        As for `fit_grid_to_white`.
    on_frame : callable
        Called with the number of frames read and to be read.

    Raises
    ------
    EstimationError
        If the frames show no lattice of micro images.
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
        # If the scene has hardly any texture, the mean is as good as a white image.
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
    in the middle of the image. With a single raw, the grid is only shifted, because the maker's
    pitch and angle are more accurate than those that one view of a scene gives.

    Parameters
    ----------
    grid : MicroLensGrid
        A grid that has a lattice.
    image : Frame, (height, width) array, or FrameAverage
        A white image, a raw, or the result of `average_frames` for several raws.
    source : str
        Kind of the image: 'white' for a white image, 'scene' for a raw of a scene.
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
    """Return the mean over at most `max_frames` frames, spread evenly over the sequence.

    Parameters
    ----------
    on_frame : callable
        Called with the number of frames read and to be read.
    on_problem : callable
        Called with the error if a frame cannot be read; the frame is then left out. If no callable
        is given, the error is raised.
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
        "discs and lens types; use a shorter exposure",
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
    """Fit lattice and bend, from the middle of the image outward.

    The function returns the grid, and the measured shift of each lens as a `LensMatch`. With
    `only_shift`, the grid is shifted, and its pitch, angle and bend are kept.
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
        # If the fit has nearly converged inside this radius, double the radius.
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
    """Fit the grid to the mean over the frames too, and return the better of both fits.

    The second return value says whether this is the fit to the mean. The fit that is given was made
    to the gradient map, in which shading moves the borders of micro images by an unknown amount.
    The mean shows the outlines of micro images, which shading moves by a known amount, but it also
    contains what remains of the scene.
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
    """Return the grid fitted to the measured centers, and the largest move of a center.

    With `largest_order` 0 the grid is only shifted, and keeps its bend.
    """
    lattice = grid.lattice
    assert lattice is not None
    good = match.good
    if good.sum() < 12:
        raise EstimationError(
            f"only {int(good.sum())} micro images could be located (need 12): the image is too "
            "small, too dark, or not of this grid",
            stage="grid",
            evidence={"placed": int(good.sum())},
        )
    places, smooth, deviations = _expect(grid, match.cells.indices[good])
    # A shift of more than a quarter of the pitch leads to the next lens or is wrong: limit it.
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
    """Return the centers of lenses (q, r) on the lattice, those with bend, and the deviations."""
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
    """Find radius, lens types and overlap discs; then correct the centers for shading.

    `outlines` says whether the centers were fitted to the outlines of micro images in `image`, or
    else to their borders in the gradient map.
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
    shading = _fit_shading(grid, match) if outlines else None
    fitted: OverlapDiscs | None = None
    if discs:
        result = fit_discs(
            profiles,
            lattice,
            lattice.types(grid.indices_qr),
            used,
            from_scene=source != "white",
            blur_px2=blur,
            shaded=shading is not None and shading.px2 > 0.0,
        )
        fitted = result.discs
        findings += result.findings
        if fitted is not None and not keep_types and lattice.n_types > 1:
            lattice, fitted = _sort_types(lattice, fitted)
    if shading is not None:
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
    """Relative change of brightness across micro images, as a function of their place."""

    field: FieldFit
    """Smooth field, over the image, of the relative slope of brightness in micro images, in
    1/px."""
    px2: float
    """Rate at which the slope decreases with the distance from the middle of the image, in 1/px^2;
    0 if it is not significant."""


def _fit_shading(grid: MicroLensGrid, match: LensMatch) -> _Shading:
    """Fit the slopes of the brightness inside micro images, in 1/px, over the image.

    The slope that cos^4 shading causes is proportional to the distance from the axis, and grows
    more slowly toward the corners. A polynomial of third order describes it. Other causes of slopes
    (the dark rim of the image circle, dust) do not depend on the direction of light, and their
    slopes grow faster toward the corners. If the fitted slopes do so, a linear field is used
    instead.
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
    """Subtract from measured shifts the shift of blurred outlines that shading causes.

    An outline is first shaded and then blurred. If the relative brightness changes by `slope` per
    px across a micro image, a blur of variance c along an axis shifts the outline by -c slope. The
    area of a pixel is a blur with a variance of 1/12 px^2. The micro aperture, a disc of radius `a`
    px that is seen from the main lens with the radius `micro_px`, and the light of neighboring
    lenses cause the shift that `_measure_shading_shift` returns. The radius `a` is estimated:
    outlines of lens types with different `micro_px` are shifted differently, and `_APERTURE` is the
    prior.

    The second return value is the uncertainty of the correction: the change of the shifts,
    (n_lenses, 2), if `a` changes by one standard deviation.
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
    relative brightness `1 + slope . (m - p)`. In the scaled coordinate q = p micro_px / a, a pixel
    receives light from those q that lie in both overlap discs. The term in p therefore contributes
    `-a slope . centroid / micro_px` times the area of the overlap, where `centroid` is that of the
    overlap. Light of neighboring lenses that reaches the pixel is shaded relative to their own
    centers. `match_lenses` fits a gain, a slope, a shift and a growth to a micro image. This
    function fits the same unknowns to the computed brightness, once for a shading along x and once
    along y, and returns the shift.

    Returns
    -------
    constant : (n_types,) float64
        Part of the shift that does not depend on the radius `a` of the micro aperture. The light of
        neighboring lenses causes it.
    by_aperture : (n_types,) float64
        Part of the shift that is proportional to `a`, divided by `a`. For micro images with narrow
        rims it is -4/15 micro_px.
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
            area, wider = area / micro**2, wider / micro**2  # lenses of all types pass equal light
            moment = np.where(area > 0.0, area * centroid / micro, 0.0)  # no overlap, no centroid
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
    """Return shifts (n_lenses, 2) of a uniform stretch about the image's middle, one pitch rms."""
    off = match.cells.centers - 0.5 * (np.array(grid.image_size) - 1.0)
    found: FloatArray = grid.pitch_px * off / _rms(off)
    return found


def _widen_covariance(grid: MicroLensGrid, match: LensMatch, unsure: FloatArray) -> MicroLensGrid:
    """Add another source of error to the covariance of the bend, and return the new grid.

    `unsure` (n_lenses, 2) is the error of each center in px if the source of error deviates by one
    standard deviation. The errors of all centers are fully correlated.
    """
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

    Each deviation is multiplied by the variance of all deviations over the sum of this variance and
    that of its own noise, which gives the estimate with the smallest expected squared error.
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
    """Collect residuals, flags and findings of the fit; lenses without a match are at the rim."""
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
                f"{100 * share_bad:.0f} % of the lenses are dead or do not fit: look at the "
                "picture of the fit",
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
                f"centers deviate smoothly by {trend:.2f} px rms from the fitted lattice and bend, "
                "which makes depth and focused images less accurate; give a white image if there "
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
    """Return the rms, over tiles of the image, of the mean residual, with the noise subtracted."""
    tiles = cut_tiles(centers)
    count = np.bincount(tiles)
    means = (
        np.stack([np.bincount(tiles, residuals[:, axis]) for axis in range(2)], 1) / count[:, None]
    )
    noise = ((residuals - means[tiles]) ** 2).sum(axis=1).mean() / count
    square = float(count @ ((means**2).sum(axis=1) - noise)) / len(tiles)
    return math.sqrt(max(square, 0.0))


def _sort_types(lattice: Lattice, discs: OverlapDiscs) -> tuple[Lattice, OverlapDiscs]:
    """Number the types by decreasing radius of the micro disc.

    This is the order of increasing virtual depth at which the types are in focus.
    """
    order = np.argsort(-np.array(discs.micro_px), kind="stable")
    n = lattice.n_types
    rank = np.argsort(order)
    i, j, k = lattice.type_rule
    # The new number of a type is a linear function of the old one: rank(t) = s t + o (mod n). Up to
    # n = 3, every permutation has this form.
    for s in range(1, n):
        for o in range(n):
            if all((s * t + o) % n == rank[t] for t in range(n)):
                rule = ((s * i) % n, (s * j) % n, (s * k + o) % n)
                micro = tuple(discs.micro_px[index] for index in order)
                return replace(lattice, type_rule=rule), replace(discs, micro_px=micro)
    return lattice, discs
