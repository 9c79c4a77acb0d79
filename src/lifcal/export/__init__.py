"""Reading of calibration folders, and export to the files of other programs.

`open_calibration` reads a folder. `write_opencv`, `write_ros` and `write_kalibr` write the camera
of the focused images; `write_colmap` and `write_nerfstudio` write images without distortion with
poses and points; `write_authors` writes the files of the code published with the paper.
"""

from lifcal.export.authors import write_authors
from lifcal.export.cameras import write_kalibr, write_opencv, write_ros
from lifcal.export.colmap import write_colmap
from lifcal.export.folder import SeenPoints, StoredCalibration, open_calibration
from lifcal.export.nerfstudio import write_nerfstudio
from lifcal.export.pinhole_scene import PinholeScene

__all__ = [
    "PinholeScene",
    "SeenPoints",
    "StoredCalibration",
    "open_calibration",
    "write_authors",
    "write_colmap",
    "write_kalibr",
    "write_nerfstudio",
    "write_opencv",
    "write_ros",
]
