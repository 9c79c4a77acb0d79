from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from lifcal.camera.compote import CompoteIntrinsics, CompoteMesh, read_compote
from lifcal.errors import DataError

IDENTITY = [["1", "0", "0"], ["0", "1", "0"], ["0", "0", "1"]]
CONTENT: dict[str, Any] = {
    "D": "56.5",
    "d": "0.3",
    "I": "3",
    "pp": [["205.25", "160.75"]],
    "dist_focus": "450",
    "distortions": {"radial": [["0", "0", "0"]], "tangential": [["0", "0"]], "model": "0"},
    "main_lens": {"f": "50", "aperture": "4"},
    "mia": {
        "mesh": {
            "geometry": "1",
            "width": "20",
            "height": "18",
            "pitch": [["21.5", "21.25"]],
            "pose": {
                "rotation": [["0.99995", "-0.0099998333"], ["0.0099998333", "0.99995"]],
                "translation": [["-13.25", "4.75"]],
            },
        }
    },
    "mla": {
        "focal_lengths": ["0.58", "0.52", "0.56"],
        "mesh": {"pose": {"rotation": IDENTITY, "translation": [["-1", "-0.8", "-56.5"]]}},
    },
    "sensor": {
        "scale": "0.0055",
        "width": "408",
        "height": "306",
        "pose": {"rotation": IDENTITY, "translation": [["-1.1", "-0.8", "-56.8"]]},
    },
}


def put(folder: Path, content: Any) -> Path:
    path = folder / "intrinsics.js"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def change(place: str, value: Any) -> dict[str, Any]:
    content = copy.deepcopy(CONTENT)
    *way, last = place.split(".")
    holder = content
    for key in way:
        holder = holder[key]
    if value is None:
        del holder[last]
    else:
        holder[last] = value
    return content


