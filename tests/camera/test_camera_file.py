from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lifcal.camera import (
    ArrayTilt,
    BrownDistortion,
    DepthBias,
    DivisionDistortion,
    GridBend,
    Lattice,
    MicroLensGrid,
    NoDistortion,
    OverlapDiscs,
    PhysicalParameters,
    PlenopticCamera,
)
from lifcal.camera.camera_file import (
    camera_to_dict,
    grid_from_dict,
    grid_to_dict,
    read_camera,
    read_grid,
    write_camera,
    write_grid,
)
from lifcal.errors import DataError, InputError

STORED = Path(__file__).parents[1] / "data" / "camera-1.0.json"
SIZE = (120, 90)


def hexagonal_grid() -> MicroLensGrid:
    lattice = Lattice.regular(
        "hexagonal-rows", 14.1, [59.3, 44.9], rotation_rad=0.0123, aspect=1.001, n_types=3
    )
    return MicroLensGrid.from_lattice(
        lattice, SIZE, radius_px=6.05, focal_planes=[2.1, 2.9, 1.0 / 0.3]
    )


def make_camera(rng: np.random.Generator, **changes: Any) -> PlenopticCamera:
    distortion = changes.get("distortion", BrownDistortion(-3e-7, 2e-13, 1e-19, 1e-7, -2e-7))
    n = 5 + len(distortion.parameters) + (2 if "tilt" in changes else 0)
    half = (
        rng.normal(size=(n, n)) * np.array([1.0, 0.1, 0.1, 1e-3, 0.5, *[1e-9] * (n - 5)])[:, None]
    )
    values: dict[str, Any] = {
        "parameters": PhysicalParameters(16.1 / 3.0, 5.2, 0.1 + 0.2, 59.123456789, 1.0 / 0.022),
        "pixel_size_mm": 0.0055,
        "grid": hexagonal_grid(),
        "distortion": distortion,
        "scale_source": "markers, 60 mm",
        "covariance": half @ half.T,
    }
    return PlenopticCamera(**{**values, **changes})


def assert_same_grid(found: MicroLensGrid, expected: MicroLensGrid) -> None:
    assert found.image_size == expected.image_size
    assert found.radius_px == expected.radius_px
    assert found.n_types == expected.n_types
    np.testing.assert_array_equal(found.centers_raw_px, expected.centers_raw_px)
    np.testing.assert_array_equal(found.lens_types, expected.lens_types)
    assert (found.focal_planes is None) == (expected.focal_planes is None)
    if expected.focal_planes is not None:
        np.testing.assert_array_equal(found.focal_planes, expected.focal_planes)


