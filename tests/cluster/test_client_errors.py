"""Errors: those of tasks, and what cannot be pickled."""

from __future__ import annotations

import asyncio
import builtins
import io
import pdb  # noqa: T100  it is used on what a task raised
import re
import subprocess
import sys
import textwrap
import threading
import traceback
import warnings

import dask
import distributed
import pytest
from distributed import wait

from client_support import (
    AGAINST,
    SOON,
    add,
    client_class,
    distributed_fails,
    div,
    fail,
    identity,
    inc,
)

pytestmark = pytest.mark.usefixtures("quiet")


class CustomError(Exception):
    def __init__(self, message, code):
        super().__init__(message)
        self.code = code

    def __reduce__(self):
        return (CustomError, (self.args[0], self.code))


class UnpicklableError(Exception):
    def __init__(self, message):
        super().__init__(message)
        self.handle = lambda: None

    def __reduce__(self):
        raise TypeError("I am not to be pickled")


class BadOnReturn:
    """Its pickle cannot be read."""

    def __reduce__(self):
        return (fail, ("cannot be unpickled",))


class BadToPickle:
    def __getstate__(self):
        raise TypeError("cannot be pickled at all")


class NeedsTwoArgumentsError(Exception):
    # Exceptions are pickled by their args; this one cannot be made again from them.
    def __init__(self, a, b):
        super().__init__(f"{a} and {b}")


class CircleError(Exception):
    """It and its cause refer to each other; it has a slot, and a lock that cannot be pickled."""

    __slots__ = ("slot",)

    def __init__(self, slot, *, partner):
        super().__init__(f"slot {slot}")
        self.slot = slot
        self.lock = threading.Lock()
        self.partner = partner


def raise_circle(*_):
    cause = KeyError("cause")
    cause.effect = error = CircleError(3, partner=cause)
    raise error from cause


class Raises:
    def circle(self):
        raise_circle()

    @property
    def attribute(self):
        raise_circle()


def outer(x):
    return inner(x)


def inner(x):
    raise KeyError("from the inside", x)


def raise_it(make):
    raise make()


def test_type_message_and_arguments_are_kept(client):
    future = client.submit(inner, 5)
    with pytest.raises(KeyError) as caught:
        future.result(timeout=SOON)
    assert type(caught.value) is KeyError
    assert caught.value.args == ("from the inside", 5)


def test_the_status_and_the_exception_of_a_failed_future(client):
    future = client.submit(div, 1, 0)
    error = future.exception(timeout=SOON)
    assert isinstance(error, ZeroDivisionError)
    assert str(error) == "division by zero"
    assert future.status == "error"
    assert future.done()
    assert not future.cancelled()


