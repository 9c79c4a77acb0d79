"""A picture of a simulated frame: the raw, a close-up, the view of a pinhole camera, and depth.

What a calibration found can be drawn beside the truth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lifcal.imaging import preview
from lifcal.simulate.sequence import SimulatedFrame, Simulation, to_8_bit

_PANEL_WIDTH = 560
_ZOOM = 7
_COLUMNS_PX = (4, 190, 340, 490, 640)
"""Where the columns of the table of parameters begin."""


@dataclass(frozen=True, eq=False)
class Estimate:
    """What a calibration found of a frame and its camera.

    Parameters
    ----------
    focused : (rows, cols) or (rows, cols, 3) uint8
        Totally focused image.
    depth_mm : (rows, cols) float
        NaN where unknown.
    parameters : sequence of (str, str, str, str, str)
        Rows of a table: name, estimated, true, error, error in sigmas.
    """

    focused: npt.NDArray[np.uint8]
    depth_mm: npt.NDArray[np.floating]
    parameters: Sequence[tuple[str, str, str, str, str]]


def draw_overview(
    simulation: Simulation, frame: SimulatedFrame, estimate: Estimate | None = None
) -> npt.NDArray[np.uint8]:
    """Return the picture, red-green-blue.

    The close-up is around a scene point; rings mark the position that the camera model predicts for
    that point in every micro image that sees it.

    Parameters
    ----------
    simulation : Simulation
    frame : SimulatedFrame
    estimate : Estimate, optional
        What a calibration found of this frame; it is drawn below the truth, in the same colors.
    """
    camera = simulation.optics.camera
    raw = np.asarray(frame.raw if frame.raw.dtype == np.uint8 else frame.raw >> 8, np.uint8)
    width, height = camera.image_size
    panel_height = round(_PANEL_WIDTH * height / width)

    point_cam_mm = _pick_point(simulation, frame)
    seen = camera.project_all(point_cam_mm[None, :])
    size = np.array([_PANEL_WIDTH, panel_height]) // _ZOOM
    middle = camera.virtual_from_cam(point_cam_mm[None, :])[0, :2]
    corner = np.clip(np.rint(middle - size / 2), 0, np.array([width, height]) - size).astype(int)
    crop = raw[corner[1] : corner[1] + size[1], corner[0] : corner[0] + size[0]]
    close_up = preview.fit(crop, size[0] * _ZOOM, size[1] * _ZOOM, smooth=False)
    close_up = preview.fit(close_up, _PANEL_WIDTH, panel_height)
    places = (seen.points_raw_px - corner + 0.5) * (_PANEL_WIDTH / size[0]) - 0.5
    preview.draw_rings(close_up, places, (235, 60, 50))

    depth = frame.view.depth_mm
    low, high = np.nanpercentile(depth, [1, 99])

    def draw_depth(values: npt.NDArray[np.floating], caption: str) -> npt.NDArray[np.uint8]:
        colors = preview.colorize_depth(values, low, high)
        bar = preview.color_bar(low, high, "mm", 110, panel_height, near_is_low=True)
        drawn = preview.panel(preview.fit(colors, _PANEL_WIDTH, panel_height), caption)
        return np.hstack([drawn, _pad_top(bar)])

    n_lenses = len(seen.lens_indices)
    rows = [
        [
            preview.panel(
                preview.fit(raw, _PANEL_WIDTH, panel_height),
                f"raw frame, {width} x {height} px, {len(camera.grid)} micro lenses",
            ),
            preview.panel(
                close_up,
                f"close up: one scene point in {n_lenses} micro images (model: red)",
            ),
        ],
        [
            preview.panel(
                preview.fit(display(frame.view.color), _PANEL_WIDTH, panel_height),
                "truth: pinhole view",
            ),
            draw_depth(depth, "truth: metric depth"),
        ],
    ]
    if estimate is not None:
        focused = preview.fit(estimate.focused, _PANEL_WIDTH, panel_height)
        rows.append(
            [
                preview.panel(focused, "estimated: totally focused image of the raw frame"),
                draw_depth(estimate.depth_mm, "estimated: metric depth (gray: unknown)"),
            ]
        )
        head = ("camera", "estimated", "true", "error", "error / sigma")
        table = [head, *estimate.parameters]
        rows.append([preview.draw_table(table, _COLUMNS_PX, 2 * _PANEL_WIDTH)])
    return preview.tile(rows)


def _pick_point(simulation: Simulation, frame: SimulatedFrame) -> npt.NDArray[np.float64]:
    """Return a point that a person can recognize: the visible marker corner nearest to the middle.

    If there is no marker, it is a point of the nearest surface in the middle of the view.
    """
    view = frame.view
    height, width = view.depth_mm.shape
    middle = np.array([width, height]) / 2
    best, best_distance = None, 0.35 * min(width, height)
    for marker in simulation.scene.markers:
        for corner in frame.world_from_cam.inverse().apply(marker.corners_world_mm):
            place = view.focal_px * corner[:2] / corner[2] + view.principal_point_px
            col, row = np.rint(place).astype(int)
            distance = float(np.linalg.norm(place - middle))
            if distance < best_distance and abs(view.depth_mm[row, col] / corner[2] - 1) < 0.02:
                best, best_distance = corner, distance
    if best is not None:
        return np.asarray(best)
    rows, cols = slice(height // 4, 3 * height // 4), slice(width // 4, 3 * width // 4)
    part = np.where(np.isfinite(view.depth_mm[rows, cols]), view.depth_mm[rows, cols], np.inf)
    row, col = np.unravel_index(np.argmin(part), part.shape)
    pixel = np.array([col + cols.start, row + rows.start], np.float64)
    depth = float(part[row, col])
    return np.array([*((pixel - view.principal_point_px) * depth / view.focal_px), depth])


def display(color: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
    """Return linear color with the gamma coding that screens expect."""
    return to_8_bit(np.clip(color, 0.0, 1.0) ** np.float32(1 / 2.2))


def _pad_top(image: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    return np.vstack([np.full((30, image.shape[1], 3), 255, np.uint8), image])
