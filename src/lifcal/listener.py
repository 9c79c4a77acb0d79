"""How a long run tells what it does: to Python's logging, or to a listener of one's own.

The loggers are `lifcal.stages` (a stage begins: INFO; a step of it is done: DEBUG) and
`lifcal.findings` (INFO for notes, WARNING for what makes the result doubtful; the record's
`finding` attribute is the `Finding`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

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
        level = logging.INFO if finding.severity is Severity.NOTE else logging.WARNING
        _findings.log(level, "%s: %s", finding.code, finding.text, extra={"finding": finding})
