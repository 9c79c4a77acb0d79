"""Raytrix' `RayCalibData` XML: positions and types of the micro lenses.

These conventions were found with six files of cameras R5, R29, R32 and R42, and one raw of an R42:

- `offset` is the position of the central lens relative to the middle of the image, y up, in px:
  `cx = W/2 - 0.5 + x`, `cy = H/2 - 0.5 - y` with pixel centers at integers. (Some programs leave
  out the half pixel.) If a raw was cut out of a larger one, its middle is elsewhere, and the grid
  is shifted.
- `diameter` is the pitch in px; `rotation` turns a hexagonal grid in rows counter-clockwise as seen
  in the image. Files of cameras whose lenses form columns (R5) have rotation pi/2, and their
  lens_base_* are already rotated; only `rotation` is applied.
- `lens_base_x`, `lens_base_y`, `sub_grid_base` and the types' `offset` are in lens units, y up.
  `sub_grid_base` is a rectangle after which the types repeat, with one more lens of each type in
  its middle. Two labelings of the three types, mirror images of each other, agree with this, and
  the signs in the files differ from camera to camera. In the raw of the R42, the lens of type i is
  at minus its offset from the central lens: only then do the sharpness of the types, and its
  change with virtual depth, agree with their depth ranges. (This assumes that the raw is not
  mirrored, which cannot be seen in it.) Other cameras were not checked; `reverse_types` selects
  the other labeling.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from xml.etree.ElementTree import Element

import numpy as np

from lifcal.arrays import FloatArray, IntArray
from lifcal.camera._safe_xml import (
    optional_float,
    optional_pair,
    parse_float,
    parse_xml,
    require_float,
    require_node,
    shorten,
)
from lifcal.camera.grid import Lattice, MicroLensGrid, check_image_size
from lifcal.errors import DataError, InputError

_OFF_LATTICE = 0.2
"""Largest distance between an offset and the nearest lens, in lens units."""

_MAX_TYPES = 3


@dataclass(frozen=True)
class RaytrixLensType:
    """One type of micro lens.

    Parameters
    ----------
    offset_lens : (float, float)
        Offset of a lens of this type from the central lens, in lens units, y up.
    depth_range : (float, float) or None
        Smallest and largest virtual depth that this type is intended for.
    """

    offset_lens: tuple[float, float]
    depth_range: tuple[float, float] | None = None


@dataclass(frozen=True)
class RaytrixDistortion:
    """Distortion as it is in the file. Its units are not documented, so it is not applied.

    Parameters
    ----------
    function : str
        'constant' (none) or 'Brown'.
    parameters : tuple of float
    offset_px : (float, float) or None
    """

    function: str
    parameters: tuple[float, ...]
    offset_px: tuple[float, float] | None = None


@dataclass(frozen=True)
class RaytrixCalibration:
    """Content of a `RayCalibData` file.

    Parameters
    ----------
    offset_px : (float, float)
        Position of the central lens relative to the middle of the image, y up.
    diameter_px : float
        The pitch.
    rotation_rad : float
        Rotation of the grid, counter-clockwise as seen in the image.
    lens_border_px : float
        Width of the rim of a micro image that is not used.
    total_covering_plane : float or None
        `tcp`, the virtual depth from which every point is seen.
    lens_base_x, lens_base_y, sub_grid_base : (float, float) or None
        Vectors of the lens grid and of the pattern of types, in lens units, y up.
    lens_types : tuple of RaytrixLensType
        Lens types sorted by id; at least one.
    distortion : RaytrixDistortion or None
    k_matrix : (3, 3) tuple of float, or None
    is_real : bool or None
        `isReal`, which some files have. It is meant to say that the camera is Keplerian, but in one
        set of files the images contradict it. Therefore lifcal decides from the images.
    """

    offset_px: tuple[float, float]
    diameter_px: float
    rotation_rad: float
    lens_border_px: float = 0.0
    total_covering_plane: float | None = None
    lens_base_x: tuple[float, float] | None = None
    lens_base_y: tuple[float, float] | None = None
    sub_grid_base: tuple[float, float] | None = None
    lens_types: tuple[RaytrixLensType, ...] = (RaytrixLensType((0.0, 0.0)),)
    distortion: RaytrixDistortion | None = None
    k_matrix: tuple[tuple[float, ...], ...] | None = None
    is_real: bool | None = None

    def lattice(self, image_size: tuple[int, int], *, reverse_types: bool = False) -> Lattice:
        """Return the lattice on an image of this size; lens (0, 0) is the central one.

        Parameters
        ----------
        image_size : (int, int)
            Width and height of the raw.
        reverse_types : bool
            Whether a lens of type i is at plus its offset from the central lens, and not at minus.

        Raises
        ------
        InputError
            If the types do not form a regular pattern on the lattice.
        """
        width, height = check_image_size(image_size)
        unit = self._unit_basis()
        return Lattice(
            np.array(
                [
                    width / 2.0 - 0.5 + self.offset_px[0],
                    height / 2.0 - 0.5 - self.offset_px[1],
                ]
            ),
            self.diameter_px * unit * [1.0, -1.0],
            len(self.lens_types),
            self._type_rule(unit, 1.0 if reverse_types else -1.0),
        )

    def grid(self, image_size: tuple[int, int], *, reverse_types: bool = False) -> MicroLensGrid:
        """Return the micro images on an image of this size, without their border.

        The parameters are those of `lattice`. Focal planes are not set, because a depth range says
        where a type is useful and not where it is sharp.
        """
        return MicroLensGrid.from_lattice(
            self.lattice(image_size, reverse_types=reverse_types),
            image_size,
            radius_px=self.diameter_px / 2.0 - self.lens_border_px,
        )

    def _unit_basis(self) -> FloatArray:
        """Return the two basis vectors in lens units, y up, one per row."""
        angles = self.rotation_rad + np.array([0.0, math.pi / 3.0])
        return np.stack([np.cos(angles), np.sin(angles)], axis=1)

    def _type_rule(self, unit: FloatArray, sign: float) -> tuple[int, int, int]:
        """Return the type rule that agrees with the offset of every type.

        If several rules agree, the rule is chosen with which the types repeat by `sub_grid_base`,
        or, if that is not given, one with which neighbors have different types.
        """
        count = len(self.lens_types)
        if count == 1:
            return 0, 0, 0
        offsets = _indices(np.array([kind.offset_lens for kind in self.lens_types]) * sign, unit)
        if self.sub_grid_base is None:
            periods = np.zeros((0, 2), np.int64)
        else:
            x, y = self.sub_grid_base
            periods = _indices(np.array([[x, 0.0], [0.0, y], [x / 2.0, y / 2.0]]), unit)
        neighbors = np.array([[1, 0], [0, 1], [1, -1]])
        for rule in product(range(count), repeat=3):
            step = np.array(rule[:2])
            found = (offsets @ step + rule[2]) % count
            if not np.array_equal(found, np.arange(count)) or ((periods @ step) % count).any():
                continue
            if len(periods) or count == 2 or ((neighbors @ step) % count).all():
                return rule[0], rule[1], rule[2]
        raise InputError("the offsets of the lens types are on no regular pattern of the grid")


def read_raytrix_xml(path: str | Path) -> RaytrixCalibration:
    """Read a Raytrix calibration file.

    `offset`, `diameter` and `rotation` are needed, and the `offset` of each `lens_type` if there
    are several. Without any `lens_type` all lenses are of one type.

    Raises
    ------
    DataError
        If the file is not XML of this kind, a node is missing or holds no number, or the values are
        impossible.
    """
    path = Path(path)
    root = parse_xml(path)
    if root.tag != "RayCalibData":
        raise DataError(f"{path}: root node is {shorten(root.tag)}, needs RayCalibData")
    calibration = RaytrixCalibration(
        offset_px=(require_float(path, root, "offset/x"), require_float(path, root, "offset/y")),
        diameter_px=require_float(path, root, "diameter"),
        rotation_rad=require_float(path, root, "rotation"),
        lens_border_px=optional_float(path, root, "lens_border") or 0.0,
        total_covering_plane=optional_float(path, root, "tcp"),
        lens_base_x=optional_pair(path, root, "lens_base_x"),
        lens_base_y=optional_pair(path, root, "lens_base_y"),
        sub_grid_base=optional_pair(path, root, "sub_grid_base"),
        lens_types=_lens_types(path, root),
        distortion=_distortion(path, root),
        k_matrix=_k_matrix(path, root),
        is_real=None if (real := optional_float(path, root, "isReal")) is None else real != 0.0,
    )
    _check(path, calibration)
    return calibration


def _check(path: Path, found: RaytrixCalibration) -> None:
    """Raise DataError, with the file's name, for values that no camera has."""
    if not 2.0 <= found.diameter_px <= 1e4:
        raise DataError(f"{path}: node diameter is {found.diameter_px:g}, needs 2 to 10000 px")
    if max(map(abs, found.offset_px)) > 1e5:
        raise DataError(f"{path}: node offset is {found.offset_px}, larger than any sensor")
    if abs(found.rotation_rad) > 100.0:
        raise DataError(f"{path}: node rotation is {found.rotation_rad:g}, needs radians")
    if not 0.0 <= found.lens_border_px <= found.diameter_px / 2.0 - 1.0:
        raise DataError(
            f"{path}: node lens_border is {found.lens_border_px:g}, needs 0 to "
            f"{found.diameter_px / 2.0 - 1.0:g} px (half the diameter, less one)"
        )
    try:
        found.lattice((1000, 1000))
    except InputError as error:
        raise DataError(f"{path}: {error}") from None


