"""Frames of a small simulated camera with distortion, and their truth."""

from dataclasses import replace

import numpy as np

from lifcal.camera import BrownDistortion
from lifcal.grid.flat_field import vignetting_from_white
from lifcal.simulate import Imperfections, Simulation, SimulationOptions


class Recording:
    """Two frames of the desk, the second seen by a color sensor too if asked."""

    def __init__(self, scene="desk", frames=2, rays=8):
        self.simulation = Simulation(
            SimulationOptions(
                camera="mini",
                scene=scene,
                frames=4,
                rays_per_pixel=rays,
                # A test moves the lattice.
                imperfections=Imperfections(lattice="recorded"),
            )
        )
        self.camera = self.simulation.optics.camera
        self.white = self.simulation.render_white()
        self.vignetting = vignetting_from_white(self.white)
        self.frames = [self.simulation.render_frame(i) for i in range(frames)]


def true_depth(view, intrinsics):
    """The true depth at the pixels of an image, nearest neighbor; NaN outside the view."""
    k = intrinsics
    rows, cols = np.mgrid[: k.height, : k.width]
    x = (cols - k.cx) / k.fx * view.focal_px + view.principal_point_px[0]
    y = (rows - k.cy) / k.fy * view.focal_px + view.principal_point_px[1]
    i, j = np.rint(y).astype(int), np.rint(x).astype(int)
    inside = (i >= 0) & (j >= 0) & (i < view.depth_mm.shape[0]) & (j < view.depth_mm.shape[1])
    out = np.full(rows.shape, np.nan)
    out[inside] = view.depth_mm[i[inside], j[inside]]
    return out


def with_covariance(camera, sigmas=(0.0, 0.0, 0.0, 0.01, 4.0), correlation=0.5):
    """The camera with sigmas of F, c, alpha, beta; the last two correlated."""
    size = 5 + len(camera.distortion.parameters)
    covariance = np.zeros((size, size))
    covariance[:5, :5] = np.diag(np.square(sigmas))
    covariance[3, 4] = covariance[4, 3] = correlation * sigmas[3] * sigmas[4]
    return replace(camera, covariance=covariance)


STRONG = BrownDistortion(-1.5e-7, 0.0, 0.0, 1e-6, -2e-6)
"""Some 7 px at the corners of 640 x 480."""
