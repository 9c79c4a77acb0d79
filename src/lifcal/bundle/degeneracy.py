"""Input that cannot give a calibration, or only a poor one: named, with what to do."""

from __future__ import annotations

import numpy as np

from lifcal.arrays import FloatArray
from lifcal.bundle.linear import Layout, count_parameters
from lifcal.bundle.observations import Observations
from lifcal.bundle.problem import BundleState
from lifcal.errors import EstimationError

_FLAT = 0.01
_STANDING = 0.01
_ONE_DEPTH = 0.03


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


def describe_geometry(state: BundleState, observations: Observations) -> list[str]:
    """Return what about scene and motion is poor, each with what to do."""
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
            f"the camera turned on the spot (it moved by {100.0 * baseline / middle:.2g} % of the "
            "distance): move it, by a tenth of the distance or more"
        )
    low, high = np.percentile(depth, [2.0, 98.0])
    if high - low < _ONE_DEPTH * middle:
        found.append(
            f"all points are at one depth (within {100.0 * (high - low) / middle:.2g} %), so alpha "
            "and beta are not told apart: show nearer and farther points, or move to and fro"
        )
    if _flatness(state.points_world_mm) < _FLAT:
        found.append(
            "the scene is flat: the calibration rests on views from different angles and distances"
        )
    return found


def _flatness(points: FloatArray) -> float:
    """Return the smallest extent over the middle one."""
    extent = np.linalg.svd(points - np.median(points, axis=0), compute_uv=False)
    return float(extent[2] / extent[1]) if extent[1] > 0.0 else 0.0
