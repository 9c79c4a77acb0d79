"""Loops in parts: every item once, whatever the number of threads."""

import threading

import numba
import numpy as np
import pytest

from lifcal.threads import THREADS, UNCOUNTED, in_parts


@in_parts(lambda items: len(items))
def count_up(begin, end, items, by):
    """Add to each item."""
    for i in range(begin, end):
        items[i] += by


@in_parts(lambda ends: len(ends) - 1, least=10)
def sum_groups(begin, end, values, ends, out):
    """Sum the values from each end to the next."""
    for i in range(begin, end):
        total = 0.0
        for k in range(ends[i], ends[i + 1]):
            total += values[k]
        out[i] = total


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("n", [0, 1, 2, 39, 40, 41, 1000])
def test_every_item_once(n, threads, monkeypatch):
    monkeypatch.setattr(THREADS, "count", threads)
    items = np.arange(n)
    count_up(items, 3)
    np.testing.assert_array_equal(items, np.arange(n) + 3)


def test_the_count_is_of_the_argument_it_names(rng):
    values = rng.normal(size=300)
    ends = np.unique(np.concatenate([[0, 300], rng.integers(0, 300, 50)]))
    out = np.full(len(ends) - 1, np.nan)
    sum_groups(values, ends, out)
    np.testing.assert_allclose(out, np.add.reduceat(values, ends[:-1]), rtol=1e-12)


def test_several_callers_at_a_time(monkeypatch):
    monkeypatch.setattr(THREADS, "count", 3)
    arrays = [np.zeros(5000, np.int64) for _ in range(8)]

    def work(items):
        for _ in range(20):
            count_up(items, 1)

    callers = [threading.Thread(target=work, args=(items,)) for items in arrays]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    for items in arrays:
        np.testing.assert_array_equal(items, 20)


def test_a_loop_without_its_bounds_is_refused():
    with pytest.raises(TypeError, match="begin, end"):

        @in_parts(lambda items: len(items))
        def wrong(items):
            """No bounds."""


@pytest.mark.skipif(numba.config.DISABLE_JIT, reason="nothing is compiled")
def test_numba_has_the_option_that_makes_small_functions_fast():
    """Without it, everything works and is slower: then look for what numba has in its place."""
    assert UNCOUNTED


@pytest.mark.skipif(numba.config.DISABLE_JIT, reason="nothing is compiled")
def test_a_function_without_counted_references_cannot_create_an_array():
    @numba.njit(**UNCOUNTED)
    def create(n):
        return np.zeros(n)

    with pytest.raises(numba.core.errors.NumbaError):
        create(3)
