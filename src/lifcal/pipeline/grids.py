"""The micro-lens grid: one to start from, and one found in a white image or in scene frames."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lifcal.diagnostics import Finding
from lifcal.errors import DataError, EstimationError
from lifcal.listener import Listener

if TYPE_CHECKING:
    from lifcal.arrays import Float32Array
    from lifcal.camera import MicroLensGrid
    from lifcal.grid.fit import FrameAverage, GridFit
    from lifcal.imaging.frames import Frame, Frames

SOURCES = {
    "white": "white image",
    "frames": "scene frames",
    "scene": "one scene frame",
}
FITTING = "fitting the grid (the first time takes half a minute longer)"


class GridNotShownError(DataError):
    """Images can be read, but do not show the micro-lens grid that they should show."""

    stage = "grid"


@dataclass(frozen=True, eq=False)
class FoundGrid:
    """A grid that was found, and what it was found in.

    Parameters
    ----------
    fit : GridFit
        The grid with residuals, flags and findings.
    image : (height, width) float32
        The image that the grid was fitted to: of several frames, their mean.
    problems : tuple of str
        Which frames could not be read, and why.
    """

    fit: GridFit
    image: Float32Array
    problems: tuple[str, ...] = ()

    @property
    def grid(self) -> MicroLensGrid:
        """The grid itself."""
        return self.fit.grid

    def write(self, path: Path, frames: Frames | None = None) -> Path:
        """Write the grid as JSON and a picture of the fit beside it; return the picture's path.

        Parameters
        ----------
        path : Path
        frames : Frames, optional
            Frames that the picture must not overwrite; DataError if it is among them.
        """
        from lifcal.camera import write_grid
        from lifcal.grid.picture import draw_grid_fit
        from lifcal.imaging.files import write_png

        picture = name_picture(path)
        if frames is not None:
            frames.check_not_among(picture)
        write_grid(path, self.grid)
        write_png(picture, draw_grid_fit(self.fit, self.image))
        return picture


def name_picture(path: Path) -> Path:
    """Return where the picture of a fit is, beside the grid's own file."""
    return path.with_name(f"{path.stem}_fit.png")


def find_grid_in_frames(
    frames: Frames, start: Path | None, max_frames: int, listener: Listener
) -> FoundGrid:
    """Find the grid in one image, white or not, or in several frames of a scene.

    Frames that cannot be read are told to the listener and left out.

    Parameters
    ----------
    frames : Frames
    start : Path or None
        A maker's file or a grid.json to start from.
    max_frames : int
    listener : Listener
    """
    begin = None if start is None else read_start(start, frames.image_size)
    if len(frames) == 1:
        found = _fit_one(frames, begin, listener)
    else:
        found = _fit_several(frames, begin, max_frames, listener)
    for finding in found.fit.findings:
        listener.finding(finding)
    return found


def _fit_one(frames: Frames, start: MicroLensGrid | None, listener: Listener) -> FoundGrid:
    """Fit to one image: as white if all micro images look alike, else as a scene."""
    import numpy as np

    from lifcal.grid.check import check_grid, measure_grid_shifts
    from lifcal.grid.fit import (
        WHITE_STRUCTURE,
        fit_grid_to_frames,
        fit_grid_to_white,
        refine_grid,
    )

    with listener.status("reading the image"):
        frame = frames.read(0)
    with listener.status(FITTING):
        failure: EstimationError | None = None
        try:
            fit = fit_grid_to_white(frame) if start is None else refine_grid(start, frame)
        except EstimationError as error:
            failure = error
        if failure is not None or fit.structure >= WHITE_STRUCTURE:
            try:
                fit = (
                    fit_grid_to_frames([frame])
                    if start is None
                    else refine_grid(start, frame, source="scene")
                )
            except EstimationError as error:
                raise DataError(f"{frame.source}: {failure or error}") from None
        if start is not None:
            check_grid(frame, fit.grid)
            # A scene's grid that the brightness does not show may be any grid.
            if failure is not None and np.isnan(measure_grid_shifts(frame, fit.grid)).all():
                raise DataError(f"{frame.source}: {failure}")
        return FoundGrid(fit, frame.gray)


def _fit_several(
    frames: Frames, start: MicroLensGrid | None, max_frames: int, listener: Listener
) -> FoundGrid:
    """Fit to the average of scene frames; frames that cannot be read are named and left out."""
    from lifcal.grid.check import check_grid

    average, problems = read_average(frames, max_frames, listener)
    texts = tuple(map(str, problems))
    for text in texts:
        listener.finding(Finding.of("frame-unusable", text, frame=text.partition(":")[0]))
    fit = fit_average(average, start, listener)
    if start is not None:
        check_grid(_read_first(frames), fit.grid)
    return FoundGrid(fit, average.mean, texts)


def _read_first(frames: Frames) -> Frame:
    """Return the first frame that can be read; there is one."""
    for index in range(len(frames) - 1):
        with suppress(DataError):
            return frames.read(index)
    return frames.read(len(frames) - 1)


def read_start(path: Path, image_size: tuple[int, int]) -> MicroLensGrid:
    """Read a maker's file or a grid.json; DataError if it is not for images of this size."""
    from lifcal.imaging.camera_formats import read_camera_file

    start = read_camera_file(path).grid(image_size)
    if start.image_size != image_size:
        raise DataError(
            f"{path}: a grid for {start.image_size[0]} x {start.image_size[1]} px, the images have "
            f"{image_size[0]} x {image_size[1]} px"
        )
    return start


def read_average(
    frames: Frames | Sequence[Frame], max_frames: int, listener: Listener
) -> tuple[FrameAverage, list[DataError]]:
    """Return the average of scene frames, and what is wrong with those that were left out."""
    from lifcal.grid.fit import average_frames

    problems: list[DataError] = []
    with listener.steps("reading frames", min(max_frames, len(frames))) as step:
        average = average_frames(
            frames,
            max_frames=max_frames,
            on_frame=lambda _count, _total: step(""),
            on_problem=problems.append,
        )
    return average, problems


def fit_average(average: FrameAverage, start: MicroLensGrid | None, listener: Listener) -> GridFit:
    """Fit the grid to the average of scene frames."""
    from lifcal.grid.fit import fit_grid_to_frames, refine_grid

    with listener.status(FITTING):
        return fit_grid_to_frames(average) if start is None else refine_grid(start, average)
