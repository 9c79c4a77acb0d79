"""The result files of the LiFCal code published with the paper.

CameraModel.xml             see `lifcal.camera.authors_xml`
ExtrinsicOrientations.txt   frame, then the 4 x 4 matrix world to camera, row by row; mm
objectCoordinates.ply       points in world coordinates, mm
rawImagePoints.csv          frame, count in the frame, x, y, projected x, y (raw px), row of the PLY
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from lifcal.camera import MicroLensGrid, write_authors_xml
from lifcal.errors import DataError, InputError
from lifcal.export.folder import SeenPoints, StoredCalibration, points_in_cameras
from lifcal.files import write_text
from lifcal.ply import PlyElement, format_header


def write_authors(
    folder: str | Path, calibration: StoredCalibration, seen: SeenPoints
) -> dict[str, Path]:
    """Write the four files, each atomically; return their paths.

    Raises
    ------
    DataError
        If the distortion is of a model that CameraModel.xml cannot hold.
    """
    folder = Path(folder)
    names = (
        "CameraModel.xml",
        "ExtrinsicOrientations.txt",
        "objectCoordinates.ply",
        "rawImagePoints.csv",
    )
    paths = {name: folder / name for name in names}
    contents = (
        _list_poses(calibration),
        _list_points(seen),
        _list_observations(calibration, seen),
    )
    try:
        write_authors_xml(paths["CameraModel.xml"], calibration.camera)
    except InputError as error:
        raise DataError(f"{calibration.folder / 'camera.json'}: {error}") from None
    for name, lines in zip(names[1:], contents, strict=True):
        write_text(paths[name], "\n".join(lines) + "\n")
    return paths


def _list_poses(calibration: StoredCalibration) -> list[str]:
    lines = []
    for view, pose in zip(calibration.views.tolist(), calibration.world_from_cam, strict=True):
        matrix = np.eye(4)
        matrix[:3, :3] = pose.inverse().rotation
        matrix[:3, 3] = pose.inverse().translation_mm
        lines.append(f"{view:05d} " + " ".join(f"{value:.10f}" for value in matrix.ravel()))
    return lines


def _list_points(seen: SeenPoints) -> list[str]:
    properties = [*(f"float {axis}" for axis in "xyz"), "uchar intensity"]
    header = format_header([PlyElement("vertex", len(seen.points_world_mm), properties)])
    rows = [f"{x:.6f} {y:.6f} {z:.6f} 0" for x, y, z in seen.points_world_mm.tolist()]
    return [*header.splitlines(), *rows]


def _list_observations(calibration: StoredCalibration, seen: SeenPoints) -> list[str]:
    """Return a row for each observation, frame by frame."""
    camera, observations = calibration.camera, seen.observations
    centers, lenses = observations.centers
    # Use the micro-image centers of the observations, because the camera's grid may have been
    # fitted again since.
    observed = MicroLensGrid.from_centers(
        centers, camera.image_size, radius_px=camera.grid.radius_px
    )
    points_cam = points_in_cameras(
        calibration, seen.points_world_mm, seen.view_rows, seen.point_rows
    )
    projected = replace(camera, grid=observed).project(points_cam, lenses)
    order = np.lexsort((seen.point_rows, seen.view_rows))  # last key first
    views = seen.view_rows[order]
    counts = np.arange(len(views)) - np.searchsorted(views, views)
    return [
        f"{view},{count},{x:.6f},{y:.6f},{x_seen:.6f},{y_seen:.6f},{point}"
        for view, count, (x, y), (x_seen, y_seen), point in zip(
            calibration.views[views].tolist(),
            counts.tolist(),
            observations.points_raw_px[order].tolist(),
            projected[order].tolist(),
            seen.point_rows[order].tolist(),
            strict=True,
        )
    ]
