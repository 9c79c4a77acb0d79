"""Reading XML from untrusted sources: no DTD, no entities, limited size, errors with their place.

Camera makers' files may lack the XML declaration, or have a byte order mark, white space before the
declaration, tabs, exponents such as `e-005` and unknown nodes. All of these are accepted.
"""

from __future__ import annotations

import math
from pathlib import Path
from xml.etree.ElementTree import Element, ParseError
from xml.parsers.expat import ErrorString

from defusedxml import DefusedXmlException
from defusedxml.ElementTree import fromstring

from lifcal.errors import DataError
from lifcal.files import read_bytes

SIZE_LIMIT = 10_000_000
"""Largest size of a file that is read, in bytes. A calibration file has a few thousand."""

_UTF8_MARK = b"\xef\xbb\xbf"
_WHITE = b" \t\r\n"


def parse_xml(path: Path) -> Element:
    """Return the root node of an XML file.

    Raises
    ------
    DataError
        If the file is missing, longer than 10 MB, not well formed (with line and column), or
        declares a document type or an entity.
    """
    content = read_bytes(path, limit=SIZE_LIMIT)
    body = content.removeprefix(_UTF8_MARK)
    stripped = body.lstrip(_WHITE)
    skipped_lines = body[: len(body) - len(stripped)].count(b"\n")
    if not stripped:
        raise DataError(f"{path}: is empty, needs XML")
    try:
        root: Element = fromstring(
            stripped, forbid_dtd=True, forbid_entities=True, forbid_external=True
        )
    except ParseError as error:
        line, column = error.position
        what = ErrorString(error.code)
        raise DataError(
            f"{path}: not valid XML at line {line + skipped_lines}, column {column + 1}: {what}"
        ) from None
    except DefusedXmlException as error:
        raise DataError(
            f"{path}: declares a document type or an entity, which is not read "
            f"({type(error).__name__})"
        ) from None
    except (ValueError, LookupError) as error:  # an encoding that the parser does not know
        raise DataError(f"{path}: not readable XML: {shorten(str(error))}") from None
    return root


def require_node(path: Path, parent: Element, place: str, prefix: str = "") -> Element:
    """Return the node at `place` ('offset/x') below `parent`.

    `prefix` is the place of `parent` in the file, for the error message.
    """
    node = parent.find(place)
    if node is None:
        raise DataError(f"{path}: node {prefix}{place} is missing")
    return node


def require_float(path: Path, parent: Element, place: str, prefix: str = "") -> float:
    """Return the number in the node at `place` below `parent`."""
    text = (require_node(path, parent, place, prefix).text or "").strip()
    return parse_float(path, text, f"{prefix}{place}")


def optional_float(path: Path, parent: Element, place: str, prefix: str = "") -> float | None:
    """Return the number in the node at `place` below `parent`, or None if there is no such node."""
    if parent.find(place) is None:
        return None
    return require_float(path, parent, place, prefix)


def optional_pair(
    path: Path, parent: Element, place: str, names: tuple[str, str] = ("x", "y"), prefix: str = ""
) -> tuple[float, float] | None:
    """Return the two numbers below the node at `place`, or None if there is no such node.

    A node that exists must have both numbers.
    """
    if parent.find(place) is None:
        return None
    first, second = (require_float(path, parent, f"{place}/{name}", prefix) for name in names)
    return first, second


def parse_float(path: Path, text: str, place: str) -> float:
    """Return `text` as a finite number; the message of the DataError names `place`."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or "_" in text:
        raise DataError(f"{path}: node {place} is {shorten(repr(text))}, needs a number")
    return value


def shorten(text: str, limit: int = 60) -> str:
    """Return `text` on one line, cut to `limit` characters."""
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 3] + "..."
