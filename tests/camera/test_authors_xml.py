from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lifcal.camera import (
    BrownDistortion,
    DivisionDistortion,
    Lattice,
    MicroLensGrid,
    PhysicalParameters,
    PlenopticCamera,
)
from lifcal.camera._safe_xml import SIZE_LIMIT, parse_xml
from lifcal.camera.authors_xml import read_authors_xml, write_authors_xml
from lifcal.errors import DataError, InputError

NODES = {
    "ImageSize/Width": "<Width>1024</Width>",
    "ImageSize/Height": "<Height>1023</Height>",
    "PixelSize": '<PixelSize units="mm">0.00550</PixelSize>',
    "PrincipalPoint/x": "<x>510.25</x>",
    "PrincipalPoint/y": "<y>515.75</y>",
    "FocalLength": '<FocalLength units="mm">16.125</FocalLength>',
    "MainLensMlaDistance": '<MainLensMlaDistance units="mm">15.5</MainLensMlaDistance>',
    "SensorMlaDistance": '<SensorMlaDistance units="mm">4.0e-001</SensorMlaDistance>',
}
TEXT = f"""<?xml version="1.0" encoding="UTF-8"?>
<Root>
\t<CalibrationModel>Plenoptic</CalibrationModel>
\t<ImageSize units="pix">{NODES["ImageSize/Width"]}{NODES["ImageSize/Height"]}</ImageSize>
\t{NODES["PixelSize"]}
\t<PrincipalPoint>{NODES["PrincipalPoint/x"]}{NODES["PrincipalPoint/y"]}</PrincipalPoint>
\t{NODES["FocalLength"]}
\t{NODES["MainLensMlaDistance"]}
\t{NODES["SensorMlaDistance"]}
\t<RadialDistortion units="mm"><A0>-0.01</A0><A1>0.0002</A1></RadialDistortion>
\t<TangentialDistortion units="mm"><B0>1e-05</B0><B1>-2e-05</B1></TangentialDistortion>
\t<MicroLensCenterAdjustment>true</MicroLensCenterAdjustment>
</Root>
"""


def grid(width: int, height: int) -> MicroLensGrid:
    lattice = Lattice.regular("hexagonal-rows", 200.0, [width / 2, height / 2])
    return MicroLensGrid.from_lattice(lattice, (width, height))


