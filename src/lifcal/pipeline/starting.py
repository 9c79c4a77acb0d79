"""Start values of a calibration: from poses and tracks over focused images, and depth maps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lifcal.arrays import Float32Array, IntArray
from lifcal.bundle import VirtualStart, VirtualTracks, adjust_virtual, fit_depth_line
from lifcal.camera import PinholeArray
from lifcal.imaging.files import read_image
from lifcal.measure import sample_map
from lifcal.pipeline.focusing import FocusRun
from lifcal.reconstruction import Reconstruction
from lifcal.sfm import SfmModel

_MAP_BYTES = 400 << 20
"""Memory for depth maps: of 36 frames of 2048 x 2048, half size, all are held."""
_MEDIAN_DEPTH = 1000.0
"""Of the scene before its scale is known."""
_FEWEST = 20
"""Tracked points with a virtual depth."""


class DepthMaps:
    """Virtual depth of views ('u') or its sigma ('sigma'), the last ones kept in memory."""

    def __init__(self, run: FocusRun, names: list[str], kind: str = "u") -> None:
        self._paths = [run.record.paths(name)[kind] for name in names]
        self._scale = float(run.record.content["settings"]["scale"])
        self._held: dict[int, Float32Array] = {}

    def __call__(self, view: int) -> tuple[Float32Array, float]:
        """Return the map of a view, and its scale relative to the raw."""
        if view not in self._held:
            image = np.asarray(read_image(self._paths[view]), np.float32)
            if (len(self._held) + 1) * image.nbytes > _MAP_BYTES:
                self._held.clear()
            self._held[view] = image
        return self._held[view], self._scale


@dataclass(frozen=True, eq=False)
class StartGeometry:
    """Where measuring begins.

    Parameters
    ----------
    geometry : Reconstruction
    point_indices, view_indices : (n_tracked,) int64
        The tracks, in views that are registered.
    virtual : VirtualStart
        How F and alpha were found.
    """

    geometry: Reconstruction
    point_indices: IntArray
    view_indices: IntArray
    virtual: VirtualStart


def start_geometry(model: SfmModel, run: FocusRun) -> StartGeometry:
    """Return start values: a line through u over 1 / z, and an adjustment of the tracks from there.

    Raises
    ------
    EstimationError
        If too few points have a virtual depth, or it does not depend on the distance.
    """
    view_images = np.flatnonzero(model.registered)
    names = [run.done[i] for i in view_images]
    poses = [pose for pose in model.cam_from_sfm if pose is not None]
    view_of = np.full(len(model.cam_from_sfm), -1)
    view_of[view_images] = np.arange(len(view_images))
    views = view_of[model.view_indices]
    rotations = np.array([pose.rotation for pose in poses])
    shifts = np.array([pose.translation_mm for pose in poses])
    points = model.points_sfm
    depth = np.einsum("pj,pj->p", rotations[views, 2], points[model.point_indices])
    depth += shifts[views, 2]
    u, sigma = np.full(len(views), np.nan), np.full(len(views), np.nan)
    for values, kind in ((u, "u"), (sigma, "sigma")):
        maps = DepthMaps(run, names, kind)
        for view in range(len(poses)):
            here = views == view
            values[here] = sample_map(*maps(view), model.points_virt_px[here])
    tracks = VirtualTracks(model.point_indices, views, model.points_virt_px, u, sigma)
    known = tracks.known
    alpha, beta = fit_depth_line(depth, np.where(known, u, np.nan), np.ones(len(u)), fewest=_FEWEST)
    good = known & (depth > 0.0)
    size = _MEDIAN_DEPTH / float(np.median(depth[good]))
    cx, cy = model.principal_px.tolist()
    array = PinholeArray(model.focal_px, cx, cy, alpha, beta * size)
    state = Reconstruction(array, model.distortion, rotations, shifts * size, points * size)
    found = adjust_virtual(tracks, state)
    return StartGeometry(found.state, model.point_indices, views, found)
