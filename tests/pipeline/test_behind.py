"""Writing one frame behind."""

import threading

import pytest

from lifcal.errors import DataError
from lifcal.pipeline.behind import WriteBehind


def test_one_frame_waits_while_the_next_is_made():
    written, may_write = [], threading.Event()

    def write(name):
        may_write.wait(10.0)
        written.append(name)

    with WriteBehind() as behind:
        behind(write, "first")  # returns, or this test would hang
        assert written == []
        may_write.set()
        behind(write, "second")
        assert written[0] == "first"
    assert written == ["first", "second"]


def test_what_fails_is_raised_by_the_next_call_and_the_last_one():
    def fail():
        raise DataError("disk full")

    with WriteBehind() as behind:
        behind(fail)
        with pytest.raises(DataError, match="disk full"):
            behind(pytest.fail, "is not reached")
    with pytest.raises(DataError, match="disk full"), WriteBehind() as behind:
        behind(fail)


def test_an_interrupt_leaves_what_was_handed_over_written():
    written = []

    def run():
        with WriteBehind() as behind:
            behind(written.append, "first")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run()
    assert written == ["first"]
