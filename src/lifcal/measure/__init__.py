"""Where scene points are, in each micro image that sees them, measured on raw pixels."""

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
