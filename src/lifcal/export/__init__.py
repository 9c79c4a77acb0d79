"""Reading a calibration folder, and writing files for other programs from it."""

from lifcal.export.authors import write_authors
from lifcal.export.colmap import ColmapCamera, make_colmap_camera, write_colmap
from lifcal.export.folder import Calibration, SeenPoints, read_calibration, read_seen_points

__all__ = [
    "Calibration",
    "ColmapCamera",
    "SeenPoints",
    "make_colmap_camera",
    "read_calibration",
    "read_seen_points",
    "write_authors",
    "write_colmap",
]
