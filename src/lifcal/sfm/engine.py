"""What a structure-from-motion engine is given, and what it has to do."""

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
    """Totally focused images of one camera, and what is known of them.

    Parameters
    ----------
    images : sequence of (rows, cols) uint8
    masks : sequence of (rows, cols) bool, or None
        Where images are valid; None: everywhere.
    scale : float
        Size of the images relative to the raw.
    read_depth, read_sigma : callable, or None
        Return the virtual depth of an image and its standard deviation, (rows, cols), NaN where
        unknown.
    focal_px : float or None
        F roughly, in raw pixels, if a nominal focal length was given.
    names : tuple of str
        Name of each image's frame: of its file, without suffix. Frames that could not be used have
        no image, so that an engine with poses of its own should look them up by name.
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
        """Return what the result depends on besides the views, as numbers and text.

        A finished result is taken from the folder only if this is the same.
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
        """Return poses, points and tracks of any scale.

        Tracks are needed too: the first camera is found from the virtual depths at their places. An
        engine that has poses alone has to match features and triangulate them.

        Parameters
        ----------
        views : SfmViews
        judge : callable, optional
            Returns how badly virtual depths fit a model: 0.4 for a right one, 2 or more for one to
            be doubted. An engine that has several models should return the best.
        on_stage : callable, optional
            To be told 'features', 'matching' and 'mapping' when these begin, or other names of an
            engine's own stages. They are shown beside the progress.
        scratch : Path, optional
            A folder that the engine may use on the way, and has to remove.

        Raises
        ------
        EstimationError
            If the images do not determine the poses.
        """
        ...
