"""The loop over frames on its own; tests/pipeline/test_executors.py has it at work."""

import threading
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context

import numpy as np
import pytest

from lifcal.errors import DataError, InputError
from lifcal.imaging.frames import ArrayFrames
from lifcal.pipeline.executors import WorkerProcesses, count_slots, open_executor
from lifcal.pipeline.frames import FrameResult, map_frames
from lifcal.pipeline.usable import UsableFrames
from tests.pipeline.cases import SmallWork


class Steps(SmallWork):
    """Makes frames in this process, and says when it makes and when it writes one."""

    def __init__(self, folder, write):
        super().__init__(folder)
        self.said, self.write = [], write

    def make(self, index):
        self.said.append(f"make {index}")
        if index == 9:
            raise KeyboardInterrupt

        def write():
            self.write(index)
            self.said.append(f"write {index}")
            return FrameResult(index)

        return write


def test_a_frame_is_written_while_the_next_is_made(tmp_path):
    may_write = threading.Event()
    work = Steps(tmp_path, lambda _: may_write.wait(10.0))
    results = map_frames(work, [0, 1, 2])
    threading.Timer(0.2, may_write.set).start()
    assert next(results).index == 0
    assert work.said.index("make 1") < work.said.index("write 0")
    assert [result.index for result in results] == [1, 2]
    assert sorted(work.said) == [f"{verb} {i}" for verb in ("make", "write") for i in range(3)]


def test_a_write_that_fails_ends_the_loop(tmp_path):
    def fail(index):
        if index == 1:
            raise DataError("disk full")

    for frames in ([0, 1, 2, 3], [0, 1]):
        with pytest.raises(DataError, match="disk full"):
            list(map_frames(Steps(tmp_path, fail), frames))


def test_an_interrupt_leaves_what_was_handed_over_written_and_noted(tmp_path):
    work, noted = Steps(tmp_path, lambda _: None), []
    with pytest.raises(KeyboardInterrupt):
        list(map_frames(work, [0, 1, 9], None, noted.append))
    assert [result.index for result in noted] == [0, 1]


class Counting(Executor):
    """Counts tasks that were submitted and are not done."""

    def __init__(self):
        self._pool = ThreadPoolExecutor(1)
        self._max_workers = 1
        self.most = self.held = 0

    def submit(self, fn, /, *args, **kwargs):
        self.held += 1
        self.most = max(self.most, self.held)
        future = self._pool.submit(fn, *args, **kwargs)
        future.add_done_callback(self._end)
        return future

    def _end(self, _future):
        self.held -= 1


def test_few_tasks_wait_however_many_frames_there_are(tmp_path):
    executor = Counting()
    found = [result.index for result in map_frames(SmallWork(tmp_path), range(400), executor)]
    assert found == list(range(400))
    assert 1 <= executor.most <= 2


def test_results_come_in_order_and_are_noted_when_they_are_there(tmp_path):
    noted = []
    work = SmallWork(tmp_path, "slow first")
    with ThreadPoolExecutor(2) as executor:
        found = [result.index for result in map_frames(work, range(5), executor, noted.append)]
    assert found == list(range(5))
    assert sorted(result.index for result in noted) == found
    assert noted[0].index != 0


def test_an_error_ends_the_loop_on_any_executor(tmp_path):
    with WorkerProcesses(2) as executor, pytest.raises(DataError, match="frame 1 is bad"):
        list(map_frames(SmallWork(tmp_path, "bad"), range(20), executor))
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_a_killed_process_is_replaced(tmp_path):
    with WorkerProcesses(2) as executor:
        work = SmallWork(tmp_path, "deadly once")
        found = [result.index for result in map_frames(work, range(12), executor)]
    assert found == list(range(12))


def test_processes_that_are_killed_again_and_again_are_one_line(tmp_path):
    with (
        WorkerProcesses(2) as executor,
        pytest.raises(DataError, match=r"killed 3 times while frame 0 .* fewer --jobs") as error,
    ):
        list(map_frames(SmallWork(tmp_path, "deadly"), range(12), executor))
    assert "\n" not in str(error.value)


def test_another_pool_cannot_be_replaced_and_that_is_said(tmp_path):
    with (
        ProcessPoolExecutor(2, get_context("spawn")) as executor,
        pytest.raises(DataError, match=r"cannot replace it: use .*WorkerProcesses"),
    ):
        list(map_frames(SmallWork(tmp_path, "deadly"), range(3), executor))


def test_processes_share_the_cores(tmp_path):
    work = SmallWork(tmp_path, "threads")
    with WorkerProcesses(2) as executor:
        said = {result.problem for result in map_frames(work, range(8), executor)}
    import os

    share = max((os.cpu_count() or 1) // 2, 1)
    assert {int(text.split()[1]) for text in said} == {share}
    assert str(os.getpid()) not in {text.split()[0] for text in said}


def test_frames_in_memory_stay_in_this_process(tmp_path):
    work = SmallWork(tmp_path)
    work.usable = UsableFrames(ArrayFrames([np.full((8, 8), 99, np.uint8)]))
    with (
        ThreadPoolExecutor(1) as executor,
        pytest.raises(InputError, match="in this process only"),
    ):
        list(map_frames(work, range(1), executor))
    assert len(list(map_frames(work, range(1)))) == 1


@pytest.mark.parametrize("executor", [ThreadPoolExecutor, 4])
def test_something_else_than_an_executor_is_refused(tmp_path, executor):
    with pytest.raises(InputError, match=r"needs an object of concurrent\.futures\.Executor"):
        list(map_frames(SmallWork(tmp_path), range(1), executor))


def test_a_worker_of_another_version_or_without_the_folder_says_so(tmp_path):
    from dataclasses import replace

    from lifcal.pipeline import frames

    with (
        ThreadPoolExecutor(1) as executor,
        frames._write_job(SmallWork(tmp_path), tmp_path, executor) as job,
    ):
        with pytest.raises(DataError, match="install the same version"):
            frames._make(replace(job, version="0"), 0)
        with pytest.raises(DataError, match=r"cannot open the run's folder: .*no such file"):
            frames._make(replace(job, path=str(tmp_path / "no")), 0)
        with pytest.raises(DataError, match="was changed"):
            frames._make(replace(job, digest="0"), 0)
        assert frames._make(job, 3).entry.raw == "3"
    # The run has ended: a straggler of a cluster writes nothing more.
    assert frames._make(job, 3).entry is None


def test_choosing_an_executor():
    with open_executor() as executor:
        assert executor is None
    with open_executor(jobs=1) as executor:
        assert executor is None
    with open_executor(jobs=3) as executor:
        assert count_slots(executor) == 3
    with pytest.raises(InputError, match="give only one"), open_executor(2, "tcp://host:1"):
        pass
    with pytest.raises(InputError, match="--jobs is 0, needs at least 1"), open_executor(0):
        pass
