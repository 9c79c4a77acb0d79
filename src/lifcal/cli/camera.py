"""`lifcal camera`: look at camera files and convert them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lifcal.cli._console import output, parse_image_size, say_note, show_examples, verb
from lifcal.cli._options import AsJson
from lifcal.errors import InputError

if TYPE_CHECKING:
    from rich.table import Table

    from lifcal.camera import MicroLensGrid, PlenopticCamera
    from lifcal.camera.authors_xml import CameraModelFile
    from lifcal.imaging.camera_formats import CameraFile
    from lifcal.imaging.raytrix import RaytrixCalibration
    from lifcal.imaging.tspc import TspcCalibration

camera_app = typer.Typer(help="Show and convert camera files.", no_args_is_help=True)

_FILE = (
    "camera.json, grid.json, Raytrix or TSPC XML, the authors' CameraModel.xml, or COMPOTE JSON."
)


@camera_app.command(epilog=show_examples("lifcal camera show camera/camera.json"))
@verb()
def show(
    file: Annotated[Path, typer.Argument(help=_FILE)],
    as_json: AsJson = False,
) -> None:
    """Show what is in a camera or grid file."""
    from lifcal.camera import MicroLensGrid, PlenopticCamera
    from lifcal.camera.authors_xml import CameraModelFile
    from lifcal.imaging.camera_formats import read_camera_file
    from lifcal.imaging.tspc import TspcCalibration

    found = read_camera_file(file)
    if as_json:
        print(json.dumps({"kind": found.kind, "notes": found.notes, **_as_dict(found)}, indent=2))
        return
    from rich.table import Table

    table = Table(title=f"{file.name}: {found.kind}", title_justify="left", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_column()
    if isinstance(found.content, PlenopticCamera):
        _add_camera(table, found.content)
    elif isinstance(found.content, MicroLensGrid):
        _add_grid(table, found.content)
    elif isinstance(found.content, CameraModelFile):
        _add_model_file(table, found.content)
    elif isinstance(found.content, TspcCalibration):
        _add_tspc(table, found.content)
    else:
        _add_raytrix(table, found.content)
    output().print(table)
    if isinstance(found.content, PlenopticCamera):
        centers_px = found.content.image_centers_und_px
        lost = int((centers_px[:, 0] != centers_px[:, 0]).sum())  # NaN
        if lost:
            say_note(f"the distortion folds back inside the image: {lost} lenses have no place")
    for note in found.notes:
        say_note(note)


@camera_app.command(
    epilog=show_examples("lifcal camera convert camera/camera.json CameraModel.xml")
)
@verb()
def convert(
    source: Annotated[Path, typer.Argument(metavar="IN", help=_FILE)],
    target: Annotated[
        Path,
        typer.Argument(
            metavar="OUT",
            help=".json: camera.json (or grid.json, where IN holds only a grid); "
            ".xml: the authors' CameraModel.xml.",
        ),
    ],
    image_size: Annotated[
        str | None, typer.Option(help="WIDTHxHEIGHT of the raw image, for a Raytrix or TSPC XML.")
    ] = None,
    grid: Annotated[
        Path | None,
        typer.Option(help="File with the micro-lens grid, where IN has none or another is wanted."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Convert a camera or grid file."""
    from dataclasses import replace

    from lifcal.camera import MicroLensGrid, write_authors_xml, write_camera, write_grid
    from lifcal.camera.authors_xml import CameraModelFile, describe_lost
    from lifcal.imaging.camera_formats import read_camera_file
    from lifcal.imaging.raytrix import RaytrixCalibration
    from lifcal.imaging.tspc import TspcCalibration

    kind = target.suffix.lower()
    if kind not in (".json", ".xml"):
        raise InputError(f"{target}: cannot tell the format from the name: needs .json or .xml")
    found = read_camera_file(source)
    size = parse_image_size(image_size) if image_size is not None else None
    if isinstance(found.content, MicroLensGrid | RaytrixCalibration | TspcCalibration):
        if kind == ".xml":
            raise InputError(f"{source}: {found.kind} holds a grid only, no camera to convert")
        if grid is not None:
            raise InputError(f"{source}: {found.kind} is a grid itself: leave --grid away")
        if isinstance(found.content, MicroLensGrid) and size not in (
            None,
            found.content.image_size,
        ):
            raise InputError(f"{source}: is for another image size than {image_size}")
        if not isinstance(found.content, MicroLensGrid) and size is None:
            raise InputError(
                f"{source}: {found.kind} does not say the image size: give --image-size "
                "WIDTHxHEIGHT"
            )
        write_grid(target, found.grid(size))
    else:
        expected = found.content.image_size
        if size not in (None, expected):
            raise InputError(
                f"{source}: is for images of {expected[0]} x {expected[1]} px, not {image_size}"
            )
        other = read_camera_file(grid).grid(expected) if grid is not None else None
        if other is not None and other.image_size != expected:
            raise InputError(
                f"{grid}: is for images of {other.image_size[0]} x {other.image_size[1]} px, but "
                f"{source} is for {expected[0]} x {expected[1]} px"
            )
        if isinstance(found.content, CameraModelFile) and other is None:
            raise InputError(f"{source}: {found.kind} has no micro-lens grid: give --grid FILE")
        camera = found.camera(other)
        if other is not None and camera.grid is not other:
            camera = replace(camera, grid=other)
        if kind == ".json":
            write_camera(target, camera)
        else:
            write_authors_xml(target, camera)
            for note in describe_lost(camera):
                say_note(note)
    for note in found.notes:
        say_note(note)
    if as_json:
        print(json.dumps({"written": str(target), "kind": found.kind, "source": str(source)}))
        return
    output().print(f"{target}: written from {found.kind} {source}", soft_wrap=True)


