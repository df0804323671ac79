"""Threads: who runs what, together with whom, and what is left afterwards."""

from __future__ import annotations

import contextvars
import itertools
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.pool import ThreadPool

import dask
import dask.array as da
import pytest
from dask._task_spec import List, Task, TaskRef

import treadle


def meeting(parties: int) -> dict:
    """Tasks that only end when all of them run at once, and the set of their threads."""
    barrier = threading.Barrier(parties, timeout=30)

    def meet(_):
        barrier.wait()
        return threading.get_ident()

    dsk = {i: Task(i, meet, i) for i in range(parties)}
    dsk["threads"] = Task("threads", set, List(*map(TaskRef, range(parties))))
    return dsk


def test_as_many_threads_as_asked_for_run_at_once():
    assert len(treadle.get(meeting(5), "threads", num_workers=5)) == 5
    with dask.config.set(num_workers=3):
        assert len(treadle.get(meeting(3), "threads")) == 3


def test_never_more_threads_than_asked_for():
    running, most = itertools.count(), []
    lock, now = threading.Lock(), []

    def task(_):
        with lock:
            now.append(1)
            most.append(len(now))
        time.sleep(0.001)
        now.pop()
        return next(running)

    dsk = {i: Task(i, task, i) for i in range(100)}
    treadle.get(dsk, list(dsk), num_workers=3)
    assert max(most) <= 3


def test_the_thread_that_called_runs_no_task():
    # It has to stay free for signals.
    assert threading.get_ident() not in treadle.get(meeting(2), "threads", num_workers=2)
    assert threading.get_ident() == treadle.sync.get({"x": Task("x", threading.get_ident)}, "x")


def test_the_engine_names_its_threads():
    name = treadle.get({"x": Task("x", lambda: threading.current_thread().name)}, "x")
    assert name.startswith("treadle-")


@pytest.mark.parametrize("kind", [ThreadPool, ThreadPoolExecutor])
@pytest.mark.parametrize("configured", [False, True])
def test_a_given_pool_runs_the_tasks(kind, configured):
    with kind(3) as pool:
        if configured:
            with dask.config.set(pool=pool):
                threads = treadle.get(meeting(3), "threads")
        else:
            threads = treadle.get(meeting(3), "threads", pool=pool)
    assert len(threads) == 3


