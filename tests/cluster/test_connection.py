"""The native end of a client (`treadle._core.Connection`), with a scheduler and a worker in this process.

States are simple objects here: what `treadle.Client` makes of them is tested elsewhere.
"""

from __future__ import annotations

import gc
import operator
import os
import select
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from dask._task_spec import Alias, DataNode, List, Task, TaskRef

from client_support import SOON
from treadle import MissingDependencyError, _core
from treadle.client._local import LocalCluster
from treadle.client._state import State as ClientState


class State:
    """Notes what it is told."""

    def __init__(self, key: Any) -> None:
        self.key = key
        self.status = "pending"
        self.type: Any = None
        self.exception: BaseException | None = None
        self.told: list[Any] = []

    def _note(self, status: str, *details: Any) -> None:
        self.status = status
        self.told.append((status, *details) if details else status)

    def finish(self, type: Any = None) -> None:  # noqa: A002
        self.type = type
        self._note("finished")

    def native_failed(self, kind: str, key: Any, payload: Any) -> None:
        self.exception = RuntimeError(kind, key)
        self._note("error", kind, key, payload)

    def native_cancelled(self, reason: str | None, message: str | None) -> None:
        self._note("cancelled", reason, message)

    def lose(self) -> None:
        self._note("lost")

    def retry(self) -> None:
        self._note("pending")

    def done(self) -> bool:
        return self.status not in ("pending", "lost")


class Handlers:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def on_call(self, *call: Any) -> None:
        self.told.append(("call", *call))

    def on_stuck(self, *stuck: Any) -> None:
        self.told.append(("stuck", *stuck))

    def on_restarted(self) -> None:
        self.told.append("restarted")

    def on_closed(self, reason: str) -> None:
        self.told.append(("closed", reason))


def inc(x: Any) -> Any:
    return x + 1


def boom(text: str) -> None:
    raise ValueError(text)


