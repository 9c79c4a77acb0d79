"""camera.json and grid.json: the files that hold a calibrated camera and a micro-lens grid.

Parameters have the letters of the paper, each with value, sigma (null if not known) and unit.
Computing depth needs only `pinhole_array` and `grid`; `intrinsics` describes the same camera with
the paper's parameters, and reading checks that the two agree. The covariance of parameters i and j
is sigma_i sigma_j times their entry of `correlation`.

Numbers are written with all digits, so that reading gives back the same float. (The pixel size is
converted from mm to um, which may change its last digit.) A file of a newer minor version is read,
and unknown keys are ignored; a file of a newer major version is refused.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np

from lifcal import __version__
from lifcal.arrays import FloatArray
from lifcal.camera._safe_xml import shorten
from lifcal.camera.apertures import OverlapDiscs
from lifcal.camera.bend import GridBend
from lifcal.camera.depth_bias import DepthBias
from lifcal.camera.distortion import DISTORTION_MODELS, Distortion, make_distortion
from lifcal.camera.grid import (
    DEVIATION_STEP_PX,
    Lattice,
    MicroLensGrid,
    check_image_size,
    list_lenses,
)
from lifcal.camera.model import PlenopticCamera
from lifcal.camera.parameters import NO_SCALE, PARAMETERS, unit_of
from lifcal.camera.pinhole_array import (
    ARRAY_PARAMETERS,
    PHYSICAL_PARAMETERS,
    PhysicalParameters,
)
from lifcal.camera.tilt import TILT_PARAMETERS, ArrayTilt
from lifcal.errors import DataError, InputError, LifcalError
from lifcal.files import read_json, write_text

CAMERA_FORMAT = "lifcal-camera"
GRID_FORMAT = "lifcal-grid"
FORMAT_VERSION = "1.2"

_UNITS = {name: kind.unit or "1" for name, kind in PARAMETERS.items()}
_ARRAY_ONLY = ("F", "alpha", "beta")
_AGREEMENT = 1e-6
"""Largest relative difference between `pinhole_array` and the values that the intrinsics give."""

_NUMBER_LIST = re.compile(r"\[\n([-+.,\w\s]*)\]")
"""Matches a list of numbers, without strings, lists or objects, as an indented `json.dumps` writes
it."""
_MAX_TYPES = 3
_MAX_PX = 1e6
_MAX_SIGMA = 1e150
"""Largest sigma that is accepted; its square is still a finite number."""
_MAX_TILT = 0.01
"""Largest tilt that is accepted, per px. With it, B would double over a hundred pixels."""


# Writing


def write_camera(
    path: str | Path, camera: PlenopticCamera, extra: Mapping[str, Any] | None = None
) -> None:
    """Write camera.json, whole or not at all.

    Parameters
    ----------
    path : str or Path
    camera : PlenopticCamera
    extra : mapping, optional
        More keys for the top level, such as how the camera was made. Readers ignore them.

    Raises
    ------
    InputError
        If `extra` uses a key of the format, or holds a value that JSON cannot represent.
    """
    content = camera_to_dict(camera)
    for key in extra or {}:
        if key in content:
            raise InputError(f"extra key {key!r} is a key of the format itself")
    _write(Path(path), {**content, **(extra or {})})


def camera_to_dict(camera: PlenopticCamera) -> dict[str, Any]:
    """Return the content of camera.json."""
    sigmas = camera.sigmas()
    p = camera.parameters
    physical = dict(zip(PHYSICAL_PARAMETERS, p.as_vector().tolist(), strict=True))
    array = dict(zip(ARRAY_PARAMETERS, camera.array.as_vector().tolist(), strict=True))
    names = camera.distortion.parameter_names()

    def quantity(name: str, value: float, unit: str) -> dict[str, Any]:
        if unit_of(name, metric=camera.scale_source is not None) == NO_SCALE:
            unit = NO_SCALE
        return {"value": value, "sigma": sigmas.get(name), "unit": unit}

    return {
        **_header(CAMERA_FORMAT),
        "image_size_px": list(camera.image_size),
        "pixel_size_um": _um_from_mm(camera.pixel_size_mm),
        "intrinsics": {
            name: quantity(name, value, _UNITS[name]) for name, value in physical.items()
        },
        "pinhole_array": {name: quantity(name, array[name], _UNITS[name]) for name in _ARRAY_ONLY},
        "distortion": {
            "model": camera.distortion.name,
            "parameters": {
                name: quantity(name, value, unit)
                for name, value, unit in zip(
                    names,
                    camera.distortion.parameters.tolist(),
                    camera.distortion.units,
                    strict=True,
                )
            },
        },
        "tilt": None
        if camera.tilt is None
        else {
            **{
                name: quantity(name, value, _UNITS[name])
                for name, value in zip(
                    TILT_PARAMETERS, camera.tilt.as_vector().tolist(), strict=True
                )
            },
            "angles_deg": camera.tilt_angles_deg()[0].tolist(),
        },
        "scale_source": camera.scale_source,
        "correlation": _correlation_to_dict(camera),
        "virtual_depth_bias": None
        if camera.depth_bias is None
        else {
            "u": camera.depth_bias.u.tolist(),
            "relative": camera.depth_bias.relative.tolist(),
        },
        "grid": grid_to_dict(camera.grid),
    }


def write_grid(path: str | Path, grid: MicroLensGrid) -> None:
    """Write grid.json, whole or not at all."""
    _write(Path(path), {**_header(GRID_FORMAT), **grid_to_dict(grid)})


def grid_to_dict(grid: MicroLensGrid) -> dict[str, Any]:
    """Return a grid as the JSON files hold it.

    If the grid consists of all lenses of a lattice (with its bend and deviations) whose micro
    images touch the image, the lattice is written; otherwise the list of centers.
    """
    planes = None if grid.focal_planes is None else grid.focal_planes.tolist()
    size = list(grid.image_size)
    discs: dict[str, Any] = {}
    if grid.discs is not None:
        discs["overlap_discs"] = {
            "main_px": grid.discs.main_px,
            "micro_px": list(grid.discs.micro_px),
        }
        if grid.discs.shading_px2 > 0.0:
            discs["overlap_discs"]["shading_px2"] = grid.discs.shading_px2
    lattice = grid.lattice
    if lattice is None or not _is_whole(grid, lattice):
        return {
            "layout": "explicit",
            "image_size_px": size,
            "radius_px": float(grid.radius_px),
            "types": {
                "number": grid.n_types,
                "of_lens": grid.lens_types.tolist(),
                "focal_planes": planes,
            },
            **discs,
            "centers_px": grid.centers_raw_px.tolist(),
        }
    return {
        "layout": lattice.layout,
        "image_size_px": size,
        "origin_px": lattice.origin_px.tolist(),
        "basis_px": lattice.basis_px.tolist(),
        "radius_px": float(grid.radius_px),
        "types": {
            "number": lattice.n_types,
            "rule": list(lattice.type_rule),
            "focal_planes": planes,
        },
        **discs,
        **_centers_to_dict(grid),
    }


def _centers_to_dict(grid: MicroLensGrid) -> dict[str, Any]:
    """Return the deviations of the centers from the lattice, without keys for absent parts."""
    content: dict[str, Any] = {}
    if grid.bend is not None:
        content["bend"] = {"coefficients_px": grid.bend.coefficients_px.tolist()}
        covariance = grid.bend.covariance_px2
        if covariance is not None:
            lower = covariance[np.tril_indices(len(covariance))]
            content["bend"]["covariance_px2"] = lower.tolist()
    if grid.deviations_px is not None:
        steps = np.rint(grid.deviations_px / DEVIATION_STEP_PX).astype(int)
        content["deviations"] = {
            "unit_px": DEVIATION_STEP_PX,
            "xy": steps.ravel().tolist(),
        }
    return content


def _header(name: str) -> dict[str, Any]:
    return {"format": name, "format_version": FORMAT_VERSION, "lifcal_version": __version__}


def _is_whole(grid: MicroLensGrid, lattice: Lattice) -> bool:
    indices, centers = list_lenses(lattice, grid.bend, grid.image_size, grid.radius_px)
    if len(indices) != len(grid):
        return False
    if grid.deviations_px is not None:
        centers = centers + grid.deviations_px
    return (
        grid.n_types == lattice.n_types
        and np.array_equal(centers, grid.centers_raw_px)
        and np.array_equal(lattice.types(indices), grid.lens_types)
    )


def _correlation_to_dict(camera: PlenopticCamera) -> dict[str, Any] | None:
    physical = camera.physical_covariance()
    if camera.covariance is None or physical is None:
        return None
    names = camera.parameter_names
    return {
        "parameters": list(names),
        "matrix": _correlation(camera.covariance).tolist(),
        "physical": {
            "parameters": [*PHYSICAL_PARAMETERS, *names[len(ARRAY_PARAMETERS) :]],
            "matrix": _correlation(physical).tolist(),
        },
    }


def _correlation(covariance: FloatArray) -> FloatArray:
    """Return the correlation matrix; parameters with zero variance get zero correlations."""
    sigma = np.sqrt(np.diag(covariance))
    scale = np.where(sigma > 0.0, sigma, 1.0)
    matrix: FloatArray = covariance / scale[:, None] / scale
    np.fill_diagonal(matrix, 1.0)
    return matrix


def _write(path: Path, content: Mapping[str, Any]) -> None:
    try:
        text = json.dumps(content, indent=2, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: cannot be written as JSON: {error}") from None
    # Put each list of numbers on one line, because a grid may have tens of thousands. Strings are
    # never changed, because JSON strings contain no line breaks.
    text = _NUMBER_LIST.sub(lambda found: "[" + " ".join(found[1].split()) + "]", text)
    write_text(path, text + "\n")


def _um_from_mm(length_mm: float) -> float:
    """Convert mm to um in decimal arithmetic: 0.0055 mm is 5.5 um, not 5.499999999999999."""
    return float(Decimal(repr(float(length_mm))) * 1000)


def _mm_from_um(length_um: float) -> float:
    return float(Decimal(repr(float(length_um))) / 1000)


# Reading


def read_camera(path: str | Path) -> PlenopticCamera:
    """Read a camera.json file; `path` may also be the folder of a calibration that contains it.

    Raises
    ------
    DataError
        If the file is missing or broken, a key is missing or of the wrong type, the format is
        newer, the values are impossible, or `intrinsics` and `pinhole_array` disagree.
    """
    path = Path(path)
    if path.is_dir():
        path = path / "camera.json"
    root = _open(path, CAMERA_FORMAT)
    with _Refusing(path):
        return _camera_from_node(root)


def read_grid(path: str | Path) -> MicroLensGrid:
    """Read grid.json; the errors are those of `read_camera`."""
    path = Path(path)
    root = _open(path, GRID_FORMAT)
    with _Refusing(path):
        return _grid_from_node(root)


def grid_from_dict(content: Mapping[str, Any], source: str = "grid") -> MicroLensGrid:
    """Build a grid from what `grid_to_dict` returns.

    Parameters
    ----------
    content : mapping
    source : str
        Where the content comes from, for error messages.

    Raises
    ------
    DataError
    """
    with _Refusing(source):
        return _grid_from_node(_Node(source, "", dict(content)))


@dataclass(frozen=True)
class _Refusing:
    """Context manager that turns an InputError into a DataError naming the file it came from."""

    source: str | Path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, LifcalError) and not isinstance(error, DataError):
            raise DataError(f"{self.source}: {shorten(str(error), 300)}") from None


@dataclass(frozen=True)
class _Node:
    """A value in a JSON file that knows where it is."""

    source: str | Path
    key: str
    value: Any

    def _at(self, name: str) -> str:
        return f"{self.key}.{name}" if self.key else name

    def has(self, name: str) -> bool:
        """Return whether the key exists and is not null."""
        return self.mapping().get(name) is not None

    def mapping(self) -> dict[str, Any]:
        if not isinstance(self.value, dict):
            raise self.wrong("an object")
        return self.value

    def child(self, name: str) -> _Node:
        mapping = self.mapping()
        if name not in mapping:
            raise DataError(f"{self.source}: {self._at(name)} is missing")
        return _Node(self.source, self._at(name), mapping[name])

    def items(self, length: int | None = None) -> list[_Node]:
        if not isinstance(self.value, list):
            raise self.wrong("a list")
        if length is not None and len(self.value) != length:
            raise self.wrong(f"{length} entries")
        return [_Node(self.source, f"{self.key}[{i}]", value) for i, value in enumerate(self.value)]

    def number(self) -> float:
        if isinstance(self.value, int | float) and not isinstance(self.value, bool):
            try:
                value = float(self.value)
            except OverflowError:
                value = math.inf
            if math.isfinite(value):
                return value
        raise self.wrong("a finite number")

    def integer(self) -> int:
        if isinstance(self.value, bool) or not isinstance(self.value, int):
            raise self.wrong("a whole number")
        if abs(self.value) > 2**53:
            raise self.wrong("a smaller number")
        return self.value

    def text(self) -> str:
        if not isinstance(self.value, str):
            raise self.wrong("a string")
        return self.value

    def numbers(self, length: int | None = None) -> list[float]:
        return [item.number() for item in self.items(length)]

    def integers(self, length: int | None = None) -> list[int]:
        return [item.integer() for item in self.items(length)]

    def wrong(self, needed: str) -> DataError:
        try:
            found = json.dumps(self.value)
        except (TypeError, ValueError, RecursionError):
            found = f"a {type(self.value).__name__}"
        return DataError(f"{self.source}: {self.key or 'it'} is {shorten(found)}, needs {needed}")


def _open(path: Path, name: str) -> _Node:
    """Return the file's top level, after checking its format and version."""
    root = _Node(path, "", read_json(path))
    found = root.child("format").text()
    if found != name:
        raise DataError(f"{path}: format is {shorten(repr(found))}, needs {name!r}")
    version = root.child("format_version")
    major, dot, minor = version.text().partition(".")
    if not (dot and _is_digits(major) and _is_digits(minor)):
        raise version.wrong("a version such as '1.0'")
    ours = FORMAT_VERSION.partition(".")[0]
    if int(major) > int(ours):
        raise DataError(
            f"{path}: format_version is {version.text()}, written by a newer lifcal; this one "
            f"reads {ours}.x. Upgrade lifcal"
        )
    return root


