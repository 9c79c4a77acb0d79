"""From a raw image and its grid to virtual depth and a totally focused image.

`FocusEngine` does both for the frames of one camera; `estimate_virtual_depth` and
`make_focused_image` are its two steps. `DepthOptions` say how, `DepthFlag` why a pixel is unknown.
`estimate_focal_planes` finds the virtual depths at which the lens types are in focus.
"""

from lifcal.virtual.depth import (
    DepthFlag,
    DepthOptions,
    VirtualDepth,
    estimate_virtual_depth,
    find_depth_range,
)
from lifcal.virtual.engine import FocusedFrame, FocusEngine, Rectifier
from lifcal.virtual.focal_planes import FocalPlanes, estimate_focal_planes
from lifcal.virtual.focused import FocusedImage, make_focused_image
from lifcal.virtual.optics import LensOptics
from lifcal.virtual.workspace import Workspace

__all__ = [
    "DepthFlag",
    "DepthOptions",
    "FocalPlanes",
    "FocusEngine",
    "FocusedFrame",
    "FocusedImage",
    "LensOptics",
    "Rectifier",
    "VirtualDepth",
    "Workspace",
    "estimate_focal_planes",
    "estimate_virtual_depth",
    "find_depth_range",
    "make_focused_image",
]
