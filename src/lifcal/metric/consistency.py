"""What several frames with known poses say of each other's depth maps.

A depth map alone has pixels that are far off. Another frame that looks at the same place either
finds the same surface there, or sees through it, or has something in front. See
docs/how-to/depth.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lifcal.arrays import Float32Array
from lifcal.camera import PinholeIntrinsics
from lifcal.geometry import RigidTransform
from lifcal.metric import _kernels

_MOST_SIGMAS = 3.0
"""Difference in standard deviations up to which two depths are of one surface."""
_FEWEST = 2
"""Other frames that must agree with a depth; half of them if there are fewer than four."""
_IN_COMMON = 0.6
"""Share of the variance that the errors of frames have in common, and that no number of them
takes away (docs/how-to/depth.md)."""


@dataclass(frozen=True, eq=False)
class DepthMap:
    """Depth of a frame with a known pose.

    Parameters
    ----------
    depth_mm, sigma_mm : (rows, cols) float32
        NaN where unknown.
    world_from_cam : RigidTransform
    """

    depth_mm: Float32Array
    sigma_mm: Float32Array
    world_from_cam: RigidTransform


def confirm_depth(
    this: DepthMap, others: Sequence[DepthMap], intrinsics: PinholeIntrinsics
) -> DepthMap:
    """Return a depth map with the mean of what frames agree on, NaN where too few agree.

    Two others must agree (one, if there are one or two), and not more of them see something behind
    the place.

    Parameters
    ----------
    this : DepthMap
    others : sequence of DepthMap
    intrinsics : PinholeIntrinsics
        Of all of them.
    """
    if not others:
        return this
    moves = [other.world_from_cam.inverse() @ this.world_from_cam for other in others]
    k = intrinsics
    depth_mm, sigma_mm = np.empty_like(this.depth_mm), np.empty_like(this.sigma_mm)
    _kernels.confirm(
        this.depth_mm,
        this.sigma_mm,
        _kernels.OtherFrames(
            depths=np.stack([other.depth_mm for other in others]),
            sigmas=np.stack([other.sigma_mm for other in others]),
            rotations=np.array([move.rotation for move in moves]),
            translations=np.array([move.translation_mm for move in moves]),
        ),
        _kernels.Pinhole(k.fx, k.fy, k.cx, k.cy),
        _kernels.Agreement(
            needed=min(_FEWEST, (len(others) + 1) // 2),
            most_sigmas=_MOST_SIGMAS,
            common=_IN_COMMON,
        ),
        depth_mm,
        sigma_mm,
    )
    return DepthMap(depth_mm, sigma_mm, this.world_from_cam)
