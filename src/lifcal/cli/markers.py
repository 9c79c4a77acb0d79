"""`lifcal markers`: a sheet of markers to print."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from lifcal.cli._console import output, verb
from lifcal.cli._options import AsJson
from lifcal.errors import InputError


@verb()
def markers(
    out: Annotated[Path, typer.Option("-o", "--output", help="PDF file to write.")] = Path(
        "markers.pdf"
    ),
    size_mm: Annotated[float, typer.Option(help="Side of the black squares, in mm.")] = 40.0,
    paper: Annotated[str, typer.Option(help="Size of the paper: a4, a3 or letter.")] = "a4",
    pages: Annotated[int, typer.Option(help="Number of pages; no id is repeated.")] = 1,
    first: Annotated[int, typer.Option(help="Id of the first marker.")] = 0,
    dictionary: Annotated[
        str, typer.Option(help="ArUco dictionary of the markers.")
    ] = "DICT_6X6_250",
    as_json: AsJson = False,
) -> None:
    """Make a PDF with ArUco markers that give a calibration its scale.

    Print it at 100 %, check both scales on the page with a ruler, lay it into the scene, and give
    the measured side of the squares to lifcal calibrate --marker-size-mm.
    """
    from lifcal.files import write_bytes
    from lifcal.imaging.marker_sheet import make_marker_sheet

    if out.suffix.lower() != ".pdf":
        raise InputError(f"{out}: the sheet is written as .pdf")
    sheet = make_marker_sheet(
        size_mm, paper=paper.lower(), dictionary=dictionary, first=first, pages=pages
    )
    write_bytes(out, sheet.content)
    if as_json:
        print(json.dumps({"file": str(out), "size_mm": size_mm, "pages": sheet.pages}))
        return
    output().print(
        f"{out}: markers {sheet.pages[0][0]} to {sheet.pages[-1][-1]} of {dictionary} with sides "
        f"of {size_mm:g} mm, {len(sheet.pages)} page{'s' if len(sheet.pages) > 1 else ''} "
        f"{paper.lower()}. Print at 100 % and check the scales with a ruler",
        soft_wrap=True,
    )
