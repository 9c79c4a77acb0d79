"""`lifcal focus`: virtual depth and totally focused images of raws."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lifcal.cli._choice import Ends, Every, Exclude
from lifcal.cli._console import EXIT_ERROR, RichListener, output, say_error, verb
from lifcal.cli._executor import Jobs, Scheduler
from lifcal.cli._options import AsJson, Bayer, Grid, OutputFolder
from lifcal.sources import check_files, list_files

if TYPE_CHECKING:
    from lifcal.pipeline.focusing import FocusRun


@verb("the same command goes on from here")
def focus(
    raws: Annotated[
        list[str],
        typer.Argument(metavar="RAWS...", help="Raw frames: files, folders, globs or videos."),
    ],
    out: OutputFolder,
    grid: Grid = None,
    white: Annotated[
        Path | None,
        typer.Option(help="White image, to even out the brightness inside micro images."),
    ] = None,
    xml: Annotated[
        Path | None,
        typer.Option(help="The maker's XML to start from when the grid is found, not with --grid."),
    ] = None,
    bayer: Bayer = None,
    every: Every = None,
    frames: Ends = None,
    exclude: Exclude = None,
    depth_range: Annotated[
        tuple[float, float] | None,
        typer.Option(
            "--range",
            metavar="NEAR FAR",
            help="Range of virtual depths to search. Without it, some of the raws show it.",
        ),
    ] = None,
    scale: Annotated[float, typer.Option(help="Size of the results relative to the raws.")] = 0.5,
    jobs: Jobs = None,
    scheduler: Scheduler = None,
    as_json: AsJson = False,
) -> None:
    """Make a virtual depth map and a totally focused image of each raw.

    Frames that cannot be used are named, the others are done. Run the same command again to
    continue an interrupted one.
    """
    # Before anything heavy is imported, so that a slip of the hand is told at once.
    list_files(raws)
    check_files(grid, white, xml)
    from lifcal.pipeline import focus
    from lifcal.pipeline.executors import open_executor

    with open_executor(jobs, scheduler) as executor:
        run = focus(
            raws,
            out,
            grid=grid,
            white=white,
            xml=xml,
            bayer=bayer,
            every=every,
            frames=frames,
            exclude=exclude,
            depth_range=depth_range,
            scale=scale,
            listener=RichListener(),
            executor=executor,
        )
    if as_json:
        print(json.dumps(run.store.as_dict(), indent=2))
    elif run.done:
        _print_summary(out, run)
    if run.usable.problems:
        if len(run.usable) > 1:
            say_error(f"{len(run.usable.problems)} of {len(run.usable)} frames could not be done")
        raise SystemExit(EXIT_ERROR)


def _print_summary(folder: Path, run: FocusRun) -> None:
    from statistics import median

    low, high = run.setup.depth_range
    known = median(run.store.entries[name].known_share for name in run.done)
    count = f"{len(run.done)} frame{'s' if len(run.done) > 1 else ''}"
    was = f" ({run.kept} of them before)" if run.kept else ""
    output().print(
        f"{folder}: {count}{was}, virtual depth {low:.2f} to {high:.2f}, known "
        f"in {100 * known:.0f} % of the pixels; focused images in {folder / 'focused'}, "
        f"maps in {folder / 'virtual_depth'}",
        soft_wrap=True,
    )
