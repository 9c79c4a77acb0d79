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

from lifcal.arrays import Float32Array
from lifcal.camera import PinholeIntrinsics
from lifcal.files import write_text
from lifcal.imaging.files import encode_jpeg, encode_png
from lifcal.imaging.preview import colorize, fit

_MOST_PX = 512
"""Longer side of the images on the page, in px: 200 000 points are enough to look at."""
_ENDS = (1.0, 99.0)
"""Percentiles of the depths between which the colors are spread."""
_STEPS_PER_MM = 10.0
_FULL = 65535
_COLORS = 256


@dataclass(frozen=True, eq=False)
class DepthView:
    """A frame to look at.

    Parameters
    ----------
    name : str
    image : (rows, cols) or (rows, cols, 3) uint8
    depth_mm : (rows, cols) float32
        NaN where unknown.
    """

    name: str
    image: npt.NDArray[np.uint8]
    depth_mm: Float32Array


def write_depth_page(
    path: Path, views: Sequence[DepthView], intrinsics: PinholeIntrinsics, title: str
) -> None:
    """Write the page that `render_depth_page` makes, whole or not at all."""
    write_text(path, render_depth_page(views, intrinsics, title))


def render_depth_page(views: Sequence[DepthView], intrinsics: PinholeIntrinsics, title: str) -> str:
    """Return one HTML page that loads nothing from anywhere.

    Parameters
    ----------
    views : sequence of DepthView
        At least one; all of the intrinsics' size.
    intrinsics : PinholeIntrinsics
    title : str
    """
    known = np.concatenate([view.depth_mm[np.isfinite(view.depth_mm)] for view in views])
    near, far = np.percentile(known, _ENDS).tolist() if len(known) else (0.0, 1.0)
    step = -(-max(intrinsics.width, intrinsics.height) // _MOST_PX)
    # the farthest must fit into 16 bits
    unit = max(1.0 / _STEPS_PER_MM, float(known.max(initial=0.0)) / _FULL)
    data = {
        "frames": [_pack(view, step, unit) for view in views],
        "unit_mm": unit,
        "near_mm": near,
        "far_mm": max(far, near + unit),
        "colors": colorize(np.linspace(0.0, 1.0, _COLORS)[None], 0.0, 1.0)[0].tolist(),
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


def _pack(view: DepthView, step: int, unit: float) -> dict[str, Any]:
    """Return image and depth in every `step`-th pixel, the depth as two bytes of a color image."""
    depth = view.depth_mm[step // 2 :: step, step // 2 :: step]
    units = np.where(np.isfinite(depth), np.clip(np.rint(depth / unit), 1.0, _FULL), 0.0)
    units = units.astype(np.uint16)
    rows, cols = units.shape
    split = np.zeros((rows, cols, 3), np.uint8)
    split[:, :, 0], split[:, :, 1] = units >> 8, units & 255
    image = view.image if view.image.ndim == 3 else np.repeat(view.image[:, :, None], 3, axis=2)
    return {
        "name": view.name,
        "rows": rows,
        "cols": cols,
        "image": base64.b64encode(encode_jpeg(fit(image, cols, rows))).decode(),
        "depth": base64.b64encode(encode_png(split)).decode(),
    }
