"""Graphs on executors of others."""

from __future__ import annotations

import os
import threading
from concurrent.futures import (
    BrokenExecutor,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
)
from multiprocessing import get_context

import pytest
from dask._task_spec import Task, TaskRef
from dask.utils_test import inc

import treadle


class TwoArguments(Exception):
    """Pickling it works, unpickling does not."""

    def __init__(self, first, second):
        super().__init__(f"{first} {second}")


def fail(*args):
    raise TwoArguments("it", "failed")


@pytest.mark.parametrize("kwargs", [{}, {"callbacks": [(None,) * 5]}])
def test_a_pool_that_was_shut_down(kwargs):
    pool = ThreadPoolExecutor(1)
    pool.shutdown()
    with pytest.raises(RuntimeError, match="shutdown"):
        treadle.get({"x": Task("x", inc, 1)}, "x", pool=pool, **kwargs)


def test_a_pool_that_is_shut_down_meanwhile():
    release, queued = threading.Event(), threading.Event()

    class Pool(ThreadPoolExecutor):
        def submit(self, *args, **kwargs):
            future = super().submit(*args, **kwargs)
            queued.set()
            return future

    pool = Pool(1)
    pool.submit(release.wait, 30)  # the only thread is busy: our work is queued
    queued.clear()

    def shut_down():
        assert queued.wait(30)
        pool.shutdown(wait=False, cancel_futures=True)
        release.set()

    other = threading.Thread(target=shut_down)
    other.start()
    with pytest.raises(RuntimeError, match="shut down before the graph was computed"):
        treadle.get({"x": Task("x", inc, 1)}, "x", pool=pool)
    other.join()


def test_a_pool_whose_threads_cannot_start():
    def broken():
        raise OSError("no")

    with ThreadPoolExecutor(1, initializer=broken) as pool, pytest.raises(BrokenExecutor):
        treadle.get({"x": Task("x", inc, 1)}, "x", pool=pool)


def test_a_shared_pool_serves_others_while_a_graph_runs():
    started, served = threading.Event(), threading.Event()

    def step(_):
        started.set()
        served.wait(0.01)  # 3,000 of them: half a minute, unless somebody is served
        return served.is_set()

    dsk = {i: Task(i, step, TaskRef(i - 1) if i else 0) for i in range(3000)}
    dsk["seen"] = Task("seen", lambda *seen: seen, *map(TaskRef, range(3000)))
    with ThreadPoolExecutor(1) as pool:

        def others():
            started.wait()
            pool.submit(served.set)

        thread = threading.Thread(target=others)
        thread.start()
        assert treadle.get(dsk, "seen", pool=pool)[-1]
        thread.join()


@pytest.fixture(scope="module")
def processes():
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        yield pool


def test_tasks_in_other_processes(processes):
    offset = 10  # only cloudpickle can take a function with it
    dsk = {("x", i): Task(("x", i), lambda x: x + offset, i) for i in range(10)}
    dsk["pids"] = Task("pids", lambda *_: os.getpid(), *(TaskRef(("x", i)) for i in range(10)))
    values = treadle.get(dsk, [[("x", i) for i in range(10)], "pids"], pool=processes)
    assert values[0] == tuple(range(10, 20))
    assert values[1] != os.getpid()


def test_an_exception_that_cannot_be_pickled_breaks_nothing(processes):
    with pytest.raises(RuntimeError, match="TwoArguments: it failed") as error:
        treadle.get({"x": Task("x", fail)}, "x", pool=processes)
    assert "in fail" in str(error.value.__cause__), "the traceback of the other process"
    with pytest.raises(ZeroDivisionError) as error:
        treadle.get({"x": Task("x", divmod, 1, 0)}, "x", pool=processes)
    assert "ZeroDivisionError" in str(error.value.__cause__)


def test_a_value_that_cannot_be_pickled_is_named_with_its_task(processes):
    with pytest.raises(TypeError, match="the result of task 'lock' cannot be pickled"):
        treadle.get({"lock": Task("lock", threading.Lock)}, "lock", pool=processes)


def test_an_executor_that_loses_its_process():
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        with pytest.raises(BrokenExecutor) as error:
            treadle.get({"killer": Task("killer", os._exit, 1)}, "killer", pool=pool)
        if hasattr(error.value, "__notes__"):
            assert "killer" in error.value.__notes__[0]


class Late(Executor):
    """Not one of the standard library's: a thread for each call."""

    def submit(self, fn, /, *args, **kwargs):
        future = Future()

        def body():
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as error:
                future.set_exception(error)

        threading.Thread(target=body).start()
        return future


def test_any_executor_will_do():
    dsk = {i: Task(i, inc, TaskRef(i - 1) if i else 0) for i in range(10)}
    assert treadle.get(dsk, 9, pool=Late()) == 10
    with pytest.raises(TwoArguments):
        treadle.get({"x": Task("x", fail)}, "x", pool=Late())


class Twice(Late):
    """Keeps what it was given."""

    def __init__(self):
        self.calls = []

    def submit(self, fn, /, *args, **kwargs):
        self.calls.append(fn)
        return super().submit(fn, *args, **kwargs)


def test_a_task_that_an_executor_runs_again_has_its_inputs():
    """After the graph was computed, when nobody else has them."""
    pool = Twice()
    dsk = {"items": Task("items", list, range(1000)), "sum": Task("sum", sum, TaskRef("items"))}
    assert treadle.get(dsk, "sum", pool=pool) == sum(range(1000))
    kept = [bytearray(64) for _ in range(1000)]
    assert [call()[0] for call in pool.calls] == [list(range(1000)), sum(range(1000))]
    del kept
