"""The sheet as it is printed: drawn here from the commands of the PDF, and read by OpenCV."""

import re

import cv2
import numpy as np
import pytest

from lifcal.errors import ConfigError, InputError
from lifcal.imaging.marker_sheet import PAPERS, make_marker_sheet

PX_PER_MM = 2
POINT_MM = 25.4 / 72.0


def draw_pages(content):
    """Fill the rectangles of every page, black or white, as a printer does."""
    assert content.startswith(b"%PDF-")
    assert content.endswith(b"%%EOF\n")
    text = content.decode("ascii")
    sizes = re.findall(r"/MediaBox \[0 0 ([\d.]+) ([\d.]+)\]", text)
    pages = []
    streams = re.findall(r"/Length (\d+) >>\nstream\n(.*?)\nendstream", text, re.DOTALL)
    for (width, height), (length, stream) in zip(sizes, streams, strict=True):
        assert len(stream) == int(length)
        shape = [round(float(n) * POINT_MM * PX_PER_MM) for n in (height, width)]
        page = np.full(shape, 255, np.uint8)
        gray = 0
        for word in re.findall(r"([01]) g\b|([\d. ]+) re\b", stream):
            if word[0]:
                gray = 255 * int(word[0])
                continue
            x, y, w, h = (float(n) * POINT_MM * PX_PER_MM for n in word[1].split())
            rows = slice(round(shape[0] - y - h), round(shape[0] - y))
            page[rows, round(x) : round(x + w)] = gray
        pages.append(page)
    return pages


@pytest.mark.parametrize(
    ("size_mm", "paper", "dictionary"),
    [(60.0, "a4", "DICT_6X6_250"), (50.0, "letter", "DICT_4X4_250")],
)
def test_printed_markers_are_found_with_their_size(size_mm, paper, dictionary):
    sheet = make_marker_sheet(size_mm, paper=paper, dictionary=dictionary, first=3, pages=2)
    images = draw_pages(sheet.content)
    codes = cv2.aruco.getPredefinedDictionary(getattr(cv2.aruco, dictionary))
    detector = cv2.aruco.ArucoDetector(codes)
    width, height = PAPERS[paper]
    for image, ids in zip(images, sheet.pages, strict=True):
        assert image.shape == (round(height * PX_PER_MM), round(width * PX_PER_MM))
        corners, found, _ = detector.detectMarkers(image)
        assert sorted(found.ravel().tolist()) == list(ids)
        sides = np.linalg.norm(np.diff(np.array(corners)[:, 0], axis=1), axis=2)
        np.testing.assert_allclose(sides / PX_PER_MM, size_mm, atol=0.6)  # a pixel is 0.5 mm
    assert sheet.pages[0][0] == 3
    assert sheet.pages[1][0] == sheet.pages[0][-1] + 1


def test_cross_references_lead_to_their_objects():
    content = make_marker_sheet(pages=2).content
    start = int(content.split(b"startxref\n")[1].split()[0])
    assert content[start:].startswith(b"xref\n")
    entries = re.findall(rb"(\d{10}) 00000 n", content[start:])
    for number, place in enumerate(entries, start=1):
        assert content[int(place) :].startswith(b"%d 0 obj\n" % number)
    assert len(entries) == 3 + 2 * 2


def test_rulers_are_100_mm_long():
    text = make_marker_sheet().content.decode("ascii")
    lines = np.array(re.findall(r"([\d.]+) ([\d.]+) m ([\d.]+) ([\d.]+) l S", text), float)
    lengths = np.hypot(lines[:, 2] - lines[:, 0], lines[:, 3] - lines[:, 1]) * POINT_MM
    assert sorted(lengths)[-2:] == pytest.approx([100.0, 100.0], abs=1e-3)


def test_sheets_that_cannot_be_made():
    with pytest.raises(InputError, match="300 mm does not fit on a4"):
        make_marker_sheet(300.0)
    with pytest.raises(InputError, match="needs 5 to 1000 mm"):
        make_marker_sheet(float("nan"))
    with pytest.raises(InputError, match="DICT_6X6_250 has 250 markers"):
        make_marker_sheet(first=245)
    with pytest.raises(InputError, match="pages is 0"):
        make_marker_sheet(pages=0)
    with pytest.raises(ConfigError, match="paper"):
        make_marker_sheet(paper="a5")
    with pytest.raises(ConfigError, match="dictionary"):
        make_marker_sheet(dictionary="DICT_6X6")
