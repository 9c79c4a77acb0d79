"""Start values of a calibration: from poses and tracks over focused images, and depth maps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from lifcal.arrays import FloatArray, IntArray
from lifcal.bundle import VirtualStart, VirtualTracks, adjust_virtual, fit_depth_line
from lifcal.calibration.views import DepthMaps, View
from lifcal.camera import PinholeArray
from lifcal.diagnostics import Finding
from lifcal.errors import EstimationError, LifcalError
from lifcal.measure import sample_map
from lifcal.reconstruction import Reconstruction
from lifcal.sfm import SfmEngine, SfmModel, SfmViews

_MEDIAN_DEPTH = 1000.0
"""Median depth of the scene before its scale is known. Any number would do; this one keeps lengths
near those in millimetres."""
_FEWEST_OF_PART = 5
"""Frames that a further part of a recording needs to be kept as a world of its own. It is what
structure from motion asks of a recording; fewer views add hardly anything to the camera."""
_MOST_MISFIT = 2.0
"""Misfit of virtual depths (`VirtualStart.misfit`) from which a further part is not kept. Right
ones have 0.4, wrong ones had 4.8 and more."""
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
    worlds : (n_registered,) int64
        World of each view that is registered: the number of the model that has its pose.
    """

    reconstruction: Reconstruction
    point_indices: IntArray
    view_indices: IntArray
    virtual: VirtualStart
    worlds: IntArray


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
    tracks, found = _start_world(model, views, image_scale)
    worlds = np.zeros(len(found.state.rotations), np.int64)
    return ViewStart(found.state, tracks.point_indices, tracks.view_indices, found, worlds)


def start_from_models(
    models: Sequence[SfmModel],
    views: Sequence[View],
    image_scale: float,
    camera: Reconstruction | None = None,
) -> ViewStart:
    """Return start values of several scenes before one camera.

    Each scene is brought to the camera of the one that knows F best, then all are adjusted
    together.

    Parameters
    ----------
    models : sequence of SfmModel
        One for each scene, with one entry for each view. No view has a pose in two of them.
    views : sequence of View
    image_scale : float
        Size of the focused images relative to the raw.
    camera : Reconstruction, optional
        A camera that is known; its poses and points have no part. F, alpha, beta and the distortion
        are then taken from it.

    Raises
    ------
    EstimationError
        If too few points have a virtual depth, or it does not depend on the distance.
    """
    if len(models) == 1 and camera is None:
        return start_from_views(models[0], views, image_scale)
    found = [_start_world(model, views, image_scale) for model in models]
    shared = camera
    if shared is None:
        shared = min(found, key=lambda each: each[1].sigma_focal_px / each[1].state.array.focal_px)[
            1
        ].state
    places = [np.flatnonzero(model.registered) for model in models]
    registered = np.sort(np.concatenate(places))
    rotations, shifts = np.empty((len(registered), 3, 3)), np.empty((len(registered), 3))
    worlds = np.empty(len(registered), np.int64)
    points: list[FloatArray] = []
    parts: list[VirtualTracks] = []
    for world, (tracks, begin) in enumerate(found):
        state = begin.state
        if state is not shared:
            begin = _bring_to(shared, tracks, state)
            state = begin.state
        rows = np.searchsorted(registered, places[world])
        rotations[rows], shifts[rows], worlds[rows] = state.rotations, state.translations_mm, world
        parts.append(
            replace(
                tracks,
                point_indices=tracks.point_indices + sum(len(each) for each in points),
                view_indices=rows[tracks.view_indices],
            )
        )
        points.append(state.points_world_mm)
    tracks = VirtualTracks(
        *(
            np.concatenate([getattr(part, name) for part in parts])
            for name in ("point_indices", "view_indices", "points_virt_px", "u", "sigma_u")
        )
    )
    joined = shared.with_scene(rotations, shifts, np.concatenate(points)).with_focus(None)
    if camera is None:
        begin = adjust_virtual(tracks, joined)
        joined = begin.state
    return ViewStart(joined, tracks.point_indices, tracks.view_indices, begin, worlds)


