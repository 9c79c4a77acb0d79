"""A COLMAP folder of images without distortion: images/ and a text model in sparse/0.

This is the layout that programs for Gaussian splatting read. COLMAP has pixel centers at
half-integers, lifcal at integers.
"""

from __future__ import annotations

from pathlib import Path

from lifcal.errors import DataError
from lifcal.export.folder import StoredCalibration
from lifcal.export.pinhole_scene import PinholeScene, write_scene
from lifcal.files import write_text

_OTHERS = ("cameras.bin", "images.bin", "points3D.bin", "rigs.txt", "frames.txt", "points3D.ply")
"""Files of another model that programs would read instead of this one, or together with it."""


def write_colmap(
    folder: str | Path, calibration: StoredCalibration, *, images: bool = True
) -> tuple[PinholeScene, dict[str, Path]]:
    """Write images and model, each file atomically; return the scene and the paths.

    Images are numbered from 1 in the order of the frames, points from 1 in the order of points.ply.
    The image positions of the points are projections: nothing is measured in the focused images.

    Parameters
    ----------
    folder : str or Path
    calibration : StoredCalibration
    images : bool
        Whether to write images/, from the focused images in the calibration's folder.

    Raises
    ------
    DataError
        If the folder holds files of another COLMAP model that would be read together with this
        one, or if a focused image is missing.
    """
    folder = Path(folder)
    sparse = folder / "sparse" / "0"
    for name in _OTHERS:
        if (sparse / name).exists():
            raise DataError(
                f"{sparse / name}: belongs to another COLMAP model. Choose another folder"
            )
    scene = write_scene(folder / "images", calibration, images=images)
    k = scene.intrinsics
    tracks: list[list[str]] = [[] for _ in scene.points_world_m]
    positions: list[list[str]] = [[] for _ in scene.names]
    for view, point, (x, y) in zip(
        scene.views.tolist(), scene.points.tolist(), (scene.places_px + 0.5).tolist(), strict=True
    ):
        tracks[point].append(f"{view + 1} {len(positions[view])}")
        positions[view].append(f"{x!r} {y!r} {point + 1}")
    unit = "metres" if calibration.camera.scale_source else "no scale"
    poses = [f"# IMAGE_ID QW QX QY QZ TX TY TZ CAMERA_ID NAME, cam_from_world, {unit}"]
    poses.append("# POINTS2D as X Y POINT3D_ID")
    for row, (name, pose) in enumerate(zip(scene.names, calibration.world_from_cam, strict=True)):
        cam_from_world = pose.inverse()
        x, y, z, w = cam_from_world.quaternion_xyzw().tolist()
        numbers = [w, x, y, z, *(cam_from_world.translation_mm / 1000.0).tolist()]
        poses.append(f"{row + 1} {' '.join(map(repr, numbers))} 1 {name}")
        poses.append(" ".join(positions[row]))
    cloud = [f"# POINT3D_ID X Y Z R G B ERROR TRACK as IMAGE_ID POINT2D_IDX, {unit}"]
    for point, track in enumerate(tracks):
        if track:
            place = " ".join(map(repr, scene.points_world_m[point].tolist()))
            color = " ".join(map(str, scene.colors[point].tolist()))
            cloud.append(f"{point + 1} {place} {color} 0 {' '.join(track)}")
    numbers = [k.fx, k.fy, k.cx + 0.5, k.cy + 0.5]
    cameras = [
        "# CAMERA_ID MODEL WIDTH HEIGHT PARAMS",
        f"1 PINHOLE {k.width} {k.height} {' '.join(map(repr, numbers))}",
    ]
    contents = {"cameras.txt": cameras, "images.txt": poses, "points3D.txt": cloud}
    paths = {name: sparse / name for name in contents}
    for name, lines in contents.items():
        write_text(paths[name], "\n".join(lines) + "\n")
    return scene, paths
