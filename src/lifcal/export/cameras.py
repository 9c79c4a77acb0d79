"""The camera of the focused images for OpenCV, ROS and Kalibr, each in one YAML file.

All three have pixel centers at integers, as lifcal does. Their distortion maps ideal to recorded
coordinates, in units of the focal length.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np

from lifcal.arrays import FloatArray
from lifcal.camera import NoDistortion, OpencvCamera, PlenopticCamera, make_opencv_camera
from lifcal.files import write_text

KALIBR_TERMS = 4
"""Kalibr's model 'radtan' has k1, k2, p1 and p2 only."""


def write_opencv(
    path: str | Path, camera: PlenopticCamera, scale: float = 0.5, *, undistorted: bool = False
) -> OpencvCamera:
    """Write the file that `cv::FileStorage` reads; return the camera in it.

    The names are those of OpenCV's calibration sample: image_width, image_height, camera_matrix and
    distortion_coefficients.

    Parameters
    ----------
    path : str or Path
    camera : PlenopticCamera
    scale : float
        Size of the focused images relative to the raw.
    undistorted : bool
        Whether to describe images without distortion, such as those of `lifcal depth`.

    Raises
    ------
    EstimationError
        If OpenCV's coefficients cannot follow the distortion to 0.1 px.
    """
    found = make_opencv_camera(_choose(camera, undistorted), scale)
    lines = [
        "%YAML:1.0",
        "---",
        f"# {_describe(scale, undistorted)}",
        f"image_width: {found.image_size[0]}",
        f"image_height: {found.image_size[1]}",
    ]
    for name, matrix in (
        ("camera_matrix", found.matrix),
        ("distortion_coefficients", found.distortion[None]),
    ):
        lines += [
            f"{name}: !!opencv-matrix",
            f"   rows: {matrix.shape[0]}",
            f"   cols: {matrix.shape[1]}",
            "   dt: d",
            f"   data: {_list(matrix)}",
        ]
    write_text(Path(path), "\n".join(lines) + "\n")
    return found


def write_ros(
    path: str | Path,
    camera: PlenopticCamera,
    scale: float = 0.5,
    *,
    undistorted: bool = False,
    name: str = "camera",
) -> OpencvCamera:
    """Write a camera_info file for camera_info_manager of ROS; return the camera in it.

    The projection matrix P holds K, so that rectified images are those of `DepthEngine` with the
    same scale.

    Parameters
    ----------
    path, camera, scale, undistorted
        As for `write_opencv`.
    name : str
        Name of the camera; camera_info_manager warns if the driver uses another one.
    """
    found = make_opencv_camera(_choose(camera, undistorted), scale)
    model = "plumb_bob" if len(found.distortion) == 5 else "rational_polynomial"
    projection = np.column_stack([found.matrix, np.zeros(3)])
    lines = [
        f"# {_describe(scale, undistorted)}",
        f"image_width: {found.image_size[0]}",
        f"image_height: {found.image_size[1]}",
        f"camera_name: {_quote(name)}",
        *_nest("camera_matrix", found.matrix),
        f"distortion_model: {model}",
        *_nest("distortion_coefficients", found.distortion[None]),
        *_nest("rectification_matrix", np.eye(3)),
        *_nest("projection_matrix", projection),
    ]
    write_text(Path(path), "\n".join(lines) + "\n")
    return found


def write_kalibr(
    path: str | Path,
    camera: PlenopticCamera,
    scale: float = 0.5,
    *,
    undistorted: bool = False,
    name: str = "camera",
) -> OpencvCamera:
    """Write a Kalibr camchain of one camera; return the camera in it.

    Parameters
    ----------
    path, camera, scale, undistorted
        As for `write_opencv`.
    name : str
        Name of the camera; the topic of its images is /NAME/image_raw.

    Raises
    ------
    EstimationError
        If Kalibr's four coefficients cannot follow the distortion to 0.1 px.
    """
    found = make_opencv_camera(_choose(camera, undistorted), scale, [KALIBR_TERMS])
    k, some = found.matrix, bool(found.distortion.any())
    lines = [
        f"# {_describe(scale, undistorted)}",
        "cam0:",
        "  cam_overlaps: []",
        "  camera_model: pinhole",
        f"  distortion_coeffs: {_list(found.distortion) if some else '[]'}",
        f"  distortion_model: {'radtan' if some else 'none'}",
        f"  intrinsics: {_list([k[0, 0], k[1, 1], k[0, 2], k[1, 2]])}",
        f"  resolution: [{found.image_size[0]}, {found.image_size[1]}]",
        f"  rostopic: {_quote(f'/{name}/image_raw')}",
    ]
    write_text(Path(path), "\n".join(lines) + "\n")
    return found


def describe_lost(camera: PlenopticCamera) -> tuple[str, ...]:
    """Return a sentence for each property of this camera that a pinhole camera does not have."""
    lost = []
    if camera.tilt is not None and camera.tilt.as_vector().any():
        x, y = camera.tilt_angles_deg()[0].tolist()
        lost.append(f"the tilt of the micro-lens array, ({x:.3f}, {y:.3f}) deg")
    bend = camera.grid.bend
    if bend is not None and bend.rms_px > 0.0:
        lost.append(f"the bend of the micro-image centers, {bend.rms_px:.2f} px rms")
    if not lost:
        return ()
    return (
        f"the format cannot hold {' and '.join(lost)}. Depth depends on that and needs "
        "camera.json; the positions of points in focused images do not",
    )


def _choose(camera: PlenopticCamera, undistorted: bool) -> PlenopticCamera:
    return replace(camera, distortion=NoDistortion(), covariance=None) if undistorted else camera


def _describe(scale: float, undistorted: bool) -> str:
    kind = "without distortion, as lifcal depth writes them" if undistorted else "as recorded"
    return f"totally focused images at {scale:g} of the raw's size, {kind}; made by lifcal"


def _list(values: FloatArray | Iterable[float]) -> str:
    """Return numbers separated by commas, with all their digits, each with a decimal point."""
    numbers = np.asarray(values, np.float64).ravel().tolist()
    # YAML 1.1 reads 1e-05 as text; a number needs a point before the exponent.
    words = [repr(number + 0.0) for number in numbers]
    return f"[{', '.join(w if '.' in w else w.replace('e', '.0e') for w in words)}]"


def _nest(name: str, matrix: FloatArray) -> list[str]:
    rows, cols = matrix.shape
    return [f"{name}:", f"  rows: {rows}", f"  cols: {cols}", f"  data: {_list(matrix)}"]


def _quote(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
