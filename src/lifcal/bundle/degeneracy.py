"""Input that cannot give a calibration, or only a poor one: named, with what to do."""

from __future__ import annotations

import numpy as np

from lifcal.arrays import FloatArray
from lifcal.bundle.linear import Layout, count_parameters, pose_jacobians
from lifcal.bundle.start import fit_virtual_points
from lifcal.diagnostics import Finding
from lifcal.errors import EstimationError
from lifcal.reconstruction import Observations, Reconstruction, find_worlds

_FLAT = 0.01
"""A scene is flat if it is thinner than this part of its width."""
_STANDING = 0.01
"""A camera turned on the spot if no position is farther from their mean than this part of the
median depth."""
_ONE_DEPTH = 0.03
"""All points are at one depth if their depths, without the 2 % at either end, differ by less than
this part of the median."""
_HEAVY = 1.5
"""Root mean square of the residuals over their noise from which not all of them are noise. A robust
loss and a few outliers leave less."""
_OWN_CAMERA, _OWN_SHARE = 50.0, 0.04
"""By how much a view's squares must fall with intrinsics of its own to be another camera's: in the
noise' variance (chance: 5), and as part of them (systematic errors of real recordings: 0.02)."""


def list_ids(ids: list[int]) -> str:
    """Return the first ten, for a sentence."""
    words = ", ".join(str(number) for number in ids[:10])
    return words + (", ..." if len(ids) > 10 else "")


def check_enough(observations: Observations) -> None:
    """Raise EstimationError for one view or fewer points than any adjustment needs."""
    n_views, n_points = len(observations.view_ids), len(observations.point_ids)
    if n_views < 2:
        raise EstimationError(
            f"there is one view only (view {observations.view_ids[0]}): record the scene from "
            "several places",
            stage="bundle",
        )
    points, _, offsets = observations.pairs
    several = np.bincount(points, minlength=n_points) >= 2
    if several.sum() < 8:
        raise EstimationError(
            f"only {int(several.sum())} points are seen in two views or more (need 8): "
            "match more points between views",
            stage="bundle",
            evidence={"points": n_points, "views": n_views},
        )
    if np.diff(offsets).max() < 2:
        raise EstimationError(
            "every point is measured in one micro image a view: depth needs two at least",
            stage="bundle",
        )


def check_count(layout: Layout) -> None:
    """Raise EstimationError where there are fewer equations than unknowns."""
    equations = 2 * int(layout.active.sum())
    unknowns = count_parameters(layout, layout.active)
    if equations <= unknowns:
        raise EstimationError(
            f"{equations // 2} observations give {equations} equations for {unknowns} unknowns: "
            "measure points in more micro images and views",
            stage="bundle",
            evidence={"equations": equations, "unknowns": unknowns},
        )


def describe_geometry(state: Reconstruction, observations: Observations) -> list[Finding]:
    """Return findings about a scene or a motion that determines the camera poorly.

    If there are several worlds, one good world is enough to determine the camera. Then only
    findings that apply to all worlds are returned.
    """
    worlds = find_worlds(observations)
    if len(worlds) == 1:
        return _describe_world(state, observations)
    found = []
    for world in range(len(worlds)):
        views, points = worlds.of_views == world, worlds.of_points == world
        some = observations.select(views[observations.view_indices])
        scene = (
            state.rotations[views],
            state.translations_mm[views],
            state.points_world_mm[points],
        )
        found.append(_describe_world(state.with_scene(*scene), some))
    everywhere = set.intersection(*({each.code for each in findings} for findings in found))
    return [each for each in found[0] if each.code in everywhere]


def _describe_world(state: Reconstruction, observations: Observations) -> list[Finding]:
    """Return the findings about one scene and the motion of the camera in it."""
    points, views, _ = observations.pairs
    depth = (
        np.einsum("pj,pj->p", state.rotations[views, 2], state.points_world_mm[points])
        + state.translations_mm[views, 2]
    )
    middle = float(np.median(depth))
    found = []
    places = state.positions_world_mm()
    baseline = float(np.linalg.norm(places - places.mean(axis=0), axis=1).max())
    if baseline < _STANDING * middle:
        found.append(
            Finding.of(
                "turned-on-the-spot",
                f"the camera turned on the spot (it moved by {100.0 * baseline / middle:.2g} % of "
                "the distance): move it, by a tenth of the distance or more",
                baseline_over_distance=baseline / middle,
            )
        )
    low, high = np.percentile(depth, [2.0, 98.0])
    if high - low < _ONE_DEPTH * middle:
        if _has_depths(observations):
            found.append(
                Finding.of(
                    "not-rigid",
                    "no rigid scene fits the views, although points are at several depths: the "
                    "camera only turned on the spot (move it, by a tenth of the distance or more), "
                    "or points are matched wrongly, or this is more than one camera",
                )
            )
        else:
            found.append(
                Finding.of(
                    "one-depth",
                    f"all points are at one depth (within {100.0 * (high - low) / middle:.2g} %), "
                    "so alpha and beta are not told apart: show nearer and farther points, or move "
                    "to and fro",
                    depth_range_over_distance=float(high - low) / middle,
                )
            )
    flatness = _flatness(state.points_world_mm)
    if flatness < _FLAT:
        found.append(
            Finding.of(
                "flat-scene",
                "the scene is flat: the calibration rests on views from different angles and "
                "distances",
                thickness_over_width=flatness,
            )
        )
    return found


