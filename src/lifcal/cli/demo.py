"""`lifcal demo`: the main job on data that comes with the package."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lifcal.cli._console import RichListener, output, verb
from lifcal.cli._options import AsJson
from lifcal.cli._results import exit_by_verdict, print_verdict
from lifcal.cli.evaluate import print_evaluation
from lifcal.cli.simulate import run_simulation

if TYPE_CHECKING:
    from lifcal.evaluate import Evaluation
    from lifcal.pipeline.calibration import Calibration
    from lifcal.simulate.overview import Estimate

_MARKER_MM = 40.0
"""Side of the markers on the simulated desk."""
_NOMINAL_MM = 16.0
"""Focal length that would be written on the simulated lens."""


def _read_estimate(found: Calibration, compared: Evaluation) -> Estimate:
    """Return what the calibration says of the first frame and of the camera."""
    import numpy as np

    from lifcal.imaging.files import read_image
    from lifcal.metric import compute_metric_depth
    from lifcal.simulate.overview import Estimate

    name = found.summary["frames"][0]["name"]
    u, sigma = (
        np.asarray(read_image(found.folder / "virtual_depth" / f"{name}{kind}.tiff"), np.float32)
        for kind in ("", "_sigma")
    )
    bias = found.camera.depth_bias
    depth_mm, _ = compute_metric_depth(found.camera, u if bias is None else bias.remove(u), sigma)
    rows = [
        (
            f"{row.name} {row.unit}",
            f"{row.estimated:.6g}",
            f"{row.true:.6g}",
            f"{row.error:+.2g}" if row.percent is None else f"{row.percent:+.3f} %",
            "" if row.error_sigmas is None else f"{row.error_sigmas:+.2f}",
        )
        for row in compared.parameters
    ]
    focused = np.asarray(read_image(found.folder / "focused" / f"{name}.png"), np.uint8)
    return Estimate(focused, depth_mm, rows)


@verb("the same command goes on from here")
def demo(
    out: Annotated[
        Path,
        typer.Option("-o", "--output", help="Folder for the results; it is made if it is missing."),
    ] = Path("lifcal-demo"),
    frames: Annotated[int, typer.Option(help="Number of frames to simulate.")] = 16,
    as_json: AsJson = False,
) -> None:
    """Simulate a small camera moving over a desk, calibrate it, and compare with the truth."""
    from lifcal.evaluate import evaluate_calibration
    from lifcal.imaging.files import write_png
    from lifcal.pipeline import calibrate
    from lifcal.simulate import SimulationOptions
    from lifcal.simulate.overview import draw_overview

    recording, result = out / "recording", out / "calibration"
    simulation, first = run_simulation(
        SimulationOptions(camera="mini", scene="desk", frames=frames), recording
    )
    if first is None:
        first = simulation.render_frame(0)
    # the truth first: the calibration takes longer, and may fail
    write_png(out / "overview.png", draw_overview(simulation, first))
    camera = simulation.optics.camera
    found = calibrate(
        recording / "raw",
        result,
        pixel_size_um=camera.pixel_size_mm * 1000.0,
        white=recording / "white.png",
        focal_length_mm=_NOMINAL_MM,
        marker_size_mm=_MARKER_MM,
        listener=RichListener(),
    )
    compared = evaluate_calibration(result, recording)
    found_too = _read_estimate(found, compared)
    write_png(out / "overview.png", draw_overview(simulation, first, found_too))
    if as_json:
        content = {**compared.as_dict(), "verdict": found.summary["verdict"], "folder": str(out)}
        print(json.dumps(content, indent=2, allow_nan=False))
    else:
        print_evaluation(compared)
        print_verdict(found.summary["verdict"])
        pages = f"{result / 'report.html'} and {out / 'overview.png'}"
        output().print(f"Look at {pages}.", soft_wrap=True)
    exit_by_verdict(found.summary["verdict"])
