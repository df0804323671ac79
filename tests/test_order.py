"""`treadle.order`, beside Dask's. The memory footprint is compared by `make bench-order`."""

from __future__ import annotations

import dask.array as da
import pytest
from dask._task_spec import DataNode, Task, TaskRef, convert_legacy_graph
from dask.order import order as dask_order
from dask.utils_test import inc

import treadle


def test_priorities_are_a_topological_order_of_all_keys():
    x = da.ones((20, 20), chunks=5)
    graph = convert_legacy_graph(dict((x.T @ x).sum().__dask_graph__()))
    priorities = treadle.order(graph)
    assert sorted(priorities.values()) == list(range(len(graph)))
    assert set(priorities) == set(dask_order(graph))
    for key, node in graph.items():
        assert all(priorities[dependency] < priorities[key] for dependency in node.dependencies)


def test_wanted_keys_and_what_they_need_come_first():
    graph = {i: Task(i, inc, TaskRef(i - 1)) for i in range(1, 6)}
    graph[0] = DataNode(0, 0)
    assert treadle.order(graph) == {i: i for i in range(6)}
    assert [k for k, p in treadle.order(graph, 2).items() if p <= 2] == [0, 1, 2]


def test_a_cycle():
    graph = {"a": Task("a", inc, TaskRef("b")), "b": Task("b", inc, TaskRef("a"))}
    with pytest.raises(treadle.CycleError):
        treadle.order(graph)


def test_nothing_to_order():
    assert treadle.order({}) == {}
