"""The page of `lifcal live`: advice in large letters, the last image, the map, parameters."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

import numpy as np
import numpy.typing as npt

from lifcal.arrays import FloatArray, spread_choice
from lifcal.camera.parameters import format_value, unit_of
from lifcal.files import make_plain
from lifcal.imaging.files import encode_jpeg
from lifcal.report.server import LoopbackServer, Reply

_MOST_POINTS, _MOST_STEPS = 1500, 300
"""Points of the map, and steps of a curve, that are sent: more cannot be told apart."""
_SHOWN = ("F", "B", "c_x", "c_y", "alpha")
"""Parameters whose course is drawn."""


@dataclass(frozen=True, eq=False)
class LiveStep:
    """What the page shows after a frame.

    Parameters
    ----------
    name, status, text : str
        Name of the frame, what became of it, and the sentence that says why.
    advice : str
        Empty if there is none.
    done : bool
    n_keyframes : int
    values, sigmas : mapping of str to float
    limits : mapping of str to float
        Targets in units of the parameters.
    coverage : (n, n) bool
    points, cameras, path : (n, 3) float64
        Scene, keyframes and all tracked frames.
    image : (rows, cols) uint8 or None
        The last focused image.
    """

    name: str
    status: str
    text: str
    advice: str
    done: bool
    n_keyframes: int
    values: Mapping[str, float]
    sigmas: Mapping[str, float]
    limits: Mapping[str, float]
    coverage: npt.NDArray[np.bool_]
    points: FloatArray
    cameras: FloatArray
    path: FloatArray
    image: npt.NDArray[np.uint8] | None = None


@dataclass(eq=False)
class LivePage:
    """A page on this computer that follows a run.

    Parameters
    ----------
    port : int
        0 takes any free one.

    Raises
    ------
    DataError
        If the port is taken.
    """

    port: int = 0
    _frames: int = 0
    _steps: list[tuple[dict[str, float], dict[str, float]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._picture = b""
        self._server = LoopbackServer(self.port)
        self._server.page("", _read_page)
        self._server.get("image", self._send_image)
        self._states = self._server.stream("events")
        self._server.start()

    @property
    def url(self) -> str:
        """Address of the page, with its token."""
        return self._server.url

    def show(self, step: LiveStep) -> None:
        """Push what is known after a frame to the pages that are open."""
        self._frames += 1
        if step.image is not None:
            with self._lock:
                self._picture = encode_jpeg(step.image)
        if step.values:
            self._steps.append((dict(step.values), dict(step.sigmas)))
        self._states.push(make_plain(self._describe(step)))

    def close(self) -> None:
        """Stop serving."""
        self._server.close()

    def _send_image(self, query: Mapping[str, str]) -> Reply:
        del query
        with self._lock:
            return Reply(self._picture, "image/jpeg")

    def _describe(self, step: LiveStep) -> dict[str, Any]:
        chosen = [self._steps[i] for i in spread_choice(len(self._steps), _MOST_STEPS)]
        series = []
        for name in _SHOWN:
            course = [(v[name], s[name]) for v, s in chosen if name in v and name in s]
            if course:
                limit = step.limits.get(name)
                series.append(
                    {
                        "name": name,
                        "values": [value for value, _ in course],
                        "sigmas": [sigma for _, sigma in course],
                        "limit": limit if limit is not None and math.isfinite(limit) else None,
                    }
                )
        return {
            "frames": self._frames,
            "keyframes": step.n_keyframes,
            "name": step.name,
            "status": step.status,
            "text": step.text,
            "advice": step.advice[:1].upper() + step.advice[1:],
            "done": step.done,
            "image": bool(self._picture),
            "coverage": step.coverage.tolist(),
            "points": _thin(step.points, _MOST_POINTS),
            "cameras": _thin(step.cameras, _MOST_POINTS),
            "path": _thin(step.path, _MOST_POINTS),
            "parameters": [
                {
                    "name": name,
                    "value": f"{format_value(value, step.sigmas[name])} {unit_of(name)}".rstrip(),
                    "target": f"{step.limits[name]:.2g} {unit_of(name)}".rstrip()
                    if name in step.limits
                    else "",
                }
                for name, value in step.values.items()
            ],
            "series": series,
        }


def _thin(points: FloatArray, most: int) -> list[list[float]]:
    chosen: Sequence[int] = spread_choice(len(points), most)
    rows = points[list(chosen)] if len(points) else points.reshape(0, 3)
    rows = rows[np.isfinite(rows).all(axis=1)]
    return [[float(f"{value:.6g}") for value in row] for row in rows.tolist()]


def _read_page() -> str:
    return files("lifcal.report").joinpath("live_page.html").read_text(encoding="utf-8")