def _as_dict(found: CameraFile) -> dict[str, Any]:
    from dataclasses import asdict

    from lifcal.camera import MicroLensGrid, PlenopticCamera
    from lifcal.camera.camera_file import camera_to_dict, grid_to_dict
    from lifcal.imaging.tspc import TspcCalibration

    if isinstance(found.content, PlenopticCamera):
        return camera_to_dict(found.content)
    if isinstance(found.content, MicroLensGrid):
        return {"grid": grid_to_dict(found.content)}
    if isinstance(found.content, TspcCalibration):
        return {
            "diameter_px": found.content.diameter_px,
            "in_columns": found.content.in_columns,
            "centers_px": found.content.centers_px.tolist(),
        }
    return asdict(found.content)


def _add_camera(table: Table, camera: PlenopticCamera) -> None:
    from lifcal.camera.camera_file import camera_to_dict
    from lifcal.camera.parameters import format_unit, format_value

    content = camera_to_dict(camera)
    for section in ("intrinsics", "pinhole_array"):
        for name, item in content[section].items():
            unit = item["unit"] if item["unit"] != "1" else ""
            # Without a scale, the numbers are shown too: other programs' files do not tell theirs.
            table.add_row(name, format_value(item["value"], item["sigma"]), unit)
        table.add_section()
    for name, item in content["distortion"]["parameters"].items():
        table.add_row(name, format_value(item["value"], item["sigma"]), format_unit(item["unit"]))
    table.add_row("distortion", content["distortion"]["model"], "")
    if camera.tilt is not None:
        angles, sigmas = camera.tilt_angles_deg()
        for i, axis in enumerate("xy"):
            sigma = None if sigmas is None else float(sigmas[i])
            table.add_row(f"array tilt {axis}", format_value(float(angles[i]), sigma), "deg")
    table.add_row("pixel size", f"{content['pixel_size_um']:g}", "um")
    table.add_row(
        "scale from", camera.scale_source or "nothing: lengths have no metric meaning", ""
    )
    table.add_section()
    _add_grid(table, camera.grid)