def _bring_to(camera: Reconstruction, tracks: VirtualTracks, state: Reconstruction) -> VirtualStart:
    """Return poses and points of a scene that fit a camera, which is held: also their scale."""
    array = camera.array
    depth = state.cam_points(tracks.point_indices, tracks.view_indices)[:, 2]
    good = tracks.known & (depth > 0.0)
    beta = float(np.median((tracks.u[good] - array.alpha) * depth[good])) if good.any() else np.nan
    if not beta * array.beta_mm > 0.0:
        raise EstimationError(
            "the virtual depths of a scene do not fit the camera of the others", stage="start"
        )
    scaled = state.scaled(array.beta_mm / beta)
    start = replace(scaled, array=array, distortion=camera.distortion)
    return adjust_virtual(tracks, start, held=("F", "alpha", "k0"))


def _start_world(
    model: SfmModel, views: Sequence[View], image_scale: float
) -> tuple[VirtualTracks, VirtualStart]:
    """Return the tracks of a scene in the views that are registered, and the start from them."""
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
    return tracks, adjust_virtual(tracks, state)


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


def find_models(
    views: Sequence[View],
    image_scale: float,
    sfm: SfmEngine,
    focal_px: float | None = None,
    *,
    names: Sequence[str] = (),
    on_stage: Callable[[str], None] | None = None,
    scratch: Path | None = None,
) -> list[SfmModel]:
    """Find the poses of the views of several recordings, one model for each scene.

    A recording of which some frames share no points with the others gives several models, if each
    part has enough frames. A recording without poses is left out if another one has some, and the
    findings of the first model say so.

    Parameters
    ----------
    views : sequence of View
    image_scale : float
        Size of the focused images relative to the raw.
    sfm : SfmEngine
    focal_px : float, optional
        F roughly, in raw pixels. Without, later recordings begin with the F of the first.
    names : sequence of str
        Names of the recordings, for messages.
    on_stage, scratch
        As for `SfmEngine.reconstruct`.

    Returns
    -------
    list of SfmModel
        Each with one entry for each view.

    Raises
    ------
    EstimationError
        If no recording determines poses.
    """
    of_views = np.array([view.recording for view in views], np.int64)
    recordings = np.unique(of_views).tolist()
    found: list[SfmModel] = []
    findings: list[Finding] = []
    errors: list[EstimationError] = []
    for recording in recordings:
        left = np.flatnonzero(of_views == recording)
        parts: list[SfmModel] = []
        while len(left) and (not parts or len(left) >= _FEWEST_OF_PART):
            hint = found[0].focal_px if focal_px is None and found else focal_px
            some = [views[i] for i in left.tolist()]
            try:
                model = find_poses(some, image_scale, sfm, hint, on_stage=on_stage, scratch=scratch)
                if parts and not _is_plausible(model, some, image_scale):
                    break
            except EstimationError as error:
                if not parts:
                    errors.append(error)
                    name = names[recording] if names else f"recording {recording + 1}"
                    findings.append(_describe_left_out(name, error))
                break
            except LifcalError:
                if not parts:
                    raise
                break  # an engine that knows nothing of a part
            parts.append(model.spread(left, len(views)))
            found.append(parts[-1])
            left = left[~model.registered]
        if len(parts) > 1:
            name = names[recording] if names else f"recording {recording + 1}"
            findings.append(_describe_parts(name, parts))
    if not found:
        raise errors[0]
    if findings:
        found[0] = replace(found[0], findings=(*found[0].findings, *findings))
    return found


def _is_plausible(model: SfmModel, views: Sequence[View], image_scale: float) -> bool:
    """Tell whether a part of a recording is large enough to help, and fits its virtual depths."""
    if model.registered.sum() < _FEWEST_OF_PART:
        return False
    return start_from_views(model, views, image_scale).virtual.misfit < _MOST_MISFIT


def _describe_left_out(name: str, error: EstimationError) -> Finding:
    return Finding.of(
        "recording-left-out",
        f"{name}: is left out, because its frames have no poses: {error}",
        recording=name,
    )


def _describe_parts(name: str, parts: Sequence[SfmModel]) -> Finding:
    counts = [int(part.registered.sum()) for part in parts]
    return Finding.of(
        "recording-in-parts",
        f"{name}: falls into {len(parts)} parts that share no points ({', '.join(map(str, counts))}"
        " frames): each is kept as a world of its own, with poses of its own",
        recording=name,
        frames=counts,
    )
