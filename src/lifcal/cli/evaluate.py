"""`lifcal evaluate`: hold a calibration against the truth of a simulation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lifcal.cli._console import RichListener, output, say_note, verb
from lifcal.cli._options import AsJson
from lifcal.sources import check_folder

if TYPE_CHECKING:
    from lifcal.evaluate import Evaluation


@verb()
def evaluate(
    folder: Annotated[Path, typer.Argument(metavar="OUT", help="Folder of a calibration.")],
    truth: Annotated[
        Path, typer.Option(help="Folder that lifcal simulate wrote, or its truth folder.")
    ],
    world: Annotated[
        int,
        typer.Option(
            help="Number of the world whose trajectory and depths are compared, of a calibration "
            "from several recordings; the truth is that of its recording."
        ),
    ] = 1,
    as_json: AsJson = False,
) -> None:
    """Compare a calibration with the truth of a simulation.

    Parameters in their units, per cent and sigmas; trajectory and depths after alignment.
    """
    check_folder(folder, "lifcal calibrate")
    check_folder(truth, "lifcal simulate")
    from lifcal.evaluate import evaluate_calibration

    with RichListener().status("comparing"):
        found = evaluate_calibration(folder, truth, world)
    if as_json:
        print(json.dumps(found.as_dict(), indent=2, allow_nan=False))
    else:
        print_evaluation(found)
    for note in found.notes:
        say_note(note)


def print_evaluation(found: Evaluation) -> None:
    """Print the table of parameters, and the errors of trajectory and depth."""
    from rich.table import Table

    from lifcal.camera.parameters import format_value

    table = Table(title="intrinsics", title_justify="left")
    table.add_column("parameter", no_wrap=True)
    fitted = any(row.physical is not None for row in found.parameters)
    columns = ["estimated ± sigma", "best fit" if fitted else "true", "error", "/ sigma", "< 2"]
    for column in (*columns, "physical") if fitted else columns:
        table.add_column(column, justify="right")
    for row in found.parameters:
        error = f"{row.error:+.3g} {row.unit}" if row.percent is None else f"{row.percent:+.4f} %"
        table.add_row(
            row.name,
            f"{format_value(row.estimated, row.sigma)} {row.unit}".rstrip(),
            f"{row.true:.7g}",
            error,
            "" if row.error_sigmas is None else f"{row.error_sigmas:+.2f}",
            "" if row.within_2_sigma is None else "yes" if row.within_2_sigma else "no",
            *([] if not fitted else ["" if row.physical is None else f"{row.physical:.7g}"]),
        )
    output().print(table)
    lines = []
    if found.mean_error_square is not None:
        lines.append(
            f"Mean square of the errors in sigmas: {found.mean_error_square:.2f}; with "
            f"correlations {found.mean_error_square_correlated:.2f} (1 is expected)."
        )
    if found.trajectory is not None:
        path = found.trajectory
        lines.append(
            f"Trajectory: {path.translation_rmse_mm:.4g} mm and {path.rotation_rmse_deg:.4g} deg "
            f"rms over {path.n_frames} frames, {path.length_mm:.0f} mm, after {path.alignment} "
            f"alignment; scale factor to the truth {path.scale:.6g}."
        )
    if found.depth is not None:
        lines.append(
            f"Depth: median absolute error {found.depth.median_abs_percent:.4f} %, median signed "
            f"error {found.depth.median_percent:+.4f} %, over {found.depth.n_pairs} pairs of a "
            f"point and a view ({found.depth.n_views} views)."
        )
    for line in lines:
        output().print(line, soft_wrap=True)
