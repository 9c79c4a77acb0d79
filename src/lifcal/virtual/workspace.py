"""Large arrays that are kept from one frame to the next."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


class Workspace:
    """Keeps large arrays by name for the next frame. Only one frame at a time may use it."""

    def __init__(self) -> None:
        self._arrays: dict[str, npt.NDArray[Any]] = {}

    def take(self, name: str, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Return an array with arbitrary content: the last one if its shape and type fit."""
        found = self._arrays.get(name)
        if found is None or found.shape != shape or found.dtype != dtype:
            found = np.empty(shape, dtype)
            self._arrays[name] = found
        return found


class NoWorkspace(Workspace):
    """Makes every array anew, so that it is freed as soon as it is not used."""

    def take(self, name: str, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Return a new array."""
        del name
        return np.empty(shape, dtype)
