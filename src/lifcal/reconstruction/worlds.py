"""Parts of a reconstruction that share no point: each is a world with a frame of its own.

Several recordings of one camera show several scenes. No point connects their views, so each scene
can be moved and turned without the others, and has its own world frame. All of them share the
camera, and with it the scale: beta fixes how large every scene is relative to the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy import sparse
from scipy.sparse import csgraph

from lifcal.arrays import FloatArray, IntArray, read_only
from lifcal.geometry import RigidTransform
from lifcal.reconstruction.observations import Observations
from lifcal.reconstruction.reconstruction import Reconstruction


@dataclass(frozen=True, eq=False)
class Worlds:
    """Which world views and points belong to, numbered from 0 in the order of their first views.

    Parameters
    ----------
    of_views : (n_views,) int64
    of_points : (n_points,) int64
    """

    of_views: IntArray
    of_points: IntArray

    def __len__(self) -> int:
        return int(self.of_views.max(initial=-1)) + 1

    @property
    def first_views(self) -> IntArray:
        """Index of the first view of each world, (n_worlds,)."""
        return np.asarray(np.unique(self.of_views, return_index=True)[1], np.int64)

    def center(self, values: FloatArray, of_values: IntArray) -> FloatArray:
        """Return values less their mean over each world.

        Parameters
        ----------
        values : (n, 3) float64
        of_values : (n,) int64
            World of each value.
        """
        out = np.empty_like(values)
        for world in np.unique(of_values).tolist():
            mine = of_values == world
            out[mine] = values[mine] - values[mine].mean(axis=0)
        return out

    def move(
        self, state: Reconstruction, new_from_old: Mapping[int, RigidTransform]
    ) -> Reconstruction:
        """Return a state with some of its worlds in other frames, by their numbers."""
        if len(self) == 1:
            return state.moved(new_from_old[0]) if 0 in new_from_old else state
        rotations, shifts = state.rotations.copy(), state.translations_mm.copy()
        points = state.points_world_mm.copy()
        for world, transform in new_from_old.items():
            moved = state.moved(transform)
            views, own = self.of_views == world, self.of_points == world
            rotations[views], shifts[views] = moved.rotations[views], moved.translations_mm[views]
            points[own] = moved.points_world_mm[own]
        return state.with_scene(rotations, shifts, points)


def find_worlds(observations: Observations) -> Worlds:
    """Return the parts of observations that share no point."""
    pair_points, pair_views, _ = observations.pairs
    n_views, n_points = len(observations.view_ids), len(observations.point_ids)
    graph = sparse.coo_matrix(
        (np.ones(len(pair_points), np.int8), (pair_views, n_views + pair_points)),
        shape=(n_views + n_points,) * 2,
    )
    _, labels = csgraph.connected_components(graph, directed=False)
    _, first = np.unique(labels[:n_views], return_index=True)
    number = np.empty(len(first), np.int64)
    number[np.argsort(first)] = np.arange(len(first))
    found = number[np.searchsorted(np.unique(labels[:n_views]), labels)]
    return Worlds(read_only(found[:n_views]), read_only(found[n_views:]))
