"""The micro-lens grid: positions of the micro images in the recorded raw image, and lens types.

A grid is either a lattice (hexagonal, square, or any other that two basis vectors span) with a
smooth bend and with deviations of single lenses, or an explicit list of centers. Both have the same
arrays and methods.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from lifcal.arrays import FloatArray, IntArray, check_array, check_indices, read_only
from lifcal.camera import _kernels
from lifcal.camera.apertures import OverlapDiscs
from lifcal.camera.bend import GridBend
from lifcal.errors import ConfigError, InputError

LAYOUTS = ("hexagonal-rows", "hexagonal-columns", "square")
_NEIGHBOR_REACH = 1.25
"""Largest distance of neighbors, in units of the pitch. It includes the six or four nearest lenses
and excludes the next ones (1.41 on a square grid)."""
DEVIATION_STEP_PX = 0.001
"""Deviations of single lenses are rounded to multiples of this. It is far below the noise of any
measured center, and files can hold the deviations exactly, as short whole numbers."""


class Groups(NamedTuple):
    """A list of indices for each of several items, all concatenated in one array.

    The list of item `i` is `indices[offsets[i]:offsets[i + 1]]`.
    """

    offsets: IntArray
    indices: IntArray

    def of(self, item: int) -> IntArray:
        """Return the indices of one item."""
        return self.indices[self.offsets[item] : self.offsets[item + 1]]

    def owners(self) -> IntArray:
        """Return, for each entry of `indices`, the item that it belongs to."""
        return np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))


@dataclass(frozen=True, eq=False)
class LensIndex:
    """Centers sorted into square cells, for fast searches for near centers.

    Parameters
    ----------
    centers_px : (n_lenses, 2) float64
        NaN centers are never found.
    cell_px : float
        Size of a cell; searches are fastest if it is about the pitch.
    """

    centers_px: FloatArray
    cell_px: float

    @cached_property
    def table(self) -> _kernels.LensTable:
        """The cells in the form that the kernels take."""
        cell = float(self.cell_px)
        finite = np.flatnonzero(np.isfinite(self.centers_px).all(axis=1))
        origin = self.centers_px[finite].min(axis=0) if finite.size else np.zeros(2)
        cells = np.floor((self.centers_px[finite] - origin) / cell).astype(np.int64)
        shape = cells.max(axis=0, initial=0) + 1
        flat = cells[:, 1] * shape[0] + cells[:, 0]
        counts = np.bincount(flat, minlength=int(shape.prod()))
        start = np.concatenate([[0], np.cumsum(counts)])
        items = finite[np.argsort(flat, kind="stable")]
        return _kernels.LensTable(self.centers_px, start, items, origin, shape, cell)

    def nearest(self, points_px: npt.ArrayLike) -> IntArray:
        """Return the index of the nearest center for each point, (n_points,); -1 for NaN."""
        points = check_array(points_px, "points_px", (None, 2))
        out = np.empty(len(points), np.int64)
        _kernels.nearest_centers(self.table, points, out)
        return out

    def within(self, points_px: npt.ArrayLike, reach_px: npt.ArrayLike) -> Groups:
        """Return all centers within `reach_px` (n_points,) of each point, in index order."""
        points = check_array(points_px, "points_px", (None, 2))
        reach = check_array(reach_px, "reach_px", (len(points),))
        counts = np.empty(len(points), np.int64)
        _kernels.count_within(self.table, points, reach, counts)
        offsets = np.concatenate([[0], np.cumsum(counts)])
        indices = np.empty(int(offsets[-1]), np.int64)
        _kernels.fill_within(self.table, points, reach, offsets, indices)
        return Groups(offsets, indices)


@dataclass(frozen=True, eq=False)
class Lattice:
    """A regular lattice: the center of lens (q, r) is `origin + q basis[0] + r basis[1]`.

    Parameters
    ----------
    origin_px : (2,) float64
        Center of lens (0, 0).
    basis_px : (2, 2) float64
        One basis vector a row, each (x, y).
    n_types : int
        Number of lens types, 1 to 3.
    type_rule : (int, int, int)
        The type of lens (q, r) is `(rule[0] q + rule[1] r + rule[2]) mod n_types`.
    """

    origin_px: FloatArray
    basis_px: FloatArray
    n_types: int = 1
    type_rule: tuple[int, int, int] = (0, 0, 0)

    def __post_init__(self) -> None:
        origin = check_array(self.origin_px, "origin_px", (2,), finite=True)
        basis = check_array(self.basis_px, "basis_px", (2, 2), finite=True)
        lengths = np.hypot(basis[:, 0], basis[:, 1])
        area = abs(float(np.linalg.det(basis)))
        if not (area > 1e-3 * float(lengths.prod()) and np.hypot(*_reduce(basis)[0]) >= 2.0):
            raise InputError(
                f"basis_px {basis.tolist()} spans no usable lattice: needs two vectors of at "
                "least 2 px that are not nearly parallel"
            )
        if self.n_types not in (1, 2, 3):
            raise InputError(f"n_types is {self.n_types}, needs 1, 2 or 3")
        rule = tuple(int(number) for number in self.type_rule)
        if len(rule) != 3:
            raise InputError(f"type_rule is {self.type_rule}, needs three integers")
        object.__setattr__(self, "origin_px", read_only(origin.copy()))
        object.__setattr__(self, "basis_px", read_only(basis.copy()))
        object.__setattr__(self, "type_rule", rule)

    @classmethod
    def regular(
        cls,
        layout: str,
        pitch_px: float,
        origin_px: npt.ArrayLike,
        *,
        rotation_rad: float = 0.0,
        aspect: float = 1.0,
        shear: float = 0.0,
        n_types: int = 1,
    ) -> Lattice:
        """Build a hexagonal or square lattice.

        Parameters
        ----------
        layout : str
            'hexagonal-rows' (touching lenses form rows), 'hexagonal-columns', or 'square'.
        pitch_px : float
            Distance between neighbors.
        origin_px : (2,) float64
        rotation_rad : float
            Rotation from the x axis towards the y axis (clockwise as the image is seen).
        aspect, shear : float
            Small departures from the ideal: y is multiplied by `aspect`, then x grows by
            `shear` times y, before the rotation.
        n_types : int
            Neighbors are of different types where that is possible.
        """
        if layout not in LAYOUTS:
            raise ConfigError.unknown("grid layout", layout, LAYOUTS)
        half = math.sqrt(3.0) / 2.0
        unit = {
            "hexagonal-rows": np.array([[1.0, 0.0], [0.5, half]]),
            "hexagonal-columns": np.array([[0.0, 1.0], [half, 0.5]]),
            "square": np.eye(2),
        }[layout]
        if not (math.isfinite(pitch_px) and pitch_px >= 2.0):
            raise InputError(f"pitch_px is {pitch_px}, needs at least 2 px")
        affine = np.array([[1.0, shear * aspect], [0.0, aspect]])
        cos, sin = math.cos(rotation_rad), math.sin(rotation_rad)
        turn = np.array([[cos, -sin], [sin, cos]])
        basis = pitch_px * unit @ (turn @ affine).T
        # With the rule (1, 2) modulo 3, none of a lens' six neighbors has its type; with (1, 1)
        # modulo 2 or 3, none of the four neighbors on a square lattice has.
        step = (1, 1) if layout == "square" else (1, 2)
        rule = (*step, 0) if n_types > 1 else (0, 0, 0)
        return cls(check_array(origin_px, "origin_px", (2,)), basis, n_types, rule)

    @property
    def pitch_px(self) -> float:
        """Distance between nearest neighbors."""
        a, b = _reduce(self.basis_px)
        return float(np.hypot(*a) + np.hypot(*b)) / 2.0

    @property
    def layout(self) -> str:
        """'hexagonal' or 'square', depending on the angle between the shortest basis vectors."""
        a, b = _reduce(self.basis_px)
        angle = math.degrees(
            math.acos(min(1.0, abs(float(a @ b)) / float(np.hypot(*a) * np.hypot(*b))))
        )
        return "hexagonal" if angle < 75.0 else "square"

    @property
    def rotation_rad(self) -> float:
        """Angle of the lattice from the x axis, in (-pi/6, pi/6] or (-pi/4, pi/4].

        A hexagonal grid in columns has pi/6.
        """
        a, _ = _reduce(self.basis_px)
        period = math.pi / 3.0 if self.layout == "hexagonal" else math.pi / 2.0
        angle = math.remainder(math.atan2(a[1], a[0]), period)
        return angle + period if angle <= -period / 2.0 + 1e-12 else angle

    def centers(self, indices_qr: npt.ArrayLike) -> FloatArray:
        """Return the centers of lenses (q, r), (n_lenses, 2), in px."""
        indices = check_array(indices_qr, "indices_qr", (None, 2))
        found: FloatArray = self.origin_px + indices @ self.basis_px
        return found

    def types(self, indices_qr: IntArray) -> IntArray:
        """Return the types of lenses (q, r), (n_lenses,)."""
        i, j, k = self.type_rule
        found: IntArray = (i * indices_qr[:, 0] + j * indices_qr[:, 1] + k) % self.n_types
        return found

    def inside(self, image_size: tuple[int, int], margin_px: float) -> IntArray:
        """Return (q, r) of all lenses whose center is in the image or up to `margin_px` outside.

        Sorted by r, then q.
        """
        width, height = image_size
        low = np.array([-0.5, -0.5]) - margin_px
        high = np.array([width - 0.5, height - 0.5]) + margin_px
        corners = np.array([[low[0], low[1]], [low[0], high[1]], [high[0], low[1]], high])
        coordinates = (corners - self.origin_px) @ np.linalg.inv(self.basis_px)
        q_min, r_min = np.floor(coordinates.min(axis=0)).astype(int)
        q_max, r_max = np.ceil(coordinates.max(axis=0)).astype(int)
        if (q_max - q_min + 1) * (r_max - r_min + 1) > 50_000_000:
            raise InputError("the lattice has more than fifty million lenses in the image")
        r, q = np.mgrid[r_min : r_max + 1, q_min : q_max + 1]
        indices = np.stack([q.ravel(), r.ravel()], axis=1).astype(np.int64)
        centers = self.origin_px + indices @ self.basis_px
        keep = ((centers >= low) & (centers <= high)).all(axis=1)
        found: IntArray = indices[keep]
        return found


@dataclass(frozen=True, eq=False)
class MicroLensGrid:
    """All micro images of a camera, in recorded raw pixels.

    Make one with `from_lattice` or `from_centers`.

    Parameters
    ----------
    image_size : (int, int)
        Width and height of the raw image.
    centers_raw_px : (n_lenses, 2) float64
        Micro-image centers as a white image shows them. With a lattice: its centers, plus the bend
        there, plus the deviation of each lens.
    lens_types : (n_lenses,) int64
    radius_px : float
        Radius of the part of a micro image that is used.
    n_types : int
    focal_planes : (n_types,) float64 or None
        The virtual depth `u` at which each type is in focus.
    lattice : Lattice or None
        None for an explicit list of centers.
    indices_qr : (n_lenses, 2) int64 or None
        Place of each lens in the lattice.
    discs : OverlapDiscs or None
        The two discs whose overlap is the fall-off of brightness inside the micro images.
    bend : GridBend or None
        The smooth deviation of the centers from the lattice; None if they follow the lattice.
    deviations_px : (n_lenses, 2) float64 or None
        The deviation of each single lens from lattice and bend; None if not known or not larger
        than the noise of measuring it.
    """

    image_size: tuple[int, int]
    centers_raw_px: FloatArray
    lens_types: IntArray
    radius_px: float
    n_types: int
    focal_planes: FloatArray | None = None
    lattice: Lattice | None = None
    indices_qr: IntArray | None = None
    discs: OverlapDiscs | None = None
    bend: GridBend | None = None
    deviations_px: FloatArray | None = None

    def __post_init__(self) -> None:
        size = check_image_size(self.image_size)
        centers = check_array(self.centers_raw_px, "centers_raw_px", (None, 2), finite=True)
        if len(centers) == 0:
            raise InputError("the grid has no micro image inside the image")
        types = check_indices(self.lens_types, "lens_types", self.n_types)
        if len(types) != len(centers):
            raise InputError(f"{len(types)} lens types for {len(centers)} centers")
        if not (math.isfinite(self.radius_px) and self.radius_px >= 1.0):
            raise InputError(f"radius_px is {self.radius_px}, needs at least 1 px")
        if self.focal_planes is not None:
            planes = check_array(self.focal_planes, "focal_planes", (self.n_types,), finite=True)
            object.__setattr__(self, "focal_planes", read_only(planes.copy()))
        if self.discs is not None and len(self.discs.micro_px) != self.n_types:
            raise InputError(
                f"the overlap discs are of {len(self.discs.micro_px)} lens types, the grid has "
                f"{self.n_types}"
            )
        if self.bend is not None and self.bend.image_size != size:
            raise InputError(f"the bend is for {self.bend.image_size} px, the grid for {size} px")
        if self.deviations_px is not None:
            deviations = check_array(
                self.deviations_px, "deviations_px", (len(centers), 2), finite=True
            )
            object.__setattr__(self, "deviations_px", read_only(deviations))
        if self.lattice is None and not (self.bend is None and self.deviations_px is None):
            raise InputError("an explicit list of centers has no bend and no deviations")
        object.__setattr__(self, "image_size", size)
        object.__setattr__(self, "centers_raw_px", read_only(centers))
        object.__setattr__(self, "lens_types", read_only(types))

    @classmethod
    def from_lattice(
        cls,
        lattice: Lattice,
        image_size: tuple[int, int],
        *,
        radius_px: float | None = None,
        focal_planes: Sequence[float] | FloatArray | None = None,
        discs: OverlapDiscs | None = None,
        bend: GridBend | None = None,
        deviations_px: npt.ArrayLike | None = None,
    ) -> MicroLensGrid:
        """Build the grid of all lenses whose micro image touches the image.

        Parameters
        ----------
        lattice : Lattice
        image_size : (int, int)
        radius_px : float or None
            Half the pitch if None.
        focal_planes, discs, bend
            As for `MicroLensGrid`.
        deviations_px : (n_lenses, 2) float64 or None
            Deviations in the order of `list_lenses`, rounded to multiples of 0.001 px.
        """
        size = check_image_size(image_size)
        radius = lattice.pitch_px / 2.0 if radius_px is None else float(radius_px)
        indices, centers = list_lenses(lattice, bend, size, radius)
        deviations: FloatArray | None = None
        if deviations_px is not None:
            given = check_array(deviations_px, "deviations_px", (len(indices), 2), finite=True)
            deviations = np.rint(given / DEVIATION_STEP_PX) * DEVIATION_STEP_PX
            centers = centers + deviations
        return cls(
            size,
            centers,
            lattice.types(indices),
            radius,
            lattice.n_types,
            None if focal_planes is None else np.asarray(focal_planes, np.float64),
            lattice,
            read_only(indices),
            discs,
            bend,
            deviations,
        )

    def on_lattice(
        self,
        lattice: Lattice,
        bend: GridBend | None,
        *,
        radius_px: float | None = None,
    ) -> MicroLensGrid:
        """Return this grid on another lattice and bend, with the deviations of its lenses.

        Lenses with the same place (q, r) in both lattices are taken to be the same. A lens that
        this grid does not have gets a deviation of zero.

        Parameters
        ----------
        lattice : Lattice
        bend : GridBend or None
            The bend of the new grid.
        radius_px : float or None
            Radius of the micro images; None keeps that of this grid.
        """
        if self.indices_qr is None:
            raise InputError("an explicit list of centers cannot be put on another lattice")
        radius = self.radius_px if radius_px is None else float(radius_px)
        deviations: FloatArray | None = None
        if self.deviations_px is not None:
            indices, _ = list_lenses(lattice, bend, self.image_size, radius)
            rows = find_rows(self.indices_qr, indices)
            deviations = np.where((rows >= 0)[:, None], self.deviations_px[rows], 0.0)
        return MicroLensGrid.from_lattice(
            lattice,
            self.image_size,
            radius_px=radius,
            focal_planes=self.focal_planes,
            discs=self.discs,
            bend=bend,
            deviations_px=deviations,
        )

    @classmethod
    def from_centers(
        cls,
        centers_raw_px: npt.ArrayLike,
        image_size: tuple[int, int],
        *,
        radius_px: float,
        lens_types: npt.ArrayLike | None = None,
        focal_planes: Sequence[float] | FloatArray | None = None,
    ) -> MicroLensGrid:
        """Build a grid from an explicit list of centers; all of type 0 unless types are given."""
        centers = check_array(centers_raw_px, "centers_raw_px", (None, 2), finite=True)
        types = np.zeros(len(centers), np.int64) if lens_types is None else np.asarray(lens_types)
        n_types = int(types.max(initial=0)) + 1
        if n_types > 3:
            raise InputError(f"lens_types has {n_types} types, needs at most 3")
        planes = None if focal_planes is None else np.asarray(focal_planes, np.float64)
        return cls(image_size, centers, types, float(radius_px), n_types, planes)

    def __len__(self) -> int:
        return len(self.centers_raw_px)

    def __repr__(self) -> str:
        width, height = self.image_size
        kind = self.lattice.layout if self.lattice is not None else "explicit"
        return (
            f"MicroLensGrid({kind}, {len(self)} lenses, {self.n_types} types, "
            f"pitch {self.pitch_px:.3f} px, radius {self.radius_px:.2f} px, {width} x {height} px)"
        )

    @cached_property
    def pitch_px(self) -> float:
        """Distance between neighbors: that of the lattice, or the median over an explicit list."""
        if self.lattice is not None:
            return self.lattice.pitch_px
        if len(self) < 2:
            return 2.0 * self.radius_px
        from scipy.spatial import cKDTree

        count = min(5, len(self))
        distances, _ = cKDTree(self.centers_raw_px).query(self.centers_raw_px, k=count)
        near = distances[:, 1:]
        # The nearest neighbor alone would give too small a pitch if the lenses deviate from a
        # lattice. Centers that are farther by a third are left out: they are not neighbors in the
        # lattice but stand behind a gap in the list.
        return float(np.median(near[near < 1.3 * np.median(near[:, 0])]))

    @property
    def deviations_rms_px(self) -> float:
        """Root mean square length of the lenses' own deviations; 0 if they are not known."""
        if self.deviations_px is None:
            return 0.0
        return float(np.sqrt(np.mean(np.sum(self.deviations_px**2, axis=1))))

    @cached_property
    def index(self) -> LensIndex:
        """The look-up table over `centers_raw_px`."""
        return LensIndex(self.centers_raw_px, max(self.pitch_px, 1.0))

    def nearest(self, points_raw_px: npt.ArrayLike) -> IntArray:
        """Return the lens whose micro-image center is nearest to each point; -1 for NaN."""
        return self.index.nearest(points_raw_px)

    def seeing(self, points_virt: npt.ArrayLike) -> Groups:
        """Return the lenses that see each virtual point.

        Lens k sees (x_u, y_u, u) where its image `C_k + ((x_u, y_u) - C_k) / u` lies within
        `radius_px` of C_k, that is, where C_k is within `|u| radius_px` of (x_u, y_u). Lens
        distortion is not considered: `PlenopticCamera.project_all` does.

        Parameters
        ----------
        points_virt : (n_points, 3) float64
            x_u, y_u in px and u.
        """
        points = check_array(points_virt, "points_virt", (None, 3))
        return self.index.within(points[:, :2], np.abs(points[:, 2]) * self.radius_px)

    def neighbors(self, lenses: npt.ArrayLike) -> Groups:
        """Return the lenses that touch each of `lenses` (six or four; fewer at the rim)."""
        indices = check_indices(lenses, "lenses", len(self))
        reach = np.full(len(indices), _NEIGHBOR_REACH * self.pitch_px)
        found = self.index.within(self.centers_raw_px[indices], reach)
        others = found.indices != indices[found.owners()]
        counts = np.bincount(found.owners()[others], minlength=len(indices))
        return Groups(np.concatenate([[0], np.cumsum(counts)]), found.indices[others])

    def pixels(self, lens: int) -> IntArray:
        """Return the pixels (x, y) of a micro image, (n_pixels, 2), row by row.

        These are the pixels of the image whose centers are within `radius_px` of the micro-image
        center.
        """
        (index,) = check_indices([lens], "lens", len(self))
        x, y = self.centers_raw_px[index]
        width, height = self.image_size
        columns = np.arange(max(0, math.ceil(x - self.radius_px)), width)
        columns = columns[columns <= x + self.radius_px]
        rows = np.arange(max(0, math.ceil(y - self.radius_px)), height)
        rows = rows[rows <= y + self.radius_px]
        grid_y, grid_x = np.meshgrid(rows, columns, indexing="ij")
        near = (grid_x - x) ** 2 + (grid_y - y) ** 2 <= self.radius_px**2
        return np.stack([grid_x[near], grid_y[near]], axis=1).astype(np.int64)

    def label_image(self) -> npt.NDArray[np.int32]:
        """Return, for each pixel, the lens whose micro image it is in, or -1; (height, width)."""
        width, height = self.image_size
        labels = np.empty((height, width), np.int32)
        _kernels.label_pixels(self.index.table, float(self.radius_px), labels)
        return labels


