"""Calls, graphs and values over the native end of a client (`treadle._core.Connection`)."""

from __future__ import annotations

import operator
import threading
import time
from typing import Any

import numpy as np
import pytest
from connection_support import (
    State,
    boom,
    fetched,
    inc,
    run,
    slow,
    until,
)
from dask._task_spec import Alias, DataNode, List, Task, TaskRef

from treadle import MissingDependencyError, _core

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
        connection.fetch(1, ["unknown"], print)


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
