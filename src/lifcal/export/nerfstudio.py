"""A folder for nerfstudio: images without distortion, transforms.json and a point cloud.

Nerfstudio's cameras have OpenGL's axes (x right, y up, looking along -z), poses are camera to
world, and pixel centers are half-integers as in COLMAP.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from lifcal.export.folder import StoredCalibration
from lifcal.export.pinhole_scene import PinholeScene, write_scene
from lifcal.files import write_json, write_text
from lifcal.ply import PlyElement, format_header

_OPENGL = np.diag([1.0, -1.0, -1.0, 1.0])
"""Conversion from OpenGL's camera axes (y up, looking along -z) to lifcal's (y down, along +z)."""


def write_nerfstudio(
    folder: str | Path, calibration: StoredCalibration, *, images: bool = True
) -> tuple[PinholeScene, dict[str, Path]]:
    """Write images, points and, last, transforms.json; return the scene and the paths.

    Parameters
    ----------
    folder : str or Path
    calibration : StoredCalibration
    images : bool
        Whether to write images/, from the focused images in the calibration's folder.

    Raises
    ------
    DataError
        If a focused image is missing.
    """
    folder = Path(folder)
    scene = write_scene(folder / "images", calibration, images=images)
    k = scene.intrinsics
    columns = [*(f"float {axis}" for axis in "xyz"), "uchar red", "uchar green", "uchar blue"]
    unit = "metres" if calibration.camera.scale_source else "no scale"
    header = format_header(
        [PlyElement("vertex", len(scene.points_world_m), columns)], comment=f"world frame, {unit}"
    )
    rows = [
        " ".join([*(f"{value:.9f}" for value in place), *map(str, color)])
        for place, color in zip(scene.points_world_m.tolist(), scene.colors.tolist(), strict=True)
    ]
    frames = []
    for name, pose in zip(scene.names, calibration.world_from_cam, strict=True):
        matrix = np.eye(4)
        matrix[:3, :3] = pose.rotation
        matrix[:3, 3] = pose.translation_mm / 1000.0
        frames.append(
            {"file_path": f"images/{name}", "transform_matrix": (matrix @ _OPENGL).tolist()}
        )
    content = {
        "camera_model": "OPENCV",
        "w": k.width,
        "h": k.height,
        "fl_x": k.fx,
        "fl_y": k.fy,
        "cx": k.cx + 0.5,
        "cy": k.cy + 0.5,
        **dict.fromkeys(("k1", "k2", "p1", "p2"), 0.0),
        "ply_file_path": "points.ply",
        "frames": frames,
    }
    paths = {name: folder / name for name in ("points.ply", "transforms.json")}
    write_text(paths["points.ply"], header + "\n".join(rows) + "\n")
    write_json(paths["transforms.json"], content)
    return scene, paths
