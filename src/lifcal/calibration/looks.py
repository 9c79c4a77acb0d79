"""A frame as tracking sees it: features of its focused image, each with its virtual depth."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lifcal.arrays import BoolArray, Float32Array, FloatArray, read_only
from lifcal.calibration.views import flatten, to_gray
from lifcal.imaging.features import detect_features
from lifcal.imaging.filters import smooth
from lifcal.imaging.frames import Frame, to_stored
from lifcal.measure import sample_map
from lifcal.virtual import FocusEngine

_FINE_PX, _COARSE_PX = 1.0, 4.0
"""Spreads of the Gaussians whose detail is compared: detail below the first is lost by blur, detail
between them is not. In pixels of the focused image."""
_DARK = 8
"""Gray value (of 255) up to which a pixel has no part in the sharpness: it is mostly noise."""
_NOISE_GRAY = 1.0
"""Detail of a focused image that noise alone makes, gray values: it is not taken as sharpness."""
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
        Fine detail over coarser detail. It falls when a frame is blurred, and depends on the scene.
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
    return Look(
        read_only(raw),
        read_only(sample_map(images.u, scale, raw)),
        read_only(sample_map(images.sigma, scale, raw)),
        read_only(descriptors),
        measure_sharpness(images.focused),
    )


def measure_sharpness(image: npt.NDArray[np.uint8]) -> float:
    """Return the fine detail of a gray image over its coarser detail; 0 for a plain image."""
    gray = image.astype(np.float32)
    once, twice = smooth(gray, _FINE_PX), smooth(gray, _COARSE_PX)
    lit = twice > _DARK
    if not lit.any():
        return 0.0
    fine = float(np.mean((gray - once)[lit] ** 2)) - _NOISE_GRAY**2
    coarse = float(np.mean((once - twice)[lit] ** 2))
    return float(np.sqrt(max(fine, 0.0) / max(coarse, _NOISE_GRAY**2)))


def _is_first(places: FloatArray) -> BoolArray:
    """Tell which features are the first, and so the strongest, at their place."""
    cells = np.floor(places / _ONE_PLACE_PX).astype(np.int64)
    keep = np.zeros(len(places), np.bool_)
    if len(places):
        _, first = np.unique(cells, axis=0, return_index=True)
        keep[first] = True
    return keep
