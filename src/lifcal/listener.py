"""Progress of a long run: it is sent to Python's logging, or to a listener that the user provides.

The loggers are `lifcal.stages` (a stage begins: INFO; a step of it is done: DEBUG) and
`lifcal.findings` (INFO for notes, WARNING for what makes the result doubtful; the record's
`finding` attribute is the `Finding`).
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import escape
from typing import Any

from lifcal.diagnostics import Finding, Severity

_stages = logging.getLogger("lifcal.stages")
_findings = logging.getLogger("lifcal.findings")


class Listener:
    """Receives the progress of a run and logs it. Override a method to show it in another way."""

    @contextmanager
    def status(self, text: str) -> Iterator[None]:
        """Report work of unknown length, which is done inside the `with` block."""
        _stages.info("%s", text)
        yield

    @contextmanager
    def steps(self, text: str, total: int) -> Iterator[Callable[[str], None]]:
        """Report work in steps, which is done inside the `with` block.

        The value of the block is a function that the work calls after each step, with a new text to
        show, or with '' to keep the old one.
        """
        _stages.info("%s (%d steps)", text, total)
        done = 0

        def step(new_text: str) -> None:
            nonlocal done
            done += 1
            _stages.debug("%s: %d of %d", new_text or text, done, total)

        yield step

    def finding(self, finding: Finding) -> None:
        """Report a finding as soon as a stage has made it."""
        level = logging.WARNING if finding.severity.rank >= Severity.CAUTION.rank else logging.INFO
        _findings.log(level, "%s: %s", finding.code, finding.text, extra={"finding": finding})


class NotebookListener(Listener):
    """Shows a run below the cell of a notebook: a bar for each stage, and findings as lines.

    Everything is logged too.
    """

    _LEAST_S = 0.2
    """Shortest time between two updates of a bar in s; people do not see faster ones."""

    @contextmanager
    def status(self, text: str) -> Iterator[None]:
        """Show the text, and how long the work took once it is done."""
        with super().status(text):
            begin, shown = time.monotonic(), _show(f"{escape(text)} …")
            yield
            shown.update(_html(f"{escape(text)}: {_format_seconds(begin)}"))

    @contextmanager
    def steps(self, text: str, total: int) -> Iterator[Callable[[str], None]]:
        """Show a bar, and how long the work took once it is done."""
        begin = time.monotonic()
        done, last = 0, begin
        shown = _show(_draw_bar(text, 0, total))

        with super().steps(text, total) as log_step:

            def step(new_text: str) -> None:
                nonlocal done, last
                log_step(new_text)
                done += 1
                now = time.monotonic()
                if now - last > self._LEAST_S:
                    last = now
                    shown.update(_html(_draw_bar(new_text or text, done, total)))

            yield step
        shown.update(_html(f"{escape(text)}: {_format_seconds(begin)}"))

    def finding(self, finding: Finding) -> None:
        """Show the finding as a line of text."""
        super().finding(finding)
        _show(f"<em>{escape(finding.severity.value)}</em>: {escape(finding.text)}")


def choose_listener(listener: Listener | None) -> Listener:
    """Return `listener`; for None, one that shows progress in a notebook and logs elsewhere."""
    if listener is not None:
        return listener
    return NotebookListener() if _is_notebook() else Listener()


def _is_notebook() -> bool:
    """Tell whether this process is the kernel of a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


def _ipython_display() -> Any:
    from IPython import display

    return display


def _html(text: str) -> Any:
    return _ipython_display().HTML(text)


def _show(text: str) -> Any:
    """Show HTML below the cell, and return a handle whose `update` replaces it."""
    return _ipython_display().display(_html(text), display_id=True)


def _draw_bar(text: str, done: int, total: int) -> str:
    return f'<progress value="{done}" max="{total}"></progress> {done} of {total} {escape(text)}'


def _format_seconds(begin: float) -> str:
    return f"{time.monotonic() - begin:.1f} s"
