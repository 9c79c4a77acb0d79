"""Conversion of virtual depth to metric depth with its standard deviation, and filters for it."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lifcal.arrays import BoolArray, Float32Array, cut_rows
from lifcal.camera import TILT_PARAMETERS, PinholeIntrinsics, PlenopticCamera
from lifcal.errors import ConfigError, InputError
from lifcal.metric import _kernels
from lifcal.virtual import DepthFlag, Workspace
from lifcal.virtual.workspace import NoWorkspace

PLANES = ("pinhole", "2B")
"""Possible image planes: at the sensor's distance, or where the paper's virtual depth is 2."""


class MetricFlag(enum.IntFlag):
    """Why a metric depth is unknown although the virtual depth is known.

    The lower bits of a frame's flags are those of `DepthFlag`.
    """

    OUT_OF_RANGE = 32
    """The depth is outside the requested range, or at infinity and beyond."""
    UNSURE = 64
    """The standard deviation is above the limit."""
    EDGE = 128
    """The pixel is beside a jump of depth, or on a patch too small to be a surface."""


@dataclass(frozen=True)
class MetricOptions:
    """Options of metric depth.

    Parameters
    ----------
    scale : float
        Size of the images relative to the raw.
    plane : 'pinhole' or '2B'
        Image plane of the equivalent pinhole camera: at the distance of the sensor, or at that of
        the paper's plane of total covering (2 B from the array). The second image is larger by
        (b_L0 + 2 B) / (b_L0 + B), so that its pixels have the same size.
    range_mm : (float, float) or None
        Range of depths to search; None finds it in the images.
    most_sigma : float
        Depths whose standard deviation is larger than this fraction of the depth become unknown.
    edge_px : int
        Pixels within this distance of a jump of depth become unknown; 0 keeps them.
    jump : float
        Largest change from a pixel to the next on one surface, as a fraction of the depth, unless
        sigma is larger.
    least_patch_px : int
        Surfaces of fewer pixels become unknown.
    keep_hidden : bool
        Whether to keep pixels beside a nearer surface that hides them from some lenses.
    calibration_sigma : bool
        Whether the uncertainty of the camera's alpha, beta and tilt is added to sigma.
    """

    scale: float = 0.5
    plane: str = "pinhole"
    range_mm: tuple[float, float] | None = None
    most_sigma: float = 0.1
    edge_px: int = 1
    jump: float = 0.02
    least_patch_px: int = 200
    keep_hidden: bool = True
    calibration_sigma: bool = False

    def __post_init__(self) -> None:
        if self.plane not in PLANES:
            raise ConfigError.unknown("plane", self.plane, PLANES)
        if not 0.05 <= self.scale <= 1.0:
            raise InputError(f"scale is {self.scale}, needs 0.05 to 1")
        for name in ("most_sigma", "jump"):
            if not 0.0 < getattr(self, name) < 1.0:
                raise InputError(f"{name} is {getattr(self, name)}, needs to be between 0 and 1")
        if self.edge_px < 0 or self.least_patch_px < 0:
            raise InputError(
                f"edge_px is {self.edge_px}, least_patch_px {self.least_patch_px}: need 0 or more"
            )
        if self.range_mm is not None:
            near, far = self.range_mm
            if not (math.isfinite(far) and 0.0 < near < far):
                raise InputError(
                    f"range is {near:g} to {far:g} mm, needs two positive depths, the nearer first"
                )


def compute_metric_depth(
    camera: PlenopticCamera,
    u: npt.NDArray[np.floating],
    sigma_u: npt.NDArray[np.floating],
    intrinsics: PinholeIntrinsics | None = None,
    *,
    calibration: bool = False,
) -> tuple[Float32Array, Float32Array]:
    """Return `z = beta / (u - alpha)` and its standard deviation, both in mm.

    Parameters
    ----------
    camera : PlenopticCamera
    u, sigma_u : (...) float
        Virtual depth and its standard deviation; NaN where unknown.
    intrinsics : PinholeIntrinsics or None
        Intrinsics of the image, (rows, cols), to which u belongs. They are needed for a tilted
        array, with which the virtual depth of a point depends on its position. If None, all values
        are taken to be at the principal point.
    calibration : bool
        Whether to add the uncertainty of alpha, beta and the tilt. It is common to all pixels of
        all frames, so averaging does not reduce it.

    Returns
    -------
    depth_mm, sigma_mm : (...) float32
        NaN where u is unknown, or that of infinity and beyond.
    """
    u, sigma_u, beta = np.asarray(u), np.asarray(sigma_u), camera.array.beta_mm
    names = ["alpha", "beta"]
    tilted = camera.tilt is not None and intrinsics is not None
    if tilted:
        names += TILT_PARAMETERS
    if calibration:
        if camera.covariance is None:
            raise InputError(
                "the camera has no covariance, so its part of sigma is not known: use a camera "
                "that lifcal calibrate made"
            )
        places = [camera.parameter_names.index(name) for name in names]
        covariance = camera.covariance[np.ix_(places, places)]
    depth_mm, sigma_mm = np.empty(u.shape, np.float32), np.empty(u.shape, np.float32)
    for part in cut_rows(u):
        flat = np.asarray(u[part], np.float64)
        slope = np.ones(())  # derivative of u at the principal point with respect to u here
        if tilted:
            assert camera.tilt is not None
            assert intrinsics is not None
            rows = np.arange(len(u))[part]
            x = (np.arange(u.shape[1]) - intrinsics.cx) * (camera.array.focal_px / intrinsics.fx)
            y = (rows - intrinsics.cy) * (camera.array.focal_px / intrinsics.fy)
            tau = camera.tilt.x_per_px * x + camera.tilt.y_per_px * y[:, None]
            slope = 1.0 + tau
            flat = 1.0 + (flat - 1.0) * slope
        depth = camera.depth_from_virtual_depth(flat)
        by_u = depth * depth / beta  # size of the derivative with respect to u, and to alpha
        variance = (by_u * slope * sigma_u[part]) ** 2
        if calibration:
            moves = [by_u, depth / beta]
            if tilted:
                by_tau = -by_u * (flat - 1.0) / slope
                moves += [by_tau * x, by_tau * y[:, None]]
            for i, first in enumerate(moves):
                for j, second in enumerate(moves):
                    variance += covariance[i, j] * first * second
        depth_mm[part], sigma_mm[part] = depth, np.sqrt(variance)
    return depth_mm, sigma_mm


def filter_depth(
    depth_mm: Float32Array,
    sigma_mm: Float32Array,
    flags: npt.NDArray[np.uint8],
    range_mm: tuple[float, float],
    options: MetricOptions,
    workspace: Workspace | None = None,
) -> npt.NDArray[np.uint8]:
    """Return the flags of virtual depth together with those of metric depth; see `is_known`.

    Parameters
    ----------
    depth_mm, sigma_mm : (rows, cols) float32
        NaN where unknown.
    flags : (rows, cols) uint8
        Flags of the virtual depth.
    range_mm : (float, float)
        Smallest and largest accepted depth.
    options : MetricOptions
    workspace : Workspace or None
        Keeps the large arrays for the next frame.
    """
    space = workspace or NoWorkspace()
    shape = depth_mm.shape
    out = flags.copy()
    near, far = range_mm
    kept, step = (space.take(name, shape, np.float32) for name in ("kept", "step"))
    for part in cut_rows(depth_mm):
        depth, sigma, marks = depth_mm[part], sigma_mm[part], out[part]
        marks[~((depth >= near) & (depth <= far))] |= np.uint8(MetricFlag.OUT_OF_RANGE)
        marks[~(sigma <= np.float32(options.most_sigma) * depth)] |= np.uint8(MetricFlag.UNSURE)
        kept[part] = np.where(is_known(marks, options), depth, np.float32(np.nan))
        step[part] = compute_steps(depth, sigma, options.jump)
    if options.edge_px > 0:
        marked = space.take("marked", shape, np.bool_)
        _kernels.mark_jumps(kept, step, options.edge_px, marked)
        out[marked] |= np.uint8(MetricFlag.EDGE)
        kept[marked] = np.nan
    if options.least_patch_px > 1:
        sizes = space.take("sizes", shape, np.int32)
        _kernels.patch_sizes(kept, step, space.take("parents", (kept.size,), np.int32), sizes)
        out[(sizes > 0) & (sizes < options.least_patch_px)] |= np.uint8(MetricFlag.EDGE)
    return out


def compute_steps(
    depth_mm: Float32Array, sigma_mm: Float32Array, jump: float = MetricOptions.jump
) -> Float32Array:
    """Return the largest difference of neighboring depths on one surface, from `jump` or sigma."""
    steps: Float32Array = np.maximum(np.float32(jump) * depth_mm, sigma_mm)
    return steps


def is_known(flags: npt.NDArray[np.uint8], options: MetricOptions) -> BoolArray:
    """Return the mask of pixels whose flags say that the depth is known."""
    allowed = np.uint8(DepthFlag.OCCLUSION) if options.keep_hidden else np.uint8(0)
    known: BoolArray = (flags & ~allowed) == 0
    return known
