"""Run benchmarks: `python -m benchmarks [NAME ...] [--json FILE]`.

The exit code is 1 if a figure is out of its tolerance.
"""

from __future__ import annotations

import argparse
import os
import platform
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks import (
    bundle,
    calibrate,
    camera,
    command_line,
    commands,
    degenerate,
    depth,
    executors,
    grid,
    online,
    real,
    recalibrate,
    recordings,
    simulate,
    slam,
    starts,
    virtual,
    whites,
    worlds,
)
from lifcal import __version__
from lifcal.files import write_json

BENCHMARKS = {
    "camera": camera.run,
    "simulate": simulate.run,
    "simulate-large": simulate.run_large,
    "grid": grid.run,
    "whites": whites.run,
    "virtual": virtual.run,
    "bundle": bundle.run,
    "starts": starts.run,
    "calibrate": calibrate.run,
    "real": real.run,
    "real-mini": real.run_small,
    "independent": recordings.run_independent,
    "videos": recordings.run_videos,
    "recalibrate": recalibrate.run,
    "worlds": worlds.run,
    "worlds-mini": worlds.run_small,
    "online": online.run,
    "online-short": online.run_short,
    "degenerate": degenerate.run,
    "degenerate-mini": degenerate.run_small,
    "depth": depth.run,
    "slam": slam.run,
    "executors": executors.run,
    "command-line": command_line.run,
    "commands": commands.run,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}")
    parser.add_argument("--json", type=Path, default=Path(__file__).parent / "results.json")
    parser.add_argument(
        "--forgive-noisy", action="store_true", help="do not fail for a wall time out of tolerance"
    )
    arguments = parser.parse_args()
    unknown = set(arguments.names) - set(BENCHMARKS)
    if unknown:
        parser.error(f"unknown benchmark {', '.join(sorted(unknown))}")
    console = Console()
    table = Table(title=f"lifcal {__version__}")
    for column in ("figure", "value", "unit", "tolerance", "holds"):
        table.add_column(column, justify="right" if column in ("value", "tolerance") else "left")
    figures = []
    for name in arguments.names or BENCHMARKS:
        with console.status(f"measuring {name}"):
            figures += BENCHMARKS[name]()
    for figure in figures:
        sign = "<=" if figure.direction == "lower" else ">="
        table.add_row(
            figure.name,
            f"{figure.value:.4g}",
            figure.unit,
            f"{sign} {figure.tolerance:g}",
            "yes" if figure.holds else "[red]NO[/red]",
        )
    console.print(table)
    write_json(
        arguments.json,
        {
            "lifcal_version": __version__,
            "machine": {"system": platform.platform(), "cores": os.cpu_count()},
            "figures": [figure.as_dict() for figure in figures],
        },
    )
    gated = [figure for figure in figures if not (figure.noisy and arguments.forgive_noisy)]
    return 0 if all(figure.holds for figure in gated) else 1


if __name__ == "__main__":
    raise SystemExit(main())
