"""Sources of the metric scale: markers, picked points, a trajectory, known optics.

Each is a `ScaleSource` in a file of its own. `ScaleOptions` lists the sources that a user gives,
and also takes objects that other people have written (`others`).
"""

from lifcal.distances import PickedDistance, read_picked_distances
from lifcal.scale.markers import Markers, read_marker_distances
from lifcal.scale.optics import EarlierOptics, KnownOptics, read_earlier_optics
from lifcal.scale.options import ScaleOptions
from lifcal.scale.picked import PickedPoints
from lifcal.scale.source import (
    ScaleKnowledge,
    ScalePoints,
    ScaleSource,
    ScaleViews,
    find_scale,
)
from lifcal.scale.trajectory import KnownTrajectory

__all__ = [
    "EarlierOptics",
    "KnownOptics",
    "KnownTrajectory",
    "Markers",
    "PickedDistance",
    "PickedPoints",
    "ScaleKnowledge",
    "ScaleOptions",
    "ScalePoints",
    "ScaleSource",
    "ScaleViews",
    "find_scale",
    "read_earlier_optics",
    "read_marker_distances",
    "read_picked_distances",
]
