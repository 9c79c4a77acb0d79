"""One recording for all tests of online calibration."""

from dataclasses import replace

import numpy as np

from lifcal.calibration import CalibrateOptions, OnlineCalibrator, OnlineOptions
from lifcal.grid.flat_field import vignetting_from_white
from lifcal.imaging import make_frame
from lifcal.measure import MeasureOptions
from lifcal.scale import ScaleOptions
from lifcal.simulate import Simulation, SimulationOptions
from lifcal.virtual import DepthOptions, FocusEngine

FRAMES = 12


class Recording:
    """Frames of a small camera, and what is needed to calibrate it."""

    def __init__(self):
        options = SimulationOptions(camera="mini", frames=FRAMES, rays_per_pixel=4, seed=4)
        simulation = Simulation(options)
        self.camera = simulation.optics.camera
        self.poses = simulation.trajectory.world_from_cam
        self.raws = [simulation.render_frame(index).raw for index in range(FRAMES)]
        self.white_image = simulation.render_white()
        self.white = vignetting_from_white(make_frame(self.white_image, "w", "w"))
        other = Simulation(replace(options, scene="room", seed=9))
        self.stranger = other.render_frame(3).raw

    def start(self, camera=None, **online):
        engine = FocusEngine(self.camera.grid, self.white, DepthOptions(depth_range=(2.0, 4.6)))
        options = CalibrateOptions(
            1000.0 * self.camera.pixel_size_mm,
            scale=ScaleOptions(marker_size_mm=None if camera is not None else 40.0),
            measure=MeasureOptions(points=100),
        )
        settings = {"points": 80, "lag": 2, "targets": "F=1%,B=4%,c=15px", **online}
        return OnlineCalibrator(engine, options, OnlineOptions(**settings), camera=camera)

    def known_camera(self):
        """The true camera, as an earlier calibration knows it."""
        names = ("F", "c_x", "c_y", "alpha", "beta")
        values = self.camera.array.as_vector()
        sigmas = np.array([2e-3, 0.0, 0.0, 2e-3, 2e-3]) * values
        sigmas[1:3] = 3.0
        size = len(self.camera.parameter_names)
        covariance = np.zeros((size, size))
        covariance[np.arange(5), np.arange(5)] = sigmas**2
        distortion = np.arange(5, size)
        covariance[distortion, distortion] = np.array([1e-8, 1e-14, 1e-20, 1e-6, 1e-6]) ** 2
        assert self.camera.parameter_names[:5] == names
        return replace(self.camera, scale_source="markers", covariance=covariance)