def _add_grid(table: Table, grid: MicroLensGrid) -> None:
    width, height = grid.image_size
    table.add_row("image", f"{width} x {height}", "px")
    layout = grid.lattice.layout if grid.lattice is not None else "explicit list"
    table.add_row("grid", f"{layout}, {len(grid)} lenses", "")
    table.add_row("pitch", f"{grid.pitch_px:.4f}", "px")
    if grid.lattice is not None:
        from math import degrees

        table.add_row("rotation", f"{degrees(grid.lattice.rotation_rad) + 0.0:.4f}", "deg")
    if grid.bend is not None:
        from math import isnan

        sigma = float(grid.bend.sigma_at(grid.centers_raw_px).mean())
        known = "" if isnan(sigma) else f", known to {sigma:.4f}"
        table.add_row("bend rms", f"{grid.bend.rms_px:.4f} (order {grid.bend.order}{known})", "px")
    if grid.deviations_px is not None:
        table.add_row("lenses' own deviation", f"{grid.deviations_rms_px:.4f}", "px")
    table.add_row("radius", f"{grid.radius_px:.2f}", "px")
    table.add_row("lens types", str(grid.n_types), "")
    if grid.focal_planes is not None:
        planes = ", ".join(f"{plane:.3f}" for plane in grid.focal_planes)
        table.add_row("in focus at u", planes, "")
    if grid.discs is not None:
        radii = ", ".join(f"{radius:.3f}" for radius in grid.discs.micro_px)
        table.add_row("overlap discs", f"{grid.discs.main_px:.3f} and {radii}", "px")


def _add_model_file(table: Table, found: CameraModelFile) -> None:
    p = found.parameters
    table.add_row("f_L", f"{p.focal_length_mm:.7g}", "mm")
    table.add_row("b_L0", f"{p.lens_to_array_mm:.7g}", "mm")
    table.add_row("B", f"{p.array_to_sensor_mm:.7g}", "mm")
    table.add_row("c_x", f"{p.principal_x_px:.7g}", "px")
    table.add_row("c_y", f"{p.principal_y_px:.7g}", "px")
    table.add_section()
    for name, unit in zip(found.distortion.parameter_names(), found.distortion.units, strict=True):
        table.add_row(name, f"{getattr(found.distortion, name):.7g}", unit)
    table.add_row("pixel size", f"{found.pixel_size_mm * 1000:g}", "um")
    table.add_row("image", f"{found.image_size[0]} x {found.image_size[1]}", "px")
    table.add_row("grid", "none in the file", "")


def _add_raytrix(table: Table, found: RaytrixCalibration) -> None:
    from math import degrees

    table.add_row("pitch", f"{found.diameter_px:.5f}", "px")
    table.add_row("rotation", f"{degrees(found.rotation_rad):.5f}", "deg")
    x, y = found.offset_px
    table.add_row("central lens", f"{x:.3f} right, {y:.3f} up of the middle", "px")
    table.add_row("border", f"{found.lens_border_px:g}", "px")
    for index, kind in enumerate(found.lens_types):
        depths = "not given"
        if kind.depth_range is not None:
            depths = f"{kind.depth_range[0]:.2f} to {kind.depth_range[1]:.2f}"
        table.add_row(f"type {index}, virtual depth", depths, "")


def _add_tspc(table: Table, found: TspcCalibration) -> None:
    columns, rows = found.places.max(axis=0) + 1
    table.add_row("lenses", f"{columns} x {rows}", "columns x rows")
    table.add_row("centers", "all" if found.has_all else "of the four corners", "")
    table.add_row("pitch", f"{found.lattice.pitch_px:.5f}", "px")
    table.add_row("diameter", f"{found.diameter_px:g}", "px")
    table.add_row("off a regular grid", f"{found.rms_off_px:.3f}", "px (rms)")
