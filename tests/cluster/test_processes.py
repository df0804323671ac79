"""Graphs on processes of this machine: `scheduler="treadle-processes"`."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading

import dask
import dask.bag as db
import pytest
from dask import delayed
from dask.callbacks import Callback

import treadle
from waiting import SOON, until

LOCK = threading.Lock()
HERE = os.getpid()


@pytest.fixture(autouse=True)
def on_two_processes():
    with dask.config.set(scheduler="treadle-processes", num_workers=2):
        yield


def place(*_inputs):
    return os.getpid()


def new_lock(*_inputs):
    return threading.Lock()


def is_free(lock):
    return os.getpid(), lock.acquire(blocking=False)


def both_free(first, second):
    return os.getpid(), first.acquire(blocking=False), second.acquire(blocking=False)


class Jar:
    value = "empty"


def fill():
    Jar.value = "full"


def test_the_names():
    of_dask = dask.base.named_schedulers["processes"]
    with treadle.installed("processes"):
        assert dask.config.get("scheduler") == "treadle-processes"
        assert dask.base.named_schedulers["treadle-processes"] is treadle.processes.get
        with treadle.installed():
            assert dask.base.named_schedulers["processes"] is treadle.processes.get
        assert dask.base.named_schedulers["multiprocessing"] is treadle.processes.get
        assert delayed(place)().compute() != HERE
    assert dask.base.named_schedulers["processes"] is of_dask is not treadle.processes.get


def test_the_processes_are_kept_and_ours():
    places = dask.compute(*[delayed(place)(i) for i in range(20)])
    assert HERE not in places
    assert set(dask.compute(*[delayed(place)(i) for i in range(20)])) | set(places) == set(places)


def test_a_function_that_cannot_be_pickled():
    locked = delayed(lambda *_inputs: (os.getpid(), LOCK.locked()))
    before = delayed(place)()
    middle = locked(before)
    after = delayed(place)(middle)
    last = locked(after)
    first, second, third, fourth = dask.compute(before, middle, after, last)
    assert second == fourth == (HERE, False)
    assert first != HERE != third


def test_an_argument_that_cannot_be_pickled():
    task = delayed(is_free)(LOCK)
    assert task.compute() == (HERE, True)
    LOCK.release()
    assert treadle.processes.get({"lock": LOCK, "x": (is_free, "lock")}, "x") == (HERE, True)
    LOCK.release()


def test_values_that_cannot_be_pickled():
    locks = dask.compute(*[delayed(new_lock)(i) for i in range(3)], delayed(place)())
    assert [is_free(lock) for lock in locks[:3]] == [(HERE, True)] * 3
    assert locks[3] != HERE


def meet_and_lock(directory, name, other):
    (directory / name).touch()
    until((directory / other).exists)
    return threading.Lock()


def test_inputs_of_two_processes_that_cannot_be_pickled(tmp_path):
    # Each waits until the other runs: they are on two processes.
    graph = {
        "a": (meet_and_lock, tmp_path, "first", "second"),
        "b": (meet_and_lock, tmp_path, "second", "first"),
        "c": (both_free, "a", "b"),
    }
    assert treadle.processes.get(graph, "c") == (HERE, True, True)


def test_an_error_of_a_task_is_no_reason_to_stay():
    def fails():
        raise TypeError("cannot pickle it, says the task")

    with pytest.raises(TypeError, match="says the task"):
        delayed(fails)().compute()


def test_callbacks_see_each_task():
    seen = []
    with Callback(posttask=lambda key, *_: seen.append(key)):
        places = dask.compute(*[delayed(place)(i) for i in range(4)])
    assert len(seen) == 4
    assert HERE not in places


def test_an_initializer():
    value = delayed(lambda: Jar.value, pure=False)
    assert value().compute(initializer=fill) == "full"
    with dask.config.set({"multiprocessing.initializer": fill}):
        assert value().compute() == "full"
    assert value().compute() == "empty"


def test_processes_that_are_forked():
    with dask.config.set({"multiprocessing.context": "fork"}):
        assert delayed(place)().compute() != HERE


def test_picklers_of_ones_own_are_refused_aloud(monkeypatch):
    monkeypatch.setattr(treadle.processes, "_warned_of_pickles", False)
    with pytest.warns(UserWarning, match="func_dumps= and func_loads="):
        assert delayed(place)().compute(func_dumps=repr) != HERE


def test_groups_by_strings():
    words = db.from_sequence([f"word {i % 7}" for i in range(100)], npartitions=6)
    groups = words.groupby(str, shuffle="tasks").map(lambda group: len(group[1])).compute()
    assert sorted(groups) == [14, 14, 14, 14, 14, 15, 15]


def test_inside_a_task_of_threads():
    nested = delayed(lambda: delayed(place)().compute(scheduler="treadle-processes", num_workers=2))
    assert nested().compute(scheduler="treadle") == HERE


FORKING = """
import os

import dask
from dask import delayed

def place(*_inputs):
    return os.getpid()

if __name__ == "__main__":
    dask.config.set(scheduler="treadle-processes", num_workers=1)
    import treadle

    first = delayed(place)().compute()
    child = os.fork()
    if child == 0:
        ok = delayed(place)(delayed(place)()).compute() not in (first, os.getpid())
        os._exit(0 if ok else 3)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    print(delayed(place)().compute() == first)
"""


def test_a_child_that_is_forked_has_processes_of_its_own(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(FORKING)
    ran = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=4 * SOON
    )
    assert ran.stdout == "0\nTrue\n", ran.stderr


def test_what_cannot_be_pickled_is_no_error_in_the_log(caplog):
    assert delayed(lambda: (os.getpid(), LOCK.locked()))().compute() == (HERE, False)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
