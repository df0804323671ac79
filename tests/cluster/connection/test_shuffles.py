"""Shuffles in graphs that are submitted: what the scheduler learns of them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pandas as pd
import pytest
from connection_support import State, answer, until
from dask._task_spec import Alias, Task, TaskRef
from distributed.shuffle._core import P2PBarrierTask
from distributed.shuffle._merge import merge_unpack
from distributed.shuffle._shuffle import DataFrameShuffleSpec, shuffle_unpack

from client_support import SOON

# More than one batch.
COUNT = 300
OPEN = threading.Event()


@pytest.fixture(autouse=True)
def gate() -> Iterator[None]:
    OPEN.clear()
    yield
    OPEN.set()


def transfer(number: int) -> int:
    return number


def barrier(_name: str, *numbers: int) -> list[int]:
    assert OPEN.wait(SOON)
    return list(numbers)


def shuffle(name: str, count: int, partitions: int, **options: Any) -> dict[Any, Any]:
    """The tasks of a shuffle up to its barrier. Some transfers have another name, as in a graph of
    arrays that Dask fused."""
    graph: dict[Any, Any] = {}
    for number in range(count):
        key = (f"transfer-{name}", number)
        if number % 3:
            graph[key] = Task(key, transfer, number)
        else:
            fused = ("fused", *key)
            graph[key] = Alias(key, fused)
            graph[fused] = Task(fused, transfer, number)
    meta = pd.DataFrame({"a": [1], "b": [2]})
    spec = DataFrameShuffleSpec(
        id=name,
        disk=True,
        npartitions=partitions,
        column="b",
        meta=meta,
        parts_out=options.get("parts_out", partitions),
        drop_column=True,
    )
    inputs = [TaskRef((f"transfer-{name}", number)) for number in range(count)]
    key = f"shuffle-barrier-{name}"
    graph[key] = P2PBarrierTask(key, barrier, name, *inputs, spec=spec)
    return graph


def listed(connection: Any, *names: str) -> list[dict[str, Any]]:
    """What the scheduler says of these shuffles."""
    found, error = answer(connection, "", "shuffles", {})
    assert error is None
    by_name = {one["name"]: one for one in found}
    return [by_name[name] for name in names if name in by_name]


def recipe(connection: Any, key: Any) -> Any:
    found, error = answer(connection, "", "recipe", {"keys": [key]})
    assert error is None
    return found


def test_inputs_of_a_barrier_are_in_order(connection: Any) -> None:
    graph = shuffle("order", COUNT, 7, parts_out=[1, 2, 5])
    state = State("shuffle-barrier-order")
    connection.submit(graph, [state.key], [state])
    [found] = listed(connection, "order")
    assert (found["inputs"], found["partitions"], found["outputs"]) == (COUNT, 7, 3)
    assert (found["generation"], found["complete"]) == (1, False)
    names = [("transfer-order", number) for number in range(COUNT)]
    # The tasks that run, not their other names: they run again.
    expected = [name if name[1] % 3 else ("fused", *name) for name in names]
    assert recipe(connection, state.key)["inputs"] == expected
    OPEN.set()
    until(connection, state)
    assert connection.value(state.key) == list(range(COUNT))
    # Small values, and yet it is known how they came about.
    assert all(recipe(connection, key) for key in [expected[0], expected[1], state.key])
    connection.release([state.key])
    assert listed(connection, "order") == []


def test_a_wanted_alias_of_a_transfer_has_a_value(connection: Any) -> None:
    graph = shuffle("alias", 5, 2)
    states = [State(("transfer-alias", 3)), State("shuffle-barrier-alias")]
    connection.submit(graph, [state.key for state in states], states)
    OPEN.set()
    until(connection, *states)
    assert connection.value(states[0].key) == 3
    assert connection.value(states[1].key) == [0, 1, 2, 3, 4]


def test_both_sides_of_a_merge(connection: Any) -> None:
    graph = {**shuffle("left", 4, 3), **shuffle("right", 2, 3)}
    reads = [TaskRef("shuffle-barrier-left"), TaskRef("shuffle-barrier-right")]
    graph["merged"] = Task("merged", merge_unpack, "left", "right", 1, *reads)
    state = State("merged")
    connection.submit(graph, ["merged"], [state])
    left, right = listed(connection, "left", "right")
    assert (left["inputs"], right["inputs"]) == (4, 2)
    connection.cancel(["merged"], False, "over", "the test ends")
    assert listed(connection, "left", "right") == []


def test_a_graph_that_cannot_be_submitted_leaves_no_shuffle(connection: Any) -> None:
    graph = shuffle("broken", COUNT, 2)
    key = "reader"
    reads = TaskRef("shuffle-barrier-broken")
    graph[key] = Task(key, shuffle_unpack, "broken", 0, reads, lock=threading.Lock())
    with pytest.raises(TypeError, match="Could not serialize"):
        connection.submit(graph, [key], [State(key)])
    assert listed(connection, "broken") == []
