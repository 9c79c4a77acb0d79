"""Executors that process frames in other processes, on this machine or on a cluster.

Frames can be processed by any `concurrent.futures.Executor`. This file contains the two executors
that the command line offers: `WorkerProcesses` (`--jobs`), and the executor of a Dask client
(`--scheduler`).
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from multiprocessing.context import SpawnContext
from multiprocessing.process import BaseProcess
from types import FrameType, TracebackType
from typing import Any, ParamSpec, TypeVar

from lifcal.errors import DataError, InputError, MissingDependencyError

P = ParamSpec("P")
R = TypeVar("R")

_ADDRESS = re.compile(r"((tcp|tls|ucx|ws|wss)://)?[^/\s]+:\d+")
_CONNECT_S = 4.0
"""Longest time in seconds to wait for the answer of a scheduler, and then again for its first
worker. In a local network both take milliseconds, and a user who gave a wrong address should soon
see the error."""
_END_S = 10.0
"""Longest time in seconds to wait until a worker process ends after it was told to. A process can
only end between two compiled loops, and one loop over a large frame takes less than this time."""


@contextmanager
def open_executor(
    jobs: int | None = None, scheduler: str | None = None
) -> Iterator[Executor | None]:
    """Open the executor that processes frames; it is None if this process itself does.

    Parameters
    ----------
    jobs : int, optional
        Number of processes on this machine; 1 means that this process itself processes the frames.
    scheduler : str, optional
        Address of a Dask scheduler, for example tcp://host:8786.

    Raises
    ------
    InputError
        If both `jobs` and `scheduler` are given, or if `jobs` is less than 1.
    DataError
        If the scheduler does not answer, or has no worker.
    MissingDependencyError
        If the package `distributed` is not installed.
    """
    if jobs is not None and scheduler is not None:
        raise InputError("--jobs uses this machine, --scheduler uses a cluster: give only one")
    if jobs is not None and jobs < 1:
        raise InputError(f"--jobs is {jobs}, needs at least 1")
    with ExitStack() as stack:
        if scheduler is not None:
            yield stack.enter_context(connect(scheduler))
        elif jobs is not None and jobs > 1:
            yield stack.enter_context(WorkerProcesses(jobs))
        else:
            yield None


# This machine


class _RecordingContext(SpawnContext):
    """A multiprocessing context that spawns processes and keeps a list of them."""

    def __init__(self) -> None:
        super().__init__()
        self.started: list[BaseProcess] = []

    def Process(self, *args: Any, **kwargs: Any) -> BaseProcess:  # type: ignore[override]
        """Create a process, as `multiprocessing.Process` does, and add it to the list."""
        process = SpawnContext.Process(*args, **kwargs)
        self.started.append(process)
        return process


class WorkerProcesses(Executor):
    """An executor whose worker processes run on this machine and share its cores.

    Unlike the processes of a `ProcessPoolExecutor`, these can be replaced after one of them was
    killed (`renew`), and they end when this process ends for whatever reason. They start when work
    is submitted.

    Parameters
    ----------
    count : int
        Number of processes.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._open()

    def _open(self) -> None:
        self._context = _RecordingContext()
        self._pool = ProcessPoolExecutor(
            self.count, mp_context=self._context, initializer=_prepare_worker
        )

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Call a function in one of the processes.

        Raises
        ------
        BrokenExecutor
            If one of the processes was killed.
        """
        return self._pool.submit(fn, *args, **kwargs)

    def renew(self) -> None:
        """End all processes at once; new ones start when there is work again."""
        self._stop()
        self._open()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the processes after their work, or at once if futures are to be canceled."""
        if cancel_futures:
            self._stop()
        else:
            self._pool.shutdown(wait)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the processes after their work, or at once if an exception ended the context."""
        self.shutdown(cancel_futures=error is not None)

    def _stop(self) -> None:
        """End the processes at once. They first delete incompletely written files."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        for process in self._context.started:
            process.terminate()
        for process in self._context.started:
            process.join(_END_S)
            process.kill()
        self._pool.shutdown(wait=True)


