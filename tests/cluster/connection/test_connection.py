"""The native end of a client (`treadle._core.Connection`): how it begins, waits and ends."""

from __future__ import annotations

import gc
import os
import select
import signal
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from connection_support import (
    Connect,
    Handlers,
    State,
    answer,
    boom,
    inc,
    run,
    slow,
    until,
)

from client_support import SOON
from treadle import _core
from treadle.client._state import State as ClientState
from treadle.cluster._local_cluster import LocalCluster

# Connecting


def test_a_connection_knows_its_scheduler(cluster: LocalCluster, connection: Any) -> None:
    assert connection.address == cluster.scheduler_address
    assert connection.info["type"] == "Scheduler"
    assert isinstance(connection.id, int)
    assert connection.closed is None
    assert "open" in repr(connection)


def test_a_wrong_secret_is_refused(connect: Connect) -> None:
    with pytest.raises(OSError, match="secret"):
        connect(secret=b"another secret, long enough to be one")


def test_nobody_there_is_an_os_error() -> None:
    with pytest.raises(OSError, match=r"127\.0\.0\.1:1"):
        _core.Connection("treadle://127.0.0.1:1", "client", Handlers(), secret=b"x" * 32)


def test_what_makes_no_sense_is_a_value_error(connect: Connect) -> None:
    with pytest.raises(ValueError, match="role"):
        connect(role="worker")
    with pytest.raises(ValueError, match="timeout"):
        connect(timeout=-1.0)
    with pytest.raises(ValueError, match="certificate"):
        connect(certificates={"ca": "x"})


# Keys


def test_a_key_of_another_client(connect: Connect) -> None:
    one, other = connect(), connect()
    run(one, inc, 1, key="of another")
    state = State("of another")
    other.watch("of another", state)
    until(other, state)
    assert other.value("of another") == 2
    assert one.value("of another") == 2


def test_an_unknown_key_is_lost(connection: Any) -> None:
    state = State("nobody makes it")
    connection.watch(state.key, state)
    assert connection.wait(lambda: bool(state.told), SOON)
    assert state.told == ["lost"]


def test_released_keys_are_forgotten(connection: Any) -> None:
    state = run(connection, inc, 1, key="forget me")
    reference = weakref.ref(state)
    connection.release(["forget me", "never known"])
    assert connection.state("forget me") is None
    del state
    gc.collect()
    assert reference() is None
    again = State("forget me")
    connection.watch("forget me", again)
    assert connection.wait(lambda: bool(again.told), SOON)
    assert again.told == ["lost"]


def test_cancelling_tells_why(connect: Connect) -> None:
    one, other = connect(), connect()
    states = [State("cancel me"), State("cancel me")]
    one.submit_call("cancel me", states[0], slow, (SOON,), {}, {"resources": {"none": 1.0}})
    # What a connection has said before a question has been heard when the answer comes.
    answer(one, "", "identity", {})
    other.watch("cancel me", states[1])
    answer(other, "", "identity", {})
    one.cancel(["cancel me"], True, "a reason", "a message")
    until(one, states[0])
    until(other, states[1])
    assert states[1].told[-1] == ("cancelled", "a reason", "a message")


def test_retrying_runs_it_again(connection: Any, tmp_path: Any) -> None:
    flag = tmp_path / "flag"

    def fails_once(path: str) -> str:
        if not os.path.exists(path):
            open(path, "w").close()
            raise ValueError("the first time")
        return "the second time"

    state = run(connection, fails_once, str(flag))
    assert state.status == "error"
    connection.retry([state.key])
    assert connection.wait(lambda: state.status == "finished", SOON)
    assert connection.value(state.key) == "the second time"


# Questions


def test_questions_to_the_scheduler(cluster: LocalCluster, connection: Any) -> None:
    result, error = answer(connection, "", "identity", {})
    assert error is None
    assert result["address"] == cluster.scheduler_address


class Unreadable:
    """An argument whose pickle cannot be read."""

    def __reduce__(self) -> tuple[Any, ...]:
        return boom, ("on purpose",)


def test_a_call_whose_argument_a_worker_cannot_read_is_answered(connection: Any) -> None:
    identity, _ = answer(connection, "", "identity", {})
    (worker,) = identity["workers"]
    result, error = answer(connection, worker, "ping", Unreadable())
    assert result is None
    assert "the message cannot be read: ValueError: on purpose" in error


