"""Structure from motion on totally focused images: poses and tracks up to scale."""

from lifcal.sfm.colmap import SfmModel, SfmOptions, reconstruct

__all__ = ["SfmModel", "SfmOptions", "reconstruct"]
