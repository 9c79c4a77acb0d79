"""`lifcal simulate`: a recording with known truth."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lifcal.cli._console import RichListener, output, verb
from lifcal.cli._options import AsJson, OutputFolder

if TYPE_CHECKING:
    from lifcal.simulate import SimulatedFrame, Simulation, SimulationOptions


_optics = partial(typer.Option, rich_help_panel="Imperfect optics")
_recording = partial(typer.Option, rich_help_panel="Imperfect recording")


@verb("the same command goes on from here")
def simulate(
    out: OutputFolder,
    camera: Annotated[
        str,
        typer.Option(
            help="Camera: r5-12.5mm, r5-16mm, r5-35mm, r25-12mm, r12-50mm, mini, mini-square or "
            "mini-keplerian: perfect optics. With mild imperfections: r5-12.5mm-real, "
            "r5-16mm-real, r5-35mm-real, r25-12mm-real, r12-50mm-real, mini-real, "
            "mini-square-real or mini-keplerian-real."
        ),
    ] = "r5-16mm",
    scene: Annotated[str, typer.Option(help="Scene: desk, room, cube, wall or bare.")] = "desk",
    path: Annotated[
        str,
        typer.Option(
            help="Path of the camera: winding, handheld, turntable, orbit, sideways, rotation or "
            "forward."
        ),
    ] = "winding",
    frames: Annotated[int, typer.Option(help="Number of frames.")] = 36,
    seed: Annotated[
        int, typer.Option(help="Seed of all random choices; the same seed gives the same bytes.")
    ] = 1,
    rays: Annotated[int, typer.Option(help="Number of rays a pixel; a power of two is best.")] = 16,
    bits: Annotated[
        int, typer.Option(help="Bits of a pixel, 8 to 16; above 8, files have 16 bits.")
    ] = 8,
    bayer: Annotated[
        str | None,
        typer.Option(
            help="Color pattern of the sensor: rggb, grbg, gbrg or bggr. Without it, mono."
        ),
    ] = None,
    exposure: Annotated[float, typer.Option(help="Part of full scale that white reaches.")] = 0.85,
    noise: Annotated[bool, typer.Option(help="Add shot noise and read noise.")] = True,
    micro_aperture: Annotated[
        float, typer.Option(help="Factor on the micro lenses' apertures, 0 to 1.")
    ] = 1.0,
    scene_scale: Annotated[
        float | None,
        typer.Option(
            help="Factor on the lengths of the scene. Without it, it is chosen to fit the camera."
        ),
    ] = None,
    lattice: Annotated[
        str | None,
        _optics(
            help="Which micro-image centers form a regular lattice: ideal (those before "
            "distortion; the default) or recorded."
        ),
    ] = None,
    tilt: Annotated[
        tuple[float, float] | None,
        _optics(help="Tilt of the micro-lens array along x and y, degrees."),
    ] = None,
    rotation: Annotated[
        float | None, _optics(help="Rotation of the micro-lens array about the axis, degrees.")
    ] = None,
    jitter: Annotated[
        float | None, _optics(help="Standard deviation of the micro lenses' positions, px.")
    ] = None,
    object_distortion: Annotated[
        tuple[float, float] | None,
        _optics(
            help="Distortion of the main lens in object space: A and B of the ray slope "
            "h (1 - A h^2 + B h^4)."
        ),
    ] = None,
    object_distortion_distance: Annotated[
        float | None,
        _optics(help="Distance at which that distortion keeps points sharp, mm; infinity without."),
    ] = None,
    stop: Annotated[
        float | None, _optics(help="Distance of the aperture stop behind the main lens, mm.")
    ] = None,
    field_curvature: Annotated[
        float | None,
        _optics(help="P of the main lens' focal length f_L / (1 + P h^2) for a ray of slope h."),
    ] = None,
    cos4: Annotated[
        bool | None,
        _optics(help="Fall-off of light with the fourth power of the cosine of its angle."),
    ] = None,
    blur: Annotated[
        float | None,
        _optics(
            help="Standard deviation of a Gaussian blur on the sensor, px. Diffraction: 0.13 px."
        ),
    ] = None,
    exposure_drift: Annotated[
        float | None, _recording(help="Relative amplitude of a slow change of the exposure.")
    ] = None,
    motion_blur: Annotated[
        float | None,
        _recording(help="Part of the interval between frames during which the shutter is open."),
    ] = None,
    dust: Annotated[
        int | None, _recording(help="Number of dust specks on the sensor, in all images.")
    ] = None,
    white_dust: Annotated[
        int | None, _recording(help="Number of dust specks in the white image alone.")
    ] = None,
    white_aperture: Annotated[
        float | None, _recording(help="Factor on the main aperture's radius for the white image.")
    ] = None,
    gamma: Annotated[
        float | None, _recording(help="Values are recorded to the power of 1 / gamma.")
    ] = None,
    compression: Annotated[
        str | None,
        _recording(
            help="Compression: none, jpeg (JPEG files), or video (PNG files of frames coded "
            "as in a "
            "video)."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Simulate a recording: raw frames and a white image through real optics, with the truth.

    Run the same command again to continue an interrupted one. Imperfections that are not given are
    those of the camera.
    """
    from dataclasses import replace

    from lifcal.errors import ConfigError
    from lifcal.simulate import CAMERAS, SensorOptions, SimulationOptions

    if camera not in CAMERAS:
        raise ConfigError.unknown("camera", camera, CAMERAS)
    given: dict[str, Any] = {
        "lattice": lattice,
        "tilt_x_deg": tilt and tilt[0],
        "tilt_y_deg": tilt and tilt[1],
        "rotation_deg": rotation,
        "jitter_px": jitter,
        "object_distortion_a": object_distortion and object_distortion[0],
        "object_distortion_b": object_distortion and object_distortion[1],
        "object_distortion_distance_mm": object_distortion_distance,
        "stop_mm": stop,
        "field_curvature": field_curvature,
        "cos4": cos4,
        "blur_px": blur,
        "exposure_drift": exposure_drift,
        "motion_blur": motion_blur,
        "dust": dust,
        "white_dust": white_dust,
        "white_aperture": white_aperture,
        "gamma": gamma,
        "compression": compression,
    }
    imperfections = replace(
        CAMERAS[camera].imperfections,
        **{name: value for name, value in given.items() if value is not None},
    )

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
        imperfections=imperfections,
    )
    simulation, _ = run_simulation(options, out)
    if as_json:
        content = {
            "folder": str(out),
            "raws": str(out / "raw"),
            "white": str(out / "white.png"),
            "truth": str(out / "truth"),
            "frames": frames,
            "pixel_size_um": 1000.0 * simulation.optics.camera.pixel_size_mm,
            "path_mm": simulation.trajectory.length_mm(),
            "scene_scale": simulation.scene_scale,
        }
        print(json.dumps(content, indent=2))
        return
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
    listener = RichListener()
    with listener.status("building the scene"):
        simulation = Simulation(options)
    with listener.status("compiling the ray tracer (up to a minute, the first time only)"):
        simulation.warm_up()
    first: SimulatedFrame | None = None
    with listener.steps("rendering", options.frames) as step:

        def advance(_index: int, frame: SimulatedFrame | None) -> None:
            nonlocal first
            first = first or frame
            step("")

        write_sequence(folder, simulation, on_frame=advance)
    return simulation, first
