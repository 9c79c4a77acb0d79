"""A picture of a fitted grid: circles on the image, and the residual of each lens."""

from __future__ import annotations

import math

import cv2
import numpy as np

from lifcal.arrays import Float32Array
from lifcal.grid.fit import GridFit, LensFlag
from lifcal.imaging.preview import ColorImage, color_bar, colorize, panel, tile

_SIDE = 640
"""Longer side of each panel of the picture, px."""
_ACROSS = 9.0
"""Number of lenses across the enlarged part, so that single micro images can be seen."""
_COLORS = {
    LensFlag.USED: (40, 200, 60),
    LensFlag.OUTLIER: (230, 40, 200),
    LensFlag.DEAD: (255, 60, 40),
    LensFlag.RIM: (70, 130, 255),
}
"""Color of the circle around a lens, by its flag."""


def draw_grid_fit(fit: GridFit, image: Float32Array) -> ColorImage:
    """Return a picture of the grid on the image: its middle, a corner, and maps of deviations.

    The maps show the residual of each lens, and the bend if there is one.

    Parameters
    ----------
    fit : GridFit
    image : (height, width) float32
        Image that the grid was fitted to.
    """
    width, height = fit.grid.image_size
    side = min(_ACROSS * fit.pitch_px, width, height)
    middle = _enlarge(fit, image, ((width - side) / 2.0, (height - side) / 2.0), side)
    corner = _enlarge(fit, image, (width - side, height - side), side)
    length = np.hypot(fit.residuals_px[:, 0], fit.residuals_px[:, 1])
    top = max(3000.0 * fit.rms_px, 1.0)
    scale = _SIDE / max(width, height)
    cols, rows = max(1, round(width * scale)), max(1, round(height * scale))
    y, x = np.mgrid[0:rows, 0:cols]
    points = (np.stack([x.ravel(), y.ravel()], axis=1) + 0.5) / scale - 0.5
    lens = fit.grid.nearest(points).reshape(rows, cols)
    residuals = colorize(1000.0 * length[lens], 0.0, top)
    for flag in (LensFlag.OUTLIER, LensFlag.DEAD):
        residuals[(fit.flags[lens] & flag) > 0] = _COLORS[flag]
    residuals[(fit.flags[lens] & LensFlag.RIM) > 0] = (205, 205, 205)
    bar = color_bar(0.0, top, "", 80, rows)
    below = []
    if fit.grid.bend is not None:
        bend = 1000.0 * np.hypot(*fit.grid.bend.at(points).T).reshape(rows, cols)
        most = float(bend.max())
        below = [
            panel(
                colorize(bend, 0.0, most),
                f"bend, 1/1000 px; rms {1000.0 * fit.grid.bend.rms_px:.0f}",
            ),
            panel(color_bar(0.0, most, "", 80, rows), "1/1000 px"),
        ]
    legend = "green: used, magenta: outlier, red: dead, blue: rim"
    return tile(
        [
            [panel(middle, f"middle; {legend}"), panel(corner, "lower right corner")],
            [
                panel(residuals, f"residuals, 1/1000 px; rms {1000.0 * fit.rms_px:.1f}"),
                panel(bar, "1/1000 px"),
            ],
            *([below] if below else []),
        ]
    )


def _enlarge(
    fit: GridFit, image: Float32Array, corner: tuple[float, float], side: float
) -> ColorImage:
    """Return a square part of the image with circles, enlarged."""
    x, y = max(0, math.floor(corner[0])), max(0, math.floor(corner[1]))
    n = max(8, math.ceil(side))
    part = image[y : y + n, x : x + n]
    level = max(float(np.percentile(part, 99.5)), 1e-9)
    gray = np.clip(np.rint(255.0 * np.sqrt(np.clip(part / level, 0.0, 1.0))), 0, 255)
    scale = _SIDE / max(part.shape)
    big = cv2.resize(
        gray.astype(np.uint8), None, fx=scale, fy=scale, interpolation=cv2.INTER_NEAREST
    )
    color: ColorImage = np.repeat(np.asarray(big, np.uint8)[:, :, None], 3, axis=2)
    centers = fit.grid.centers_raw_px
    reach = fit.grid.radius_px
    near = np.flatnonzero(
        (centers[:, 0] > x - reach)
        & (centers[:, 0] < x + n + reach)
        & (centers[:, 1] > y - reach)
        & (centers[:, 1] < y + n + reach)
    )
    for lens in near:
        flag = LensFlag(int(fit.flags[lens]))
        paint = _COLORS.get(flag, (255, 255, 255))
        place = ((centers[lens] - [x, y] + 0.5) * scale - 0.5) * 16.0
        at = (round(float(place[0])), round(float(place[1])))
        cv2.circle(color, at, round(reach * scale * 16.0), paint, 1, cv2.LINE_AA, shift=4)
        cv2.circle(color, at, 24, paint, -1, cv2.LINE_AA, shift=4)
    return color
