"""`lifcal calibrate`: from a folder of raw frames to a camera."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lifcal.cli._choice import Ends, EveryOfVideo, Exclude
from lifcal.cli._console import RichListener, output, say_note, verb
from lifcal.cli._executor import Jobs, Scheduler
from lifcal.cli._options import (
    MARKER_DISTANCES,
    SCALE_PANEL,
    AsJson,
    Bayer,
    Dictionary,
    Distortion,
    Grid,
    Loss,
    MakersXml,
    OutputFolder,
    PixelSize,
    Settings,
    Tilt,
    White,
)
from lifcal.cli._results import exit_by_verdict, print_parameters, print_verdict
from lifcal.distances import check_picked_distances
from lifcal.errors import InputError
from lifcal.sources import Recording, check_files, list_recordings

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from lifcal.pipeline.calibration import Calibration

_FOCUSED_SCALE = 0.5
"""Size of the focused images relative to the raws; the value of `DepthOptions`, which is heavy to
import. A test compares them."""


@verb("the same command goes on from here")
def calibrate(
    raws: Annotated[
        list[str],
        typer.Argument(
            metavar="RAWS...",
            help="Raw frames: files, folders, globs or videos. Several folders, globs or videos "
            "are several recordings of one camera, each of a scene of its own.",
        ),
    ],
    out: OutputFolder,
    pixel_size_um: PixelSize,
    white: White = None,
    grid: Grid = None,
    xml: MakersXml = None,
    bayer: Bayer = None,
    every: EveryOfVideo = None,
    frames: Ends = None,
    exclude: Exclude = None,
    focal_length_mm: Annotated[
        float | None,
        typer.Option(
            help="Focal length engraved on the lens, in mm: a hint, and a check of the result."
        ),
    ] = None,
    marker_size_mm: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FLOAT",
            help="Side of the black squares of ArUco markers in the scene, in mm. This, "
            "--marker-distances, --distances and --trajectory may be given once for each "
            "recording, 'none' for one without.",
            rich_help_panel=SCALE_PANEL,
        ),
    ] = None,
    marker_distances: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATH",
            help=MARKER_DISTANCES,
            rich_help_panel=SCALE_PANEL,
        ),
    ] = None,
    dictionary: Dictionary = "DICT_6X6_250",
    distances: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATH",
            help="File with known distances between points picked in focused images, one "
            "'frame x1 y1 x2 y2 mm sigma' a line.",
            rich_help_panel=SCALE_PANEL,
        ),
    ] = None,
    trajectory: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATH",
            help="File with known poses in TUM format. The timestamp is the index of the frame, or "
            "that of --timestamps.",
            rich_help_panel=SCALE_PANEL,
        ),
    ] = None,
    trajectory_sigma_mm: Annotated[
        float,
        typer.Option(
            help="Standard deviation of each coordinate of the known positions, in mm.",
            rich_help_panel=SCALE_PANEL,
        ),
    ] = 1.0,
    known: Annotated[
        str | None,
        typer.Option(
            metavar="CAMERA.JSON",
            help="Recalibration of a lens that was focused anew: f_L and B with their covariance, "
            "from an earlier calibration. B=CAMERA.JSON takes B alone, for another lens on the "
            "same camera. f_L=16.748,B=0.376 gives both in mm, as exact.",
            rich_help_panel=SCALE_PANEL,
        ),
    ] = None,
    timestamps: Annotated[
        Path | None,
        typer.Option(
            help="File with the time of every raw, one a line, for poses.txt. Without it, "
            "the index."
        ),
    ] = None,
    points: Annotated[int, typer.Option(help="Number of points to measure in each scene.")] = 1000,
    loss: Loss = "cauchy",
    distortion: Distortion = "brown",
    tilt: Tilt = "auto",
    priors: Annotated[
        bool,
        typer.Option(
            help="Use what is known of any camera: the principal point is near the middle of the "
            "image (2 % of its width) and tangential distortion is small."
        ),
    ] = True,
    matching: Annotated[
        str,
        typer.Option(help="Which frames are matched: auto, sequential, exhaustive or retrieval."),
    ] = "auto",
    seed: Annotated[
        int, typer.Option(help="Seed of all random choices; the same seed gives the same result.")
    ] = 0,
    jobs: Jobs = None,
    scheduler: Scheduler = None,
    settings: Settings = None,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="If the folder holds a finished calibration of other settings, keep that in a "
            "folder beside it, and calibrate.",
        ),
    ] = False,
    add: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="A finished calibration of the same camera: what it measured is adjusted together "
            "with the new recording.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Calibrate a camera from raw frames of any textured scene, taken with the camera moving.

    Writes camera.json, poses.txt, points.ply, cameras.ply, observations.csv, focused images,
    summary.json and report.html. Run the same command again to continue an interrupted one. The
    exit code is 3 if the verdict is "do not trust it".
    """
    # Before anything heavy is imported, so that a slip of the hand is told at once.
    recordings = list_recordings(raws)
    tables = [_parse_each(words) for words in (marker_distances, distances, trajectory)]
    check_files(white, grid, xml, timestamps, *(path for found in tables for path in found or ()))
    _check_distances(tables[1], recordings, _find_scale(settings or []))
    sizes = _parse_sizes(marker_size_mm)
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
            marker_size_mm=_one_or_all(sizes),
            marker_distances=_one_or_all(tables[0]),
            dictionary=dictionary,
            distances=_one_or_all(tables[1]),
            trajectory=_one_or_all(tables[2]),
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
            add=add,
        )
    if as_json:
        print(json.dumps(found.summary, indent=2))
    else:
        print_calibration(found, listener.told)
    if found.problems:
        say_note(f"{len(found.problems)} of {found.n_frames} frames could not be used")
    exit_by_verdict(found.summary["verdict"])


