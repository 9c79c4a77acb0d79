"""The `lifcal` command."""

from __future__ import annotations

import signal
import sys
from types import FrameType
from typing import Annotated

import typer

from lifcal import __version__
from lifcal.cli import _console
from lifcal.cli.adjust import adjust
from lifcal.cli.calibrate import calibrate
from lifcal.cli.camera import camera_app
from lifcal.cli.demo import demo
from lifcal.cli.depth import depth
from lifcal.cli.evaluate import evaluate
from lifcal.cli.export import export
from lifcal.cli.focus import focus
from lifcal.cli.grid import grid
from lifcal.cli.markers import markers
from lifcal.cli.simulate import simulate
from lifcal.cli.view import view

app = typer.Typer(
    name="lifcal",
    help="Calibration, depth and simulation for micro-lens-array light field cameras.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(value: bool) -> None:
    if value:
        typer.echo(f"lifcal {__version__}")
        raise typer.Exit


@app.callback()
def options(
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the whole trace of an error.")
    ] = False,
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", is_eager=True, callback=_show_version),
    ] = False,
) -> None:
    """Calibration, depth and simulation for micro-lens-array light field cameras."""
    del version
    _console.show_traces(debug)


app.command("demo")(demo)
app.command("simulate")(simulate)
app.command("markers")(markers)
app.command("grid")(grid)
app.command("focus")(focus)
app.command("calibrate")(calibrate)
app.command("depth")(depth)
app.command("view")(view)
app.command("adjust")(adjust)
app.command("evaluate")(evaluate)
app.command("export")(export)
app.add_typer(camera_app, name="camera")


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def run() -> None:
    """Run the verb that the arguments name."""
    # ends like Ctrl-C: no half-written file stays
    signal.signal(signal.SIGTERM, _interrupt)
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup
        signal.signal(signal.SIGHUP, _interrupt)
    arguments = sys.argv[1:]
    if "--debug" in arguments:  # wherever it stands
        arguments = ["--debug", *(word for word in arguments if word != "--debug")]
    app(args=arguments, prog_name="lifcal")