def test_an_error_is_an_answer(connection: Any) -> None:
    result, error = answer(connection, "", "no such operation", None)
    assert result is None
    assert "no such operation" in error


def test_clients_ask_each_other(cluster: LocalCluster) -> None:
    told = Handlers()
    secret, address = Path(cluster.secret_file), cluster.scheduler_address
    asked = _core.Connection(address, "client-asked", told, secret=secret)
    asking = _core.Connection(address, "client-asking", Handlers(), secret=secret)
    answers: list[Any] = []
    asking.call("client-asked", "add", [1, 2], lambda *one: answers.append(one))
    assert asked.wait(lambda: bool(told.told), SOON)
    ((kind, number, _node, operation, argument),) = told.told
    assert (kind, operation, argument) == ("call", "add", [1, 2])
    asked.answer(number, {"sum": 3})
    assert asking.wait(lambda: bool(answers), SOON)
    assert answers == [({"sum": 3}, None)]
    asked.close()
    asking.close()


# Waiting


def test_a_wait_ends_in_time(connection: Any) -> None:
    assert connection.wait(lambda: False, 0.01) is False
    assert connection.wait(lambda: False, 0) is False
    assert connection.wait(lambda: True, 0) is True


def test_what_done_raises_ends_the_wait(connection: Any) -> None:
    with pytest.raises(ZeroDivisionError):
        connection.wait(lambda: 1 / 0)
    assert run(connection, inc, 1).status == "finished"


def test_many_threads_wait_at_once(connection: Any) -> None:
    results: list[Any] = []

    def work(thread: int) -> None:
        for i in range(20):
            state = run(connection, inc, i, key=("thread", thread, i))
            results.append(connection.value(state.key) == i + 1)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SOON)
    assert results == [True] * 160


def test_a_state_may_wait_itself(connection: Any) -> None:
    class Waits(State):
        def finish(self, type: Any = None) -> None:  # noqa: A002
            until(connection, inner)
            super().finish(type)

    inner, outer = State("inner"), Waits("outer")
    connection.submit_call("outer", outer, inc, (1,), {})
    connection.submit_call("inner", inner, slow, (0.05,), {})
    until(connection, outer)
    assert inner.status == "finished"


def test_what_a_state_raises_does_not_stop_the_others(connection: Any) -> None:
    class Raises(State):
        def finish(self, type: Any = None) -> None:  # noqa: A002
            self.status = "finished"
            raise ValueError("reported")

    reported: list[Any] = []
    hook, sys.unraisablehook = sys.unraisablehook, reported.append
    try:
        states = [Raises("raises"), State("does not")]
        connection.submit_calls([state.key for state in states], states, inc, [(1,), (2,)], {})
        until(connection, *states)
    finally:
        sys.unraisablehook = hook
    assert [str(one.exc_value) for one in reported] == ["reported"]


def test_an_event_loop_is_told(connection: Any) -> None:
    states = [State(f"loop-{i}") for i in range(100)]
    keys = [state.key for state in states]
    connection.submit_calls(keys, states, inc, [(i,) for i in range(100)], {})
    until_then = time.monotonic() + SOON
    while not all(state.done() for state in states):
        assert time.monotonic() < until_then
        readable, _, _ = select.select([connection.fileno()], [], [], 1.0)
        if readable:
            connection.process()
    # Nothing is left, so it is quiet.
    while select.select([connection.fileno()], [], [], 0.05)[0]:
        connection.process()
    assert connection.process() == 0


def test_ctrl_c_ends_a_wait() -> None:
    code = """
import os, signal, threading
from treadle import _core
# It is ignored in what a shell runs in its background.
signal.signal(signal.SIGINT, signal.default_int_handler)
server = _core.Scheduler(secret=b"x" * 32)
connection = _core.Connection(server.address, "client", None, secret=b"x" * 32)
interrupt = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
def waits():
    if interrupt.ident is None:
        interrupt.start()
    return False
try:
    connection.wait(waits, 30)
except KeyboardInterrupt:
    print("interrupted")
connection.close()
server.close()
"""
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=SOON, check=False
    )
    assert ran.stdout == "interrupted\n", ran.stderr


