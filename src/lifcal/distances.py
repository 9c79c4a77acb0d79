"""Functions that read, check and extend files of known distances.

A line has the form `frame x1 y1 x2 y2 mm sigma`. It holds two points that a person picked in a
focused image, in pixels of that image, the distance between them in mm, and its standard deviation.
`#` begins a comment. The module imports no large package, so that commands can check such a file as
soon as they start.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from lifcal.errors import DataError, InputError
from lifcal.files import read_bytes, write_text
from lifcal.image_headers import read_header
from lifcal.sources import VIDEO_SUFFIXES

PICKED = "distances.txt"
"""Name of the file that `lifcal pick` writes into a folder if no other is given."""
_RULER_MM = 0.5
"""Standard deviation of a length that was read from a ruler or tape, in mm."""
_CLICK_PX = 0.5
"""Standard deviation of a clicked point along the line through both points, in pixels of the
focused image."""
_LEAST_APART_PX = 2.0
"""Two picked points that are nearer than this are one point that was clicked twice."""
_HEADER = "# frame x1 y1 x2 y2 mm sigma: points in focused images, written by lifcal pick\n"


@dataclass(frozen=True)
class PickedDistance:
    """A known distance between two points that a person picked in a focused image.

    Parameters
    ----------
    frame : str
        Name or index of the frame.
    first_px, second_px : (float, float)
        Pixel x, y of each point in the focused image.
    length_mm, sigma_mm : float
        The distance and its standard deviation.
    """

    frame: str
    first_px: tuple[float, float]
    second_px: tuple[float, float]
    length_mm: float
    sigma_mm: float


def estimate_sigma_mm(
    first_px: Sequence[float], second_px: Sequence[float], length_mm: float
) -> float:
    """Return the standard deviation of a distance that was measured and clicked by hand.

    It combines 0.5 mm for the ruler with half a pixel of the focused image for each of the two
    clicks.
    """
    apart = math.dist(first_px, second_px)
    clicks = math.sqrt(2.0) * _CLICK_PX / apart * length_mm if apart > 0.0 else math.inf
    return math.hypot(_RULER_MM, clicks)


# Reading


def read_rows(path: Path) -> list[tuple[int, list[str]]]:
    """Return the number and the words of each line that is not empty; # begins a comment."""
    rows = [
        (number, words)
        for number, line in enumerate(_read_lines(path), start=1)
        if (words := _split(line))
    ]
    if not rows:
        raise DataError(f"{path}: holds no distances")
    return rows


def check_length(path: Path, number: int, length: float, sigma: float) -> None:
    """Raise DataError unless a distance and its sigma are positive numbers."""
    if not (math.isfinite(length) and math.isfinite(sigma) and length > 0.0 and sigma > 0.0):
        raise DataError(
            f"{path}: line {number}: distance {length:g} +- {sigma:g} mm, needs positive numbers"
        )


def read_picked_distances(path: Path) -> tuple[PickedDistance, ...]:
    """Read a file with one distance `frame x1 y1 x2 y2 mm sigma` on each line.

    Raises
    ------
    DataError
        If a line has another form; the message contains the number of the line.
    """
    return tuple(_parse(path, number, words) for number, words in read_rows(path))


def find_name(frame: str, names: Sequence[str]) -> str:
    """Return the name of the frame that a line of the file refers to.

    The line may give the frame's name, with or without suffix, or its index. In the name, '_' may
    stand for characters that separate words or begin a comment.

    Raises
    ------
    DataError
        If there is no such frame.
    """
    for name in (frame, Path(frame).stem):
        if name in names:
            return name
    alike = [name for name in names if _to_word(name) == frame]
    if len(alike) == 1:
        return alike[0]
    if frame.isdecimal() and not _looks_like(frame, names) and int(frame) < len(names):
        return names[int(frame)]
    raise DataError(f"there is no frame {frame}, in which a distance was picked")


def _looks_like(number: str, names: Sequence[str]) -> bool:
    """Tell whether a number is written like the names of the frames, so that it is not an index.

    If frame 0005 was left out, "0005" must not refer to the sixth of the remaining frames.
    """
    numbers = [name for name in names if name.isdecimal()]
    padded = any(len(name) > 1 and name.startswith("0") for name in numbers)
    return any(len(name) == len(number) or not padded for name in numbers)


def check_picked_distances(path: Path, raws: Sequence[Path], scale: float) -> None:
    """Check a file of distances against the raws of its recording, without decoding any image.

    Parameters
    ----------
    path : Path
        The file of distances.
    raws : sequence of Path
        Images and videos, as `lifcal.sources.list_files` returns them. If videos are among them,
        the frames are not known yet, and only the file itself is checked.
    scale : float
        Size of the focused images relative to the raws.

    Raises
    ------
    DataError
        If a line cannot be read, a frame does not exist, a point is outside the image, or a length
        has a unit.
    """
    distances = read_picked_distances(path)
    stems = [raw.stem for raw in raws]
    if any(raw.suffix.lower() in VIDEO_SUFFIXES for raw in raws) or len(set(stems)) < len(stems):
        return
    files = dict(zip(stems, raws, strict=True))
    for (number, _), distance in zip(read_rows(path), distances, strict=True):
        try:
            name = find_name(distance.frame, stems)
        except DataError:
            shown = ", ".join(stems[:3]) + (", ..." if len(stems) > 3 else "")
            raise DataError(
                f"{path}: line {number}: there is no frame {distance.frame}; frames are {shown}"
            ) from None
        header = read_header(read_bytes(files[name], limit=1 << 30))
        if header is None or not header.width:
            continue  # The error message of opening this file later will be clearer.
        check_inside([distance], (header.width, header.height), scale, f"{path}: line {number}: ")


