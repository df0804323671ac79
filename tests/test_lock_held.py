"""A graph that holds the interpreter's lock is reported, once; one that lets go of it is not."""

from __future__ import annotations

import os
import threading
import time
import warnings

import pytest
from dask._task_spec import Task

import treadle
from treadle.local import _lock_held

# Seconds in which the engine looks often enough to judge, also on a machine that others use.
SOON = 30


@pytest.fixture(autouse=True)
def over(monkeypatch):
    """An event that is set at the end: tasks that a run left shall not be in the next one's way."""
    monkeypatch.setattr(_lock_held, "_told", False)
    event = threading.Event()
    yield event
    event.set()


def graph(function, count, *args):
    return {("x", i): Task(("x", i), function, *args) for i in range(count)}


def pure_python(until, over):
    """Python code, until somebody was told."""
    while not _lock_held._told and not over.is_set() and time.monotonic() < until:
        for _ in range(10_000):
            pass


def waits(seconds):
    time.sleep(seconds)


def digests(rounds):
    from hashlib import sha256

    data = bytes(1 << 20)
    for _ in range(rounds):
        sha256(data)  # lets go of the lock


@pytest.mark.skipif(not os.path.exists("/proc/thread-self/schedstat"), reason="Linux says it")
def test_pure_python_is_told_once(over):
    dsk = graph(pure_python, 2, time.monotonic() + SOON, over)
    with pytest.warns(treadle.InterpreterLockWarning, match="treadle-processes") as seen:
        treadle.get(dsk, list(dsk), num_workers=2)
    assert len(seen) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dsk = graph(pure_python, 2, time.monotonic() + 1, over)
        treadle.get(dsk, list(dsk), num_workers=2)


def test_as_an_error_it_ends_the_run(over):
    dsk = graph(pure_python, 2, time.monotonic() + SOON, over)
    with warnings.catch_warnings():
        warnings.simplefilter("error", treadle.InterpreterLockWarning)
        with pytest.raises(treadle.InterpreterLockWarning):
            treadle.get(dsk, list(dsk), num_workers=2)


@pytest.mark.parametrize(
    ("function", "argument", "threads"),
    [(waits, 1.5, 2), (digests, 1000, 2), (pure_python, 1.5, 1)],
    ids=["tasks that wait", "tasks that let go of it", "one thread"],
)
def test_no_others(function, argument, threads, over):
    arguments = (argument,)
    if function is pure_python:
        arguments = (time.monotonic() + argument, over)
    dsk = graph(function, 2, *arguments)
    with warnings.catch_warnings():
        warnings.simplefilter("error", treadle.InterpreterLockWarning)
        treadle.get(dsk, list(dsk), num_workers=threads)
