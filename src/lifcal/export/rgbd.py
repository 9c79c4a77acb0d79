"""Text files and depth encoding of an RGB-D recording.

The layout is that of the TUM RGB-D benchmark: images and 16-bit depth maps with lists of
timestamps. In addition there are `camera.yaml` for ORB-SLAM3 and `intrinsics.json` for Open3D.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from lifcal.arrays import Float32Array, ImageArray
from lifcal.camera import PinholeIntrinsics
from lifcal.errors import DataError, InputError
from lifcal.files import read_bytes, write_json, write_text

DEPTH_FACTORS = (5000, 2000, 1000, 500, 200, 100, 50, 20, 10, 5, 2, 1)
"""Possible numbers of units per meter of 16-bit depth maps; the TUM benchmark uses the first."""
SIGMA_FINER = 10
"""Factor by which the units of sigma are finer than those of depth; sigma is much smaller."""
_FULL = 65535


def choose_depth_factor(far_mm: float) -> int:
    """Return the largest number of units per meter with which a depth fits into 16 bits.

    Raises
    ------
    InputError
        If the depth does not fit with any of them.
    """
    for factor in DEPTH_FACTORS:
        if far_mm / 1000.0 * factor <= _FULL:
            return factor
    raise InputError(
        f"depths up to {far_mm / 1000.0:.3g} m do not fit into 16 bits: give a range in mm"
    )


def largest_depth_mm(factor: float) -> float:
    """Return the largest depth that fits into 16 bits."""
    return 1000.0 * _FULL / factor


def encode_depth(depth_mm: Float32Array, factor: float) -> ImageArray:
    """Return depths as 16-bit numbers; known depths are at least 1, unknown or too large ones 0."""
    units = np.rint(depth_mm * np.float32(factor / 1000.0))
    known = units <= _FULL  # False for NaN
    return np.where(known, np.maximum(units, 1.0), 0.0).astype(np.uint16)


def decode_depth(stored: npt.NDArray[np.generic], factor: float) -> Float32Array:
    """Return the depths of `encode_depth` in mm, NaN where unknown."""
    depth = stored.astype(np.float32) * np.float32(1000.0 / factor)
    depth[stored == 0] = np.nan
    return depth


def write_lists(folder: Path, frames: Sequence[tuple[float, str]]) -> None:
    """Write rgb.txt, depth.txt and associations.txt for frames (timestamp, name)."""
    for kind in ("rgb", "depth"):
        lines = [f"{time:.6f} {kind}/{name}.png" for time, name in frames]
        title = f"# timestamp {kind} image"
        write_text(folder / f"{kind}.txt", "\n".join([title, *lines]) + "\n")
    # This file has no title line, because ORB-SLAM3 reads every line as a frame.
    lines = [f"{time:.6f} rgb/{name}.png {time:.6f} depth/{name}.png" for time, name in frames]
    write_text(folder / "associations.txt", "\n".join(lines) + "\n")


def write_intrinsics(path: Path, intrinsics: PinholeIntrinsics, factor: int) -> None:
    """Write the pinhole camera of the images; Open3D reads it as a PinholeCameraIntrinsic."""
    k = intrinsics
    write_json(
        path,
        {
            "width": k.width,
            "height": k.height,
            "intrinsic_matrix": [k.fx, 0.0, 0.0, 0.0, k.fy, 0.0, k.cx, k.cy, 1.0],  # by columns
            "fx": k.fx,
            "fy": k.fy,
            "cx": k.cx,
            "cy": k.cy,
            "depth_factor": factor,
            "sigma_factor": factor * SIGMA_FINER,
            "depth_unit": "depth_factor units are one metre; 0 is unknown",
        },
    )


def write_orbslam(
    path: Path, intrinsics: PinholeIntrinsics, factor: int, *, fps: int, baseline_m: float
) -> None:
    """Write the settings for ORB-SLAM3 with an RGB-D camera.

    ORB-SLAM3 stops at a number of the wrong type, so real numbers have a decimal point and integers
    have none.

    Parameters
    ----------
    path : Path
    intrinsics : PinholeIntrinsics
    factor : int
    fps : int
    baseline_m : float
        Baseline of a stereo pair whose depth has the same error if it matches to about a pixel.
        ORB-SLAM3 weights depths accordingly.
    """
    k = intrinsics
    settings: dict[str, str | int | float] = {
        "File.version": "1.0",
        "Camera.type": "PinHole",
        "Camera1.fx": k.fx,
        "Camera1.fy": k.fy,
        "Camera1.cx": k.cx,
        "Camera1.cy": k.cy,
        "Camera.width": k.width,
        "Camera.height": k.height,
        "Camera.fps": fps,
        "Camera.RGB": 0,
        "Stereo.ThDepth": 40.0,
        "Stereo.b": baseline_m,
        "RGBD.DepthMapFactor": float(factor),
        "ORBextractor.nFeatures": 1500,
        "ORBextractor.scaleFactor": 1.2,
        "ORBextractor.nLevels": 8,
        "ORBextractor.iniThFAST": 20,
        "ORBextractor.minThFAST": 7,
        "Viewer.KeyFrameSize": 0.05,
        "Viewer.KeyFrameLineWidth": 1.0,
        "Viewer.GraphLineWidth": 0.9,
        "Viewer.PointSize": 2.0,
        "Viewer.CameraSize": 0.08,
        "Viewer.CameraLineWidth": 3.0,
        "Viewer.ViewpointX": 0.0,
        "Viewer.ViewpointY": -0.7,
        "Viewer.ViewpointZ": -1.8,
        "Viewer.ViewpointF": 500.0,
    }
    lines = ["%YAML:1.0", "# ORB-SLAM3, RGB-D; images as OpenCV reads them (Camera.RGB 0)"]
    for name, value in settings.items():
        if isinstance(value, float):
            text = f"{value:.9f}".rstrip("0")
            text += "0" if text.endswith(".") else ""
        else:
            text = f'"{value}"' if isinstance(value, str) else str(value)
        lines.append(f"{name}: {text}")
    write_text(path, "\n".join(lines) + "\n")


@dataclass(frozen=True)
class OrbslamDepth:
    """The settings in camera.yaml that describe the depth maps to ORB-SLAM3.

    Parameters
    ----------
    factor : float
        RGBD.DepthMapFactor: number of units of the depth maps per meter.
    baseline_m : float
        Stereo.b: baseline of the stereo pair whose depth has the same error.
    close_m : float
        Stereo.ThDepth times Stereo.b: ORB-SLAM3 uses the depth of a single view for points up to
        this depth, and needs several views for points beyond.
    """

    factor: float
    baseline_m: float
    close_m: float


def read_orbslam_depth(path: Path, factor: int) -> OrbslamDepth:
    """Read the settings in camera.yaml that describe the depth maps, and check them.

    Parameters
    ----------
    path : Path
    factor : int
        Number of units per meter that the depth maps really have.

    Raises
    ------
    DataError
        If a number is missing or not positive, or the factor is not that of the depth maps.
    """
    text = read_bytes(path).decode("utf-8", errors="replace")
    words = dict(line.split(": ", 1) for line in text.splitlines() if ": " in line)
    values = {}
    for name in ("RGBD.DepthMapFactor", "Stereo.b", "Stereo.ThDepth"):
        try:
            values[name] = float(words[name])
        except (KeyError, ValueError):
            raise DataError(f"{path}: {name} is missing or no number") from None
        if not (math.isfinite(values[name]) and values[name] > 0.0):
            raise DataError(f"{path}: {name} is {values[name]:g}, needs a positive number")
    if values["RGBD.DepthMapFactor"] != factor:
        raise DataError(
            f"{path}: RGBD.DepthMapFactor is {values['RGBD.DepthMapFactor']:g}, the depth maps "
            f"have {factor} units a metre"
        )
    baseline = values["Stereo.b"]
    return OrbslamDepth(float(factor), baseline, values["Stereo.ThDepth"] * baseline)
