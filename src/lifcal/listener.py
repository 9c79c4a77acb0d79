"""How a long run tells what it does. This one is silent; the command line has one that shows it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from lifcal.diagnostics import Finding


class Listener:
    """Is told how a run goes. Override what is to be shown."""

    @contextmanager
    def status(self, text: str) -> Iterator[None]:
        """Work whose length is not known."""
        del text
        yield

    @contextmanager
    def steps(self, text: str, total: int) -> Iterator[Callable[[str], None]]:
        """Work in steps; the function that it gives is called after each, with a new text or ''."""
        del text, total
        yield lambda _: None

    def finding(self, finding: Finding) -> None:
        """Tell what a stage noticed, as soon as it is known."""
