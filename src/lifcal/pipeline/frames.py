"""The loop over frames: in this process, or on any `concurrent.futures.Executor`.

A kind of run is a `FrameWork`: it makes one frame after the other and writes their images. In this
process, the images of one frame are written while the next one is computed. On an executor, the
work is written once to a file in the run's folder. A task is the path of that file and the index of
a frame; the process that gets the task opens the file, the raw and all that it needs by itself, and
keeps it for the next task. So nothing large travels, and it does not matter where a frame is made.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import socket
import threading
import uuid
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    ThreadPoolExecutor,
    wait,
)
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from lifcal import __version__
from lifcal.errors import DataError, EstimationError, InputError, LifcalError
from lifcal.files import make_part_path, read_bytes, write_bytes
from lifcal.listener import Listener
from lifcal.pipeline.executors import (
    WorkerProcesses,
    check_leaving,
    count_slots,
    share_threads,
)
from lifcal.pipeline.store import FolderImages, FrameEntry, FrameImages, FrameStore
from lifcal.pipeline.usable import UsableFrames, compute_checksum

if TYPE_CHECKING:
    from lifcal.imaging.frames import Frame, Frames

NO_DEPTH = "hardly any virtual depth: too little texture, or the grid or the range is not its own"
LEAST_KNOWN = 0.01
"""Least share of known pixels in a frame that is used. Below it, matches are chance."""
_QUEUED_PER_SLOT = 2
"""Tasks that are submitted for each frame that can be made at a time: one in hand and one to go on
with. More would only be held in memory."""
_TRIES = 3
"""How often a frame is begun when the process that makes it is killed. A frame that needs more
memory than there is kills each process that tries it."""

E = TypeVar("E", bound=FrameEntry)
F = TypeVar("F")


@dataclass(frozen=True)
class FrameResult(Generic[E]):
    """What came of a frame.

    Parameters
    ----------
    index : int
    entry : FrameEntry or None
        None if the frame cannot be used.
    kept : bool
        Whether it was done by a run before.
    problem : str
        Why it cannot be used.
    """

    index: int
    entry: E | None = None
    kept: bool = False
    problem: str = ""


class FrameWork(ABC, Generic[F, E]):
    """Makes frames, one at a time. It can be pickled: it holds paths of the raws, and no pixels.

    Parameters
    ----------
    usable : UsableFrames
    names : sequence of str
        The name of each frame in the results.
    images : FrameImages
        Where the images go.
    entries : mapping of str to FrameEntry
        What a run before has done.
    engine : object
        What computes a frame.
    make_engine : callable
        Makes an equal engine in another process. Must be picklable.
    """

    def __init__(
        self,
        usable: UsableFrames,
        names: Sequence[str],
        images: FrameImages,
        entries: Mapping[str, E],
        engine: Any,
        make_engine: Callable[[], Any],
    ) -> None:
        self.usable = usable
        self.names = tuple(names)
        self.images = images
        self.engine = engine
        self._make_engine = make_engine
        self._entries = dict(entries)

    def __getstate__(self) -> dict[str, Any]:
        images = self.images
        if isinstance(images, FolderImages):  # other processes may be in another folder
            images = replace(images, folder=images.folder.absolute())
        return {**vars(self), "images": images, "engine": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.engine = self._make_engine()

    @abstractmethod
    def run(self, frame: Frame) -> tuple[F, float]:
        """Make a frame; return it, and the share of its pixels whose depth is known.

        Raises
        ------
        EstimationError
            If the frame shows no depth.
        """

    @abstractmethod
    def draw(self, frame: Frame, made: F) -> dict[str, Any]:
        """Return the images of a frame, in the order in which they are written."""

    @abstractmethod
    def describe(self, index: int, common: FrameEntry, made: F) -> E:
        """Return the entry of a frame."""

    def make(self, index: int) -> Callable[[], FrameResult[E]]:
        """Make a frame; return a function that writes its images and returns the result.

        Raises
        ------
        DataError
            If a run before made a frame of this name from another raw.
        """
        usable, name = self.usable, self.names[index]
        frame = usable.read(index)
        if frame is None:
            return self._refuse(index, str(usable.problems[index]))
        checksum = compute_checksum(frame)
        entry = self._entries.get(name)
        if entry is not None and entry.checksum != checksum:
            folder = self.images.folder if isinstance(self.images, FolderImages) else "the store"
            raise DataError(
                f"{folder}: {name} is there already, made from another raw. Choose another "
                "folder, or remove this one"
            )
        if entry is not None and entry.bytes == self.images.measure(name):
            result = FrameResult(index, entry, kept=True)
            return lambda: result
        try:
            made, known = self.run(frame)
        except EstimationError as error:
            return self._refuse(index, f"{usable.frames.source(index)}: {error}")
        if known < LEAST_KNOWN:
            share = f"{100 * known:.1f} % of the pixels are known"
            return self._refuse(index, f"{usable.frames.source(index)}: {NO_DEPTH} ({share})")

        def write() -> FrameResult[E]:
            size = self.images.save(name, self.draw(frame, made))
            common = FrameEntry(frame.source, checksum, size, known)
            return FrameResult(index, self.describe(index, common, made))

        return write

    @staticmethod
    def _refuse(index: int, problem: str) -> Callable[[], FrameResult[E]]:
        return lambda: FrameResult(index, problem=problem)


def run_frames(
    work: FrameWork[F, E],
    store: FrameStore[Any, E],
    listener: Listener,
    text: str,
    executor: Executor | None = None,
) -> tuple[list[str], int]:
    """Make all frames that are not done, and note them in the store.

    Parameters
    ----------
    work : FrameWork
    store : FrameStore
        Has begun.
    listener : Listener
        Told of frames that cannot be used, in their order; the others are done.
    text : str
        Beside the progress bar.
    executor : Executor, optional
        Makes the frames; this process without.

    Returns
    -------
    done : list of str
        Names of the frames that are done.
    kept : int
        How many of them were done by a run before.
    """
    done: list[str] = []
    kept, usable = 0, work.usable

    def note(result: FrameResult[E]) -> None:
        if result.entry is not None and not result.kept:
            store.add(work.names[result.index], result.entry)

    with flush_at_end(store), listener.steps("compiling (first time only)", len(usable)) as step:
        for result in map_frames(work, range(len(usable)), executor, note):
            index = result.index
            if result.entry is None:
                usable.problems.setdefault(index, DataError(result.problem))
                listener.finding(usable.describe(index))
            else:
                usable.mark_shown(index)
                done.append(work.names[index])
                kept += result.kept
            step(text)
    return done, kept


@contextmanager
def flush_at_end(store: FrameStore[Any, Any]) -> Iterator[None]:
    """Write the record when an interruption or an error ends the loop: what is done is kept."""
    try:
        yield
    except BaseException:
        with suppress(DataError):  # a full disk, for example, which is being told already
            store.flush()
        raise


def check_executor(executor: Executor | None, frames: Frames, images: FrameImages) -> None:
    """Raise InputError if an executor is none, or is given for what only this process has."""
    if executor is not None and not isinstance(executor, Executor):
        raise InputError(
            f"executor is {executor!r}, needs an object of concurrent.futures.Executor, such as "
            "ThreadPoolExecutor(2)"
        )
    if executor is None or (isinstance(images, FolderImages) and not frames.in_memory):
        return
    raise InputError(
        "frames in memory can be made in this process only: leave out the executor, or give the "
        "frames as files and a folder for the results"
    )


def map_frames(
    work: FrameWork[F, E],
    frames: Iterable[int],
    executor: Executor | None = None,
    on_done: Callable[[FrameResult[E]], None] = lambda _: None,
) -> Iterator[FrameResult[E]]:
    """Make frames, and yield what came of them in their order.

    Parameters
    ----------
    work : FrameWork
    frames : iterable of int
        Indices.
    executor : Executor, optional
        Makes the frames: processes, a cluster, or threads. Frames are made in this process without.
    on_done : callable
        Called with each result as soon as it is there, one at a time, in any order, from any
        thread. What it was called with is done, whatever ends the loop.

    Raises
    ------
    InputError
        If an executor is given for frames or results in memory, which only this process has.
    DataError
        If a file cannot be written, workers cannot open what they need, or workers end again and
        again.
    """
    if executor is None:
        yield from _map_here(work, frames, on_done)
        return
    check_executor(executor, work.usable.frames, work.images)
    assert isinstance(work.images, FolderImages)
    with _write_job(work, work.images.folder, executor) as job:
        yield from _map_elsewhere(job, frames, executor, on_done)


def _map_here(
    work: FrameWork[F, E], frames: Iterable[int], on_done: Callable[[FrameResult[E]], None]
) -> Iterator[FrameResult[E]]:
    """Write a frame while the next one is made. Whatever ends the loop, the last one is written."""

    def finish(write: Callable[[], FrameResult[E]]) -> FrameResult[E]:
        result = write()
        on_done(result)
        return result

    last: Future[FrameResult[E]] | None = None
    with ThreadPoolExecutor(1, "lifcal-write") as writer:
        for index in frames:
            write = work.make(index)
            if last is not None:
                yield last.result()
            last = writer.submit(finish, write)
    if last is not None:
        yield last.result()


# Elsewhere


@dataclass(frozen=True)
class _Job:
    """What a worker needs to know of a run, besides the index of a frame.

    Parameters
    ----------
    path : str
        The file that holds the work.
    digest : str
        Its SHA-256: nothing else is unpickled.
    version : str
        Version of lifcal.
    threads : int or None
        That a frame may use; None: as the worker's process has been set up.
    home : str
        The process that runs the loop.
    """

    path: str
    digest: str
    version: str
    threads: int | None
    home: str


def _name_process() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"


@contextmanager
def _write_job(work: FrameWork[F, E], folder: Path, executor: Executor) -> Iterator[_Job]:
    """Write the work for others to open; without the file, none of them begins a frame."""
    content = pickle.dumps(work, protocol=pickle.HIGHEST_PROTOCOL)
    path = make_part_path(folder, f"work-{uuid.uuid4().hex[:8]}").absolute()
    digest = hashlib.sha256(content).hexdigest()
    write_bytes(path, content)
    try:
        yield _Job(str(path), digest, __version__, share_threads(executor), _name_process())
    finally:
        path.unlink(missing_ok=True)


def _map_elsewhere(
    job: _Job,
    frames: Iterable[int],
    executor: Executor,
    on_done: Callable[[FrameResult[E]], None],
) -> Iterator[FrameResult[E]]:
    """Keep a bounded number of tasks submitted; do again what was lost with its worker."""
    waiting = iter(frames)
    order: deque[int] = deque()
    tasks: dict[Future[FrameResult[E]], int] = {}
    results: dict[int, FrameResult[E]] = {}
    tries: dict[int, int] = {}
    try:
        while True:
            most = _QUEUED_PER_SLOT * count_slots(executor)
            while len(order) < most and (index := next(waiting, None)) is not None:
                order.append(index)
                tasks[_submit(executor, job, index)] = index
            if not order:
                return
            lost = []
            for future in wait(tasks, return_when=FIRST_COMPLETED).done:
                index = tasks.pop(future)
                try:
                    results[index] = future.result()
                except BrokenExecutor:
                    lost.append(index)
                else:
                    on_done(results[index])
            if lost:
                lost += tasks.values()
                _renew(executor, lost, tries)
                tasks = {_submit(executor, job, index): index for index in sorted(lost)}
            while order and order[0] in results:
                yield results.pop(order.popleft())
    except BaseException as error:
        _give_up(executor, tasks, on_done)
        explained = _explain(error, executor)
        if explained is error:
            raise
        raise explained from None


def _give_up(
    executor: Executor,
    tasks: Mapping[Future[FrameResult[E]], int],
    on_done: Callable[[FrameResult[E]], None],
) -> None:
    """End what was submitted. When this returns, no process of this machine writes any more."""
    for future in tasks:
        if not future.cancel() and future.done() and future.exception() is None:
            on_done(future.result())
    if isinstance(executor, WorkerProcesses):
        executor.renew()


def _submit(executor: Executor, job: _Job, index: int) -> Future[FrameResult[Any]]:
    try:
        return executor.submit(_make, job, index)
    except BrokenExecutor as error:  # a process was killed while it had nothing to do
        future: Future[FrameResult[Any]] = Future()
        future.set_exception(error)
        return future


def _renew(executor: Executor, lost: list[int], tries: dict[int, int]) -> None:
    """Replace processes after one of them was killed; DataError if that happens too often."""
    for index in lost:
        tries[index] = tries.get(index, 0) + 1
    often = max(tries[index] for index in lost)
    if not isinstance(executor, WorkerProcesses):
        raise DataError(
            "a worker process was killed, and this executor cannot replace it: use "
            "lifcal.pipeline.executors.WorkerProcesses, or run again to go on"
        )
    if often >= _TRIES:
        raise DataError(
            f"worker processes were killed {often} times while frame {min(lost)} was to be made: "
            "they may need more memory than there is. Give fewer --jobs; the same command goes on"
        )
    executor.renew()


def _explain(error: BaseException, executor: Executor) -> BaseException:
    """Return an error in one line where a cluster is the reason, or the error itself."""
    known = isinstance(error, LifcalError | MemoryError) or not isinstance(error, Exception)
    if known or getattr(executor, "_client", None) is None:
        return error
    text = " ".join(str(error).split())[:200]
    if isinstance(error, ImportError):
        return DataError(f"a worker of the cluster cannot import lifcal {__version__}: {text}")
    if isinstance(error, CancelledError) or type(error).__module__.startswith("distributed"):
        return DataError(
            f"the cluster gave up a frame ({type(error).__name__}: {text}). See its log; the same "
            "command goes on"
        )
    return error


# In a worker


_lock = threading.Lock()
_opened: dict[str, FrameWork[Any, Any]] = {}
"""The work of the last run, by the path of its file."""


def _open(job: _Job) -> FrameWork[Any, Any]:
    """Return the work of a run, read once for each process."""
    with _lock:
        if job.path not in _opened:
            if job.version != __version__:
                raise DataError(
                    f"a worker on {socket.gethostname()} has lifcal {__version__}, the run has "
                    f"{job.version}: install the same version"
                )
            try:
                content = read_bytes(Path(job.path), limit=1 << 32)
            except DataError as error:
                raise DataError(
                    f"a worker on {socket.gethostname()} cannot open the run's folder: {error}. "
                    "Put raws and results on storage that all workers share"
                ) from None
            if hashlib.sha256(content).hexdigest() != job.digest:
                raise DataError(f"{job.path}: was changed")
            _opened.clear()
            _opened[job.path] = pickle.loads(content)
            _limit_threads(job)
        return _opened[job.path]


def _limit_threads(job: _Job) -> None:
    """Use the worker's share of the cores, so that several workers do not fight for them."""
    if job.threads is None or job.home == _name_process() or "NUMBA_NUM_THREADS" in os.environ:
        return
    from lifcal.threads import THREADS

    THREADS.count = min(THREADS.count, job.threads)


def _make(job: _Job, index: int) -> FrameResult[Any]:
    """Make a frame and write its images."""
    check_leaving()
    write = _open(job).make(index)
    if not Path(job.path).exists():
        # The run has ended, and another one may own the folder by now.
        return FrameResult(index, problem="the run has ended")
    return write()
