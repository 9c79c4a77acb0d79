"""Start values of a calibration: from poses and tracks over focused images, and depth maps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lifcal.arrays import IntArray
from lifcal.bundle import VirtualStart, VirtualTracks, adjust_virtual, fit_depth_line
from lifcal.calibration.views import DepthMaps, View
from lifcal.camera import PinholeArray
from lifcal.errors import EstimationError
from lifcal.measure import sample_map
from lifcal.reconstruction import Reconstruction
from lifcal.sfm import SfmEngine, SfmModel, SfmViews

_MEDIAN_DEPTH = 1000.0
"""Median depth of the scene before its scale is known. Any number would do; this one keeps lengths
near those in millimetres."""
_FEWEST = 20
"""Tracked points with a virtual depth that a start needs: the line through them has two unknowns,
and some of the points are wrong."""


@dataclass(frozen=True, eq=False)
class ViewStart:
    """Where measuring begins.

    Parameters
    ----------
    reconstruction : Reconstruction
        A first camera, and poses of the views that are registered; of arbitrary scale.
    point_indices, view_indices : (n_tracked,) int64
        The tracks, in views that are registered.
    virtual : VirtualStart
        How F and alpha were found.
    """

    reconstruction: Reconstruction
    point_indices: IntArray
    view_indices: IntArray
    virtual: VirtualStart


def start_from_views(model: SfmModel, views: Sequence[View], image_scale: float) -> ViewStart:
    """Return start values: a line through u over 1 / z, and an adjustment of the tracks from there.

    Parameters
    ----------
    model : SfmModel
        With one entry for each view.
    views : sequence of View
    image_scale : float
        Size of the focused images relative to the raw.

    Raises
    ------
    EstimationError
        If too few points have a virtual depth, or it does not depend on the distance.
    """
    view_images = np.flatnonzero(model.registered)
    registered = [views[i] for i in view_images.tolist()]
    poses = [pose for pose in model.cam_from_sfm if pose is not None]
    if not poses:
        raise EstimationError(
            f"structure from motion gave none of {len(views)} images a pose", stage="sfm"
        )
    view_of = np.full(len(model.cam_from_sfm), -1)
    view_of[view_images] = np.arange(len(view_images))
    seen_in = view_of[model.view_indices]
    rotations = np.array([pose.rotation for pose in poses])
    shifts = np.array([pose.translation_mm for pose in poses])
    points = model.points_sfm
    depth = np.einsum("pj,pj->p", rotations[seen_in, 2], points[model.point_indices])
    depth += shifts[seen_in, 2]
    u, sigma = np.full(len(seen_in), np.nan), np.full(len(seen_in), np.nan)
    for values, kind in ((u, "depth"), (sigma, "sigma")):
        maps = DepthMaps(registered, image_scale, kind)
        for view in range(len(poses)):
            here = seen_in == view
            values[here] = sample_map(*maps(view), model.points_virt_px[here])
    tracks = VirtualTracks(model.point_indices, seen_in, model.points_virt_px, u, sigma)
    known = tracks.known
    alpha, beta = fit_depth_line(depth, np.where(known, u, np.nan), np.ones(len(u)), fewest=_FEWEST)
    good = known & (depth > 0.0)
    size = _MEDIAN_DEPTH / float(np.median(depth[good]))
    cx, cy = model.principal_px.tolist()
    array = PinholeArray(model.focal_px, cx, cy, alpha, beta * size)
    state = Reconstruction(array, model.distortion, rotations, shifts * size, points * size)
    found = adjust_virtual(tracks, state)
    return ViewStart(found.state, model.point_indices, seen_in, found)


def find_poses(
    views: Sequence[View],
    image_scale: float,
    sfm: SfmEngine,
    focal_px: float | None = None,
    *,
    on_stage: Callable[[str], None] | None = None,
    scratch: Path | None = None,
) -> SfmModel:
    """Let a structure-from-motion engine find the poses of views; virtual depths judge them.

    Parameters
    ----------
    views : sequence of View
    image_scale : float
        Size of the focused images relative to the raw.
    sfm : SfmEngine
    focal_px : float, optional
        F roughly, in raw pixels.
    on_stage, scratch
        As for `SfmEngine.reconstruct`.
    """

    def judge(model: SfmModel) -> float:
        try:
            return start_from_views(model, views, image_scale).virtual.misfit
        except EstimationError:
            return np.inf

    images = [view.read_focused() for view in views]
    seen = SfmViews(
        images,
        # The lenses at the rim leave black where nothing is seen: no feature there.
        [image > 0 for image in images],
        image_scale,
        lambda index: views[index].read_depth(),
        lambda index: views[index].read_sigma(),
        focal_px,
        tuple(view.name for view in views),
    )
    return sfm.reconstruct(seen, judge=judge, on_stage=on_stage, scratch=scratch)
