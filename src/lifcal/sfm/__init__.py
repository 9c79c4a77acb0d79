"""Structure from motion on totally focused images: poses and tracks up to scale.

`SfmEngine` is the protocol (the interface) of a structure-from-motion engine, and `ColmapEngine` is
the engine that is used by default. An engine receives the focused images as `SfmViews` and returns
an `SfmModel`.
"""

from lifcal.sfm.colmap import ColmapEngine, SfmOptions
from lifcal.sfm.engine import SfmEngine, SfmViews
from lifcal.sfm.model import SfmModel

__all__ = ["ColmapEngine", "SfmEngine", "SfmModel", "SfmOptions", "SfmViews"]
