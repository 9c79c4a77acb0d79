"""`lifcal grid`: the micro-lens grid from a white image, or from the scene frames alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lifcal.cli._console import EXIT_ERROR, RichListener, output, verb
from lifcal.cli._options import AsJson, Bayer
from lifcal.sources import check_files, list_files

if TYPE_CHECKING:
    from lifcal.grid.fit import GridFit


@verb()
def grid(
    images: Annotated[
        list[str],
        typer.Argument(
            metavar="WHITE|RAWS...",
            help="A white image, or raws of a scene: files, folders, globs, videos.",
        ),
    ],
    out: Annotated[
        Path, typer.Option("-o", "--output", help="File to write, grid.json for example.")
    ],
    xml: Annotated[
        Path | None,
        typer.Option(help="The maker's XML (or a grid.json) to start from; its types are kept."),
    ] = None,
    bayer: Bayer = None,
    max_frames: Annotated[int, typer.Option(help="Largest number of scene frames to use.")] = 40,
    as_json: AsJson = False,
) -> None:
    """Find the micro-lens grid: from a white image, or, without one, from raws of a scene.

    Writes grid.json, and a picture of the fit beside it.
    """
    # Before anything heavy is imported, so that a slip of the hand is told at once.
    list_files(images)
    check_files(xml)
    from lifcal.pipeline import find_grid
    from lifcal.pipeline.grids import name_picture

    found = find_grid(
        images, out, xml=xml, bayer=bayer, max_frames=max_frames, listener=RichListener()
    )
    picture = name_picture(out)
    content = {
        **_figures(found.fit),
        "grid": str(out),
        "picture": str(picture),
        "unreadable_frames": len(found.problems),
    }
    if as_json:
        print(json.dumps(content, indent=2))
    else:
        _print_table(found.fit)
        output().print(f"{out}: written, with a picture of the fit in {picture}", soft_wrap=True)
    if found.problems:
        raise SystemExit(EXIT_ERROR)


def _figures(fit: GridFit) -> dict[str, Any]:
    from math import degrees

    from lifcal.grid.fit import LensFlag
    from lifcal.pipeline.grids import SOURCES

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
