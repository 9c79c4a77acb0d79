"""Which files a recording is made of. Nothing is opened, and nothing heavy is imported."""

from __future__ import annotations

import glob
import re
from collections.abc import Sequence
from pathlib import Path

from lifcal.errors import DataError, InputError

IMAGE_SUFFIXES = (".png", ".tif", ".tiff", ".bmp", ".jpg", ".jpeg")
VIDEO_SUFFIXES = (".avi", ".mp4", ".mkv", ".mov", ".m4v", ".mpg", ".mpeg", ".wmv", ".webm")


def list_files(sources: str | Path | Sequence[str | Path]) -> list[Path]:
    """Return the images and videos that paths and globs stand for.

    Parameters
    ----------
    sources : path, glob, or sequence of them
        Folders (their images, not those of folders inside), globs, images and videos. Images of a
        folder or glob are sorted by name as people do: 2 before 10. A list keeps its order.

    Raises
    ------
    DataError
        If something does not exist, or there is no image in a folder.
    """
    given = [sources] if isinstance(sources, str | Path) else list(sources)
    if not given:
        raise InputError("no frames were given: needs a folder, files or a video")
    files: list[Path] = []
    for item in given:
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
            files += sorted(inside, key=natural_key)
        elif path.exists():
            files.append(path)
        elif glob.has_magic(str(item)):
            found = [Path(name) for name in glob.glob(str(item), recursive=True)]  # noqa: PTH207
            found = [file for file in found if file.is_file()]
            if not found:
                raise DataError(f"{item}: no file matches")
            files += sorted(found, key=natural_key)
        else:
            raise DataError(f"{path}: no such file or folder")
    return files


def check_files(*paths: str | Path | None) -> None:
    """Raise DataError if a file is not there; None stands for one that was not given."""
    for path in paths:
        if path is not None and not Path(path).exists():
            raise DataError(f"{path}: no such file")


def check_folder(path: str | Path, made_by: str) -> None:
    """Raise DataError if a folder is not there; `made_by` is the command that makes it."""
    if not Path(path).exists():
        raise DataError(f"{path}: no such folder; needs one that {made_by} wrote")


def natural_key(path: Path) -> list[tuple[int, int, str]]:
    """Return a sort key by which 2 comes before 10."""
    parts = re.split(r"(\d+)", str(path))
    return [(1, int(part), "") if part.isdecimal() else (0, 0, part.lower()) for part in parts]
