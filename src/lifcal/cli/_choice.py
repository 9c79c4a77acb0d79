"""Options of the verbs that take raws: which of the frames are used."""

from __future__ import annotations

from typing import Annotated

import typer

_PANEL = "Which frames"

Every = Annotated[
    int | None,
    typer.Option("--every", metavar="N", help="Use every N-th frame.", rich_help_panel=_PANEL),
]
EveryOfVideo = Annotated[
    int | None,
    typer.Option(
        "--every",
        metavar="N",
        help="Use every N-th frame. Without this option, all frames are used; for a video with "
        "more than 60 frames, only those are used that differ enough from the frame before.",
        rich_help_panel=_PANEL,
    ),
]
Ends = Annotated[
    tuple[int, int] | None,
    typer.Option(
        "--frames",
        metavar="FIRST LAST",
        help="Use frames FIRST to LAST, by index from 0.",
        rich_help_panel=_PANEL,
    ),
]
Exclude = Annotated[
    list[str] | None,
    typer.Option(
        "--exclude",
        metavar="NAMES",
        help="Leave out these frames: names with commas between them, as 0003,0017, or with * and "
        "?; may be repeated.",
        rich_help_panel=_PANEL,
    ),
]