def test_the_traceback_shows_the_users_frames(client):
    future = client.submit(outer, 1)
    with pytest.raises(KeyError) as caught:
        future.result(timeout=SOON)
    names = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert names[-2:] == ["outer", "inner"]
    lines = [frame.line for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert lines[-1] == 'raise KeyError("from the inside", x)'


IPYTHON = """
import sys
from IPython.core.ultratb import FormattedTB

shown = FormattedTB(mode="Context").structured_traceback(*sys.exc_info())
print("\\n".join(shown))
"""


def test_ipython_shows_the_traceback(client, tmp_path):
    # A process of its own: IPython looked for an instruction of the frames for ever.
    script = tmp_path / "script.py"
    script.write_text(f"""
from {client_class().__module__} import {client_class().__name__} as Client

def divide(x):
    return 1 / x

client = Client({client.scheduler.address!r}, set_as_default=False)
try:
    client.submit(divide, 0).result()
except ZeroDivisionError:
{textwrap.indent(IPYTHON, "    ")}
client.close()
""")
    command = [sys.executable, str(script)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=SOON, check=True)
    shown = re.sub("\x1b\\[[0-9;]*m", "", ran.stdout)
    assert "----> 5     return 1 / x" in shown
    assert shown.rstrip().endswith("ZeroDivisionError: division by zero")


def test_a_debugger_shows_the_frames_of_a_task(client):
    with pytest.raises(ZeroDivisionError) as caught:
        client.submit(div, 1, 0).result()
    said = io.StringIO()
    debugger = pdb.Pdb(stdin=io.StringIO("list\nquit\n"), stdout=said)
    debugger.reset()
    debugger.interaction(None, caught.value.__traceback__)
    assert "->	    return x / y" in said.getvalue()


def test_the_traceback_of_a_future(client):
    future = client.submit(outer, 1)
    tb = future.traceback(timeout=SOON)
    assert [f.name for f in traceback.extract_tb(tb)][-2:] == ["outer", "inner"]


def test_a_good_future_has_neither_exception_nor_traceback(client):
    future = client.submit(inc, 1)
    assert future.exception(timeout=SOON) is None
    assert future.traceback(timeout=SOON) is None


def test_an_error_can_be_raised_many_times(client):
    future = client.submit(div, 1, 0)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            future.result(timeout=SOON)


def test_exceptions_of_the_users_own_class(client):
    future = client.submit(raise_it, lambda: CustomError("custom", 42))
    with pytest.raises(CustomError, match="custom") as caught:
        future.result(timeout=SOON)
    assert caught.value.code == 42


def test_exceptions_of_a_class_defined_in_a_function(client):
    class LocalError(ValueError):
        pass

    def f():
        raise LocalError("local")

    future = client.submit(f)
    error = future.exception(timeout=SOON)
    assert type(error).__name__ == "LocalError"
    assert isinstance(error, ValueError)
    assert str(error) == "local"


def test_the_cause_of_an_exception_is_kept(client):
    def f():
        try:
            raise KeyError("the cause")
        except KeyError as error:
            raise ValueError("the effect") from error

    error = client.submit(f).exception(timeout=SOON)
    assert isinstance(error, ValueError)
    assert isinstance(error.__cause__, KeyError)
    assert error.__cause__.args == ("the cause",)


def test_an_exception_group_is_kept(client):
    if sys.version_info < (3, 11):
        pytest.skip("exception groups came with Python 3.11")

    def f():
        raise builtins.ExceptionGroup("many", [ValueError("a"), KeyError("b")])

    error = client.submit(f).exception(timeout=SOON)
    assert isinstance(error, builtins.ExceptionGroup)
    assert [type(e) for e in error.exceptions] == [ValueError, KeyError]


def error_of(call):
    try:
        call()
    except Exception as error:
        return error
    raise AssertionError("it did not raise")


@distributed_fails("what refers to itself or cannot be pickled arrives as an Exception of its repr")
@pytest.mark.parametrize(
    "way",
    [
        lambda client: client.submit(raise_circle).exception(SOON),
        lambda client: error_of(lambda: client.submit(raise_circle).result(SOON)),
        lambda client: client.submit(inc, client.submit(raise_circle)).exception(SOON),
        lambda client: error_of(dask.delayed(raise_circle)().compute),
        lambda client: error_of(lambda: client.run(raise_circle)),
        lambda client: next(iter(client.run(raise_circle, on_error="return").values())),
        lambda client: error_of(lambda: client.run_on_scheduler(raise_circle)),
        lambda client: error_of(
            lambda: client.submit(Raises, actor=True).result(SOON).circle().result()
        ),
        lambda client: error_of(lambda: client.submit(Raises, actor=True).result(SOON).attribute),
    ],
    ids=["exception", "result", "dependent", "collection", "run", "returned", "scheduler",
         "actor", "attribute"],
)  # fmt: skip
def test_an_exception_arrives_as_it_was(client, way):
    error = way(client)
    assert type(error) is CircleError
    assert (error.args, error.slot) == (("slot 3",), 3)
    assert error.__cause__ is error.partner
    assert error.partner.effect is error
    assert not hasattr(error, "lock")


@distributed_fails("what refers to itself arrives as an Exception of its repr")
def test_an_exception_of_a_class_of_main_arrives_as_it_was(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            """
            import treadle

            class MineError(Exception):
                __slots__ = ("slot",)

                def __init__(self, *, slot):
                    self.slot = slot

            def fails():
                error = MineError(slot=3)
                error.__cause__ = cause = ValueError("cause")
                cause.effect = error
                raise error

            with treadle.Client(workers=1) as client:
                try:
                    client.submit(fails).result()
                except MineError as error:
                    assert error.__cause__.effect is error
                    print("slot", error.slot)
            """
        )
    )
    command = [sys.executable, str(script)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=4 * SOON, check=False)
    assert "slot 3" in ended.stdout, ended.stderr