def check_inside(
    distances: Iterable[PickedDistance], raw_size_px: Sequence[int], scale: float, where: str = ""
) -> None:
    """Raise DataError if a picked point is outside its focused image.

    Parameters
    ----------
    distances : iterable of PickedDistance
    raw_size_px : (int, int)
        Width and height of the raws.
    scale : float
        Size of the focused images relative to the raws.
    where : str
        Text with which the error message begins.
    """
    width, height = (max(round(side * scale), 1) for side in raw_size_px)
    for distance in distances:
        for x, y in (distance.first_px, distance.second_px):
            if not is_inside((x, y), (width, height)):
                raise DataError(
                    f"{where}the picked point ({x:g}, {y:g}) is outside the focused image of frame "
                    f"{distance.frame}, which has {width} x {height} px, {scale:g} of the raw's "
                    "size"
                )


def is_inside(pixel: Sequence[float], size: Sequence[int]) -> bool:
    """Tell whether a point x, y is in an image of width x height; pixel centers are integers."""
    return -0.5 <= pixel[0] <= size[0] - 0.5 and -0.5 <= pixel[1] <= size[1] - 0.5


# Writing


class DistancesFile:
    """A file of distances to which lines are added; its other lines and comments are not changed.

    The file is read again before each change, so that changes which an editor saved in the meantime
    are kept. It is written atomically.

    Parameters
    ----------
    path : Path
        Path of the file. If there is no such file, adding the first distance creates it.

    Raises
    ------
    DataError
        If a line of the file is neither a distance nor a comment.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.read()

    def read(self) -> list[tuple[int, PickedDistance]]:
        """Return the distances in the file, each with the number of its line, counted from 1."""
        if not self.path.exists():
            return []
        return [
            (number, _parse(self.path, number, words))
            for number, line in enumerate(_read_lines(self.path), start=1)
            if (words := _split(line))
        ]

    def add(self, distance: PickedDistance) -> None:
        """Add a distance at the end."""
        values = (*distance.first_px, *distance.second_px)
        if not all(map(math.isfinite, values)):
            raise InputError("a picked point is not a number")
        if math.dist(distance.first_px, distance.second_px) < _LEAST_APART_PX:
            raise InputError("both points are at the same place: pick two that are apart")
        check_length(self.path, len(self._lines()) + 1, distance.length_mm, distance.sigma_mm)
        places = " ".join(f"{value:.2f}" for value in values)
        line = (
            f"{_to_word(distance.frame)} {places} {distance.length_mm:.6g} {distance.sigma_mm:.3g}"
        )
        self._write([*(self._lines() or [_HEADER.rstrip()]), line])

    def remove(self, number: int, distance: PickedDistance) -> None:
        """Remove a distance by the number of its line.

        Raises
        ------
        InputError
            If the file was changed and this line no longer holds this distance.
        """
        if (number, distance) not in self.read():
            raise InputError(f"{self.path} was changed meanwhile: nothing was removed")
        lines = self._lines()
        del lines[number - 1]
        self._write(lines)

    def _lines(self) -> list[str]:
        return _read_lines(self.path) if self.path.exists() else []

    def _write(self, lines: Iterable[str]) -> None:
        write_text(self.path, "".join(f"{line}\n" for line in lines))


# Lines


def _read_lines(path: Path) -> list[str]:
    return read_bytes(path).decode("utf-8-sig", errors="replace").splitlines()


def _split(line: str) -> list[str]:
    return line.partition("#")[0].replace(",", " ").split()


def _to_word(name: str) -> str:
    """Return a frame's name with '_' for characters that would split or end the line."""
    return re.sub(r"[\s,#]", "_", name)


def _parse(path: Path, number: int, words: Sequence[str]) -> PickedDistance:
    needed = "needs 'frame x1 y1 x2 y2 mm sigma'"
    for word in words[5:7]:
        if re.fullmatch(r"[0-9.+-]+(nm|um|µm|mm|cm|dm|m|in|inch|ft|\")", word, re.IGNORECASE):
            raise DataError(
                f"{path}: line {number}: {needed} with millimetres as plain numbers, found {word!r}"
            )
    try:
        frame, *numbers = words
        x1, y1, x2, y2, length, sigma = map(float, numbers)
        if not all(map(math.isfinite, (x1, y1, x2, y2))):
            raise ValueError
    except ValueError:
        raise DataError(f"{path}: line {number}: {needed}, found {' '.join(words)!r}") from None
    check_length(path, number, length, sigma)
    if (x1, y1) == (x2, y2):
        raise DataError(f"{path}: line {number}: both points are at ({x1:g}, {y1:g})")
    return PickedDistance(frame, (x1, y1), (x2, y2), length, sigma)