def _parse_known(text: str) -> str | dict[str, float | str]:
    """Return a camera file, or what is known of each length: a number or a camera file."""
    if text and "=" not in text and (text.lower().endswith(".json") or Path(text).is_dir()):
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


def _parse_each(words: list[str] | None) -> list[str | None] | None:
    """Return what was given for each recording, None for 'none'."""
    return None if not words else [None if word.lower() == "none" else word for word in words]


def _parse_sizes(words: list[str] | None) -> list[float | None] | None:
    found = _parse_each(words)
    try:
        return None if found is None else [None if x is None else float(x) for x in found]
    except ValueError:
        raise InputError(
            f"--marker-size-mm {' '.join(words or ())}: needs a number of mm, or 'none'"
        ) from None


def _one_or_all(found: list[Any] | None) -> Any:
    """Return what holds for all recordings, or a list with one for each."""
    if found is None:
        return None
    return found[0] if len(found) == 1 else found


def _check_distances(
    given: list[str | None] | None, recordings: list[Recording], scale: float
) -> None:
    """Check files of picked distances against the raws: one for all, or one for each recording."""
    files = [recording.files for recording in recordings]
    if given is None or len(given) != len(files):
        files = [tuple(file for each in files for file in each)]
    for path, raws in zip(given or (), files, strict=False):
        if path is not None:
            check_picked_distances(Path(path), raws, scale)


def _find_scale(settings: list[str]) -> float:
    """Return the size of the focused images relative to the raws."""
    given = parse_settings(settings).get("depth.scale", "")
    try:
        scale = float(given)
    except ValueError:  # not given, or told later what it needs
        return _FOCUSED_SCALE
    return scale if 0.0 < scale <= 2.0 else _FOCUSED_SCALE


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
    summary: Mapping[str, Any] = found.summary
    print_parameters(summary["parameters"], summary["units"])
    output().print(
        f"{summary['n_registered']} of {summary['n_frames']} frames, {summary['n_used']} "
        f"micro-image points of {summary['n_points']} scene points, residual "
        f"{summary['rms_px']:.3f} px; scale: {summary['scale_source'] or 'none'}.",
        soft_wrap=True,
    )
    worlds = summary.get("worlds", ())
    if len(worlds) > 1:
        for world in worlds:
            output().print(
                f"World {world['number']}: {world['recording']}, {len(world['frames'])} frames, "
                f"{world['n_points']} points, poses in {world['poses']}.",
                soft_wrap=True,
            )
    print_verdict(summary["verdict"])
    output().print(f"Look at {found.folder / 'report.html'}", soft_wrap=True)
    for finding in summary["findings"]:
        if finding["severity"] == "note" and finding["text"] not in told:
            say_note(finding["text"])
