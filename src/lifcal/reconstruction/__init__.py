"""Camera, poses and points in one record, and the observations that they explain.

`Reconstruction` holds the unknowns of an adjustment; `Observations` holds the measured positions of
points in micro images; `triangulate` computes points from poses and tracks.
"""

from lifcal.reconstruction.observations import Observations, read_observations, write_observations
from lifcal.reconstruction.reconstruction import Reconstruction
from lifcal.reconstruction.triangulation import triangulate

__all__ = [
    "Observations",
    "Reconstruction",
    "read_observations",
    "triangulate",
    "write_observations",
]