def fails(path: Path, *parts: str) -> str:
    """Check that reading gives a DataError of one line with the file's name and these parts."""
    with pytest.raises(DataError) as caught:
        read_camera(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    for part in parts:
        assert part in message, message
    return message


@pytest.fixture
def stored() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(STORED.read_text())
    return content


def put(folder: Path, content: Any) -> Path:
    path = folder / "camera.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def at(content: Any, place: str) -> tuple[Any, str]:
    *way, last = place.split(".")
    for key in way:
        content = content[key]
    return content, last


# Round trips


@pytest.mark.parametrize(
    "distortion",
    [
        NoDistortion(),
        BrownDistortion(1e-7, -1.0 / 3e13, 0.0, 1e-9, 2e-9),
        DivisionDistortion(-1e-7),
    ],
    ids=lambda model: model.name,
)
def test_camera_round_trip(
    tmp_path: Path, rng: np.random.Generator, distortion: BrownDistortion
) -> None:
    camera = make_camera(rng, distortion=distortion)
    write_camera(tmp_path / "camera.json", camera)
    found = read_camera(tmp_path / "camera.json")
    assert found.parameters == camera.parameters
    assert found.pixel_size_mm == camera.pixel_size_mm
    assert found.distortion == camera.distortion
    assert found.scale_source == camera.scale_source
    assert_same_grid(found.grid, camera.grid)
    assert found.grid.lattice is not None
    assert found.covariance is not None
    assert camera.covariance is not None
    scale = np.sqrt(np.outer(np.diag(camera.covariance), np.diag(camera.covariance)))
    np.testing.assert_allclose(found.covariance / scale, camera.covariance / scale, atol=1e-12)


def test_depth_bias_round_trip(tmp_path: Path, rng: np.random.Generator) -> None:
    bias = DepthBias(np.array([2.0, 2.5, 4.0]), np.array([1e-3, -1.0 / 3e4, 0.0]))
    write_camera(tmp_path / "camera.json", replace(make_camera(rng), depth_bias=bias))
    found = read_camera(tmp_path / "camera.json").depth_bias
    assert found is not None
    np.testing.assert_array_equal(found.u, bias.u)
    np.testing.assert_array_equal(found.relative, bias.relative)
    content = json.loads((tmp_path / "camera.json").read_text())
    content["virtual_depth_bias"]["u"] = [2.0, 2.5, 2.5]
    (tmp_path / "camera.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match=r"virtual_depth_bias: u of a depth bias needs ascending"):
        read_camera(tmp_path / "camera.json")


def test_tilt_round_trip(tmp_path: Path, rng: np.random.Generator) -> None:
    camera = make_camera(rng, tilt=ArrayTilt(1.0 / 3e5, -2e-6))
    write_camera(tmp_path / "camera.json", camera)
    found = read_camera(tmp_path / "camera.json")
    assert found.tilt == camera.tilt
    assert found.covariance is not None
    assert camera.covariance is not None
    scale = np.sqrt(np.outer(np.diag(camera.covariance), np.diag(camera.covariance)))
    np.testing.assert_allclose(found.covariance / scale, camera.covariance / scale, atol=1e-12)
    content = json.loads((tmp_path / "camera.json").read_text())
    assert content["tilt"]["t_x"]["sigma"] == pytest.approx(camera.sigmas()["t_x"])
    angles, sigmas = camera.tilt_angles_deg()
    assert content["tilt"]["angles_deg"] == pytest.approx(angles)
    assert sigmas is not None
    per_px = np.degrees(camera.parameters.array_to_sensor_mm / camera.pixel_size_mm)
    assert sigmas[0] == pytest.approx(per_px * camera.sigmas()["t_x"], rel=1e-6)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"t_x": {"value": 0.02}}, r"tilt.t_x.value is 0.02, needs at most 0.01 per px"),
        ({"t_y": None}, r"tilt.t_y is null, needs an object"),
        ({"t_x": {"value": 1e-6, "unit": "deg"}}, r'tilt.t_x.unit is "deg", needs .1/px.'),
    ],
)
def test_tilt_errors(
    tmp_path: Path, rng: np.random.Generator, change: dict[str, Any], said: str
) -> None:
    write_camera(tmp_path / "c.json", make_camera(rng, tilt=ArrayTilt(1e-6, 1e-6), covariance=None))
    content = json.loads((tmp_path / "c.json").read_text())
    content["tilt"].update(change)
    (tmp_path / "c.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match=said):
        read_camera(tmp_path / "c.json")


def test_camera_without_covariance_and_scale(tmp_path: Path, rng: np.random.Generator) -> None:
    camera = make_camera(rng, covariance=None, scale_source=None)
    write_camera(tmp_path / "c.json", camera)
    content = json.loads((tmp_path / "c.json").read_text())
    assert content["correlation"] is None
    assert content["intrinsics"]["f_L"]["sigma"] is None
    # without a scale nothing is in millimetres
    assert content["intrinsics"]["f_L"]["unit"] == content["intrinsics"]["B"]["unit"] == "no scale"
    assert content["pinhole_array"]["beta"]["unit"] == "no scale"
    assert content["intrinsics"]["c_x"]["unit"] == "px"
    found = read_camera(tmp_path / "c.json")
    assert found.covariance is None
    assert found.scale_source is None
    assert camera_to_dict(make_camera(rng))["intrinsics"]["f_L"]["unit"] == "mm"


def test_a_fixed_parameter_has_no_uncertainty(tmp_path: Path, rng: np.random.Generator) -> None:
    camera = make_camera(rng)
    assert camera.covariance is not None
    covariance = camera.covariance.copy()
    covariance[4] = covariance[:, 4] = 0.0
    camera = make_camera(rng, covariance=covariance)
    write_camera(tmp_path / "c.json", camera)
    found = read_camera(tmp_path / "c.json").covariance
    assert found is not None
    np.testing.assert_array_equal(found[4], 0.0)
    np.testing.assert_allclose(found, covariance, rtol=1e-12, atol=1e-30)


def test_physical_correlation_is_that_of_the_physical_covariance(rng: np.random.Generator) -> None:
    camera = make_camera(rng)
    content = camera_to_dict(camera)
    physical = camera.physical_covariance()
    assert physical is not None
    names = content["correlation"]["physical"]["parameters"]
    assert names[:5] == ["f_L", "b_L0", "B", "c_x", "c_y"]
    sigma = np.array(
        [
            (content["intrinsics"].get(name) or content["distortion"]["parameters"][name])["sigma"]
            for name in names
        ]
    )
    matrix = np.array(content["correlation"]["physical"]["matrix"])
    np.testing.assert_allclose(matrix * sigma * sigma[:, None], physical, rtol=1e-12)


@pytest.mark.parametrize("size_um", [5.5, 4.5, 1.1, 3.45, 7.4, 0.8, 2.2])
def test_pixel_size_round_trip_is_exact(
    tmp_path: Path, rng: np.random.Generator, size_um: float
) -> None:
    camera = make_camera(rng, pixel_size_mm=float(f"{size_um}e-3"))
    content = camera_to_dict(camera)
    assert content["pixel_size_um"] == size_um
    write_camera(tmp_path / "c.json", camera)
    assert read_camera(tmp_path / "c.json").pixel_size_mm == camera.pixel_size_mm


def test_explicit_grid_round_trip(tmp_path: Path, rng: np.random.Generator) -> None:
    centers = rng.uniform(0.0, 90.0, (17, 2))
    for types, planes in ((None, None), (rng.integers(0, 2, 17), [2.0, -3.0])):
        grid = MicroLensGrid.from_centers(
            centers, SIZE, radius_px=5.1, lens_types=types, focal_planes=planes
        )
        write_grid(tmp_path / "grid.json", grid)
        assert_same_grid(read_grid(tmp_path / "grid.json"), grid)


def test_grid_round_trips(tmp_path: Path) -> None:
    for layout in ("hexagonal-rows", "hexagonal-columns", "square"):
        lattice = Lattice.regular(layout, 15.0 / 1.1, [10.0, 1.0 / 3.0], n_types=2)
        grid = MicroLensGrid.from_lattice(lattice, SIZE)
        write_grid(tmp_path / "grid.json", grid)
        found = read_grid(tmp_path / "grid.json")
        assert_same_grid(found, grid)
        assert found.lattice is not None
        assert found.lattice.type_rule == lattice.type_rule
        content = json.loads((tmp_path / "grid.json").read_text())
        assert content["format"] == "lifcal-grid"
        assert content["layout"] == lattice.layout


def bent_grid(rng: np.random.Generator) -> MicroLensGrid:
    half = rng.normal(scale=0.01, size=(10, 10))
    bend = GridBend(SIZE, rng.normal(scale=0.3, size=(7, 2)), half @ half.T)
    whole = hexagonal_grid()
    assert whole.lattice is not None
    options: dict[str, Any] = {"radius_px": 6.05, "bend": bend}
    count = len(MicroLensGrid.from_lattice(whole.lattice, SIZE, **options))
    deviations = rng.normal(scale=0.05, size=(count, 2))
    return MicroLensGrid.from_lattice(whole.lattice, SIZE, deviations_px=deviations, **options)


def test_bend_and_deviations_round_trip(tmp_path: Path, rng: np.random.Generator) -> None:
    grid = bent_grid(rng)
    write_grid(tmp_path / "grid.json", grid)
    found = read_grid(tmp_path / "grid.json")
    assert_same_grid(found, grid)
    assert grid.bend is not None
    assert found.bend is not None
    np.testing.assert_array_equal(found.bend.coefficients_px, grid.bend.coefficients_px)
    np.testing.assert_array_equal(found.bend.covariance_px2, grid.bend.covariance_px2)
    np.testing.assert_array_equal(found.deviations_px, grid.deviations_px)
    # Each list of numbers is one line, however many lenses there are.
    assert len((tmp_path / "grid.json").read_text().splitlines()) < 60
    only_bent = replace(
        grid, deviations_px=None, centers_raw_px=grid.centers_raw_px - grid.deviations_px
    )
    content = grid_to_dict(only_bent)
    assert "deviations" not in content
    assert content["layout"] in ("hexagonal", "explicit")


@pytest.mark.parametrize(
    ("place", "value", "part"),
    [
        ("bend.coefficients_px", [[0.1, 0.2]] * 4, r"bend\.covariance_px2 .* needs 28 entries"),
        ("bend.coefficients_px", [[0.1, None]] * 7, r"bend\.coefficients_px\[0\]\[1\]"),
        ("bend.coefficients_px", [[50.0, 0.2]] * 7, r"bend: the bend reaches .* half its shorter"),
        ("bend.coefficients_px", "much", r"bend\.coefficients_px .* needs a list"),
        ("bend.covariance_px2", [1.0], r"bend\.covariance_px2 .* needs 55 entries"),
        ("bend.covariance_px2", [-1.0] * 55, r"bend: .* negative variance"),
        ("bend", [], r"bend is \[\], needs an object"),
        ("deviations.unit_px", 0.01, r"deviations\.unit_px is 0\.01, needs 0\.001"),
        ("deviations.xy", [1, 2, 3], r"deviations\.xy .* needs x and y"),
        ("deviations.xy", [1, 2], r"deviations_px has shape \(1, 2\)"),
        ("deviations.xy", [0.5, 2], r"deviations\.xy\[0\] .* whole number"),
        ("deviations.xy", [10**12, 2], r"deviations\.xy .* needs whole numbers up to"),
    ],
)
def test_broken_bend(rng: np.random.Generator, place: str, value: Any, part: str) -> None:
    content = grid_to_dict(bent_grid(rng))
    holder, key = at(content, place)
    holder[key] = value
    with pytest.raises(DataError, match=rf"^grid: {part}") as caught:
        grid_from_dict(content)
    assert "\n" not in str(caught.value)


def test_part_of_a_lattice_is_written_as_a_list() -> None:
    whole = hexagonal_grid()
    part = MicroLensGrid(
        whole.image_size,
        whole.centers_raw_px[5:20],
        whole.lens_types[5:20],
        whole.radius_px,
        3,
        lattice=whole.lattice,
    )
    content = grid_to_dict(part)
    assert content["layout"] == "explicit"
    assert_same_grid(grid_from_dict(content), part)


def test_grid_dict_errors_name_the_source() -> None:
    content = grid_to_dict(hexagonal_grid())
    del content["types"]["rule"]
    with pytest.raises(DataError, match=r"^state: types\.rule is missing$"):
        grid_from_dict(content, "state")
    content = grid_to_dict(hexagonal_grid()) | {"basis_px": [[1.0, 0.0], [2.0, 0.0]]}
    with pytest.raises(DataError, match=r"^grid: basis_px .* no usable lattice"):
        grid_from_dict(content)


def test_extra_keys(tmp_path: Path, rng: np.random.Generator) -> None:
    camera = make_camera(rng)
    path = tmp_path / "c.json"
    write_camera(path, camera, {"made_by": {"frames": 40}})
    assert json.loads(path.read_text())["made_by"] == {"frames": 40}
    assert read_camera(path).parameters == camera.parameters
    with pytest.raises(InputError, match="'grid'"):
        write_camera(path, camera, {"grid": 1})
    with pytest.raises(InputError, match="JSON"):
        write_camera(path, camera, {"x": float("nan")})
    with pytest.raises(InputError, match="JSON"):
        write_camera(path, camera, {"x": object()})
    assert json.loads(path.read_text())["made_by"] == {"frames": 40}


# The stored file: what a released version wrote, later ones must read


def test_stored_file() -> None:
    camera = read_camera(STORED)
    p = camera.parameters
    assert (p.focal_length_mm, p.lens_to_array_mm, p.array_to_sensor_mm) == (16.0, 15.5, 0.4)
    assert (p.principal_x_px, p.principal_y_px) == (60.25, 44.75)
    assert camera.pixel_size_mm == 0.0055
    assert camera.distortion == BrownDistortion(-3e-7, 2e-13, 0.0, 1e-7, -2e-7)
    assert camera.scale_source == "markers"
    assert camera.image_size == (120, 90)
    assert camera.grid.n_types == 3
    assert camera.grid.focal_planes is not None
    assert camera.grid.focal_planes.tolist() == [2.0, 3.0, 5.0]
    assert camera.sigmas()["F"] == pytest.approx(0.5, rel=1e-12)
    assert camera.sigmas()["beta"] == pytest.approx(2.0, rel=1e-12)
    assert camera.covariance is not None
    assert camera.covariance[0, 4] == pytest.approx(0.5 * 2.0 * 0.25, rel=1e-12)


def test_newer_minor_version_and_unknown_keys_are_read(
    tmp_path: Path, stored: dict[str, Any]
) -> None:
    stored["format_version"] = "1.7"
    stored["something"] = {"new": 1}
    stored["grid"]["color"] = "RGGB"
    stored["intrinsics"]["f_L"]["prior"] = None
    assert read_camera(put(tmp_path, stored)).parameters == read_camera(STORED).parameters


def test_newer_major_version_is_refused(tmp_path: Path, stored: dict[str, Any]) -> None:
    stored["format_version"] = "2.0"
    fails(put(tmp_path, stored), "2.0", "Upgrade lifcal")


@pytest.mark.parametrize("version", ["", "1", "one", "1.x", "-1.0", 1.0, None, "²."])
def test_bad_version(tmp_path: Path, stored: dict[str, Any], version: Any) -> None:
    stored["format_version"] = version
    fails(put(tmp_path, stored), "format_version")


def test_another_format(tmp_path: Path, stored: dict[str, Any]) -> None:
    stored["format"] = "lifcal-grid"
    fails(put(tmp_path, stored), "format is 'lifcal-grid'", "lifcal-camera")


REQUIRED = [
    "format",
    "format_version",
    "image_size_px",
    "pixel_size_um",
    "intrinsics",
    "intrinsics.f_L",
    "intrinsics.f_L.value",
    "intrinsics.b_L0.value",
    "intrinsics.B.value",
    "intrinsics.c_x.value",
    "intrinsics.c_y.value",
    "intrinsics.c_x.sigma",
    "pinhole_array.F",
    "pinhole_array.F.value",
    "pinhole_array.beta.sigma",
    "distortion",
    "distortion.model",
    "distortion.parameters",
    "distortion.parameters.k2",
    "distortion.parameters.k0.value",
    "correlation.parameters",
    "correlation.matrix",
    "grid",
    "grid.layout",
    "grid.image_size_px",
    "grid.origin_px",
    "grid.basis_px",
    "grid.radius_px",
    "grid.types",
    "grid.types.number",
    "grid.types.rule",
]


@pytest.mark.parametrize("place", REQUIRED)
def test_missing_key(tmp_path: Path, stored: dict[str, Any], place: str) -> None:
    holder, key = at(stored, place)
    del holder[key]
    fails(put(tmp_path, stored), f"{place} is missing")


@pytest.mark.parametrize("place", [p for p in REQUIRED if p.endswith("value")] + ["pixel_size_um"])
@pytest.mark.parametrize("value", ["16", True, None, float("nan"), float("inf"), [1.0], 10**400])
def test_wrong_type(tmp_path: Path, stored: dict[str, Any], place: str, value: Any) -> None:
    holder, key = at(stored, place)
    holder[key] = value
    message = fails(put(tmp_path, stored), place, "needs a finite number")
    if value != 10**400:
        assert json.dumps(value) in message


def test_missing_pinhole_array_is_computed(tmp_path: Path, stored: dict[str, Any]) -> None:
    del stored["pinhole_array"]
    fails(put(tmp_path, stored), "pinhole_array is missing")  # its sigmas, for the correlation
    stored["correlation"] = None
    found = read_camera(put(tmp_path, stored))
    assert found.array == read_camera(STORED).array


@pytest.mark.parametrize("name", ["F", "alpha", "beta"])
def test_disagreement(tmp_path: Path, stored: dict[str, Any], name: str) -> None:
    quantity = stored["pinhole_array"][name]
    exact = quantity["value"]
    quantity["value"] = exact * (1.0 + 5e-7)
    read_camera(put(tmp_path, stored))
    quantity["value"] = exact * (1.0 + 2e-6)
    fails(put(tmp_path, stored), f"pinhole_array.{name}.value", repr(exact))


def test_hand_edited_intrinsics(tmp_path: Path, stored: dict[str, Any]) -> None:
    stored["intrinsics"]["f_L"]["value"] = 16.1
    fails(put(tmp_path, stored), "pinhole_array.alpha.value", "edited by hand")


@pytest.mark.parametrize(
    ("place", "value", "part"),
    [
        ("intrinsics.f_L.value", -16.0, "f_L is -16.0 mm"),
        ("intrinsics.B.value", 20.0, "B (20.0 mm) is not smaller than b_L0"),
        ("intrinsics.B.value", 1e-320, "no finite camera"),
        ("intrinsics.f_L.unit", "m", "intrinsics.f_L.unit"),
        ("intrinsics.f_L.sigma", -1.0, "intrinsics.f_L.sigma"),
        ("image_size_px", [0, 90], "image_size_px"),
        ("image_size_px", [120], "2 entries"),
        ("image_size_px", [120.5, 90], "image_size_px[0]"),
        ("grid.image_size_px", [0, 0], "image_size"),
        ("grid.image_size_px", [120, 91], "grid.image_size_px is [120, 91]"),
        ("pixel_size_um", 0.0, "pixel_size_um"),
        ("scale_source", 1.0, "scale_source"),
        ("distortion.model", "fisheye", "distortion.model"),
        ("distortion.parameters.k3", {"value": 1.0}, "distortion.parameters.k3"),
        ("distortion.parameters.k0.unit", "mm^-2", "distortion.parameters.k0.unit"),
        ("grid.layout", "spiral", "grid.layout"),
        ("grid.radius_px", 0.1, "radius_px is 0.1"),
        ("grid.radius_px", 1e300, "grid.radius_px"),
        ("grid.origin_px", [1e300, 0.0], "grid.origin_px"),
        ("grid.origin_px", [1e5, -1e5], ""),
        ("grid.basis_px", [[1.0, 0.0], [0.0, 1.0]], "no usable lattice"),
        ("grid.types.number", 4, "grid.types.number"),
        ("grid.types.rule", [1, 2, 2**60], "grid.types.rule"),
        ("grid.types.focal_planes", [2.0], "grid.types.focal_planes"),
        ("correlation.parameters", ["F"], "correlation.parameters"),
        ("correlation.matrix", [[1.0]], "correlation.matrix"),
    ],
)
def test_impossible_values(
    tmp_path: Path, stored: dict[str, Any], place: str, value: Any, part: str
) -> None:
    holder, key = at(stored, place)
    holder[key] = value
    if place == "grid.origin_px" and value[0] == 1e5:
        read_camera(put(tmp_path, stored))  # far away, but a lattice has no end
        return
    fails(put(tmp_path, stored), part)


@pytest.mark.parametrize("value", [1.5, 0.3, -1.0])
def test_impossible_correlation(tmp_path: Path, stored: dict[str, Any], value: float) -> None:
    stored["correlation"]["matrix"][0][1] = value
    fails(put(tmp_path, stored), "correlation.matrix[0][1]")


def test_explicit_grid_errors(tmp_path: Path, stored: dict[str, Any]) -> None:
    good = grid_to_dict(MicroLensGrid.from_centers([[9.0, 9.0], [40.0, 9.0]], SIZE, radius_px=5.0))
    stored["grid"] = good
    read_camera(put(tmp_path, stored))
    for key, value, part in (
        ("centers_px", [], "grid.types.of_lens"),
        ("centers_px", [[1.0], [2.0]], "grid.centers_px[0]"),
        ("centers_px", [[1.0, None], [2.0, 3.0]], "grid.centers_px[0][1]"),
        ("types", {**good["types"], "of_lens": [0, 1]}, "lens_types"),
        ("types", {**good["types"], "of_lens": [0]}, "grid.types.of_lens"),
    ):
        stored["grid"] = {**good, key: value}
        fails(put(tmp_path, stored), part)
    stored["grid"] = {**good, "centers_px": [], "types": {**good["types"], "of_lens": []}}
    fails(put(tmp_path, stored), "no micro image")


# Broken files


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "1", "null", '{"format": }', "\x00\x01", "9" * 5000]
)
def test_not_json(tmp_path: Path, text: str) -> None:
    fails(put(tmp_path, text))


