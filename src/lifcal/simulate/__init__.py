"""A simulator of plenoptic cameras, which provides ground truth for tests and the demo.

`Simulation` renders the raws that `SimulationOptions` describe; `write_sequence` writes them with
their ground truth. `CAMERAS`, `SCENES` and `PATHS` list what can be simulated.
"""

from lifcal.simulate.best_fit import BestFit, fit_model
from lifcal.simulate.cameras import CAMERAS, CameraDesign, build_camera
from lifcal.simulate.chief_rays import trace_chief_rays
from lifcal.simulate.imperfections import Imperfections
from lifcal.simulate.optics import MicroLenses, Optics
from lifcal.simulate.paths import PATHS, build_path
from lifcal.simulate.render import PackedScene, PinholeView, Renderer
from lifcal.simulate.scene import Ball, Marker, Quad, Scene, Texture
from lifcal.simulate.scenes import SCENES, build_scene
from lifcal.simulate.sensor import SensorOptions, expose
from lifcal.simulate.sequence import (
    SimulatedFrame,
    Simulation,
    SimulationOptions,
    write_sequence,
)

__all__ = [
    "CAMERAS",
    "PATHS",
    "SCENES",
    "Ball",
    "BestFit",
    "CameraDesign",
    "Imperfections",
    "Marker",
    "MicroLenses",
    "Optics",
    "PackedScene",
    "PinholeView",
    "Quad",
    "Renderer",
    "Scene",
    "SensorOptions",
    "SimulatedFrame",
    "Simulation",
    "SimulationOptions",
    "Texture",
    "build_camera",
    "build_path",
    "build_scene",
    "expose",
    "fit_model",
    "trace_chief_rays",
    "write_sequence",
]
