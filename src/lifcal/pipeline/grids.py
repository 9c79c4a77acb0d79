"""A grid to start from, and one from scene frames."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lifcal.errors import DataError
from lifcal.listener import Listener

if TYPE_CHECKING:
    from lifcal.camera import MicroLensGrid
    from lifcal.grid.fit import FrameAverage, GridFit
    from lifcal.imaging.frames import Frame, Frames

SOURCES = {
    "white": "white image",
    "frames": "scene frames",
    "scene": "one scene frame",
}
FITTING = "fitting the grid (the first time takes half a minute longer)"


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
