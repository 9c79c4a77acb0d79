"""`lifcal export`: a calibration in the files of other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lifcal.cli._console import output, say_note, verb
from lifcal.errors import ConfigError, DataError

_FORMATS = ("colmap", "authors")


@verb()
def export(
    folder: Annotated[Path, typer.Argument(metavar="OUT", help="Folder of a calibration.")],
    to: Annotated[
        str,
        typer.Option(
            help="colmap: text model of the focused images; "
            "authors: the files of the paper's own code."
        ),
    ],
    out: Annotated[Path, typer.Option("-o", "--output", help="Folder to write.")],
) -> None:
    """Write a calibration for COLMAP, or as the paper's own code does."""
    if to not in _FORMATS:
        raise ConfigError.unknown("format", to, _FORMATS)
    if out.is_file():
        raise DataError(f"{out}: is a file, needs a folder")
    from lifcal.camera.authors_xml import describe_lost
    from lifcal.export import open_calibration, write_authors, write_colmap

    calibration = open_calibration(folder)
    seen = calibration.seen
    if to == "colmap":
        camera, paths = write_colmap(out, calibration, seen)
        if camera.largest_error_px > 1e-6:
            say_note(
                f"the distortion {calibration.camera.distortion.name!r} was fitted by "
                f"{camera.model}: at most {camera.largest_error_px:.2g} px apart"
            )
        say_note(f"the images are those in {folder / 'focused'}")
    else:
        paths = write_authors(out, calibration, seen)
        for note in describe_lost(calibration.camera):
            say_note(note)
    if calibration.camera.scale_source is None:
        say_note("the calibration has no scale: lengths have no metric meaning")
    output().print(
        f"{out}: {', '.join(paths)} written, {len(calibration.views)} views, "
        f"{len(seen.points_world_mm)} points",
        soft_wrap=True,
    )
