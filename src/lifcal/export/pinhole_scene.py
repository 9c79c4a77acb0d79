"""Focused images without distortion, their poses and colored points, for view synthesis.

The images are resampled so that the principal point is in the middle of the image, because loaders
for Gaussian splatting read only the field of view and assume that the principal point is there. The
size is the largest at which every pixel was recorded.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from lifcal.arrays import Float32Array, FloatArray, IntArray, read_only
from lifcal.camera import PinholeIntrinsics, PlenopticCamera
from lifcal.errors import DataError, EstimationError
from lifcal.export.folder import StoredCalibration
from lifcal.files import make_file_names
from lifcal.imaging.files import read_image, write_png
from lifcal.imaging.resample import resample

_EDGE = 257
"""Number of points along each border of the raw that are undistorted to find the size of the
image."""
_GRAY = 128
"""Brightness of points if there are no images to take their color from."""


@dataclass(frozen=True, eq=False)
class PinholeScene:
    """Images of one pinhole camera, and points that they show.

    Parameters
    ----------
    intrinsics : PinholeIntrinsics
        Pixel centers are integers; the principal point is in the middle.
    names : tuple of str
        File name of each image, without a folder.
    points_world_m : (n_points, 3) float64
        All points of the calibration.
    colors : (n_points, 3) uint8
        Red, green, blue: the mean over the images that show the point.
    views, points : (n_pairs,) int64
        Index of the image and of the point for each projection, sorted by image.
    places_px : (n_pairs, 2) float64
        Position of the point in the image.
    """

    intrinsics: PinholeIntrinsics
    names: tuple[str, ...]
    points_world_m: FloatArray
    colors: npt.NDArray[np.uint8]
    views: IntArray
    points: IntArray
    places_px: FloatArray


def choose_intrinsics(camera: PlenopticCamera, scale: float) -> PinholeIntrinsics:
    """Return the pinhole camera of the largest centered image whose pixels were all recorded.

    Raises
    ------
    EstimationError
        If the principal point is so near to the border that there is no such image.
    """
    width, height = camera.image_size
    # Leave out the outermost pixels, because no lens may see them.
    inset = 1.5 / scale - 0.5
    xs = np.linspace(inset, width - 1 - inset, _EDGE)
    ys = np.linspace(inset, height - 1 - inset, _EDGE)
    c = camera.principal_point_px
    reach = []
    for axis, along, ends in ((0, ys, xs[[0, -1]]), (1, xs, ys[[0, -1]])):
        for sign, end in zip((-1.0, 1.0), ends.tolist(), strict=True):
            border = np.empty((_EDGE, 2))
            border[:, axis], border[:, 1 - axis] = end, along
            und = camera.distortion.undistort(border, c)[:, axis] - c[axis]
            # Where the distortion model has no inverse, the border is outside of its domain and is
            # ignored.
            reach.append(np.nanmin(sign * und, initial=np.inf))
    half_width, half_height = min(reach[:2]) * scale, min(reach[2:]) * scale
    full = camera.pinhole(scale)
    # The number of pixels is even, so the middle is between two of them.
    sizes = [
        2 * int(min(half + 0.5, length / 2.0))
        for half, length in ((half_width, full.width), (half_height, full.height))
    ]
    if min(sizes) < 2:
        raise EstimationError(
            f"the principal point ({c[0]:.0f}, {c[1]:.0f}) is at the border of the image, so no "
            "image around it can be made",
            stage="export",
        )
    return PinholeIntrinsics(
        sizes[0], sizes[1], full.fx, full.fy, sizes[0] / 2.0 - 0.5, sizes[1] / 2.0 - 0.5
    )


def write_scene(
    folder: Path, calibration: StoredCalibration, *, images: bool = True
) -> PinholeScene:
    """Write the images of the registered frames to a folder; return the scene that they show.

    Parameters
    ----------
    folder : Path
        Folder for the images: NAME.png (8 bit, red, green, blue) for each registered frame.
    calibration : StoredCalibration
        The calibration, with the focused images in its folder.
    images : bool
        Whether to write the images; without them, points are gray.

    Raises
    ------
    DataError
        If a focused image is missing or has another size than the summary says.
    """
    camera, scale = calibration.camera, calibration.image_scale
    k = choose_intrinsics(camera, scale)
    names = tuple(f"{name}.png" for name in make_file_names(calibration.names))
    seen = calibration.seen
    views, points = seen.pairs
    points_cam = seen.pairs_cam_mm(calibration)
    places = points_cam[:, :2] / points_cam[:, 2:] * k.fx + np.array([k.cx, k.cy])
    inside = ((places >= -0.5).all(axis=1) & (places[:, 0] < k.width - 0.5)) & (
        places[:, 1] < k.height - 0.5
    )
    views, points, places = views[inside], points[inside], places[inside]
    colors = np.full((len(seen.points_world_mm), 3), _GRAY, np.uint8)
    if images:
        sums = np.zeros((len(colors), 4))
        maps = _make_maps(camera, scale, k)
        for row, (source, name) in enumerate(zip(calibration.names, names, strict=True)):
            image = _undistort(
                calibration.folder / "focused" / f"{source}.png", maps, camera, scale
            )
            write_png(folder / name, image)
            first, last = np.searchsorted(views, [row, row + 1])
            at = np.ascontiguousarray(places[first:last].T, np.float32)
            found = resample(image.astype(np.float32), at[0][None], at[1][None])[0]
            np.add.at(sums, points[first:last], np.column_stack([found, np.ones(len(found))]))
        shown = sums[:, 3] > 0.0
        mean = sums[shown, :3] / sums[shown, 3:]
        colors[shown] = np.clip(np.rint(mean), 0, 255).astype(np.uint8)
    return PinholeScene(
        k,
        names,
        read_only(seen.points_world_mm / 1000.0),
        read_only(colors),
        read_only(views),
        read_only(points),
        read_only(places),
    )


def _make_maps(
    camera: PlenopticCamera, scale: float, k: PinholeIntrinsics
) -> tuple[Float32Array, Float32Array]:
    """Return the coordinates x and y of each pixel in the distorted focused image, (rows, cols)."""
    xs, ys = np.meshgrid(np.arange(k.width) - k.cx, np.arange(k.height) - k.cy)
    und = np.column_stack([xs.ravel(), ys.ravel()]) / scale + camera.principal_point_px
    recorded = (camera.distortion.distort(und, camera.principal_point_px) + 0.5) * scale - 0.5
    map_x, map_y = recorded.T.astype(np.float32).reshape(2, k.height, k.width)
    return map_x, map_y


def _undistort(
    path: Path, maps: tuple[Float32Array, Float32Array], camera: PlenopticCamera, scale: float
) -> npt.NDArray[np.uint8]:
    if not path.is_file():
        raise DataError(
            f"{path}: no such image; needs the focused images that lifcal calibrate made, or "
            "--no-images"
        )
    stored = read_image(path)
    full = camera.pinhole(scale)
    if stored.shape[:2] != (full.height, full.width):
        raise DataError(
            f"{path}: {stored.shape[1]} x {stored.shape[0]} px, needs {full.width} x "
            f"{full.height} px"
        )
    largest = 65535.0 if stored.dtype == np.uint16 else 255.0
    light = resample(stored.astype(np.float32) * np.float32(255.0 / largest), *maps)
    image = np.clip(np.rint(light), 0, 255).astype(np.uint8)
    # Programs for view synthesis expect three channels.
    return image if image.ndim == 3 else np.repeat(image[:, :, None], 3, axis=2)
