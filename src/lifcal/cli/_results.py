"""How verbs print parameters and a verdict, and which exit code follows from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lifcal.cli._console import output

EXIT_DISTRUST = 3
"""Exit code of a calibration that finished with the verdict "do not trust it"."""


def print_parameters(parameters: Mapping[str, Mapping[str, Any]], units: Mapping[str, str]) -> None:
    """Print a table of value ± sigma and unit.

    Parameters
    ----------
    parameters : mapping of str to mapping
        `value` and `sigma` of each; without a sigma the value was held.
    units : mapping of str to str
        'no scale' where a length has no metric meaning: then no number is printed.
    """
    from rich.table import Table

    from lifcal.camera import NO_SCALE
    from lifcal.camera.parameters import format_unit, format_value

    table = Table(title="intrinsics", title_justify="left")
    table.add_column("parameter")
    table.add_column("value ± sigma", justify="right")
    table.add_column("unit")
    for name, entry in parameters.items():
        unit = units.get(name, "")
        if unit == NO_SCALE:
            table.add_row(name, "", NO_SCALE)
            continue
        held = "" if entry["sigma"] else " (held)"
        shown = f"{format_value(entry['value'], entry['sigma'])}{held}"
        table.add_row(name, shown, format_unit(unit))
    output().print(table)


def print_verdict(verdict: Mapping[str, Any]) -> None:
    """Print the verdict, its further reasons, and what would help."""
    output().print(verdict["text"], soft_wrap=True)
    for reason in verdict["reasons"][1:]:
        output().print(f"- {reason}", soft_wrap=True)
    if verdict["help"]:
        output().print(f"What would help: {' '.join(verdict['help'])}", soft_wrap=True)


def exit_by_verdict(verdict: Mapping[str, Any]) -> None:
    """End with an exit code of its own if the result must not be trusted."""
    if verdict["level"] == "poor":
        raise SystemExit(EXIT_DISTRUST)
