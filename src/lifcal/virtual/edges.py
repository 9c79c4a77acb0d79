"""Depth edges: where a nearer surface ends in front of a farther one.

A window that contains the outline of a near object measures the depth of the outline, even where
the window's middle is on the background: near surfaces grow beyond their edges. Three facts help.
The planes of windows that lie wholly on one side are right, and can be extended to the edge. In the
raw image, lenses that look past the near surface see the background. And the near surface ends
where brightness changes. So, around each edge:

1. The planes of windows in eight directions give the nearer and the farther surface.
2. At each pixel, the micro images are compared at both depths. Lenses whose line of sight to the
   farther surface passes through the nearer one are left out.
3. Pixels near the edge take the side of their neighbors of the same brightness, and of what the
   comparison says (a random walk from the pixels whose side is certain).

A pixel whose side stays uncertain gets the variance of a choice between the two surfaces
(docs/theory/virtual-depth.md).
"""

from __future__ import annotations

import math

import numpy as np

from lifcal.arrays import BoolArray, Float32Array, FloatArray
from lifcal.camera.grid import MicroLensGrid
from lifcal.imaging.filters import widen_mask
from lifcal.virtual import _kernels_edges
from lifcal.virtual._kernels_edges import SIDE_COLUMNS, EdgeLimits, EdgeMaps
from lifcal.virtual._kernels_refine import LEAST_NOISE, PLANE_RHO, PLANE_VARIANCE, FineMaps
from lifcal.virtual.optics import LensOptics
from lifcal.virtual.workspace import NoWorkspace, Workspace

_LIMITS = EdgeLimits(join=0.3, least=0.008, sigmas=4.0)
"""When two surfaces are told apart: planes extended to a pixel must differ by 0.8 % of rho, and by
four sigmas. Those within 30 % of the difference from the nearest or farthest plane are averaged
(chosen by hand on a desk and a room, docs/theory/virtual-depth.md)."""
_BESIDE = 2.0
"""Distance of the windows whose planes are extended, relative to half their width: far enough that
hardly any of them reaches across the edge, near enough to be on the same surface."""
_SOUND = 0.007
"""Largest sigma, as a fraction of rho, of a plane that is extended."""
_LOOSE = 0.6
"""Distance from the edge of the first map, in lens pitches, within which near surfaces may have
grown: half the window of the sweep, and a margin."""
_STEPS, _STEP_HALF = 12, 2
"""Number and reach in pixels of the steps of the random walk. Together they reach farther than
`_LOOSE`."""
_LIKE_SIGMAS, _LIKE_LEAST = 3.0, 0.02
"""Difference of brightness at which a neighbor counts a quarter: some standard deviations of a
value, and 2 % of white, which smooth surfaces may differ by."""
_TRUST = 0.5
"""Weight of the comparison of lenses, in units of log(1 + variance / noise), against the sides of
neighbors."""
_SAME = 0.001
"""Relative difference of rho below which a pixel keeps the depth that it has."""
_EXTENDED = 3.0
"""Factor on the variance of a plane for extending it by more than half its window."""


def resolve_edges(
    image: Float32Array,
    grid: MicroLensGrid,
    optics: LensOptics,
    fused: FloatArray,
    settled: BoolArray,
    half: int,
    step: float,
    fine: float,
    noise: float,
    out: FineMaps,
    rounds: int,
    workspace: Workspace | None = None,
) -> BoolArray:
    """Decide at which side of depth edges the pixels of a map are.

    Parameters
    ----------
    image : (height, width) float32
        Devignetted raw image.
    grid : MicroLensGrid
    optics : LensOptics
    fused : (rows, cols, FUSED_COLUMNS) float64
        Planes of windows.
    settled : (rows, cols) bool
        Which of them can be relied on.
    half : int
        Half the width of the windows.
    step : float
        Width of the pixels of `fused`, in px of the raw image.
    fine : float
        Width of the output's pixels, in px of the raw image.
    noise : float
        Standard deviation of a value between pixels.
    out : FineMaps
        Depth at the output's pixels; changed in place.
    rounds : int
        Number of times that the lenses are compared. The second time, better edges tell which
        lenses are hidden.
    workspace : Workspace or None
        Keeps the large arrays for the next frame.

    Returns
    -------
    (fine rows, fine cols) bool
        Pixels that got the depth of one of the two surfaces.
    """
    space = workspace or NoWorkspace()
    shape = out.rho.shape
    sides = space.take("sides", (*settled.shape, SIDE_COLUMNS), np.float64)
    size = np.abs(fused[..., PLANE_RHO])
    sound = settled & (np.sqrt(fused[..., PLANE_VARIANCE]) < _SOUND * size)
    reach = max(round(_BESIDE * half), 1)
    _kernels_edges.find_sides(fused, sound, reach, _LIMITS, sides)
    maps = EdgeMaps(*(space.take(f"edge {name}", shape, np.float32) for name in EdgeMaps._fields))
    _kernels_edges.evaluate_sides(sides, step / fine, out.rho, maps)
    edge: BoolArray = np.isfinite(maps.near)
    if not edge.any():
        return edge
    near, far = edge & (maps.side > 0.0), edge & (maps.side < 0.0)
    grown = max(int(_LOOSE * grid.pitch_px / fine + 0.5), 1)
    loose = (near & widen_mask(far, 2 * grown + 1)) | (far & widen_mask(near, 3))
    for border in (np.s_[:_STEP_HALF], np.s_[-_STEP_HALF:]):
        loose[border] = loose[:, border] = False
    places, wanted = np.argwhere(loose), widen_mask(loose, 2 * _STEP_HALF + 1)
    weights = np.empty((len(places), (2 * _STEP_HALF + 1) ** 2), np.float32)
    pull = np.empty(len(places), np.float32)
    variance = max(noise * noise, LEAST_NOISE)
    like = _LIKE_SIGMAS * math.sqrt(variance) + _LIKE_LEAST
    table, lenses = grid.index.table, optics.pack()
    other = maps.side.copy()
    for _ in range(rounds):
        _kernels_edges.weigh_sides(image, table, lenses, fine, variance, wanted, maps)
        _kernels_edges.compare_neighbors(places, maps, _STEP_HALF, like, weights, pull)
        for _ in range(_STEPS):
            _kernels_edges.spread_sides(places, _STEP_HALF, weights, pull, _TRUST, maps.side, other)
            maps, other = maps._replace(side=other), maps.side
    _take_sides(maps, edge, out)
    return edge


def _take_sides(maps: EdgeMaps, edge: BoolArray, out: FineMaps) -> None:
    """Give the pixels at edges the depth of their side, and the variance of that choice."""
    side = maps.side[edge]
    on_near = side > 0.0
    near, far = maps.near[edge], maps.far[edge]
    chosen = np.where(on_near, near, far)
    extended = _EXTENDED * np.where(on_near, maps.near_variance[edge], maps.far_variance[edge])
    rho, variance = out.rho[edge], out.variance[edge]
    change = ~(np.abs(rho / chosen - 1.0) < _SAME)
    out.rho[edge] = np.where(change, chosen, rho)
    # Sides are means over neighbors: half way between sure and undecided one in eight is wrong.
    wrong = 0.5 * (1.0 - np.abs(side)) ** 2
    doubt = wrong * (1.0 - wrong) * (near - far) ** 2
    out.variance[edge] = np.where(change, extended, variance) + doubt
    out.hidden[edge] = ~on_near
