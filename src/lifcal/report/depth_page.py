"""A page to look at metric depth: image, depth map and cloud of frames, side by side."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lifcal.arrays import Float32Array, FloatArray
from lifcal.camera import PinholeIntrinsics
from lifcal.files import write_text
from lifcal.imaging.files import encode_jpeg, encode_png
from lifcal.imaging.preview import colorize, colorize_depth, fit

_MOST_PX = 512
"""Longer side of the images on the page, in px: 200 000 points are enough to look at."""
_ENDS = (1.0, 99.0)
"""Percentiles of the depths between which the colors are spread."""
_STEPS_PER_MM = 10.0
_FULL = 65535
_COLORS = 256
_MOST_POINTS = 150_000
"""Points of a fused cloud on the page: 9 bytes each, and more are not seen."""
_MOST_CORNERS = 60_000
"""Corners of a mesh on the page: indices of 16 bits, which every browser draws, reach to 65535."""


@dataclass(frozen=True, eq=False)
class DepthView:
    """A frame to look at.

    Parameters
    ----------
    name : str
    image : (rows, cols) or (rows, cols, 3) uint8
    depth_mm : (rows, cols) float32
        NaN where unknown.
    sigma_mm : (rows, cols) float32 or None
        Standard deviation of the depth; None if it is not known.
    """

    name: str
    image: npt.NDArray[np.uint8]
    depth_mm: Float32Array
    sigma_mm: Float32Array | None = None


@dataclass(frozen=True, eq=False)
class SceneView:
    """A cloud or mesh of all frames to look at.

    Parameters
    ----------
    name : str
    points_world_mm : (n, 3) float32
    colors : (n, 3) uint8
    triangles : (m, 3) int or None
        Corners of the triangles of a mesh; None for a cloud.
    """

    name: str
    points_world_mm: Float32Array
    colors: npt.NDArray[np.uint8]
    triangles: npt.NDArray[np.integer] | None = None


def write_depth_page(
    path: Path,
    views: Sequence[DepthView],
    intrinsics: PinholeIntrinsics,
    title: str,
    scenes: Sequence[SceneView] = (),
) -> None:
    """Write the page that `render_depth_page` makes, whole or not at all."""
    write_text(path, render_depth_page(views, intrinsics, title, scenes))


def render_depth_page(
    views: Sequence[DepthView],
    intrinsics: PinholeIntrinsics,
    title: str,
    scenes: Sequence[SceneView] = (),
) -> str:
    """Return one HTML page that loads nothing from anywhere.

    Parameters
    ----------
    views : sequence of DepthView
        At least one; all of the intrinsics' size.
    intrinsics : PinholeIntrinsics
    title : str
    scenes : sequence of SceneView
        Clouds and meshes of all frames. Those without points are left out, and large ones are
        thinned.
    """
    near, far, unit = _find_ends([view.depth_mm for view in views])
    low, high, sigma_unit = _find_ends(
        [view.sigma_mm for view in views if view.sigma_mm is not None]
    )
    step = -(-max(intrinsics.width, intrinsics.height) // _MOST_PX)
    ramp = np.linspace(0.0, 1.0, _COLORS)[None]
    data = {
        "frames": [_pack(view, step, unit, sigma_unit) for view in views],
        "scenes": [_pack_scene(scene) for scene in scenes if len(scene.points_world_mm)],
        "unit_mm": unit,
        "near_mm": near,
        "far_mm": far,
        "sigma_unit_mm": sigma_unit,
        "sigma_low_mm": low,
        "sigma_high_mm": high,
        "colors": colorize_depth(ramp, 0.0, 1.0)[0].tolist(),
        "sigma_colors": colorize(ramp, 0.0, 1.0)[0].tolist(),
        "step": step,
        "fx": intrinsics.fx / step,
        "fy": intrinsics.fy / step,
        "cx": (intrinsics.cx - step // 2) / step,
        "cy": (intrinsics.cy - step // 2) / step,
    }
    room = files("lifcal.report")
    css = room.joinpath("page.css").read_text(encoding="utf-8")
    css += room.joinpath("depth_page.css").read_text(encoding="utf-8")
    script = room.joinpath("depth_viewer.js").read_text(encoding="utf-8")
    body = room.joinpath("depth_page.html").read_text(encoding="utf-8")
    policy = (
        "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
    )
    content = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<link rel="icon" href="data:,"><title>{escape(title)}</title>'
        f"<style>{css}</style></head><body><main><h1>{escape(title)}</h1>{body}</main>"
        f'<script type="application/json" id="data">{content}</script>'
        f"<script>{script}</script></body></html>\n"
    )


def _find_ends(maps: Sequence[Float32Array]) -> tuple[float, float, float]:
    """Return the ends of the color bar of some maps, and a unit by which all fit into 16 bits."""
    known = np.concatenate([np.zeros(0, np.float32), *(each[np.isfinite(each)] for each in maps)])
    low, high = np.percentile(known, _ENDS).tolist() if len(known) else (0.0, 1.0)
    least = 1.0 / _STEPS_PER_MM if high > _COLORS / _STEPS_PER_MM else high / _FULL
    unit = max(least, float(known.max(initial=0.0)) / _FULL, 1e-6)
    return low, max(high, low + unit), unit


def _pack(view: DepthView, step: int, unit: float, sigma_unit: float) -> dict[str, Any]:
    """Return image, depth and sigma in every `step`-th pixel."""
    depth = view.depth_mm[step // 2 :: step, step // 2 :: step]
    rows, cols = depth.shape
    image = view.image if view.image.ndim == 3 else np.repeat(view.image[:, :, None], 3, axis=2)
    sigma = view.sigma_mm
    return {
        "name": view.name,
        "rows": rows,
        "cols": cols,
        "image": base64.b64encode(encode_jpeg(fit(image, cols, rows))).decode(),
        "depth": _pack_map(depth, unit),
        "sigma": None
        if sigma is None
        else _pack_map(sigma[step // 2 :: step, step // 2 :: step], sigma_unit),
    }


def _pack_map(values: Float32Array, unit: float) -> str:
    """Return values as two bytes of a color image; 0 is unknown."""
    units = np.where(np.isfinite(values), np.clip(np.rint(values / unit), 1.0, _FULL), 0.0)
    units = units.astype(np.uint16)
    split = np.zeros((*units.shape, 3), np.uint8)
    split[:, :, 0], split[:, :, 1] = units >> 8, units & 255
    return base64.b64encode(encode_png(split)).decode()


def _pack_scene(scene: SceneView) -> dict[str, Any]:
    """Return a cloud or mesh with places of 16 bits, thinned to what a page can hold."""
    points = scene.points_world_mm.astype(np.float64)
    colors, triangles = scene.colors, scene.triangles
    if triangles is not None:
        points, colors, triangles = _thin_mesh(points, colors, np.asarray(triangles))
    elif len(points) > _MOST_POINTS:
        kept = np.linspace(0, len(points) - 1, _MOST_POINTS).astype(np.int64)
        points, colors = points[kept], colors[kept]
    low = points.min(axis=0)
    size = max(float((points.max(axis=0) - low).max()), 1e-6) / _FULL
    places = np.rint((points - low) / size).astype("<u2")
    return {
        "name": scene.name,
        "count": len(points),
        "low_mm": low.tolist(),
        "unit_mm": size,
        "places": base64.b64encode(places.tobytes()).decode(),
        "colors": base64.b64encode(np.ascontiguousarray(colors, np.uint8).tobytes()).decode(),
        "triangles": None
        if triangles is None
        else base64.b64encode(triangles.astype("<u2").tobytes()).decode(),
    }


def _thin_mesh(
    points: FloatArray, colors: npt.NDArray[np.uint8], triangles: npt.NDArray[np.integer]
) -> tuple[FloatArray, npt.NDArray[np.uint8], npt.NDArray[np.integer]]:
    """Return a mesh with few enough corners: those in one cube become one, in larger cubes."""
    span = points.max(axis=0) - points.min(axis=0)
    side = float(np.max(span)) / 400.0
    while len(points) > _MOST_CORNERS:
        cells = np.floor((points - points.min(axis=0)) / side).astype(np.int64)
        _, index, counts = np.unique(cells, axis=0, return_inverse=True, return_counts=True)
        index = index.reshape(-1)
        if len(counts) <= _MOST_CORNERS:
            totals = [np.bincount(index, column) for column in (*points.T, *colors.T)]
            means = np.stack(totals, axis=1) / counts[:, None]
            points, colors = means[:, :3], np.rint(means[:, 3:]).astype(np.uint8)
            triangles = index[triangles]
            a, b, c = triangles.T
            triangles = np.unique(triangles[(a != b) & (b != c) & (a != c)], axis=0)
        side *= 1.3
    return points, colors, triangles
