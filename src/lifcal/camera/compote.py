"""`intrinsics.js`, the calibration file of COMPOTE and the other tools based on libpleno.

The file is JSON; its numbers may be written as strings. The conventions below were checked on the
published calibration of a Raytrix R12. (The 26,600 centers in its white image are at a median
distance of 0.22 px from those of the file, with a mean offset of (-0.03, -0.03) px, so both place
pixel centers at integers.)

- Image coordinates (u, v) have pixel centers at integers, u to the right, v down. The sensor's own
  axes are rotated by 180 degrees: `pp = (width - 1, height - 1) + translation / scale`.
- `mia.mesh` is the grid of micro images. Lens (k, l), column and row, is at `R n + t` with its pose
  `R`, `t` in px. Geometry 1, hexagonal in rows, shifts the even rows:
  `n = (pitch_x (k + 1/2 [l even]), pitch_y l sin 60)`. Geometry 2, hexagonal in columns:
  `n = (pitch_x k sin 60, pitch_y (l + 1/2 [k even]))`. Geometry 0: `n = (pitch_x k, pitch_y l)`.
- There are I lens types. Lens (k, l) has type `((l mod (I - 1)) + k) mod I` in meshes in rows, and
  the same with k and l exchanged in others. (The blur radii of the R12's 18,390 corners follow this
  rule without exception.) Type i has the focal length f_i = `mla.focal_lengths[i]` and is in focus
  at the virtual depth `v = 1 / (1 - d / f_i)`.
- `D` is b_L0, `d` is B, `main_lens.f` is f_L, all in mm. If the array is tilted, `D` and `d` are
  the distances at its first lens, in a corner, and `camera` converts them to the principal point.
- `Rxyz` are the angles of the array about the axes of the main lens (x, y of the sensor, z towards
  the scene): its axes are the columns of `Rx Ry Rz`. `mla.mesh.pose.rotation` is the transpose of
  that product, and lens n is at `pose.rotation^T n + pose.translation`. Two observations confirm
  this. The lenses of the R12, placed in this way and projected from the middle of the main lens,
  are at the 26,600 white-image centers with a mean offset of (0.01, 0.00) px, 0.25 px rms; with the
  rotation not transposed, the offset is (0.18, -0.05) px and the rms 0.49 px. And a tilt fitted to
  these centers alone has the signs and about the size of the published one (0.020 and 0.026
  against 0.016 and 0.022 degrees).
- `distortions` acts on the image that the main lens makes, in mm, before the micro lenses. lifcal's
  distortion acts on raw coordinates; its coefficients cannot represent the other one exactly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from lifcal.arrays import FloatArray, IntArray
from lifcal.camera._safe_xml import shorten
from lifcal.camera.grid import Lattice, MicroLensGrid, check_image_size
from lifcal.camera.model import PlenopticCamera
from lifcal.camera.pinhole_array import PhysicalParameters
from lifcal.camera.tilt import ArrayTilt
from lifcal.errors import DataError, InputError
from lifcal.files import read_json

ORTHOGONAL, HEXAGONAL_ROWS, HEXAGONAL_COLUMNS = 0, 1, 2
_SIN60 = math.sqrt(3.0) / 2.0
_TYPE_RULES = {
    (HEXAGONAL_ROWS, 3): (1, 2, 0),
    (HEXAGONAL_COLUMNS, 3): (2, 1, 0),
    (ORTHOGONAL, 2): (0, 1, 0),
}
"""The rule `Lattice.type_rule` that is equal to libpleno's, for each geometry and number of types
for which there is one."""


@dataclass(frozen=True)
class CompoteMesh:
    """The grid of micro images.

    Parameters
    ----------
    geometry : int
        0 square, 1 hexagonal in rows, 2 hexagonal in columns.
    pitch_px : (float, float)
    rotation : ((float, float), (float, float))
    translation_px : (float, float)
    width, height : int
        Number of columns and rows.
    """

    geometry: int
    pitch_px: tuple[float, float]
    rotation: tuple[tuple[float, float], tuple[float, float]]
    translation_px: tuple[float, float]
    width: int
    height: int

    def lattice(self, n_types: int = 1) -> Lattice | None:
        """Return the mesh as a lattice whose lens (0, 0) is column 0, row 0.

        The result is None if no rule in lattice indices gives the lens types: for two types on a
        hexagonal mesh, and for three types on a square one.
        """
        rule = (0, 0, 0) if n_types == 1 else _TYPE_RULES.get((self.geometry, n_types))
        if rule is None:
            return None
        x, y = self.pitch_px
        origin, basis = {
            ORTHOGONAL: ([0.0, 0.0], [[x, 0.0], [0.0, y]]),
            HEXAGONAL_ROWS: ([0.5 * x, 0.0], [[x, 0.0], [0.5 * x, _SIN60 * y]]),
            HEXAGONAL_COLUMNS: ([0.0, 0.5 * y], [[_SIN60 * x, 0.5 * y], [0.0, y]]),
        }[self.geometry]
        turn = np.array(self.rotation)
        return Lattice(
            np.array(self.translation_px) + turn @ np.array(origin),
            np.array(basis) @ turn.T,
            n_types,
            rule,
        )

    def centers(self, columns: IntArray, rows: IntArray) -> FloatArray:
        """Return the centers of lenses given by column and row, (n_lenses, 2), in px."""
        shift_x = 0.5 * (rows % 2 == 0) if self.geometry == HEXAGONAL_ROWS else 0.0
        shift_y = 0.5 * (columns % 2 == 0) if self.geometry == HEXAGONAL_COLUMNS else 0.0
        scale_x = _SIN60 if self.geometry == HEXAGONAL_COLUMNS else 1.0
        scale_y = _SIN60 if self.geometry == HEXAGONAL_ROWS else 1.0
        nodes = np.stack(
            [
                self.pitch_px[0] * scale_x * (columns + shift_x),
                self.pitch_px[1] * scale_y * (rows + shift_y),
            ],
            axis=1,
        )
        found: FloatArray = nodes @ np.array(self.rotation).T + np.array(self.translation_px)
        return found

    def types(self, columns: IntArray, rows: IntArray, n_types: int) -> IntArray:
        """Return the types of lenses given by column and row, (n_lenses,)."""
        if n_types < 2:
            return np.zeros_like(columns)
        along, across = (columns, rows) if self.geometry == HEXAGONAL_ROWS else (rows, columns)
        found: IntArray = (across % (n_types - 1) + along) % n_types
        return found

    def grid(self, image_size: tuple[int, int], n_types: int = 1) -> MicroLensGrid:
        """Return the micro images that touch the image, of radius half the mean pitch."""
        lattice = self.lattice(n_types)
        radius = (self.pitch_px[0] + self.pitch_px[1]) / 4.0
        if lattice is not None:
            return MicroLensGrid.from_lattice(lattice, image_size, radius_px=radius)
        rows, columns = np.divmod(np.arange(self.width * self.height), self.width)
        centers = self.centers(columns, rows)
        limits = np.array(image_size) - 0.5 + radius
        inside = ((centers >= -0.5 - radius) & (centers <= limits)).all(axis=1)
        return MicroLensGrid.from_centers(
            centers[inside],
            image_size,
            radius_px=radius,
            lens_types=self.types(columns, rows, n_types)[inside],
        )


@dataclass(frozen=True)
class CompoteIntrinsics:
    """Content of `intrinsics.js`.

    Parameters
    ----------
    parameters : PhysicalParameters
    pixel_size_mm : float
    image_size : (int, int)
    mesh : CompoteMesh
    n_types : int
    micro_focal_lengths_mm : tuple of float
        One focal length for each type; empty if the micro lenses were modeled as pinholes.
    radial, tangential : tuple of float
        Distortion of the main lens' image, in mm^-2, mm^-4, mm^-6 and mm^-1.
    array_tilt_deg : (float, float)
        Tilt of the micro-lens array against the sensor, as in `ArrayTilt.from_angles`: along the
        raw image's x and y, positive where lenses with a larger coordinate are nearer to the
        sensor. Zeros where the file has no pose of the array.
    array_rotation_deg : float
        Rotation of the array in its own plane, from the x axis towards the y axis.
    array_origin_mm : (float, float)
        Position of the array's first lens, whose distances are D and d, relative to the principal
        point, along the raw image's x and y.
    aperture : float or None
        f-number of the main lens.
    focus_distance_mm : float or None
    """

    parameters: PhysicalParameters
    pixel_size_mm: float
    image_size: tuple[int, int]
    mesh: CompoteMesh
    n_types: int
    micro_focal_lengths_mm: tuple[float, ...]
    radial: tuple[float, ...]
    tangential: tuple[float, ...]
    array_tilt_deg: tuple[float, float]
    array_rotation_deg: float
    array_origin_mm: tuple[float, float]
    aperture: float | None
    focus_distance_mm: float | None

    @property
    def notes(self) -> tuple[str, ...]:
        """Messages to the user about content of the file that `camera` does not use."""
        notes = []
        if any(self.radial) or any(self.tangential):
            notes.append(
                "the main lens' distortion was not converted: it acts on the main lens' image in "
                f"mm (radial {_list(self.radial)}, tangential {_list(self.tangential)}), lifcal's "
                "on raw pixels. The camera is without distortion; calibrate to get one"
            )
        if self.micro_focal_lengths_mm and self.focal_planes() is None:
            notes.append(
                "a micro lens in focus at infinity has no focal plane: no focal planes were kept"
            )
        return tuple(notes)

    def focal_planes(self) -> FloatArray | None:
        """Return the virtual depth u at which each type is in focus, or None if not all have one.

        The paper's virtual depth of the focal plane is `v = 1 / (1 - B / f)`, and
        `1/u = 1 - k + k/v` with `k = b_L0 / (b_L0 + B)`.
        """
        p = self.parameters
        k = p.lens_to_array_mm / (p.lens_to_array_mm + p.array_to_sensor_mm)
        inverse = [1.0 - k * p.array_to_sensor_mm / f for f in self.micro_focal_lengths_mm]
        if not inverse or min(map(abs, inverse)) < 1e-9:
            return None
        return 1.0 / np.array(inverse)

    def tilt(self) -> ArrayTilt | None:
        """Return the tilt of the array, or None if it has none."""
        if not any(self.array_tilt_deg):
            return None
        return ArrayTilt.from_angles(
            self.array_tilt_deg, self.central_parameters().array_to_sensor_mm, self.pixel_size_mm
        )

    def central_parameters(self) -> PhysicalParameters:
        """Return the parameters with the array's distances at the principal point.

        These are b_L0 and B of a tilted array in lifcal's model.
        """
        rise = sum(
            place * math.tan(math.radians(angle))
            for place, angle in zip(self.array_origin_mm, self.array_tilt_deg, strict=True)
        )
        return replace(
            self.parameters,
            lens_to_array_mm=self.parameters.lens_to_array_mm - rise,
            array_to_sensor_mm=self.parameters.array_to_sensor_mm + rise,
        )

    def camera(self) -> PlenopticCamera:
        """Return the camera, without what `notes` lists."""
        grid = self.mesh.grid(self.image_size, self.n_types)
        planes = self.focal_planes()
        if planes is not None:
            grid = replace(grid, focal_planes=planes)
        return PlenopticCamera(
            self.central_parameters(),
            self.pixel_size_mm,
            grid,
            scale_source="COMPOTE's target",
            tilt=self.tilt(),
        )


def read_compote(path: str | Path) -> CompoteIntrinsics:
    """Read the `intrinsics.js` of COMPOTE.

    Files of older versions, without `D`, `d` and `pp`, give them by the poses of array and sensor.

    Raises
    ------
    DataError
        If the file is not JSON, a key is missing or holds no number, or the values are impossible.
    """
    path = Path(path)
    file = _File(path, read_json(path))
    pixel_size = file.number("sensor", "scale")
    if not pixel_size > 0.0:
        raise DataError(f"{path}: sensor.scale is {pixel_size} mm, needs a positive number")
    try:
        size = check_image_size((file.whole("sensor", "width"), file.whole("sensor", "height")))
        focal_lengths = tuple(file.row("mla", "focal_lengths")) if file.has("mla") else ()
        n_types = file.whole("I") if file.has("I") else len(focal_lengths)
        _check_types(path, n_types, focal_lengths)
        distance, gap, center = _geometry(file, size, pixel_size)
        found = CompoteIntrinsics(
            PhysicalParameters(file.number("main_lens", "f"), distance, gap, *center),
            pixel_size,
            size,
            _mesh(file),
            max(n_types, 1),
            focal_lengths,
            _coefficients(file, "radial", 3),
            _coefficients(file, "tangential", 2),
            *_array_pose(file),
            file.number("main_lens", "aperture") if file.has("main_lens", "aperture") else None,
            file.number("dist_focus") if file.has("dist_focus") else None,
        )
        found.mesh.lattice()  # refuses a pitch that makes no lattice
        found.tilt()  # refuses a tilt that no camera has
    except InputError as error:
        raise DataError(f"{path}: {error}") from None
    return found


@dataclass(frozen=True)
class _File:
    """The content of the JSON file, read by keys; a number may be written as a string."""

    path: Path
    root: dict[str, Any]

    def get(self, *keys: str) -> Any:
        value: Any = self.root
        for i, key in enumerate(keys):
            if not isinstance(value, dict) or key not in value:
                raise DataError(f"{self.path}: {'.'.join(keys[: i + 1])} is missing")
            value = value[key]
        return value

    def has(self, *keys: str) -> bool:
        value: Any = self.root
        for key in keys:
            if not isinstance(value, dict) or key not in value:
                return False
            value = value[key]
        return True

    def number(self, *keys: str) -> float:
        return self._number(self.get(*keys), ".".join(keys))

    def whole(self, *keys: str) -> int:
        value = self.number(*keys)
        if value != math.floor(value) or not 0 <= value < 1e6:
            raise DataError(f"{self.path}: {'.'.join(keys)} is {value:g}, needs a whole number")
        return int(value)

    def row(self, *keys: str, length: int | None = None) -> list[float]:
        """Return a vector, which libpleno writes as a matrix of one row."""
        value, name = self.get(*keys), ".".join(keys)
        if isinstance(value, list) and len(value) == 1 and isinstance(value[0], list):
            value = value[0]
        return self._numbers(value, name, length)

    def matrix(self, size: int, *keys: str) -> list[list[float]]:
        value, name = self.get(*keys), ".".join(keys)
        if not isinstance(value, list) or len(value) != size:
            raise DataError(f"{self.path}: {name} is {shorten(repr(value))}, needs {size} rows")
        return [self._numbers(row, f"{name}[{i}]", size) for i, row in enumerate(value)]

    def _numbers(self, value: Any, name: str, length: int | None) -> list[float]:
        if not isinstance(value, list) or (length is not None and len(value) != length):
            needed = "a list of" if length is None else str(length)
            raise DataError(
                f"{self.path}: {name} is {shorten(repr(value))}, needs {needed} numbers"
            )
        return [self._number(item, f"{name}[{i}]") for i, item in enumerate(value)]

    def _number(self, value: Any, name: str) -> float:
        found = math.nan
        if isinstance(value, str | int | float) and not isinstance(value, bool):
            try:
                found = float(value)
            except (ValueError, OverflowError):
                found = math.nan
        if not math.isfinite(found):
            raise DataError(f"{self.path}: {name} is {shorten(repr(value))}, needs a number")
        return found


def _check_types(path: Path, n_types: int, focal_lengths: tuple[float, ...]) -> None:
    if n_types > 3:
        raise DataError(f"{path}: I is {n_types}, needs at most 3 types of micro lenses")
    if focal_lengths and len(focal_lengths) != n_types:
        raise DataError(
            f"{path}: I is {n_types}, but mla.focal_lengths has {len(focal_lengths)} entries"
        )
    for i, f in enumerate(focal_lengths):
        if f == 0.0:
            raise DataError(f"{path}: mla.focal_lengths[{i}] is 0 mm, needs another number")


def _geometry(
    file: _File, size: tuple[int, int], pixel_size: float
) -> tuple[float, float, tuple[float, float]]:
    """Return D, d and the principal point, from their keys or the poses of array and sensor."""
    if file.has("D") or file.has("d"):
        distance, gap = file.number("D"), file.number("d")
    else:
        array_z = file.row("mla", "mesh", "pose", "translation", length=3)[2]
        distance = abs(array_z)
        gap = abs(array_z - file.row("sensor", "pose", "translation", length=3)[2])
    if file.has("pp"):
        x, y = file.row("pp", length=2)
        return distance, gap, (x, y)
    shift = file.row("sensor", "pose", "translation", length=3)
    return (
        distance,
        gap,
        (size[0] - 1 + shift[0] / pixel_size, size[1] - 1 + shift[1] / pixel_size),
    )


def _mesh(file: _File) -> CompoteMesh:
    keys = ("mia", "mesh")
    geometry = file.whole(*keys, "geometry")
    if geometry > HEXAGONAL_COLUMNS:
        raise DataError(f"{file.path}: mia.mesh.geometry is {geometry}, needs 0, 1 or 2")
    pitch = file.row(*keys, "pitch", length=2)
    shift = file.row(*keys, "pose", "translation", length=2)
    for name, values, low in (("pitch", pitch, 2.0), ("pose.translation", shift, -1e6)):
        if not all(low <= value <= 1e6 for value in values):
            raise DataError(
                f"{file.path}: mia.mesh.{name} is {_list(values)}, needs {low:g} to 1e+06 px"
            )
    (a, b), (c, d) = file.matrix(2, *keys, "pose", "rotation")
    if abs(math.hypot(a, c) - 1.0) > 0.01 or abs(a * d - b * c - 1.0) > 0.01:
        raise DataError(
            f"{file.path}: mia.mesh.pose.rotation is {_list((a, b, c, d))}, needs a rotation"
        )
    width, height = file.whole(*keys, "width"), file.whole(*keys, "height")
    if not 0 < width * height <= 50_000_000:
        raise DataError(f"{file.path}: mia.mesh has {width} x {height} lenses, needs 1 to 50000000")
    return CompoteMesh(
        geometry, (pitch[0], pitch[1]), ((a, b), (c, d)), (shift[0], shift[1]), width, height
    )


def _coefficients(file: _File, name: str, length: int) -> tuple[float, ...]:
    if not file.has("distortions", name):
        return (0.0,) * length
    return tuple(file.row("distortions", name, length=length))


def _array_pose(file: _File) -> tuple[tuple[float, float], float, tuple[float, float]]:
    """Return the array's tilt and rotation in degrees, and its first lens' place in mm.

    All of them are along the raw image's axes, which are those of the main lens rotated by 180
    degrees.
    """
    keys = ("mla", "mesh", "pose")
    if not file.has(*keys, "rotation"):
        return (0.0, 0.0), 0.0, (0.0, 0.0)
    transposed = file.matrix(3, *keys, "rotation")
    x, y, z = transposed[2]  # the array's normal
    if not (0.9 < z < 1.1 and math.isclose(math.hypot(x, y, z), 1.0, abs_tol=0.01)):
        raise DataError(
            f"{file.path}: mla.mesh.pose.rotation has the normal {_list((x, y, z))}, needs a "
            "rotation by a small angle"
        )
    tilt = (math.degrees(math.atan(-x / z)), math.degrees(math.atan(-y / z)))
    turn = math.degrees(math.atan2(transposed[0][1], transposed[0][0]))
    origin = file.row(*keys, "translation", length=3)
    return tilt, turn, (-origin[0], -origin[1])


def _list(values: tuple[float, ...] | list[float]) -> str:
    return "[" + ", ".join(f"{value:.6g}" for value in values) + "]"
