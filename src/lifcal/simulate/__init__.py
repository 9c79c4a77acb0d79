"""Truth for tests, docs and the demo: scenes, optics, rendering."""

from lifcal.simulate.cameras import CAMERAS, CameraDesign, build_camera
from lifcal.simulate.optics import Optics
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
    "CameraDesign",
    "Marker",
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
    "write_sequence",
]