def test_the_states_of_clients_are_told_without_a_call(connection: Any) -> None:
    called = []

    class Watched(ClientState):
        __slots__ = ()

        def finish(self, type: Any = None) -> None:  # noqa: A002
            called.append(self.key)
            super().finish(type)

    states = [ClientState("plain"), ClientState("waked"), Watched("subclass")]
    woken: list[Any] = []
    states[1].add_waker(woken.append)
    connection.submit_calls([state.key for state in states], states, np.arange, [(5000,)] * 3, {})
    until(connection, *states)
    assert [state.status for state in states] == ["finished"] * 3
    assert [state.type for state in states] == [np.ndarray] * 3
    assert woken == [states[1]]
    assert called == ["subclass"]


class Interrupts(ModuleType):
    """A module that Ctrl-C meets once while the main thread looks for a class in it."""

    is_armed = False

    def __getattribute__(self, name: str) -> Any:
        on_main = threading.current_thread() is threading.main_thread()
        if name == "Kind" and Interrupts.is_armed and on_main:
            Interrupts.is_armed = False
            raise KeyboardInterrupt
        return super().__getattribute__(name)


def test_ctrl_c_while_a_type_is_loaded_is_raised_and_the_type_is_known_later(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = Interrupts("treadle_interrupts")
    kind = type("Kind", (), {"__module__": module.__name__})
    module.Kind = kind  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    connection = connect()
    state = State("made by a module that is interrupted")
    connection.submit_call(state.key, state, kind, (), {}, None)
    # From now on only what comes back is looked up by this thread.
    monkeypatch.setattr(Interrupts, "is_armed", True)
    with pytest.raises(KeyboardInterrupt):
        until(connection, state)
    until(connection, state)
    assert state.type is kind
    assert state.told == ["finished"]


# Ending


def test_a_closed_connection_says_so(connect: Connect) -> None:
    handlers = Handlers()
    connection = connect(handlers)
    answers: list[Any] = []
    connection.call("client-nobody", "wait", None, lambda *one: answers.append(one))
    results: list[Any] = []
    state = State("never made")
    connection.submit_call(state.key, state, inc, (1,), {}, {"resources": {"none": 1.0}})
    connection.fetch(1, [state.key], lambda *one: results.append(one))
    connection.close()
    assert connection.closed == "it was closed here"
    assert ("closed", "it was closed here") in handlers.told
    ((_, error),) = answers
    assert isinstance(error, (ConnectionError, RuntimeError))
    ((values, errors),) = results
    assert not values
    assert isinstance(errors[state.key], ConnectionError)
    with pytest.raises(ConnectionError):
        connection.submit_call("x", State("x"), inc, (1,), {})
    with pytest.raises(ConnectionError):
        connection.wait(lambda: False)
    connection.close()


def test_the_end_of_the_scheduler_wakes_everybody() -> None:
    server = _core.Scheduler(secret=b"x" * 32)
    handlers = Handlers()
    connection = _core.Connection(server.address, "client", handlers, secret=b"x" * 32)
    outcomes: list[Any] = []

    def wait() -> None:
        try:
            outcomes.append(connection.wait(lambda: False, SOON))
        except ConnectionError as error:
            outcomes.append(error)

    threads = [threading.Thread(target=wait) for _ in range(4)]
    for thread in threads:
        thread.start()
    server.close()
    for thread in threads:
        thread.join(SOON)
    assert [type(outcome) for outcome in outcomes] == [ConnectionError] * 4
    assert [told[0] for told in handlers.told] == ["closed"]
    assert connection.closed is not None


def test_a_connection_that_is_dropped_is_closed(cluster: LocalCluster, connection: Any) -> None:
    told = Handlers()
    address, secret = connection.address, Path(cluster.secret_file)
    dropped = _core.Connection(address, "client-dropped", told, secret=secret)
    answers: list[tuple[Any, Any]] = []
    connection.call("client-dropped", "ask", None, lambda *one: answers.append(one))
    assert dropped.wait(lambda: bool(told.told), SOON)
    assert not answers
    del dropped
    assert connection.wait(lambda: bool(answers), SOON)
    ((result, error),) = answers
    assert result is None
    assert "client-dropped" in str(error)


def test_a_forked_child_leaves_it_alone(connection: Any) -> None:
    child = os.fork()
    if child == 0:
        try:
            connection.call("", "identity", {}, print)
        except RuntimeError:
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert run(connection, inc, 1).status == "finished"


def test_signals_do_not_disturb_waits(connection: Any) -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, _: seen.append(number))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
        assert run(connection, slow, 0.2, key="signals").status == "finished"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert seen
