"""`TSPCCalibData` XML: the micro-image centers of a camera with one type of micro lens.

There are two kinds of files. One gives the centers at the four corners of the array (`ltop`,
`rtop`, `lbot`, `rbot`), the other `rows`, `cols` and the centers of all micro images, row by row.
Centers are in px from the middle of the first pixel, y down. `diameter` is the pitch, but rounded
(70 in files whose centers are 70.4 px apart), so it is only used to count the lenses between the
corners. `rotation` is as in Raytrix files: 0 for a hexagonal array in rows, pi/2 for one in
columns.

On a recording of such a camera, the centers of these files agree with the micro images to about a
pixel (docs/reference/files.md); fit the grid to the images, with the file as its start.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from xml.etree.ElementTree import Element

import numpy as np

from lifcal.arrays import FloatArray, IntArray, read_only
from lifcal.camera._safe_xml import parse_float, parse_xml, require_float, require_node, shorten
from lifcal.camera.grid import Lattice, MicroLensGrid
from lifcal.errors import DataError, InputError

_CORNERS = ("ltop", "rtop", "lbot", "rbot")

_MOST_LENSES = 1_000_000
"""Largest number of micro images that is accepted, more than any sensor has."""

_MOST_SKEW = 0.03
"""Largest deviation from a hexagonal lattice: the relative difference of the lattice's sides, plus
the difference of the cosine of their angle from 1/2. Real arrays deviate by a few thousandths; if a
wrong diameter makes the number of lenses wrong, the deviation is larger.
"""
_MOST_OFF = 0.1
"""Largest distance, in pitches, of a center from the lattice that is fitted to all of them. The
centers of real files are within 0.02; if lenses are miscounted by one, centers are 0.2 or more
away."""

_MOST_TURN_RAD = 0.1
"""Largest rotation from 0 or pi/2; real arrays are mounted to a few milliradians."""


@dataclass(frozen=True, eq=False)
class TspcCalibration:
    """Content of a `TSPCCalibData` file.

    Parameters
    ----------
    diameter_px : float
        The pitch, rounded.
    in_columns : bool
        Whether touching lenses form columns; else rows.
    centers_px : (n_centers, 2) float64
        Centers at the four corners, or of all micro images.
    places : (n_centers, 2) int64
        Column and row of each center. Every second column (or row, if the array is in rows) is
        shifted by half a pitch.
    """

    diameter_px: float
    in_columns: bool
    centers_px: FloatArray
    places: IntArray

    @property
    def has_all(self) -> bool:
        """Whether the file lists all centers, not just those of the corners."""
        return len(self.centers_px) > len(_CORNERS)

    @cached_property
    def lattice(self) -> Lattice:
        """The lattice nearest to the centers, by least squares.

        Raises
        ------
        InputError
            If the centers are on no hexagonal lattice.
        """
        # Use the coordinates along and across the lines of touching lenses, so that an array in
        # rows is treated as a transposed one in columns.
        order = [0, 1] if self.in_columns else [1, 0]
        centers, (across, along) = self.centers_px[:, order], self.places[:, order].T
        fits = []
        for side in (-0.5, 0.5):  # odd columns are shifted towards the first row, or away from it
            index = along + side * (across % 2) - 0.5 * across
            rows = np.column_stack([np.ones(len(index)), across, index])
            found, *_ = np.linalg.lstsq(rows, centers, rcond=None)
            off = np.hypot(*(rows @ found - centers).T)
            # Four corners fit both choices exactly, but only one of them gives a lattice with equal
            # sides at 60 degrees.
            sides = np.hypot(*found[1:].T)
            skew = abs(sides[0] / sides[1] - 1.0) + abs(
                abs(found[1] @ found[2]) / sides.prod() - 0.5
            )
            fits.append((float(skew), float(off.max()), found))
        skew, worst, found = min(fits, key=lambda fit: fit[0] + fit[1] / self.diameter_px)
        origin, *basis = found[:, order]
        lattice = Lattice(origin, np.array(basis))
        pitch = lattice.pitch_px
        if not (skew <= _MOST_SKEW and worst <= _MOST_OFF * pitch):
            raise InputError(
                f"the centers are up to {worst:.3g} px off a hexagonal lattice of {pitch:.4g} px: "
                "do diameter, rotation and centers belong together?"
            )
        if not abs(pitch / self.diameter_px - 1.0) < 0.05:
            raise InputError(
                f"the centers are {pitch:.4g} px apart, but diameter is {self.diameter_px:g} px"
            )
        return lattice

    @property
    def rms_off_px(self) -> float:
        """Root mean square distance of the file's centers from the lattice."""
        lattice = self.lattice
        exact = (self.centers_px - lattice.origin_px) @ np.linalg.inv(lattice.basis_px)
        off = (exact - np.rint(exact)) @ lattice.basis_px
        return float(np.sqrt(np.mean(np.sum(off**2, axis=1))))

    def grid(self, image_size: tuple[int, int]) -> MicroLensGrid:
        """Return the micro images of the lattice on an image of this size."""
        return MicroLensGrid.from_lattice(self.lattice, image_size)


