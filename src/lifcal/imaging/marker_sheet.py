"""A PDF sheet of ArUco markers to print, with scales whose length is checked with a ruler."""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np

from lifcal.arrays import BoolArray
from lifcal.errors import ConfigError, InputError
from lifcal.imaging.markers import DICTIONARIES, DICTIONARY

PAPERS = {"a4": (210.0, 297.0), "a3": (297.0, 420.0), "letter": (215.9, 279.4)}
"""Width and height of a page in mm."""
_POINTS_PER_MM = 72.0 / 25.4
"""PDF files measure lengths in points of 1/72 inch."""
_MARGIN_MM = 15.0
"""Border of the page that is empty except for the scales; printers cannot print to the edge."""
_FOOT_MM = 24.0
"""Height of the text and the scale at the bottom."""
_GAP = 0.25
"""Distance between two markers relative to their side: twice the white margin that detection needs
around a code of 6 x 6 cells."""
_LABEL_MM = 4.0
"""Height of the line with the id below a marker."""
_RULER_MM = 100.0
"""Length of the printed scales, in mm."""


@dataclass(frozen=True)
class MarkerSheet:
    """Pages with markers.

    Parameters
    ----------
    content : bytes
        The PDF file.
    pages : tuple of tuple of int
        Ids of the markers on each page.
    size_mm : float
        Side of the black squares.
    """

    content: bytes
    pages: tuple[tuple[int, ...], ...]
    size_mm: float