def _lens_types(path: Path, root: Element) -> tuple[RaytrixLensType, ...]:
    nodes = root.findall("lens_type")
    if len(nodes) > _MAX_TYPES:
        raise DataError(f"{path}: {len(nodes)} nodes lens_type, needs at most {_MAX_TYPES}")
    found: dict[int, RaytrixLensType] = {}
    for position, node in enumerate(nodes):
        label = node.get("id", str(position)).strip()
        prefix = f"lens_type[{shorten(label)}]/"
        if label not in map(str, range(len(nodes))) or int(label) in found:
            raise DataError(
                f"{path}: node lens_type has id {shorten(repr(label))}, needs 0 to "
                f"{len(nodes) - 1}, each once"
            )
        offset = optional_pair(path, node, "offset", prefix=prefix)
        if offset is None:
            if len(nodes) > 1:
                raise DataError(f"{path}: node {prefix}offset is missing")
            offset = (0.0, 0.0)
        found[int(label)] = RaytrixLensType(
            offset, optional_pair(path, node, "depth_range", ("min", "max"), prefix)
        )
    return tuple(found[i] for i in sorted(found)) or (RaytrixLensType((0.0, 0.0)),)


def _distortion(path: Path, root: Element) -> RaytrixDistortion | None:
    node = root.find("distortion")
    if node is None:
        return None
    text = (node.findtext("parameter") or "").strip()
    return RaytrixDistortion(
        function=shorten(node.findtext("function") or ""),
        parameters=tuple(
            parse_float(path, part.strip(), "distortion/parameter")
            for part in text.split(";")
            if part.strip()
        ),
        offset_px=optional_pair(path, node, "offset", prefix="distortion/"),
    )


def _k_matrix(path: Path, root: Element) -> tuple[tuple[float, ...], ...] | None:
    node = root.find("k_matrix")
    if node is None:
        return None
    rows = []
    for i in (1, 2, 3):
        name = f"k_matrix/row_{i}"
        text = require_node(path, root, name).text or ""
        parts = [part.strip() for part in text.split(",")]
        if len(parts) != 3:
            raise DataError(f"{path}: node {name} has {len(parts)} entries, needs 3")
        rows.append(tuple(parse_float(path, part, name) for part in parts))
    return tuple(rows)


def _indices(offsets_lens: FloatArray, unit: FloatArray) -> IntArray:
    """Return the lattice indices (q, r) that offsets in lens units point to, (n, 2)."""
    if np.abs(offsets_lens).max() > 1000.0:
        raise InputError("offsets in lens units are larger than any grid")
    exact = offsets_lens @ np.linalg.inv(unit)
    found = np.rint(exact).astype(np.int64)
    distance = np.hypot(*((exact - found) @ unit).T)
    if distance.max() > _OFF_LATTICE:
        raise InputError(
            f"an offset in lens units is {distance.max():.2g} lenses away from any lens; do "
            "rotation and lens_type belong together?"
        )
    return found
