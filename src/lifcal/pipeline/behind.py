"""Files of one frame are written while the next one is computed."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Self


class WriteBehind:
    """A thread that writes, one frame behind. What fails there is raised at the next call.

    Leaving the context waits for the last one: what was handed over is written, whatever ended it.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "lifcal-write")
        self._last: Future[None] | None = None

    def __enter__(self) -> Self:
        return self

    def __call__(self, write: Callable[..., None], *arguments: object) -> None:
        """Wait for the frame before, then let this one be written."""
        self.wait()
        self._last = self._thread.submit(write, *arguments)

    def wait(self) -> None:
        """Wait until all is written; raise what went wrong."""
        if self._last is not None:
            last, self._last = self._last, None
            last.result()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._thread.shutdown(wait=True)
        if error is None:
            self.wait()
