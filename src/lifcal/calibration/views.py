"""Frames as a calibration sees them: focused image, virtual depth and flat-fielded raw."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from lifcal.arrays import Float32Array, spread_choice
from lifcal.errors import EstimationError
from lifcal.imaging.frames import LUMINANCE, Frame, to_stored
from lifcal.virtual import FocusEngine

SATURATED = 0.998
"""Share of the full scale from which a pixel is taken as saturated. It is a little below 1, so that
rounding does not hide one."""
_FRAMES_FOR_RANGE = 5
"""Frames in which the range of virtual depths is looked for. They are spread over the recording,
and other frames of it rarely see nearer or farther things."""
_MAP_BYTES = 400 << 20
"""Memory for depth maps that are kept. It holds all maps of 36 frames of 2048 x 2048 pixels at half
size."""


@dataclass(frozen=True, eq=False)
class View:
    """A frame that was focused. Its images are read when they are needed, from disk or memory.

    Parameters
    ----------
    name : str
    index : int
        Number of the frame, among those of all recordings.
    time : float
        Timestamp; the index where none is known.
    read_focused : callable
        Returns the totally focused image as gray, (rows, cols) uint8; 0 where nothing is seen.
    read_depth, read_sigma : callable
        Return the virtual depth u and its standard deviation, (rows, cols) float32, NaN where
        unknown, of the size of the focused image.
    read_flat : callable
        Returns the raw, flat-fielded, (height, width) float32; NaN where a pixel is saturated or
        dark by vignetting.
    recording : int
        Number of the recording, from 0. Views of different recordings show different scenes.
    """

    name: str
    index: int
    time: float
    read_focused: Callable[[], npt.NDArray[np.uint8]]
    read_depth: Callable[[], Float32Array]
    read_sigma: Callable[[], Float32Array]
    read_flat: Callable[[], Float32Array]
    recording: int = 0


class DepthMaps:
    """Virtual depth of views ('depth') or its sigma ('sigma'), the last ones kept in memory."""

    def __init__(self, views: Sequence[View], scale: float, kind: str = "depth") -> None:
        self._read = [view.read_depth if kind == "depth" else view.read_sigma for view in views]
        self._scale = scale
        self._held: dict[int, Float32Array] = {}

    def __call__(self, view: int) -> tuple[Float32Array, float]:
        """Return the map of a view, and its scale relative to the raw."""
        if view not in self._held:
            image = self._read[view]()
            if (len(self._held) + 1) * image.nbytes > _MAP_BYTES:
                self._held.clear()
            self._held[view] = image
        return self._held[view], self._scale


def focus_in_memory(
    engine: FocusEngine,
    frames: Sequence[Frame],
    times: Sequence[float] | None = None,
    *,
    first_index: int = 0,
    recording: int = 0,
) -> list[View]:
    """Focus frames and keep all that a calibration needs of them in memory.

    Parameters
    ----------
    engine : FocusEngine
        Its depth range is found in the frames if it has none.
    frames : sequence of Frame
        From `lifcal.imaging.frames.make_frame`, for arrays. Some 25 MB are kept of a frame of
        2048 x 2048 pixels.
    times : sequence of float, optional
        Timestamps; the indices without.
    first_index : int
        Number of the first frame, among those of all recordings; others follow it.
    recording : int
        Number of the recording that the frames are of.

    Raises
    ------
    EstimationError
        If a frame shows no virtual depth: leave it out.
    """
    if not frames:
        raise EstimationError("there are no frames to focus", stage="virtual")
    if engine.options.depth_range is None:
        engine.set_range(frames[i] for i in spread_choice(len(frames), _FRAMES_FOR_RANGE))
    return [
        replace(
            _keep_in_memory(
                engine,
                frame,
                first_index + i,
                float(first_index + i if times is None else times[i]),
            ),
            recording=recording,
        )
        for i, frame in enumerate(frames)
    ]


def _keep_in_memory(engine: FocusEngine, frame: Frame, index: int, time: float) -> View:
    found = engine.run(frame)
    gray = to_gray(to_stored(found.focused.image, frame.bits))
    u, sigma = found.depth.u, found.depth.sigma
    flat = flatten(engine, frame).copy()  # an engine with a workspace uses its array again
    return View(frame.name, index, time, lambda: gray, lambda: u, lambda: sigma, lambda: flat)


def flatten(engine: FocusEngine, frame: Frame) -> Float32Array:
    """Return a frame flat-fielded, NaN where it is saturated."""
    image = engine.devignette(frame)
    image[frame.gray >= SATURATED] = np.nan
    return image


def to_gray(image: npt.NDArray[np.generic]) -> npt.NDArray[np.uint8]:
    """Return a stored focused image, of 8 or 16 bits, gray or color, as 8-bit gray."""
    values = image.astype(np.float32) / np.float32(257.0 if image.dtype == np.uint16 else 1.0)
    if values.ndim == 3:
        values = values @ np.array(LUMINANCE, np.float32)
    return np.asarray(np.clip(np.rint(values), 0, 255), np.uint8)
