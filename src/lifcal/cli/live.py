"""`lifcal live`: a camera that is calibrated while frames come in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lifcal.cli._console import (
    EXIT_ERROR,
    EXIT_INTERRUPTED,
    RichListener,
    is_quiet,
    output,
    say_error,
    say_progress,
    verb,
)
from lifcal.cli._options import (
    MARKER_DISTANCES,
    SCALE_PANEL,
    AsJson,
    Bayer,
    Dictionary,
    Grid,
    MakersXml,
    OutputFolder,
    PixelSize,
    Settings,
    White,
)
from lifcal.cli._results import exit_by_verdict
from lifcal.cli.calibrate import parse_settings, print_calibration
from lifcal.sources import check_files

if TYPE_CHECKING:
    from lifcal.calibration import Update
    from lifcal.pipeline.live_run import LiveRun
    from lifcal.report.live_page import LivePage

_SHOWN = ("F", "B", "c_x", "c_y")
"""Parameters of the line that is printed for each frame."""


@verb("the same command goes on from here")
def live(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="A folder that another program fills, a video, the index of a camera, or - for "
            "raw frames on standard input.",
        ),
    ],
    out: OutputFolder,
    pixel_size_um: PixelSize,
    white: White = None,
    grid: Grid = None,
    xml: MakersXml = None,
    bayer: Bayer = None,
    camera: Annotated[
        Path | None,
        typer.Option(
            metavar="CAMERA.JSON",
            help="Earlier calibration of this camera: its covariance is the prior, and no scale "
            "is needed.",
        ),
    ] = None,
    target: Annotated[
        str,
        typer.Option(
            help="How well the parameters are to be known, F=0.05%,B=0.5%,c=1px for example."
        ),
    ] = "F=0.05%,B=0.5%,c=1px",
    until_done: Annotated[
        bool, typer.Option("--until-done", help="End when all targets are met.")
    ] = False,
    idle: Annotated[
        float | None,
        typer.Option(metavar="S", help="End after S seconds without a new frame."),
    ] = None,
    bits: Annotated[int, typer.Option(help="Bits of the pixels on standard input: 8 or 16.")] = 8,
    focal_length_mm: Annotated[
        float | None,
        typer.Option(help="Focal length engraved on the lens, in mm: a check of the result."),
    ] = None,
    marker_size_mm: Annotated[
        float | None,
        typer.Option(
            help="Side of the black squares of ArUco markers in the scene, in mm.",
            rich_help_panel=SCALE_PANEL,
        ),
    ] = None,
    marker_distances: Annotated[
        Path | None,
        typer.Option(
            help=MARKER_DISTANCES,
            rich_help_panel=SCALE_PANEL,
        ),
    ] = None,
    dictionary: Dictionary = "DICT_6X6_250",
    points: Annotated[
        int, typer.Option(help="Number of scene points to measure at the end.")
    ] = 1000,
    settings: Settings = None,
    page: Annotated[
        bool,
        typer.Option(
            "--page/--no-page",
            help="Serve a page on this computer that follows the run: image, map, parameters.",
        ),
    ] = True,
    port: Annotated[int, typer.Option(help="Port of the page; 0 takes a free one.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Calibrate a camera while frames come in, and say which motion would help most.

    Writes what `lifcal calibrate` writes. Ctrl-C writes the result too. Run the same command again
    to continue an interrupted one.
    """
    check_files(white, grid, xml, marker_distances, camera)
    from lifcal.pipeline import live as run
    from lifcal.report.live_page import LivePage

    listener = RichListener()
    shown = LivePage(port) if page else None
    try:
        if shown is not None and not is_quiet():
            say_progress(f"look at {shown.url}")
        found, ended = run(
            source,
            out,
            pixel_size_um=pixel_size_um,
            white=white,
            grid=grid,
            xml=xml,
            bayer=bayer,
            camera=camera,
            target=target,
            until_done=until_done,
            idle_s=idle,
            bits=bits,
            focal_length_mm=focal_length_mm,
            marker_size_mm=marker_size_mm,
            marker_distances=marker_distances,
            dictionary=dictionary,
            points=points,
            settings=parse_settings(settings or []),
            listener=listener,
            on_update=lambda live, update: _show(live, update, shown),
        )
    finally:
        if shown is not None:
            shown.close()
    if as_json:
        print(json.dumps(found.summary, indent=2))
    else:
        print_calibration(found, listener.told)
        met = found.summary["provenance"]["targets met"]
        output().print(f"Targets ({target}): {'met' if met else 'not met yet'}.", soft_wrap=True)
    if isinstance(ended, KeyboardInterrupt):
        raise SystemExit(EXIT_INTERRUPTED)
    if ended is not None:
        say_error(str(ended))
        raise SystemExit(EXIT_ERROR)
    exit_by_verdict(found.summary["verdict"])


def _show(run: LiveRun, update: Update, page: LivePage | None) -> None:
    """Show what became of a frame: a line, and the page."""
    from lifcal.pipeline.live_run import describe_step

    if not is_quiet():
        say_progress(describe(update))
    if page is not None:
        page.show(describe_step(run, update))


def describe(update: Update) -> str:
    """Return one line about a frame and what is known by now."""
    from lifcal.camera.parameters import format_value, unit_of

    parts = [f"{update.name}: {update.status}"]
    if update.values:
        shown = [
            f"{name} {format_value(update.values[name], update.sigmas[name])} {unit_of(name)}"
            for name in _SHOWN
            if name in update.values
        ]
        parts.append(", ".join(shown))
    else:
        parts.append(update.text)
    if update.done:
        parts.append("done: all targets are met")
    elif update.advice is not None:
        parts.append(f"next: {update.advice.text}")
    return "; ".join(parts)
