from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from lifcal.camera import Lattice
from lifcal.camera._safe_xml import parse_xml
from lifcal.errors import DataError, InputError
from lifcal.imaging.camera_formats import read_camera_file
from lifcal.imaging.raytrix import read_raytrix_xml
from lifcal.imaging.tspc import read_tspc_xml

PITCH_PX = 30.15
TURN_RAD = 0.002
SIZE = (500, 400)


def true_centers(in_columns: bool, n_columns: int, n_rows: int, side: float = 0.5) -> np.ndarray:
    """Return centers (n_rows, n_columns, 2); every other column (or row) is shifted by `side`."""
    row, column = np.mgrid[:n_rows, :n_columns].astype(float)
    if in_columns:
        x, y = math.sqrt(0.75) * column, row + side * (column % 2)
    else:
        x, y = column + side * (row % 2), math.sqrt(0.75) * row
    cos, sin = math.cos(TURN_RAD), math.sin(TURN_RAD)
    turned = np.stack([cos * x - sin * y, sin * x + cos * y], axis=-1)
    return PITCH_PX * turned + [17.4, 21.8]


def make(centers: str, *, diameter: object = 30, rotation: object = "1.57079632679") -> str:
    return (
        '<?xml version="1.0" ?>\n<TSPCCalibData>\n'
        f'  <diameter unit="pix">{diameter}</diameter>\n'
        f'  <rotation unit="rad">{rotation}</rotation>\n'
        f"  <centers>{centers}</centers>\n</TSPCCalibData>"
    )


def corners(points: np.ndarray) -> str:
    four = {"ltop": (0, 0), "rtop": (0, -1), "lbot": (-1, 0), "rbot": (-1, -1)}
    return "".join(
        f"<{name}><x>{points[place][0]}</x><y>{points[place][1]}</y></{name}>"
        for name, place in four.items()
    )


def listed(points: np.ndarray, **changes: object) -> str:
    rows, columns = points.shape[:2]
    nodes = {
        "rows": rows,
        "cols": columns,
        "coords": " ".join(f"{number:.4f}" for number in points.ravel()),
        **changes,
    }
    return "".join(
        f"<{name}>{value}</{name}>" for name, value in nodes.items() if value is not None
    )


def put(folder: Path, text: str) -> Path:
    path = folder / "calib.xml"
    path.write_text(text)
    return path


def fails(path: Path, *parts: str) -> None:
    with pytest.raises(DataError) as caught:
        read_camera_file(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    for part in parts:
        assert part in message, message


def distances(lattice: Lattice, points: np.ndarray) -> np.ndarray:
    exact = (points.reshape(-1, 2) - lattice.origin_px) @ np.linalg.inv(lattice.basis_px)
    return np.hypot(*((exact - np.rint(exact)) @ lattice.basis_px).T)


@pytest.mark.parametrize("in_columns", [True, False], ids=["columns", "rows"])
@pytest.mark.parametrize("side", [0.5, -0.5])
@pytest.mark.parametrize(("n_columns", "n_rows"), [(16, 12), (15, 13), (17, 12)])
@pytest.mark.parametrize("kind", [corners, listed])
def test_lattice_goes_through_the_centers(
    tmp_path: Path, in_columns: bool, side: float, n_columns: int, n_rows: int, kind: object
) -> None:
    points = true_centers(in_columns, n_columns, n_rows, side)
    rotation = math.pi / 2.0 if in_columns else 0.0
    found = read_tspc_xml(put(tmp_path, make(kind(points), rotation=rotation)))  # type: ignore[operator]
    assert found.in_columns == in_columns
    assert found.has_all == (kind is listed)
    assert distances(found.lattice, points).max() < 1e-3
    assert found.lattice.pitch_px == pytest.approx(PITCH_PX, rel=1e-5)
    assert found.rms_off_px < 1e-3
    grid = found.grid(SIZE)
    assert grid.n_types == 1
    assert len(grid) > 0.9 * n_columns * n_rows


def test_centers_off_the_lattice_are_said(tmp_path: Path) -> None:
    points = true_centers(True, 16, 12)
    points[..., 1] += 0.5 * ((points[..., 0] - 200.0) / 200.0) ** 2
    found = read_camera_file(put(tmp_path, make(listed(points))))
    assert found.kind == "TSPC calibration"
    assert "px (rms) off the regular grid" in found.notes[0]
    with pytest.raises(InputError, match="image size"):
        found.grid()
    assert found.grid(SIZE).image_size == SIZE
    with pytest.raises(InputError, match="no calibrated camera"):
        found.camera()


CORNERS = corners(true_centers(True, 16, 12))
ALL = listed(true_centers(True, 4, 4))


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (
            make(CORNERS).replace("<diameter", "<width").replace("</diameter", "</width"),
            ["diameter"],
        ),
        (make(CORNERS, diameter="nan"), ["diameter", "needs a number"]),
        (make(CORNERS, diameter=1e9), ["diameter", "10000"]),
        (make(CORNERS, diameter=35), ["lattice"]),
        (make(CORNERS, rotation=0.3), ["rotation", "pi/2"]),
        (make(CORNERS, rotation="1e300"), ["rotation", "pi/2"]),
        (make(CORNERS, rotation=0), ["lattice"]),
        (make(CORNERS, rotation="inf"), ["rotation", "needs a number"]),
        (make(""), ["centers/ltop/x is missing"]),
        (make(CORNERS.replace("rbot", "right_bottom")), ["centers/rbot/x is missing"]),
        (make(CORNERS.replace("<x>", "<x>1e300", 1)), ["centers"]),
        (make(CORNERS.replace("<x>", "<x>1e306", 1)), ["centers"]),
        (make(CORNERS.replace("<y>", "<y>x", 1)), ["centers/ltop/y", "needs a number"]),
        (make(CORNERS.replace("ltop", "a").replace("rtop", "ltop").replace("<a>", "<rtop>")), []),
        (make(ALL.replace("<rows>4", "<rows>5")), ["32 numbers", "needs 40"]),
        (
            make(ALL.replace("<rows>4", "<rows>1e5").replace("<cols>4", "<cols>1e5")),
            ["more than any sensor"],
        ),
        (make(ALL.replace("<rows>4", "<rows>4.5")), ["centers/rows", "whole number"]),
        (make(ALL.replace("<cols>4", "<cols>-4")), ["centers/cols", "whole number"]),
        (make(ALL.replace("<coords>", "<coords>nan ").replace(" ", "", 1)), ["coords"]),
        (make(ALL.replace("<coords>17.4", "<coords>nan")), ["coords", "needs a number"]),
        (make(ALL.replace("<coords>17.4000", "<coords>1e300")), ["outside any sensor"]),
        (make(ALL.replace("<coords>17.4", "<coords>37.4")), ["off a hexagonal lattice"]),
        (make(listed(true_centers(True, 4, 4), rows=None)), ["centers/rows is missing"]),
        (make(CORNERS).replace("TSPCCalibData", "TSPC2"), ["no camera file that lifcal knows"]),
    ],
)
def test_malformed(tmp_path: Path, text: str, parts: list[str]) -> None:
    fails(put(tmp_path, text), *parts)


