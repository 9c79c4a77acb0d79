"""Structure from motion on totally focused images: poses and tracks up to scale."""

from lifcal.sfm.colmap import ColmapEngine, SfmOptions, reconstruct
from lifcal.sfm.engine import SfmEngine, SfmViews
from lifcal.sfm.model import SfmModel

__all__ = ["ColmapEngine", "SfmEngine", "SfmModel", "SfmOptions", "SfmViews", "reconstruct"]
