"""What goes wrong is an error that names it: no hang, no thread left, nothing kept alive."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
import traceback
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
from dask._task_spec import Alias, List, Task, TaskRef
from dask.utils_test import inc

import treadle

pytestmark = pytest.mark.usefixtures("no_new_threads")


def test_a_cycle_is_named_in_order(get):
    dsk = {k: Task(k, inc, TaskRef(d)) for k, d in [("a", "b"), ("b", "c"), ("c", "a"), ("z", "a")]}
    with pytest.raises(treadle.CycleError) as error:
        get(dsk, "z")
    lines = [line.strip() for line in str(error.value).splitlines()]
    assert lines[1:] == ["-> 'a'", "-> 'b'", "-> 'c'", "-> 'a'"]
    assert isinstance(error.value, RuntimeError), "as Dask's"


def test_a_key_that_is_missing(get):
    with pytest.raises(KeyError, match="nope"):
        get({"x": Task("x", inc, 1)}, ["x", ["nope"]])


def test_a_dependency_that_is_missing_is_named_with_its_reader(get):
    dsk = {"x": Task("x", inc, TaskRef(("nope", 3))), "y": Task("y", inc, TaskRef("x"))}
    with pytest.raises(treadle.MissingDependencyError, match=r"'x' reads \('nope', 3\)"):
        get(dsk, "y")
    assert issubclass(treadle.MissingDependencyError, ValueError), "as Dask's"
    dsk["unneeded"] = Task("unneeded", inc, 1)
    assert get(dsk, "unneeded") == 2


def test_a_key_that_stands_for_itself_is_missing(get):
    with pytest.raises(KeyError, match="x"):
        get({"x": Alias("x")}, "x")


def test_a_key_that_cannot_be_hashed(get):
    with pytest.raises(TypeError, match=r"the request names a key that cannot be hashed: \{'a'\}"):
        get({"x": Task("x", inc, 1)}, {"a"})
    node = Task("x", inc, TaskRef("y"))
    node.args[0].key = ["y"]
    with pytest.raises(TypeError, match=r"'x' names a key that cannot be hashed: \['y'\]"):
        get({"x": node}, "x")


class Unequal:
    """A key whose comparison fails."""

    def __hash__(self):
        return 1

    def __eq__(self, other):
        raise ArithmeticError("incomparable")


def test_a_key_that_cannot_be_compared(get):
    with pytest.raises(ArithmeticError, match="incomparable"):
        get({"x": Task("x", inc, TaskRef(Unequal())), Unequal(): Task(1, inc, 1)}, "x")


class TwoArguments(Exception):
    """Pickling it works, unpickling does not."""

    def __init__(self, first, second):
        super().__init__(f"{first} {second}")


def fail(*args):
    raise TwoArguments("it", "failed")


def test_a_task_that_raises_gives_its_own_exception_and_traceback(get):
    with pytest.raises(TwoArguments, match="it failed") as error:
        get({"x": Task("x", fail), "y": Task("y", inc, TaskRef("x"))}, "y")
    frames = traceback.extract_tb(error.value.__traceback__)
    assert frames[-1].name == "fail"
    assert len(frames) <= 3, (
        "the test, the engine's get, and the task: nothing of the engine's inside"
    )
    assert error.value.__cause__ is None


def test_any_exception_passes_through(get):
    def leave():
        raise SystemExit(3)

    with pytest.raises(SystemExit) as error:
        get({"x": Task("x", leave)}, "x")
    assert error.value.code == 3


def test_nothing_starts_after_a_failure(get):
    ran = []

    def late(*args):
        ran.append(1)

    dsk = {"fail": Task("fail", fail)}
    dsk |= {i: Task(i, late, TaskRef("fail")) for i in range(50)}
    dsk |= {f"slow{i}": Task(f"slow{i}", time.sleep, 0.01) for i in range(200)}
    with pytest.raises(TwoArguments):
        get(dsk, list(dsk))
    assert not ran


def test_siblings_of_a_failed_task_stop():
    started = []
    failing, may_fail = threading.Event(), threading.Event()

    def sibling(i):
        started.append(i)
        may_fail.set()
        failing.wait(30)

    def fail_with_sibling():
        may_fail.wait(30)
        raise TwoArguments("it", "failed")

    dsk = {"fail": Task("fail", fail_with_sibling)}
    dsk |= {i: Task(i, sibling, i) for i in range(50)}
    with pytest.raises(TwoArguments):
        treadle.get(dsk, list(dsk), num_workers=2)
    failing.set()
    assert len(started) == 1, "the one that ran beside it"


def test_a_failure_releases_all_values(get, eventually):
    class Value:
        pass

    values = []

    def make():
        value = Value()
        values.append(weakref.ref(value))
        return value

    dsk = {i: Task(i, make) for i in range(10)}
    dsk["x"] = Task("x", fail, List(*map(TaskRef, range(10))))
    with pytest.raises(TwoArguments):
        get(dsk, ["x", *range(10)])
    gc.collect()
    eventually(lambda: all(value() is None for value in values))
    assert len(values) == 10


# Interrupts -------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def interrupts_are_heeded():
    """A process that was started in the background ignores them."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupt_main() -> None:
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)