def slow(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with_worker = LocalCluster(processes=False, threads_per_worker=2)
    yield with_worker
    with_worker.close()


Connect = Callable[..., Any]


@pytest.fixture
def connect(cluster: LocalCluster) -> Iterator[Connect]:
    made: list[Any] = []

    def connect(handlers: Any = None, **options: Any) -> Any:
        name = f"client-{os.getpid()}-{time.monotonic_ns()}"
        options.setdefault("secret", cluster._secret)
        address = cluster.scheduler_address
        connection = _core.Connection(address, name, handlers or Handlers(), **options)
        made.append(connection)
        return connection

    yield connect
    for connection in made:
        connection.close(1.0)


@pytest.fixture
def connection(connect: Connect) -> Any:
    return connect()


def until(connection: Any, *states: Any) -> None:
    assert connection.wait(lambda: all(state.done() for state in states), SOON)


def answer(connection: Any, *call: Any) -> tuple[Any, Any]:
    answers: list[tuple[Any, Any]] = []
    connection.call(*call, lambda *one: answers.append(one))
    assert connection.wait(lambda: bool(answers), SOON)
    return answers[0]


def fetched(connection: Any, keys: list[Any]) -> tuple[dict[Any, Any], dict[Any, Any]]:
    results: list[Any] = []
    connection.fetch(keys, lambda *one: results.append(one))
    assert connection.wait(lambda: bool(results), SOON)
    return results[0]


def run(connection: Any, function: Any, *args: Any, key: Any = None, **options: Any) -> State:
    state = State(key if key is not None else connection.call_key(function, args, {}))
    connection.submit_call(state.key, state, function, args, {}, options or None)
    until(connection, state)
    return state


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


# Calls of functions


def test_a_call_has_its_value_inline(connection: Any) -> None:
    state = run(connection, inc, 1, key="a call")
    assert state.told == ["finished"]
    assert connection.is_inline("a call")
    assert connection.value("a call") == 2
    assert connection.state("a call") is state


def test_values_that_came_along_are_told_from_others(connection: Any) -> None:
    small, large = run(connection, inc, 1), run(connection, bytes, 10_000)
    values: dict[Any, Any] = {"before": 0}
    assert connection.inline([small.key, large.key, "unknown"], values) == [large.key, "unknown"]
    assert values == {"before": 0, small.key: 2}


def test_each_value_is_a_new_object(connection: Any) -> None:
    state = run(connection, lambda: [1])
    first = connection.value(state.key)
    assert first == [1]
    assert connection.value(state.key) is not first


@pytest.mark.parametrize("key", ["text", ("tuple", 1, 2), 5, 2.5, b"bytes", ("nested", ("x", 0))])
def test_keys_of_all_kinds(connection: Any, key: Any) -> None:
    run(connection, inc, 1, key=key)
    assert connection.value(key) == 2


def test_what_raises_says_what_and_where(connection: Any) -> None:
    state = run(connection, boom, "why", key="fails")
    ((status, kind, key, payload),) = state.told
    assert (status, kind, key) == ("error", "raised", "fails")
    assert isinstance(payload, bytes)
    assert not connection.is_inline("fails")
    with pytest.raises(LookupError):
        connection.value("fails")


def test_many_calls(connection: Any) -> None:
    keys = [f"many-{i}" for i in range(5000)]
    states = [State(key) for key in keys]
    connection.submit_calls(keys, states, inc, ((i,) for i in range(5000)), {})
    until(connection, *states)
    assert [connection.value(key) for key in keys] == list(range(1, 5001))


def test_calls_take_keyword_arguments_and_futures(connection: Any) -> None:
    first = run(connection, inc, 1)
    state = State("pow")
    arguments = (TaskRef(first.key), [TaskRef(first.key)])
    function = lambda a, b, *, c: (a, b, c)  # noqa: E731
    connection.submit_call("pow", state, function, arguments, {"c": 3})
    until(connection, state)
    assert connection.value("pow") == (2, [2], 3)


def test_too_few_states_or_arguments(connection: Any) -> None:
    with pytest.raises(ValueError, match="fewer states"):
        connection.submit_calls(["few-a", "few-b"], [State("few-a")], inc, [(1,), (2,)], {})
    with pytest.raises(ValueError, match="fewer arguments"):
        connection.submit_calls(["few-c"], [State("few-c")], inc, [], {})


def test_what_cannot_be_pickled_names_the_task(connection: Any) -> None:
    with pytest.raises(TypeError, match=r"Could not serialize.*'unpicklable'"):
        connection.submit_call("unpicklable", State(""), inc, (threading.Lock(),), {})
    # The connection goes on.
    assert run(connection, inc, 1).status == "finished"


def test_an_unknown_option_is_refused(connection: Any) -> None:
    with pytest.raises(TypeError, match='"nice" is no option'):
        connection.submit_call("option", State(""), inc, (1,), {}, {"nice": 1})


def test_keys_of_calls_tell_calls_apart(connection: Any) -> None:
    key = connection.call_key(inc, (1,), {})
    assert key.startswith("inc-")
    assert key == connection.call_key(inc, (1,), {})
    keys = connection.call_keys(inc, [(1,), (1.0,), ("1",), (2,)], {})
    assert keys[0] == key
    assert len(set(keys)) == 4
    assert connection.call_key(inc, (1,), {"x": 1}) != key


# Graphs


def test_a_graph_runs_what_is_wanted_of_it(connection: Any) -> None:
    graph = {
        ("g", 0): Task(("g", 0), inc, 1),
        "data": DataNode("data", 10),
        "alias": Alias("alias", ("g", 0)),
        "both": Task("both", operator.add, TaskRef("alias"), TaskRef("data")),
        "list": Task("list", sum, List(TaskRef("both"), TaskRef("data"))),
        "never": Task("never", boom, "not wanted"),
    }
    states = [State("both"), State("list")]
    connection.submit(graph, ["both", "list"], states)
    until(connection, *states)
    assert connection.value("both") == 12
    assert connection.value("list") == 22
    assert connection.state(("g", 0)) is None


def test_tasks_of_the_old_form(connection: Any) -> None:
    graph = {"old-x": 1, "old-y": (operator.add, "old-x", (inc, 2))}
    state = State("old-y")
    connection.submit(graph, ["old-y"], [state])
    until(connection, state)
    assert connection.value("old-y") == 4


def test_a_long_chain_streams(connection: Any) -> None:
    count = 20_000
    graph: dict[Any, Any] = {("c", 0): Task(("c", 0), inc, 0)}
    for i in range(1, count):
        graph["c", i] = Task(("c", i), inc, TaskRef(("c", i - 1)))
    state = State(("c", count - 1))
    connection.submit(graph, [state.key], [state])
    until(connection, state)
    assert connection.value(state.key) == count


def test_graphs_read_futures(connection: Any) -> None:
    first = run(connection, inc, 1)
    state = State("reads")
    connection.submit({"reads": Task("reads", inc, TaskRef(first.key))}, ["reads"], [state])
    until(connection, state)
    assert connection.value("reads") == 3


def test_what_the_client_has_is_not_submitted_again(connection: Any) -> None:
    graph = {"once": Task("once", time.time_ns)}
    first = State("once")
    connection.submit(graph, ["once"], [first])
    until(connection, first)
    graph["on"] = Task("on", int, TaskRef("once"))
    again, second = State("once"), State("on")
    connection.submit(graph, ["once", "on"], [again, second])
    until(connection, again, second)
    assert connection.value("on") == connection.value("once")
    assert connection.state("once") is again


def test_a_wanted_key_may_be_a_future(connection: Any) -> None:
    first = run(connection, inc, 1)
    again = State(first.key)
    connection.submit({}, [first.key], [again])
    until(connection, again)
    assert connection.state(first.key) is again


def test_a_missing_input_is_named(connection: Any) -> None:
    graph = {"reader": Task("reader", inc, TaskRef("nowhere"))}
    with pytest.raises(MissingDependencyError, match="'reader' reads 'nowhere'"):
        connection.submit(graph, ["reader"], [State("reader")])


def test_a_cycle_is_named(connection: Any) -> None:
    graph = {
        "one": Task("one", inc, TaskRef("two")),
        "two": Task("two", inc, TaskRef("one")),
    }
    with pytest.raises(_core.CycleError, match="'one'"):
        connection.submit(graph, ["one"], [State("one")])


def test_large_constants_reach_their_tasks(connection: Any) -> None:
    array = np.arange(100_000)
    graph = {
        "sum": Task("sum", np.sum, array),
        "max": Task("max", np.max, array),
        "all": Task("all", operator.add, TaskRef("sum"), TaskRef("max")),
    }
    state = State("all")
    connection.submit(graph, ["all"], [state])
    until(connection, state)
    assert connection.value("all") == array.sum() + array.max()


def test_options_of_tasks(connection: Any) -> None:
    graph = {f"o{i}": Task(f"o{i}", inc, i) for i in range(4)}
    states = [State(key) for key in graph]
    options = {"priority": 3, "retries": 1, "allow_other": True, "workers": None}
    own = {"o1": {"priority": -1}, "o2": {"resources": {"gpu": 1.0}}}
    connection.submit(graph, list(graph), states, options, own)
    until(connection, states[0], states[1], states[3])
    # Nobody has what it needs.
    assert not states[2].done()


# Values


def test_values_from_the_worker(connection: Any) -> None:
    large = run(connection, np.arange, 50_000)
    small = run(connection, inc, 1)
    failed = run(connection, boom, "no value")
    assert large.type is np.ndarray
    assert not connection.is_inline(large.key)
    values, errors = fetched(connection, [large.key, small.key, failed.key])
    assert (values[large.key] == np.arange(50_000)).all()
    assert values[small.key] == 2
    assert errors == {failed.key: failed.exception}


def test_a_value_is_waited_for(connection: Any) -> None:
    state = State("waited")
    connection.submit_call("waited", state, slow, (0.05,), {})
    values, errors = fetched(connection, ["waited"])
    assert (values, errors) == ({"waited": 0.05}, {})


def test_values_of_nothing(connection: Any) -> None:
    assert fetched(connection, []) == ({}, {})
    with pytest.raises(KeyError, match="unknown"):
        connection.fetch(["unknown"], print)


def test_values_that_cannot_be_unpickled_are_errors(connection: Any) -> None:
    state = run(connection, lambda: Unloadable(), key="unloadable")
    values, errors = fetched(connection, [state.key])
    assert not values
    assert isinstance(errors["unloadable"], ArithmeticError)


class Unloadable:
    """Cannot be unpickled."""

    def __init__(self) -> None:
        self.body = bytes(5000)

    def __reduce__(self) -> tuple[Any, ...]:
        return _cannot, (self.body,)


def _cannot(_: bytes) -> None:
    raise ArithmeticError("it cannot be unpickled")


def test_values_that_a_client_brings(connection: Any) -> None:
    array = np.arange(30_000)
    values = {"brought": array, "small": 5}
    states = [State(key) for key in values]
    connection.put(list(values), states, list(values.values()))
    until(connection, *states)
    assert connection.value("small") == 5
    assert (fetched(connection, ["brought"])[0]["brought"] == array).all()
    state = State("use")
    graph = {"use": Task("use", np.add, TaskRef("brought"), TaskRef("small"))}
    connection.submit(graph, ["use"], [state])
    until(connection, state)
    assert (fetched(connection, ["use"])[0]["use"] == array + 5).all()


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


def test_an_error_is_an_answer(connection: Any) -> None:
    result, error = answer(connection, "", "no such operation", None)
    assert result is None
    assert "no such operation" in error


def test_clients_ask_each_other(cluster: LocalCluster) -> None:
    told = Handlers()
    secret, address = cluster._secret, cluster.scheduler_address
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
server = _core.Server(secret=b"x" * 32)
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


# Ending


def test_a_closed_connection_says_so(connect: Connect) -> None:
    handlers = Handlers()
    connection = connect(handlers)
    answers: list[Any] = []
    connection.call("client-nobody", "wait", None, lambda *one: answers.append(one))
    results: list[Any] = []
    state = State("never made")
    connection.submit_call(state.key, state, inc, (1,), {}, {"resources": {"none": 1.0}})
    connection.fetch([state.key], lambda *one: results.append(one))
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
    server = _core.Server(secret=b"x" * 32)
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
    address, secret = connection.address, cluster._secret
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
