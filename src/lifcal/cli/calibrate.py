"""`lifcal calibrate`: from a folder of raw frames to a camera."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lifcal.cli._choice import Ends, EveryOfVideo, Exclude
from lifcal.cli._console import EXIT_ERROR, RichListener, output, say_error, say_note, verb
from lifcal.cli._executor import Jobs, Scheduler
from lifcal.errors import InputError
from lifcal.sources import check_files, list_files

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from typing import Any

    from lifcal.pipeline.calibration import Calibration

_SCALE = "Scale"


@verb("the same command goes on from here")
def calibrate(
    raws: Annotated[
        list[str],
        typer.Argument(metavar="RAWS...", help="Raws: files, folders, globs, videos."),
    ],
    out: Annotated[Path, typer.Option("-o", "--output", help="Folder to write.")],
    pixel_size_um: Annotated[float, typer.Option(help="Pixel pitch of the sensor.")],
    white: Annotated[
        Path | None, typer.Option(help="White image: finds the grid, evens out brightness.")
    ] = None,
    grid: Annotated[
        Path | None, typer.Option(help="grid.json; else it is found in the white image or raws.")
    ] = None,
    xml: Annotated[
        Path | None, typer.Option(help="The maker's XML to start from when the grid is found.")
    ] = None,
    bayer: Annotated[str | None, typer.Option(help="rggb, grbg, gbrg or bggr.")] = None,
    every: EveryOfVideo = None,
    frames: Ends = None,
    exclude: Exclude = None,
    focal_length_mm: Annotated[
        float | None,
        typer.Option(help="Focal length engraved on the lens: a hint, and a check of the result."),
    ] = None,
    marker_size_mm: Annotated[
        float | None,
        typer.Option(help="Side of ArUco markers in the scene.", rich_help_panel=_SCALE),
    ] = None,
    marker_distances: Annotated[
        Path | None,
        typer.Option(
            help="Known distances between the centers of markers, 'id1 id2 mm sigma' a line.",
            rich_help_panel=_SCALE,
        ),
    ] = None,
    dictionary: Annotated[
        str, typer.Option(help="Of the markers.", rich_help_panel=_SCALE)
    ] = "DICT_6X6_250",
    distances: Annotated[
        Path | None,
        typer.Option(
            help="'frame x1 y1 x2 y2 mm sigma' a line: points picked in a focused image.",
            rich_help_panel=_SCALE,
        ),
    ] = None,
    trajectory: Annotated[
        Path | None,
        typer.Option(
            help="Known poses, TUM format; the timestamp is the frame's index, or --timestamps.",
            rich_help_panel=_SCALE,
        ),
    ] = None,
    trajectory_sigma_mm: Annotated[
        float, typer.Option(help="Of the known positions.", rich_help_panel=_SCALE)
    ] = 1.0,
    known: Annotated[
        str | None,
        typer.Option(
            metavar="CAMERA.JSON",
            help="Recalibration of a lens that was focused anew: f_L and B with their covariance, "
            "from an earlier calibration. B=CAMERA.JSON takes B alone, for another lens on the "
            "same camera. f_L=16.748,B=0.376 gives both in mm, as exact.",
            rich_help_panel=_SCALE,
        ),
    ] = None,
    timestamps: Annotated[
        Path | None,
        typer.Option(help="One time a line, for every raw, for poses.txt; the index without."),
    ] = None,
    points: Annotated[int, typer.Option(help="Scene points to measure.")] = 1000,
    loss: Annotated[str, typer.Option(help="Robust loss: none, huber or cauchy.")] = "cauchy",
    distortion: Annotated[
        str, typer.Option(help="brown, auto (terms that pay), none or division.")
    ] = "brown",
    tilt: Annotated[
        str,
        typer.Option(
            help="Tilt of the micro-lens array against the sensor: auto (estimated if it pays), "
            "none, or free (always estimated)."
        ),
    ] = "auto",
    priors: Annotated[
        bool,
        typer.Option(
            help="Use what is known of any camera: the principal point is near the middle of the "
            "image (2 % of its width) and tangential distortion is small."
        ),
    ] = True,
    matching: Annotated[
        str, typer.Option(help="auto, sequential, exhaustive or retrieval.")
    ] = "auto",
    seed: Annotated[int, typer.Option(help="The same seed gives the same result.")] = 0,
    jobs: Jobs = None,
    scheduler: Scheduler = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Any other option of a stage, measure.window_px=4 for example; may be repeated. "
            "docs/how-to/calibrate.md lists the names.",
        ),
    ] = None,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="If the folder holds a finished calibration of other settings, keep that in a "
            "folder beside it, and calibrate.",
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Calibrate a camera from raw frames of any textured scene, taken with the camera moving.

    Writes camera.json, poses.txt, points.ply, cameras.ply, observations.csv, focused images,
    summary.json and report.html. Run the same command again to continue an interrupted one.
    """
    # Before anything heavy is imported, so that a slip of the hand is told at once.
    list_files(raws)
    check_files(white, grid, xml, marker_distances, distances, trajectory, timestamps)
    from lifcal.pipeline import calibrate
    from lifcal.pipeline.executors import open_executor

    listener = RichListener()
    with open_executor(jobs, scheduler) as executor:
        found = calibrate(
            raws,
            out,
            pixel_size_um=pixel_size_um,
            white=white,
            grid=grid,
            xml=xml,
            bayer=bayer,
            every=every,
            frames=frames,
            exclude=exclude,
            focal_length_mm=focal_length_mm,
            marker_size_mm=marker_size_mm,
            marker_distances=marker_distances,
            dictionary=dictionary,
            distances=distances,
            trajectory=trajectory,
            trajectory_sigma_mm=trajectory_sigma_mm,
            known=None if known is None else _parse_known(known),
            timestamps=timestamps,
            points=points,
            loss=loss,
            distortion=distortion,
            tilt=tilt,
            priors=priors,
            matching=matching,
            seed=seed,
            settings=parse_settings(settings or []),
            listener=listener,
            executor=executor,
            force=force,
        )
    if as_json:
        print(json.dumps(found.summary, indent=2))
    else:
        print_calibration(found, listener.told)
    if found.problems:
        say_error(f"{len(found.problems)} of {found.n_frames} frames could not be used")
        raise SystemExit(EXIT_ERROR)


