"""Structure from motion on totally focused images: poses and tracks up to scale.

`SfmEngine` is the protocol of an engine, `ColmapEngine` the one that is used by default. An engine
is given `SfmViews` and returns an `SfmModel`.
"""

from lifcal.sfm.colmap import ColmapEngine, SfmOptions
from lifcal.sfm.engine import SfmEngine, SfmViews
from lifcal.sfm.model import SfmModel

__all__ = ["ColmapEngine", "SfmEngine", "SfmModel", "SfmOptions", "SfmViews"]
