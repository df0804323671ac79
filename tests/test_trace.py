"""Recorded runs."""

from __future__ import annotations

import itertools
import json
import os
import signal
import threading
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context

import pytest
from dask._task_spec import Task, TaskRef
from dask.utils_test import inc

import treadle
from treadle.tracing import _trace


@pytest.fixture
def dsk():
    return {
        ("inc-0123", i): Task(("inc-0123", i), inc, TaskRef(("inc-0123", i - 1)) if i else 0)
        for i in range(5)
    }


def tasks(trace):
    return [event for event in trace.events if event["ph"] == "X"]


def test_one_event_a_task(get, dsk, tmp_path):
    path = tmp_path / "trace.json"
    with treadle.trace(path) as trace:
        get(dsk, ("inc-0123", 4))
    written = json.loads(path.read_text())
    assert written["traceEvents"] == trace.events
    events = tasks(trace)
    assert [event["args"]["key"] for event in events] == [str(key) for key in dsk]
    assert trace.tasks == 5
    assert trace.engine_seconds > 0
    assert sum(event["dur"] for event in events) / 1e6 == pytest.approx(trace.task_seconds)
    for event, following in itertools.pairwise(events):
        assert event["name"] == "inc"
        assert event["pid"] == os.getpid()
        assert 0 <= event["ts"] <= event["ts"] + event["dur"] <= following["ts"]
    named = {event["tid"] for event in trace.events if event["name"] == "thread_name"}
    assert named == {event["tid"] for event in events}


def test_threads_are_told_apart_by_name():
    barrier = threading.Barrier(2, timeout=30)
    graph = {i: Task(i, lambda _: barrier.wait(), i) for i in range(2)}
    with treadle.trace() as trace:
        treadle.get(graph, [0, 1], num_workers=2)
    names = {e["args"]["name"] for e in trace.events if e["ph"] == "M"}
    assert len(names) == 2
    assert all(name.startswith("treadle-") for name in names)


@pytest.mark.parametrize("kind", [ThreadPoolExecutor, ProcessPoolExecutor])
def test_tasks_on_other_executors_are_recorded(dsk, kind):
    context = {"mp_context": get_context("spawn")} if kind is ProcessPoolExecutor else {}
    with kind(1, **context) as pool, treadle.trace() as trace:
        treadle.get(dsk, ("inc-0123", 4), pool=pool, callbacks=[(None,) * 5])
    events = tasks(trace)
    assert trace.tasks == 5
    assert ({event["pid"] for event in events} == {os.getpid()}) == (kind is ThreadPoolExecutor)
    assert all(event["ts"] >= 0 for event in events)


def test_nested_runs_and_fused_tasks(get):
    fused = Task.fuse(Task("a", inc, 1), Task("b", inc, TaskRef("a")))
    graph = {
        "b": fused,
        "outer": Task("outer", lambda _: treadle.get({"x": Task("x", inc, 1)}, "x"), TaskRef("b")),
    }
    with treadle.trace() as trace:
        get(graph, "outer")
    keys = [event["args"]["key"] for event in tasks(trace)]
    assert keys == ["b", "x", "outer"]


def test_off_means_off(get, dsk):
    with treadle.trace() as trace:
        pass
    get(dsk, ("inc-0123", 4))
    assert trace.tasks == 0
    assert trace.events == []


def test_two_recordings_at_once(get, dsk):
    with treadle.trace() as outer:
        get(dsk, ("inc-0123", 0))
        with treadle.trace() as inner:
            get(dsk, ("inc-0123", 1))
    assert (outer.tasks, inner.tasks) == (3, 2)


def test_a_failed_run_is_written(get, tmp_path):
    path = tmp_path / "trace.json"
    with pytest.raises(ZeroDivisionError), treadle.trace(path):
        get({"x": Task("x", divmod, 1, 0)}, "x")
    assert [
        e["args"]["key"] for e in json.loads(path.read_text())["traceEvents"] if e["ph"] == "X"
    ] == ["x"]


def test_a_path_that_cannot_be_written_is_an_early_error(tmp_path):
    with pytest.raises(FileNotFoundError), treadle.trace(tmp_path / "missing" / "trace.json"):
        raise AssertionError("the block must not run")


def test_an_interrupted_wait_is_not_counted_as_the_engines():
    def interrupt():
        time.sleep(3)  # until the caller waits, and much longer
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with treadle.trace() as trace, pytest.raises(KeyboardInterrupt):
            treadle.get({"x": Task("x", interrupt)}, "x", callbacks=[(None,) * 5])
    finally:
        signal.signal(signal.SIGINT, before)
    # The caller has waited for 3 s. On a busy machine all else takes long, too.
    assert trace.engine_seconds < 2.5


@pytest.mark.parametrize("key", [(), b"\xff"])
def test_odd_keys(tmp_path, key):
    path = tmp_path / "trace.json"
    with treadle.trace(path) as trace:
        treadle.get({key: Task(key, inc, 1)}, [key])
    assert json.loads(path.read_text())["traceEvents"] == trace.events
    (event,) = tasks(trace)
    assert event["name"] == "Other"
    assert event["args"]["key"] == str(key)


def test_a_relative_path_stays_where_it_was(tmp_path, monkeypatch):
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    with treadle.trace("trace.json") as trace:
        treadle.get({"x": Task("x", inc, 1)}, "x")
        monkeypatch.chdir("other")
    written = json.loads((tmp_path / "trace.json").read_text())
    assert written["traceEvents"] == trace.events
    assert not list((tmp_path / "other").iterdir())


class Interrupt(BaseException):
    """As Ctrl-C raises it."""


class Closing:
    """A client that closes while a trace begins."""

    def __init__(self, error):
        self.error = error

    def trace_cluster(self):
        raise self.error


@pytest.fixture
def attached():
    clients = []

    def attach(error):
        clients.append(Closing(error))
        _trace.attach(clients[-1])

    yield attach
    for client in clients:
        _trace.detach(client)


def test_a_cluster_that_cannot_be_traced_is_noted(attached, tmp_path):
    attached(ValueError("the client is closed"))
    path = tmp_path / "trace.json"
    with treadle.trace(path) as trace:
        treadle.get({"x": Task("x", inc, 1)}, "x")
    assert trace.tasks == 1
    assert trace.notes == ["a cluster is not traced: the client is closed"]
    assert json.loads(path.read_text())["otherData"]["notes"] == trace.notes


def test_a_trace_whose_beginning_is_interrupted_records_nothing(attached):
    attached(Interrupt())
    trace = treadle.trace()
    with pytest.raises(Interrupt):
        trace.__enter__()
    treadle.get({"x": Task("x", inc, 1)}, "x")
    assert trace.tasks == 0
    assert trace not in _trace._active
