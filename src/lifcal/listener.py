"""How a long run tells what it does: to Python's logging, or to a listener of one's own.

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
    """Is told how a run goes, and logs it. Override a method to show it in another way."""

    @contextmanager
    def status(self, text: str) -> Iterator[None]:
        """Work whose length is not known."""
        _stages.info("%s", text)
        yield

    @contextmanager
    def steps(self, text: str, total: int) -> Iterator[Callable[[str], None]]:
        """Work in steps; the function that it gives is called after each, with a new text or ''."""
        _stages.info("%s (%d steps)", text, total)
        done = 0

        def step(new_text: str) -> None:
            nonlocal done
            done += 1
            _stages.debug("%s: %d of %d", new_text or text, done, total)

        yield step

    def finding(self, finding: Finding) -> None:
        """Tell what a stage noticed, as soon as it is known."""
        level = logging.WARNING if finding.severity.rank >= Severity.CAUTION.rank else logging.INFO
        _findings.log(level, "%s: %s", finding.code, finding.text, extra={"finding": finding})


class NotebookListener(Listener):
    """Shows a run below the cell of a notebook: a bar for each stage, and findings as lines.

    Everything is logged too.
    """

    _LEAST_S = 0.2
    """Seconds between two changes of a bar: a browser need not draw more."""

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
        """Show it as a line."""
        super().finding(finding)
        _show(f"<em>{escape(finding.severity.value)}</em>: {escape(finding.text)}")


def choose_listener(listener: Listener | None) -> Listener:
    """Return the listener that was given; else one that shows progress if this is a notebook."""
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
    """Show HTML below the cell; return a handle with which it is changed."""
    return _ipython_display().display(_html(text), display_id=True)


def _draw_bar(text: str, done: int, total: int) -> str:
    return f'<progress value="{done}" max="{total}"></progress> {done} of {total} {escape(text)}'


def _format_seconds(begin: float) -> str:
    return f"{time.monotonic() - begin:.1f} s"
