"""What a calibration says about the depth maps of its own frames: their bias by virtual depth.

Matching windows of defocused micro images has errors of a tenth of a per cent that depend on the
depth, and are the same in every recording of a camera. The adjusted points are many times more
exact, so the maps' mean difference from them is that error.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from lifcal.arrays import Float32Array, FloatArray
from lifcal.bundle import Adjustment
from lifcal.camera import DepthBias
from lifcal.measure import sample_map

_NODES = 16
"""Nodes of the broken line at most: the bias changes slowly with the virtual depth."""
_FEWEST = 50
"""Points that each node needs. Their noise is far larger than the bias, and only their mean shows
it."""
_GROSS = 0.03
"""A depth map that is off by a larger part than this shows another surface, and has no say."""
_BEND = 3e-4
"""Standard deviation of the change of slope from node to node, as a relative depth. It keeps the
line from following the noise of single nodes."""
_STEPS = 20
"""Iterations of the reweighted fit, which settles after a few."""


def measure_depth_bias(
    adjustment: Adjustment,
    depth_map: Callable[[int], tuple[Float32Array, float]],
    n_views: int | None = None,
) -> DepthBias | None:
    """Compare depth maps with adjusted points; None if there are too few.

    Parameters
    ----------
    adjustment : Adjustment
    depth_map : callable
        Returns map and scale for the index of a view of the adjustment.
    n_views : int, optional
        The first so many views have maps; all without.
    """
    state, camera = adjustment.state, adjustment.camera
    points, views, _ = adjustment.problem.observations.pairs
    found, true = [], []
    for view in range(len(state.rotations) if n_views is None else n_views):
        mine = points[views == view]
        cam = state.points_world_mm[mine] @ state.rotations[view].T + state.translations_mm[view]
        seen = camera.principal_point_px + camera.array.focal_px * cam[:, :2] / cam[:, 2:]
        u_map, scale = depth_map(view)
        places = camera.distortion.distort(seen, camera.principal_point_px)
        found.append(sample_map(u_map, scale, places))
        true.append(camera.virtual_depth_from_depth(cam[:, 2], seen))
    return fit_depth_bias(np.concatenate(found), np.concatenate(true))


def fit_depth_bias(u: FloatArray, true_u: FloatArray) -> DepthBias | None:
    """Fit the bias to measured and true virtual depths, robustly; None if there are too few.

    A broken line through nodes at even shares of the depths, that bends only as far as it must.
    """
    relative = u / true_u - 1.0
    good = np.isfinite(relative) & (np.abs(relative) < _GROSS)
    u, relative = u[good], relative[good]
    count = min(_NODES, len(u) // _FEWEST)
    if count < 2:
        return None
    nodes = np.unique(np.quantile(u, np.linspace(0.01, 0.99, count)))
    if len(nodes) < 2:
        return None
    at = np.clip(u, nodes[0], nodes[-1])
    left = np.clip(np.searchsorted(nodes, at) - 1, 0, len(nodes) - 2)
    share = (at - nodes[left]) / (nodes[left + 1] - nodes[left])
    design = np.zeros((len(u), len(nodes)))
    rows = np.arange(len(u))
    design[rows, left] = 1.0 - share
    design[rows, left + 1] = share
    bends = np.diff(np.eye(len(nodes)), 2, axis=0) / _BEND
    values = np.full(len(nodes), float(np.median(relative)))
    for _ in range(_STEPS):
        off = relative - design @ values
        noise = 1.4826 * float(np.median(np.abs(off))) + 1e-9
        weights = 1.0 / (noise**2 * (1.0 + (off / (2.0 * noise)) ** 2))
        normal = design.T @ (design * weights[:, None]) + bends.T @ bends
        values = np.linalg.solve(normal, design.T @ (weights * relative))
    return DepthBias(nodes, values)
