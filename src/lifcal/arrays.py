"""Array types, and functions that check arrays which users pass to the public API."""

from __future__ import annotations

import math
from collections.abc import Iterator
from types import EllipsisType
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from lifcal.errors import InputError

FloatArray: TypeAlias = npt.NDArray[np.float64]
Float32Array: TypeAlias = npt.NDArray[np.float32]
IntArray: TypeAlias = npt.NDArray[np.int64]
BoolArray: TypeAlias = npt.NDArray[np.bool_]
ImageArray: TypeAlias = npt.NDArray[np.uint8 | np.uint16]

_BAND = 1 << 16
"""Elements that are processed at a time, so that intermediate arrays stay in the cache."""


def check_array(
    value: npt.ArrayLike, name: str, shape: tuple[int | None, ...], *, finite: bool = False
) -> FloatArray:
    """Return `value` as a C-contiguous float64 array of the given shape.

    Parameters
    ----------
    value : array_like
        The value to check.
    name : str
        Name of the argument, for the error message.
    shape : tuple of int or None
        The shape needed; None stands for any length.
    finite : bool
        Whether NaN and infinity are refused.

    Raises
    ------
    InputError
        If the value is not numeric or has another shape.
    """
    try:
        array = np.ascontiguousarray(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} is not an array of numbers: {error}") from None
    if np.ndim(value) == 0 and len(shape) == 0:
        array = array.reshape(())
    matches = array.ndim == len(shape) and all(
        want is None or got == want for want, got in zip(shape, array.shape, strict=True)
    )
    if not matches:
        needed = "(" + ", ".join("n" if want is None else str(want) for want in shape) + ")"
        raise InputError(f"{name} has shape {array.shape}, needs {needed}")
    if finite and not np.isfinite(array).all():
        raise InputError(f"{name} has NaN or infinite entries")
    return array


def check_indices(value: npt.ArrayLike, name: str, upper: int) -> IntArray:
    """Return `value` as a one-dimensional int64 array of indices in [0, upper)."""
    array = np.asarray(value)
    if array.ndim != 1 or (array.size and not np.issubdtype(array.dtype, np.integer)):
        raise InputError(f"{name} needs a one-dimensional array of integers")
    indices = np.ascontiguousarray(array, dtype=np.int64)
    if indices.size and (indices.min() < 0 or indices.max() >= upper):
        raise InputError(
            f"{name} has entries from {indices.min()} to {indices.max()}, needs 0 to {upper - 1}"
        )
    return indices


def read_only(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a view of `array` that cannot be written, for arrays kept in records."""
    view = array.view()
    view.flags.writeable = False
    return view


def cut_rows(array: npt.NDArray[Any]) -> Iterator[slice | EllipsisType]:
    """Return bands of rows, for operations that work element by element in several steps.

    Without bands, each step would allocate an array of the size of the whole image.
    """
    if array.ndim == 0:
        return iter((...,))
    count = max(_BAND * len(array) // max(array.size, 1), 1)
    return (slice(first, first + count) for first in range(0, len(array), count))


def spread_choice(count: int, most: int) -> list[int]:
    """Return up to `most` of `count` indices, evenly spread, the first and the last among them.

    If `most` is 1, the index is the middle one.
    """
    if count <= most:
        return list(range(count))
    if most == 1:
        return [count // 2]
    return [math.floor(i * (count - 1) / (most - 1) + 0.5) for i in range(most)]