def make_marker_sheet(
    size_mm: float = 40.0,
    *,
    paper: str = "a4",
    dictionary: str = DICTIONARY,
    first: int = 0,
    pages: int = 1,
) -> MarkerSheet:
    """Return as many markers as fit on the pages, each id once.

    Parameters
    ----------
    size_mm : float
        Side of the black squares.
    paper : str
        'a4', 'a3' or 'letter', upright.
    dictionary : str
        ArUco dictionary.
    first : int
        Id of the first marker.
    pages : int

    Raises
    ------
    ConfigError
        For a paper or a dictionary that is not known.
    InputError
        If no marker fits on a page, or the dictionary has fewer markers.
    """
    if paper not in PAPERS:
        raise ConfigError.unknown("paper", paper, PAPERS)
    if dictionary not in DICTIONARIES:
        raise ConfigError.unknown("marker dictionary", dictionary, DICTIONARIES)
    if pages < 1 or first < 0:
        raise InputError(f"pages is {pages}, first is {first}: need 1 or more, and 0 or more")
    if not 5.0 <= size_mm <= 1000.0:
        raise InputError(f"size is {size_mm:g} mm, needs 5 to 1000 mm")
    codes = cv2.aruco.getPredefinedDictionary(getattr(cv2.aruco, dictionary))
    width, height = PAPERS[paper]
    gap = _GAP * size_mm
    cols = int((width - 2.0 * _MARGIN_MM + gap) // (size_mm + gap))
    below = max(gap, _LABEL_MM)
    line_mm = size_mm + below
    rows = int((height - 2.0 * _MARGIN_MM - _FOOT_MM) // line_mm)
    if min(cols, rows) < 1:
        raise InputError(f"a marker of {size_mm:g} mm does not fit on {paper}")
    last = first + pages * rows * cols
    if last > len(codes.bytesList):
        raise InputError(
            f"{dictionary} has {len(codes.bytesList)} markers, {pages} pages from id {first} on "
            f"need {last}"
        )
    left = (width - cols * size_mm - (cols - 1) * gap) / 2.0
    streams, listed = [], []
    for page in range(pages):
        ids = range(first + page * rows * cols, first + (page + 1) * rows * cols)
        parts = _draw_foot(height, size_mm, dictionary)
        for place, marker_id in enumerate(ids):
            row, col = divmod(place, cols)
            x = left + col * (size_mm + gap)
            top = height - _MARGIN_MM - row * line_mm
            cells = codes.markerSize + 2
            code = cv2.aruco.generateImageMarker(codes, marker_id, cells) > 0
            parts += _draw_marker(np.asarray(code), x, top - size_mm, size_mm)
            # The label stands in the middle of the gap, outside of the marker's white margin.
            parts.append(_write(x, top - size_mm - below / 2.0 - 1.0, f"id {marker_id}", 6))
        streams.append("\n".join(parts))
        listed.append(tuple(ids))
    return MarkerSheet(_make_pdf(streams, width, height), tuple(listed), size_mm)


def _number(mm: float) -> str:
    return f"{mm * _POINTS_PER_MM:.4f}"


def _draw_marker(white: BoolArray, x: float, y: float, size: float) -> list[str]:
    """Return a black square with its white cells; (x, y) is its lower left corner, in mm."""
    cell = size / len(white)
    rectangles = [
        f"{_number(x + col * cell)} {_number(y + size - (row + 1) * cell)} {_number(cell)} "
        f"{_number(cell)} re"
        for row, col in np.argwhere(white).tolist()
    ]
    black = f"0 g {_number(x)} {_number(y)} {_number(size)} {_number(size)} re f"
    # All white cells are one path, because a viewer shows thin lines between separate paths.
    return [black, "1 g", *rectangles, "f 0 g"]


def _draw_foot(height: float, size: float, dictionary: str) -> list[str]:
    """Return the scales along the bottom and the left side, and the text that explains them."""
    x, y = _MARGIN_MM, _MARGIN_MM + 2.0
    left, low = 7.0, (height - _RULER_MM) / 2.0
    parts = ["0 G 0.5 w", _line(x, y, x + _RULER_MM, y), _line(left, low, left, low + _RULER_MM)]
    for tick in range(int(_RULER_MM / 10.0) + 1):
        reach = 3.0 if tick % 5 == 0 else 1.5
        parts.append(_line(x + 10.0 * tick, y, x + 10.0 * tick, y + reach))
        parts.append(_line(left, low + 10.0 * tick, left + reach, low + 10.0 * tick))
    lines = (
        f'{dictionary}, black squares of {size:g} mm. Print at 100 % (not "fit to page") on '
        "matte paper, and glue the sheet on something flat.",
        f"Check with a ruler: both scales are {_RULER_MM:g} mm long. Then measure several squares, "
        "and give their side to --marker-size-mm.",
    )
    parts += [_write(x, y + 12.0 - 4.5 * i, line, 8) for i, line in enumerate(lines)]
    parts.append(_write(x + _RULER_MM + 2.0, y, f"{_RULER_MM:g} mm", 8))
    parts.append(_write(left - 2.0, low - 4.0, f"{_RULER_MM:g} mm", 8))
    return parts


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f"{_number(x1)} {_number(y1)} m {_number(x2)} {_number(y2)} l S"


def _write(x: float, y: float, text: str, size: int) -> str:
    escaped = text.replace("\\", "\\\\").replace("(", "\\(").replace(")", "\\)")
    return f"BT /F1 {size} Tf {_number(x)} {_number(y)} Td ({escaped}) Tj ET"


def _make_pdf(streams: list[str], width: float, height: float) -> bytes:
    """Return a PDF file with one page for each stream of drawing commands."""
    n_pages = len(streams)
    kids = " ".join(f"{4 + 2 * page} 0 R" for page in range(n_pages))
    objects = [
        # With this setting, the print dialog of a viewer offers 100 % first.
        "<< /Type /Catalog /Pages 2 0 R /ViewerPreferences << /PrintScaling /None >> >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {n_pages} >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for page, stream in enumerate(streams):
        objects.append(
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 {_number(width)} {_number(height)}] "
            f"/Resources << /Font << /F1 3 0 R >> >> /Contents {5 + 2 * page} 0 R >>"
        )
        objects.append(f"<< /Length {len(stream.encode())} >>\nstream\n{stream}\nendstream")
    out = b"%PDF-1.7\n"
    places = []
    for number, body in enumerate(objects, start=1):
        places.append(len(out))
        out += f"{number} 0 obj\n{body}\nendobj\n".encode()
    table = "".join(f"{place:010d} 00000 n \n" for place in places)
    out += (
        f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{table}"
        f"trailer\n<< /Size {len(objects) + 1} /Root 1 0 R >>\nstartxref\n{len(out)}\n%%EOF\n"
    ).encode()
    return out
