"""The page of `lifcal pick`: two clicks in a focused image, and the millimetres between them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from html import escape
from importlib.resources import files
from typing import Any, Protocol

from lifcal.errors import InputError
from lifcal.report.server import LoopbackServer, Query, Reply

_TITLE = "Pick points of known distance"


class Picking(Protocol):
    """What the page needs of a folder; `lifcal.pipeline.picking.PickFolder` is one."""

    def describe(self) -> dict[str, Any]:
        """Return frames, distances and what is known, for JSON."""
        ...

    def list_distances(self) -> list[dict[str, Any]]:
        """Return the distances of the file, for JSON."""
        ...

    def read_image(self, frame: int) -> bytes:
        """Return the PNG file of a focused image."""
        ...

    def draw_unknown(self, frame: int) -> bytes:
        """Return a PNG file that is white where depth is unknown."""
        ...

    def locate(self, frame: int, points_px: list[tuple[float, float]]) -> dict[str, Any]:
        """Return what is known of picked points, for JSON."""
        ...

    def add(
        self,
        frame: int,
        points_px: list[tuple[float, float]],
        length_mm: float,
        sigma_mm: float | None,
    ) -> None:
        """Write a distance to the file."""
        ...

    def remove(self, entry: Any) -> None:
        """Remove a distance from the file; `entry` is what `list_distances` said of it."""
        ...


def serve_picking(server: LoopbackServer, folder: Picking, command: str) -> None:
    """Give a server the routes of the page.

    Parameters
    ----------
    server : LoopbackServer
    folder : Picking
    command : str
        What to do with the file afterwards, to copy.
    """
    lock = threading.Lock()  # changes of the file come one after the other

    def add(content: Any) -> dict[str, Any]:
        frame, points = _read_points(content)
        sigma = content.get("sigma")
        length = _read_number(content, "mm")
        with lock:
            folder.add(
                frame, points, length, None if sigma is None else _read_number(content, "sigma")
            )
            return {"distances": folder.list_distances()}

    def remove(content: Any) -> dict[str, Any]:
        with lock:
            folder.remove(content)
            return {"distances": folder.list_distances()}

    def locate(content: Any) -> dict[str, Any]:
        return folder.locate(*_read_points(content))

    server.page("", render_pick_page)
    server.get("state", lambda _: {**folder.describe(), "command": command})
    server.get("image", _send_png(folder.read_image))
    server.get("unknown", _send_png(folder.draw_unknown))
    server.post("locate", locate)
    server.post("add", add)
    server.post("remove", remove)


def render_pick_page() -> str:
    """Return the page; all that it shows comes from the routes of `serve_picking`."""
    room = files("lifcal.report")

    def read(name: str) -> str:
        return room.joinpath(name).read_text(encoding="utf-8")

    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<link rel="icon" href="data:,"><title>{escape(_TITLE)}</title>'
        f"<style>{read('page.css')}{read('pick_page.css')}</style></head>"
        f"<body><main><h1>{escape(_TITLE)}</h1>{read('pick_page.html')}</main>"
        f"<script>{read('pick_page.js')}</script></body></html>\n"
    )


# What the page sends


def _send_png(make: Callable[[int], bytes]) -> Callable[[Query], Reply]:
    def send(query: Query) -> Reply:
        frame = query.get("frame", "")
        if not (frame.isdecimal() and len(frame) < 9):
            raise InputError("needs the number of a frame")
        return Reply(make(int(frame)), "image/png")

    return send


def _read_points(content: Any) -> tuple[int, list[tuple[float, float]]]:
    frame = _read_index(content, "frame")
    points = content.get("points")
    if not isinstance(points, list) or not 1 <= len(points) <= 2:
        raise InputError("needs one or two points")
    found = []
    for point in points:
        if not isinstance(point, list) or len(point) != 2 or not all(map(_is_number, point)):
            raise InputError("a point needs two numbers")
        found.append((float(point[0]), float(point[1])))
    return frame, found


def _read_index(content: Any, name: str) -> int:
    value = content.get(name) if isinstance(content, dict) else None
    if not isinstance(value, int) or isinstance(value, bool):
        raise InputError(f"needs {name}, a whole number")
    return value


def _read_number(content: Any, name: str) -> float:
    value = content.get(name)
    if not _is_number(value):
        raise InputError(f"{name} is {value!r}, needs a number")
    return float(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
