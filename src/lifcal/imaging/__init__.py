"""Images in and out: raws, videos, color mosaics, makers' camera files, markers.

`open_frames` opens raws as a sequence of `Frame`. From arrays in memory, `make_frame` makes one
`Frame` and `ArrayFrames` a sequence. `read_camera_file` reads the camera files of several makers;
`detect_markers` finds ArUco markers. Pictures for people are drawn in `lifcal.imaging.preview`.
Only this subpackage and `lifcal.grid` import OpenCV.
"""

from lifcal.imaging.camera_formats import CameraFile, read_camera_file
from lifcal.imaging.files import read_image, write_float_tiff, write_png
from lifcal.imaging.frames import ArrayFrames, Frame, Frames, make_frame, open_frames
from lifcal.imaging.markers import Marker, detect_markers, draw_marker
from lifcal.imaging.raytrix import RaytrixCalibration, read_raytrix_xml
from lifcal.imaging.tspc import TspcCalibration, read_tspc_xml

__all__ = [
    "ArrayFrames",
    "CameraFile",
    "Frame",
    "Frames",
    "Marker",
    "RaytrixCalibration",
    "TspcCalibration",
    "detect_markers",
    "draw_marker",
    "make_frame",
    "open_frames",
    "read_camera_file",
    "read_image",
    "read_raytrix_xml",
    "read_tspc_xml",
    "write_float_tiff",
    "write_png",
]
