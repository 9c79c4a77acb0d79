"""Options that several commands have, in the same words.

Names and defaults stand in the commands; here are the types and the help.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

SCALE_PANEL = "Scale"
"""Heading of the options that give the scale."""

OutputFolder = Annotated[
    Path,
    typer.Option("-o", "--output", help="Folder for the results; it is made if it is missing."),
]
PixelSize = Annotated[
    float,
    typer.Option(help="Distance between neighboring pixels of the sensor, in micrometres."),
]
White = Annotated[
    Path | None,
    typer.Option(help="White image: the grid is found in it, and it evens out the brightness."),
]
Grid = Annotated[
    Path | None,
    typer.Option(
        help="Micro-lens grid (grid.json). Without it, the white image or the raws show it."
    ),
]
MakersXml = Annotated[
    Path | None, typer.Option(help="The maker's XML to start from when the grid is found.")
]
Bayer = Annotated[
    str | None, typer.Option(help="Color pattern of mosaic raws: rggb, grbg, gbrg or bggr.")
]
MARKER_DISTANCES = (
    "File with known distances between the centers of markers, one 'id1 id2 mm sigma' a line."
)
"""Help of an option that one command takes once, and another once for each recording."""
Dictionary = Annotated[
    str, typer.Option(help="ArUco dictionary of the printed markers.", rich_help_panel=SCALE_PANEL)
]
Loss = Annotated[str, typer.Option(help="Robust loss: none, huber or cauchy.")]
Distortion = Annotated[
    str, typer.Option(help="Distortion model: brown, auto (terms that pay), none or division.")
]
Tilt = Annotated[
    str,
    typer.Option(
        help="Tilt of the micro-lens array against the sensor: auto (estimated if it pays), none, "
        "or free (always estimated)."
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Any other option of a stage, measure.window_px=4 for example; may be repeated. "
        "docs/how-to/calibrate.md lists the names.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
