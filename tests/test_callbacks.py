"""Dask's callbacks and diagnostics."""

from __future__ import annotations

import io
import threading

import dask.array as da
import pytest
from dask._task_spec import Alias, DataNode, Task, TaskRef
from dask.callbacks import Callback
from dask.diagnostics import CacheProfiler, Profiler, ProgressBar, ResourceProfiler
from dask.utils_test import inc

import treadle


@pytest.fixture
def dsk():
    dsk = {"a": DataNode("a", 1), "b": Task("b", inc, TaskRef("a")), "alias": Alias("alias", "b")}
    dsk["c"] = Task("c", inc, TaskRef("alias"))
    dsk["d"] = Task("d", lambda *x: sum(x), TaskRef("b"), TaskRef("c"), TaskRef("b"))
    return dsk


class Log(Callback):
    def __init__(self):
        self.calls = []
        self.threads = set()

    def _note(self, *call):
        self.calls.append(call)
        self.threads.add(threading.get_ident())

    def _start(self, dsk):
        self._note("start", set(dsk))

    def _start_state(self, dsk, state):
        assert isinstance(state, dict)
        self._note(
            "start_state", set(state["ready"]), {k: set(v) for k, v in state["waiting"].items()}
        )

    def _pretask(self, key, dsk, state):
        assert key in state["running"]
        self._note("pretask", key)

    def _posttask(self, key, value, dsk, state, worker):
        assert key in state["finished"]
        self._note("posttask", key, value, set(state["released"]))
        assert isinstance(worker, int)

    def _finish(self, dsk, state, failed):
        self._note("finish", failed, dict(state.get("cache", {})))


def test_each_callback_is_called_in_the_calling_thread_as_dask_does(get, dsk):
    with Log() as log:
        assert get(dsk, "d") == 7
    assert log.threads == {threading.get_ident()}
    assert log.calls == [
        ("start", set(dsk)),
        ("start_state", {"b"}, {"alias": {"b"}, "c": {"alias"}, "d": {"b", "c"}}),
        ("pretask", "b"),
        ("posttask", "b", 2, {"a"}),
        ("pretask", "alias"),
        ("posttask", "alias", 2, {"a"}),
        ("pretask", "c"),
        ("posttask", "c", 3, {"a", "alias"}),
        ("pretask", "d"),
        ("posttask", "d", 7, {"a", "alias", "b", "c"}),
        ("finish", False, {"d": 7}),
    ]


def test_only_the_outermost_run_is_observed(get, dsk):
    dsk["nested"] = Task("nested", lambda: treadle.get({"x": Task("x", inc, 1)}, "x"))
    with Log() as log:
        assert get(dsk, "nested") == 2
    assert [call[1] for call in log.calls if call[0] == "pretask"] == ["nested"]


def test_finish_is_called_after_a_failure(get):
    with Log() as log, pytest.raises(ZeroDivisionError):
        get({"x": Task("x", divmod, 1, 0)}, "x")
    assert log.calls[-1][:2] == ("finish", True)


def test_a_callback_that_raises_ends_the_run(get, dsk):
    def broken(key, dsk, state):
        raise ArithmeticError(key)

    with Log() as log, Callback(pretask=broken), pytest.raises(ArithmeticError, match="b"):
        get(dsk, "d")
    assert log.calls[-1][:2] == ("finish", True)


def test_callbacks_of_one_call(get, dsk):
    log = Log()
    assert get(dsk, "c", callbacks=[log._callback]) == 3
    assert len(log.calls) == 2 + 3 * 2 + 1


def test_progress_bar(get, dsk):
    out = io.StringIO()
    with ProgressBar(out=out, dt=0.001):
        get(dsk, "d")
    assert "100% Completed" in out.getvalue()


def test_a_progress_bar_moves_while_tasks_run(eventually):
    out = io.StringIO()

    def wait_for_bar():
        eventually(lambda: "| 50% Completed" in out.getvalue())

    with ProgressBar(out=out, dt=0.001):
        graph = {"a": Task("a", inc, 1), "b": Task("b", lambda _: wait_for_bar(), TaskRef("a"))}
        treadle.get(graph, "b")
    assert "100% Completed" in out.getvalue()


def test_profilers(get, dsk):
    with Profiler() as profiler, CacheProfiler() as cache, ResourceProfiler(dt=0.01) as resources:
        get(dsk, "d")
    assert [task.key for task in profiler.results] == ["b", "alias", "c", "d"]
    assert all(task.start_time <= task.end_time for task in profiler.results)
    assert {entry.key for entry in cache.results} == {"b", "alias", "c", "d"}
    assert resources.results


def test_profiler_knows_the_threads():
    barrier = threading.Barrier(2, timeout=30)
    graph = {i: Task(i, lambda _: barrier.wait(), i) for i in range(2)}
    with Profiler() as profiler:
        treadle.get(graph, [0, 1], num_workers=2)
    assert len({task.worker_id for task in profiler.results}) == 2


def test_the_opportunistic_cache_of_dask():
    pytest.importorskip("cachey")
    from dask.cache import Cache

    x = da.arange(100, chunks=10).sum()
    with Cache(1e6), treadle.installed():
        assert [int(x.compute()) for _ in range(3)] == [4950] * 3


def test_rerun_exceptions_locally():
    where = []

    def fail():
        where.append(threading.get_ident())
        raise ValueError("it failed")

    with pytest.raises(ValueError, match="it failed"):
        treadle.get({"x": Task("x", fail)}, "x", rerun_exceptions_locally=True)
    assert len(where) == 2
    assert where[1] == threading.get_ident() != where[0]
