"""Choosing the frames of a video that show something new."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import cv2
import numpy as np

from lifcal.arrays import Float32Array, FloatArray
from lifcal.errors import DataError
from lifcal.imaging.frames import Frames

_LOOKED_AT = 4
"""Number of frames that are examined for each frame to be chosen. Consecutive frames of a video are
so similar that examining all of them would only take longer."""
_SMALL_WIDTH = 64
"""Width of the pictures that are compared, in px; at this size, micro lenses are not resolved."""
_NEIGHBORS = 2
"""Number of examined frames before and after a chosen one; the sharpest of all replaces it."""


def thin_frames(
    frames: Frames, most: int, on_frame: Callable[[int, int], None] = lambda _done, _all: None
) -> list[int]:
    """Return the indices of up to `most` frames, each of which differs from the one before it.

    Frames are compared as small pictures. A frame is chosen when its picture has changed by a
    certain amount since the last chosen one: one frame is chosen while the camera rests, and many
    while it moves fast. The amount is the smallest with which at most `most` frames are chosen.
    Each chosen frame is replaced by the sharpest one around it, because frames of a moving camera
    may be blurred.

    Parameters
    ----------
    frames : Frames
        Frames of one recording, in the order in which they were taken. Frames that cannot be read
        are not chosen.
    most : int
        Largest number of frames to choose, at least 2.
    on_frame : callable
        Called with the number of frames examined so far and the number to be examined.
    """
    step = max(len(frames) // (_LOOKED_AT * most), 1)
    looked_at = range(0, len(frames), step)
    indices: list[int] = []
    small: list[Float32Array] = []
    sharpness: list[float] = []
    for place, index in enumerate(looked_at):
        with suppress(DataError):
            gray = frames.read(index).gray
            small.append(_shrink(gray))
            sharpness.append(_measure_sharpness(gray))
            indices.append(index)
        on_frame(place + 1, len(looked_at))
    if len(indices) <= most:
        return indices
    chosen = _choose(_normalize(np.array(small)), most)
    return [indices[place] for place in _prefer_sharp(chosen, np.array(sharpness))]


def _shrink(gray: Float32Array) -> Float32Array:
    """Return a small picture, smoothed so that no detail finer than a few of its pixels remains."""
    rows, cols = gray.shape
    size = (_SMALL_WIDTH, max(round(rows * _SMALL_WIDTH / cols), 1))
    small = cv2.resize(gray, size, interpolation=cv2.INTER_AREA)
    return np.asarray(cv2.GaussianBlur(small, (0, 0), 1.0), np.float32)


def _measure_sharpness(gray: Float32Array) -> float:
    """Return the mean gradient relative to the brightness.

    Micro lenses contribute the same amount in all frames.
    """
    middle = gray[gray.shape[0] // 4 : -(gray.shape[0] // 4) or None]
    return float(np.abs(np.diff(middle, axis=1)).mean() / max(float(middle.mean()), 1e-9))


def _normalize(small: FloatArray | Float32Array) -> FloatArray:
    """Return pictures as unit vectors, after subtracting what all have in common (the grid)."""
    mean = small.mean(axis=0)
    relative = (small / np.maximum(mean, 1e-6)).reshape(len(small), -1).astype(np.float64)
    relative -= relative.mean(axis=1, keepdims=True)
    found: FloatArray = relative / np.maximum(
        np.linalg.norm(relative, axis=1, keepdims=True), 1e-12
    )
    return found


def _choose(vectors: FloatArray, most: int) -> list[int]:
    """Return up to `most` indices such that the picture changes by at least a common amount."""
    low, high = 0.0, 2.0  # bounds of the change, which is 1 - correlation
    chosen = [0]
    for _ in range(30):
        middle = 0.5 * (low + high)
        found = _walk(vectors, middle)
        if len(found) > most:
            low = middle
        else:
            high, chosen = middle, found
    return chosen


def _walk(vectors: FloatArray, change: float) -> list[int]:
    """Return the indices at which the picture has changed by `change` since the last such index."""
    chosen = [0]
    for place in range(1, len(vectors)):
        if 1.0 - float(vectors[place] @ vectors[chosen[-1]]) >= change:
            chosen.append(place)
    return chosen


def _prefer_sharp(chosen: list[int], sharpness: FloatArray) -> list[int]:
    """Return the index of the sharpest frame around each chosen one, in their order."""
    found: list[int] = []
    for number, place in enumerate(chosen):
        first = max(place - _NEIGHBORS, found[-1] + 1 if found else 0)
        after = chosen[number + 1] if number + 1 < len(chosen) else len(sharpness)
        last = max(min(place + _NEIGHBORS, after - 1), first)
        found.append(first + int(np.argmax(sharpness[first : last + 1])))
    return found
