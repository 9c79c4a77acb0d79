"""Camera, poses and points in one record, and the observations that they explain.

`Reconstruction` holds the unknowns of an adjustment; `Observations` holds the measured positions of
points in micro images; `triangulate` computes points from poses and tracks. `Worlds` says which
views and points belong together where no point connects all views.
"""

from lifcal.reconstruction.observations import Observations, read_observations, write_observations
from lifcal.reconstruction.reconstruction import Reconstruction
from lifcal.reconstruction.triangulation import triangulate
from lifcal.reconstruction.worlds import Worlds, find_worlds

__all__ = [
    "Observations",
    "Reconstruction",
    "Worlds",
    "find_worlds",
    "read_observations",
    "triangulate",
    "write_observations",
]
