"""The file in which a run over frames notes what it did, so that the same command can go on."""

from __future__ import annotations

import copy
import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from lifcal import __version__
from lifcal.errors import DataError
from lifcal.files import is_part, read_json, remove_parts, write_json

if TYPE_CHECKING:
    from lifcal.pipeline.focusing import UsableFrames


@dataclass(eq=False)
class RunRecord(ABC):
    """A record, from the run before or new. Each kind of run has its own class."""

    NAME: ClassVar[str]
    """Of the file."""
    FORMAT: ClassVar[dict[str, str]]
    VERB: ClassVar[str]
    FILES: ClassVar[tuple[str, ...]]
    """Settings that are check sums of files given by options of these names."""
    START: ClassVar[dict[str, Any]]
    """What a new record holds besides settings and frames."""

    folder: Path
    content: dict[str, Any]
    _written: str = ""

    @classmethod
    def open(cls, folder: Path, settings: dict[str, Any]) -> Self:
        """Read what is there; raise DataError if the folder holds something else."""
        try:
            if folder.exists() and not folder.is_dir():
                raise DataError(f"{folder}: is a file, needs a folder")
            used = folder.exists() and not all(map(is_part, folder.iterdir()))
            known = (folder / cls.NAME).exists()
        except OSError as error:
            raise DataError(f"{folder}: cannot use this folder: {error.strerror}") from error
        new: dict[str, Any] = {**cls.FORMAT, "lifcal_version": __version__, "settings": settings}
        new |= copy.deepcopy(cls.START)
        if not known:
            if used:
                raise DataError(
                    f"{folder}: is not empty and holds no {cls.NAME}. Choose another folder"
                )
            remove_parts(folder)
            return cls(folder, {**new, "frames": {}, "failed": {}})
        try:
            content = read_json(folder / cls.NAME)
        except DataError as error:
            raise DataError(f"{error}. Choose another folder, or remove this one") from None
        cls._check_same(folder, content, settings)
        found = cls(folder, {**new, **content}, json.dumps(content))
        for place in {folder, *(path.parent for path in found.paths("").values())}:
            remove_parts(place)
        return found

    @classmethod
    def _check_same(cls, folder: Path, content: dict[str, Any], settings: dict[str, Any]) -> None:
        """Raise DataError if the record is of another run."""
        path, made = folder / cls.NAME, content.get("settings")
        if content.get("format") != cls.FORMAT["format"] or not isinstance(made, dict):
            raise DataError(f"{path}: not written by {cls.VERB}. Choose another folder")
        if not cls.is_whole(content):
            raise DataError(f"{path}: was changed or damaged. Choose another folder")
        old = {"lifcal_version": content.get("lifcal_version"), **made}
        for key, value in {"lifcal_version": __version__, **settings}.items():
            if old.get(key) == value:
                continue
            if key not in cls.FILES:
                difference = f"{key} was {_say(old.get(key))}, is {_say(value)}"
            elif value is None or old.get(key) is None:
                difference = f"{'with' if value is None else 'without'} --{key}"
            else:
                difference = f"another --{key} file"
            raise DataError(
                f"{folder}: was made with other settings ({difference}). Choose another folder, or "
                "remove this one"
            )

    @classmethod
    def is_whole(cls, content: dict[str, Any]) -> bool:
        """Tell whether what a run takes over from the one before is there and of its type."""
        frames, ends = content.get("frames"), content.get("depth_range")
        findings = content.get("findings")
        return (
            isinstance(findings, list)
            and all(isinstance(entry, dict) for entry in findings)
            and isinstance(frames, dict)
            and all(
                isinstance(entry, dict) and isinstance(entry.get("known_share"), float)
                for entry in frames.values()
            )
            and isinstance(ends, list)
            and len(ends) == 2
            and all(isinstance(end, float) for end in ends)
        )

    @abstractmethod
    def paths(self, name: str) -> dict[str, Path]:
        """Return the files of a frame, in the order in which they are written."""

    def has(self, name: str, checksum: str) -> bool:
        """Tell whether a frame is done; raise DataError if that was another raw's."""
        entry = self.content["frames"].get(name)
        if entry is None:
            return False
        if entry.get("checksum") != checksum:
            raise DataError(
                f"{self.folder}: {name} is there already, made from another raw. Choose another "
                "folder, or remove this one"
            )
        return bool(entry.get("bytes") == self.measure(name))

    def measure(self, name: str) -> int:
        """Return the size of all files of a frame; -1 if one is missing."""
        try:
            return sum(path.stat().st_size for path in self.paths(name).values())
        except OSError:
            return -1

    def write(self) -> None:
        """Write the file, if it is not there like this."""
        text = json.dumps(self.content)
        if text != self._written:
            write_json(self.folder / self.NAME, self.content)
            self._written = text

    def finish(self, usable: UsableFrames, names: Sequence[str]) -> None:
        """Put the frames in order, add those that failed, and write if any frame is there."""
        order = {name: place for place, name in enumerate(names)}
        entries = self.content["frames"]
        self.content["frames"] = {
            name: entries[name] for name in sorted(entries, key=lambda name: order.get(name, -1))
        }
        self.content["failed"] = {
            names[index]: str(problem) for index, problem in sorted(usable.problems.items())
        }
        if entries:
            self.write()


def _say(value: Any) -> str:
    """Return a setting in words."""
    if value is None:
        return "not given"
    return " to ".join(map(str, value)) if isinstance(value, list) else str(value)