def _has_depths(observations: Observations) -> bool:
    """Tell whether virtual depths, as micro images show them, differ by more than their noise."""
    found = fit_virtual_points(observations)
    inverse, sigma = found.scaled[:, 2], found.sigma_inverse
    sure = np.isfinite(inverse) & (sigma < 0.01 * np.abs(inverse))
    if sure.sum() < 10:
        return False
    low, high = np.percentile(inverse[sure], [2.0, 98.0])
    noise = 5.0 * float(np.median(sigma[sure]))
    return bool(high - low > _ONE_DEPTH * abs(low + high) / 2.0 + noise)


def describe_misfit(layout: Layout, state: Reconstruction, noise: float) -> list[Finding]:
    """Return what residuals say against one camera and noise alone.

    Each view is asked which intrinsics it would have with its pose free and all points held. With
    one camera the answers differ by noise.
    """
    residuals = layout.compute_residuals(state)
    lengths = layout.whitened_lengths(residuals)
    used = layout.active
    found = []
    ratio = float(np.sqrt(np.mean(lengths[used] ** 2) / 2.0)) / noise
    if ratio > _HEAVY:
        found.append(
            Finding.of(
                "residuals-large",
                f"residuals are {ratio:.1f} times as large as their noise: not all of them are "
                "noise",
                ratio=ratio,
            )
        )
    gains, squares = _fit_each_view(layout, state, residuals, noise)
    odd = (gains > _OWN_CAMERA) & (gains > _OWN_SHARE * squares)
    if odd.any():
        names = layout.problem.observations.view_ids[odd].tolist()
        found.append(
            Finding.of(
                "several-cameras",
                f"one camera does not fit all views: {len(names)} of {len(odd)} fit one of their "
                f"own much better ({list_ids(names)}). Was it refocused in between, or is this "
                "more than one? Then the result is wrong",
                views=names,
            )
        )
    return found


def _fit_each_view(
    layout: Layout, state: Reconstruction, residuals: FloatArray, noise: float
) -> tuple[FloatArray, FloatArray]:
    """Return for each view by how much intrinsics of its own would lower its squares, and these.

    In units of the noise' variance. Its pose is free, points are held.
    """
    observations = layout.problem.observations
    rows = layout.compute_rows(state)
    gains = np.zeros(len(observations.view_ids))
    squares = np.zeros(len(gains))
    # view by view: all rows by all unknowns would be the largest array of the adjustment
    for view in range(len(gains)):
        mine = np.flatnonzero(layout.active & (observations.view_indices == view))
        if len(mine) == 0:
            continue
        x_cam = (
            state.points_world_mm[observations.point_indices[mine]] @ state.rotations[view].T
            + state.translations_mm[view]
        )
        by_pose = rows[mine, :, :3] @ pose_jacobians(x_cam)
        design = np.concatenate([rows[mine, :, 3:8], by_pose], axis=2)
        xx, xy, yy = (layout.whitening[mine] / noise).T
        off = residuals[mine]
        a = np.concatenate(
            [xx[:, None] * design[:, 0] + xy[:, None] * design[:, 1], yy[:, None] * design[:, 1]]
        )
        r = np.concatenate([xx * off[:, 0] + xy * off[:, 1], yy * off[:, 1]])
        basis, _ = np.linalg.qr(a / np.maximum(np.linalg.norm(a, axis=0), 1e-300))
        gains[view] = float(np.sum((basis.T @ r) ** 2))
        squares[view] = float(r @ r)
    return gains, squares


def _flatness(points: FloatArray) -> float:
    """Return the smallest extent over the middle one."""
    extent = np.linalg.svd(points - points.mean(axis=0), compute_uv=False)
    return float(extent[2] / extent[1]) if extent[1] > 0.0 else 0.0
