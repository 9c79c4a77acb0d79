"""Pictures for people: false color with a scale, labels, panels side by side."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import cv2
import numpy as np
import numpy.typing as npt

from lifcal.arrays import FloatArray

ColorImage = npt.NDArray[np.uint8]
_INK = (32, 32, 32)
_PAPER = 255
_NO_VALUE = (205, 205, 205)
_BAR_HEIGHT, _TICK_WIDTH, _MOST_TICKS = 14, 80, 8


def colorize(values: npt.NDArray[np.floating], low: float, high: float) -> ColorImage:
    """Return values as colors, blue at `low` to red at `high`; NaN is gray.

    Parameters
    ----------
    values : (height, width) float
    """
    known = np.isfinite(values)
    scaled = np.zeros(values.shape)
    scaled[known] = (values[known] - low) / max(high - low, 1e-12)
    gray = np.clip(np.rint(255.0 * scaled), 0, 255).astype(np.uint8)
    colors = np.asarray(cv2.applyColorMap(gray, cv2.COLORMAP_TURBO), np.uint8)[:, :, ::-1].copy()
    colors[~known] = _NO_VALUE
    return colors


def colorize_depth(depth: npt.NDArray[np.floating], near: float, far: float) -> ColorImage:
    """Return distances as colors, red at `near` to blue at `far`; NaN is gray.

    All pictures of depth have this direction. Virtual depth is larger where things are nearer, so
    `colorize` has the same direction for it.
    """
    return colorize(-depth, -far, -near)


def fit(
    image: npt.NDArray[np.uint8], width: int, height: int, *, smooth: bool = True
) -> ColorImage:
    """Return a gray or color image resized to width x height, in color."""
    color = image if image.ndim == 3 else np.repeat(image[:, :, None], 3, axis=2)
    shrinks = image.shape[1] > width
    how = cv2.INTER_AREA if shrinks else cv2.INTER_CUBIC if smooth else cv2.INTER_NEAREST
    resized = cv2.resize(np.ascontiguousarray(color), (width, height), interpolation=how)
    return np.asarray(resized, np.uint8)


def draw_rings(
    image: ColorImage, points_px: FloatArray, color: tuple[int, int, int], radius_px: int = 7
) -> None:
    """Draw circles, placed to a sixteenth of a pixel, into `image`."""
    for x, y in np.rint(points_px * 16.0).astype(int):
        cv2.circle(image, (int(x), int(y)), radius_px * 16, color, 2, cv2.LINE_AA, shift=4)


def color_bar(
    low: float,
    high: float,
    unit: str,
    width: int,
    height: int,
    *,
    n_ticks: int = 5,
    near_is_low: bool = False,
) -> ColorImage:
    """Return a vertical scale, `high` on top.

    It is that of `colorize_depth` with `near_is_low`, and that of `colorize` without.
    """
    bar = np.full((height, width, 3), _PAPER, np.uint8)
    margin, thick = 14, 18
    ramp = np.linspace(high, low, height - 2 * margin)[:, None].repeat(thick, axis=1)
    paint = colorize_depth if near_is_low else colorize
    bar[margin : height - margin, 4 : 4 + thick] = paint(ramp, low, high)
    for i in range(n_ticks):
        share = i / (n_ticks - 1)
        y = int(margin + share * (height - 2 * margin))
        _write(bar, f"{high + share * (low - high):.0f} {unit}", (8 + thick, y + 4), 0.4)
    return bar


def draw_map(
    values: npt.NDArray[np.floating],
    low: float,
    high: float,
    number: str,
    *,
    near_is_low: bool = False,
) -> ColorImage:
    """Return a map in color with a color bar, whose numbers stand beside their colors.

    At the end of the bar stands the gray of unknown values, if there is room.

    Parameters
    ----------
    values : (height, width) float
        NaN is gray.
    low, high : float
    number : str
        Format of the numbers, for example "{:.2f} mm".
    near_is_low : bool
        Whether small values are near, as distances are (virtual depth is the other way round). Near
        is red in both cases.
    """
    paint = colorize_depth if near_is_low else colorize
    width = values.shape[1]
    room = _TICK_WIDTH if width >= 3 * _TICK_WIDTH else 0
    span = width - room
    ramp = paint(np.linspace(low, high, span)[None].repeat(_BAR_HEIGHT, axis=0), low, high)
    n_ticks = min(max(span // _TICK_WIDTH, 1), _MOST_TICKS)
    edges = [round(i * span / n_ticks) for i in range(n_ticks + 1)]
    parts = [
        panel(ramp[:, start:end], number.format(low + (high - low) * start / max(span - 1, 1)))
        for start, end in itertools.pairwise(edges)
    ]
    if room:
        parts.append(panel(np.full((_BAR_HEIGHT, room, 3), _NO_VALUE, np.uint8), "unknown"))
    return np.vstack([paint(values, low, high), np.hstack(parts)])


def panel(image: ColorImage, caption: str) -> ColorImage:
    """Return the image with a caption on a strip above it."""
    strip = np.full((30, image.shape[1], 3), _PAPER, np.uint8)
    _write(strip, caption, (4, 20), 0.5)
    return np.vstack([strip, image])


def draw_table(rows: Sequence[Sequence[str]], columns_px: Sequence[int], width: int) -> ColorImage:
    """Return rows of text on white; `columns_px` says where each column begins."""
    line = 26
    image = np.full((line * len(rows) + 8, width, 3), _PAPER, np.uint8)
    for i, row in enumerate(rows):
        for x, text in zip(columns_px, row, strict=True):
            _write(image, text, (x, line * (i + 1) - 6), 0.5)
    return image


def tile(rows: Sequence[Sequence[ColorImage]], gap: int = 12) -> ColorImage:
    """Return one image with rows of panels on a white background."""
    lines = []
    for row in rows:
        height = max(image.shape[0] for image in row)
        pieces = [np.full((height, gap, 3), _PAPER, np.uint8)]
        for image in row:
            piece = np.full((height, image.shape[1] + gap, 3), _PAPER, np.uint8)
            piece[: image.shape[0], : image.shape[1]] = image
            pieces.append(piece)
        lines.append(np.hstack(pieces))
    width = max(line.shape[1] for line in lines)
    page = [np.full((gap, width, 3), _PAPER, np.uint8)]
    for line in lines:
        block = np.full((line.shape[0] + gap, width, 3), _PAPER, np.uint8)
        block[: line.shape[0], : line.shape[1]] = line
        page.append(block)
    return np.vstack(page)


def _write(image: ColorImage, text: str, place: tuple[int, int], size: float) -> None:
    cv2.putText(image, text, place, cv2.FONT_HERSHEY_SIMPLEX, size, _INK, 1, cv2.LINE_AA)
