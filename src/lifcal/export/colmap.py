"""A COLMAP text model of the totally focused images: cameras.txt, images.txt, points3D.txt.

The totally focused image is a pinhole image with lifcal's distortion, which goes from ideal to
recorded coordinates in pixels about the principal point. COLMAP's goes the same way in
coordinates divided by the focal length: Brown's coefficients rescale exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lifcal.arrays import FloatArray
from lifcal.camera import BrownDistortion, NoDistortion, PlenopticCamera
from lifcal.errors import DataError
from lifcal.export.folder import SeenPoints, StoredCalibration
from lifcal.files import write_text

FOCUSED_SCALE = 0.5
"""Size of the totally focused images relative to the raw."""

_OTHERS = ("cameras.bin", "images.bin", "points3D.bin", "rigs.txt", "frames.txt")
_GRID = 65
_N_PARAMETERS = {"PINHOLE": 4, "OPENCV": 8, "FULL_OPENCV": 12}


@dataclass(frozen=True)
class ColmapCamera:
    """A camera in COLMAP's terms; pixel centers are half-integers.

    Parameters
    ----------
    model : str
        'PINHOLE', 'OPENCV' or 'FULL_OPENCV'.
    image_size : (int, int)
    parameters : tuple of float
        fx, fy, cx, cy, then k1, k2, p1, p2, then k3, k4, k5, k6.
    largest_error_px : float
        Largest distance, over the image, of where this camera and lifcal's see a point.
    """

    model: str
    image_size: tuple[int, int]
    parameters: tuple[float, ...]
    largest_error_px: float


def to_colmap_px(points_raw_px: FloatArray, scale: float) -> FloatArray:
    """Convert raw pixels (centers at integers) to those of a scaled image (at half-integers)."""
    return (points_raw_px + 0.5) * scale


def make_colmap_camera(camera: PlenopticCamera, scale: float = FOCUSED_SCALE) -> ColmapCamera:
    """Return the camera of the totally focused images.

    Brown's distortion is converted exactly; another model is fitted with six radial terms.
    """
    focal = camera.array.focal_px
    width, height = camera.image_size
    xs, ys = np.meshgrid(np.linspace(0, width - 1, _GRID), np.linspace(0, height - 1, _GRID))
    raw = np.column_stack([xs.ravel(), ys.ravel()])
    und = camera.distortion.undistort(raw, camera.principal_point_px)
    known = np.isfinite(und).all(axis=1)
    raw, slopes = raw[known], (und[known] - camera.principal_point_px) / focal
    center = camera.principal_point_px
    terms = np.zeros(8)  # k1 k2 p1 p2 k3 k4 k5 k6
    distortion = camera.distortion
    if isinstance(distortion, BrownDistortion):
        terms[:5] = (
            distortion.k0 * focal**2,
            distortion.k1 * focal**4,
            distortion.p1 * focal,
            distortion.p0 * focal,
            distortion.k2 * focal**6,
        )
    elif not isinstance(distortion, NoDistortion):
        terms[[0, 1, 4, 5, 6, 7]] = _fit_radial(slopes, (raw - center) / focal)
    model = "FULL_OPENCV" if terms[4:].any() else "OPENCV" if terms.any() else "PINHOLE"
    cx, cy = to_colmap_px(center, scale).tolist()
    parameters = np.array([focal * scale, focal * scale, cx, cy, *terms])
    apart = _project(parameters, slopes) - to_colmap_px(raw, scale)
    return ColmapCamera(
        model,
        (max(round(width * scale), 1), max(round(height * scale), 1)),
        tuple(parameters[: _N_PARAMETERS[model]].tolist()),
        float(np.hypot(*apart.T).max()),
    )


def _fit_radial(und: FloatArray, recorded: FloatArray) -> FloatArray:
    """Return k1, k2, k3, k4, k5, k6 of r_d / r = (1 + k1 r^2 + ...) / (1 + k4 r^2 + ...)."""
    r = np.hypot(*und.T)
    und_r, ratio = r[r > 0.0], np.hypot(*recorded.T)[r > 0.0] / r[r > 0.0]
    largest = und_r.max()
    powers = (und_r[:, None] / largest) ** [2, 4, 6]
    rows = np.column_stack([powers, -ratio[:, None] * powers]) * und_r[:, None]
    solution = np.linalg.lstsq(rows, (ratio - 1.0) * und_r, rcond=None)[0]
    terms: FloatArray = solution / np.tile(largest ** np.array([2.0, 4.0, 6.0]), 2)
    return terms


def _project(parameters: FloatArray, slopes: FloatArray) -> FloatArray:
    """Project points x/z, y/z (n, 2) as COLMAP's FULL_OPENCV does."""
    fx, fy, cx, cy, k1, k2, p1, p2, k3, k4, k5, k6 = parameters
    x, y = slopes.T
    q = x * x + y * y
    radial = (1 + q * (k1 + q * (k2 + q * k3))) / (1 + q * (k4 + q * (k5 + q * k6)))
    return np.column_stack(
        [
            fx * (x * radial + 2 * p1 * x * y + p2 * (q + 2 * x * x)) + cx,
            fy * (y * radial + p1 * (q + 2 * y * y) + 2 * p2 * x * y) + cy,
        ]
    )