def test_every_truncated_file_gets_one_line(tmp_path: Path) -> None:
    for text in (make(CORNERS), make(ALL)):
        for end in range(0, len(text), 13):
            fails(put(tmp_path, text[:end]))


def test_entities_are_refused(tmp_path: Path) -> None:
    bomb = '<!DOCTYPE a [<!ENTITY b "' + "9" * 100 + '">]>'
    text = make(CORNERS).replace("<TSPCCalibData>", bomb + "<TSPCCalibData>")
    fails(put(tmp_path, text), "document type or an entity")


def test_another_root(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="needs TSPCCalibData"):
        read_tspc_xml(put(tmp_path, "<RayCalibData/>"))


# The makers' own files


REAL = {
    "maker-xml/TSPC_MiniGarden2_rlc50.xml": (4, 70.384),
    "maker-xml/TSPC_calib-coords.xml": (2838, 70.416),
    "mpeg-lvc/HandTools/calib-tspc.xml": (4, 70.380),
}


@pytest.mark.parametrize("name", REAL)
def test_real_files(shared_data: Path, name: str) -> None:
    count, pitch = REAL[name]
    found = read_tspc_xml(shared_data / name)
    assert len(found.centers_px) == count
    assert found.in_columns
    assert found.lattice.pitch_px == pytest.approx(pitch, abs=1e-3)
    assert found.rms_off_px < 1.1  # these arrays bend
    assert 3000 < len(found.grid((4036, 3064))) < 3100


def test_real_files_agree(shared_data: Path) -> None:
    """Two recordings of one camera: their corners are the same to a pixel or so."""
    first, _, second = (read_tspc_xml(shared_data / name) for name in REAL)
    assert np.abs(first.centers_px - second.centers_px).max() <= 1.0


@pytest.mark.parametrize(
    "name",
    [
        "maker-xml/ComplexObjectMove.xml",
        "maker-xml/R8_Boxer-IrishMan-Gladiator2.xml",
        "maker-xml/UnicornLinearCam.xml",
        "mpeg-lvc/HandTools/calib.xml",
    ],
)
def test_real_raytrix_files(shared_data: Path, name: str) -> None:
    path = shared_data / name
    found = read_raytrix_xml(path)
    assert len(found.lens_types) == 3
    assert found.grid((3840, 2160)).n_types == 3
    says = parse_xml(path).find("isReal") is not None
    assert found.is_real == (True if says else None)
    assert len(read_camera_file(path).notes) == says
