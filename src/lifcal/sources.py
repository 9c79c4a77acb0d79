"""Lists the files that make up a recording. It opens no file, and importing it is fast."""

from __future__ import annotations

import glob
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lifcal.errors import DataError, InputError

IMAGE_SUFFIXES = (".png", ".tif", ".tiff", ".bmp", ".jpg", ".jpeg")
VIDEO_SUFFIXES = (".avi", ".mp4", ".mkv", ".mov", ".m4v", ".mpg", ".mpeg", ".wmv", ".webm")


@dataclass(frozen=True)
class Recording:
    """Files that show one scene.

    Parameters
    ----------
    name : str
        What it is called in messages: the path or glob that was given.
    files : tuple of Path
    """

    name: str
    files: tuple[Path, ...]


def list_files(sources: str | Path | Sequence[str | Path]) -> list[Path]:
    """Return the images and videos that paths and globs stand for.

    Parameters
    ----------
    sources : path, glob, or sequence of them
        Folders (their images, not those of folders inside), globs, images and videos. Images of a
        folder or glob are sorted by name in natural order (2 before 10). A list keeps its order.

    Raises
    ------
    DataError
        If something does not exist, or there is no image in a folder.
    """
    given = [sources] if isinstance(sources, str | Path) else list(sources)
    if not given:
        raise InputError("no frames were given: needs a folder, files or a video")
    return [file for item in given for file in _list_item(item)]


def list_recordings(
    sources: str | Path | Sequence[str | Path | Sequence[str | Path]],
) -> list[Recording]:
    """Return the recordings that paths and globs stand for.

    Each folder, glob and video is a recording of its own. Single images belong to the recording of
    their folder. A list inside the list is one recording, whatever it holds.

    Raises
    ------
    DataError
        If something does not exist, or there is no image in a folder.
    """
    given = [sources] if isinstance(sources, str | Path) else list(sources)
    if not given:
        raise InputError("no frames were given: needs a folder, files or a video")
    found: dict[str, list[Path]] = {}
    for number, item in enumerate(given):
        if not isinstance(item, str | Path):
            found[f"recording {number + 1}"] = list_files(item)
            continue
        files = _list_item(item)
        name = str(item)
        if Path(item).is_file() and Path(item).suffix.lower() not in VIDEO_SUFFIXES:
            name = str(Path(item).parent)
        found.setdefault(name, []).extend(files)
    return [Recording(name, tuple(files)) for name, files in found.items()]


def _list_item(item: str | Path) -> list[Path]:
    """Return the files of one path or glob."""
    path = Path(item)
    if path.is_dir():
        inside = [
            file
            for file in path.iterdir()
            if file.suffix.lower() in (*IMAGE_SUFFIXES, *VIDEO_SUFFIXES)
            and not file.name.startswith(".")
            and file.is_file()
        ]
        if not inside:
            raise DataError(f"{path}: no images in this folder ({', '.join(IMAGE_SUFFIXES)})")
        return sorted(inside, key=natural_key)
    if path.exists():
        return [path]
    if glob.has_magic(str(item)):
        found = [Path(name) for name in glob.glob(str(item), recursive=True)]  # noqa: PTH207
        found = [file for file in found if file.is_file()]
        if not found:
            raise DataError(f"{item}: no file matches")
        return sorted(found, key=natural_key)
    raise DataError(f"{path}: no such file or folder")


def check_files(*paths: str | Path | None) -> None:
    """Raise DataError if a file does not exist; a path that was not given (None) is skipped."""
    for path in paths:
        if path is not None and not Path(path).exists():
            raise DataError(f"{path}: no such file")


def check_folder(path: str | Path, made_by: str) -> None:
    """Raise DataError if a path is not a folder; `made_by` is the command that makes it."""
    if not Path(path).exists():
        raise DataError(f"{path}: no such folder; needs one that {made_by} wrote")
    if not Path(path).is_dir():
        raise DataError(f"{path}: is a file; needs the folder that {made_by} wrote")


def natural_key(path: Path) -> list[tuple[int, int, str]]:
    """Return a sort key by which 2 comes before 10."""
    parts = re.split(r"(\d+)", str(path))
    return [(1, int(part), "") if part.isdecimal() else (0, 0, part.lower()) for part in parts]
