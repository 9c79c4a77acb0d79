"""What all verbs share: where text goes, how errors end, progress bars.

Results go to standard output; progress and errors go to standard error.
"""

from __future__ import annotations

import errno
import functools
import logging
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from lifcal.compiled_cache import LOG
from lifcal.diagnostics import Finding
from lifcal.errors import InputError, LifcalError
from lifcal.listener import Listener

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

P = ParamSpec("P")
R = TypeVar("R")

EXIT_ERROR = 1
EXIT_BUG = 70
EXIT_INTERRUPTED = 130

_traces = False
_quiet = False
_PROGRESS_S = 10.0
"""Time between two lines that tell how far a stage is, where there is no terminal."""
_began = time.monotonic()


def show_traces(value: bool) -> None:
    """Choose whether known errors show their trace too."""
    global _traces
    _traces = value


def be_quiet(value: bool) -> None:
    """Choose whether progress and notes are left out."""
    global _quiet
    _quiet = value


def is_quiet() -> bool:
    """Tell whether progress and notes are left out."""
    return _quiet


@functools.cache
def output() -> Console:
    """Return the console for results."""
    return _make_console(stderr=False)


@functools.cache
def messages() -> Console:
    """Return the console for progress and errors."""
    return _make_console(stderr=True)


def _make_console(*, stderr: bool) -> Console:
    """Return a console that prints text as it is.

    Names of files may hold [brackets] or :colons:, which rich would take for markup and emojis.
    """
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, markup=False, emoji=False)


def _make_bar() -> Progress:
    """Return a progress bar with count, elapsed and remaining time."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=messages(),
    )


def say_progress(text: str) -> None:
    """Print one line to standard error, with the seconds since the command began."""
    print(f"[{time.monotonic() - _began:4.0f} s] {text}", file=sys.stderr, flush=True)


def say_error(message: str) -> None:
    """Print one line to standard error, uncut and uncolored beyond its first word."""
    print(f"lifcal: error: {' '.join(message.split())}", file=sys.stderr)


def say_note(message: str) -> None:
    """Print one line to standard error that is not an error, unless --quiet is given."""
    if not _quiet:
        print(f"lifcal: note: {' '.join(message.split())}", file=sys.stderr)


class _NoteHandler(logging.Handler):
    """Prints what the package logs as notes."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record."""
        say_note(record.getMessage())


def show_notes_of_cache() -> None:
    """Print what happens to the cache of compiled loops."""
    if not LOG.handlers:
        LOG.addHandler(_NoteHandler())


class RichListener(Listener):
    """Shows a run on standard error.

    In a terminal, progress is a spinner or a bar. In a pipe or a log, each stage is a line when it
    begins, and another one every ten seconds. With --quiet, there are errors only.
    """

    def __init__(self) -> None:
        self.told: set[str] = set()
        """Texts of the findings that were printed."""
        self._last = ""

    @contextmanager
    def status(self, text: str) -> Iterator[None]:
        """Show a spinner, or a line."""
        if _quiet:
            yield
        elif messages().is_terminal:
            from rich.text import Text

            with messages().status(Text(text)):  # a plain str would be read as markup
                yield
        else:
            if text != self._last:
                say_progress(text)
            self._last = text
            yield

    @contextmanager
    def steps(self, text: str, total: int) -> Iterator[Callable[[str], None]]:
        """Show a bar, or lines."""
        if _quiet:
            yield lambda _: None
        elif messages().is_terminal:
            with _make_bar() as progress:
                task = progress.add_task(text, total=total)

                def step(new_text: str) -> None:
                    progress.update(task, advance=1, description=new_text or text)

                yield step
        else:
            yield _PlainSteps(text, total)

    def finding(self, finding: Finding) -> None:
        """Print it: what could not be used as an error, all else as a note."""
        say = say_error if finding.code == "frame-unusable" else say_note
        say(finding.text)
        self.told.add(finding.text)


class _PlainSteps:
    """Tells how far a stage is in lines that come when it begins and every ten seconds."""

    def __init__(self, text: str, total: int) -> None:
        self._text, self._total, self._done = text, total, 0
        self._told = time.monotonic()
        say_progress(f"{text} (0 of {total})")

    def __call__(self, new_text: str) -> None:
        """Count a step."""
        self._done += 1
        self._text = new_text or self._text
        if time.monotonic() - self._told >= _PROGRESS_S:
            self._told = time.monotonic()
            say_progress(f"{self._text} ({self._done} of {self._total})")


def verb(resume_hint: str = "") -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Give a command the house's ends: 0 done, 1 known error, 130 interrupted, 70 a bug.

    A calibration that is not to be trusted ends with 3 (`lifcal.cli._results`).

    Parameters
    ----------
    resume_hint : str
        What to do after an interruption, for verbs that can go on.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def run(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                result = function(*args, **kwargs)
                sys.stdout.flush()  # an error of writing must not come after the command
            except LifcalError as error:
                if _traces:
                    traceback.print_exc()
                say_error(". ".join([str(error).rstrip("."), *getattr(error, "__notes__", ())]))
                raise SystemExit(EXIT_ERROR) from None
            except MemoryError:
                say_error("out of memory: choose smaller images or fewer rays")
                raise SystemExit(EXIT_ERROR) from None
            except KeyboardInterrupt:
                hint = f": {resume_hint}" if resume_hint else ""
                print(f"lifcal: interrupted{hint}", file=sys.stderr)
                raise SystemExit(EXIT_INTERRUPTED) from None
            except BrokenPipeError:
                raise SystemExit(EXIT_ERROR) from None
            except Exception as error:
                if getattr(error, "errno", None) == errno.ENOSPC:
                    # Functions that write results name the file in an error of their own.
                    sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115 (until the exit)
                    say_error(
                        "no space left for standard output, or in the folder for temporary files"
                    )
                    raise SystemExit(EXIT_ERROR) from None
                if "cannot cache function" in str(error):  # numba's
                    say_error(
                        "compiled loops need a folder that can be written, even for temporary "
                        "files there is none: set NUMBA_CACHE_DIR to such a folder"
                    )
                    raise SystemExit(EXIT_ERROR) from None
                traceback.print_exc()
                say_error("this is a bug in lifcal: please report it with the lines above")
                raise SystemExit(EXIT_BUG) from None
            return result

        return run

    return decorate


def show_examples(*commands: str) -> str:
    """Return the text that a command's help ends with."""
    return "\n\n".join([f"Example{'s' if len(commands) > 1 else ''}:", *commands])


def parse_image_size(text: str) -> tuple[int, int]:
    """Read WIDTHxHEIGHT."""
    width, _, height = text.lower().partition("x")
    if not (width.strip().isdecimal() and height.strip().isdecimal()):
        raise InputError(f"image size {text!r} is not WIDTHxHEIGHT, for example 2048x2048")
    return int(width), int(height)
