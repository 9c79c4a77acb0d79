from __future__ import annotations

import math
from pathlib import Path

import cv2
import numpy as np
import pytest
from scipy.spatial import cKDTree

from lifcal.camera import MicroLensGrid
from lifcal.errors import DataError
from lifcal.imaging.raytrix import RaytrixCalibration, RaytrixLensType, read_raytrix_xml

OFFSETS = {"row": [(0, 0), (1, 0), (-1, 0)], "column": [(0, 0), (-4.4e-8, 1), (4.4e-8, -1)]}
RANGES = [(1.0, 3.0), (2.8, 4.0), (3.8, 100.0)]


def lens_type(i: int, offset: tuple[float, float]) -> str:
    low, high = RANGES[i]
    return (
        f'  <lens_type id="{i}">\n'
        f'    <offset units="lens"><x>{offset[0]}</x><y>{offset[1]}</y></offset>\n'
        f"    <depth_range><min>{low}</min><max>{high}</max></depth_range>\n"
        "  </lens_type>\n"
    )


def make(kind: str = "row") -> str:
    rotation, sub_grid = (
        ("2.5e-005", (3.0, -1.7320508))
        if kind == "row"
        else (
            "1.570796370506",
            (1.7320507, 3.0),
        )
    )
    return (
        '<RayCalibData version="1.0">\n'
        '\t<offset units="pix">\n\t\t<x>7.25</x>\n\t\t<y>-3.5</y>\n\t</offset>\n'
        '  <diameter units="pix">24.5</diameter>\n'
        f'  <rotation units="rad">{rotation}</rotation>\n'
        '  <lens_border units="pix">1</lens_border>\n'
        '  <tcp units="virtual_depth">2.2</tcp>\n'
        f"  <sub_grid_base><x>{sub_grid[0]}</x><y>{sub_grid[1]}</y></sub_grid_base>\n"
        '  <distortion type="radial"><function>Brown</function>\n'
        '    <parameter count="2">-0.001;7.3e-004</parameter>\n'
        "    <offset><x>30</x><y>20</y></offset></distortion>\n"
        + "".join(lens_type(i, offset) for i, offset in enumerate(OFFSETS[kind]))
        + '  <k_matrix count="9"><row_1>50.0, 0.0 ,0.0</row_1><row_2>0.0 ,50.0 ,0.0</row_2>'
        "<row_3>0.0 , 0.0 , 1.0</row_3></k_matrix>\n"
        "</RayCalibData>"
    )


