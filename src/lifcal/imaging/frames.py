"""Raw frames from folders, globs, lists of files and videos, read one at a time.

Pixel values are taken to be linear in brightness. They are scaled so that full scale is 1; in
16-bit files, full scale is that of the 10, 12, 14 or 16 bits that are used. A Bayer mosaic is
interpolated bilinearly: every color comes from its nearest pixels with symmetric weights, so that
nothing is shifted. Luminance is a weighted sum of the colors.
"""

from __future__ import annotations

import filecmp
import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from lifcal.arrays import Float32Array
from lifcal.errors import ConfigError, DataError, InputError
from lifcal.files import read_bytes
from lifcal.image_headers import ImageHeader, read_header
from lifcal.imaging.files import decode_image
from lifcal.sources import VIDEO_SUFFIXES, list_recordings

BAYER = {
    "rggb": cv2.COLOR_BayerBG2RGB,  # OpenCV's names begin at the pattern's second row and column
    "grbg": cv2.COLOR_BayerGB2RGB,
    "gbrg": cv2.COLOR_BayerGR2RGB,
    "bggr": cv2.COLOR_BayerRG2RGB,
}
LUMINANCE = (0.299, 0.587, 0.114)
_BLACK = {8: 2.5, 16: 65.0}
"""Stored value below which an image counts as black, for files of 8 and of 16 bits."""
_SATURATED = 0.5
_MOSAIC = 0.04
"""If the means over the four pixel positions of a 2 x 2 block differ by more than this fraction of
the overall mean, the image is a color mosaic."""
_HEADER_BYTES = 1 << 17
_FRAMES_FOR_SCALE = 5
_MOST_SKIPPED = 300
"""Largest number of frames of a video that are decoded and dropped to reach a later one. Seeking
would start from the last key frame, up to about this many frames before, and with some codecs it
ends at a wrong frame."""


@dataclass(frozen=True, eq=False)
class Frame:
    """One raw frame.

    Parameters
    ----------
    name : str
        Name of the file without folder and suffix.
    source : str
        The file, for messages.
    gray : (height, width) float32
        Luminance, 0 to 1 of the file's full scale.
    color : (height, width, 3) float32 or None
        Red, green, blue; None for a mono frame.
    bits : int
        Bits per channel of the file, 8 or 16.
    saturated : float
        Share of the pixels at full scale.
    bayer : str or None
        The color mosaic that the frame was interpolated from.
    """

    name: str
    source: str
    gray: Float32Array
    color: Float32Array | None
    bits: int
    saturated: float
    bayer: str | None = None

    @property
    def image_size(self) -> tuple[int, int]:
        """Width and height."""
        return self.gray.shape[1], self.gray.shape[0]


