"""`lifcal export`: a calibration in the files of other programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lifcal.cli._console import output, say_note, verb
from lifcal.cli._options import AsJson
from lifcal.errors import ConfigError, DataError, InputError
from lifcal.sources import check_files

if TYPE_CHECKING:
    from lifcal.camera import PlenopticCamera
    from lifcal.export import StoredCalibration

_CAMERAS = {"opencv": "camera.yml", "ros": "camera_info.yaml", "kalibr": "camchain.yaml"}
"""Formats that hold the camera only, and the file in which they hold it."""
_SCENES = ("colmap", "nerfstudio")
_FORMATS = (*_CAMERAS, *_SCENES, "authors")


@verb()
def export(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="OUT",
            help="Folder of a calibration; for opencv, ros and kalibr also a camera.json.",
        ),
    ],
    to: Annotated[
        str,
        typer.Option(
            help="opencv, ros, kalibr: the camera of the focused images as YAML. "
            "colmap, nerfstudio: undistorted images with poses and points. "
            "authors: the files of the paper's own code."
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            "-o", "--output", help="Folder to write; for opencv, ros and kalibr also a file."
        ),
    ],
    undistorted: Annotated[
        bool,
        typer.Option(
            "--undistorted",
            help="opencv, ros, kalibr: describe images without distortion (of lifcal depth).",
        ),
    ] = False,
    scale: Annotated[
        float | None,
        typer.Option(
            help="opencv, ros, kalibr: size of the images relative to the raws; that of the "
            "calibration's focused images without."
        ),
    ] = None,
    name: Annotated[
        str, typer.Option(help="ros, kalibr: name of the camera, and of its topic.")
    ] = "camera",
    images: Annotated[
        bool,
        typer.Option("--images/--no-images", help="colmap, nerfstudio: write images/."),
    ] = True,
    world: Annotated[
        int,
        typer.Option(
            help="colmap, nerfstudio, authors: number of the world, of a calibration from several "
            "recordings."
        ),
    ] = 1,
    as_json: AsJson = False,
) -> None:
    """Write a calibration for other programs."""
    if to not in _FORMATS:
        raise ConfigError.unknown("format", to, _FORMATS)
    if to not in _CAMERAS and (undistorted or scale is not None):
        given = "--undistorted" if undistorted else "--scale"
        raise InputError(f"{given} is for {', '.join(_CAMERAS)} only, not for {to}")
    if to not in _SCENES and not images:
        raise InputError(f"--no-images is for {', '.join(_SCENES)} only, not for {to}")
    if to in _CAMERAS and world != 1:
        raise InputError(f"--world is not for {', '.join(_CAMERAS)}: all worlds share the camera")
    if to not in _CAMERAS and out.is_file():
        raise DataError(f"{out}: is a file, needs a folder")
    check_files(folder)
    if to in _CAMERAS:
        text, content = _export_camera(folder, to, out, undistorted, scale, name)
    else:
        from lifcal.export import open_calibration

        calibration = open_calibration(folder, world)
        if calibration.n_worlds > 1:
            say_note(
                f"poses and points are those of world {world} of {calibration.n_worlds}; --world "
                "chooses another one"
            )
        if to in _SCENES:
            text, content = _export_scene(calibration, to, out, images)
        else:
            text, content = _export_authors(calibration, out)
    if as_json:
        print(json.dumps({"format": to, **content}, indent=2))
    else:
        output().print(text, soft_wrap=True)


def _export_camera(
    source: Path, to: str, out: Path, undistorted: bool, scale: float | None, name: str
) -> tuple[str, dict[str, Any]]:
    """Write a camera; return what is to be said, for people and for programs."""
    from lifcal.export import open_calibration, write_kalibr, write_opencv, write_ros
    from lifcal.export.cameras import describe_lost
    from lifcal.imaging.camera_formats import read_camera_file

    if source.is_dir():
        calibration = open_calibration(source)
        camera, own_scale = calibration.camera, calibration.image_scale
        images = str(source / "focused")
    else:
        camera, own_scale, images = read_camera_file(source).camera(), 0.5, "lifcal focus"
    scale = own_scale if scale is None else scale
    if undistorted:
        images = "lifcal depth and DepthEngine"
    path = out if out.suffix.lower() in (".yml", ".yaml", ".xml") else out / _CAMERAS[to]
    if path.suffix.lower() == ".xml":
        raise InputError(f"{path}: is written as YAML, so its name ends in .yml or .yaml")
    if to == "opencv":
        found = write_opencv(path, camera, scale, undistorted=undistorted)
    elif to == "ros":
        found = write_ros(path, camera, scale, undistorted=undistorted, name=name)
    else:
        found = write_kalibr(path, camera, scale, undistorted=undistorted, name=name)
    if found.largest_error_px > 1e-6:
        say_note(
            f"the distortion {camera.distortion.name!r} was fitted with {len(found.distortion)} "
            f"coefficients, which are at most {found.largest_error_px:.2g} px off"
        )
    for note in describe_lost(camera):
        say_note(note)
    kind = "no distortion" if not found.distortion.any() else "their distortion"
    text = (
        f"{path}: camera of the focused images ({images}), {found.image_size[0]} x "
        f"{found.image_size[1]} px at {scale:g} of the raw's size, with {kind}"
    )
    return text, {
        "files": [str(path)],
        "image_size_px": [int(value) for value in found.image_size],
        "scale": scale,
    }


def _export_scene(
    calibration: StoredCalibration, to: str, out: Path, images: bool
) -> tuple[str, dict[str, Any]]:
    """Write images, poses and points; return what is to be said."""
    from lifcal.export import write_colmap, write_nerfstudio
    from lifcal.export.cameras import describe_lost

    write = write_colmap if to == "colmap" else write_nerfstudio
    scene, paths = write(out, calibration, images=images)
    for note in describe_lost(calibration.camera):
        say_note(note)
    _note_scale(calibration.camera)
    k = scene.intrinsics
    made = f"{len(scene.names)} images of {k.width} x {k.height} px in images/, " if images else ""
    where = ", ".join(str(path.relative_to(out)) for path in paths.values())
    unit = "" if calibration.camera.scale_source is None else "; poses and points are in metres"
    text = (
        f"{out}: {made}{where} written, {len(scene.names)} views, "
        f"{len(scene.points_world_m)} points{unit}"
    )
    return text, {
        "files": [str(path) for path in paths.values()],
        "image_size_px": [k.width, k.height],
        "views": len(scene.names),
        "points": len(scene.points_world_m),
        "metric": calibration.camera.scale_source is not None,
    }


def _export_authors(calibration: StoredCalibration, out: Path) -> tuple[str, dict[str, Any]]:
    """Write the files of the paper's code; return what is to be said."""
    from lifcal.camera.authors_xml import describe_lost
    from lifcal.export import write_authors

    seen = calibration.seen
    paths = write_authors(out, calibration, seen)
    for note in describe_lost(calibration.camera):
        say_note(note)
    _note_scale(calibration.camera)
    text = (
        f"{out}: {', '.join(paths)} written, {len(calibration.views)} views, "
        f"{len(seen.points_world_mm)} points"
    )
    return text, {
        "files": [str(out / name) for name in paths],
        "views": len(calibration.views),
        "points": len(seen.points_world_mm),
        "metric": calibration.camera.scale_source is not None,
    }


def _note_scale(camera: PlenopticCamera) -> None:
    if camera.scale_source is None:
        say_note("the calibration has no scale: lengths have no metric meaning")
