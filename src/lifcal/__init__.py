"""Calibration, depth and simulation for micro-lens-array light field cameras.

This module offers what most programs use; docs/how-to/python.md shows how. `find_grid`, `focus`,
`calibrate`, `open_calibration` and `DepthEngine` lead from raws to results. Each subpackage
(`lifcal.camera`, `lifcal.calibration`, ...) offers more; its docstring says what.

The names below are loaded when first used, so that `import lifcal` is fast. The progress of a run
is logged to `lifcal.stages` and `lifcal.findings` (see `lifcal.listener`); nothing is shown unless
the program sets up logging.
"""

from __future__ import annotations

import logging
import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from lifcal import compiled_cache

__version__ = "0.1.0"

# After a matrix product, the threads of OpenBLAS wait actively for 0.1 s, on the cores that
# lifcal's own loops need next. That doubles the time of an iteration of the adjustment. The value
# is the binary logarithm of the clock cycles to wait; 4 is the smallest one allowed. OpenBLAS reads
# it when NumPy is first imported; a value that the user has set is kept.
os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")

logging.getLogger("lifcal").addHandler(logging.NullHandler())

# This must run before any compiled loop is imported.
compiled_cache.prepare()

if TYPE_CHECKING:
    from lifcal.calibration import CalibrateOptions, OnlineCalibrator, Workbench
    from lifcal.camera import (
        MicroLensGrid,
        PlenopticCamera,
        read_camera,
        read_grid,
        write_camera,
        write_grid,
    )
    from lifcal.diagnostics import Finding
    from lifcal.errors import LifcalError
    from lifcal.evaluate import evaluate_calibration
    from lifcal.export import open_calibration
    from lifcal.geometry import RigidTransform, Trajectory, read_tum, write_tum
    from lifcal.imaging import open_frames
    from lifcal.listener import Listener
    from lifcal.metric import CloudFusion, DepthEngine, MetricOptions, read_cloud, write_cloud
    from lifcal.pipeline import calibrate, find_grid, focus
    from lifcal.simulate import Simulation, SimulationOptions, write_sequence

_HOME = {
    "CalibrateOptions": "lifcal.calibration",
    "CloudFusion": "lifcal.metric",
    "DepthEngine": "lifcal.metric",
    "Finding": "lifcal.diagnostics",
    "LifcalError": "lifcal.errors",
    "Listener": "lifcal.listener",
    "MetricOptions": "lifcal.metric",
    "MicroLensGrid": "lifcal.camera",
    "OnlineCalibrator": "lifcal.calibration",
    "PlenopticCamera": "lifcal.camera",
    "RigidTransform": "lifcal.geometry",
    "Simulation": "lifcal.simulate",
    "SimulationOptions": "lifcal.simulate",
    "Trajectory": "lifcal.geometry",
    "Workbench": "lifcal.calibration",
    "calibrate": "lifcal.pipeline",
    "evaluate_calibration": "lifcal.evaluate",
    "find_grid": "lifcal.pipeline",
    "focus": "lifcal.pipeline",
    "open_calibration": "lifcal.export",
    "open_frames": "lifcal.imaging",
    "read_camera": "lifcal.camera",
    "read_cloud": "lifcal.metric",
    "read_grid": "lifcal.camera",
    "read_tum": "lifcal.geometry",
    "write_camera": "lifcal.camera",
    "write_cloud": "lifcal.metric",
    "write_grid": "lifcal.camera",
    "write_sequence": "lifcal.simulate",
    "write_tum": "lifcal.geometry",
}

__all__ = [
    "CalibrateOptions",
    "CloudFusion",
    "DepthEngine",
    "Finding",
    "LifcalError",
    "Listener",
    "MetricOptions",
    "MicroLensGrid",
    "OnlineCalibrator",
    "PlenopticCamera",
    "RigidTransform",
    "Simulation",
    "SimulationOptions",
    "Trajectory",
    "Workbench",
    "__version__",
    "calibrate",
    "evaluate_calibration",
    "find_grid",
    "focus",
    "open_calibration",
    "open_frames",
    "read_camera",
    "read_cloud",
    "read_grid",
    "read_tum",
    "write_camera",
    "write_cloud",
    "write_grid",
    "write_sequence",
    "write_tum",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'lifcal' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
