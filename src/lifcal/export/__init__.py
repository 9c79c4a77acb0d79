"""Calibration folders, and the files of other programs that are made of them.

`open_calibration` reads a folder; `write_colmap` and `write_authors` write what COLMAP and the
paper authors' own code read.
"""

from lifcal.export.authors import write_authors
from lifcal.export.colmap import ColmapCamera, make_colmap_camera, write_colmap
from lifcal.export.folder import SeenPoints, StoredCalibration, open_calibration

__all__ = [
    "ColmapCamera",
    "SeenPoints",
    "StoredCalibration",
    "make_colmap_camera",
    "open_calibration",
    "write_authors",
    "write_colmap",
]
