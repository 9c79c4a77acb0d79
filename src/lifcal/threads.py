"""Compiled loops over many items, on all cores."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import numba

from lifcal import compiled_cache

_PARTS_PER_THREAD = 4
"""Number of parts for each thread. With several, a thread whose items take less time processes more
parts, and all threads end at about the same time."""


def _find_uncounted() -> dict[str, Any]:
    try:
        from numba.core.options import DefaultOptions
    except ImportError:
        return {}
    return {"_nrt": False} if hasattr(DefaultOptions, "_nrt") else {}


UNCOUNTED = _find_uncounted()
"""Option of numba for loops and functions that create no array and return none. Otherwise numba
counts the references to every array, and to each array inside a NamedTuple, whenever a function is
called or a field is read. In small functions that are called for every pixel or ray this takes most
of the time: the simulator needs half as long without it (numba's issue 2345). The option has no
documentation; a numba that does not have it compiles the same loops, which are then slower. Numba
refuses to compile a function with this option that creates an array. It does not refuse one that
returns an array which it was given, and that would corrupt memory; a test looks for such functions.
A function should also set `fastmath` if loops with different rules call it: otherwise it gets those
of the loop that is compiled first."""


class Threads:
    """The number of threads that loops use, and the threads themselves.

    Numba's own threads (`parallel=True`) are not used: such loops take more than twice as long to
    compile, and numba's default threads must not be used by two threads of a program at a time.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None
        self.count = int(numba.config.NUMBA_NUM_THREADS)  # type: ignore[attr-defined]

    @property
    def pool(self) -> ThreadPoolExecutor:
        """The pool of threads that work beside the calling one."""
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(max(self.count - 1, 1), "lifcal")
            return self._pool


THREADS = Threads()

compiled_cache.mend()
if compiled_cache.note:
    compiled_cache.LOG.warning(compiled_cache.note)


class PartedLoop:
    """A compiled `function(begin, end, *arguments)`, called as `loop(*arguments)`.

    Parameters
    ----------
    function : callable
        Processes the items from `begin` to `end`. The output for an item must not depend on others.
    count : callable
        Returns the number of items. Its parameters have the names of those arguments of `function`
        that it needs.
    least : int
        Smallest number of items in a part: with fewer, starting a thread costs more than it saves.
    options : dict
        Options of numba's compiler. A division by zero gives the IEEE result and never an
        exception, so that one bad item does not end the whole loop.
    """

    def __init__(
        self,
        function: Callable[..., None],
        count: Callable[..., int],
        least: int,
        options: dict[str, Any],
    ) -> None:
        names = list(inspect.signature(function).parameters)
        if names[:2] != ["begin", "end"]:
            raise TypeError(f"{function.__name__} does not begin with begin, end")
        self._places = [names.index(name) - 2 for name in inspect.signature(count).parameters]
        self._count = count
        self._least = least
        options = {"cache": True, "nogil": True, "error_model": "numpy", **options}
        self.compiled = numba.njit(**options)(function)
        self.__name__ = function.__name__
        self.__doc__ = function.__doc__

    def __call__(self, *arguments: Any) -> None:
        """Process all items."""
        n = self._count(*(arguments[place] for place in self._places))
        size = max(-(-n // (_PARTS_PER_THREAD * THREADS.count)), self._least)
        if size >= n or THREADS.count == 1:
            self.compiled(0, n, *arguments)
            return
        parts = iter(range(0, n, size))
        others = [
            THREADS.pool.submit(self._work, parts, size, n, arguments)
            for _ in range(THREADS.count - 1)
        ]
        try:
            self._work(parts, size, n, arguments)
        finally:  # the other threads write to the arguments, so all must end before the call does
            wait(others)
        for other in others:
            other.result()

    def _work(self, parts: Iterator[int], size: int, n: int, arguments: tuple[Any, ...]) -> None:
        for begin in parts:
            self.compiled(begin, min(begin + size, n), *arguments)


def in_parts(
    count: Callable[..., int], *, least: int = 1, **options: Any
) -> Callable[[Callable[..., None]], PartedLoop]:
    """Return a decorator that compiles a loop and splits its index range across threads.

    The decorated loop receives its own `begin` and `end`; callers leave them out. `count` and
    `least` are those of `PartedLoop`; the other options are numba's.
    """
    return lambda function: PartedLoop(function, count, least, options)
