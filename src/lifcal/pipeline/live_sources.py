"""Where the frames of `lifcal live` come from: a folder that fills, a video, a camera, a pipe."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from lifcal.errors import DataError, InputError
from lifcal.sources import IMAGE_SUFFIXES, VIDEO_SUFFIXES, natural_key

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_POLL_S = 0.1
"""Seconds between two looks at a folder."""
_STILL_S = 0.3
"""Seconds for which a file must not have changed before it is taken as whole, if it can be read
then."""
_GIVE_UP_S = 5.0
"""Seconds without a change after which a file that cannot be read is given up."""


@dataclass(frozen=True, eq=False)
class LiveFrame:
    """A frame that came in, or why it could not be read.

    Parameters
    ----------
    name : str
    pixels : array or None
        As the file stores them; None if they cannot be read.
    problem : str
        Why not.
    """

    name: str
    pixels: npt.NDArray[np.generic] | None
    problem: str = ""


def open_source(
    source: str,
    idle_s: float | None,
    seen: Collection[str],
    image_size: Callable[[], tuple[int, int] | None],
    bits: int = 8,
    stream: IO[bytes] | None = None,
) -> Iterator[LiveFrame]:
    """Return the frames of a source, as they come in.

    Parameters
    ----------
    source : str
        A folder, a video, the index of a camera, or '-' for standard input.
    idle_s : float or None
        A folder ends after so many seconds without a new frame; None waits for ever.
    seen : collection of str
        Names of frames that were taken before.
    image_size : callable
        Returns width and height of the frames on standard input, if they are known.
    bits : int
        8 or 16, of the pixels on standard input; 16 are little-endian.
    stream : binary file, optional
        In place of standard input.

    Raises
    ------
    DataError
        If there is no such source.
    """
    path = Path(source)
    if source == "-":
        size = image_size()
        if size is None:
            raise InputError(
                "frames on standard input have no size of their own: give --grid, --white or "
                "--camera"
            )
        return _read_stream(stream or sys.stdin.buffer, size, bits, seen)
    if path.is_dir():
        return _watch_folder(path, idle_s, seen)
    if path.is_file():
        if path.suffix.lower() not in VIDEO_SUFFIXES:
            raise DataError(f"{path}: is no video: give a folder, a video, a camera's index or -")
        return _read_video(path, seen)
    if source.isdecimal():
        return _read_camera(int(source), seen)
    raise DataError(f"{source}: no such folder or video, and no camera's index")


def _watch_folder(folder: Path, idle_s: float | None, seen: Collection[str]) -> Iterator[LiveFrame]:
    """Yield the images of a folder in the order of their names, as soon as each is whole."""
    from lifcal.imaging.files import read_image

    done = set(seen)
    known: dict[Path, tuple[tuple[int, int], float]] = {}
    last = time.monotonic()
    while True:
        now = time.monotonic()
        came = False
        for path in _list_images(folder):
            if path.stem in done:
                continue
            try:
                stat = path.stat()
            except OSError:  # deleted or renamed in between
                known.pop(path, None)
                continue
            form = (stat.st_size, stat.st_mtime_ns)
            if path not in known or known[path][0] != form:
                known[path] = (form, now)
            still = now - known[path][1]
            old = time.time() - stat.st_mtime > _STILL_S
            if still < _STILL_S and not old:
                break  # later files wait, so that the order is kept
            try:
                pixels = read_image(path)
            except DataError as error:
                if not path.exists():
                    known.pop(path, None)
                    continue
                if still < _GIVE_UP_S:
                    last = now  # it may still become whole: a run does not end before
                    break
                done.add(path.stem)
                yield LiveFrame(path.stem, None, str(error))
                continue
            done.add(path.stem)
            known.pop(path, None)
            yield LiveFrame(path.stem, pixels)
            came = True
            break  # look again: others may have come
        if came:
            last = time.monotonic()
        elif idle_s is not None and now - last > idle_s:
            return
        else:
            time.sleep(_POLL_S)


def _list_images(folder: Path) -> list[Path]:
    try:
        found = [
            path
            for path in folder.iterdir()
            if path.suffix.lower() in IMAGE_SUFFIXES and not path.name.startswith(".")
        ]
    except OSError as error:
        raise DataError(f"{folder}: cannot read: {error.strerror}") from error
    return sorted(found, key=natural_key)


def _read_video(path: Path, seen: Collection[str]) -> Iterator[LiveFrame]:
    from lifcal.imaging.frames import open_video

    video = open_video(path)
    for index in range(len(video)):
        name = f"{path.stem}-{index:06d}"
        if name in seen:
            continue
        try:
            yield LiveFrame(name, video.read(index))
        except DataError as error:
            yield LiveFrame(name, None, str(error))


def _read_camera(index: int, seen: Collection[str]) -> Iterator[LiveFrame]:
    from lifcal.imaging.camera_stream import CameraStream

    with CameraStream(index) as camera:
        number = len(seen)
        while True:
            pixels = camera.read()
            if pixels is None:
                return
            yield LiveFrame(f"camera{index}-{number:06d}", pixels)
            number += 1


def _read_stream(
    stream: IO[bytes], size: tuple[int, int], bits: int, seen: Collection[str]
) -> Iterator[LiveFrame]:
    """Yield raw frames, rows of gray pixels without anything between."""
    import numpy as np

    if bits not in (8, 16):
        raise InputError(f"bits is {bits}, needs 8 or 16")
    width, height = size
    length = width * height * bits // 8
    number = len(seen)
    while True:
        content = stream.read(length)
        if not content:
            return
        if len(content) < length:
            raise DataError(
                f"standard input ended in the middle of frame {number}: {len(content)} of "
                f"{length} bytes ({width} x {height} pixels of {bits} bits)"
            )
        kind = np.uint8 if bits == 8 else np.dtype("<u2")
        pixels = np.frombuffer(content, kind).reshape(height, width)
        yield LiveFrame(f"stdin-{number:06d}", pixels.astype(np.uint8 if bits == 8 else np.uint16))
        number += 1
