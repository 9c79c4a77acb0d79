"""Pictures for notebooks and scripts, drawn with matplotlib (`pip install "lifcal[plots]"`).

The functions take arrays. `Calibration.plot_rig`, `Calibration.plot_residuals` and
`MetricFrame.plot` call them with their own arrays. Each function makes a figure and returns its
axes; in a script, `matplotlib.pyplot.show()` opens the window.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from lifcal.arrays import BoolArray, Float32Array, FloatArray, IntArray
from lifcal.errors import MissingDependencyError

if TYPE_CHECKING:
    import numpy.typing as npt

_CELLS = 12
"""Number of cells along the longer side of the image in which residuals are averaged."""
_LEAST_IN_CELL = 10
"""Smallest number of residuals in a cell; the mean of fewer is mostly noise and is not drawn."""
_PYRAMID = 0.06
"""Length of a drawn camera as a fraction of the extent of the rig."""


def import_pyplot() -> Any:
    """Return matplotlib.pyplot; MissingDependencyError names the extra if it is not installed."""
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        raise MissingDependencyError('plots need matplotlib: pip install "lifcal[plots]"') from None
    return plt


def plot_rig(
    rotations: FloatArray,
    positions_world_mm: FloatArray,
    points_world_mm: FloatArray,
    half_fov: tuple[float, float],
    *,
    unit: str = "mm",
) -> Any:
    """Draw cameras as pyramids among the points of the scene.

    Parameters
    ----------
    rotations : (n_views, 3, 3) float64
        Rotation of each camera, from camera to world coordinates.
    positions_world_mm : (n_views, 3) float64
        Position of each camera.
    points_world_mm : (n_points, 3) float64
        Points of the scene.
    half_fov : (float, float)
        Half the width and height of the image, divided by the focal length.
    unit : str
        Unit of lengths for the labels.

    Returns
    -------
    matplotlib axes (3D)
    """
    axes = import_pyplot().figure(figsize=(8, 7)).add_subplot(projection="3d")
    everything = np.concatenate([positions_world_mm, points_world_mm])
    size = _PYRAMID * float(np.linalg.norm(np.ptp(everything, axis=0)))
    x, y = size * half_fov[0], size * half_fov[1]
    corners = np.array([[-x, -y, size], [x, -y, size], [x, y, size], [-x, y, size]])
    for rotation, position in zip(rotations, positions_world_mm, strict=True):
        seen = corners @ rotation.T + position
        path = np.concatenate([seen, seen[:1]])
        for corner in seen:
            axes.plot(*np.array([position, corner]).T, color="tab:blue", linewidth=0.7)
        axes.plot(*path.T, color="tab:blue", linewidth=0.7)
    axes.plot(*positions_world_mm.T, color="tab:orange", linewidth=1.0, label="path")
    axes.scatter(*points_world_mm.T, s=2.0, color="0.4", label="points")
    axes.set_xlabel(f"x ({unit})")
    axes.set_ylabel(f"y ({unit})")
    axes.set_zlabel(f"z ({unit})")
    axes.set_aspect("equal")
    axes.view_init(elev=-60, azim=-90)  # as the first camera sees it, from a little above
    axes.set_title(f"{len(positions_world_mm)} cameras, {len(points_world_mm)} points")
    axes.legend()
    return axes


def plot_residuals(
    residuals_px: FloatArray,
    places_px: FloatArray,
    views: IntArray,
    used: BoolArray,
    image_size: tuple[int, int],
) -> Any:
    """Draw residuals: their distribution, their mean over the image, and their size by frame.

    Parameters
    ----------
    residuals_px : (n, 2) float64
        Projected minus measured position of each point.
    places_px : (n, 2) float64
        Measured position in the raw.
    views : (n,) int64
        Index of the frame in which the point was measured.
    used : (n,) bool
        False for observations that were rejected as outliers, which are not drawn.
    image_size : (int, int)

    Returns
    -------
    (3,) array of matplotlib axes
    """
    residuals, places, views = residuals_px[used], places_px[used], views[used]
    figure, axes = import_pyplot().subplots(1, 3, figsize=(16, 4.8), layout="constrained")
    rms = float(np.sqrt(np.mean(residuals**2))) if len(residuals) else 0.0
    reach = 4.0 * max(rms, 1e-6)
    shown = axes[0].hist2d(*residuals.T, bins=80, range=[[-reach, reach]] * 2, cmap="Blues")
    figure.colorbar(shown[3], ax=axes[0], label="observations")
    axes[0].set_title(f"{len(residuals)} residuals, {rms:.3f} px rms per axis")
    axes[0].set_xlabel("x (px)")
    axes[0].set_ylabel("y (px)")
    axes[0].set_aspect("equal")

    centers, means = _average_in_cells(places, residuals, image_size)
    lengths = np.hypot(*means.T)
    arrows = axes[1].quiver(*centers.T, *means.T, lengths, angles="xy", cmap="viridis")
    if len(lengths):
        figure.colorbar(arrows, ax=axes[1], label="mean residual (px)")
    axes[1].set_title("mean residual over the image: no pattern is good")
    axes[1].set_xlim(-0.5, image_size[0] - 0.5)
    axes[1].set_ylim(image_size[1] - 0.5, -0.5)
    axes[1].set_aspect("equal")
    axes[1].set_xlabel("raw x (px)")
    axes[1].set_ylabel("raw y (px)")

    frames, rows = np.unique(views, return_inverse=True)
    squares = np.bincount(rows, (residuals**2).mean(axis=1)) / np.maximum(np.bincount(rows), 1)
    axes[2].bar(frames, np.sqrt(squares))
    axes[2].set_title("rms by frame")
    axes[2].set_xlabel("frame")
    axes[2].set_ylabel("rms per axis (px)")
    return axes


def _average_in_cells(
    places: FloatArray, residuals: FloatArray, image_size: tuple[int, int]
) -> tuple[FloatArray, FloatArray]:
    """Return the centers of cells with enough residuals, (n, 2), and the means there, (n, 2)."""
    cell = max(image_size) / _CELLS
    cols = int(np.ceil(image_size[0] / cell))
    at = np.floor((places + 0.5) / cell).astype(np.int64)
    index = at[:, 1] * cols + at[:, 0]
    counts = np.bincount(index)
    sums = np.column_stack([np.bincount(index, residuals[:, axis]) for axis in (0, 1)])
    full = np.flatnonzero(counts >= _LEAST_IN_CELL)
    centers = (np.column_stack([full % cols, full // cols]).astype(np.float64) + 0.5) * cell - 0.5
    means: FloatArray = sums[full] / counts[full, None]
    return centers, means


def plot_depth(
    image: Float32Array,
    depth_mm: Float32Array,
    sigma_mm: Float32Array,
    *,
    unit: str = "mm",
) -> Any:
    """Draw a focused image, its depth map (red near, blue far) and its standard deviation.

    Parameters
    ----------
    image : (rows, cols) or (rows, cols, 3) float32
        Brightness from 0 to 1.
    depth_mm, sigma_mm : (rows, cols) float32
        Depth and its standard deviation. NaN (unknown) is left white.
    unit : str
        Unit of depth for the labels.

    Returns
    -------
    (3,) array of matplotlib axes
    """
    figure, axes = import_pyplot().subplots(1, 3, figsize=(16, 4.2), layout="constrained")
    axes[0].imshow(np.clip(image, 0.0, 1.0), cmap="gray", vmin=0.0, vmax=1.0)
    axes[0].set_title("totally focused image")
    percent = 100.0 * sigma_mm / depth_mm
    panels: list[tuple[npt.NDArray[Any], str, str, str]] = [
        (depth_mm, f"depth ({unit})", "turbo_r", unit),
        (percent, "σ of depth (%)", "viridis", "%"),
    ]
    for axis, (values, title, colors, label) in zip(axes[1:], panels, strict=True):
        known = values[np.isfinite(values)]
        low, high = np.quantile(known, [0.01, 0.99]) if len(known) else (0.0, 1.0)
        shown = axis.imshow(values, cmap=colors, vmin=low, vmax=high)
        figure.colorbar(shown, ax=axis, label=label)
        axis.set_title(title)
    for axis in axes:
        axis.set_xlabel("x (px)")
        axis.set_ylabel("y (px)")
    return axes
