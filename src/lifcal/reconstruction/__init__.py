"""What images are explained by (camera, poses, points), and what is measured in them."""

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
