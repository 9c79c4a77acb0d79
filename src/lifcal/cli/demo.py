"""`lifcal demo`: the main job on data that comes with the package."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lifcal.cli._console import output, verb
from lifcal.cli.simulate import run_simulation


@verb("the same command goes on from here")
def demo(
    out: Annotated[Path, typer.Option("-o", "--output", help="Folder to write.")] = Path(
        "lifcal-demo"
    ),
    frames: Annotated[int, typer.Option(help="How many.")] = 6,
) -> None:
    """Simulate a short recording of a small camera over a desk, and show it."""
    from rich.table import Table

    from lifcal.imaging.files import write_png
    from lifcal.simulate import SimulationOptions
    from lifcal.simulate.overview import draw_overview

    options = SimulationOptions(camera="mini", scene="desk", frames=frames)
    simulation, first = run_simulation(options, out)
    picture = out / "overview.png"
    if first is None:
        first = simulation.render_frame(0)
    write_png(picture, draw_overview(simulation, first))

    camera = simulation.optics.camera
    physical, array = camera.parameters, camera.array
    table = Table(title="The simulated camera, in both forms")
    for column in ("physical", "", "pinhole array", ""):
        table.add_column(column, justify="right" if not column else "left")
    table.add_row("f_L", f"{physical.focal_length_mm:.3f} mm", "F", f"{array.focal_px:.2f} px")
    table.add_row("b_L0", f"{physical.lens_to_array_mm:.3f} mm", "alpha", f"{array.alpha:.5f}")
    table.add_row("B", f"{physical.array_to_sensor_mm:.3f} mm", "beta", f"{array.beta_mm:.2f} mm")
    table.add_row("c", f"{physical.principal_x_px:.1f}, {physical.principal_y_px:.1f} px", "", "")
    output().print(table)
    depth = first.view.depth_mm
    output().print(
        f"{frames} raw frames, a path of {simulation.trajectory.length_mm():.0f} mm, depths from "
        f"{float(depth[depth == depth].min()):.0f} to {float(depth[depth == depth].max()):.0f} mm.",
        soft_wrap=True,
    )
    output().print(f"Look at {picture}; the truth is in {out / 'truth'}.", soft_wrap=True)
