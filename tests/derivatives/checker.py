"""Derivative checks for all rooms: numeric Jacobians, and a comparison that cannot pass idly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
Function = Callable[[npt.NDArray[Any]], npt.ArrayLike]


def complex_step(function: Function, x: npt.ArrayLike, step: float = 1e-30) -> FloatArray:
    """Jacobian by complex steps, exact to rounding.

    Parameters
    ----------
    function : callable
        Takes a complex (n,) vector, returns a scalar or an array. It must be analytic: no abs(),
        no conjugates, no casts to float.
    x : (n,) float64
    step : float
        Its size does not matter as long as its square vanishes beside 1.

    Returns
    -------
    (..., n) float64
        Derivative of each output (leading axes: the output's shape) by each input.

    Raises
    ------
    AssertionError
        If the function returns real values, because then the step got lost on the way.
    """
    point = np.asarray(x, dtype=np.float64)
    columns = []
    for i in range(point.size):
        shifted = point.astype(np.complex128)
        shifted[i] += 1j * step
        value = np.asarray(function(shifted))
        if not np.iscomplexobj(value):
            raise AssertionError(f"complex step lost: real output for a complex input {i}")
        columns.append(value.imag / step)
    return np.stack(columns, axis=-1)


def central_difference(
    function: Function, x: npt.ArrayLike, step: float | npt.ArrayLike
) -> FloatArray:
    """Jacobian by central differences, (..., n); `step` is one number or one for each input.

    For a manifold, pass the function of the increment and x = 0.
    """
    point = np.asarray(x, dtype=np.float64)
    steps = np.broadcast_to(np.asarray(step, dtype=np.float64), point.shape)
    columns = []
    for i in range(point.size):
        ahead, behind = point.copy(), point.copy()
        ahead[i] += steps[i]
        behind[i] -= steps[i]
        difference = np.asarray(function(ahead)) - np.asarray(function(behind))
        columns.append(difference / (ahead[i] - behind[i]))
    return np.stack(columns, axis=-1)


def check_block(
    name: str, analytic: npt.ArrayLike, numeric: npt.ArrayLike, tolerance: float
) -> None:
    """Compare one parameter block of a Jacobian, relative to the block's largest entry.

    Columns of very different size in one block hide each other: give each parameter, or each group
    of like parameters, a block of its own, or use `check_columns`.

    Raises
    ------
    AssertionError
        Names the block and the worst entry. Also for wrong shapes, empty blocks, NaN or infinite
        entries, and for a dead block, where all entries of either side are zero.
    """
    a = np.asarray(analytic)
    b = np.asarray(numeric)
    if a.shape != b.shape:
        raise AssertionError(f"{name}: wrong shape: analytic {a.shape}, numeric {b.shape}")
    if a.size == 0:
        raise AssertionError(f"{name}: empty block, shape {a.shape}")
    for side, block in (("analytic", a), ("numeric", b)):
        if np.iscomplexobj(block):
            raise AssertionError(f"{name}: {side} block is complex")
        bad = ~np.isfinite(block)
        if bad.any():
            where = _index(int(np.argmax(bad)), block.shape)
            raise AssertionError(
                f"{name}: {side} block has {int(bad.sum())} entries that are not finite, "
                f"the first at {where}: {block[where]}"
            )
    for side, block in (("numeric", b), ("analytic", a)):
        if not block.any():
            raise AssertionError(f"{name}: dead block: all {side} entries are zero")
    scale = np.abs(b).max()
    error = np.abs(a - b) / scale
    worst = _index(int(np.argmax(error)), error.shape)
    if not error[worst] <= tolerance:
        raise AssertionError(
            f"{name}: worst entry {worst}: analytic {a[worst]:.15g}, numeric {b[worst]:.15g}, "
            f"difference {error[worst]:.3g} of the block's largest entry {scale:.6g} "
            f"(allowed {tolerance:.3g})"
        )


def check_columns(
    names: Sequence[str], analytic: npt.ArrayLike, numeric: npt.ArrayLike, tolerance: float
) -> None:
    """`check_block` for each column (last axis) on its own, so that no column hides another."""
    a = np.asarray(analytic)
    b = np.asarray(numeric)
    if a.shape != b.shape or a.shape[-1:] != (len(names),):
        raise AssertionError(
            f"{', '.join(names)}: wrong shape: analytic {a.shape}, numeric {b.shape}, "
            f"{len(names)} names"
        )
    for i, name in enumerate(names):
        check_block(name, a[..., i], b[..., i], tolerance)


def _index(flat: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(flat, shape))
