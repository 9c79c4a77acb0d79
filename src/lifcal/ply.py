"""Headers of PLY files, shared by all functions that write such files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class PlyElement:
    """One kind of element of a PLY file, for example its vertices.

    Parameters
    ----------
    name : str
        'vertex', 'edge' or 'face'.
    count : int
    properties : sequence of str
        Types and names of the columns in order, for example 'float x'.
    """

    name: str
    count: int
    properties: Sequence[str]


def format_header(
    elements: Sequence[PlyElement], *, comment: str = "", binary: bool = False
) -> str:
    """Return the header of a PLY file, up to and including the line `end_header`.

    Parameters
    ----------
    elements : sequence of PlyElement
    comment : str
        A comment of one line; '' writes none.
    binary : bool
        Whether the rows after the header are little-endian binary numbers; otherwise they are text.
    """
    lines = ["ply", f"format {'binary_little_endian' if binary else 'ascii'} 1.0"]
    if comment:
        lines.append(f"comment {comment}")
    for element in elements:
        lines.append(f"element {element.name} {element.count}")
        lines += [f"property {each}" for each in element.properties]
    return "\n".join([*lines, "end_header"]) + "\n"