def read_tspc_xml(path: str | Path) -> TspcCalibration:
    """Read a `TSPCCalibData` file.

    Raises
    ------
    DataError
        If the file is not XML of this kind, a node is missing or holds no number, the number of
        centers is not rows times columns, or the centers are on no hexagonal lattice.
    """
    path = Path(path)
    root = parse_xml(path)
    if root.tag != "TSPCCalibData":
        raise DataError(f"{path}: root node is {shorten(root.tag)}, needs TSPCCalibData")
    diameter = require_float(path, root, "diameter")
    if not 2.0 <= diameter <= 1e4:
        raise DataError(f"{path}: node diameter is {diameter:g}, needs 2 to 10000 px")
    in_columns = _read_layout(path, root)
    node = require_node(path, root, "centers")
    if node.find("coords") is not None:
        centers, places = _read_all(path, node)
    else:
        centers, places = _read_corners(path, node, diameter, in_columns)
    if not np.abs(centers).max() <= 1e5:
        raise DataError(f"{path}: a center is at {np.abs(centers).max():g} px: outside any sensor")
    found = TspcCalibration(diameter, in_columns, read_only(centers), read_only(places))
    try:
        _ = found.lattice
    except InputError as error:
        raise DataError(f"{path}: {error}") from None
    return found


def _read_layout(path: Path, root: Element) -> bool:
    """Return whether touching lenses form columns."""
    rotation = require_float(path, root, "rotation")
    # A hexagonal array is the same after a rotation by 60 degrees, so 90 and 30 degrees both stand
    # for columns.
    turn = math.remainder(rotation, math.pi / 3.0) if abs(rotation) < 100.0 else math.nan
    if abs(turn) <= _MOST_TURN_RAD:
        return False
    if abs(abs(turn) - math.pi / 6.0) <= _MOST_TURN_RAD:
        return True
    raise DataError(
        f"{path}: node rotation is {rotation:g}, needs about 0 (rows) or pi/2 (columns)"
    )


def _read_corners(
    path: Path, node: Element, diameter: float, in_columns: bool
) -> tuple[FloatArray, IntArray]:
    """Return the four centers, and their columns and rows, which are computed from the pitch."""
    prefix = "centers/"
    centers = np.array(
        [
            [require_float(path, node, f"{name}/{axis}", prefix) for axis in "xy"]
            for name in _CORNERS
        ]
    )
    spacing = diameter * np.array([math.sqrt(0.75), 1.0] if in_columns else [1.0, math.sqrt(0.75)])
    with np.errstate(over="ignore"):
        counts = (centers - centers[0]) / spacing
    if not np.abs(counts).max() < _MOST_LENSES:
        raise DataError(f"{path}: node centers: the corners are farther apart than any sensor")
    places = np.rint(counts).astype(np.int64)
    # Odd columns are shifted by half a lens. A shift to either side gives the same lattice.
    across, along = (0, 1) if in_columns else (1, 0)
    places[:, along] = np.rint(counts[:, along] - 0.5 * (places[:, across] % 2))
    _, right_top, left_bottom, right_bottom = places
    widths = right_top[0], right_bottom[0] - left_bottom[0]
    heights = left_bottom[1], right_bottom[1] - right_top[1]
    if min(*widths, *heights) < 2:
        raise DataError(
            f"{path}: node centers: ltop, rtop, lbot and rbot are not the corners of an array of "
            "three by three lenses or more"
        )
    return centers, places


def _read_all(path: Path, node: Element) -> tuple[FloatArray, IntArray]:
    """Return all centers, and their columns and rows."""
    rows, columns = (_read_count(path, node, name) for name in ("rows", "cols"))
    if rows * columns > _MOST_LENSES:
        raise DataError(f"{path}: node centers has {rows} x {columns} lenses: more than any sensor")
    words = (require_node(path, node, "coords", "centers/").text or "").split()
    if len(words) != 2 * rows * columns:
        raise DataError(
            f"{path}: node centers/coords has {len(words)} numbers, needs {2 * rows * columns} "
            f"(x and y of {rows} x {columns} lenses)"
        )
    numbers = [parse_float(path, word, "centers/coords") for word in words]
    row, column = np.divmod(np.arange(rows * columns), columns)
    return np.array(numbers).reshape(-1, 2), np.column_stack([column, row])


def _read_count(path: Path, node: Element, name: str) -> int:
    value = require_float(path, node, name, "centers/")
    if not (3 <= value <= _MOST_LENSES and value == math.floor(value)):
        raise DataError(f"{path}: node centers/{name} is {value:g}, needs a whole number from 3 on")
    return int(value)