@pytest.mark.parametrize("pool", [False, True])
@pytest.mark.parametrize("observed", [False, True])
def test_an_interrupt_does_not_wait_for_c_code(eventually, pool, observed):
    """`get` raises while the task is still inside a C call that only this test can end."""
    read, write = os.pipe()
    ended, kept, later = [], [], []

    class Value:
        pass

    def block():
        interrupt_main()
        os.read(read, 1)  # in C, detached from Python
        ended.append(1)
        value = Value()
        kept.append(weakref.ref(value))
        return value

    dsk = {"block": Task("block", block), "later": Task("later", later.append, TaskRef("block"))}
    kwargs = {"callbacks": [(None,) * 5]} if observed else {}
    executor = ThreadPoolExecutor(1) if pool else None
    try:
        with pytest.raises(KeyboardInterrupt):
            treadle.get(dsk, "later", num_workers=1, pool=executor, **kwargs)
        assert not ended, "get waited for the task"
    finally:
        os.write(write, b"x")
    eventually(lambda: bool(kept) and kept[0]() is None)
    assert not later, "a result that nobody wants led to another task"
    assert treadle.get({"x": Task("x", inc, 1)}, "x", num_workers=1, pool=executor) == 2
    if executor is not None:
        executor.shutdown()


@pytest.mark.parametrize("observed", [False, True])
def test_an_interrupt_does_not_wait_for_python_code(eventually, observed):
    stop, ended = threading.Event(), threading.Event()

    def spin():
        interrupt_main()
        while not stop.is_set():
            pass
        ended.set()

    kwargs = {"callbacks": [(None,) * 5]} if observed else {}
    try:
        with pytest.raises(KeyboardInterrupt):
            treadle.get({"x": Task("x", spin)}, "x", num_workers=1, **kwargs)
        assert not ended.is_set()
    finally:
        stop.set()
    eventually(ended.is_set)


def test_a_signal_stops_tasks_of_c_code_on_the_calling_thread():
    # None of these reaches the interpreter's own check for signals.
    n = 500_000
    ran = []
    dsk = {"first": Task("first", signal.setitimer, signal.ITIMER_REAL, 0.01)}
    dsk |= {i: Task(i, ran.append, TaskRef(i - 1 if i else "first")) for i in range(n)}
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            treadle.sync.get(dsk, n - 1)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert len(ran) < n


def test_a_handler_of_another_signal_runs_while_get_waits():
    read, write = os.pipe()
    before = signal.signal(signal.SIGUSR1, lambda *_: os.write(write, b"from the handler"))
    try:

        def wait_for_handler():
            signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
            return os.read(read, 100)

        assert treadle.get({"x": Task("x", wait_for_handler)}, "x") == b"from the handler"
    finally:
        signal.signal(signal.SIGUSR1, before)
