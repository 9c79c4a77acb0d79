"""`lifcal simulate`: a recording with known truth."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lifcal.cli._console import make_progress, messages, output, verb

if TYPE_CHECKING:
    from lifcal.simulate import SimulatedFrame, Simulation, SimulationOptions


@verb("the same command goes on from here")
def simulate(
    out: Annotated[Path, typer.Option("-o", "--output", help="Folder to write.")],
    camera: Annotated[
        str,
        typer.Option(
            help="r5-12.5mm, r5-16mm, r5-35mm, r25-12mm, r12-50mm, mini, mini-square or "
            "mini-keplerian."
        ),
    ] = "r5-16mm",
    scene: Annotated[str, typer.Option(help="desk, room, cube, wall or bare.")] = "desk",
    path: Annotated[str, typer.Option(help="winding, handheld, rotation or forward.")] = "winding",
    frames: Annotated[int, typer.Option(help="How many.")] = 36,
    seed: Annotated[int, typer.Option(help="The same seed gives the same bytes.")] = 1,
    rays: Annotated[int, typer.Option(help="Rays a pixel; a power of two is best.")] = 16,
    bits: Annotated[int, typer.Option(help="8 to 16; above 8, 16-bit files.")] = 8,
    bayer: Annotated[
        str | None, typer.Option(help="rggb, grbg, gbrg or bggr; mono without.")
    ] = None,
    exposure: Annotated[float, typer.Option(help="Part of full scale that white reaches.")] = 0.85,
    noise: Annotated[bool, typer.Option(help="Shot and read noise.")] = True,
    micro_aperture: Annotated[
        float, typer.Option(help="Factor on the micro lenses' apertures, 0 to 1.")
    ] = 1.0,
    scene_scale: Annotated[
        float | None,
        typer.Option(help="Factor on the scene's lengths; chosen to fit the camera without."),
    ] = None,
) -> None:
    """Simulate a recording: raw frames and a white image through real optics, with the truth.

    Run the same command again to continue an interrupted one.
    """
    from lifcal.simulate import SensorOptions, SimulationOptions

    sensor = (
        SensorOptions(bits, exposure)
        if noise
        else SensorOptions(bits, exposure, full_well_e=0.0, read_noise_e=0.0)
    )
    options = SimulationOptions(
        camera=camera,
        scene=scene,
        path=path,
        frames=frames,
        seed=seed,
        rays_per_pixel=rays,
        bayer=bayer,
        sensor=sensor,
        micro_aperture=micro_aperture,
        scene_scale=scene_scale,
    )
    simulation, _ = run_simulation(options, out)
    if scene_scale is None and simulation.scene_scale != 1.0:
        output().print(
            f"The scene is scaled by {simulation.scene_scale:g} to fit the camera's working range."
        )
    output().print(
        f"{out}: {frames} frames of {camera} in {scene}, a path of "
        f"{simulation.trajectory.length_mm():.0f} mm; truth in {out / 'truth'}",
        soft_wrap=True,
    )


def run_simulation(
    options: SimulationOptions, folder: Path
) -> tuple[Simulation, SimulatedFrame | None]:
    """Write a simulated sequence with a progress bar; return it with its first new frame."""
    from lifcal.simulate import Simulation, write_sequence
    from lifcal.simulate.sequence import check_folder

    check_folder(folder, options)
    with messages().status("building the scene") as status:
        simulation = Simulation(options)
        status.update("compiling the ray tracer (up to a minute, the first time only)")
        simulation.warm_up()
    first: SimulatedFrame | None = None
    with make_progress() as progress:
        task = progress.add_task("rendering", total=options.frames)

        def advance(index: int, frame: SimulatedFrame | None) -> None:
            nonlocal first
            first = first or frame
            progress.update(task, completed=index + 1)

        write_sequence(folder, simulation, on_frame=advance)
    return simulation, first