def _prepare_worker() -> None:
    """Set up a worker process so that it ends on SIGTERM and when the main process ends."""
    # Ctrl-C reaches all processes of a terminal. Workers ignore it, and the main process ends them.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _leave)
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, name="lifcal-parent", daemon=True).start()


_leaving = threading.Event()


def _leave(_number: int, _frame: FrameType | None) -> None:
    """End the present task as an interruption does, which removes incompletely written files."""
    _leaving.set()
    raise SystemExit


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def check_leaving() -> None:
    """Raise SystemExit in a process that was told to end."""
    if _leaving.is_set():
        raise SystemExit


# A cluster


@contextmanager
def connect(scheduler: str) -> Iterator[Executor]:
    """Open an executor on a Dask cluster. Closing it cancels the futures that are not done.

    Parameters
    ----------
    scheduler : str
        Address of the scheduler, for example tcp://host:8786.

    Raises
    ------
    InputError
        If `scheduler` is not an address.
    DataError
        If the scheduler does not answer, or has no worker.
    MissingDependencyError
        If the package `distributed` is not installed.
    """
    try:
        from distributed import Client
    except ImportError as error:
        raise MissingDependencyError(
            f"--scheduler needs Dask: pip install 'lifcal[cluster]' ({error})"
        ) from None
    if not _ADDRESS.fullmatch(scheduler):
        raise InputError(f"--scheduler {scheduler}: not an address like tcp://host:8786")
    try:
        # Another thread is used, because this one may already run an event loop (in a notebook).
        with ThreadPoolExecutor(1) as thread:
            thread.submit(asyncio.run, _shake_hands(scheduler)).result()
    except Exception as error:  # A server that is not a Dask scheduler may cause any exception.
        raise DataError(
            f"--scheduler {scheduler}: no Dask scheduler answers there ({_shorten(error)}). Start "
            "one by `dask scheduler`, and give the address that it prints"
        ) from None
    client = Client(scheduler, timeout=_CONNECT_S, set_as_default=False)
    try:
        try:
            client.wait_for_workers(1, timeout=_CONNECT_S)
        except TimeoutError:
            raise DataError(
                f"--scheduler {scheduler}: the cluster has no worker. Start some by `dask worker "
                f"{scheduler}`"
            ) from None
        executor = client.get_executor()
        try:
            yield executor
        finally:
            executor.shutdown(wait=False)
    finally:
        client.close()


async def _shake_hands(scheduler: str) -> None:
    """Check that a connection is possible, and close it.

    This is done before a Dask client is created, because a client that cannot connect keeps trying
    in the background.
    """
    from distributed.comm.core import connect
    from distributed.security import Security

    arguments = Security().get_connection_args("client")
    comm = await asyncio.wait_for(connect(scheduler, _CONNECT_S, **arguments), _CONNECT_S + 1.0)
    comm.abort()


def _shorten(error: BaseException) -> str:
    return " ".join(str(error).split())[:120] or type(error).__name__


def count_slots(executor: Executor) -> int:
    """Return how many frames an executor processes at a time.

    If the executor does not say, this is the number of cores of this machine.
    """
    if isinstance(executor, WorkerProcesses):
        return executor.count
    client = getattr(executor, "_client", None)  # Executors of Dask have this attribute.
    if client is not None:
        return max(int(sum(client.nthreads().values())), 1)
    count = getattr(executor, "_max_workers", None)  # Those of the standard library have this one.
    return count if isinstance(count, int) else os.cpu_count() or 1


def share_threads(executor: Executor) -> int | None:
    """Return how many threads a frame may use; None if the executor leaves the choice to lifcal.

    Processes of one machine share its cores. A Dask worker processes as many frames at a time as it
    has threads, so each frame uses one thread, unless NUMBA_NUM_THREADS is set on the worker.
    """
    if isinstance(executor, WorkerProcesses):
        return max((os.cpu_count() or 1) // executor.count, 1)
    return 1 if getattr(executor, "_client", None) is not None else None