def test_several_gets_at_once():
    results = {}

    def compute(i):
        x = da.arange(200, chunks=3) + i
        results[i] = [int(x.sum().compute(scheduler="treadle")) for _ in range(5)]

    threads = [threading.Thread(target=compute, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {i: [19900 + 200 * i] * 5 for i in range(8)}


def test_gets_that_need_each_other_at_once():
    # Two runs of one thread each, which can only end together: they must not share a thread.
    barrier = threading.Barrier(2, timeout=30)
    dsk = {"x": Task("x", barrier.wait)}
    runs = [
        threading.Thread(target=treadle.get, args=(dsk, "x"), kwargs={"num_workers": 1})
        for _ in range(2)
    ]
    for run in runs:
        run.start()
    for run in runs:
        run.join()
    assert not barrier.broken


@pytest.mark.parametrize("kwargs", [{}, {"num_workers": 1}])
def test_a_nested_compute_runs_on_the_calling_thread(kwargs):
    def nested(depth):
        if depth == 0:
            return [threading.get_ident()]
        dsk = {"x": Task("x", nested, depth - 1)}
        return [threading.get_ident(), *treadle.get(dsk, "x", **kwargs)]

    assert len(set(treadle.get({"x": Task("x", nested, 5)}, "x", **kwargs))) == 1


@pytest.mark.parametrize("observed", [False, True])
def test_a_nested_compute_in_a_pool_of_one_thread(observed):
    def nested():
        with treadle.installed():
            return int(da.ones(10, chunks=3).sum().compute())

    callbacks = [(None,) * 5] if observed else None
    with ThreadPoolExecutor(1) as pool, dask.config.set(pool=pool):
        assert treadle.get({"x": Task("x", nested)}, "x", callbacks=callbacks) == 10


def test_many_computes_inside_tasks():
    def nested(i):
        return int((da.ones(10, chunks=3) + i).sum().compute(scheduler="treadle"))

    dsk = {i: Task(i, nested, i) for i in range(20)}
    assert treadle.get(dsk, list(dsk)) == tuple(10 + 10 * i for i in range(20))


variable = contextvars.ContextVar("variable", default="default")


@pytest.mark.parametrize("pool", [None, ThreadPoolExecutor, ThreadPool])
def test_tasks_see_the_context_of_their_get_and_not_each_others(pool):
    def look_and_set():
        seen = variable.get()
        variable.set("changed by a task")
        return seen

    dsk = {i: Task(i, look_and_set) for i in range(20)}
    kwargs = {"num_workers": 2} if pool is None else {"pool": pool(2)}
    token = variable.set("of the caller")
    try:
        assert set(treadle.get(dsk, list(dsk), **kwargs)) == {"of the caller"}
        assert variable.get() == "of the caller"
    finally:
        variable.reset(token)
        if pool is not None:
            kwargs["pool"].__exit__(None, None, None)


def test_other_threads_live_while_tasks_of_c_code_run(get):
    # list.pop never reaches the point where the interpreter lets others run. Only another thread
    # makes it fail, once it has run a few times.
    n = 100_000
    zeros = [0] * n
    dsk = {i: Task(i, zeros.pop, TaskRef(i - 1)) for i in range(1, n)}
    started = threading.Event()
    dsk[0] = Task(0, lambda: started.set() or 0)

    def live():
        started.wait()
        for _ in range(3):
            time.sleep(0)
        zeros.clear()

    thread = threading.Thread(target=live)
    thread.start()
    with pytest.raises(IndexError):
        get(dsk, n - 1)
    thread.join()


def test_a_thread_that_is_busy_dropping_a_value_holds_nobody_up():
    started, dropping, go_on = threading.Event(), threading.Event(), threading.Event()
    barrier = threading.Barrier(2, timeout=30)

    class Slow:
        def __del__(self):
            dropping.set()
            assert go_on.wait(30)

    def other():
        started.set()
        assert dropping.wait(30)

    dsk = {
        "value": Task("value", Slow),
        "reader": Task("reader", lambda _: started.wait(30), TaskRef("value")),
        "other": Task("other", other),
        # Ready while the thread of "reader" has left the run, but is not home yet.
        "x": Task("x", lambda _: barrier.wait(), TaskRef("other")),
        "y": Task("y", lambda _: barrier.wait(), TaskRef("other")),
    }
    try:
        treadle.get(dsk, ["reader", "x", "y"], num_workers=2)
    finally:
        go_on.set()


def test_many_short_runs_at_once():
    """Threads go from run to run all the time; none may get lost on the way."""
    wrong = []

    def compute(seed):
        for i in range(60):
            n = 1 + (seed * 7 + i) % 5
            barrier = threading.Barrier(n, timeout=60)

            def meet(k, barrier=barrier):
                barrier.wait()
                return k

            dsk = {k: Task(k, meet, k) for k in range(n)}
            if treadle.get(dsk, list(dsk), num_workers=n) != tuple(range(n)):
                wrong.append((seed, i))

    threads = [threading.Thread(target=compute, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_idle_threads_are_used_again():
    dsk = {i: Task(i, lambda _: threading.current_thread().name, i) for i in range(20)}
    names = set()
    for _ in range(200):
        names.update(treadle.get(dsk, list(dsk), num_workers=3))
    # A run may begin while threads of the last one are still on their way home.
    assert len(names) <= 12


def run(code: str, **kwargs) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, **kwargs
    )


def test_a_forked_child_has_an_engine_of_its_own():
    code = """
import os, sys, threading, treadle
from dask._task_spec import Task
names = lambda: {t.name for t in threading.enumerate()}
dsk = {i: Task(i, pow, i, 2) for i in range(50)}
expected = tuple(i * i for i in range(50))
assert treadle.get(dsk, list(dsk), num_workers=3) == expected
for _ in range(20):
    child = os.fork()
    if child == 0:
        ok = treadle.get(dsk, list(dsk), num_workers=3) == expected
        ok = ok and treadle.sync.get(dsk, 7) == 49
        os._exit(0 if ok else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert treadle.get(dsk, list(dsk), num_workers=3) == expected
"""
    result = run(code)
    assert result.returncode == 0, result.stderr


def test_a_fork_inside_a_task_leaves_the_parents_run_alone():
    code = """
import os, time, treadle
from dask._task_spec import Task, TaskRef
from dask.utils_test import inc
read, write = os.pipe()
def fork():
    # The child comes back from this task too, and must not go on with the parent's run.
    child = os.fork()
    if child == 0:
        nested = treadle.get({"y": Task("y", inc, 1)}, "y")
        os.write(write, b"%d" % nested)
    else:
        os.waitpid(child, 0)
    return child
def after(child):
    os.write(write, b"!")
    return child
dsk = {"fork": Task("fork", fork), "after": Task("after", after, TaskRef("fork"))}
treadle.get(dsk, "after", num_workers=1)
assert os.read(read, 10) == b"2!", "the child ran a task of the parent"
"""
    result = run(code)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    ("end", "status", "said"),
    [("raise ValueError('it fails')", 1, "ValueError: it fails"), ("sys.exit(3)", 3, "")],
)
def test_what_a_child_of_a_task_raises_is_its_end(end, status, said):
    code = f"""
import os, sys, treadle
from dask._task_spec import Task
def fork():
    child = os.fork()
    if child == 0:
        {end}
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print(treadle.get({{"fork": Task("fork", fork)}}, "fork"))
"""
    result = run(code)
    assert (result.returncode, result.stdout) == (0, f"{status}\n"), result.stderr
    assert said in result.stderr
    assert "was forked in a task" in result.stderr


# What a signal handler raises while the engine waits for a new thread to begin.
INTERRUPTED = """
import sys, threading, time, treadle
from dask._task_spec import Task
wait, armed = threading.Event.wait, [True]
def interrupted(self, timeout=None):
    if sys._getframe(1).f_code.co_name == "start" and armed.pop():
        if {begins}:
            wait(self, timeout)
        raise KeyboardInterrupt
    return wait(self, timeout)
def get():
    return treadle.get({{"x": Task("x", pow, 2, 3)}}, "x")
threading.Event.wait = interrupted
try:
    get()
except KeyboardInterrupt:
    print("interrupted", flush=True)
threading.Event.wait = wait
assert get() == 8
time.sleep(11)  # an idle thread ends after 10 s
assert get() == 8
print("end")
"""


def test_an_interrupt_while_a_thread_begins_leaves_the_engine_whole():
    programs = [INTERRUPTED.format(begins=begins) for begins in (False, True)]
    with ThreadPoolExecutor() as pool:
        for result in pool.map(run, programs):
            assert (result.returncode, result.stdout) == (0, "interrupted\nend\n"), result.stderr


def test_a_child_of_multiprocessing_computes():
    code = """
import multiprocessing, treadle
from dask._task_spec import Task
def child(i):
    return treadle.get({"x": Task("x", pow, i, 2)}, "x")
if __name__ == "__main__":
    assert child(3) == 9
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map(child, range(10)) == [i * i for i in range(10)]
"""
    result = run(code)
    assert result.returncode == 0, result.stderr


def test_the_interpreter_ends_while_threads_are_idle_and_while_a_task_is_in_flight():
    code = """
import threading, time, treadle
from dask._task_spec import Task
dsk = {i: Task(i, time.sleep, 0.2) for i in range(4)}
t = threading.Thread(target=treadle.get, args=(dsk, list(dsk)), kwargs={"num_workers": 2})
t.daemon = True
t.start()
time.sleep(0.1)
print("end")
"""
    result = run(code)
    assert (result.returncode, result.stdout, result.stderr) == (0, "end\n", "")


def test_numpy_tasks_run_at_the_same_time():
    """Tasks that release the interpreter's lock overlap: each waits for the other inside C code."""
    pairs = [os.pipe(), os.pipe()]

    def exchange(mine, other):
        os.write(other[1], b"x")
        return os.read(mine[0], 1)

    dsk = {
        "a": Task("a", exchange, pairs[0], pairs[1]),
        "b": Task("b", exchange, pairs[1], pairs[0]),
    }
    try:
        assert treadle.get(dsk, ["a", "b"], num_workers=2) == (b"x", b"x")
    finally:
        for end in itertools.chain(*pairs):
            os.close(end)
