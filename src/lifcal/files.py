"""Reading files with clear errors, and writing them atomically: whole or not at all."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from lifcal.errors import DataError

_PART = ".lifcal-part"
"""Suffix of the names of files that are still being written."""


def write_bytes(path: Path, content: bytes) -> None:
    """Write `content` to `path` atomically: afterwards the file is complete, or as it was before.

    The bytes go to a temporary file in the same folder, which is then renamed.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(_PART, f".{path.name}.", path.parent)
    except OSError as error:
        raise DataError(f"{path}: cannot write: {error.strerror}") from error
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())  # without it, a power cut could leave an empty file
        # mkstemp makes files private; give the permissions that open() would have given.
        umask = os.umask(0)
        os.umask(umask)
        Path(name).chmod(0o666 & ~umask)
        Path(name).replace(path)
    except BaseException as error:
        Path(name).unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise DataError(f"{path}: cannot write: {error.strerror}") from error
        raise


def is_part(path: Path) -> bool:
    """Tell whether this is a temporary file that an interrupted `write_bytes` left behind."""
    return path.name.startswith(".") and path.name.endswith(_PART)


def make_part_path(folder: Path, name: str) -> Path:
    """Return a path for a file that only the current run needs; `remove_parts` removes it."""
    return folder / f".{name}{_PART}"


def remove_parts(folder: Path) -> None:
    """Remove temporary files from a folder, also those that killed runs left there."""
    for part in folder.glob(f".*{_PART}"):
        part.unlink(missing_ok=True)


@contextmanager
def hold_folder(folder: Path) -> Iterator[None]:
    """Create a folder and lock it against other runs; afterwards remove it if it is still empty.

    The operating system releases the lock when the process ends, for whatever reason. Where folders
    cannot be locked (Windows, some network drives), other runs are not kept out.

    Raises
    ------
    DataError
        If another run uses the folder, or if it cannot be made.
    """
    check_writable(folder)
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = _lock(folder)
    except OSError as error:
        raise DataError(f"{folder}: cannot write: {error.strerror}") from error
    try:
        yield
    finally:
        if handle is not None:
            os.close(handle)
        for place in missing:
            with suppress(OSError):
                place.rmdir()


def _lock(folder: Path) -> int | None:
    """Return a file handle that holds a lock as long as it is open."""
    try:
        import fcntl
    except ImportError:
        return None
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise DataError(f"{folder}: another run is writing there") from None
    except OSError:  # this file system has no locks
        pass
    return handle


def check_writable(folder: Path) -> None:
    """Raise DataError if a folder cannot be made, or nothing can be written there."""
    place = folder
    try:
        while not place.exists() and place != place.parent:
            place = place.parent
        if not place.is_dir():
            raise DataError(f"{place}: is a file, needs a folder")
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        raise DataError(f"{folder}: cannot write: {error.strerror}") from error


def write_text(path: Path, content: str) -> None:
    """Write `content` as UTF-8 with Unix line ends, whole or not at all."""
    write_bytes(path, content.encode("utf-8"))


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write `content` as indented JSON, whole or not at all."""
    write_text(path, json.dumps(content, indent=2, allow_nan=False) + "\n")


def append_line(path: Path, line: str) -> None:
    """Add a line to a file, and wait until it is on the disk.

    A run that is killed can leave an incomplete last line; readers must ignore it.
    """
    try:
        with path.open("ab") as stream:
            stream.write(f"{line}\n".encode())
            stream.flush()
            os.fsync(stream.fileno())
    except OSError as error:
        raise DataError(f"{path}: cannot write: {error.strerror}") from error


def read_bytes(path: Path, *, limit: int = 1 << 28, name: Path | None = None) -> bytes:
    """Return the content of the file `path`. Error messages call it `name` if that is given.

    Raises
    ------
    DataError
        If the file is missing, unreadable, or longer than `limit` bytes.
    """
    name = path if name is None else name
    try:
        if path.is_dir():
            raise DataError(f"{name}: is a folder, needs a file")
        size = path.stat().st_size
        if size > limit:
            raise DataError(f"{name}: {size} bytes; a file of this kind has at most {limit}")
        return path.read_bytes()
    except FileNotFoundError:
        raise DataError(f"{name}: no such file") from None
    except OSError as error:
        raise DataError(f"{name}: cannot read: {error.strerror}") from error


def read_json(path: Path, *, limit: int = 1 << 28) -> dict[str, Any]:
    """Return the JSON object in `path`; a DataError names line and column of a syntax error."""
    content = read_bytes(path, limit=limit)
    try:
        value = json.loads(content)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise DataError(f"{path}: not valid JSON at {place}: {error.msg}") from None
    except (ValueError, RecursionError) as error:  # not UTF-8, endless digits, endless nesting
        raise DataError(f"{path}: not valid JSON: {str(error)[:100]}") from None
    if not isinstance(value, dict):
        raise DataError(f"{path}: holds a JSON {type(value).__name__}, needs an object")
    return value


def digest_files(sources: Mapping[str, Path | None]) -> dict[str, str | None]:
    """Return a hash of each file's content, by which changes are noticed; None stays None."""
    return {
        key: None
        if path is None
        else hashlib.sha256(read_bytes(path, limit=1 << 30)).hexdigest()[:16]
        for key, path in sources.items()
    }


def make_file_names(names: Sequence[str]) -> list[str]:
    """Return names with white space replaced by underscores.

    Words are separated by white space in the text files that list the frames.
    """
    found = [re.sub(r"\s", "_", name) for name in names]
    if len(set(found)) < len(found):
        twice = next(name for name in found if found.count(name) > 1)
        raise DataError(f"two frames would have the same file name {twice}; rename one of them")
    return found


def make_plain(value: Any) -> Any:
    """Return a value as plain JSON types; NaN and infinity become null, other types text."""
    if value is None or isinstance(value, bool | str | int):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): make_plain(entry) for key, entry in value.items()}
    if hasattr(value, "tolist"):  # NumPy's arrays and numbers; NumPy itself is slow to import
        return make_plain(value.tolist())
    if isinstance(value, list | tuple):
        return [make_plain(entry) for entry in value]
    return str(value)