def put(folder: Path, text: str | bytes) -> Path:
    path = folder / "CameraModel.xml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def fails(path: Path, *parts: str) -> str:
    with pytest.raises(DataError) as caught:
        read_authors_xml(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    for part in parts:
        assert part in message, message
    return message


def test_values(tmp_path: Path) -> None:
    found = read_authors_xml(put(tmp_path, TEXT))
    assert found.image_size == (2048, 2046)
    assert found.pixel_size_mm == 0.0055
    # the middle of a focused pixel is the middle of two raw pixels
    assert found.parameters == PhysicalParameters(16.125, 15.5, 0.4, 1021.0, 1032.0)
    camera = found.camera(grid(2048, 2047), scale_source="markers")
    assert camera.scale_source == "markers"
    assert camera.image_size == (2048, 2047)


def test_distortion_is_that_of_the_authors(tmp_path: Path, rng: np.random.Generator) -> None:
    found = read_authors_xml(put(tmp_path, TEXT))
    center = np.array([found.parameters.principal_x_px, found.parameters.principal_y_px])
    points = rng.uniform(0.0, 2000.0, (50, 2))
    x, y = ((points - center) * 0.0055).T
    r2 = x**2 + y**2
    radial = -0.01 * r2 + 0.0002 * r2**2
    b0, b1 = 1e-5, -2e-5
    expected_mm = np.stack(
        [
            x + x * radial + b0 * (r2 + 2 * x**2) + 2 * b1 * x * y,
            y + y * radial + b1 * (r2 + 2 * y**2) + 2 * b0 * x * y,
        ],
        axis=1,
    )
    np.testing.assert_allclose(
        found.distortion.distort(points, center), expected_mm / 0.0055 + center, rtol=1e-12
    )


@pytest.mark.parametrize("k2", [0.0, 1e-20])
def test_round_trip(tmp_path: Path, k2: float) -> None:
    camera = PlenopticCamera(
        PhysicalParameters(16.1 / 3.0, 5.2, 0.1 + 0.2, 1010.123, 1.0 / 0.00102),
        0.0055,
        grid(2048, 2048),
        BrownDistortion(-3e-7, 2e-13, k2, 1e-7, -2e-7),
    )
    path = tmp_path / "CameraModel.xml"
    write_authors_xml(path, camera)
    found = read_authors_xml(path).camera(camera.grid)
    np.testing.assert_allclose(
        found.parameters.as_vector(), camera.parameters.as_vector(), rtol=1e-14
    )
    np.testing.assert_allclose(
        found.distortion.parameters, camera.distortion.parameters, rtol=1e-14
    )
    assert found.pixel_size_mm == camera.pixel_size_mm
    assert parse_xml(path).findtext("ImageSize/Width") == "1024"


def test_without_distortion(tmp_path: Path) -> None:
    text = TEXT
    for name in ("RadialDistortion", "TangentialDistortion"):
        start, end = text.index(f"<{name}"), text.index(f"</{name}>")
        text = text[:start] + text[end + len(name) + 3 :]
    assert read_authors_xml(put(tmp_path, text)).distortion == BrownDistortion()


def test_wrong_use(tmp_path: Path) -> None:
    found = read_authors_xml(put(tmp_path, TEXT))
    with pytest.raises(InputError, match=r"2048 x 2046 px, the grid for 1024 x 1023"):
        found.camera(grid(1024, 1023))
    other = read_authors_xml(put(tmp_path, TEXT.replace(">true<", ">false<")))
    with pytest.raises(InputError, match="MicroLensCenterAdjustment"):
        other.camera(grid(2048, 2046))
    camera = PlenopticCamera(found.parameters, 0.0055, grid(2048, 2046), DivisionDistortion(-1e-8))
    with pytest.raises(InputError, match="'division'"):
        write_authors_xml(tmp_path / "x.xml", camera)


@pytest.mark.parametrize("place", NODES)
def test_missing_node(tmp_path: Path, place: str) -> None:
    fails(put(tmp_path, TEXT.replace(NODES[place], "")), f"node {place} is missing")


@pytest.mark.parametrize(
    ("old", "new", "part"),
    [
        ("16.125", "", "FocalLength is ''"),
        ("16.125", "16,1", "FocalLength is '16,1'"),
        ("16.125", "nan", "FocalLength is 'nan'"),
        ("16.125", "1_6", "FocalLength is '1_6'"),
        ("16.125", "-16", "f_L is -16.0 mm"),
        ("15.5", "0.3", "is not smaller than b_L0"),
        ("0.00550", "0", "PixelSize"),
        ("0.00550", "1e200", "PixelSize"),
        (">1024<", ">0<", "ImageSize/Width"),
        (">1024<", ">10.5<", "ImageSize/Width"),
        (">1024<", ">99999<", "larger than any sensor"),
        ("0.0002</A1>", "0.0002</A1><A3>1</A3>", "RadialDistortion/A3"),
        ("<B1>-2e-05</B1>", "", "TangentialDistortion/B1 is missing"),
        (">true<", ">perhaps<", "MicroLensCenterAdjustment"),
    ],
)
def test_wrong_values(tmp_path: Path, old: str, new: str, part: str) -> None:
    assert old in TEXT
    fails(put(tmp_path, TEXT.replace(old, new)), part)


# The XML reader itself


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text[text.index("<Root") :],  # no declaration
        lambda text: "\ufeff" + text,
        lambda text: " \r\n\t" + text,
        lambda text: "\ufeff\n" + text,
        lambda text: text.replace("\n", "\r\n"),
        lambda text: text.replace("<Root>", "<Root><!-- note --><Unknown><x>1</x></Unknown>"),
        lambda text: text.encode().decode().replace("UTF-8", "utf-16").encode("utf-16"),
    ],
)
def test_tolerated(tmp_path: Path, change: object) -> None:
    assert callable(change)
    expected = read_authors_xml(put(tmp_path, TEXT))
    assert read_authors_xml(put(tmp_path, change(TEXT))) == expected


def test_truncated_everywhere(tmp_path: Path) -> None:
    content = TEXT.encode().rstrip()
    for end in range(len(content)):
        fails(put(tmp_path, content[:end]))


def test_place_of_an_error(tmp_path: Path) -> None:
    fails(put(tmp_path, "\n\n<Root>\n<a></b></Root>"), "line 4, column 6", "mismatched tag")


def test_entity_bomb(tmp_path: Path) -> None:
    lines = ['<!ENTITY a0 "ha">']
    lines += [f'<!ENTITY a{i} "{f"&a{i - 1};" * 10}">' for i in range(1, 12)]
    text = f"<!DOCTYPE Root [{''.join(lines)}]><Root><PixelSize>&a11;</PixelSize></Root>"
    fails(put(tmp_path, text), "declares a document type")


def test_external_entity(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("0.0055")
    for text in (
        f'<!DOCTYPE Root [<!ENTITY x SYSTEM "{secret.as_uri()}">]><Root>&x;</Root>',
        f'<!DOCTYPE Root SYSTEM "{secret.as_uri()}"><Root/>',
    ):
        assert "0.0055" not in fails(put(tmp_path, text), "declares a document type")


def test_huge_binary_empty_and_absent(tmp_path: Path, rng: np.random.Generator) -> None:
    path = tmp_path / "huge.xml"
    with path.open("wb") as stream:
        stream.truncate(SIZE_LIMIT + 1)
    fails(path, "bytes")
    for content in (
        b"",
        b" \n\t",
        b"\x00" * 100,
        rng.bytes(2000),
        b"\xff\xfe",
        b"\x89PNG\r\n\x1a\n",
    ):
        fails(put(tmp_path, content))
    fails(put(tmp_path, '<?xml version="1.0" encoding="klingon"?><Root/>'))
    fails(put(tmp_path, '<?xml version="1.0" encoding="utf-7"?><Root/>'))
    fails(tmp_path / "absent.xml", "no such file")


def test_deep_nesting(tmp_path: Path) -> None:
    fails(put(tmp_path, "<a>" * 100_000 + "</a>" * 100_000), "PixelSize is missing")
