"""Metric depth and pinhole images from the frames of a calibrated camera, one after the other."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lifcal.arrays import BoolArray, Float32Array
from lifcal.camera import NO_SCALE, PinholeIntrinsics, PlenopticCamera
from lifcal.errors import EstimationError, InputError
from lifcal.grid.check import follow_grid
from lifcal.grid.flat_field import vignetting_from_white
from lifcal.imaging.files import read_image
from lifcal.imaging.frames import Frame, find_full_scale, make_frame, open_frames
from lifcal.metric.cloud import PointCloud, make_cloud
from lifcal.metric.depth import MetricOptions, compute_metric_depth, filter_depth, is_known
from lifcal.metric.rectify import Rectification
from lifcal.plots import plot_depth
from lifcal.virtual import DepthOptions, FocusEngine, Workspace
from lifcal.virtual.depth import RANGE_MARGIN, SYSTEMATIC

_GIVEN_MARGIN = 0.02
"""Fraction by which a given range of depths is widened in virtual depth, so that depths at its ends
are not out of range."""
_LEAST_U = 1.05
"""Smallest absolute virtual depth. At 1, the main lens' image of a point is on the sensor, and only
one micro lens sees it, so there is no parallax."""
_MOST_U = 16.0
"""Largest absolute virtual depth. Beyond it, more lenses see a point than a kernel allows."""


@dataclass(frozen=True, eq=False)
class MetricFrame:
    """Depth, its standard deviation and the focused image of a frame, as from an RGB-D camera.

    The camera center is that of the main lens.

    Parameters
    ----------
    depth_mm : (rows, cols) float32
        Depth along the optical axis; NaN where unknown.
    sigma_mm : (rows, cols) float32
        Standard deviation of the depth; NaN where unknown.
    image : (rows, cols) or (rows, cols, 3) float32
        Totally focused image without distortion. Values are from 0 to 1 (the raw's full scale),
        slightly outside where sharpening overshoots, and 0 at pixels that no lens sees.
    flags : (rows, cols) uint8
        Bits of `DepthFlag` and `MetricFlag`, which say why a depth is unknown.
    u, sigma_u : (rows, cols) float32
        Virtual depth and its standard deviation, before the filters of metric depth.
    intrinsics : PinholeIntrinsics
        Intrinsics of all these images.
    unit : str
        'mm', or 'no scale' if the camera has none, so that depths have no metric meaning.
    """

    depth_mm: Float32Array
    sigma_mm: Float32Array
    image: Float32Array
    flags: npt.NDArray[np.uint8]
    u: Float32Array
    sigma_u: Float32Array
    intrinsics: PinholeIntrinsics
    unit: str = "mm"

    @property
    def known(self) -> BoolArray:
        """Mask of the pixels whose depth is known."""
        found: BoolArray = np.isfinite(self.depth_mm)
        return found

    def cloud(self) -> PointCloud:
        """Return the known pixels as points in camera coordinates."""
        return make_cloud(self.depth_mm, self.sigma_mm, self.image, self.intrinsics)

    def plot(self) -> Any:
        """Draw image, depth and its standard deviation. It needs matplotlib.

        Returns
        -------
        (3,) array of matplotlib axes
        """
        return plot_depth(self.image, self.depth_mm, self.sigma_mm, unit=self.unit)

    def crop(self, x: int, y: int, width: int, height: int) -> MetricFrame:
        """Return a part of the images whose first pixel is (x, y)."""
        part = (slice(y, y + height), slice(x, x + width))
        return MetricFrame(
            self.depth_mm[part],
            self.sigma_mm[part],
            self.image[part],
            self.flags[part],
            self.u[part],
            self.sigma_u[part],
            self.intrinsics.crop(x, y, width, height),
            self.unit,
        )


class DepthEngine:
    """Computes metric depth of the frames of one camera; keeps its maps and large arrays.

    It may be called from several threads, which take turns. The arrays that it returns are not used
    again, so the caller may keep them.

    Parameters
    ----------
    camera : PlenopticCamera
        The camera. The focal planes and overlap discs of its grid are used if it has them.
    vignetting : (height, width) float32, str, Path or None
        Vignetting map (`vignetting_from_white`), or the file of a white image. None uses the map
        that the grid's overlap discs predict. That is accurate if the grid agrees with the micro
        images to 0.5 % of the pitch; `like` moves the grid to where a raw shows them.
    options : MetricOptions or None
    bayer : str or None
        Color mosaic of arrays that are given to `run`, and of the raws from which frames were
        interpolated.
    full_scale : int or None
        Value of white in 16-bit arrays that are given to `run`, for instance 4095. None takes the
        full scale of the 10, 12, 14 or 16 bits that the brightest of them so far needs.
    """

    def __init__(
        self,
        camera: PlenopticCamera,
        vignetting: Float32Array | str | Path | None = None,
        options: MetricOptions | None = None,
        *,
        bayer: str | None = None,
        full_scale: int | None = None,
    ) -> None:
        self.camera = camera
        self.options = options or MetricOptions()
        if self.options.calibration_sigma:
            compute_metric_depth(camera, np.empty(0), np.empty(0), calibration=True)
        self._bayer = bayer
        if isinstance(vignetting, str | Path):
            vignetting = vignetting_from_white(open_frames(vignetting, bayer=bayer).read(0))
        self._lock = threading.RLock()
        self._far_mm = math.inf
        if full_scale is not None and not 0 < full_scale < 1 << 16:
            raise InputError(f"full_scale is {full_scale}, needs 1 to 65535")
        self._full_scale = full_scale
        self._brightest = 0
        self._workspace = space = Workspace()
        scale = self.options.scale * compute_plane_factor(camera, self.options.plane)
        depth_range = None
        if self.options.range_mm is not None:
            depth_range = compute_virtual_range(camera, self.options.range_mm)
        self._focus = FocusEngine(
            camera.grid,
            vignetting,
            DepthOptions(scale=scale, depth_range=depth_range),
            bayer=bayer,
            rectifier=Rectification.from_camera(camera, space),
            workspace=space,
        )
        self.intrinsics = camera.pinhole(scale)

    @classmethod
    def like(
        cls,
        camera: PlenopticCamera,
        raw: npt.NDArray[np.generic] | str | Path,
        bayer: str | None = None,
    ) -> DepthEngine:
        """Return an engine without a white image, whose grid is moved to the micro images of a raw.

        The raw is an array or a file, as for `run`.
        """
        stored, source = _load(raw)
        frame = make_frame(stored, "frame", source, bayer)
        if frame.image_size == camera.image_size:
            camera = replace(camera, grid=follow_grid([frame], camera.grid))
        return cls(camera, bayer=bayer)

    @property
    def depth_range(self) -> tuple[float, float] | None:
        """Range of virtual depths that is searched; None if it is found in each frame."""
        return self._focus.options.depth_range

    @property
    def range_mm(self) -> tuple[float, float]:
        """Range of depths that the results can have.

        The far end is that of the options, if they give one. Otherwise it is twice the farthest
        depth of the frames in which the range was found, or the depth at which even the smallest
        sigma of virtual depth exceeds `most_sigma`, whichever is nearer.
        """
        if self.options.range_mm is not None:
            near, far = self.options.range_mm
            return near, min(far, self._far_mm)
        array = self.camera.array
        far = self._far_mm
        # sigma_z / z = sigma_u z / beta, with sigma_u at least a part of u = alpha + beta / z
        most = self.options.most_sigma / SYSTEMATIC - 1.0
        if array.alpha > 0.0:
            far = min(far, array.beta_mm * most / array.alpha)
        if self.depth_range is not None:
            farthest = min(self.depth_range) * (
                1.0 + math.copysign(RANGE_MARGIN, self.depth_range[0])
            )
            depth = float(self.camera.depth_from_virtual_depth(farthest))
            if math.isfinite(depth):
                far = min(far, 2.0 * depth)
        return 0.0, far

    def set_range(self, frames: Iterable[Frame]) -> tuple[float, float]:
        """Find the range of virtual depths in some frames, and use it for all later frames.

        Raises
        ------
        EstimationError
            If none of the frames has a clear depth anywhere.
        """
        with self._lock:
            return self._focus.set_range(frames)

    def restore_range(self, depth_range: tuple[float, float] | None) -> None:
        """Use this range of virtual depths from now on; None finds it in each frame."""
        with self._lock:
            self._focus.set_depth_range(depth_range)

    def limit_far(self, far_mm: float) -> None:
        """Treat depths beyond this one as unknown from now on."""
        self._far_mm = far_mm

    def warm_up(self) -> None:
        """Compile and allocate everything, so that the first frame is as fast as the next ones."""
        width, height = self.camera.image_size
        noise = np.random.default_rng(0).integers(64, 192, (height, width), dtype=np.uint8)
        with self._lock:
            with suppress(EstimationError):
                self.run(noise)
            if self.depth_range is None:  # no range is found in noise, so compile the rest with one
                self.restore_range((2.0, 4.0))
                self.run(noise)
                self.restore_range(None)

    def _make_frame(self, raw: npt.NDArray[np.generic] | str | Path) -> Frame:
        stored, source = _load(raw)
        full_scale = None
        if stored.dtype == np.uint16:
            full_scale = self._full_scale
            if full_scale is None:
                with self._lock:
                    self._brightest = max(self._brightest, int(stored.max(initial=0)))
                    full_scale = find_full_scale(self._brightest, 16)
        return make_frame(stored, "frame", source, self._bayer, full_scale)

    def run(self, frame: Frame | npt.NDArray[np.generic] | str | Path) -> MetricFrame:
        """Compute metric depth and the focused image of a frame.

        The range is found in the frame itself unless the options or `set_range` give it.

        Parameters
        ----------
        frame : Frame, (height, width) or (height, width, 3) uint8 or uint16, str or Path
            The frame, its pixels, or the path of an image file.

        Raises
        ------
        InputError
            If the frame has another size than the camera's images.
        EstimationError
            If no range is given and none can be found, because there is too little texture.
        """
        if not isinstance(frame, Frame):
            frame = self._make_frame(frame)
        options, bias = self.options, self.camera.depth_bias
        with self._lock:
            found = self._focus.run(frame)
            depth, focused = found.depth, found.focused
            u = depth.u if bias is None else bias.remove(depth.u)
            depth_mm, sigma_mm = compute_metric_depth(
                self.camera,
                u,
                depth.sigma,
                self.intrinsics,
                calibration=options.calibration_sigma,
            )
            flags = filter_depth(
                depth_mm, sigma_mm, depth.flags, self.range_mm, options, self._workspace
            )
        unknown = ~is_known(flags, options)
        depth_mm[unknown] = np.nan
        sigma_mm[unknown] = np.nan
        unit = "mm" if self.camera.scale_source is not None else NO_SCALE
        return MetricFrame(
            depth_mm, sigma_mm, focused.image, flags, u, depth.sigma, self.intrinsics, unit
        )


def _load(raw: npt.NDArray[np.generic] | str | Path) -> tuple[npt.NDArray[np.generic], str]:
    """Return the pixels of an array or a file, and its name for messages."""
    if isinstance(raw, str | Path):
        return read_image(raw), str(raw)
    return np.asarray(raw), "frame"


def compute_plane_factor(camera: PlenopticCamera, plane: str) -> float:
    """Return the ratio of the size of the image on a plane to that at the sensor's distance."""
    p = camera.parameters
    behind = p.array_to_sensor_mm if plane == "pinhole" else 2.0 * p.array_to_sensor_mm
    return (p.lens_to_array_mm + behind) / (p.lens_to_array_mm + p.array_to_sensor_mm)


def compute_virtual_range(
    camera: PlenopticCamera, range_mm: tuple[float, float]
) -> tuple[float, float]:
    """Return the range of virtual depths for a range of depths, slightly widened.

    Raises
    ------
    InputError
        If virtual depth changes its sign in the range, or is not larger than 1 in absolute value.
    """
    low, high = sorted(camera.virtual_depth_from_depth(np.array(range_mm)).tolist())
    if low * high <= 0.0 or min(abs(low), abs(high)) < _LEAST_U:
        raise InputError(
            f"a range of {range_mm[0]:g} to {range_mm[1]:g} mm is virtual depth {low:.2f} to "
            f"{high:.2f} for this camera: needs one sign, and absolute values above {_LEAST_U}"
        )
    if max(abs(low), abs(high)) > _MOST_U:
        nearest = float(camera.depth_from_virtual_depth(math.copysign(_MOST_U, low)))
        raise InputError(
            f"a range from {range_mm[0]:g} mm is nearer than this camera can see: needs "
            f"{math.ceil(nearest)} mm and more"
        )
    grow, shrink = 1.0 + _GIVEN_MARGIN, 1.0 - _GIVEN_MARGIN
    if low < 0.0:
        return low * grow, min(high * shrink, -_LEAST_U)
    return max(low * shrink, _LEAST_U), high * grow