def test_dependents_of_a_failed_task_fail_with_its_error(client):
    x = client.submit(fail, "at the root")
    y = client.submit(inc, x)
    z = client.submit(add, y, 1)
    with pytest.raises(ValueError, match="at the root"):
        z.result(timeout=SOON)
    assert (x.status, y.status, z.status) == ("error", "error", "error")


def test_a_call_on_a_task_that_failed_before_fails(client):
    x = client.submit(fail, "long ago")
    wait(x, timeout=SOON)
    y = client.submit(inc, x)
    assert str(y.exception(timeout=SOON)) == "long ago"


def test_only_the_dependents_fail(client):
    good, bad = client.submit(inc, 1), client.submit(fail)
    assert client.submit(add, good, 1).result(timeout=SOON) == 3
    assert client.submit(add, good, bad).exception(timeout=SOON) is not None


def test_a_worker_survives_errors(client):
    futures = [client.submit(fail, str(i)) for i in range(20)]
    wait(futures, timeout=SOON)
    assert {f.status for f in futures} == {"error"}
    assert client.gather(client.map(inc, range(4))) == [1, 2, 3, 4]


def test_an_exception_that_cannot_be_pickled_is_described(client):
    future = client.submit(raise_it, lambda: UnpicklableError("secret message"))
    error = future.exception(timeout=SOON)
    assert isinstance(error, Exception)
    assert "secret message" in repr(error)
    assert "UnpicklableError" in repr(error)


def test_an_exception_that_cannot_be_made_again_is_described(client):
    future = client.submit(raise_it, lambda: NeedsTwoArgumentsError("this", "that"))
    with pytest.raises(Exception, match="this and that"):
        future.result(timeout=SOON)


def test_a_long_message_is_cut(client):
    future = client.submit(fail, "x" * 1_000_000)
    error = future.exception(timeout=SOON)
    assert "x" * 100 in str(error)
    assert len(str(error)) < 1_000_000


def test_a_function_that_cannot_be_pickled_is_refused_at_once(client):
    lock = threading.Lock()
    with pytest.raises(TypeError, match=r"[Cc]ould not serialize"):
        client.submit(lambda: lock)


def test_an_argument_that_cannot_be_pickled_is_refused_at_once(client):
    with pytest.raises(TypeError, match=r"[Cc]ould not serialize"):
        client.submit(identity, BadToPickle())


def test_a_refused_call_leaves_nothing_behind(client):
    with pytest.raises(TypeError):
        client.submit(identity, BadToPickle(), key="refused")
    assert client.submit(inc, 1).result(timeout=SOON) == 2


def test_an_argument_whose_pickle_cannot_be_read_fails_the_task(client):
    future = client.submit(identity, BadOnReturn(), key="unreadable")
    with pytest.raises((ValueError, RuntimeError)):
        future.result(timeout=SOON)
    assert client.submit(inc, 1).result(timeout=SOON) == 2


def test_a_result_that_cannot_be_pickled_stays_on_its_worker(client, workers):
    def make():
        import threading

        return threading.Lock()

    lock = client.submit(make, workers=workers[:1], pure=False)
    wait(lock, timeout=SOON)
    assert lock.status == "finished"
    used = client.submit(lambda lock: lock.acquire(), lock, workers=workers[:1], pure=False)
    assert used.result(timeout=SOON) is True
    with pytest.raises(TypeError):
        lock.result(timeout=SOON)


@distributed_fails("the other worker asks for it for ever")
def test_a_result_that_another_worker_needs_and_cannot_be_pickled(client, workers):
    def make():
        import threading

        return threading.Lock()

    lock = client.submit(make, workers=workers[:1], pure=False)
    used = client.submit(repr, lock, workers=workers[1:])
    with pytest.raises(TypeError):
        used.result(timeout=SOON)


def test_a_stop_iteration_is_an_error_like_others(client):
    def f():
        raise StopIteration("stopped")

    error = client.submit(f).exception(timeout=SOON)
    assert isinstance(error, (StopIteration, RuntimeError))


