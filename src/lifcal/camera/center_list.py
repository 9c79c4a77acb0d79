"""Conversion of a list of micro-image centers, if nearly regular, to a lattice and its bend."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from lifcal.arrays import FloatArray, IntArray, check_array
from lifcal.camera.bend import GridBend, fit_field
from lifcal.camera.grid import Lattice, MicroLensGrid, check_image_size, find_rows, list_lenses
from lifcal.errors import EstimationError, InputError

_NEIGHBOR_REACH = 1.25
"""Largest distance of neighbors, in units of the median distance to the nearest center. It includes
the six or four nearest centers and excludes the next ones."""
_MOST_OFF = 0.2
"""Largest deviation of the step between two neighbors from a whole lattice step, in lattice units.
Pairs with a larger deviation are ignored."""
_LEAST_CONNECTED = 0.9
"""Fraction of the centers that whole lattice steps must connect."""
_FEWEST = 12
"""Smallest number of centers from which a lattice is estimated."""


def grid_from_center_list(
    centers_raw_px: npt.ArrayLike,
    image_size: tuple[int, int],
    *,
    radius_px: float | None = None,
    lens_types: npt.ArrayLike | None = None,
    focal_planes: Sequence[float] | FloatArray | None = None,
    deviations: bool = False,
) -> MicroLensGrid:
    """Build a grid on a lattice, with its bend, from a list of centers.

    The grid has all lenses whose micro images touch the image, also those that the list lacks.
    Refining a grid, finding lens types and following the grid from raw to raw need a lattice, so
    they work with this grid but not with one from `MicroLensGrid.from_centers`.

    Parameters
    ----------
    centers_raw_px : (n_lenses, 2) float64
        Centers in any order; some may be missing.
    image_size : (int, int)
    radius_px : float or None
        Half the pitch if None.
    lens_types : (n_lenses,) int or None
        Must follow the lattice; all of type 0 if None.
    focal_planes : sequence of float or None
    deviations : bool
        Whether each lens keeps its own deviation from lattice and bend. For centers that were
        measured one by one, False is better: their noise is larger than the lenses' real
        deviations.

    Raises
    ------
    EstimationError
        If the centers, or the lens types, follow no lattice.
    """
    size = check_image_size(image_size)
    centers = check_array(centers_raw_px, "centers_raw_px", (None, 2), finite=True)
    basis = _find_basis(centers)
    rows, indices = _count_steps(centers, basis)
    centers = centers[rows]
    n_types, rule = 1, (0, 0, 0)
    if lens_types is not None:
        types = np.asarray(lens_types)
        if len(types) < len(rows):
            raise InputError(f"{len(types)} lens types for {len(rows)} centers")
        n_types, rule = _find_rule(types[rows], indices)
    lattice, bend = fit_lattice_and_bend(centers, indices, size, n_types, rule)
    radius = lattice.pitch_px / 2.0 if radius_px is None else radius_px
    own: FloatArray | None = None
    if deviations:
        all_indices, smooth = list_lenses(lattice, bend, size, radius)
        listed = find_rows(indices, all_indices)
        own = np.where((listed >= 0)[:, None], centers[listed] - smooth, 0.0)
    return MicroLensGrid.from_lattice(
        lattice,
        size,
        radius_px=radius,
        focal_planes=focal_planes,
        bend=bend,
        deviations_px=own,
    )


def fit_lattice_and_bend(
    centers_raw_px: FloatArray,
    indices_qr: IntArray,
    image_size: tuple[int, int],
    n_types: int = 1,
    type_rule: tuple[int, int, int] = (0, 0, 0),
) -> tuple[Lattice, GridBend | None]:
    """Return the lattice and the smooth bend nearest to centers whose places (q, r) are known."""
    design = np.column_stack([np.ones(len(indices_qr)), indices_qr])
    start: FloatArray = np.linalg.lstsq(design, centers_raw_px, rcond=None)[0].astype(np.float64)
    lattice = Lattice(start[0], start[1:], n_types, type_rule)
    for _ in range(2):  # again, at places that include the constant and linear terms just found
        places = lattice.centers(indices_qr)
        field = fit_field(places, centers_raw_px - places, image_size)
        shift, matrix = field.affine
        lattice = Lattice(
            lattice.origin_px + shift + lattice.origin_px @ matrix,
            lattice.basis_px + lattice.basis_px @ matrix,
            n_types,
            type_rule,
        )
    return lattice, field.bend


def _find_basis(centers: FloatArray) -> FloatArray:
    """Return two basis vectors, one per row, from the steps between neighbors."""
    from scipy.spatial import cKDTree

    if len(centers) < _FEWEST:
        raise EstimationError(
            f"{len(centers)} centers are too few for a lattice (need {_FEWEST})", stage="grid"
        )
    distances, neighbors = cKDTree(centers).query(centers, k=7)
    pitch = float(np.median(distances[:, 1]))
    near = distances[:, 1:] < _NEIGHBOR_REACH * pitch
    steps = (centers[neighbors[:, 1:]] - centers[:, None])[near]
    steps = steps[np.hypot(*steps.T) > 0.5 * pitch]
    if not len(steps):
        raise EstimationError("neighboring centers have no common distance", stage="grid")
    angles = np.arctan2(steps[:, 1], steps[:, 0])
    # Steps between neighbors of a lattice have a few directions only. The first basis vector has
    # the most frequent direction, the second has the next direction, 45 to 105 degrees further.
    histogram = np.bincount(np.floor(np.degrees(angles) % 360.0).astype(int), minlength=360)
    smooth = np.convolve(np.tile(histogram, 3), np.ones(11), "same")[360:720]
    first = np.radians(float(np.argmax(smooth)) + 0.5)
    away = (angles - first) % (2.0 * np.pi)
    second = away[(away > np.radians(45.0)) & (away < np.radians(105.0))]
    if not len(second):
        raise EstimationError("the centers are on a line", stage="grid")
    basis = []
    for middle in (0.0, float(np.median(second))):
        close = np.abs((away - middle + np.pi) % (2.0 * np.pi) - np.pi) < np.radians(12.0)
        basis.append(np.median(steps[close], axis=0))
    return np.array(basis)


def _count_steps(centers: FloatArray, basis: FloatArray) -> tuple[IntArray, IntArray]:
    """Return the centers that whole lattice steps connect, and their lattice indices (q, r)."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import breadth_first_order
    from scipy.spatial import cKDTree

    pitch = float(np.hypot(*basis.T).mean())
    pairs = cKDTree(centers).query_pairs(_NEIGHBOR_REACH * pitch, output_type="ndarray")
    steps = (centers[pairs[:, 1]] - centers[pairs[:, 0]]) @ np.linalg.inv(basis)
    whole = np.rint(steps)
    good = (np.abs(steps - whole) < _MOST_OFF).all(axis=1) & (whole != 0.0).any(axis=1)
    pairs, whole = pairs[good], whole[good].astype(np.int64)
    n = len(centers)
    graph = coo_array((np.ones(len(pairs)), (pairs[:, 0], pairs[:, 1])), shape=(n, n)).tocsr()
    middle = int(np.argmin(np.hypot(*(centers - np.median(centers, axis=0)).T)))
    order, before = breadth_first_order(graph, middle, directed=False)
    if len(order) < _LEAST_CONNECTED * n:
        raise EstimationError(
            f"only {len(order)} of {n} centers follow a lattice of pitch {pitch:.2f} px",
            stage="grid",
            evidence={"connected": len(order), "centers": n},
        )
    step_of = {(int(a), int(b)): step for (a, b), step in zip(pairs, whole, strict=True)}
    places = np.zeros((n, 2), np.int64)
    for lens in order[1:].tolist():
        last = int(before[lens])
        step = step_of[last, lens] if (last, lens) in step_of else -step_of[lens, last]
        places[lens] = places[last] + step
    rows = np.sort(order).astype(np.int64)
    indices = places[rows]
    if len(np.unique(indices, axis=0)) < len(indices):
        raise EstimationError("two centers have the same place in the lattice", stage="grid")
    return rows, indices


def _find_rule(types: IntArray, indices_qr: IntArray) -> tuple[int, tuple[int, int, int]]:
    """Return the number of types and the rule by which they follow from (q, r)."""
    n = int(types.max(initial=0)) + 1
    for i, j, k in itertools.product(range(n), repeat=3):
        if np.array_equal((i * indices_qr[:, 0] + j * indices_qr[:, 1] + k) % n, types):
            return n, (i, j, k)
    raise EstimationError(f"the {n} lens types do not follow the lattice", stage="grid")
