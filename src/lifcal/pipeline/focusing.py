"""Raw frames to virtual depth and focused images, in a folder that a later run continues.

focus.json                     what made it, and figures for each frame
focus.journal                  while it runs: figures of the frames that are done
grid.json                      the grid that was used, with focal planes if they were found
vignetting.tiff                the mean vignetting of some raws, if nothing else gives it
focused/NAME.png               totally focused image
virtual_depth/NAME.tiff        virtual depth; written last, so a frame that has it is done
virtual_depth/NAME_sigma.tiff  its standard deviation
virtual_depth/NAME_flags.png   why a pixel is unknown
virtual_depth/NAME_color.png   for people
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from lifcal.diagnostics import Finding, Severity
from lifcal.errors import DataError, EstimationError
from lifcal.files import digest_files
from lifcal.listener import Listener
from lifcal.pipeline.frames import NO_DEPTH, FrameWork, check_executor, run_frames
from lifcal.pipeline.grids import (
    FITTING,
    SOURCES,
    GridNotShownError,
    fit_average,
    read_average,
    read_start,
)
from lifcal.pipeline.store import (
    FolderStore,
    FrameEntry,
    FrameStore,
    MemoryStore,
    SharedArrays,
    StoreFormat,
    digest_grid,
    read_range,
)
from lifcal.pipeline.usable import UsableFrames, compute_checksum

if TYPE_CHECKING:
    from lifcal.arrays import Float32Array
    from lifcal.camera import MicroLensGrid
    from lifcal.grid.fit import GridFit
    from lifcal.imaging.frames import Frame, Frames
    from lifcal.imaging.preview import ColorImage
    from lifcal.metric import DepthEngine
    from lifcal.virtual import DepthOptions, FocusedFrame, FocusEngine, VirtualDepth

_FRAMES_FOR_GRID = 20
_FRAMES_FOR_CHECK = 3
FRAMES_FOR_RANGE = 5


@dataclass(frozen=True)
class FocusEntry(FrameEntry):
    """What is kept of a focused frame, besides its images.

    Parameters
    ----------
    median_u, median_sigma : float
        Medians of the virtual depth and of its standard deviation, over the known pixels.
    """

    median_u: float
    median_sigma: float


@dataclass(frozen=True)
class FocusSetup:
    """What all frames of a run have in common.

    Parameters
    ----------
    depth_range : (float, float)
        Virtual depths that are searched.
    grid : mapping
        Figures of the grid, and where it is from.
    findings : tuple of Finding
        What the run that began noticed of grid, white image and raws.
    """

    depth_range: tuple[float, float]
    grid: Mapping[str, Any]
    findings: tuple[Finding, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return it as focus.json holds it."""
        return {
            "depth_range": list(self.depth_range),
            "grid": dict(self.grid),
            "findings": [finding.as_dict() for finding in self.findings],
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """Read what `as_dict` returns; TypeError, KeyError or ValueError if it is not whole."""
        findings = tuple(Finding.from_dict(entry) for entry in content["findings"])
        return cls(read_range(content), {**content["grid"]}, findings)


FocusStore: TypeAlias = FrameStore[FocusSetup, FocusEntry]
FOCUS = StoreFormat(
    "focus.json",
    {"format": "lifcal-focus", "format_version": "1.0"},
    "lifcal focus",
    ("grid", "white", "xml"),
    FocusSetup,
    FocusEntry,
)
_IMAGES = {
    "focused": "focused/{}.png",
    "color": "virtual_depth/{}_color.png",
    "flags": "virtual_depth/{}_flags.png",
    "sigma": "virtual_depth/{}_sigma.tiff",
    "u": "virtual_depth/{}.tiff",
}
"""Files of a frame, in the order in which they are written."""


@dataclass(frozen=True, eq=False)
class FocusRun:
    """What focusing came to.

    Parameters
    ----------
    store : FrameStore
        Record and images of the frames.
    usable : UsableFrames
    engine : FocusEngine or None
        None if no frame can be used.
    done : list of str
        Names of the frames that are done.
    kept : int
        How many of them were done by a run before.
    """

    store: FocusStore
    usable: UsableFrames
    engine: FocusEngine | None
    done: list[str]
    kept: int

    @property
    def setup(self) -> FocusSetup:
        """What the frames have in common; there must be an engine."""
        assert self.store.setup is not None
        return self.store.setup


def focus_frames(
    frames: Frames,
    folder: Path | None,
    options: DepthOptions,
    sources: Mapping[str, Path | None],
    listener: Listener,
    executor: Executor | None = None,
) -> FocusRun:
    """Focus all frames that are not done yet.

    Parameters
    ----------
    frames : Frames
    folder : Path or None
        Made if missing. May hold an unfinished run with the same settings, nothing of another one.
        None keeps the results in memory.
    options : DepthOptions
    sources : mapping
        Paths (or None) of 'grid', 'white' and 'xml'.
    listener : Listener
        Told of frames that cannot be used; the others are done.
    executor : Executor, optional
        Makes the frames (see `lifcal.pipeline.frames`); this process without.

    Raises
    ------
    DataError
        If the folder holds something else, or grid, white image or XML cannot be used.
    InputError
        If an executor is given for frames in memory.
    """
    check_names(frames)
    settings = describe_settings(frames, options, sources)
    store: FocusStore = (
        MemoryStore(FOCUS, settings)
        if folder is None
        else FolderStore.open(FOCUS, folder, settings, _IMAGES)
    )
    check_executor(executor, frames, store.images)
    usable = UsableFrames(frames)
    started = make_engine(usable, options, sources, store, listener)
    done: list[str] = []
    kept = 0
    if started is not None:
        store.begin(started.setup, started.shared)
        work = FocusWork(usable, store, started.engine, started.vignetting)
        done, kept = run_frames(work, store, listener, "focusing", executor)
    else:
        for finding in usable.findings:
            listener.finding(finding)
    store.finish(frames.names, usable.problems)
    return FocusRun(store, usable, None if started is None else started.engine, done, kept)


def describe_settings(
    frames: Frames, options: DepthOptions, sources: Mapping[str, Path | None]
) -> dict[str, Any]:
    """Return what the results depend on besides the raws: other values give other files."""
    return {
        "image_size_px": list(frames.image_size),
        "scale": options.scale,
        "range": None if options.depth_range is None else list(options.depth_range),
        "most_sigma": options.most_sigma,
        "bayer": frames.bayer,
        "full_scale": frames.full_scale,
        **digest_files(sources),
    }


def check_names(frames: Frames) -> None:
    """Raise DataError where two frames would write the same files."""
    names = set(frames.names)
    for name in frames.names:
        if f"{name}_sigma" in names:
            raise DataError(f"frames called {name} and {name}_sigma would write the same files")


# Before the first frame


@dataclass(frozen=True, eq=False)
class _Started:
    """What focuses the frames of a run, and what is kept of it for the next run."""

    engine: FocusEngine
    vignetting: Float32Array | None
    setup: FocusSetup
    shared: SharedArrays


def make_engine(
    usable: UsableFrames,
    options: DepthOptions,
    sources: Mapping[str, Path | None],
    store: FocusStore,
    listener: Listener,
) -> _Started | None:
    """Return what does the work, with grid, vignetting and range; None if no frame can be used."""
    from lifcal.grid.flat_field import vignetting_from_white
    from lifcal.virtual import FocusEngine

    size, bayer = usable.frames.image_size, usable.frames.bayer
    white = read_white(sources["white"], size, bayer)
    vignetting = None if white is None else vignetting_from_white(white)
    usable.white_checksum = "" if white is None else compute_checksum(white)
    if store.setup is not None and store.shared is not None:
        grid, mean = store.shared.grid, store.shared.vignetting
        usable.grid = grid
        options = replace(options, depth_range=store.setup.depth_range)
        if vignetting is None and mean is None and grid.discs is None:  # an earlier version's
            mean = average_vignetting(usable, usable.choose(FRAMES_FOR_RANGE), grid)
        for finding in store.setup.findings:
            listener.finding(finding)
        vignetting = mean if vignetting is None else vignetting
        engine = FocusEngine(grid, vignetting, options, bayer=bayer)
        return _Started(engine, vignetting, store.setup, store.shared)

    findings: list[Finding] = []
    figures: dict[str, Any] = {"source": "file"}
    if sources["grid"] is not None:
        grid = read_start(sources["grid"], size)
        if white is not None:
            check_white(white, grid, listener)
    else:
        start = None if sources["xml"] is None else read_start(sources["xml"], size)
        if white is None and not usable.choose(1):
            return None
        fit = (
            _fit_to_white(white, start, listener)
            if white is not None
            else _fit_to_raws(usable, start, listener)
        )
        grid = fit.grid
        figures = {
            "source": SOURCES[fit.source],
            "residual_rms_px": fit.rms_px,
            "left_px": fit.trend_px,
        }
        findings += fit.findings
    for index in usable.choose(1):
        findings += find_mosaic(usable, index)
    if sources["grid"] is not None:
        check_shown(usable, grid, f"{sources['grid']}: not the grid of these raws", listener)
    elif white is not None:
        check_shown(usable, grid, f"{white.source}: not the white image of these raws", listener)
    usable.grid = grid
    findings += compare_recordings(usable.frames, grid, listener)
    with listener.status("looking at some of the raws"):
        chosen = usable.choose(FRAMES_FOR_RANGE)
    if not chosen:
        return None
    if sources["grid"] is not None or white is not None:
        grid, moved_px, figures["misfit_px"], more = follow_frames(usable, chosen, grid, listener)
        figures["moved_px"] = moved_px
        if moved_px > 0.0:
            findings.append(
                Finding.of(
                    "grid-moved",
                    f"the grid moved by {moved_px:.2f} px to where the raws show it: the lens was "
                    "moved or focused anew after the grid was made",
                    moved_px=moved_px,
                )
            )
        findings += more
    else:
        figures["misfit_px"] = figures["left_px"]
        findings += judge_misfit(figures["misfit_px"], grid)
    if white is not None:
        figures["fill_ratio"], more = compare_aperture(white, usable, chosen, grid)
        findings += more
    mean = None
    if vignetting is None and grid.discs is None:
        vignetting = mean = average_vignetting(usable, chosen, grid)
        findings.append(describe_average("no overlap discs could be fitted"))
    if grid.focal_planes is None:
        grid, more = _add_focal_planes(usable, chosen, grid, vignetting, bayer, listener)
        findings += more
    engine = FocusEngine(grid, vignetting, options, bayer=bayer)
    if options.depth_range is None and not set_range(engine, usable, chosen, listener):
        return None
    for finding in findings:
        listener.finding(finding)
    found = engine.options.depth_range
    assert found is not None
    setup = FocusSetup(found, {**figures, **_figures(grid)}, tuple(findings))
    return _Started(engine, vignetting, setup, SharedArrays(grid, mean))


def check_shown(usable: UsableFrames, grid: MicroLensGrid, wrong: str, listener: Listener) -> None:
    """Raise GridNotShownError, `wrong` and why, if no frame shows the grid and its types."""
    from lifcal.grid.check import check_grid, check_lens_types

    problems: list[DataError] = []
    with listener.status("looking at some of the raws"):
        chosen = usable.choose(_FRAMES_FOR_CHECK)
        for index in chosen:
            try:
                check_grid(usable[index], grid)
                check_lens_types(usable[index], grid)
            except DataError as error:
                problems.append(error)
    if problems and len(problems) == len(chosen):
        raise GridNotShownError(f"{wrong}: {problems[0]}")


def compare_recordings(frames: Frames, grid: MicroLensGrid, listener: Listener) -> list[Finding]:
    """Compare the grids that several recordings show.

    A lens that is focused anew stretches the grid, and an array that was bumped shifts it.

    Raises
    ------
    GridNotShownError
        If grids differ so much that the recordings are not of one camera.
    """
    from lifcal.arrays import spread_choice
    from lifcal.grid.check import measure_offset

    numbers = sorted(set(frames.recordings))
    if len(numbers) < 2:
        return []
    first, findings = None, []
    with listener.status("comparing the grids of the recordings"):
        for number in numbers:
            members = frames.members(number)
            some = UsableFrames(frames.select(members))
            some.grid = grid
            chosen = [i for i in spread_choice(len(members), FRAMES_FOR_RANGE) if some.read(i)]
            offset = measure_offset(some.frames.select(chosen), grid) if chosen else None
            if offset is None:
                continue
            if first is None:
                first = number, offset
                continue
            change = offset.minus(first[1])
            changed, other = change.tells_change(grid)
            shift_px = math.hypot(*change.move_px[0])
            text = (
                f"{frames.recording_names[number]}: its micro images lie {shift_px:.2f} px beside "
                f"those of {frames.recording_names[first[0]]}, and {change.stretch_px:.2f} px more "
                "in the corners: the lens was focused anew, or lens or array moved, between the "
                "recordings"
            )
            if other:
                raise GridNotShownError(
                    f"{text}. Calibrate them apart (--known carries f_L and B over)"
                )
            if changed:
                findings.append(
                    Finding.of(
                        "recordings-differ",
                        f"{text}. Then one camera does not fit both",
                        recording=frames.recording_names[number],
                        shift_px=shift_px,
                        stretch_px=change.stretch_px,
                    )
                )
    return findings


def follow_frames(
    usable: UsableFrames, chosen: list[int], grid: MicroLensGrid, listener: Listener
) -> tuple[MicroLensGrid, float, float | None, list[Finding]]:
    """Move a grid to where the frames chosen show it.

    A lens that was taken off and put on again moves all micro images a little. Return the grid; how
    far it moved in px, 0 if not at all; how far centers are off in parts of the image, in px, which
    moving, turning and stretching cannot take off (None if the frames do not tell); and a finding
    if that is much.
    """
    import numpy as np

    from lifcal.grid.check import measure_offset, move_grid

    with listener.status("looking at some of the raws"):
        offset = measure_offset(usable.frames.select(chosen), grid)
    if offset is None:
        return grid, 0.0, None, []
    if offset.is_far(grid):
        raise DataError(
            f"{usable.frames.source(chosen[0])}: the micro images of some raws are "
            f"{math.hypot(*offset.move_px[0]):.1f} px off the grid in the middle and "
            f"{offset.stretch_px:.1f} px more in the corners (pitch {grid.pitch_px:.1f} px): "
            "recorded with another camera, or its lens or array moved"
        )
    found, moved_px = move_grid(grid, offset), 0.0
    if found is not grid:
        off = found.centers_raw_px[found.index.nearest(grid.centers_raw_px)] - grid.centers_raw_px
        moved_px = float(np.median(np.hypot(*off.T)))
    misfit = None if math.isnan(offset.misfit_px) else offset.misfit_px
    return found, moved_px, misfit, judge_misfit(misfit, grid)


def judge_misfit(misfit_px: float | None, grid: MicroLensGrid) -> list[Finding]:
    """Return a finding if the centers are far off in parts of the image, none otherwise."""
    from lifcal.grid.check import LARGE_MISFIT, POOR_MISFIT

    if misfit_px is None or misfit_px <= LARGE_MISFIT * grid.pitch_px:
        return []
    poor = misfit_px > POOR_MISFIT * grid.pitch_px
    return [
        Finding.of(
            "grid-misfit",
            f"in parts of the image the micro images are {misfit_px:.2f} px off the grid: it lacks "
            "their bend, or has another camera's. Give a white image of this camera (--white), or "
            "a grid that was fitted to one (lifcal grid)",
            severity=Severity.POOR if poor else Severity.CAUTION,
            misfit_px=misfit_px,
            pitch_px=grid.pitch_px,
        )
    ]


def compare_aperture(
    white: Frame, usable: UsableFrames, chosen: list[int], grid: MicroLensGrid
) -> tuple[float | None, list[Finding]]:
    """Compare the aperture of the frames chosen with that of a white image.

    Return how much brighter their micro images are near the border (None if that is not known), and
    a finding if that is much.
    """
    from lifcal.grid.check import compare_fill

    return judge_fill(compare_fill(white, (usable[index] for index in chosen), grid), white.source)


def judge_fill(ratio: float, source: str) -> tuple[float | None, list[Finding]]:
    """Return the ratio (None if it is not known), and a finding if it is far from 1.

    Parameters
    ----------
    ratio : float
        Brightness near the borders of micro images: raws over white image.
    source : str
        The white image's file.
    """
    from lifcal.grid.check import LARGE_FILL_RATIO

    if not (ratio > LARGE_FILL_RATIO or 1.0 / ratio > LARGE_FILL_RATIO):
        return (None if math.isnan(ratio) else ratio), []
    finding = Finding.of(
        "white-aperture",
        f"{source}: near their borders, the micro images of the raws are {ratio:.2f} times "
        "as bright as those of the white image: one was recorded with another aperture, or stored "
        "with another gamma. Depth suffers; record a white image as the raws were recorded",
        fill_ratio=ratio,
    )
    return ratio, [finding]


def find_mosaic(usable: UsableFrames, index: int) -> list[Finding]:
    """Return a finding if a frame looks like a color mosaic that was not said to be one."""
    from lifcal.imaging.frames import looks_like_mosaic

    if not looks_like_mosaic(usable[index]):
        return []
    return [
        Finding.of(
            "bayer-missing",
            f"{usable.frames.source(index)}: neighboring pixels differ as those of a color mosaic "
            "do: is --bayer (rggb, grbg, gbrg or bggr) missing?",
            frame=usable.frames.names[index],
        )
    ]


def describe_average(why: str) -> Finding:
    """Return the finding that the mean over the raws takes the place of a white image."""
    return Finding.of(
        "vignetting-from-frames",
        f"no white image, and {why}: brightness inside micro images is evened out by the mean over "
        "the raws",
    )


def average_vignetting(
    usable: UsableFrames, chosen: list[int], grid: MicroLensGrid
) -> Float32Array:
    """Return the vignetting that the frames chosen show in the mean."""
    from lifcal.grid.flat_field import vignetting_from_frames

    return vignetting_from_frames(grid, (usable[index].gray for index in chosen))


def read_white(path: Path | None, size: tuple[int, int], bayer: str | None) -> Frame | None:
    """Read the white image, if there is one; DataError if it is not of the raws' size."""
    from lifcal.imaging.frames import open_frames

    if path is None:
        return None
    frame = open_frames(path, bayer=bayer).read(0)
    if frame.image_size != size:
        raise DataError(
            f"{path}: {frame.image_size[0]} x {frame.image_size[1]} px, the raws have "
            f"{size[0]} x {size[1]} px"
        )
    return frame


def check_white(white: Frame, grid: MicroLensGrid, listener: Listener) -> None:
    """Raise GridNotShownError if it is no white image, or of another grid."""
    from lifcal.grid.fit import refine_grid
    from lifcal.grid.plenoptic import check_plenoptic

    try:
        check_plenoptic(white, grid)
    except DataError as error:
        raise GridNotShownError(str(error)) from None
    if grid.lattice is not None:
        with listener.status("looking at the white image"):
            try:
                fit = refine_grid(grid, white, discs=False)
            except EstimationError as error:
                raise GridNotShownError(
                    f"{white.source}: not a white image of this grid: {error}"
                ) from None
        _check_structure(fit, white, " of this grid")


def _fit_to_white(white: Frame, start: MicroLensGrid | None, listener: Listener) -> GridFit:
    from lifcal.grid.fit import fit_grid_to_white, refine_grid

    with listener.status(FITTING):
        try:
            fit = fit_grid_to_white(white) if start is None else refine_grid(start, white)
        except EstimationError as error:
            raise GridNotShownError(f"{white.source}: {error}") from None
    _check_structure(fit, white)
    return fit


def _check_structure(fit: GridFit, white: Frame, grid: str = "") -> None:
    from lifcal.grid.fit import WHITE_STRUCTURE

    if fit.structure >= WHITE_STRUCTURE:
        raise GridNotShownError(
            f"{white.source}: not a white image{grid}: its micro images differ from each other by "
            f"{100 * fit.structure:.0f} % (less than {100 * WHITE_STRUCTURE:.0f} % if it were)"
        )


def _fit_to_raws(usable: UsableFrames, start: MicroLensGrid | None, listener: Listener) -> GridFit:
    """Fit the grid to the raws; once more if some of them turn out not to show it."""
    try:
        average, _ = read_average(usable, _FRAMES_FOR_GRID, listener)
        fit = fit_average(average, start, listener)
    except EstimationError as error:
        if len(usable) > 1:
            raise
        raise GridNotShownError(f"{usable.frames.source(0)}: {error}") from None
    averaged = sorted(usable.seen)
    usable.grid = fit.grid
    with listener.status("looking at some of the raws"):
        good = [usable.read(index) is not None for index in averaged]
    if any(good) and not all(good):
        average, _ = read_average(usable, _FRAMES_FOR_GRID, listener)
        fit = fit_average(average, start, listener)
    return fit


def _add_focal_planes(
    usable: UsableFrames,
    chosen: list[int],
    grid: MicroLensGrid,
    vignetting: Float32Array | None,
    bayer: str | None,
    listener: Listener,
) -> tuple[MicroLensGrid, list[Finding]]:
    from lifcal.virtual.focal_planes import estimate_focal_planes

    with listener.status("finding the focal planes (compiling, the first time only)"):
        try:
            found = estimate_focal_planes(
                (usable[index] for index in chosen), grid, vignetting, bayer=bayer
            )
        except EstimationError as error:
            text = f"going on without focal planes: {error}"
            return grid, [Finding.of("focal-planes-missing", text)]
    return found.grid, list(found.findings)


def set_range(
    engine: FocusEngine | DepthEngine, usable: UsableFrames, chosen: list[int], listener: Listener
) -> bool:
    """Find the depth range in the frames chosen, or in others if those show none.

    Returns False if no frame shows any; then none can be used.
    """
    looked_at: list[int] = []
    with listener.status("finding the depth range (compiling, the first time only)"):
        while chosen:
            try:
                engine.set_range(usable[index] for index in chosen)
            except EstimationError:
                looked_at += chosen
                chosen = usable.choose(FRAMES_FOR_RANGE, besides=looked_at)
            else:
                return True
    for index in looked_at:
        usable.refuse(index, NO_DEPTH)
    return False


def _figures(grid: MicroLensGrid) -> dict[str, Any]:
    return {
        "layout": "explicit" if grid.lattice is None else grid.lattice.layout,
        "pitch_px": grid.pitch_px,
        "bend_order": 0 if grid.bend is None else grid.bend.order,
        "bend_rms_px": 0.0 if grid.bend is None else grid.bend.rms_px,
        "lens_deviations_rms_px": grid.deviations_rms_px,
        "lenses": len(grid),
        "radius_px": float(grid.radius_px),
        "types": grid.n_types,
        "focal_planes": None if grid.focal_planes is None else grid.focal_planes.tolist(),
        "main_disc_px": None if grid.discs is None else grid.discs.main_px,
        "micro_discs_px": None if grid.discs is None else list(grid.discs.micro_px),
        "checksum": digest_grid(grid),
    }


# Frame by frame


class FocusWork(FrameWork["FocusedFrame", FocusEntry]):
    """Makes virtual depth and focused images of frames."""

    engine: FocusEngine

    def __init__(
        self,
        usable: UsableFrames,
        store: FocusStore,
        engine: FocusEngine,
        vignetting: Float32Array | None,
    ) -> None:
        from lifcal.virtual import FocusEngine

        bayer = usable.frames.bayer
        again = partial(FocusEngine, engine.grid, vignetting, engine.options, bayer=bayer)
        super().__init__(usable, usable.frames.names, store.images, store.entries, engine, again)

    def run(self, frame: Frame) -> tuple[FocusedFrame, float]:
        """Focus a frame; return it, and the share of its pixels whose virtual depth is known."""
        found = self.engine.run(frame)
        return found, float(found.depth.known.mean())

    def draw(self, frame: Frame, made: FocusedFrame) -> dict[str, Any]:
        """Return the images of a frame, its virtual depth last."""
        from lifcal.imaging.frames import to_stored

        return {
            "focused": to_stored(made.focused.image, frame.bits),
            "color": draw_depth(made.depth),
            "flags": made.depth.flags,
            "sigma": made.depth.sigma,
            "u": made.depth.u,
        }

    def describe(self, index: int, common: FrameEntry, made: FocusedFrame) -> FocusEntry:
        """Return the entry of a frame."""
        import numpy as np

        del index
        medians = (float(np.nanmedian(made.depth.u)), float(np.nanmedian(made.depth.sigma)))
        return FocusEntry(**common.as_dict(), median_u=medians[0], median_sigma=medians[1])


def draw_depth(depth: VirtualDepth) -> ColorImage:
    """Return the map in color over a bar: each number stands over the place of its color."""
    from lifcal.imaging.preview import draw_map

    low, high = sorted(depth.depth_range)
    return draw_map(depth.u, low, high, "{:.2f}")
