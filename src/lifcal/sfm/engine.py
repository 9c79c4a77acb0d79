"""The interface of a structure-from-motion engine, and its input."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from lifcal.arrays import BoolArray, Float32Array
from lifcal.sfm.model import SfmModel


@dataclass(frozen=True, eq=False)
class SfmViews:
    """Totally focused images of one camera, and what is known about them.

    Parameters
    ----------
    images : sequence of (rows, cols) uint8
    masks : sequence of (rows, cols) bool, or None
        The valid pixels of each image; None if all are valid.
    scale : float
        Size of the images relative to the raw.
    read_depth, read_sigma : callable, or None
        Return the virtual depth of an image and its standard deviation, (rows, cols), NaN where
        unknown.
    focal_px : float or None
        Approximate F in raw pixels, if a nominal focal length was given.
    names : tuple of str
        Name of each image's frame: that of its file, without suffix. Frames that could not be used
        have no image here, so an engine that has poses already should look them up by name.
    """

    images: Sequence[npt.NDArray[np.uint8]]
    masks: Sequence[BoolArray] | None
    scale: float
    read_depth: Callable[[int], Float32Array] | None = None
    read_sigma: Callable[[int], Float32Array] | None = None
    focal_px: float | None = None
    names: tuple[str, ...] = ()


class SfmEngine(Protocol):
    """Finds the poses of focused images, and tracks of points over them.

    `lifcal.calibrate(..., sfm_engine=...)` takes any object with these two methods.
    """

    def describe(self) -> Mapping[str, Any]:
        """Return the values on which the result depends, besides the views, as numbers and text.

        A stored result is used again only if these are the same.
        """
        ...

    def reconstruct(
        self,
        views: SfmViews,
        *,
        judge: Callable[[SfmModel], float] | None = None,
        on_stage: Callable[[str], None] | None = None,
        scratch: Path | None = None,
    ) -> SfmModel:
        """Return poses, points and tracks in any scale.

        Tracks are needed because the first estimate of the camera comes from the virtual depths at
        their positions. An engine that has only poses has to match features and triangulate them.

        Parameters
        ----------
        views : SfmViews
        judge : callable, optional
            Function that returns the misfit of virtual depths to a model: 0.4 for a right model, 2
            or more for a doubtful one. An engine that has several models should return the best.
        on_stage : callable, optional
            To be called with the name of each stage as it begins: 'features', 'matching',
            'mapping', or other names. They are shown beside the progress.
        scratch : Path, optional
            A folder that the engine may use for intermediate files, and has to remove.

        Raises
        ------
        EstimationError
            If the images do not determine the poses.
        """
        ...
