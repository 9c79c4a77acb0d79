"""What goes into an adjustment: observations that can be used, and what is known of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from lifcal.arrays import BoolArray
from lifcal.bundle.degeneracy import list_ids
from lifcal.bundle.linear import Layout
from lifcal.bundle.problem import Problem
from lifcal.bundle.scale import CameraPositions, Distances, find_ids
from lifcal.bundle.start import Start, refit_depth
from lifcal.camera import MicroLensGrid
from lifcal.diagnostics import Finding
from lifcal.errors import EstimationError, InputError
from lifcal.reconstruction import Observations, Reconstruction, find_worlds

_REACH_RADII = 3.0
"""An observation that is farther than this many radii from the center of its micro image is not in
it."""
_MOST_STRAYS = 0.05
"""Share of observations outside their micro images that may be mistakes of a detector. More of them
say that centers or image size are wrong."""


def grid_from_observations(
    observations: Observations, image_size: tuple[int, int]
) -> MicroLensGrid:
    """Return the grid of the centers that were observed, as an explicit list.

    Raises
    ------
    InputError
        If a center has two lens types, or centers overlap as those of two cameras would.
    """
    from scipy.spatial import cKDTree

    check_inside(observations, image_size)
    table, index = observations.centers
    types = np.zeros(len(table), np.int64)
    types[index] = observations.lens_types
    mixed = types[index] != observations.lens_types
    if mixed.any():
        x, y = table[index[np.argmax(mixed)]]
        raise InputError(f"the micro image at ({x:g}, {y:g}) has two lens types")
    if len(table) < 3:
        raise InputError(f"only {len(table)} different micro images were observed")
    nearest = cKDTree(table).query(table, k=2)[0][:, 1]
    # The pitch from each view alone: there, only one grid can be seen.
    pitches = []
    for view in range(len(observations.view_ids)):
        seen = table[np.unique(index[observations.view_indices == view])]
        if len(seen) > 2:
            pitches.append(float(np.median(cKDTree(seen).query(seen, k=2)[0][:, 1])))
    pitch = float(np.median(pitches)) if pitches else float(np.median(nearest))
    # Centers found anew in each view lie within a pixel of each other, another grid's do not.
    between = (nearest > 2.0) & (nearest < 0.6 * pitch)
    if between.mean() > 0.02:
        raise InputError(
            f"{int(between.sum())} of {len(table)} micro-image centers lie less than 0.6 pitches "
            "from another: are these observations of several cameras, or of a camera that was "
            "refitted in between?"
        )
    return MicroLensGrid.from_centers(
        table, image_size, radius_px=max(pitch / 2.0, 1.0), lens_types=types
    )


def check_inside(observations: Observations, image_size: tuple[int, int]) -> None:
    """Raise InputError where observations lie outside the image."""
    width, height = image_size
    for what, places, margin, most in (
        # what is measured at the rim may come out a little beyond it, and some are mistakes
        ("observations", observations.points_raw_px, 2.0, _MOST_STRAYS),
        ("micro-image centers", observations.centers_raw_px, 0.1 * max(width, height), 0.0),
    ):
        x, y = places.T
        outside = (x < -margin) | (y < -margin)
        outside |= (x > width - 1 + margin) | (y > height - 1 + margin)
        if outside.mean() > most:
            i = int(np.argmax(outside))
            raise InputError(
                f"{int(outside.sum())} of {len(x)} {what} lie outside the image of {width} x "
                f"{height} px, the first at ({x[i]:g}, {y[i]:g}): of another camera or size?"
            )


def _find_strays(observations: Observations, radius_px: float) -> BoolArray:
    """Tell which observations are nowhere near the micro image that they are said to be in.

    Raises
    ------
    InputError
        If there are many: then the centers are not those of these micro images.
    """
    offsets = observations.points_raw_px - observations.centers_raw_px
    far = np.hypot(offsets[:, 0], offsets[:, 1]) > _REACH_RADII * radius_px
    if far.mean() > _MOST_STRAYS:
        i = int(np.argmax(far))
        raise InputError(
            f"{int(far.sum())} of {len(far)} observations lie more than {_REACH_RADII:g} radii "
            f"from the center of their micro image, the first at {observations.points_raw_px[i]} "
            f"with its center at {observations.centers_raw_px[i]}: are the centers right?"
        )
    return np.asarray(far)


def select(
    observations: Observations,
    start: Start | Reconstruction,
    grid: MicroLensGrid,
    findings: list[Finding],
) -> tuple[Observations, Reconstruction]:
    """Keep the views and points that have a place, in front of their cameras."""
    if isinstance(start, Reconstruction):
        start = Start(
            start,
            np.ones(len(start.rotations), np.bool_),
            np.ones(len(start.points_world_mm), np.bool_),
        )
    state = start.state
    if len(state.rotations) != len(observations.view_ids) or len(state.points_world_mm) != len(
        observations.point_ids
    ):
        raise InputError(
            f"the start has {len(state.rotations)} poses and {len(state.points_world_mm)} points, "
            f"the observations have {len(observations.view_ids)} views and "
            f"{len(observations.point_ids)} points"
        )
    points, views, offsets = observations.pairs
    depth = (
        np.einsum("pj,pj->p", state.rotations[views, 2], state.points_world_mm[points])
        + state.translations_mm[views, 2]
    )
    good = start.registered[views] & start.placed[points] & (depth > 0.0)
    if not start.registered.all():
        missing = observations.view_ids[~start.registered]
        findings.append(
            Finding.of(
                "views-not-joined",
                f"{len(missing)} of {len(observations.view_ids)} views could not be joined: "
                f"{list_ids(missing.tolist())}",
                views=missing.tolist(),
            )
        )
    behind = start.registered[views] & start.placed[points] & ~(depth > 0.0)
    if behind.any():
        findings.append(
            Finding.of(
                "points-behind",
                f"{int(behind.sum())} points lie behind a camera at the start and were left out",
                count=int(behind.sum()),
            )
        )
    strays = _find_strays(observations, grid.radius_px)
    if strays.any():
        findings.append(
            Finding.of(
                "observations-stray",
                f"{int(strays.sum())} observations lie outside the micro image that they are said "
                "to be in: left out",
                count=int(strays.sum()),
            )
        )
    keep = np.repeat(good, np.diff(offsets)) & ~strays
    # A point needs two micro images, wherever.
    counts = np.bincount(observations.point_indices[keep], minlength=len(observations.point_ids))
    keep &= counts[observations.point_indices] >= 2
    if not keep.any():
        raise EstimationError(
            "no point has a place in front of the cameras that see it", stage="bundle"
        )
    lost = np.setdiff1d(
        observations.point_ids, observations.point_ids[observations.point_indices[keep]]
    )
    if len(lost):
        findings.append(
            Finding.of(
                "points-unplaced",
                f"{len(lost)} of {len(observations.point_ids)} points have no place, because they "
                f"are seen in too few micro images or fit nowhere: {list_ids(lost.tolist())}",
                points=lost.tolist(),
            )
        )
    return restrict(observations, state, keep)


def restrict(
    observations: Observations, state: Reconstruction, keep: BoolArray
) -> tuple[Observations, Reconstruction]:
    """Leave observations out, and the views and points that are left with none."""
    if keep.all():
        return observations, state
    chosen = observations.select(keep)
    view_places = find_ids(chosen.view_ids, observations.view_ids, "view")
    point_places = find_ids(chosen.point_ids, observations.point_ids, "point")
    return chosen, replace(
        state,
        rotations=state.rotations[view_places],
        translations_mm=state.translations_mm[view_places],
        points_world_mm=state.points_world_mm[point_places],
    )


def mend_depth(
    observations: Observations, state: Reconstruction, pixel_size_mm: float
) -> Reconstruction:
    """Take alpha and beta from the observations if that fits better than those of the start."""
    state = state.with_focus(None)
    layout = Layout(Problem(observations, pixel_size_mm, state))
    refitted = refit_depth(observations, state)
    before, after = (
        np.nanmedian(layout.whitened_lengths(layout.compute_residuals(each)))
        for each in (state, refitted)
    )
    return refitted if after < before else state


def keep_known_points(
    distances: Distances | None, observations: Observations, findings: list[Finding]
) -> Distances | None:
    """Leave out distances between points that are not there."""
    if distances is None:
        return None
    there = are_known(distances, observations)
    if not there.any():
        raise InputError(
            "none of the distances is between points that are observed in registered views of one "
            "scene"
        )
    if not there.all():
        findings.append(
            Finding.of(
                "distances-unused",
                f"{int((~there).sum())} distances are to points that are not used: left out",
                count=int((~there).sum()),
            )
        )
    return select_distances(distances, observations)


def are_known(distances: Distances, observations: Observations) -> BoolArray:
    """Tell which distances have both their ends among the points, in one world."""
    there = distances.are_between(observations.point_ids)
    worlds = find_worlds(observations)
    if len(worlds) > 1 and there.any():
        ends = distances.among(observations.point_ids).point_ids
        of_ends = worlds.of_points[
            np.searchsorted(observations.point_ids, ends.reshape(len(ends), -1))
        ]
        there[there] = (of_ends == of_ends[:, :1]).all(axis=1)
    return there


def select_distances(distances: Distances, observations: Observations) -> Distances:
    """Return the distances that observations know, each between points of one world.

    Raises
    ------
    InputError
        If none is left.
    """
    between = distances.are_between(observations.point_ids)
    known = are_known(distances, observations)
    if (known == between).all():
        return distances.among(observations.point_ids)
    return distances.select(known).among(observations.point_ids)


def select_positions(positions: CameraPositions, observations: Observations) -> CameraPositions:
    """Return the positions of views that are there.

    A single position in a world says nothing of its scale and does not fix its frame, so it is left
    out where others are known elsewhere.
    """
    there = np.isin(positions.view_ids, observations.view_ids)
    worlds = find_worlds(observations)
    if len(worlds) > 1:
        views = find_ids(positions.view_ids[there], observations.view_ids, "view")
        of_positions = worlds.of_views[views]
        there[there] = np.bincount(of_positions)[of_positions] > 1
    return positions.select(there)


def keep_known_views(
    positions: CameraPositions | None, observations: Observations, findings: list[Finding]
) -> CameraPositions | None:
    """Leave out positions of views that are not there."""
    if positions is None:
        return None
    there = np.isin(positions.view_ids, observations.view_ids)
    kept = positions if there.all() else positions.select(there)
    kept = select_positions(kept, observations)
    lost = len(positions.view_ids) - len(kept.view_ids)
    if lost:
        findings.append(
            Finding.of(
                "positions-unused",
                f"{lost} known positions are of views that are not used: left out",
                count=lost,
            )
        )
    return kept