def put(folder: Path, text: str | bytes) -> Path:
    path = folder / "calib.xml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def fails(path: Path, *parts: str) -> None:
    with pytest.raises(DataError) as caught:
        read_raytrix_xml(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    for part in parts:
        assert part in message, message


def type_at(grid: MicroLensGrid, x: float, y: float) -> int:
    distance = np.hypot(*(grid.centers_raw_px - [x, y]).T)
    assert distance.min() < 0.01
    return int(grid.lens_types[distance.argmin()])


def test_values(tmp_path: Path) -> None:
    found = read_raytrix_xml(put(tmp_path, make()))
    assert found.offset_px == (7.25, -3.5)
    assert found.diameter_px == 24.5
    assert found.rotation_rad == 2.5e-5
    assert found.lens_border_px == 1.0
    assert found.total_covering_plane == 2.2
    assert found.lens_base_x is None
    assert found.sub_grid_base == (3.0, -1.7320508)
    assert [kind.depth_range for kind in found.lens_types] == RANGES
    assert found.lens_types[1].offset_lens == (1.0, 0.0)
    assert found.distortion is not None
    assert found.distortion.function == "Brown"
    assert found.distortion.parameters == (-0.001, 7.3e-4)
    assert found.distortion.offset_px == (30.0, 20.0)
    assert found.k_matrix == ((50.0, 0.0, 0.0), (0.0, 50.0, 0.0), (0.0, 0.0, 1.0))


@pytest.mark.parametrize("size", [(400, 300), (401, 301)])
def test_offset_is_from_the_middle_and_up(tmp_path: Path, size: tuple[int, int]) -> None:
    lattice = read_raytrix_xml(put(tmp_path, make())).lattice(size)
    middle = (np.array(size) - 1) / 2.0
    np.testing.assert_allclose(lattice.origin_px - middle, [7.25, 3.5])


def test_rotation_is_counter_clockwise() -> None:
    found = RaytrixCalibration((0.0, 0.0), 20.0, math.radians(5.0))
    lattice = found.lattice((200, 200))
    # as seen, the row through the middle rises to the right: y falls
    neighbors = lattice.centers([[1, 0], [0, 1], [-1, 0], [0, -1], [1, -1], [-1, 1]])
    right = neighbors[neighbors[:, 0].argmax()] - lattice.origin_px
    np.testing.assert_allclose(
        right, [20.0 * math.cos(math.radians(5)), -20.0 * math.sin(math.radians(5))]
    )
    assert lattice.pitch_px == pytest.approx(20.0)
    assert lattice.layout == "hexagonal"


def test_column_grid_is_turned_once(tmp_path: Path) -> None:
    lattice = read_raytrix_xml(put(tmp_path, make("column"))).lattice((400, 300))
    assert abs(lattice.rotation_rad) == pytest.approx(math.pi / 6, abs=1e-6)
    offsets = lattice.centers([[1, 0], [0, 1], [1, -1]]) - lattice.origin_px
    assert np.isclose(np.abs(offsets), [0.0, 24.5], atol=1e-5).all(axis=1).sum() == 1


@pytest.mark.parametrize("kind", ["row", "column"])
def test_types(tmp_path: Path, kind: str) -> None:
    found = read_raytrix_xml(put(tmp_path, make(kind)))
    for reverse in (False, True):
        grid = found.grid((400, 300), reverse_types=reverse)
        assert grid.lattice is not None
        x, y = grid.lattice.origin_px
        step = np.array([24.5, 0.0]) if kind == "row" else np.array([0.0, -24.5])
        sign = 1.0 if reverse else -1.0
        assert type_at(grid, x, y) == 0
        assert type_at(grid, *(np.array([x, y]) + sign * step)) == 1
        assert type_at(grid, *(np.array([x, y]) - sign * step)) == 2
        counts = np.bincount(grid.lens_types, minlength=3)
        assert counts.min() > 0.8 * counts.max()
        # no two of the six around a lens are of its own type
        tree = cKDTree(grid.centers_raw_px)
        pairs = tree.query_pairs(1.1 * 24.5, output_type="ndarray")
        assert (grid.lens_types[pairs[:, 0]] != grid.lens_types[pairs[:, 1]]).all()


def test_radius_leaves_the_border_out(tmp_path: Path) -> None:
    grid = read_raytrix_xml(put(tmp_path, make())).grid((400, 300))
    assert grid.radius_px == 24.5 / 2.0 - 1.0
    assert grid.focal_planes is None
    assert grid.image_size == (400, 300)


def test_types_without_sub_grid(tmp_path: Path) -> None:
    text = make()
    start, end = text.index("  <sub_grid_base"), text.index("</sub_grid_base>\n")
    short = text[:start] + text[end + len("</sub_grid_base>\n") :]
    size = (400, 300)
    found, whole = (read_raytrix_xml(put(tmp_path, t)).lattice(size) for t in (short, text))
    assert found.type_rule == whole.type_rule


@pytest.mark.parametrize("kept", [0, 1])
def test_one_type(tmp_path: Path, kept: int) -> None:
    text = make()
    for i in range(kept, 3):
        text = text.replace(lens_type(i, OFFSETS["row"][i]), "")
    found = read_raytrix_xml(put(tmp_path, text))
    assert len(found.lens_types) == 1
    grid = found.grid((400, 300))
    assert grid.n_types == 1
    assert not grid.lens_types.any()
    bare = text.replace('<offset units="lens"><x>0</x><y>0</y></offset>', "")
    assert read_raytrix_xml(put(tmp_path, bare)).lens_types[0].offset_lens == (0.0, 0.0)


def test_two_types() -> None:
    kinds = (RaytrixLensType((0.0, 0.0)), RaytrixLensType((1.0, 0.0)))
    grid = RaytrixCalibration((0.0, 0.0), 20.0, 0.0, lens_types=kinds).grid((200, 200))
    assert grid.lattice is not None
    x, y = grid.lattice.origin_px
    assert [type_at(grid, x + 20.0 * i, y) for i in range(-2, 3)] == [0, 1, 0, 1, 0]


def test_ids_decide_not_the_order(tmp_path: Path) -> None:
    text = make()
    parts = [lens_type(i, OFFSETS["row"][i]) for i in range(3)]
    expected = read_raytrix_xml(put(tmp_path, text))
    shuffled = text.replace("".join(parts), parts[2] + parts[0] + parts[1])
    assert read_raytrix_xml(put(tmp_path, shuffled)) == expected


@pytest.mark.parametrize(
    ("node", "name"),
    [
        ("\t\t<x>7.25</x>\n", "offset/x"),
        ("\t\t<y>-3.5</y>\n", "offset/y"),
        ('\t<offset units="pix">\n\t\t<x>7.25</x>\n\t\t<y>-3.5</y>\n\t</offset>\n', "offset/x"),
        ('  <diameter units="pix">24.5</diameter>\n', "diameter"),
        ('  <rotation units="rad">2.5e-005</rotation>\n', "rotation"),
        ("<x>3.0</x>", "sub_grid_base/x"),
        ('<offset units="lens"><x>1</x><y>0</y></offset>', "lens_type[1]/offset"),
        ("<x>-1</x>", "lens_type[2]/offset/x"),
        ("<min>2.8</min>", "lens_type[1]/depth_range/min"),
        ("<row_2>0.0 ,50.0 ,0.0</row_2>", "k_matrix/row_2"),
        ("<y>20</y>", "distortion/offset/y"),
    ],
)
def test_missing_node(tmp_path: Path, node: str, name: str) -> None:
    assert node in make()
    fails(put(tmp_path, make().replace(node, "")), f"node {name} is missing")


@pytest.mark.parametrize(
    "node",
    ["lens_border", "tcp", "distortion", "k_matrix"],
)
def test_optional_node(tmp_path: Path, node: str) -> None:
    text = make()
    end = text.index(f"</{node}>") + len(node) + 3
    short = text[: text.index(f"<{node}")] + text[end:]
    size = (400, 300)
    found, whole = (read_raytrix_xml(put(tmp_path, t)).lattice(size) for t in (short, text))
    np.testing.assert_array_equal(found.basis_px, whole.basis_px)


@pytest.mark.parametrize(
    ("old", "new", "part"),
    [
        (">24.5<", ">0<", "diameter is 0"),
        (">24.5<", ">x<", "diameter is 'x'"),
        (">24.5<", "><", "diameter is ''"),
        (">24.5<", ">1e300<", "diameter"),
        (">7.25<", ">1e9<", "offset"),
        (">2.5e-005<", ">1e9<", "rotation"),
        (">2.5e-005<", ">inf<", "rotation"),
        (">2.5e-005<", ">0.5<", "rotation and lens_type"),
        ('"pix">1<', '"pix">12<', "lens_border"),
        ('"pix">1<', '"pix">-1<', "lens_border"),
        ('id="2"', 'id="1"', "id '1'"),
        ('id="2"', 'id="7"', "id '7'"),
        ('id="2"', 'id="two"', "id 'two'"),
        ("<x>-1</x>", "<x>1</x>", "no regular pattern"),
        ("<x>-1</x>", "<x>-1e9</x>", "larger than any grid"),
        ("<x>-1</x>", "<x>-1.5</x>", "away from any lens"),
        ("-0.001;", "-0.001;a;", "distortion/parameter is 'a'"),
        ("50.0, 0.0 ,0.0", "50.0", "k_matrix/row_1"),
        ("RayCalibData", "Calibration", "RayCalibData"),
        ("  <k_matrix", f"{lens_type(0, (0, 0))}  <k_matrix", "4 nodes lens_type"),
    ],
)
def test_wrong_values(tmp_path: Path, old: str, new: str, part: str) -> None:
    assert old in make()
    fails(put(tmp_path, make().replace(old, new)), part)


def test_truncated_everywhere(tmp_path: Path) -> None:
    content = make().encode()
    for end in range(len(content)):
        fails(put(tmp_path, content[:end]))


def test_flipped_bytes_give_values_or_a_known_error(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    content = bytearray(make().encode())
    for _ in range(1500):
        broken = content.copy()
        for position in rng.integers(0, len(content), 2):
            broken[position] = rng.integers(0, 256)
        path = put(tmp_path, bytes(broken))
        try:
            read_raytrix_xml(path)
            message = ""
        except DataError as error:
            message = str(error)
        assert "\n" not in message


def test_hostile_files(tmp_path: Path, rng: np.random.Generator) -> None:
    body = make()
    fails(put(tmp_path, f'<!DOCTYPE a [<!ENTITY x "1">]>{body}'), "declares a document type")
    fails(put(tmp_path, f'<!DOCTYPE a SYSTEM "http://localhost/a.dtd">{body}'), "document type")
    fails(put(tmp_path, rng.bytes(4000)))
    fails(put(tmp_path, body + " " * 10_000_000), "bytes")
    fails(tmp_path, "folder")


# The makers' files

REAL = {
    "Cards2_20171204_162425627_0000008378_Processed.xml": (38.3737792969, -2.5423e-5, 3),
    "Specular_20171204_155557522_0000005343_Processed.xml": (38.3737792969, -2.5423e-5, 3),
    "NagoyaOrigami_Fujita_R5_calib.xml": (23.202295303345, math.pi / 6, 3),
    "tree_Calibration.xml": (23.213624954224, math.pi / 6, 3),
    "R42.xml": (34.864704132080, 0.0, 3),
    "TempleBoatGiantR32_calib.xml": (37.154060363770, -0.000696571665, 3),
}


@pytest.mark.parametrize("name", REAL)
def test_makers_file(shared_data: Path, name: str) -> None:
    pitch, rotation, n_types = REAL[name]
    found = read_raytrix_xml(shared_data / "raytrix-xml" / name)
    lattice = found.lattice((2048, 2048))
    assert lattice.layout == "hexagonal"
    assert lattice.pitch_px == pytest.approx(pitch, rel=1e-9)
    assert lattice.rotation_rad == pytest.approx(rotation, abs=1e-6)
    assert lattice.n_types == n_types
    np.testing.assert_allclose(
        lattice.origin_px, [1023.5 + found.offset_px[0], 1023.5 - found.offset_px[1]]
    )
    # lens_base_x is a lens of the lattice, if it is not turned once more
    for base in (found.lens_base_x, found.lens_base_y):
        assert base is not None
        offset = np.array(base) * [1.0, -1.0] * found.diameter_px
        exact = offset @ np.linalg.inv(lattice.basis_px)
        np.testing.assert_allclose(exact, np.rint(exact), atol=2e-3)
    # every type is where its offset points, looked at from the central lens
    for i, kind in enumerate(found.lens_types):
        offset = -np.array(kind.offset_lens) * [1.0, -1.0] * found.diameter_px
        indices = np.rint(offset @ np.linalg.inv(lattice.basis_px)).astype(np.int64)
        assert lattice.types(indices[None]) == [i]
    lows = [kind.depth_range[0] for kind in found.lens_types if kind.depth_range]
    assert len(lows) == 3
    assert lows == sorted(lows)
    assert found.total_covering_plane is not None
    assert 2.0 < found.total_covering_plane < 2.3
    assert (found.k_matrix is not None) == ("R32" in name)


# A raw of an R42: 964 x 670, cut out of a larger one


@pytest.fixture(scope="module")
def r42(shared_data: Path) -> tuple[np.ndarray, RaytrixCalibration]:
    image = cv2.imread(str(shared_data / "R42" / "sc2_klein.png"), cv2.IMREAD_UNCHANGED)
    assert image is not None
    return image, read_raytrix_xml(shared_data / "R42" / "sc2_klein.xml")


def test_grid_on_the_raw(r42: tuple[np.ndarray, RaytrixCalibration]) -> None:
    """Between micro images the raw has edges: gradients are strongest outside the right circles.

    The raw has its vignetting removed, so brightness says nothing. Its micro images are
    (2.5, 2.2) px from where the file has them, presumably because it was not cut quite from the
    middle of the whole raw; by halves this differs by 0.3 px, so pitch and rotation are right.
    """
    image, calibration = r42
    height, width = image.shape[:2]
    gray = image.astype(np.float64)
    gradient = sum(
        cv2.Sobel(gray[..., k], cv2.CV_64F, i, 1 - i) ** 2 for k in range(3) for i in (0, 1)
    )
    strength = np.log(np.sqrt(gradient) + 5.0)
    y, x = np.mgrid[30 : height - 30 : 2, 30 : width - 30 : 3]
    points = np.stack([x.ravel(), y.ravel()], axis=1).astype(np.float64)
    values = strength[y, x].ravel()
    grid = calibration.grid((width, height))
    tree = cKDTree(grid.centers_raw_px)
    half = calibration.diameter_px / 2.0

    def contrast(shift: tuple[float, float], part: np.ndarray) -> float:
        radius, _ = tree.query(points[part] - shift)
        seen = values[part]
        return float(seen[radius > half - 0.5].mean() - seen[radius < half - 1.5].mean())

    everywhere = np.arange(len(points)) % 7 == 0  # enough for the coarse search
    steps = np.arange(-15.0, 15.1, 2.5)
    best = max(((dx, dy) for dx in steps for dy in steps), key=lambda s: contrast(s, everywhere))
    assert best == (2.5, 2.5)
    fine = np.arange(1.0, 4.1, 0.75)
    for part in (points[:, 0] < 482, points[:, 0] >= 482, points[:, 1] < 335, points[:, 1] >= 335):
        found = max(((dx, dy) for dx in fine for dy in fine), key=lambda s: contrast(s, part))
        assert math.hypot(found[0] - 2.5, found[1] - 2.2) < 0.8


def test_types_on_the_raw(r42: tuple[np.ndarray, RaytrixCalibration]) -> None:
    """Nearly all of the scene is at virtual depths of 5 to 10: the far type is the sharpest."""
    image, calibration = r42
    height, width = image.shape[:2]
    gray = image.astype(np.float64).mean(axis=2)
    detail = cv2.Laplacian(gray, cv2.CV_64F) ** 2
    grid = calibration.grid((width, height))
    y, x = np.mgrid[20 : height - 20, 20 : width - 20]
    radius, lens = cKDTree(grid.centers_raw_px).query(np.stack([x.ravel(), y.ravel()], axis=1))
    inner = radius < calibration.diameter_px / 2.0 - 5.0
    kinds = grid.lens_types[lens[inner]]
    energy = np.array([detail[y, x].ravel()[inner][kinds == i].mean() for i in range(3)])
    assert energy[2] > 1.2 * energy[1] > 1.2 * 1.2 * energy[0]
