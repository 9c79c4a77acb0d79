"""What a run over frames has done so far, in a folder or in memory, so that it can go on.

In a folder, one JSON file (focus.json, depth.json) holds the settings, what all frames have in
common, and an entry for each frame. It is written when a run begins and when it ends. In between,
each frame that is done adds one line to a journal beside it, so that the cost of keeping the record
grows with the number of frames and not with its square. A run that is killed leaves the journal;
the next run reads it.
"""

from __future__ import annotations

import json
import math
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar

from lifcal import __version__
from lifcal.distances import PICKED
from lifcal.errors import DataError
from lifcal.files import append_line, is_part, read_json, remove_parts, write_json

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from lifcal.arrays import Float32Array
    from lifcal.camera import MicroLensGrid

GRID = "grid.json"
VIGNETTING = "vignetting.tiff"
_LONGEST_VALUE = 60
"""Characters of a setting that a message shows."""


# Records of a frame and of what frames have in common


@dataclass(frozen=True)
class FrameEntry:
    """What is kept of a frame that is done, besides its images.

    Parameters
    ----------
    raw : str
        The file of the raw, as it was given.
    checksum : str
        Tells the raw's pixels from another's.
    bytes : int
        Size of all its images; another size means that one of them is cut off.
    known_share : float
        Share of the pixels whose depth is known.
    """

    raw: str
    checksum: str
    bytes: int
    known_share: float

    def as_dict(self) -> dict[str, Any]:
        """Return the entry as JSON files hold it."""
        return asdict(self)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """Read what `as_dict` returns; TypeError, KeyError or ValueError if it is not whole."""
        entry = cls(**{field.name: content[field.name] for field in fields(cls)})
        if not (isinstance(entry.known_share, float) and math.isfinite(entry.known_share)):
            raise ValueError("known_share is not a number")
        return entry


