"""`lifcal pick`: click two points in a focused image, and say how far apart they are."""

from __future__ import annotations

import contextlib
import json
import shlex
import threading
from pathlib import Path
from typing import Annotated

import typer

from lifcal.cli._browser import forward_to, open_page
from lifcal.cli._console import output, say_note, verb
from lifcal.distances import DistancesFile
from lifcal.errors import DataError
from lifcal.files import check_writable


@verb()
def pick(
    folder: Annotated[
        Path, typer.Argument(metavar="OUT", help="Folder of lifcal focus or lifcal calibrate.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            help="File of distances to write, or to continue; OUT/distances.txt without.",
        ),
    ] = None,
    port: Annotated[
        int, typer.Option(help="Port of the page on this computer; 0 takes a free one.")
    ] = 0,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open the page in the browser.")
    ] = True,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the address and the file as JSON, open nothing.")
    ] = False,
) -> None:
    """Pick two points in a focused image and give their distance: scale without markers.

    Opens a page on this computer only (127.0.0.1), with an address that cannot be guessed. It
    writes the file that lifcal calibrate --distances takes. Ctrl-C ends it.
    """
    if not (folder / "focus.json").is_file():
        raise DataError(f"{folder}: not a folder of lifcal focus or lifcal calibrate")
    path = folder / "distances.txt" if out is None else out
    DistancesFile(path)  # before anything heavy is imported
    check_writable(path.parent)
    from lifcal.report.server import LoopbackServer

    with LoopbackServer(port) as server, contextlib.ExitStack() as until_end:
        from lifcal.pipeline.picking import PickFolder
        from lifcal.report.pick_page import serve_picking

        words = ["--distances", str(path), "-o", str(folder)]
        command = f"lifcal calibrate RAWS --pixel-size-um ... {shlex.join(words)}"
        if (folder / "summary.json").is_file():
            command += " --force"
        serve_picking(server, PickFolder(folder, path), command)
        server.start()
        # Ctrl-C ends the page from the moment on that its address is known.
        with contextlib.suppress(KeyboardInterrupt):
            if as_json:
                print(json.dumps({"url": server.url, "file": str(path)}), flush=True)
            else:
                output().print(f"Pick points at {server.url}", soft_wrap=True)
                output().print(f"Distances go to {path}. Ctrl-C ends.", soft_wrap=True)
                if browser and not open_page(until_end.enter_context(forward_to(server.url))):
                    say_note("there is no browser to open here: open the address yourself")
            threading.Event().wait()
    count = len(DistancesFile(path).read())
    if not as_json:
        output().print(f"{count} distance{'' if count == 1 else 's'} in {path}.", soft_wrap=True)
        if count:
            output().print(f"Next: {command}", soft_wrap=True)
