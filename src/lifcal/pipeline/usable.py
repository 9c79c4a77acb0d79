"""Frames of which some cannot be used."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, overload

from lifcal.diagnostics import Finding
from lifcal.errors import DataError

if TYPE_CHECKING:
    from lifcal.camera import MicroLensGrid
    from lifcal.imaging.frames import Frame, Frames


class UsableFrames(Sequence["Frame"]):
    """Frames that remember which of them cannot be used, and why.

    Reading one that cannot raises DataError. Once the grid is known, frames must show it: `check`
    says whether they do, `check_plenoptic` if None.
    """

    def __init__(
        self, frames: Frames, check: Callable[[Frame, MicroLensGrid], None] | None = None
    ) -> None:
        self.frames = frames
        self._check = check
        self.grid: MicroLensGrid | None = None
        self.white_checksum = ""
        """Checksum of the white image, which often stands among the raws."""
        self.problems: dict[int, DataError] = {}
        self.seen: set[int] = set()
        """Read so far."""
        self._shown: set[int] = set()

    def __len__(self) -> int:
        return len(self.frames)

    @overload
    def __getitem__(self, index: int) -> Frame: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Frame]: ...
    def __getitem__(self, index: int | slice) -> Frame | Sequence[Frame]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        from lifcal.grid.plenoptic import check_plenoptic

        if index in self.problems:
            raise self.problems[index]
        try:
            frame = self.frames.read(index)
            if self.white_checksum and compute_checksum(frame) == self.white_checksum:
                raise DataError(f"{frame.source}: is the white image")
            self.seen.add(index)
            if self.grid is not None and index not in self._shown:
                (self._check or check_plenoptic)(frame, self.grid)
                self._shown.add(index)
        except DataError as error:
            self.problems[index] = error
            raise
        return frame

    def read(self, index: int) -> Frame | None:
        """Return a frame; None if it cannot be used, and `problems` says why."""
        try:
            return self[index]
        except DataError:
            return None

    @property
    def findings(self) -> list[Finding]:
        """What cannot be used, in the order of the frames."""
        return [self.describe(index) for index in sorted(self.problems)]

    def describe(self, index: int) -> Finding:
        """Return why a frame cannot be used."""
        name = self.frames.names[index]
        return Finding.of("frame-unusable", str(self.problems[index]), frame=name)

    def refuse(self, index: int, why: str) -> None:
        """Note that a frame cannot be used."""
        self.problems[index] = DataError(f"{self.frames.source(index)}: {why}")

    def mark_shown(self, index: int) -> None:
        """Note that a frame shows the grid, as another process has found."""
        self._shown.add(index)

    def choose(self, most: int, besides: Sequence[int] = ()) -> list[int]:
        """Return up to `most` good frames, evenly spread if the frames there are good."""
        from lifcal.arrays import spread_choice

        spread = spread_choice(len(self), most) if most > 1 else [0]
        found: list[int] = []
        for index in dict.fromkeys([*spread, *range(len(self))]):
            if index not in besides and self.read(index) is not None:
                found.append(index)
                if len(found) == most:
                    break
        return sorted(found)


def compute_checksum(frame: Frame) -> str:
    """Return what tells a frame's pixels from another's."""
    pixels = frame.gray if frame.color is None else frame.color
    return f"{zlib.crc32(pixels.tobytes()):08x}"
