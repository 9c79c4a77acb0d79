"""Virtual depth and totally focused images of the frames of one camera, one after the other."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from lifcal.arrays import Float32Array
from lifcal.camera.grid import MicroLensGrid
from lifcal.errors import EstimationError, InputError
from lifcal.grid.flat_field import DARKEST, vignetting_from_discs
from lifcal.grid.overlap_fit import BAYER_BLUR_PX2
from lifcal.imaging.frames import Frame
from lifcal.virtual.depth import (
    DepthOptions,
    VirtualDepth,
    estimate_virtual_depth,
    find_depth_range,
)
from lifcal.virtual.focused import FocusedImage, make_focused_image
from lifcal.virtual.optics import LensOptics
from lifcal.virtual.sharpening import SharpeningFilters
from lifcal.virtual.workspace import NoWorkspace, Workspace

_BAYER_SHARED_NOISE = 3.2
"""Factor by which the noise of demosaiced luminance exceeds white noise of the same variance, at
the frequencies of the gradients. Demosaiced luminance has a quarter of a raw pixel's variance, but
at the lowest frequencies all of its noise, a factor of four (docs/theory/virtual-depth.md)."""


class Rectifier(Protocol):
    """Resamples devignetted images to other coordinates, in which the grid differs too."""

    @property
    def grid(self) -> MicroLensGrid:
        """The grid of the micro images after `apply`; the image size stays the same."""

    def apply(self, image: Float32Array) -> Float32Array:
        """Return a (height, width) or (height, width, 3) image in the new coordinates."""


@dataclass(frozen=True, eq=False)
class FocusedFrame:
    """Virtual depth and focused image of one frame."""

    depth: VirtualDepth
    focused: FocusedImage


class FocusEngine:
    """Makes virtual depth and focused images of the frames of one camera.

    Parameters
    ----------
    grid : MicroLensGrid
        Its focal planes and overlap discs are used where it has them.
    vignetting : (height, width) float32 or None
        Map from `vignetting_from_white` or `vignetting_from_frames`. None computes it from the
        grid's overlap discs.
    options : DepthOptions or None
    bayer : str or None
        Color mosaic from which frames were interpolated.
    rectifier : Rectifier or None
        Applied to each frame after devignetting. Depth and focused image are then in its
        coordinates.
    workspace : Workspace or None
        Keeps the large arrays for the next frame; the engine must then be used by one thread only.
    """

    def __init__(
        self,
        grid: MicroLensGrid,
        vignetting: Float32Array | None = None,
        options: DepthOptions | None = None,
        *,
        bayer: str | None = None,
        rectifier: Rectifier | None = None,
        workspace: Workspace | None = None,
    ) -> None:
        self.grid = grid if rectifier is None else rectifier.grid
        self._rectifier = rectifier
        self._workspace = workspace
        self.options = options or DepthOptions()
        width, height = grid.image_size
        if vignetting is None:
            if grid.discs is None:
                raise InputError(
                    "the grid has no overlap discs, so brightness inside micro images cannot be "
                    "evened out: needs a vignetting map, of a white image or of some frames"
                )
            vignetting = vignetting_from_discs(grid)
        if vignetting.shape != (height, width):
            raise InputError(
                f"the white image is {vignetting.shape[1]} x {vignetting.shape[0]} px, the grid is "
                f"of {width} x {height} px"
            )
        # Pixels between micro images are not used, but a rectifier interpolates: an edge to zero
        # there would spread into the micro images.
        between = 0.0 if rectifier is None else 1.0 / DARKEST
        with np.errstate(divide="ignore"):
            self._gain = np.where(vignetting > 0.0, 1.0 / vignetting, between).astype(np.float32)
        self.optics = (
            LensOptics.from_grid(self.grid)
            if bayer is None
            else LensOptics.from_grid(
                self.grid, blur_variance_px2=BAYER_BLUR_PX2, shared_noise=_BAYER_SHARED_NOISE
            )
        )
        self._filters = SharpeningFilters.from_optics(self.optics, self.options.scale)

    def devignette(self, frame: Frame) -> Float32Array:
        """Return the devignetted luminance of a frame; rectified if there is a rectifier."""
        if frame.image_size != self.grid.image_size:
            width, height = self.grid.image_size
            raise InputError(
                f"{frame.source}: {frame.image_size[0]} x {frame.image_size[1]} px, the grid is of "
                f"{width} x {height} px"
            )
        return self._even_out(frame.gray)

    def _even_out(self, image: Float32Array) -> Float32Array:
        gain = self._gain if image.ndim == 2 else self._gain[:, :, None]
        space = self._workspace or NoWorkspace()
        even = space.take(f"even {image.ndim}", image.shape, np.float32)
        np.multiply(image, gain, out=even)
        return even if self._rectifier is None else self._rectifier.apply(even)

    def set_range(self, frames: Iterable[Frame]) -> tuple[float, float]:
        """Find the range of virtual depths in some frames, and use it for all later frames.

        Raises
        ------
        EstimationError
            If none of the frames has a clear depth anywhere.
        """
        ends: list[tuple[float, float]] = []
        failure: EstimationError | None = None
        for frame in frames:
            try:
                ends.append(find_depth_range(self.devignette(frame), self.grid, optics=self.optics))
            except EstimationError as error:
                failure = error
        if not ends:
            raise failure or EstimationError("no frame was given", stage="virtual depth")
        # The majority of the frames decides about the sign of u.
        positive = sum(low > 0.0 for low, _ in ends) * 2 >= len(ends)
        ends = [end for end in ends if (end[0] > 0.0) == positive]
        found = (min(low for low, _ in ends), max(high for _, high in ends))
        self.set_depth_range(found)
        return found

    def set_depth_range(self, depth_range: tuple[float, float] | None) -> None:
        """Set the virtual depths that are searched; None finds the range in each frame."""
        self.options = replace(self.options, depth_range=depth_range)

    def run(self, frame: Frame, depth_range: tuple[float, float] | None = None) -> FocusedFrame:
        """Estimate the virtual depth of a frame and focus it.

        Parameters
        ----------
        frame : Frame
        depth_range : (float, float) or None
            Virtual depths to search in this frame only, as a map or the last frame predict them
            (`VirtualDepth.find_range`); a narrower range takes less time. None searches the range
            of the options; if they have none, the range is found in the frame itself.
        """
        gray = self.devignette(frame)
        optics, space = self.optics, self._workspace
        options = self.options
        if depth_range is not None:
            options = replace(options, depth_range=depth_range)
        depth = estimate_virtual_depth(gray, self.grid, options, optics=optics, workspace=space)
        image = gray if frame.color is None else self._even_out(frame.color)
        focused = make_focused_image(
            image,
            self.grid,
            depth,
            optics=optics,
            filters=self._filters,
            workspace=space,
            detail=options.quality == "full",
        )
        return FocusedFrame(depth, focused)
