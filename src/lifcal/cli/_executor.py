"""Options of the verbs that make frames: where the frames are made."""

from __future__ import annotations

from typing import Annotated

import typer

_PANEL = "Where frames are made"

Jobs = Annotated[
    int | None,
    typer.Option(
        "--jobs",
        metavar="N",
        help="Make N frames at a time, in processes that share the cores of this machine.",
        rich_help_panel=_PANEL,
    ),
]
Scheduler = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help="Make the frames on a Dask cluster: address of its scheduler, tcp://host:8786. Raws "
        "and results must be on storage that all workers share. Needs the extra `cluster`.",
        rich_help_panel=_PANEL,
    ),
]