def fails(path: Path, *parts: str) -> None:
    with pytest.raises(DataError) as caught:
        read_compote(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    for part in parts:
        assert part in message, message


def as_numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: as_numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [as_numbers(item) for item in value]
    return float(value)


def test_values(tmp_path: Path) -> None:
    found = read_compote(put(tmp_path, CONTENT))
    p = found.parameters
    assert (p.focal_length_mm, p.lens_to_array_mm, p.array_to_sensor_mm) == (50.0, 56.5, 0.3)
    assert (p.principal_x_px, p.principal_y_px) == (205.25, 160.75)
    assert found.image_size == (408, 306)
    assert found.pixel_size_mm == 0.0055
    assert found.aperture == 4.0
    assert found.focus_distance_mm == 450.0
    assert found.notes == ()
    assert read_compote(put(tmp_path, as_numbers(CONTENT))) == found


def test_focal_planes_are_where_the_micro_lenses_focus(tmp_path: Path) -> None:
    found = read_compote(put(tmp_path, CONTENT))
    camera = found.camera()
    assert camera.grid.focal_planes is not None
    v = camera.paper_from_virtual_depth(camera.grid.focal_planes)
    # lens equation behind a virtual image at v B: 1/f = 1/B - 1/(v B)
    focal = 1.0 / (1.0 / 0.3 - 1.0 / (v * 0.3))
    np.testing.assert_allclose(focal, [0.58, 0.52, 0.56], rtol=1e-12)
    np.testing.assert_allclose(v, [1.0 / (1.0 - 0.3 / f) for f in (0.58, 0.52, 0.56)])
    assert camera.scale_source is not None


def test_notes(tmp_path: Path) -> None:
    content = change("distortions.radial", [["1e-4", "0", "0"]])
    content["mla"]["focal_lengths"][1] = str(0.3 * 56.5 / 56.8)
    found = read_compote(put(tmp_path, content))
    assert found.radial == (1e-4, 0.0, 0.0)
    assert len(found.notes) == 2
    assert "distortion" in found.notes[0]
    camera = found.camera()
    assert camera.distortion.name == "none"
    assert camera.grid.focal_planes is None


ANGLES_RAD = (0.0008, -0.0005, 0.003)


def tilted() -> dict[str, Any]:
    """The file with an array turned by angles about x, y and z, as libpleno writes it."""
    turn = Rotation.from_euler("XYZ", ANGLES_RAD).as_matrix()
    return change("mla.mesh.pose.rotation", turn.T.tolist())


def lens_distances(content: dict[str, Any], nodes_mm: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return b_k of lenses of the array, and their micro-image centers in raw px.

    By libpleno's geometry: lens n is at R^T n + t, seen from the main lens' middle, and the raw
    image's axes run against those of the main lens.
    """
    pose = as_numbers(content["mla"]["mesh"]["pose"])
    lenses = nodes_mm @ np.array(pose["rotation"]) + np.array(pose["translation"][0])
    sensor = as_numbers(content["sensor"])
    seen = lenses[:, :2] * (sensor["pose"]["translation"][0][2] / lenses[:, 2:])
    offset = -seen / sensor["scale"]
    return -lenses[:, 2], np.array(as_numbers(content["pp"])[0]) + offset


def test_tilt_is_that_of_the_array(tmp_path: Path, rng: np.random.Generator) -> None:
    content = tilted()
    found = read_compote(put(tmp_path, content))
    x, y, turn = np.degrees(ANGLES_RAD)
    # About the y axis the array turns x towards the sensor, about the x axis y away from it; both
    # raw axes are reversed, and so is the direction towards the sensor.
    np.testing.assert_allclose(found.array_tilt_deg, [-y, x], rtol=1e-5)
    assert found.array_rotation_deg == pytest.approx(turn, rel=1e-3)  # the tilt turns a little
    assert found.notes == ()
    camera = found.camera()
    nodes = np.column_stack([rng.uniform(0.0, 2.2, (40, 2)), np.zeros(40)])
    distances, centers = lens_distances(content, nodes)
    p = camera.parameters
    length = p.lens_to_array_mm + p.array_to_sensor_mm
    assert length == pytest.approx(56.8)
    at_center = p.array_to_sensor_mm / p.lens_to_array_mm
    ratios = at_center * (1.0 + camera.tilt.at(centers, camera.principal_point_px))
    np.testing.assert_allclose(length / (1.0 + ratios), distances, rtol=1e-12)
    # D and d are those of the first lens, which is not at the principal point
    assert abs(p.array_to_sensor_mm - 0.3) > 1e-4


def test_a_tilt_that_no_camera_has(tmp_path: Path) -> None:
    turn = Rotation.from_euler("X", 0.2).as_matrix()
    fails(put(tmp_path, change("mla.mesh.pose.rotation", turn.tolist())), "deg")
    wrong = (2.0 * np.eye(3)).tolist()
    fails(put(tmp_path, change("mla.mesh.pose.rotation", wrong)), "mla.mesh.pose.rotation")
    fails(put(tmp_path, change("mla.mesh.pose.rotation", [[1, 0, 0]])), "mla.mesh.pose.rotation")


def test_older_files_give_distances_by_poses(tmp_path: Path) -> None:
    content = copy.deepcopy(CONTENT)
    for key in ("D", "d", "pp", "dist_focus", "I"):
        del content[key]
    del content["main_lens"]["aperture"]
    found = read_compote(put(tmp_path, content))
    assert found.parameters.lens_to_array_mm == 56.5
    assert found.parameters.array_to_sensor_mm == pytest.approx(0.3, rel=1e-12)
    assert found.parameters.principal_x_px == pytest.approx(407.0 - 1.1 / 0.0055, rel=1e-12)
    assert found.parameters.principal_y_px == pytest.approx(305.0 - 0.8 / 0.0055, rel=1e-12)
    assert found.n_types == 3
    assert found.aperture is None
    assert found.focus_distance_mm is None


@pytest.mark.parametrize("geometry", [0, 1, 2])
@pytest.mark.parametrize("n_types", [1, 2, 3])
def test_grid_is_the_mesh(tmp_path: Path, geometry: int, n_types: int) -> None:
    content = change("mia.mesh.geometry", str(geometry))
    content["I"] = n_types
    content["mla"]["focal_lengths"] = ["0.58", "0.52", "0.56"][:n_types]
    found = read_compote(put(tmp_path, content))
    grid = found.camera().grid
    rows, columns = np.divmod(np.arange(20 * 18), 20)
    centers = found.mesh.centers(columns, rows)
    types = found.mesh.types(columns, rows, n_types)
    distance = np.linalg.norm(centers[:, None] - grid.centers_raw_px, axis=2)
    inside = ((centers > 0.0) & (centers < [408.0, 306.0])).all(axis=1)
    assert inside.sum() > 200
    assert distance.min(axis=1)[inside].max() < 1e-9
    np.testing.assert_array_equal(grid.lens_types[distance.argmin(axis=1)][inside], types[inside])
    assert grid.n_types == n_types
    follows = (geometry, n_types) in {(1, 3), (2, 3), (0, 2)} or n_types == 1
    assert (grid.lattice is not None) == follows


def test_even_rows_are_shifted() -> None:
    mesh = CompoteMesh(1, (20.0, 22.0), ((1.0, 0.0), (0.0, 1.0)), (3.0, 4.0), 5, 5)
    columns, rows = np.array([0, 0, 2]), np.array([0, 1, 2])
    expected = [[13.0, 4.0], [3.0, 4.0 + 11.0 * 3**0.5], [53.0, 4.0 + 22.0 * 3**0.5]]
    np.testing.assert_allclose(mesh.centers(columns, rows), expected)


REQUIRED = [
    "D",
    "d",
    "main_lens",
    "main_lens.f",
    "mia",
    "mia.mesh",
    "mia.mesh.geometry",
    "mia.mesh.pitch",
    "mia.mesh.pose",
    "mia.mesh.pose.rotation",
    "mia.mesh.pose.translation",
    "mia.mesh.width",
    "mia.mesh.height",
    "sensor",
    "sensor.scale",
    "sensor.width",
    "sensor.height",
]


@pytest.mark.parametrize("place", REQUIRED)
def test_missing_key(tmp_path: Path, place: str) -> None:
    fails(put(tmp_path, change(place, None)), f"{place} is missing")


@pytest.mark.parametrize(
    ("place", "value", "part"),
    [
        ("D", "far", "D is 'far'"),
        ("D", True, "D is True"),
        ("D", "nan", "D is 'nan'"),
        ("D", "-1", "b_L0 is -1.0 mm"),
        ("d", "60", "not smaller than b_L0"),
        ("main_lens.f", [], "main_lens.f"),
        ("pp", [["1"]], "pp is"),
        ("pp", "1", "pp is"),
        ("I", "4", "I is 4"),
        ("I", "2", "mla.focal_lengths has 3"),
        ("mla.focal_lengths", ["1", "0", "1"], "mla.focal_lengths[1]"),
        ("mla.focal_lengths", ["1", "x", "1"], "mla.focal_lengths[1]"),
        ("mia.mesh.geometry", "3", "mia.mesh.geometry"),
        ("mia.mesh.geometry", "0.5", "mia.mesh.geometry"),
        ("mia.mesh.pitch", [["0", "21"]], "mia.mesh.pitch"),
        ("mia.mesh.pose.rotation", [[1, 0]], "mia.mesh.pose.rotation"),
        ("mia.mesh.pose.rotation", [[2, 0], [0, 2]], "needs a rotation"),
        ("mia.mesh.pose.translation", [["1e99", "0"]], "mia.mesh.pose.translation"),
        ("mia.mesh.width", "0", "0 x 18 lenses"),
        ("sensor.scale", "0", "sensor.scale"),
        ("sensor.width", "0", "image_size is 0 x 306"),
        ("sensor.width", "-1", "sensor.width"),
    ],
)
def test_wrong_values(tmp_path: Path, place: str, value: Any, part: str) -> None:
    fails(put(tmp_path, change(place, value)), part)


def test_broken_files(tmp_path: Path) -> None:
    for text in ("", "[]", "{", "\x00", '{"D": ' + "9" * 5000 + "}"):
        fails(put(tmp_path, text))
    text = json.dumps(CONTENT)
    for end in range(0, len(text), 11):
        fails(put(tmp_path, text[:end]))
    fails(tmp_path / "none.js", "no such file")


# The published calibration of an R12


@pytest.fixture(scope="module")
def published(shared_data: Path) -> CompoteIntrinsics:
    return read_compote(shared_data / "R12-A" / "intrinsics.js")


def test_published_centers(shared_data: Path, published: CompoteIntrinsics) -> None:
    table = np.genfromtxt(shared_data / "R12-A" / "center-R12-A.csv", delimiter=",", skip_header=1)
    columns, rows = table[:, 0].astype(int), table[:, 1].astype(int)
    residual = table[:, 2:] - published.mesh.centers(columns, rows)
    assert np.median(np.hypot(*residual.T)) < 0.25  # half-pixel steps of the list: 0.22 measured
    assert np.abs(residual.mean(axis=0)).max() < 0.05  # no half pixel between the two


def test_published_types(shared_data: Path, published: CompoteIntrinsics) -> None:
    table = np.genfromtxt(shared_data / "R12-A" / "bap-R12-A.csv", delimiter=",", skip_header=1)
    columns, rows = table[:, 0].astype(int), table[:, 1].astype(int)
    types = published.mesh.types(columns, rows, 3)
    point = table[:, 5] + 1000 * table[:, 6]
    # one point in one frame has one blur radius in each type
    pair, where = np.unique(np.stack([point, types]), axis=1, return_inverse=True)
    low = np.full(pair.shape[1], np.inf)
    high = -low
    np.minimum.at(low, where.ravel(), table[:, 4])
    np.maximum.at(high, where.ravel(), table[:, 4])
    np.testing.assert_array_equal(low, high)
    # and it differs between types as 1 / f does: r = (D / (D + d)) (d_c d / 2) (1/f - ...)
    p = published.parameters
    ratio = p.lens_to_array_mm / (p.lens_to_array_mm + p.array_to_sensor_mm)
    pitch_mm = np.mean(published.mesh.pitch_px)
    steps = (
        0.5 * ratio * pitch_mm * p.array_to_sensor_mm / np.array(published.micro_focal_lengths_mm)
    )
    mean = [low[pair[1] == i].mean() for i in range(3)]
    np.testing.assert_allclose(np.subtract(mean, mean[0]), steps - steps[0], atol=0.03)


@pytest.mark.parametrize(
    "name", ["R12-A/intrinsics.js", "R12-A-older/intrinsics.js", "R12-A-older/blade-intrinsics.js"]
)
def test_published_tilt(shared_data: Path, name: str) -> None:
    """A tilted array bends the centers: the white images have the published tilt's signs."""
    found = read_compote(shared_data / name)
    folder = (shared_data / name).parent
    table = np.genfromtxt(folder / "center-R12-A.csv", delimiter=",", skip_header=1)
    columns, rows = table[:, 0], table[:, 1]
    camera = found.camera()
    p = camera.parameters
    away = (table[:, 2:] - camera.principal_point_px) * found.pixel_size_mm
    length = p.lens_to_array_mm + p.array_to_sensor_mm
    # C = X L / z' on the plane z' = b_L0 + X . tan: the centers' quadratic part is -C (C . tan) / L
    zero = np.zeros_like(columns)
    plain = [np.ones_like(columns), columns + 0.5 * (rows % 2 == 0), rows]
    bend = -away[:, :, None] * away[:, None, :] / length
    system = np.concatenate(
        [
            np.column_stack([*plain, zero, zero, zero, bend[:, 0]]),
            np.column_stack([zero, zero, zero, *plain, bend[:, 1]]),
        ]
    )
    right = np.concatenate([away[:, 0], away[:, 1]])
    fitted = np.linalg.lstsq(system, right, rcond=None)[0][6:]
    # 0.020 and 0.026 degrees fitted; published 0.016 and 0.022, 0.037 and 0.048, 0.016 and 0.028
    ratio = np.degrees(fitted) / found.array_tilt_deg
    assert ((ratio > 0.4) & (ratio < 1.4)).all()


def test_published_camera(published: CompoteIntrinsics) -> None:
    assert len(published.notes) == 1
    camera = published.camera()
    assert camera.grid.focal_planes is not None
    np.testing.assert_allclose(
        1.0 / (1.0 - 0.337126 / np.array(published.micro_focal_lengths_mm)),
        [2.373, 2.804, 2.509],
        atol=1e-3,
    )
    np.testing.assert_allclose(published.array_tilt_deg, [0.01555, 0.02228], atol=1e-5)
    assert published.parameters.array_to_sensor_mm == pytest.approx(0.337126, abs=1e-6)
    assert camera.parameters.array_to_sensor_mm == pytest.approx(0.343202, abs=1e-6)
    assert 26_000 < len(camera.grid) < 27_500
