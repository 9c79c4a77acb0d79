"""A frame as tracking sees it: features of its focused image, each with its virtual depth."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lifcal.arrays import BoolArray, Float32Array, FloatArray, read_only
from lifcal.calibration.views import flatten, to_gray
from lifcal.imaging.features import detect_features
from lifcal.imaging.frames import Frame, to_stored
from lifcal.measure import sample_map
from lifcal.virtual import FocusEngine

_ONE_PLACE_PX = 0.5
"""Features nearer than this to each other are one: SIFT finds a corner once for each of its
directions."""


@dataclass(frozen=True, eq=False)
class Look:
    """What tracking needs of a frame.

    Parameters
    ----------
    points_virt_px : (n, 2) float64
        Places of features in the recorded virtual image, raw px.
    u, sigma_u : (n,) float64
        Virtual depth and its standard deviation; NaN where the depth map does not know it.
    descriptors : (n, 128) uint8
    sharpness : float
        How sharply the frame shows depth; see `measure_sharpness`.
    """

    points_virt_px: FloatArray
    u: FloatArray
    sigma_u: FloatArray
    descriptors: npt.NDArray[np.uint8]
    sharpness: float

    @property
    def known(self) -> BoolArray:
        """Which features have a virtual depth, (n,)."""
        return np.isfinite(self.u) & (self.sigma_u > 0.0)

    def __len__(self) -> int:
        return len(self.u)


@dataclass(frozen=True, eq=False)
class Images:
    """The images of a frame that a calibration needs.

    Parameters
    ----------
    focused : (rows, cols) uint8
    u, sigma : (rows, cols) float32
        Virtual depth and its standard deviation.
    flat : (height, width) float32
        The raw, flat-fielded; NaN where a pixel is saturated or dark by vignetting.
    """

    focused: npt.NDArray[np.uint8]
    u: Float32Array
    sigma: Float32Array
    flat: Float32Array


def focus_frame(engine: FocusEngine, frame: Frame) -> Images:
    """Return the images of a frame.

    Raises
    ------
    EstimationError
        If the frame shows no virtual depth.
    """
    found = engine.run(frame)
    return Images(
        to_gray(to_stored(found.focused.image, frame.bits)),
        found.depth.u.copy(),
        found.depth.sigma.copy(),
        flatten(engine, frame).copy(),
    )


def look_at(images: Images, scale: float, most_features: int) -> Look:
    """Find features in a focused image, and their virtual depths.

    Parameters
    ----------
    images : Images
    scale : float
        Size of the focused image relative to the raw.
    most_features : int
    """
    valid = images.focused > 0  # the lenses at the rim leave black where nothing is seen
    found = detect_features(images.focused, valid, most_features)
    places, descriptors = found.points_px, found.descriptors
    keep = _is_first(places)
    places, descriptors = places[keep], descriptors[keep]
    raw = (places + 0.5) / scale - 0.5
    u, sigma = sample_map(images.u, scale, raw), sample_map(images.sigma, scale, raw)
    return Look(
        read_only(raw),
        read_only(u),
        read_only(sigma),
        read_only(descriptors),
        measure_sharpness(u, sigma),
    )


def measure_sharpness(u: FloatArray, sigma_u: FloatArray) -> float:
    """Return how sharply a frame shows depth: features with a depth, over its relative sigma.

    Blur by less than a pixel of the raw makes it several times smaller, because depth is what
    neighboring micro images differ by. 0 if no feature has a depth.
    """
    known = np.isfinite(u) & (sigma_u > 0.0)
    if not known.any():
        return 0.0
    spread = float(np.median(sigma_u[known] / np.abs(u[known])))
    return float(known.mean()) / max(spread, 1e-6)


def _is_first(places: FloatArray) -> BoolArray:
    """Tell which features are the first, and so the strongest, at their place."""
    cells = np.floor(places / _ONE_PLACE_PX).astype(np.int64)
    keep = np.zeros(len(places), np.bool_)
    if len(places):
        _, first = np.unique(cells, axis=0, return_index=True)
        keep[first] = True
    return keep
