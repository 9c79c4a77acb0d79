"""Planes over wider windows, where the surface is flat over the whole window.

A window that is small enough for small objects is noisier than necessary on tables and walls. So
windows two, four and eight times as wide are tried in turn. Where a plane fitted to the wider
window agrees with the narrower one as far as noise allows (Lepski's method), the wider fit is used:
it is less noisy. Differences beyond noise are added to the variance (docs/theory/virtual-depth.md).
"""

from __future__ import annotations

import numpy as np

from lifcal.arrays import BoolArray, FloatArray
from lifcal.imaging.filters import largest_around, range_around, sum_around, widen_mask
from lifcal.virtual import _kernels_refine
from lifcal.virtual._kernels_refine import (
    FUSED_COLUMNS,
    N_SUMS,
    PLANE_COLUMNS,
    PLANE_RHO,
    PLANE_VARIANCE,
    AgreementLimits,
)
from lifcal.virtual.workspace import NoWorkspace, Workspace

_LEVELS = 3
"""Number of times that windows are doubled: to two, four and eight times the width."""
_LIMITS = AgreementLimits(agree=1.5, differ=3.0, agree_here=2.0, differ_here=4.0)
"""Mean squared differences in sigmas between which the weight of the wider plane falls from 1 to 0.
Noise alone gives 1. The limits over a narrow window are wider, because few differences in it are
independent; they catch small objects. All were chosen by hand (docs/theory/virtual-depth.md)."""
_EDGE_SHARE = 0.5
"""Fraction of the change of rho that separates surfaces in narrow windows to be used in wide ones,
where rho is less noisy."""
_POOR, _SURE_JUMP = 3.0, 4.0
"""A place has hardly any texture where sigma exceeds this multiple of its median. There rho jumps
by noise alone, so a jump must also be this many sigmas."""
_LEAST_GAIN = 0.05
"""Least relative reduction of the variance for which planes are compared."""


def widen(
    fused: FloatArray,
    rho: FloatArray,
    sums: FloatArray,
    half: int,
    edge: float,
    inflation: FloatArray,
    workspace: Workspace | None = None,
) -> None:
    """Replace planes by those of wider windows where both agree within their noise.

    Parameters
    ----------
    fused : (rows, cols, FUSED_COLUMNS) float64
        Planes of narrow windows from `_kernels_refine.fuse`; changed in place.
    rho : (rows, cols) float64
        Inverse virtual depths at which `sums` were measured.
    sums : (N_SUMS, rows, cols) float64
        Sums from `_kernels_refine.measure`.
    half, edge : int, float
        Arguments of the call of `_kernels_refine.fuse` that made `fused`.
    inflation : (rows, cols) float64
        Factor on the variances that `_kernels_refine.fuse` gives, because neighboring samples are
        correlated. The variances in `fused` include it already.
    workspace : Workspace or None
        Keeps the large arrays for the next frame.
    """
    space = workspace or NoWorkspace()
    planes = space.take("planes", (*rho.shape, PLANE_COLUMNS), np.float64)
    # Beside a jump the nearer surface hides the farther one and biases its rho. Wide planes must
    # not carry that bias along.
    clear = ~_is_beside_jump(fused[..., PLANE_RHO], np.sqrt(fused[..., PLANE_VARIANCE]), half, edge)
    sums = np.multiply(sums, clear, out=space.take("clear sums", sums.shape, np.float64))
    for level in range(1, _LEVELS + 1):
        shape = (rho.shape[0] // 2, rho.shape[1] // 2)
        if min(shape) < 2:
            return
        halved = space.take(f"halved {level}", shape, np.float64)
        halved_sums = space.take(f"halved sums {level}", (N_SUMS, *shape), np.float64)
        _kernels_refine.halve(rho, sums, edge, halved, halved_sums)
        rho, sums = halved, halved_sums
        wide = space.take(f"wide {level}", (*shape, FUSED_COLUMNS), np.float64)
        _kernels_refine.fuse(rho, sums, half, _EDGE_SHARE * edge, wide)
        _kernels_refine.bring_back(wide, float(1 << level), planes)
        planes[..., PLANE_VARIANCE] *= inflation
        _take(fused, planes, clear, half, 1 << level)


def _is_beside_jump(rho: FloatArray, sigma: FloatArray, half: int, edge: float) -> BoolArray:
    """Tell which pixels are less than a narrow window away from a jump of rho.

    Where there is hardly any texture, changes of rho are noise and not taken for jumps. If noise is
    large everywhere, it cannot be told from jumps and counts as such.
    """
    around = largest_around(sigma.astype(np.float32))
    poor = around > _POOR * float(np.median(sigma))
    change = range_around(rho.astype(np.float32))
    jumps = (change > edge * np.abs(rho)) & ~(poor & (change < _SURE_JUMP * around))
    return widen_mask(np.asarray(jumps), 2 * half + 1)


def _take(fused: FloatArray, planes: FloatArray, clear: BoolArray, half: int, factor: int) -> None:
    """Blend wider planes into `fused` where they agree; only `clear` pixels are changed."""
    squares, counts = np.empty(clear.shape), np.empty(clear.shape)
    _kernels_refine.compare_planes(fused, planes, clear, _LEAST_GAIN, squares, counts)
    around = _mean(squares, counts, 2 * half * factor + 1)
    here = _mean(squares, counts, 2 * half + 1)
    _kernels_refine.blend_planes(planes, counts, around, here, _LIMITS, fused)


def _mean(values: FloatArray, counts: FloatArray, side: int) -> FloatArray:
    """Return the mean over the square around each pixel, of the values that count."""
    return np.asarray(sum_around(values, side) / np.maximum(sum_around(counts, side), 1.0))
