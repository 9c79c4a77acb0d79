"""Calibration, depth and simulation for micro-lens-array light field cameras.

The names below are loaded when first used, so that `import lifcal` is fast.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# After a product, OpenBLAS' threads spin for 0.1 s on the cores that our own loops need next:
# an iteration of the adjustment takes twice as long. As the binary logarithm of clock cycles, 4 is
# the least. NumPy reads it when it is first imported; what the user has set stays.
os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")

if TYPE_CHECKING:
    from lifcal.camera import PlenopticCamera, read_camera, write_camera
    from lifcal.errors import LifcalError
    from lifcal.geometry import RigidTransform, Trajectory
    from lifcal.pipeline import calibrate
    from lifcal.simulate import Simulation, SimulationOptions, write_sequence

_HOME = {
    "LifcalError": "lifcal.errors",
    "PlenopticCamera": "lifcal.camera",
    "RigidTransform": "lifcal.geometry",
    "Simulation": "lifcal.simulate",
    "SimulationOptions": "lifcal.simulate",
    "Trajectory": "lifcal.geometry",
    "calibrate": "lifcal.pipeline",
    "read_camera": "lifcal.camera",
    "write_camera": "lifcal.camera",
    "write_sequence": "lifcal.simulate",
}

__all__ = [
    "LifcalError",
    "PlenopticCamera",
    "RigidTransform",
    "Simulation",
    "SimulationOptions",
    "Trajectory",
    "__version__",
    "calibrate",
    "read_camera",
    "write_camera",
    "write_sequence",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'lifcal' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