def test_deep_and_binary(tmp_path: Path) -> None:
    fails(put(tmp_path, '{"a":' * 100_000))
    path = tmp_path / "b.json"
    path.write_bytes(bytes(range(256)))
    fails(path)


def test_no_file(tmp_path: Path) -> None:
    fails(tmp_path / "none.json", "no such file")
    with pytest.raises(DataError, match=r"camera\.json: no such file"):
        read_camera(tmp_path)


def test_truncated_everywhere(tmp_path: Path) -> None:
    content = STORED.read_bytes().rstrip()
    path = tmp_path / "camera.json"
    for end in range(0, len(content), 7):
        path.write_bytes(content[:end])
        fails(path)


def places(content: Any, way: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    found: list[tuple[str | int, ...]] = [way] if way else []
    if isinstance(content, dict):
        for key, value in content.items():
            found += places(value, (*way, key))
    elif isinstance(content, list):
        for i, value in enumerate(content):
            found += places(value, (*way, i))
    return found


STORED_CONTENT = json.loads(STORED.read_text())
PLACES = places(STORED_CONTENT)
DROP = "drop"
VALUES = [DROP, None, True, "", "x\ny", "1.0", 0, -1, 1, 3, 0.5, -2.5, 1e308, -1e308, 5e-324]
VALUES += [float("nan"), float("inf"), 10**400, [], {}, [1], [1, 2], [[1, 2], [3, 4]], {"value": 1}]


@settings(
    max_examples=400,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    st.lists(st.tuples(st.sampled_from(PLACES), st.sampled_from(VALUES)), min_size=1, max_size=3)
)
def test_mutations_give_a_camera_or_a_known_error(
    tmp_path: Path, changes: list[tuple[tuple[str | int, ...], Any]]
) -> None:
    content = copy.deepcopy(STORED_CONTENT)
    for (*way, last), value in changes:
        holder = content
        try:
            for key in way:
                holder = holder[key]
            if value is DROP:
                del holder[last]
            else:
                holder[last] = value
        except (KeyError, IndexError, TypeError):  # an earlier change took the place away
            continue
    path = put(tmp_path, content)
    try:
        values, message = read_camera(path).array.as_vector(), f"{path}: "
    except DataError as error:
        values, message = np.zeros(5), str(error)
    assert np.isfinite(values).all()
    assert message.startswith(f"{path}: ")
    assert "\n" not in message


def test_shading_is_kept_and_may_be_missing(tmp_path: Path) -> None:
    for shading in (1.8e-4, 0.0):
        discs = OverlapDiscs(8.0, (3.0, 2.5, 2.0), shading)
        path = tmp_path / "grid.json"
        write_grid(path, replace(hexagonal_grid(), discs=discs))
        assert ("shading_px2" in path.read_text()) == (shading > 0.0)
        assert read_grid(path).discs == discs