def list_lenses(
    lattice: Lattice, bend: GridBend | None, image_size: tuple[int, int], margin_px: float
) -> tuple[IntArray, FloatArray]:
    """Return (q, r) and the center of every lens in the image or up to `margin_px` outside.

    Centers are those of the lattice plus the bend. Sorted by r, then q.
    """
    if bend is None:
        indices = lattice.inside(image_size, margin_px)
        return indices, lattice.centers(indices)
    indices = lattice.inside(image_size, margin_px + bend.largest_px)
    places = lattice.centers(indices)
    centers = places + bend.at(places)
    high = np.array(image_size) - 0.5 + margin_px
    inside = ((centers >= -0.5 - margin_px) & (centers <= high)).all(axis=1)
    return indices[inside], centers[inside]


def find_rows(known_qr: IntArray, wanted_qr: IntArray) -> IntArray:
    """Return, for each wanted lens (q, r), its row in the known ones, or -1; (n_wanted,)."""
    low, high = known_qr.min(axis=0), known_qr.max(axis=0)
    table = np.full(high - low + 1, -1, np.int64)
    table[tuple((known_qr - low).T)] = np.arange(len(known_qr))
    inside = ((wanted_qr >= low) & (wanted_qr <= high)).all(axis=1)
    rows = np.full(len(wanted_qr), -1, np.int64)
    rows[inside] = table[tuple((wanted_qr[inside] - low).T)]
    return rows


def _reduce(basis_px: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the two shortest vectors that span a lattice, the shorter first (Gauss reduction)."""
    a, b = np.array(basis_px[0]), np.array(basis_px[1])
    while True:
        if a @ a > b @ b:
            a, b = b, a
        shorter = b - round(float(a @ b) / float(a @ a)) * a
        # On a hexagonal lattice, b and b - a have the same length. Stop unless the vector becomes
        # shorter by more than rounding errors; otherwise the loop would not end.
        if shorter @ shorter >= (1.0 - 1e-9) * (b @ b):
            return a, b
        b = shorter


def check_image_size(image_size: Sequence[int]) -> tuple[int, int]:
    """Return (width, height) as two positive integers, or raise InputError."""
    try:
        width, height = (int(number) for number in image_size)
    except (TypeError, ValueError):
        raise InputError(f"image_size is {image_size!r}, needs width and height") from None
    if width < 1 or height < 1:
        raise InputError(f"image_size is {width} x {height}, needs positive numbers")
    if width > 100_000 or height > 100_000:
        raise InputError(f"image_size is {width} x {height}, larger than any sensor")
    return width, height
