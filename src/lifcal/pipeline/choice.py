"""Which frames of a recording are used."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from lifcal.diagnostics import Finding
from lifcal.errors import InputError
from lifcal.listener import Listener

if TYPE_CHECKING:
    from lifcal.imaging.frames import Frames

MOST_OF_A_VIDEO = 60
"""Frames of a video that a calibration uses at most, unless the user says how many. Twenty to forty
good views determine a camera; more of them cost time and add little (docs/figures)."""


@dataclass(frozen=True)
class FrameChoice:
    """Which frames of a recording are used.

    Parameters
    ----------
    every : int or None
        Every n-th frame. None is every frame; a calibration from a video then chooses by itself.
    ends : (int, int) or None
        Indices of the first and the last frame, from 0; None: from the first to the last.
    exclude : tuple of str
        Names of frames that are left out: as results call them, or of their files, or with * and ?
        for any characters. One text may hold several names with commas between them.
    """

    every: int | None = None
    ends: tuple[int, int] | None = None
    exclude: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.every is not None and self.every < 1:
            raise InputError(f"--every is {self.every}, needs at least 1")
        if self.ends is not None and self.ends[0] > self.ends[1]:
            first, last = self.ends
            raise InputError(f"--frames {first} {last}: the first is after the last")

    def list_indices(self, names: Sequence[str]) -> list[int]:
        """Return the indices of the frames.

        Raises
        ------
        InputError
            If indices are beyond the recording, a name is of no frame, or no frame is left.
        """
        first, last = self.ends or (0, len(names) - 1)
        if not 0 <= first <= last < len(names):
            raise InputError(f"--frames {first} {last}: there are frames 0 to {len(names) - 1}")
        left_out: set[str] = set()
        for word in (part.strip() for text in self.exclude for part in text.split(",")):
            fitting = [name for name in names if _fits(word, name)]
            if word and not fitting:
                nearest = difflib.get_close_matches(word, names, n=1) or [names[-1]]
                raise InputError(
                    f"--exclude {word}: there is no such frame; there is {nearest[0]}, for example"
                )
            left_out.update(fitting)
        chosen = [i for i in range(first, last + 1, self.every or 1) if names[i] not in left_out]
        if not chosen:
            raise InputError("no frame is left: --frames, --every and --exclude leave out all")
        return chosen


def _fits(word: str, name: str) -> bool:
    return fnmatchcase(name, word) or fnmatchcase(name, Path(word).stem)


def choose_informative(
    frames: Frames, choice: FrameChoice, listener: Listener
) -> tuple[list[int], list[Finding]]:
    """Return the indices of the frames for a calibration; those of a long video are thinned.

    The choice holds in each recording. The listener is told of the frames of a video that are used,
    and so is the caller.
    """
    numbers = sorted(set(frames.recordings))
    if len(numbers) < 2:
        return _choose_in_recording(frames, choice, listener)
    replace(choice, every=None, ends=None).list_indices(frames.names)  # names of frames are right
    chosen: list[int] = []
    findings: list[Finding] = []
    for number in numbers:
        members = frames.members(number)
        some = frames.select(members)
        words = [word.strip() for text in choice.exclude for word in text.split(",")]
        own = tuple(word for word in words if any(_fits(word, name) for name in some.names))
        indices, found = _choose_in_recording(some, replace(choice, exclude=own), listener)
        chosen += [members[index] for index in indices]
        findings += found
    return chosen, findings


def _choose_in_recording(
    frames: Frames, choice: FrameChoice, listener: Listener
) -> tuple[list[int], list[Finding]]:
    from lifcal.imaging.thinning import thin_frames

    indices = choice.list_indices(frames.names)
    if not frames.has_video or choice.every is not None or len(indices) <= MOST_OF_A_VIDEO:
        return indices, []
    with listener.steps("choosing frames of the video", len(indices)) as step:
        told = 0

        def on_frame(done: int, total: int) -> None:
            nonlocal told
            while told < done * len(indices) // total:
                told += 1
                step("")

        thinned = thin_frames(frames.select(indices), MOST_OF_A_VIDEO, on_frame)
    chosen = [indices[place] for place in thinned]
    found = Finding.of(
        "frames-thinned",
        f"{len(chosen)} of the {len(indices)} frames of the video are used: each shows something "
        "else than the one before. --every N takes every N-th frame instead",
        used=len(chosen),
        frames=len(indices),
    )
    listener.finding(found)
    return chosen, [found]