def write_colmap(
    folder: str | Path,
    calibration: StoredCalibration,
    seen: SeenPoints,
    scale: float | None = None,
) -> tuple[ColmapCamera, dict[str, Path]]:
    """Write the model, each file whole or not at all; return its camera and where the files are.

    Images are numbered from 1 in the order of the frames, points from 1 in the order of points.ply.
    The image positions of the points are projections: nothing is measured in the focused images.
    `scale` is the size of those relative to the raws; the calibration's own if it is not given.

    Raises
    ------
    DataError
        If the folder holds files of a COLMAP model that would be read together with this one.
    """
    folder = Path(folder)
    for name in _OTHERS:
        if (folder / name).exists():
            raise DataError(f"{folder / name}: of another COLMAP model. Choose another folder")
    scale = calibration.image_scale if scale is None else scale
    camera = make_colmap_camera(calibration.camera, scale)
    views, points = seen.pairs
    virtual = calibration.camera.virtual_from_cam(seen.pairs_cam_mm(calibration))[:, :2]
    recorded = calibration.camera.distortion.distort(virtual, calibration.camera.principal_point_px)
    places = to_colmap_px(recorded, scale).tolist()
    tracks: dict[int, list[str]] = {}
    images = ["# IMAGE_ID QW QX QY QZ TX TY TZ CAMERA_ID NAME, cam_from_world, metres"]
    images.append("# POINTS2D as X Y POINT3D_ID")
    for row, (name, pose) in enumerate(
        zip(calibration.names, calibration.world_from_cam, strict=True)
    ):
        cam_from_world = pose.inverse()
        x, y, z, w = cam_from_world.quaternion_xyzw().tolist()
        numbers = [w, x, y, z, *(cam_from_world.translation_mm / 1000.0).tolist()]
        images.append(f"{row + 1} {' '.join(map(repr, numbers))} 1 {name}.png")
        words = []
        first, last = np.searchsorted(views, [row, row + 1])
        for count, pair in enumerate(range(first, last)):
            point = int(points[pair])
            words.append(f"{places[pair][0]!r} {places[pair][1]!r} {point + 1}")
            tracks.setdefault(point, []).append(f"{row + 1} {count}")
        images.append(" ".join(words))
    width, height = camera.image_size
    cameras = [
        "# CAMERA_ID MODEL WIDTH HEIGHT PARAMS",
        f"1 {camera.model} {width} {height} {' '.join(map(repr, camera.parameters))}",
    ]
    cloud = ["# POINT3D_ID X Y Z R G B ERROR TRACK as IMAGE_ID POINT2D_IDX, metres"]
    for point, track in sorted(tracks.items()):
        x, y, z = (seen.points_world_mm[point] / 1000.0).tolist()
        cloud.append(f"{point + 1} {x!r} {y!r} {z!r} 128 128 128 0 {' '.join(track)}")
    contents = {"cameras.txt": cameras, "images.txt": images, "points3D.txt": cloud}
    paths = {name: folder / name for name in contents}
    for name, lines in contents.items():
        write_text(paths[name], "\n".join(lines) + "\n")
    return camera, paths
