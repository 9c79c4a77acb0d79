"""Consistency of the depth maps of several frames with known poses.

A single depth map has some pixels that are far off. Another frame that sees the same place either
confirms the surface there, or sees something behind it, or is occluded by something in front. See
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
"""Largest difference, in standard deviations, between two depths of one surface."""
_FEWEST = 2
"""Number of other frames that must agree with a depth; half of all if there are fewer than four."""
_IN_COMMON = 0.6
"""Fraction of the variance that is common to all frames, so that averaging frames does not reduce
it (docs/how-to/depth.md)."""


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
    """Return a depth map averaged over the frames that agree; NaN where too few agree.

    Two other frames must agree (one, if there are one or two others), and the number of frames that
    see something behind the surface must not be larger than the number of those that agree.

    Parameters
    ----------
    this : DepthMap
    others : sequence of DepthMap
    intrinsics : PinholeIntrinsics
        Intrinsics of all depth maps.
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