def _is_digits(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10


def _camera_from_node(root: _Node) -> PlenopticCamera:
    size = root.child("image_size_px").integers(2)
    pixel_size = root.child("pixel_size_um").number()
    if not pixel_size > 0.0:
        raise root.child("pixel_size_um").wrong("a positive number")
    pixel_size_mm = _mm_from_um(pixel_size)
    intrinsics = root.child("intrinsics")
    parameters = PhysicalParameters(
        *(_value(intrinsics.child(name), _UNITS[name]) for name in PHYSICAL_PARAMETERS)
    )
    _check_agreement(root, parameters, pixel_size_mm)
    distortion = _distortion_from_node(root.child("distortion"))
    grid = _grid_from_node(root.child("grid"))
    if list(grid.image_size) != size:
        raise DataError(
            f"{root.source}: image_size_px is {size}, but grid.image_size_px is "
            f"{list(grid.image_size)}"
        )
    camera = PlenopticCamera(
        parameters,
        pixel_size_mm,
        grid,
        distortion,
        root.child("scale_source").text() if root.has("scale_source") else None,
        None,
        _bias_from_node(root.child("virtual_depth_bias"))
        if root.has("virtual_depth_bias")
        else None,
        _tilt_from_node(root.child("tilt")) if root.has("tilt") else None,
    )
    if not root.has("correlation"):
        return camera
    return replace(camera, covariance=_covariance_from_node(root, camera.parameter_names))


def _tilt_from_node(node: _Node) -> ArrayTilt:
    values = []
    for name in TILT_PARAMETERS:
        value = _value(node.child(name), _UNITS[name])
        if abs(value) > _MAX_TILT:
            raise node.child(name).child("value").wrong(f"at most {_MAX_TILT:g} per px")
        values.append(value)
    return ArrayTilt(*values)


def _bias_from_node(node: _Node) -> DepthBias:
    u, relative = node.child("u").numbers(), node.child("relative")
    try:
        return DepthBias(np.array(u), np.array(relative.numbers(len(u))))
    except InputError as error:
        raise DataError(f"{node.source}: {node.key}: {error}") from None


def _value(quantity: _Node, unit: str) -> float:
    value = quantity.child("value").number()
    if quantity.has("unit") and quantity.child("unit").value not in (unit, NO_SCALE):
        raise quantity.child("unit").wrong(f"{unit!r}")
    if quantity.has("sigma"):
        _sigma(quantity)
    return value


def _sigma(quantity: _Node) -> float:
    sigma = quantity.child("sigma")
    if not 0.0 <= sigma.number() <= _MAX_SIGMA:
        raise sigma.wrong(f"a number from 0 to {_MAX_SIGMA:g}")
    return sigma.number()


def _check_agreement(root: _Node, parameters: PhysicalParameters, pixel_size_mm: float) -> None:
    array = parameters.to_pinhole_array(pixel_size_mm)
    expected = dict(zip(ARRAY_PARAMETERS, array.as_vector().tolist(), strict=True))
    if not np.isfinite(array.as_vector()).all():
        raise DataError(f"{root.source}: intrinsics and pixel_size_um make no finite camera")
    if not root.has("pinhole_array"):
        return
    node = root.child("pinhole_array")
    for name in _ARRAY_ONLY:
        found = _value(node.child(name), _UNITS[name])
        # alpha is near zero where the main lens focuses infinity on the array, so the difference is
        # compared with 1 at least.
        scale = max(abs(expected[name]), abs(found), 1.0 if name == "alpha" else 0.0)
        if abs(found - expected[name]) > _AGREEMENT * scale:
            raise DataError(
                f"{node.source}: {node.key}.{name}.value is {found!r}, but the intrinsics give "
                f"{expected[name]!r}. If the intrinsics were edited by hand and are right, remove "
                f"{node.key} and correlation"
            )


def _distortion_from_node(node: _Node) -> Distortion:
    model = node.child("model").text()
    if model not in DISTORTION_MODELS:
        raise node.child("model").wrong(f"one of {', '.join(DISTORTION_MODELS)}")
    kind = DISTORTION_MODELS[model]
    names = kind.parameter_names()
    parameters = node.child("parameters")
    for name in parameters.mapping():
        if name not in names:  # ignoring it would give a different camera
            raise DataError(
                f"{node.source}: {parameters.key}.{shorten(name)} is not a coefficient of the "
                f"model {model!r}: {', '.join(names) or 'it has none'}"
            )
    return make_distortion(
        model,
        {
            name: _value(parameters.child(name), unit)
            for name, unit in zip(names, kind.units, strict=True)
        },
    )


def _covariance_from_node(root: _Node, names: tuple[str, ...]) -> FloatArray:
    """Return the covariance sigma_i sigma_j rho_ij, in the order of `parameter_names`."""
    node = root.child("correlation")
    expected = list(names)
    found = [item.text() for item in node.child("parameters").items()]
    if found != expected:
        raise node.child("parameters").wrong(f"{', '.join(expected)}")
    rows = node.child("matrix").items(len(expected))
    matrix = np.array([row.numbers(len(expected)) for row in rows])
    wrong = (np.abs(matrix - matrix.T) > 1e-9) | (np.abs(matrix) > 1.0 + 1e-9)
    wrong |= np.eye(len(expected), dtype=bool) & (np.abs(matrix - 1.0) > 1e-9)
    if wrong.any():
        i, j = np.argwhere(wrong)[0].tolist()
        raise rows[i].items()[j].wrong("a correlation: symmetric, -1 to 1, ones on the diagonal")
    sigmas = np.array([_sigma(_find_quantity(root, name)) for name in expected])
    covariance: FloatArray = (matrix + matrix.T) / 2.0 * sigmas[:, None] * sigmas
    return covariance


def _find_quantity(root: _Node, name: str) -> _Node:
    if name in _ARRAY_ONLY:
        return root.child("pinhole_array").child(name)
    if name in PHYSICAL_PARAMETERS:
        return root.child("intrinsics").child(name)
    if name in TILT_PARAMETERS:
        return root.child("tilt").child(name)
    return root.child("distortion").child("parameters").child(name)


def _grid_from_node(node: _Node) -> MicroLensGrid:
    layout = node.child("layout").text()
    width, height = check_image_size(node.child("image_size_px").integers(2))
    radius = node.child("radius_px").number()
    if radius > max(width, height):
        raise node.child("radius_px").wrong("a radius smaller than the image")
    types = node.child("types")
    number = types.child("number").integer()
    if not 1 <= number <= _MAX_TYPES:
        raise types.child("number").wrong(f"1 to {_MAX_TYPES}")
    planes: FloatArray | None = None
    if types.has("focal_planes"):
        planes = np.array(types.child("focal_planes").numbers(number))
    discs: OverlapDiscs | None = None
    if node.has("overlap_discs"):
        radii = node.child("overlap_discs")
        discs = OverlapDiscs(
            radii.child("main_px").number(),
            tuple(radii.child("micro_px").numbers(number)),
            radii.child("shading_px2").number() if radii.has("shading_px2") else 0.0,
        )
    if layout == "explicit":
        centers = [item.numbers(2) for item in node.child("centers_px").items()]
        of_lens = types.child("of_lens").integers(len(centers))
        return MicroLensGrid(
            (width, height),
            np.array(centers, np.float64).reshape(-1, 2),
            np.array(of_lens, np.int64),
            radius,
            number,
            planes,
            discs=discs,
        )
    if layout not in ("hexagonal", "square"):
        raise node.child("layout").wrong("hexagonal, square or explicit")
    lattice = Lattice(
        np.array(_bounded(node.child("origin_px"))),
        np.array([_bounded(row) for row in node.child("basis_px").items(2)]),
        number,
        _rule(types.child("rule")),
    )
    return MicroLensGrid.from_lattice(
        lattice,
        (width, height),
        radius_px=radius,
        focal_planes=planes,
        discs=discs,
        bend=_bend_from_node(node.child("bend"), (width, height)) if node.has("bend") else None,
        deviations_px=_deviations_from_node(node.child("deviations"))
        if node.has("deviations")
        else None,
    )


def _bend_from_node(node: _Node, image_size: tuple[int, int]) -> GridBend:
    coefficients = np.array([_bounded(row) for row in node.child("coefficients_px").items()])
    covariance: FloatArray | None = None
    if node.has("covariance_px2"):
        n = len(coefficients) + 3
        lower = node.child("covariance_px2").numbers(n * (n + 1) // 2)
        covariance = np.zeros((n, n))
        covariance[np.tril_indices(n)] = lower
        covariance += np.tril(covariance, -1).T
    try:
        return GridBend(image_size, coefficients.reshape(-1, 2), covariance)
    except InputError as error:
        raise DataError(f"{node.source}: {node.key}: {error}") from None


def _deviations_from_node(node: _Node) -> FloatArray:
    unit = node.child("unit_px")
    if unit.number() != DEVIATION_STEP_PX:
        raise unit.wrong(f"{DEVIATION_STEP_PX}")
    values = node.child("xy")
    steps = values.integers()
    if len(steps) % 2:
        raise values.wrong("x and y for each lens")
    limit = round(_MAX_PX / DEVIATION_STEP_PX)
    if steps and max(map(abs, steps)) > limit:
        raise values.wrong(f"whole numbers up to {limit}")
    return np.array(steps, np.float64).reshape(-1, 2) * DEVIATION_STEP_PX


def _bounded(node: _Node) -> list[float]:
    """Return x and y, after checking that they are not so large that lens indices overflow."""
    values = node.numbers(2)
    if max(map(abs, values)) > _MAX_PX:
        raise node.wrong(f"numbers up to {_MAX_PX:g} px")
    return values


def _rule(node: _Node) -> tuple[int, int, int]:
    first, second, third = node.integers(3)
    if max(abs(first), abs(second), abs(third)) > 1000:
        raise node.wrong("numbers up to 1000: only the remainder modulo the number of types counts")
    return first, second, third
