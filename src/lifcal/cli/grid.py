"""`lifcal grid`: the micro-lens grid from a white image, or from the scene frames alone."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lifcal.cli._console import (
    EXIT_ERROR,
    RichListener,
    messages,
    output,
    say_error,
    say_note,
    verb,
)
from lifcal.errors import DataError, EstimationError, InputError
from lifcal.pipeline.grids import FITTING, SOURCES, fit_average, read_average, read_start

if TYPE_CHECKING:
    from lifcal.arrays import Float32Array
    from lifcal.camera import MicroLensGrid
    from lifcal.grid.fit import GridFit
    from lifcal.imaging.frames import Frame, Frames


@verb()
def grid(
    images: Annotated[
        list[str],
        typer.Argument(
            metavar="WHITE|RAWS...",
            help="A white image, or raws of a scene: files, folders, globs, videos.",
        ),
    ],
    out: Annotated[Path, typer.Option("-o", "--output", help="grid.json to write.")],
    xml: Annotated[
        Path | None,
        typer.Option(help="The maker's XML (or a grid.json) to start from; its types are kept."),
    ] = None,
    bayer: Annotated[str | None, typer.Option(help="rggb, grbg, gbrg or bggr.")] = None,
    max_frames: Annotated[int, typer.Option(help="Scene frames to use at most.")] = 40,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Find the micro-lens grid: from a white image, or, without one, from raws of a scene.

    Writes grid.json, and a picture of the fit beside it.
    """
    from lifcal.camera import write_grid
    from lifcal.grid.picture import draw_grid_fit
    from lifcal.imaging.files import write_png
    from lifcal.imaging.frames import open_frames

    if out.suffix.lower() != ".json":
        raise InputError(f"{out}: the grid is written as .json")
    if max_frames < 1:
        raise InputError(f"--max-frames is {max_frames}, needs at least 1")
    frames = open_frames(images, bayer=bayer)
    start = read_start(xml, frames.image_size) if xml is not None else None
    if len(frames) == 1:
        fit, image, problems = *_fit_one(frames, start), 0
    else:
        fit, image, problems = _fit_several(frames, start, max_frames)
    picture = out.with_name(f"{out.stem}_fit.png")
    frames.check_not_among(picture)
    write_grid(out, fit.grid)
    write_png(picture, draw_grid_fit(fit, image))
    content = {
        **_figures(fit),
        "grid": str(out),
        "picture": str(picture),
        "unreadable_frames": problems,
    }
    if as_json:
        print(json.dumps(content, indent=2))
    else:
        _print_table(fit)
        output().print(f"{out}: written, with a picture of the fit in {picture}", soft_wrap=True)
    for finding in fit.findings:
        say_note(finding.text)
    if problems:
        raise SystemExit(EXIT_ERROR)


def _fit_one(frames: Frames, start: MicroLensGrid | None) -> tuple[GridFit, Float32Array]:
    """Fit to one image: as white if all micro images look alike, else as a scene."""
    import numpy as np

    from lifcal.grid.check import check_grid, measure_grid_shifts
    from lifcal.grid.fit import (
        WHITE_STRUCTURE,
        fit_grid_to_frames,
        fit_grid_to_white,
        refine_grid,
    )

    with messages().status("reading the image"):
        frame = frames.read(0)
    with messages().status(FITTING):
        failure: EstimationError | None = None
        try:
            fit = fit_grid_to_white(frame) if start is None else refine_grid(start, frame)
        except EstimationError as error:
            failure = error
        if failure is not None or fit.structure >= WHITE_STRUCTURE:
            try:
                fit = (
                    fit_grid_to_frames([frame])
                    if start is None
                    else refine_grid(start, frame, source="scene")
                )
            except EstimationError as error:
                raise DataError(f"{frame.source}: {failure or error}") from None
        if start is not None:
            check_grid(frame, fit.grid)
            # A scene's grid that the brightness does not show may be any grid.
            if failure is not None and np.isnan(measure_grid_shifts(frame, fit.grid)).all():
                raise DataError(f"{frame.source}: {failure}")
        return fit, frame.gray


def _fit_several(
    frames: Frames, start: MicroLensGrid | None, max_frames: int
) -> tuple[GridFit, Float32Array, int]:
    """Fit to the average of scene frames; frames that cannot be read are named and left out."""
    from lifcal.grid.check import check_grid

    listener = RichListener()
    average, problems = read_average(frames, max_frames, listener)
    for problem in problems:
        say_error(str(problem))
    fit = fit_average(average, start, listener)
    if start is not None:
        check_grid(_read_first(frames), fit.grid)
    return fit, average.mean, len(problems)


def _read_first(frames: Frames) -> Frame:
    """Return the first frame that can be read; there is one."""
    for index in range(len(frames) - 1):
        with suppress(DataError):
            return frames.read(index)
    return frames.read(len(frames) - 1)


def _figures(fit: GridFit) -> dict[str, Any]:
    from math import degrees

    from lifcal.grid.fit import LensFlag

    return {
        "source": SOURCES[fit.source],
        "layout": fit.layout,
        "pitch_px": fit.pitch_px,
        "rotation_deg": degrees(fit.rotation_rad) + 0.0,
        "lenses": len(fit.grid),
        "lenses_used": fit.n_used,
        "lenses_dead": int(((fit.flags & LensFlag.DEAD) > 0).sum()),
        "lenses_outlier": int(((fit.flags & LensFlag.OUTLIER) > 0).sum()),
        "residual_rms_px": fit.rms_px,
        "bend_order": 0 if fit.grid.bend is None else fit.grid.bend.order,
        "bend_rms_px": 0.0 if fit.grid.bend is None else fit.grid.bend.rms_px,
        "lens_deviations_rms_px": fit.grid.deviations_rms_px,
        "left_px": fit.trend_px,
        "radius_px": fit.grid.radius_px,
        "types": fit.grid.n_types,
        "main_disc_px": None if fit.discs is None else fit.discs.main_px,
        "micro_discs_px": None if fit.discs is None else list(fit.discs.micro_px),
        "findings": [finding.as_dict() for finding in fit.findings],
    }


def _print_table(fit: GridFit) -> None:
    from rich.table import Table

    found = _figures(fit)
    table = Table(title=f"grid from {found['source']}", title_justify="left", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_column()
    table.add_row("layout", found["layout"], "")
    table.add_row("pitch", f"{found['pitch_px']:.4f}", "px")
    table.add_row("rotation", f"{found['rotation_deg']:.4f}", "deg")
    table.add_row(
        "lenses",
        f"{found['lenses']} ({found['lenses_used']} used, {found['lenses_dead']} dead, "
        f"{found['lenses_outlier']} outliers)",
        "",
    )
    if fit.grid.bend is not None:
        table.add_row("bend rms", f"{found['bend_rms_px']:.4f} (order {found['bend_order']})", "px")
    table.add_row("residual rms", f"{found['residual_rms_px']:.4f}", "px")
    if fit.grid.deviations_px is not None:
        table.add_row("lenses' own deviation", f"{found['lens_deviations_rms_px']:.4f}", "px")
    table.add_row("radius", f"{found['radius_px']:.2f}", "px")
    table.add_row("lens types", str(found["types"]), "")
    if fit.discs is not None:
        table.add_row("main disc", f"{fit.discs.main_px:.3f}", "px")
        micro = ", ".join(f"{radius:.3f}" for radius in fit.discs.micro_px)
        table.add_row("micro discs", micro, "px")
    output().print(table)
