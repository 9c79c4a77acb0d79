"""The camera model: parameters, projection, distortion, tilt, micro-lens grid, camera files.

`PlenopticCamera` projects points into micro images and back; `PhysicalParameters` and
`PinholeArray` are the two forms of its lengths; `MicroLensGrid` holds where the micro images are.
`read_camera`, `write_camera`, `read_grid` and `write_grid` handle camera.json and grid.json; other
functions handle the files of other programs.
"""

from lifcal.camera.apertures import Apertures, OverlapDiscs, compute_disc_overlap
from lifcal.camera.authors_xml import CameraModelFile, read_authors_xml, write_authors_xml
from lifcal.camera.bend import GridBend
from lifcal.camera.camera_file import (
    grid_from_dict,
    grid_to_dict,
    read_camera,
    read_grid,
    write_camera,
    write_grid,
)
from lifcal.camera.center_list import grid_from_center_list
from lifcal.camera.compote import CompoteIntrinsics, read_compote
from lifcal.camera.depth_bias import DepthBias
from lifcal.camera.distortion import (
    BrownDistortion,
    Distortion,
    DivisionDistortion,
    NoDistortion,
    make_distortion,
)
from lifcal.camera.grid import Groups, Lattice, LensIndex, MicroLensGrid
from lifcal.camera.model import MicroImagePoints, PlenopticCamera, ProjectionJacobian
from lifcal.camera.opencv import OpencvCamera, make_opencv_camera
from lifcal.camera.parameters import NO_SCALE, PARAMETERS, ParameterKind, unit_of
from lifcal.camera.pinhole import PinholeIntrinsics
from lifcal.camera.pinhole_array import (
    ARRAY_PARAMETERS,
    PHYSICAL_PARAMETERS,
    PhysicalParameters,
    PinholeArray,
)
from lifcal.camera.tilt import TILT_PARAMETERS, ArrayTilt, focal_rho_behind_tilt

__all__ = [
    "ARRAY_PARAMETERS",
    "NO_SCALE",
    "PARAMETERS",
    "PHYSICAL_PARAMETERS",
    "TILT_PARAMETERS",
    "Apertures",
    "ArrayTilt",
    "BrownDistortion",
    "CameraModelFile",
    "CompoteIntrinsics",
    "DepthBias",
    "Distortion",
    "DivisionDistortion",
    "GridBend",
    "Groups",
    "Lattice",
    "LensIndex",
    "MicroImagePoints",
    "MicroLensGrid",
    "NoDistortion",
    "OpencvCamera",
    "OverlapDiscs",
    "ParameterKind",
    "PhysicalParameters",
    "PinholeArray",
    "PinholeIntrinsics",
    "PlenopticCamera",
    "ProjectionJacobian",
    "compute_disc_overlap",
    "focal_rho_behind_tilt",
    "grid_from_center_list",
    "grid_from_dict",
    "grid_to_dict",
    "make_distortion",
    "make_opencv_camera",
    "read_authors_xml",
    "read_camera",
    "read_compote",
    "read_grid",
    "unit_of",
    "write_authors_xml",
    "write_camera",
    "write_grid",
]
