"""The `lifcal` command."""

from __future__ import annotations

import signal
import sys
from types import FrameType
from typing import Annotated

import typer

from lifcal import __version__
from lifcal.cli import _console
from lifcal.cli._console import show_examples
from lifcal.cli.adjust import adjust
from lifcal.cli.calibrate import calibrate
from lifcal.cli.camera import camera_app
from lifcal.cli.clean import clean
from lifcal.cli.demo import demo
from lifcal.cli.depth import depth
from lifcal.cli.evaluate import evaluate
from lifcal.cli.export import export
from lifcal.cli.focus import focus
from lifcal.cli.grid import grid
from lifcal.cli.live import live
from lifcal.cli.markers import markers
from lifcal.cli.pick import pick
from lifcal.cli.simulate import simulate
from lifcal.cli.view import view

app = typer.Typer(
    name="lifcal",
    help="Calibration, depth and simulation for micro-lens-array light field cameras.",
    no_args_is_help=True,
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
    quiet: Annotated[
        bool,
        typer.Option("--quiet", "-q", help="Show results and errors only: no progress, no notes."),
    ] = False,
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", is_eager=True, callback=_show_version),
    ] = False,
) -> None:
    """Calibration, depth and simulation for micro-lens-array light field cameras."""
    del version
    _console.show_traces(debug)
    _console.be_quiet(quiet)
    _console.show_notes_of_cache()


app.command("demo", epilog=show_examples("lifcal demo"))(demo)
app.command("simulate", epilog=show_examples("lifcal simulate --camera mini --frames 16 -o desk"))(
    simulate
)
app.command(
    "markers", epilog=show_examples("lifcal markers --size-mm 40 --pages 2 -o markers.pdf")
)(markers)
app.command(
    "grid",
    epilog=show_examples("lifcal grid white.png -o grid.json", "lifcal grid desk/raw -o grid.json"),
)(grid)
app.command(
    "focus",
    epilog=show_examples("lifcal focus desk/raw --white desk/white.png --every 5 -o focused"),
)(focus)
app.command("pick", epilog=show_examples("lifcal pick focused", "lifcal pick camera -o known.txt"))(
    pick
)
app.command(
    "calibrate",
    epilog=show_examples(
        "lifcal calibrate desk/raw --white desk/white.png --pixel-size-um 5.5 --marker-size-mm 40 "
        "-o camera",
        "lifcal calibrate new/raw --pixel-size-um 5.5 --known camera/camera.json -o refocused",
    ),
)(calibrate)
app.command(
    "live",
    epilog=show_examples(
        "lifcal live incoming --white white.png --pixel-size-um 5.5 --marker-size-mm 40 --idle 30 "
        "-o camera",
        "lifcal live 0 --camera camera/camera.json --pixel-size-um 5.5 --until-done -o today",
    ),
)(live)
app.command(
    "depth",
    epilog=show_examples(
        "lifcal depth desk/raw --camera camera/camera.json --white desk/white.png -o rgbd",
        "lifcal depth desk/raw --camera camera/camera.json --poses camera/poses.txt -o rgbd",
    ),
)(depth)
app.command("view", epilog=show_examples("lifcal view rgbd"))(view)
app.command(
    "adjust",
    epilog=show_examples(
        "lifcal adjust corners.csv --image-size 2048x2048 --pixel-size-um 5.5 "
        "--focal-length-mm 16 -o camera"
    ),
)(adjust)
app.command("evaluate", epilog=show_examples("lifcal evaluate camera --truth desk"))(evaluate)
app.command("export", epilog=show_examples("lifcal export camera --to colmap -o model"))(export)
app.command("clean", epilog=show_examples("lifcal clean camera --dry-run"))(clean)
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
    for common in ("--debug", "--quiet", "-q"):
        if common in arguments:  # wherever it stands
            arguments = [common, *(word for word in arguments if word != common)]
    app(args=arguments, prog_name="lifcal")
