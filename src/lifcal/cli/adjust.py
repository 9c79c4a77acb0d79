"""`lifcal adjust`: calibrate from micro-image observations that someone else measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from lifcal.cli._console import RichListener, output, parse_image_size, say_note, verb
from lifcal.cli._options import AsJson, Distortion, Loss, OutputFolder, PixelSize, Tilt
from lifcal.cli._results import exit_by_verdict, print_parameters, print_verdict
from lifcal.errors import ConfigError, DataError, InputError
from lifcal.sources import check_files

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lifcal.bundle import Adjustment, FocusTerm, Prior
    from lifcal.bundle.focus import FocusShape
    from lifcal.camera import MicroLensGrid


_LEAST_FOCAL, _MOST_FOCAL = 0.85, 1.5
"""Distance of main lens and sensor over the nominal focal length: more than 1 if focused near."""


@verb()
def adjust(
    observations: Annotated[
        Path,
        typer.Argument(
            metavar="OBSERVATIONS.csv",
            help="Table with the columns view, point, center_x, center_y, x, y in raw px and "
            "optionally "
            "lens_type and sigma.",
        ),
    ],
    out: OutputFolder,
    pixel_size_um: PixelSize,
    image_size: Annotated[str, typer.Option(help="Size of the raw image as WIDTHxHEIGHT.")],
    focal_length_mm: Annotated[
        float,
        typer.Option(help="Nominal focal length in mm: where the search starts, not a prior."),
    ],
    distances: Annotated[
        Path | None,
        typer.Option(
            help="File with known distances, one 'point1 point2 mm sigma' a line: the scale."
        ),
    ] = None,
    grid: Annotated[
        Path | None,
        typer.Option(help="Micro-lens grid (grid.json), for camera.json and the focus term."),
    ] = None,
    loss: Loss = "cauchy",
    distortion: Distortion = "brown",
    tilt: Tilt = "auto",
    focus_strength: Annotated[
        float | None, typer.Option(help="Strength g of the focus-vignetting term; needs --grid.")
    ] = None,
    focus_sigma: Annotated[
        float,
        typer.Option(help="Standard deviation of g, which is then estimated. With 0, g is held."),
    ] = 0.0,
    plane_sigma: Annotated[
        float,
        typer.Option(help="Standard deviation of 1/u of each focal plane. With 0, they are held."),
    ] = 0.0,
    focus_shape: Annotated[
        str,
        typer.Option(help="Shape of the focus-vignetting term: linear, overlap or devignetted."),
    ] = "linear",
    as_json: AsJson = False,
) -> None:
    """Calibrate a camera from points measured in micro images.

    Writes camera.json, poses.txt, points.ply and summary.json. The exit code is 3 if the verdict is
    "do not trust it".
    """
    check_files(observations, distances, grid)
    from lifcal.bundle import (
        AdjustOptions,
        adjust,
        cross_validate,
        grid_from_observations,
        read_distances,
        start_from_observations,
    )
    from lifcal.bundle.files import summary_to_dict, write_adjustment
    from lifcal.files import write_json
    from lifcal.reconstruction import read_observations
    from lifcal.report import assess, list_units

    if not pixel_size_um > 0.0:
        raise InputError(f"--pixel-size-um is {pixel_size_um}, needs a positive number")
    if not focal_length_mm > 0.0:
        raise InputError(f"--focal-length-mm is {focal_length_mm}, needs a positive number")
    size = parse_image_size(image_size)
    if out.is_file():
        raise DataError(f"{out}: is a file, needs a folder")
    listener = RichListener()
    measured = read_observations(observations)
    known = None if distances is None else read_distances(distances)
    try:
        if grid is None:
            lenses = grid_from_observations(measured, size)
        else:
            lenses = _read_grid(grid, size)
            measured = measured.with_types_of(lenses)
        term, strength = _make_focus(lenses, focus_strength, focus_sigma, plane_sigma, focus_shape)
        options = AdjustOptions(
            loss=loss, distortion=distortion, tilt=tilt, focus=term, focus_strength=strength
        )
        pixel_mm = pixel_size_um / 1000.0
        middle = ((size[0] - 1) / 2.0, (size[1] - 1) / 2.0)
        with listener.status("joining the views (the first time takes half a minute longer)"):
            start = start_from_observations(measured, focal_length_mm / pixel_mm, middle)
        with listener.status("adjusting"):
            found = adjust(measured, start, pixel_mm, lenses, options, distances=known)
        with listener.status("cross-validating: solving halves of the recording"):
            found = cross_validate(found, options)
    except InputError as error:
        raise DataError(f"{observations}: {error}") from None
    content = summary_to_dict(found) | {
        "image_size_px": list(size),
        "pixel_size_um": pixel_size_um,
        "units": list_units(found),
    }
    content["findings"], content["verdict"] = assess(content, found.summary.findings)
    paths = write_adjustment(out, found, summary=False)
    paths["summary.json"] = out / "summary.json"
    write_json(paths["summary.json"], content)
    if as_json:
        print(json.dumps({**content, "files": {k: str(v) for k, v in paths.items()}}, indent=2))
    else:
        _print_tables(found, content)
        output().print(f"{out}: written, with {', '.join(paths)}", soft_wrap=True)
    # Without the tables, what the verdict rests on is told as notes too.
    notes = [
        entry["text"] for entry in content["findings"] if as_json or entry["severity"] == "note"
    ]
    distance = found.camera.array.focal_px * pixel_mm
    if not _LEAST_FOCAL < distance / focal_length_mm < _MOST_FOCAL:
        notes.append(
            f"the images say that the main lens is {distance:.4g} mm from the sensor, for a focal "
            f"length of {focal_length_mm:g} mm: are --pixel-size-um and --focal-length-mm right?"
        )
    for note in notes:
        say_note(note)
    exit_by_verdict(content["verdict"])


def _read_grid(path: Path, size: tuple[int, int]) -> MicroLensGrid:
    from lifcal.camera import read_grid

    grid = read_grid(path)
    if grid.image_size != size:
        raise DataError(
            f"{path}: a grid for {grid.image_size[0]} x {grid.image_size[1]} px, --image-size is "
            f"{size[0]} x {size[1]}"
        )
    return grid


def _make_focus(
    grid: MicroLensGrid,
    strength: float | None,
    sigma: float,
    plane_sigma: float,
    shape: str,
) -> tuple[FocusTerm | None, float | Prior]:
    from lifcal.bundle import FocusTerm, Prior
    from lifcal.bundle.focus import FOCUS_SHAPES

    if strength is None:
        if sigma > 0.0 or plane_sigma > 0.0:
            raise ConfigError("--focus-sigma and --plane-sigma need --focus-strength")
        return None, 0.0
    if shape not in FOCUS_SHAPES:
        raise ConfigError.unknown("focus shape", shape, FOCUS_SHAPES)
    if grid.focal_planes is None:
        raise DataError("--focus-strength needs --grid with a grid.json that has focal planes")
    term = FocusTerm.from_grid(grid, cast("FocusShape", shape), plane_sigma=plane_sigma)
    return term, Prior(strength, sigma) if sigma > 0.0 else strength


def _print_tables(found: Adjustment, content: Mapping[str, Any]) -> None:
    summary = found.summary
    print_parameters(content["parameters"], content["units"])
    output().print(
        f"{summary.n_used} of {summary.n_observations} observations of {summary.n_points} points "
        f"in {summary.n_views} views; residual rms {summary.rms_px:.3f} px per axis, noise "
        f"{summary.noise:.3f}; {summary.iterations} iterations: {summary.reason}. Scale: "
        f"{summary.scale_source or 'none, lengths are arbitrary'}.",
        soft_wrap=True,
    )
    print_verdict(content["verdict"])
