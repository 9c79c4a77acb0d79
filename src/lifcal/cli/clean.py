"""`lifcal clean`: free the disk of what can be made again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from lifcal.cli._console import output, verb
from lifcal.cli._options import AsJson


@verb()
def clean(
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="OUT...", help="Folders of lifcal calibrate or lifcal depth."),
    ],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be removed.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Remove what the same command can make again, and keep all results.

    In a calibration, these are the maps of virtual depth and the cache. In a folder that lifcal
    depth wrote, these are the previews.
    """
    from lifcal.pipeline.cleaning import clean_folder

    found = [clean_folder(folder, dry_run=dry_run) for folder in folders]
    if as_json:
        print(json.dumps([each.as_dict() for each in found], indent=2))
        return
    for each in found:
        verb_said = "would free" if dry_run else "freed"
        what = f" ({', '.join(each.removed)})" if each.removed else ""
        output().print(
            f"{each.folder}: {verb_said} {each.bytes / 1e6:.1f} MB in {each.files} files{what}",
            soft_wrap=True,
        )