def test_base_exceptions_are_errors_of_the_task(client):
    class Base(BaseException):
        pass

    def f():
        raise Base("base")

    error = client.submit(f).exception(timeout=SOON)
    assert type(error).__name__ == "Base"
    assert client.submit(inc, 1).result(timeout=SOON) == 2


def test_a_cancelled_error_of_a_task_is_its_error(client):
    def f():
        raise asyncio.CancelledError("raised by the user")

    future = client.submit(f)
    wait(future, timeout=SOON)
    assert future.status == "error"
    error = future.exception(timeout=SOON)
    assert isinstance(error, asyncio.CancelledError)
    assert error.args == ("raised by the user",)


@distributed_fails(
    "neither the error nor its traceback can be pickled, and the client never hears of it"
)
def test_a_recursion_error(client):
    def f(n):
        return f(n + 1)

    assert "recursion" in str(client.submit(f, 0).exception(timeout=SOON))


def test_a_memory_error(client):
    def f():
        raise MemoryError("pretended")

    assert isinstance(client.submit(f).exception(timeout=SOON), MemoryError)


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_an_exit_ends_the_worker(new_client, error):
    # In distributed the worker's loop stops, its process ends and the task runs elsewhere.
    with dask.config.set({"distributed.scheduler.allowed-failures": 0}):
        client = new_client()

    def f():
        raise error("bye")

    future = client.submit(f, key="leaver")
    with pytest.raises(distributed.KilledWorker, match="leaver"):
        future.result(timeout=SOON)
    client.wait_for_workers(2, timeout=SOON)
    assert client.submit(inc, 1).result(timeout=SOON) == 2


def test_reschedule_runs_the_task_again(client, gate):
    def f(gate):
        gate.arrive()
        if len(gate.arrivals()) < 3:
            raise distributed.Reschedule
        return "settled"

    assert client.submit(f, gate).result(timeout=SOON) == "settled"
    assert len(gate.arrivals()) == 3


def test_warnings_of_tasks_can_be_sent_to_the_client(client, eventually, monkeypatch):
    def f():
        distributed.warn("beware", UserWarning)

    seen = []
    monkeypatch.setattr(warnings, "showwarning", lambda message, *_: seen.append(str(message)))
    monkeypatch.setattr(warnings, "filters", [("always", None, Warning, None, 0)])
    client.submit(f, pure=False).result(timeout=SOON)
    eventually(lambda: seen == ["beware"])


def test_prints_of_tasks_can_be_sent_to_the_client(client, eventually, capsys):
    def f():
        distributed.print("hello", "from a task")

    client.submit(f, pure=False).result(timeout=SOON)
    seen = []

    def printed():
        seen.append(capsys.readouterr().out)
        return "hello from a task" in "".join(seen)

    eventually(printed)


def test_workers_log_what_tasks_raise(client, eventually):
    """Nobody may look at the future."""
    future = client.submit(fail, "nobody looks", key="fails-unseen")
    distributed.fire_and_forget(future)
    del future

    def logged():
        logs = client.get_worker_logs().values()
        return [text for log in logs for level, text in log if level == "ERROR"]

    eventually(lambda: any("nobody looks" in text for text in logged()))
    (text,) = [text for text in logged() if "nobody looks" in text]
    assert "Compute Failed" in text
    assert "fails-unseen" in text
    assert "client_support.py" in text


@pytest.mark.skipif(AGAINST != "treadle", reason="distributed logs all of them")
def test_few_of_many_tasks_that_fail_at_once_are_logged(caplog, monkeypatch):
    import logging

    from treadle.common._stderr import wait_for_asides
    from treadle.worker._failures import FailureLog

    logging.disable(logging.NOTSET)
    now = [5.25]
    monkeypatch.setattr("treadle.worker._failures.time.monotonic", lambda: now[0])
    log = FailureLog()
    log.task_failed("cancelled", asyncio.CancelledError())
    for number in range(100):
        log.task_failed(number, ValueError(number))
    wait_for_asides(SOON)
    assert len(caplog.messages) == 10
    assert "More that fail within this second" in caplog.messages[-1]
    now[0] += 1
    log.task_failed("x" * 10_000, ValueError("y" * 10_000))
    wait_for_asides(SOON)
    assert len(caplog.messages) == 11
    assert len(caplog.messages[-1]) < 3000