def _parse_known(text: str) -> str | dict[str, float | str]:
    """Return a camera file, or what is known of each length: a number or a camera file."""
    if "=" not in text and text.lower().endswith(".json"):
        return text
    known: dict[str, float | str] = {}
    for part in text.split(","):
        name, equals, value = (word.strip() for word in part.partition("="))
        if name in known:
            raise InputError(f"--known {text!r}: {name} is there twice")
        if value.lower().endswith(".json"):
            known[name] = value
            continue
        try:
            known[name] = float(value)
        except ValueError:
            equals = ""
        if not equals:
            raise InputError(f"--known {text!r}: needs a camera.json, or f_L=16.748,B=0.376 (mm)")
    return known


def parse_settings(texts: list[str]) -> dict[str, str]:
    """Return options by name from NAME=VALUE."""
    settings: dict[str, str] = {}
    for text in texts:
        name, equals, value = (word.strip() for word in text.partition("="))
        if not equals:
            raise InputError(f"--set {text!r}: needs NAME=VALUE, measure.window_px=4 for example")
        if name in settings:
            raise InputError(f"--set {text!r}: {name} is there twice")
        settings[name] = value
    return settings


def print_calibration(found: Calibration, told: Collection[str] = ()) -> None:
    """Print the parameters, the verdict, where to look, and notes that were not `told` before."""
    from rich.table import Table

    from lifcal.camera import unit_of

    summary: Mapping[str, Any] = found.summary
    metric = summary["scale_source"] is not None
    table = Table(title="intrinsics", title_justify="left")
    for column in ("parameter", "value", "sigma", "unit"):
        table.add_column(column, justify="right" if column in ("value", "sigma") else "left")
    for name, entry in summary["parameters"].items():
        sigma = entry["sigma"]
        shown = f"{sigma:.2g}" if sigma else "held"
        table.add_row(name, f"{entry['value']:.7g}", shown, unit_of(name, metric=metric))
    output().print(table)
    output().print(
        f"{summary['n_registered']} of {summary['n_frames']} frames, {summary['n_used']} "
        f"micro-image points of {summary['n_points']} scene points, residual "
        f"{summary['rms_px']:.3f} px; scale: {summary['scale_source'] or 'none'}.",
        soft_wrap=True,
    )
    output().print(found.verdict, soft_wrap=True)
    for reason in summary["verdict"]["reasons"][1:]:
        output().print(f"- {reason}", soft_wrap=True)
    output().print(f"Look at {found.folder / 'report.html'}", soft_wrap=True)
    for finding in summary["findings"]:
        if finding["severity"] == "note" and finding["text"] not in told:
            say_note(finding["text"])
