"""Measurement of scene points in every micro image that sees them, on raw pixels.

`choose_tracks` and `find_views` choose points and views, `predict` computes their positions in
micro images, `cut_patches` cuts out the pixels there, and `measure` fits one texture to all micro
images of a point.
"""

from lifcal.measure.measurement import (
    Measured,
    MeasureOptions,
    MeasureStatus,
    Patches,
    cut_patches,
    defocus_terms,
    measure,
)
from lifcal.measure.prediction import (
    MicroImages,
    compute_tangents,
    find_micro_images,
    predict,
    slopes_of_planes,
)
from lifcal.measure.shading import compute_shading_shifts, compute_tilt_shifts, spread_windows
from lifcal.measure.tracks import Tracks, choose_tracks, find_views, sample_map

__all__ = [
    "MeasureOptions",
    "MeasureStatus",
    "Measured",
    "MicroImages",
    "Patches",
    "Tracks",
    "choose_tracks",
    "compute_shading_shifts",
    "compute_tangents",
    "compute_tilt_shifts",
    "cut_patches",
    "defocus_terms",
    "find_micro_images",
    "find_views",
    "measure",
    "predict",
    "sample_map",
    "slopes_of_planes",
    "spread_windows",
]