class Frames:
    """A sequence of frames, each of which is read from its file on demand. See `open_frames`.

    Size and bit depth are those of the majority of the frames; `read` raises an error for a frame
    that differs.
    """

    def __init__(self, files: Sequence[Path], bayer: str | None = None) -> None:
        self.bayer = _check_bayer(bayer)
        self._root = Path()
        """Folder that relative paths start from. After unpickling, it is the working folder of the
        process that wrote the pickle."""
        self._places: list[tuple[Path, int]] = []
        self._videos: dict[Path, _Video] = {}
        for file in files:
            if file.suffix.lower() in VIDEO_SUFFIXES:
                self._videos[file] = _Video(file)
                self._places += [(file, index) for index in range(len(self._videos[file]))]
            else:
                self._places.append((file, -1))
        self.names: tuple[str, ...] = _make_names(self._places)
        self.recordings: tuple[int, ...] = (0,) * len(self._places)
        """Number of the recording of each frame; each recording shows a scene of its own."""
        self.recording_names: tuple[str, ...] = ("recording 1",)

    def __len__(self) -> int:
        return len(self._places)

    def source(self, index: int) -> str:
        """Return the file of a frame, for messages."""
        path, number = self._places[index]
        return str(path) if number < 0 else f"{path}, frame {number}"

    def select(self, indices: Sequence[int]) -> Frames:
        """Return some of the frames."""
        chosen = object.__new__(type(self))
        vars(chosen).update(vars(self))
        vars(chosen)["full_scale"] = self.full_scale  # so that brightness stays the same
        vars(chosen).pop("_expected", None)
        vars(chosen).pop("image_size", None)
        chosen._places = [self._places[index] for index in indices]
        chosen.names = tuple(self.names[index] for index in indices)
        chosen.recordings = tuple(self.recordings[index] for index in indices)
        return chosen

    def divide(self, counts: Sequence[int], names: Sequence[str]) -> None:
        """Note that the frames are of several recordings, with so many frames each, in order."""
        if sum(counts) != len(self) or len(names) != len(counts):
            raise InputError(f"recordings of {sum(counts)} frames, there are {len(self)}")
        self.recordings = tuple(i for i, count in enumerate(counts) for _ in range(count))
        self.recording_names = tuple(names)

    def members(self, recording: int) -> list[int]:
        """Return the indices of the frames of a recording."""
        return [index for index, number in enumerate(self.recordings) if number == recording]

    def check_alike(self) -> None:
        """Raise DataError if recordings differ in image size or bit depth."""
        if len(set(self.recordings)) < 2:
            return
        found = {
            number: self.select(self.members(number))._expected
            for number in sorted(set(self.recordings))
        }
        first, *others = found
        for number in others:
            if found[number] == found[first]:
                continue
            ours, theirs = ("{} x {} px of {} bit".format(*found[i]) for i in (number, first))
            raise DataError(
                f"{self.recording_names[number]}: frames of {ours}, but "
                f"{self.recording_names[first]} has {theirs}: recordings of one camera have one "
                "image size and one bit depth. Calibrate them apart"
            )

    @cached_property
    def image_size(self) -> tuple[int, int]:
        """Width and height of most of the frames."""
        return self._expected[:2]

    @cached_property
    def _expected(self) -> tuple[int, int, int]:
        """Width, height and bits of most of the frames, from their headers."""
        found = []
        for path, number in self._places:
            if number >= 0:
                found.append((*self._videos[path].image_size, 8))
                continue
            header = _peek(path)
            if header is not None and header.width > 0:
                found.append((header.width, header.height, header.bits))
        if not found:
            raise DataError(f"{self.source(0)}: not an image, and no other frame is one")
        return Counter(found).most_common(1)[0][0]

    @cached_property
    def full_scale(self) -> int:
        """Stored value of white. For 16-bit files it is computed from the brightest pixel of some
        frames (`find_full_scale`).
        """
        if self._expected[2] == 8:
            return 255
        brightest = 0
        step = -(-len(self) // _FRAMES_FOR_SCALE)
        for index in range(0, len(self), step):
            with suppress(DataError):
                stored = self._read_stored(index)
                # Frames that will be refused do not count: those of another bit depth, and those
                # that are blank or saturated.
                top = stored.max()
                if stored.dtype.itemsize == 2 and np.mean(stored == top) < _SATURATED:
                    brightest = max(brightest, int(top))
        return find_full_scale(brightest, 16)

    @property
    def has_video(self) -> bool:
        """Whether some of the frames come from a video."""
        return any(number >= 0 for _, number in self._places)

    def check_not_among(self, path: Path) -> None:
        """Raise InputError if a file that is to be written is one of those that are read."""
        wanted = path.resolve()
        if any(place.resolve() == wanted for place, _ in self._places):
            raise InputError(f"{path}: is one of the images given; write somewhere else")

    @property
    def in_memory(self) -> bool:
        """Whether the frames are arrays of this process, which no other process can open."""
        return False

    def __getstate__(self) -> dict[str, Any]:
        """Return what another process needs to open the same files: paths, but no pixels.

        The size and the full scale that this process found are included, so that both processes
        read equal frames.
        """
        expected, full_scale = self._expected, self.full_scale
        return {
            **vars(self),
            "_expected": expected,
            "full_scale": full_scale,
            "_root": self._root.absolute(),
            "_videos": list(self._videos),
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Open the videos again; images are opened when they are read."""
        vars(self).update(state)
        self._videos = {path: _Video(path, self._root) for path in state["_videos"]}

    def _read_stored(self, index: int) -> npt.NDArray[np.generic]:
        path, number = self._places[index]
        return self._videos[path].read(number) if number >= 0 else _read(path, self._root)

    def read(self, index: int) -> Frame:
        """Return a frame.

        Raises
        ------
        DataError
            If the file is missing, no image, cut off, of another size or bit depth than most of
            the frames, black, or saturated in more than half of its pixels.
        """
        source = self.source(index)
        stored = self._read_stored(index)
        height, width = stored.shape[:2]
        bits = stored.dtype.itemsize * 8
        expected = self._expected
        if (width, height) != expected[:2]:
            raise DataError(
                f"{source}: {width} x {height} px, but the other frames have "
                f"{expected[0]} x {expected[1]} px"
            )
        if bits != expected[2]:
            raise DataError(f"{source}: {bits} bit, but the other frames have {expected[2]} bit")
        return make_frame(stored, self.names[index], source, self.bayer, self.full_scale)


class ArrayFrames(Frames):
    """Frames that are arrays in memory. Only the process that has them can read them.

    Parameters
    ----------
    arrays : sequence of (height, width) or (height, width, 3) uint8 or uint16
        Pixels as a file would store them: gray, a Bayer mosaic, or red, green, blue.
    names : sequence of str, optional
        The name of each frame, for messages and results. Frames without names are numbered.
    bayer : str or None
        'rggb', 'grbg', 'gbrg' or 'bggr' for raws with a color mosaic.
    """

    def __init__(
        self,
        arrays: Sequence[npt.NDArray[np.generic]],
        names: Sequence[str] | None = None,
        bayer: str | None = None,
    ) -> None:
        if not len(arrays):
            raise InputError("no frames were given: needs at least one array")
        names = [str(index) for index in range(len(arrays))] if names is None else list(names)
        if len(names) != len(arrays) or len(set(names)) < len(names):
            raise InputError(f"{len(set(names))} different names for {len(arrays)} frames")
        super().__init__([Path(name) for name in names], bayer)
        self.names = tuple(names)
        self._arrays = {Path(name): np.asarray(a) for name, a in zip(names, arrays, strict=True)}

    @property
    def in_memory(self) -> bool:
        """Whether the frames are arrays of this process, which no other process can open."""
        return True

    @cached_property
    def _expected(self) -> tuple[int, int, int]:
        """Width, height and bits of most of the frames."""
        found = [
            (array.shape[1], array.shape[0], array.dtype.itemsize * 8)
            for array in (self._arrays[path] for path, _ in self._places)
            if array.ndim in (2, 3)
        ]
        if not found:
            raise DataError(f"{self.source(0)}: not an image, and no other frame is one")
        return Counter(found).most_common(1)[0][0]

    def __getstate__(self) -> dict[str, Any]:
        raise InputError("frames in memory cannot be handed to another process")

    def _read_stored(self, index: int) -> npt.NDArray[np.generic]:
        array = self._arrays[self._places[index][0]]
        if array.ndim not in (2, 3):
            raise DataError(f"{self.source(index)}: {array.ndim} dimensions, needs 2 or 3")
        return array


def open_frames(
    sources: str | Path | Sequence[str | Path | Sequence[str | Path]],
    *,
    bayer: str | None = None,
    white: str | Path | None = None,
) -> Frames:
    """Open raw frames.

    Parameters
    ----------
    sources : path, glob, or sequence of them
        Folders (their images, not those of folders inside), globs, images and videos. Images of a
        folder or glob are sorted by name in natural order (2 before 10). A list keeps its order.
        Each folder, glob and video is a recording of its own, single images belong to that of their
        folder, and a list inside the list is one recording (`Frames.recordings`).
    bayer : str or None
        'rggb', 'grbg', 'gbrg' or 'bggr' for raws with a color mosaic.
    white : path, optional
        The white image. If it, or a copy of it, lies in a folder of raws, it is not a frame.

    Raises
    ------
    DataError
        If something does not exist, or there is no image in a folder.
    """
    _check_bayer(bayer)
    recordings = [(found.name, list(found.files)) for found in list_recordings(sources)]
    if white is not None and Path(white).is_file():
        recordings = [(name, _leave_out(files, Path(white))) for name, files in recordings]
        if any(files for _, files in recordings):
            recordings = [(name, files) for name, files in recordings if files]
        else:
            recordings = [(found.name, list(found.files)) for found in list_recordings(sources)]
    frames = Frames([file for _, files in recordings for file in files], bayer)
    counts = [0] * len(recordings)
    number_of = {file: i for i, (_, files) in enumerate(recordings) for file in files}
    for path, _ in frames._places:
        counts[number_of[path]] += 1
    frames.divide(counts, [name for name, _ in recordings])
    return frames


def _leave_out(files: Sequence[Path], white: Path) -> list[Path]:
    """Return the files that are not the white image."""
    return [file for file in files if not _is_same(file, white)]


def _is_same(file: Path, white: Path) -> bool:
    """Tell whether two files have the same content. The comparison ends at the first difference."""
    try:
        return filecmp.cmp(file, white, shallow=False)
    except OSError:  # reading the file as a frame reports the error
        return False


def find_full_scale(brightest: int, bits: int) -> int:
    """Return the full scale for the fewest bits (10, 12, 14 or 16) that hold the brightest pixel.

    The values of 10-bit or 12-bit sensors are often stored unchanged in 16-bit files, for which a
    full scale of 65535 would be far too large.
    """
    if bits == 8:
        return 255
    return next((1 << k) - 1 for k in (10, 12, 14, 16) if brightest < 1 << k)


def looks_like_mosaic(frame: Frame) -> bool:
    """Tell whether pixels of even and odd rows and columns differ as those of a color mosaic do."""
    if frame.color is not None or frame.bayer is not None:
        return False
    rows, cols = (n // 2 * 2 for n in frame.gray.shape)
    image = frame.gray[:rows, :cols].astype(np.float64)
    means = [image[i::2, j::2].mean() for i in (0, 1) for j in (0, 1)]
    return bool(max(means) - min(means) > _MOSAIC * np.mean(means))


def make_frame(
    stored: npt.NDArray[np.generic],
    name: str,
    source: str,
    bayer: str | None = None,
    full_scale: int | None = None,
) -> Frame:
    """Return a frame from pixels as a file stores them.

    Parameters
    ----------
    stored : (height, width) or (height, width, 3) uint8 or uint16
        Gray, a Bayer mosaic, or red, green, blue.
    full_scale : int or None
        Stored value of white; None takes the value of `find_full_scale` for this frame.

    Raises
    ------
    DataError
        If the pixels are of another type, or the image is black or saturated.
    """
    if stored.dtype not in (np.uint8, np.uint16):
        raise DataError(f"{source}: pixels are {stored.dtype}, needs 8 or 16 bit whole numbers")
    bits = stored.dtype.itemsize * 8
    if stored.ndim == 3 and stored.shape[2] != 3:
        stored = stored[:, :, 0] if stored.shape[2] < 3 else stored[:, :, :3]
    if stored.ndim == 3 and _is_gray(stored):
        stored = np.ascontiguousarray(stored[:, :, 0])
    if bayer is not None and stored.ndim == 3:
        raise DataError(f"{source}: is in color already, so it has no Bayer pattern ({bayer})")
    if full_scale is None:
        full_scale = find_full_scale(int(stored.max(initial=0)), bits)
    saturated = _check_exposure(stored, bits, full_scale, source)
    if bayer is not None:
        stored = _demosaic(stored, bayer)
    scale = np.float32(1.0 / full_scale)
    values = stored.astype(np.float32) * scale
    if values.ndim == 2:
        return Frame(name, source, values, None, bits, saturated)
    gray = np.asarray(values @ np.array(LUMINANCE, np.float32), np.float32)
    return Frame(name, source, np.ascontiguousarray(gray), values, bits, saturated, bayer)


def to_stored(image: Float32Array, bits: int) -> npt.NDArray[np.uint8] | npt.NDArray[np.uint16]:
    """Return values from 0 to 1 as a file of 8 or 16 bits stores them, white at full scale."""
    full = np.float32((1 << bits) - 1)
    stored: Float32Array = np.clip(np.rint(image * full), 0, full)
    return stored.astype(np.uint8) if bits == 8 else stored.astype(np.uint16)


def _check_bayer(bayer: str | None) -> str | None:
    if bayer is None:
        return None
    if bayer.lower() not in BAYER:
        raise ConfigError.unknown("Bayer pattern", bayer, BAYER)
    return bayer.lower()


def _demosaic(mosaic: npt.NDArray[Any], bayer: str) -> npt.NDArray[np.generic]:
    """Return red, green, blue (height, width, 3) of a Bayer mosaic, interpolated bilinearly."""
    return np.asarray(cv2.cvtColor(mosaic, BAYER[bayer]))


def _is_gray(color: npt.NDArray[np.generic]) -> bool:
    red, green, blue = color[:, :, 0], color[:, :, 1], color[:, :, 2]
    return bool(np.array_equal(red[::16], green[::16])) and bool(
        np.array_equal(red, green) and np.array_equal(green, blue)
    )


def _check_exposure(stored: npt.NDArray[np.generic], bits: int, full: int, source: str) -> float:
    """Return the share of saturated pixels; raise DataError if black or mostly saturated."""
    brightest = int(stored.max())
    level = float(np.percentile(stored[::4, ::4].astype(np.float64), 99.9)) if brightest else 0.0
    if level < _BLACK[bits]:
        raise DataError(f"{source}: black: 99.9 % of the pixels are {level:.0f} of {full} or less")
    saturated = 0.0
    # Values of 10, 12 or 14 bits may be stored in the lower or in the upper bits of 16.
    ends = (
        {full}
        if bits == 8
        else {0xFFFF & ~((1 << k) - 1) for k in range(7)} | {(1 << k) - 1 for k in (10, 12, 14)}
    )
    if brightest in ends:
        saturated = float(np.count_nonzero(stored == brightest)) / stored.size
    if saturated > _SATURATED:
        raise DataError(
            f"{source}: saturated: {100 * saturated:.0f} % of the pixels are at full scale. "
            "Use a shorter exposure"
        )
    return saturated


def _read(path: Path, root: Path) -> npt.NDArray[np.generic]:
    """Return the pixels of a file. Error messages contain the path as given, without `root`."""
    return decode_image(path, read_bytes(root / path, limit=1 << 30, name=path))


def _peek(path: Path) -> ImageHeader | None:
    """Return the header of a file, reading only its beginning where that is enough."""
    try:
        with path.open("rb") as stream:
            start = stream.read(_HEADER_BYTES)
            if start[:2] in (b"II", b"MM"):
                start += stream.read()  # the directory of a TIFF file may be at its end
    except OSError:
        return None
    return read_header(start)


def _make_names(places: Sequence[tuple[Path, int]]) -> tuple[str, ...]:
    """Return a unique name for each frame: that of its file, with more of the path if needed."""
    again = [place for place, count in Counter(places).items() if count > 1]
    if again:
        raise DataError(f"{again[0][0]}: was given twice")
    stems = [path.stem for path, _ in places]
    paths = {path.absolute() for path, number in places if number <= 0}
    if len({path.stem for path in paths}) < len(paths):
        depth = 2
        most = max(len(path.parts) for path in paths)
        while depth < most and len({path.parts[-depth:] for path in paths}) < len(paths):
            depth += 1
        stems = ["_".join(path.absolute().parts[-depth:]).replace(".", "_") for path, _ in places]
    names = [
        stem if number < 0 else f"{stem}_{number:06d}"
        for stem, (_, number) in zip(stems, places, strict=True)
    ]
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise DataError(f"{len(repeated)} frames have the same name, for example {repeated[0]}")
    return tuple(names)


def open_video(path: Path) -> _Video:
    """Open a video, whose frames are read one after the other.

    Raises
    ------
    DataError
        If OpenCV cannot open it.
    """
    return _Video(path)


class _Video:
    """A video file. Consecutive frames are read without seeking."""

    def __init__(self, path: Path, root: Path = Path()) -> None:
        self.path = path
        self._capture = cv2.VideoCapture(str(root / path))
        if not self._capture.isOpened():
            raise DataError(f"{path}: not a video that OpenCV can open")
        self._count = int(self._capture.get(cv2.CAP_PROP_FRAME_COUNT))
        if self._count < 1:
            raise DataError(f"{path}: a video without frames, or cut off")
        self.image_size = (
            int(self._capture.get(cv2.CAP_PROP_FRAME_WIDTH)),
            int(self._capture.get(cv2.CAP_PROP_FRAME_HEIGHT)),
        )
        self._next = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return self._count

    def read(self, index: int) -> npt.NDArray[np.generic]:
        """Return frame `index` in red, green, blue. Several threads take turns."""
        with self._lock:
            return self._read(index)

    def _read(self, index: int) -> npt.NDArray[np.generic]:
        if 0 <= self._next < index <= self._next + _MOST_SKIPPED:
            while self._next < index and self._capture.grab():
                self._next += 1
        if index != self._next:
            self._capture.set(cv2.CAP_PROP_POS_FRAMES, index)
        done, image = self._capture.read()
        if not done or image is None:
            self._next = -1
            raise DataError(f"{self.path}: frame {index + 1} of {self._count} cannot be read")
        self._next = index + 1
        return np.ascontiguousarray(image[:, :, ::-1])
