"""Reading a folder that `lifcal depth` wrote."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lifcal.arrays import Float32Array
from lifcal.camera import PinholeIntrinsics
from lifcal.errors import DataError
from lifcal.export.rgbd import SIGMA_FINER, decode_depth
from lifcal.files import read_bytes, read_json
from lifcal.imaging.files import read_image


@dataclass(frozen=True, eq=False)
class RgbdFolder:
    """An RGB-D recording in a folder.

    Parameters
    ----------
    folder : Path
    intrinsics : PinholeIntrinsics
    depth_factor, sigma_factor : float
        Number of units per meter in the depth maps and in the maps of their standard deviations.
    times : tuple of float
    names : tuple of str
        Names of the frames.
    """

    folder: Path
    intrinsics: PinholeIntrinsics
    depth_factor: float
    sigma_factor: float
    times: tuple[float, ...]
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.names)

    def read_image(self, index: int) -> npt.NDArray[np.uint8]:
        """Return the image of a frame, (rows, cols) or (rows, cols, 3)."""
        return np.asarray(self._read("rgb", index), np.uint8)

    def read_depth(self, index: int) -> Float32Array:
        """Return the depth map of a frame in mm, NaN where unknown."""
        return decode_depth(self._read("depth", index), self.depth_factor)

    def read_sigma(self, index: int) -> Float32Array | None:
        """Return the standard deviation of a depth map in mm, NaN where unknown; None without."""
        if not (self.folder / "depth_sigma" / f"{self.names[index]}.png").is_file():
            return None
        return decode_depth(self._read("depth_sigma", index), self.sigma_factor)

    def _read(self, kind: str, index: int) -> npt.NDArray[np.generic]:
        path = self.folder / kind / f"{self.names[index]}.png"
        image = read_image(path)
        size = (self.intrinsics.height, self.intrinsics.width)
        if image.shape[:2] != size:
            raise DataError(
                f"{path}: {image.shape[1]} x {image.shape[0]} px, the camera has "
                f"{size[1]} x {size[0]} px"
            )
        return image


def open_rgbd(folder: Path) -> RgbdFolder:
    """Open an RGB-D recording: read the list of its frames and the camera.

    Raises
    ------
    DataError
        If the folder does not hold a complete RGB-D recording.
    """
    if not (folder / "associations.txt").is_file() or not (folder / "intrinsics.json").is_file():
        raise DataError(f"{folder}: not a folder that lifcal depth finished")
    content = read_json(folder / "intrinsics.json")
    try:
        intrinsics, factor = _intrinsics(content)
        sigma_factor = float(content.get("sigma_factor", factor * SIGMA_FINER))
    except (AttributeError, KeyError, TypeError, ValueError):
        raise DataError(f"{folder / 'intrinsics.json'}: not as lifcal depth writes it") from None
    times, names = [], []
    text = read_bytes(folder / "associations.txt").decode("utf-8", errors="replace")
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        words = line.split()
        try:
            times.append(float(words[0]))
            names.append(Path(words[1]).stem)
        except (IndexError, ValueError):
            raise DataError(
                f"{folder / 'associations.txt'}: line {number}: needs 'time image time depth'"
            ) from None
    if not names:
        raise DataError(f"{folder}: has no frames")
    return RgbdFolder(folder, intrinsics, factor, sigma_factor, tuple(times), tuple(names))


def _intrinsics(content: dict[str, Any]) -> tuple[PinholeIntrinsics, float]:
    width, height = int(content["width"]), int(content["height"])
    values = [float(content[name]) for name in ("fx", "fy", "cx", "cy")]
    factor = float(content["depth_factor"])
    if min(width, height, *values[:2], factor) <= 0.0:
        raise ValueError
    return PinholeIntrinsics(width, height, *values), factor
