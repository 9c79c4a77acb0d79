"""Compiled look-ups of the virtual room: which micro lenses see a virtual point, and where.

In all loops of this room, `rho = 1 / u` is the inverse virtual depth: micro image C shows a virtual
point X at `C + (X - C) rho`. That pinhole position is moved by what the used part of the micro
aperture does to a blurred image (docs/theory/virtual-depth.md). A map has virtual pixels of `step`
raw pixels: pixel (row, col) is at the raw coordinates `(col + 0.5) step - 0.5`,
`(row + 0.5) step - 0.5`.

Two packs of arguments describe the camera: `table`, a `lifcal.camera._kernels.LensTable`, finds the
micro lenses around a place, and `lenses`, the `Lenses` below, holds their optical tables.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import njit

from lifcal.arrays import Float32Array, FloatArray, IntArray
from lifcal.camera._kernels import cell_range, row_items
from lifcal.threads import UNCOUNTED
from lifcal.virtual._kernels_sampling import FAST, ONE

BINS_PER_PX = 8
"""Number of table entries for each pixel of distance from a micro-image center. Several loops read
the nearest entry below instead of interpolating, so entries must be much closer than a pixel."""
FIRST_BEND, LAST_BEND, BENDS_PER_UNIT = -3.0, 1.0, 8
"""First, last and number per unit of the tabulated values of the relative defocus
`(rho_T - rho) / rho_T`. It is 1 at infinite u and -3 at a quarter of the focal plane's u; a defocus
beyond takes the last row."""
FOCUS_BLUR_PX = 0.65
"""Blur radius at which a micro image gets half the weight of a sharp one: blurred micro images lose
the short periods that tell most about depth, but still average noise."""
MOST_LENSES = 240
"""Size of the list of lenses that see one virtual point. Micro images are used up to less than half
a pitch from their centers, so on a hexagonal grid at most pi 8^2 / 0.866 = 232 lenses see a point
at u = 16, the end of the range that is searched. Lenses beyond the list are left out."""
NEAREST_PX = 1e-3
"""Least distance of a virtual point from a micro-image center. Moves are divided by the distance,
so closer points are treated as if they were this far away."""
MOST_RHO = 1000.0
"""Largest |rho| that the loops accept. In a camera |u| is about 1 or more, so |rho| is about 1 or
less. At this limit `NEAREST_PX` becomes one pixel of the raw image, which the tables still cover.
"""

PLACE_X, PLACE_Y, PLACE_FACTOR = 0, 1, 2
PLACE_COLUMNS = 3
"""Columns of the list that `find_places` fills: raw x and y, and the factor from X - C to them."""


class Lenses(NamedTuple):
    """Optical tables of the micro lenses, as `LensOptics.pack` builds them.

    Parameters
    ----------
    types : (n_lenses,) int64
        Lens type of each micro lens: the row of the tables.
    radius : float
        Radius in px of the part of a micro image that is used.
    weights : (n_types, n_bins) float32
        Inverse noise variance of a devignetted pixel, by distance from the center.
    moves : (n_types, n_bends, n_bins) float32
        How far outward of its pinhole position a point is seen, px, by relative defocus and
        distance.
    focal_rhos : (n_types,) float64
        1 / u in focus; NaN where unknown.
    blur_px : float
        Radius of the blur for each unit of defocus `rho_T - rho`.
    """

    types: IntArray
    radius: float
    weights: Float32Array
    moves: Float32Array
    focal_rhos: FloatArray
    blur_px: float


@njit(cache=True, fastmath=FAST, **UNCOUNTED)
def is_usable(rho):
    """Tell whether the tables cover a rho. They do not for zero, NaN and far-away numbers."""
    return 0.0 < abs(rho) <= MOST_RHO


@njit(cache=True, fastmath=FAST, **UNCOUNTED)
def focus_terms(lenses, lens_type, rho):
    """Return the weight of a lens type at a usable rho, and its row in the table of moves.

    A focal plane that is unknown (NaN), zero or infinite gives weight 1 and the row without moves.
    """
    focal = lenses.focal_rhos[lens_type]
    if not 0.0 < abs(focal) < math.inf:
        return 1.0, -FIRST_BEND * BENDS_PER_UNIT
    defocus = focal - rho
    blur = defocus * lenses.blur_px / FOCUS_BLUR_PX
    bend = min(max(defocus / focal, FIRST_BEND), LAST_BEND)
    return 1.0 / (1.0 + blur * blur), (bend - FIRST_BEND) * BENDS_PER_UNIT


@njit(cache=True, fastmath=FAST, **UNCOUNTED)
def find_move(moves, kind, row, column):
    """Interpolate the table of moves between two rows; the table has one row beyond `LAST_BEND`."""
    i = np.uint32(row)
    share = np.float32(row - i)
    return moves[kind, i, column] + share * (moves[kind, i + ONE, column] - moves[kind, i, column])


@njit(cache=True, fastmath=FAST, **UNCOUNTED)
def find_places(table, lenses, size, x, y, rho, terms, places, counts):
    """Find where the micro images show the virtual point (x, y) at `rho`; return how many do.

    A rho that is not usable is seen by no lens. `places` (MOST_LENSES, PLACE_COLUMNS) gets the
    raw position and the factor that leads there from the micro-image center, `counts`
    (MOST_LENSES,) the weight by focus and noise. `terms` (n_types, 2) is scratch space for
    `focus_terms` of the lens types.
    """
    centers, start, items = table.centers, table.start, table.items
    origin, shape, cell = table.origin, table.shape, table.cell
    types, radius, weights, moves = lenses.types, lenses.radius, lenses.weights, lenses.moves
    height, width = size
    if not is_usable(rho):
        return 0
    side = math.copysign(1.0, rho)
    reach = radius / abs(rho)
    reach2 = reach * reach
    bins = abs(rho) * BINS_PER_PX
    for kind in range(terms.shape[0]):
        terms[kind, 0], terms[kind, 1] = focus_terms(lenses, kind, rho)
    n = 0
    i0, i1 = cell_range(x, reach, origin[0], cell, shape[0])
    j0, j1 = cell_range(y, reach, origin[1], cell, shape[1])
    for j in range(j0, j1 + 1):
        first, last = row_items(start, j, i0, i1, shape[0])
        for item in range(first, last):
            lens = items[item]
            dx = x - centers[lens, 0]
            dy = y - centers[lens, 1]
            d2 = dx * dx + dy * dy
            if d2 > reach2 or n == MOST_LENSES:
                continue
            kind = types[lens]
            away = max(math.sqrt(d2), NEAREST_PX)
            b = int(away * bins)
            factor = rho + side * find_move(moves, kind, terms[kind, 1], b) / away
            px = centers[lens, 0] + dx * factor
            py = centers[lens, 1] + dy * factor
            if not (1.0 <= px < width - 2 and 1.0 <= py < height - 2):
                continue
            places[n, PLACE_X] = px
            places[n, PLACE_Y] = py
            places[n, PLACE_FACTOR] = factor
            counts[n] = terms[kind, 0] * weights[kind, b]
            n += 1
    return n
