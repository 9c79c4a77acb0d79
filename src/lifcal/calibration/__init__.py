"""The method's core: a workbench whose steps measure points and adjust the camera.

`Workbench` holds views, points and micro images, from disk or from memory; `calibrate_bench` puts
its steps in order. `focus_in_memory`, `find_poses` and, for several recordings, `find_models` make
what it begins with. `CalibrateOptions` holds the options of all stages. `OnlineCalibrator` takes
frames one after the other, and answers each with an `Update`.
"""

from lifcal.calibration.batch import calibrate_bench
from lifcal.calibration.knowing import Advice, Target, parse_targets
from lifcal.calibration.online import FrameStatus, OnlineCalibrator, OnlineOptions, Update
from lifcal.calibration.options import CalibrateOptions, list_settings
from lifcal.calibration.priors import camera_priors
from lifcal.calibration.start import find_models, find_poses
from lifcal.calibration.views import View, focus_in_memory
from lifcal.calibration.workbench import Workbench

__all__ = [
    "Advice",
    "CalibrateOptions",
    "FrameStatus",
    "OnlineCalibrator",
    "OnlineOptions",
    "Target",
    "Update",
    "View",
    "Workbench",
    "calibrate_bench",
    "camera_priors",
    "find_models",
    "find_poses",
    "focus_in_memory",
    "list_settings",
    "parse_targets",
]