class RunSetup(Protocol):
    """What all frames of a run have in common."""

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON files hold it."""

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """Read what `as_dict` returns; TypeError, KeyError or ValueError if it is not whole."""


@dataclass(frozen=True, eq=False)
class SharedArrays:
    """Arrays that all frames of a run are made with; a run that goes on uses the same.

    Parameters
    ----------
    grid : MicroLensGrid
        The grid where the raws show it.
    vignetting : (height, width) float32 or None
        The mean over some raws; None if a white image or the grid's overlap discs give it.
    """

    grid: MicroLensGrid
    vignetting: Float32Array | None = None


def read_range(content: Mapping[str, Any]) -> tuple[float, float]:
    """Return the depth range of a record; TypeError, KeyError or ValueError if it is not whole."""
    low, high = content["depth_range"]
    if not (isinstance(low, float) and isinstance(high, float)):
        raise TypeError("depth_range is not two numbers")
    return low, high


S = TypeVar("S", bound=RunSetup)
E = TypeVar("E", bound=FrameEntry)


@dataclass(frozen=True)
class StoreFormat(Generic[S, E]):
    """How a kind of run keeps its record.

    Parameters
    ----------
    name : str
        File name of the record.
    header : mapping
        The first entries of the record: format and format_version.
    verb : str
        The command that writes it.
    files : tuple of str
        Settings that are check sums of files, given by options of these names.
    setup, entry : type
        The classes of what frames have in common and of the entry of a frame.
    """

    name: str
    header: Mapping[str, str]
    verb: str
    files: tuple[str, ...]
    setup: type[S]
    entry: type[E]


# Images of a frame


class FrameImages(Protocol):
    """Where the images of frames are kept, each by the name of its frame and its kind."""

    def save(self, name: str, images: Mapping[str, Any]) -> int:
        """Keep the images of a frame, in their order; return their size in bytes."""

    def load(self, name: str, kind: str) -> npt.NDArray[np.generic]:
        """Return an image as it is stored."""

    def measure(self, name: str) -> int:
        """Return the size of all images of a frame in bytes; -1 if one is missing."""


@dataclass(frozen=True)
class FolderImages:
    """Images in files. It holds paths only, so that it can travel to other processes.

    Parameters
    ----------
    folder : Path
    patterns : mapping of str to str
        For each kind, the file inside the folder, with {} for the frame's name. The last one is
        written last: a frame that has it is done.
    """

    folder: Path
    patterns: Mapping[str, str]

    def paths(self, name: str) -> dict[str, Path]:
        """Return the files of a frame, in the order in which they are written."""
        return {
            kind: self.folder / pattern.replace("{}", name)
            for kind, pattern in self.patterns.items()
        }

    def save(self, name: str, images: Mapping[str, Any]) -> int:
        """Write the images of a frame, each file whole or not at all."""
        writers = _list_writers()
        for kind, path in self.paths(name).items():
            writers[path.suffix](path, images[kind])
        return self.measure(name)

    def load(self, name: str, kind: str) -> npt.NDArray[np.generic]:
        """Read an image."""
        from lifcal.imaging.files import read_image

        return read_image(self.paths(name)[kind])

    def measure(self, name: str) -> int:
        """Return the size of all files of a frame; -1 if one is missing."""
        try:
            return sum(path.stat().st_size for path in self.paths(name).values())
        except OSError:
            return -1

    def remove_parts(self) -> None:
        """Remove incomplete images that killed processes left behind."""
        for place in {path.parent for path in self.paths("").values()}:
            remove_parts(place)


def _list_writers() -> dict[str, Callable[[Path, Any], None]]:
    from lifcal.imaging.files import write_float_tiff, write_png
    from lifcal.metric import write_cloud

    return {".png": write_png, ".tiff": write_float_tiff, ".ply": write_cloud}


class MemoryImages:
    """Images that stay in this process."""

    def __init__(self) -> None:
        self._held: dict[str, dict[str, Any]] = {}

    def save(self, name: str, images: Mapping[str, Any]) -> int:
        """Hold the images of a frame."""
        self._held[name] = dict(images)
        return self.measure(name)

    def load(self, name: str, kind: str) -> npt.NDArray[np.generic]:
        """Return an image."""
        image: npt.NDArray[np.generic] = self._held[name][kind]
        return image

    def measure(self, name: str) -> int:
        """Return the size of the images of a frame; -1 if it is not there."""
        if name not in self._held:
            return -1
        return sum(getattr(image, "nbytes", 0) for image in self._held[name].values())


# Stores


class FrameStore(ABC, Generic[S, E]):
    """The record of a run over frames and their images.

    Parameters
    ----------
    form : StoreFormat
    settings : mapping
        What the results depend on besides the raws.
    images : FrameImages
    """

    def __init__(
        self, form: StoreFormat[S, E], settings: Mapping[str, Any], images: FrameImages
    ) -> None:
        self.form = form
        self.settings = MappingProxyType(dict(settings))
        self.images = images
        self.setup: S | None = None
        """What the frames have in common; None before the first run has found it."""
        self.shared: SharedArrays | None = None
        self._entries: dict[str, E] = {}
        self._failed: dict[str, str] = {}

    @property
    def entries(self) -> Mapping[str, E]:
        """Frames that are done, by name."""
        return MappingProxyType(self._entries)

    @property
    def failed(self) -> Mapping[str, str]:
        """Why frames could not be used, by name."""
        return MappingProxyType(self._failed)

    def begin(self, setup: S, shared: SharedArrays) -> None:
        """Keep what all frames have in common, before the first one is made."""
        self.setup, self.shared = setup, shared

    def add(self, name: str, entry: E) -> None:
        """Note that a frame is done. Its images are there."""
        self._entries[name] = entry

    def update(self, name: str, entry: E) -> None:
        """Replace the entry of a frame that was done before; the record is written at the end."""
        self._entries[name] = entry

    def finish(self, names: Sequence[str], problems: Mapping[int, Exception]) -> None:
        """Put the frames in the order of `names`, and note those that failed, by their index."""
        order = {name: place for place, name in enumerate(names)}
        known = sorted(self._entries, key=lambda name: order.get(name, -1))
        self._entries = {name: self._entries[name] for name in known}
        self._failed = {names[index]: str(error) for index, error in sorted(problems.items())}

    @abstractmethod
    def flush(self) -> None:
        """Write what is known by now in one piece, where that is kept in files."""

    def as_dict(self) -> dict[str, Any]:
        """Return the record as its JSON file holds it."""
        return {
            **self.form.header,
            "lifcal_version": __version__,
            "settings": dict(self.settings),
            **({} if self.setup is None else self.setup.as_dict()),
            **({} if self.shared is None else {"shared": _digest_shared(self.shared)}),
            "frames": {name: entry.as_dict() for name, entry in self._entries.items()},
            "failed": dict(self._failed),
        }


class MemoryStore(FrameStore[S, E]):
    """A store that ends with the process."""

    def __init__(self, form: StoreFormat[S, E], settings: Mapping[str, Any]) -> None:
        super().__init__(form, settings, MemoryImages())

    def flush(self) -> None:
        """Do nothing: there is no file."""


class FolderStore(FrameStore[S, E]):
    """A store in a folder. Open one with `FolderStore.open`."""

    images: FolderImages

    def __init__(
        self, form: StoreFormat[S, E], settings: Mapping[str, Any], images: FolderImages
    ) -> None:
        super().__init__(form, settings, images)
        self.images = images
        self._written: dict[str, Any] = {}
        self._began = False

    @property
    def folder(self) -> Path:
        """Where it is."""
        return self.images.folder

    @property
    def path(self) -> Path:
        """The record."""
        return self.folder / self.form.name

    @property
    def _journal(self) -> Path:
        return self.path.with_suffix(".journal")

    @classmethod
    def open(
        cls,
        form: StoreFormat[S, E],
        folder: Path,
        settings: Mapping[str, Any],
        patterns: Mapping[str, str],
    ) -> FolderStore[S, E]:
        """Read what is there; raise DataError if the folder holds something else."""
        store = cls(form, settings, FolderImages(folder, patterns))
        try:
            if folder.exists() and not folder.is_dir():
                raise DataError(f"{folder}: is a file, needs a folder")
            # A run that failed before its first frame left a report; picked distances may lie here.
            left = () if (folder / "camera.json").exists() else ("summary.json", "report.html")
            used = folder.exists() and not all(
                is_part(path) or path.name in (*left, PICKED) for path in folder.iterdir()
            )
            known = store.path.exists()
        except OSError as error:
            raise DataError(f"{folder}: cannot use this folder: {error.strerror}") from error
        if not known:
            if used:
                raise DataError(
                    f"{folder}: is not empty, and no run of this command has written there (no "
                    f"{form.name}). Choose another folder"
                )
            remove_parts(folder)
            return store
        try:
            content = read_json(store.path)
        except DataError as error:
            raise DataError(f"{error}. Choose another folder, or remove this one") from None
        store._check_same(content)
        store._take_over(content)
        remove_parts(folder)
        store.images.remove_parts()
        return store

    def _check_same(self, content: Mapping[str, Any]) -> None:
        """Raise DataError if the record is of another run."""
        form, made = self.form, content.get("settings")
        if content.get("format") != form.header["format"] or not isinstance(made, dict):
            raise DataError(f"{self.path}: not written by {form.verb}. Choose another folder")
        old = {"lifcal_version": content.get("lifcal_version"), **made}
        new = {"lifcal_version": __version__, **self.settings}
        differences = list_differences(old, new, form.files)
        if differences:
            raise DataError(
                f"{self.folder}: was made with other settings ({'; '.join(differences)}). Choose "
                "another folder, or remove this one"
            )

    def _take_over(self, content: dict[str, Any]) -> None:
        """Take over what the run before has done."""
        try:
            setup = self.form.setup.from_dict(content)
            frames = {**content["frames"], **dict(self._read_journal())}
            self._entries = {
                name: self.form.entry.from_dict(entry) for name, entry in frames.items()
            }
            self._failed = dict(content.get("failed", {}))
        except (TypeError, KeyError, ValueError, AttributeError, DataError):
            raise DataError(f"{self.path}: was changed or damaged. Choose another folder") from None
        self._written = content
        if not (self.folder / GRID).exists() and self._expects_grid(content):
            return  # the run before was killed while it began: begin anew
        self.setup, self.shared = setup, self._read_shared(content)

    @staticmethod
    def _expects_grid(content: Mapping[str, Any]) -> bool:
        return "shared" in content or "grid" in content

    def _read_shared(self, content: Mapping[str, Any]) -> SharedArrays | None:
        """Return the arrays of the run before; None for a folder that does not keep them."""
        from lifcal.camera import read_grid
        from lifcal.imaging.files import read_image

        # Records of earlier versions hold the check sum of the grid with its figures.
        sums = content.get("shared", {"grid": (content.get("grid") or {}).get("checksum")})
        if sums.get("grid") is None:
            return None
        grid, vignetting = read_grid(self.folder / GRID), None
        self._check_sum(GRID, digest_grid(grid), sums["grid"], ", and give the grid by --grid")
        if sums.get("vignetting") is not None:
            vignetting = read_image(self.folder / VIGNETTING).astype("float32", copy=False)
            self._check_sum(VIGNETTING, _digest_array(vignetting), sums["vignetting"])
        return SharedArrays(grid, vignetting)

    def _check_sum(self, name: str, found: str, expected: str, hint: str = "") -> None:
        if found != expected:
            raise DataError(
                f"{self.folder / name}: was changed after {self.form.name} was written. Choose "
                f"another folder{hint}"
            )

    def _read_journal(self) -> list[tuple[str, dict[str, Any]]]:
        """Return the frames that a run which was killed had done."""
        try:
            lines = self._journal.read_bytes().split(b"\n")
        except FileNotFoundError:
            return []
        except OSError as error:
            raise DataError(f"{self._journal}: cannot read: {error.strerror}") from error
        # What follows the last line end is a line that was not finished.
        found = [json.loads(line) for line in lines[:-1]]
        return [(entry.pop("name"), entry) for entry in found]

    def begin(self, setup: S, shared: SharedArrays) -> None:
        """Write what all frames have in common, unless it is there."""
        from lifcal.camera import write_grid
        from lifcal.imaging.files import write_float_tiff

        self._began = self.setup is None
        same = self.shared is not None
        super().begin(setup, shared)
        self.flush()
        if not same:
            if shared.vignetting is not None:
                write_float_tiff(self.folder / VIGNETTING, shared.vignetting)
            write_grid(self.folder / GRID, shared.grid)

    def add(self, name: str, entry: E) -> None:
        """Note that a frame is done: one more line in the journal."""
        append_line(self._journal, json.dumps({"name": name, **entry.as_dict()}))
        super().add(name, entry)

    def flush(self) -> None:
        """Write the record if it is not there like this, and end the journal."""
        content = self.as_dict()
        # JSON has lists and no tuples: what is compared must have gone through it.
        if json.dumps(content) != json.dumps(self._written):
            write_json(self.path, content)
            self._written = content
        self._journal.unlink(missing_ok=True)

    def finish(self, names: Sequence[str], problems: Mapping[int, Exception]) -> None:
        """Write the record; if this run began it and no frame is done, leave nothing behind."""
        super().finish(names, problems)
        if self._entries:
            self.flush()
        elif self._began:
            for name in (self.form.name, GRID, VIGNETTING):
                (self.folder / name).unlink(missing_ok=True)
        with suppress(OSError):  # the results are complete without it
            self.images.remove_parts()


def digest_grid(grid: MicroLensGrid) -> str:
    """Return what tells a grid from another."""
    from lifcal.camera.camera_file import grid_to_dict

    text = json.dumps(grid_to_dict(grid), sort_keys=True)
    return f"{zlib.crc32(text.encode()):08x}"


def _digest_array(array: Float32Array) -> str:
    return f"{zlib.crc32(array.tobytes()):08x}"


def _digest_shared(shared: SharedArrays) -> dict[str, str | None]:
    vignetting = shared.vignetting
    return {
        "grid": digest_grid(shared.grid),
        "vignetting": None if vignetting is None else _digest_array(vignetting),
    }


def list_differences(
    old: Mapping[str, Any], new: Mapping[str, Any], files: Sequence[str] = ()
) -> list[str]:
    """Return in words which settings differ.

    Parameters
    ----------
    old, new : mapping
        Settings by name. Mappings inside are compared entry by entry, and their names are joined by
        dots.
    files : sequence of str
        Settings that are check sums of files, given by options of these names.
    """
    found: list[str] = []
    for key, value in new.items():
        was = old.get(key)
        if was == value:
            continue
        if isinstance(value, Mapping) and isinstance(was, Mapping):
            before, after = (
                {f"{key}.{name}": part[name] for name in part} for part in (was, value)
            )
            found += list_differences(before, after)
        elif key not in files:
            found.append(f"{key} was {_say(was)}, is {_say(value)}")
        elif value is None or was is None:
            found.append(f"{'with' if value is None else 'without'} --{key}")
        else:
            found.append(f"another --{key} file")
    return found


def _say(value: Any) -> str:
    """Return a setting in words."""
    if value is None:
        return "not given"
    text = " to ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 3]}..."
