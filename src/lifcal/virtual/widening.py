"""Planes over wider windows, where the surface is a plane that far.

One window for all places must be small enough for small things, and is then too noisy for tables
and walls. So windows two, four and eight times as wide are tried in turn. The wider one is taken
where it agrees with the narrower one as far as noise allows (after Lepski); what they differ by
beyond that is added to the variance. Docs: docs/theory/virtual-depth.md.
"""

from __future__ import annotations

import numpy as np

from lifcal.arrays import BoolArray, FloatArray
from lifcal.imaging.filters import largest_around, range_around, sum_around, widen_mask
from lifcal.virtual import _kernels
from lifcal.virtual.workspace import NoWorkspace, Workspace

_LEVELS = 3
_AGREE, _DIFFER = 1.5, 3.0
"""Mean square of the differences in sigmas over a wide window: up to the first the wider plane is
taken, beyond the second the narrower one."""
_AGREE_HERE, _DIFFER_HERE = 2.0, 4.0
"""The same over a narrow window, where few differences are independent: for small things."""
_EDGE_SHARE = 0.5
"""Of the difference that tells surfaces apart in narrow windows: noise is less in wide ones."""
_POOR, _SURE_JUMP = 3.0, 4.0
"""Where sigma is so many times its median, there is hardly any texture; there a jump is a change by
so many sigmas."""
_LEAST_GAIN = 0.05
"""Of the variance: less is not worth a comparison."""


def widen(
    fused: FloatArray,
    rho: FloatArray,
    sums: FloatArray,
    half: int,
    edge: float,
    inflation: FloatArray,
    workspace: Workspace | None = None,
) -> None:
    """Replace planes by those of wider windows where these agree.

    Parameters
    ----------
    fused : (rows, cols, FUSED) float64
        From `_kernels.fuse`, changed in place.
    rho : (rows, cols) float64
        Where `sums` were measured.
    sums : (SUMS, rows, cols) float64
        From `_kernels.measure`.
    half, edge : int, float
        As for `_kernels.fuse`, which made `fused`.
    inflation : (rows, cols) float64
        By which variances of `_kernels.fuse` are too small; those of `fused` have it already.
    workspace : Workspace or None
        Keeps the large arrays for the next frame.
    """
    space = workspace or NoWorkspace()
    planes = space.take("planes", (*rho.shape, 4), np.float64)
    # Beside a jump, what the nearer surface hides draws rho to it: no plane is to spread that.
    clear = ~_is_beside_jump(fused[..., 0], np.sqrt(fused[..., 3]), half, edge)
    sums = np.multiply(sums, clear, out=space.take("clear sums", sums.shape, np.float64))
    for level in range(1, _LEVELS + 1):
        shape = (rho.shape[0] // 2, rho.shape[1] // 2)
        if min(shape) < 2:
            return
        halved = space.take(f"halved {level}", shape, np.float64)
        halved_sums = space.take(f"halved sums {level}", (_kernels.SUMS, *shape), np.float64)
        _kernels.halve(rho, sums, edge, halved, halved_sums)
        rho, sums = halved, halved_sums
        wide = space.take(f"wide {level}", (*shape, _kernels.FUSED), np.float64)
        _kernels.fuse(rho, sums, half, _EDGE_SHARE * edge, wide)
        _kernels.bring_back(wide, float(1 << level), planes)
        planes[..., 3] *= inflation
        _take(fused, planes, clear, half, 1 << level)


def _is_beside_jump(rho: FloatArray, sigma: FloatArray, half: int, edge: float) -> BoolArray:
    """Tell which pixels are less than a narrow window away from where rho jumps.

    Where there is hardly any texture rho is noise, and that is no jump. If noise is large all over,
    it cannot be told from jumps, and counts as such.
    """
    around = largest_around(sigma.astype(np.float32))
    poor = around > _POOR * float(np.median(sigma))
    change = range_around(rho.astype(np.float32))
    jumps = (change > edge * np.abs(rho)) & ~(poor & (change < _SURE_JUMP * around))
    return widen_mask(np.asarray(jumps), 2 * half + 1)


def _take(fused: FloatArray, planes: FloatArray, clear: BoolArray, half: int, factor: int) -> None:
    """Blend the wider planes in where they agree; `clear` pixels only."""
    squares, counts = np.empty(clear.shape), np.empty(clear.shape)
    _kernels.compare_planes(fused, planes, clear, _LEAST_GAIN, squares, counts)
    around = _mean(squares, counts, 2 * half * factor + 1)
    here = _mean(squares, counts, 2 * half + 1)
    limits = (_AGREE, _DIFFER, _AGREE_HERE, _DIFFER_HERE)
    _kernels.blend_planes(planes, counts, around, here, limits, fused)


def _mean(values: FloatArray, counts: FloatArray, side: int) -> FloatArray:
    """Return the mean of the values that count, in the square around each."""
    return np.asarray(sum_around(values, side) / np.maximum(sum_around(counts, side), 1.0))
