"""Fused tasks run natively, with the results of Dask's own `_execute_subgraph`."""

from __future__ import annotations

import subprocess
import sys
from operator import add, truediv

import pytest
from dask._task_spec import Alias, DataNode, List, Task, TaskRef, _execute_subgraph
from dask.utils_test import inc

import treadle


def test_a_fused_chain(get):
    a = Task("a", inc, TaskRef("in"))
    b = Task("b", add, TaskRef("a"), TaskRef("a"))
    c = Task("c", sum, List(TaskRef("b"), 1))
    fused = Task.fuse(a, b, c)
    assert fused.func is _execute_subgraph
    dsk = {"in": Task("in", inc, 1), "c": fused}
    assert get(dsk, "c") == 7 == fused({"in": 2})


def test_inner_graphs_that_branch_and_nest(get):
    inner = Task.fuse(Task("p", inc, TaskRef("x")), Task("q", inc, TaskRef("p")))
    outer = Task.fuse(
        inner,
        Task("left", add, TaskRef("q"), 1),
        Task("right", add, TaskRef("q"), TaskRef("y")),
        Task("out", add, TaskRef("left"), TaskRef("right")),
    )
    dsk = {"x": DataNode("x", 1), "y": DataNode("y", 10), "out": outer}
    assert get(dsk, "out") == 17 == outer({"x": 1, "y": 10})


def test_an_input_takes_the_place_of_an_inner_task(get):
    graph = {"a": Task("a", inc, 1), "b": Task("b", inc, TaskRef("a"))}
    node = Task("b", _execute_subgraph, graph, "b", ("a",), TaskRef("value"))
    dsk = {"value": DataNode("value", 10), "b": node}
    assert get(dsk, "b") == 11 == node({"value": 10})


def test_aliases_and_data_inside(get):
    graph = {"d": DataNode("d", 5), "e": Alias("e", "d"), "f": Task("f", add, TaskRef("e"), 1)}
    node = Task("f", _execute_subgraph, graph, "f", ())
    assert get({"f": node}, "f") == 6 == node({})
    only_data = Task("d", _execute_subgraph, graph, "d", ())
    assert get({"d": only_data}, "d") == 5


def test_one_shape_with_different_constants_and_keys(get):
    dsk = {}
    for i in range(50):
        chain = [Task(("a", i), add, i, 0), Task(("b", i), add, TaskRef(("a", i)), i)]
        dsk[("b", i)] = Task.fuse(*chain)
    assert get(dsk, list(dsk)) == tuple(2 * i for i in range(50))


def test_inner_values_are_released_early(get):
    alive = []

    class Value:
        def __init__(self):
            alive.append(self.__class__)

        def __del__(self):
            alive.pop()

    def step(*inputs):
        counts.append(len(alive))
        return Value()

    counts = []
    chain = [Task(0, step)] + [Task(i, step, TaskRef(i - 1)) for i in range(1, 6)]
    get({5: Task.fuse(*chain)}, 5)
    assert counts == [0, 1, 1, 1, 1, 1]


def test_what_is_wrong_inside_is_named(get):
    missing = Task("b", _execute_subgraph, {"b": Task("b", inc, TaskRef("nope"))}, "b", ())
    with pytest.raises(RuntimeError, match=r"missing keys \{'nope'\}"):
        get({"b": missing}, "b")
    graph = {"a": Task("a", inc, TaskRef("b")), "b": Task("b", inc, TaskRef("a"))}
    with pytest.raises(treadle.CycleError, match=r"'a'\n.*'b'"):
        get({"b": Task("b", _execute_subgraph, graph, "b", ())}, "b")
    with pytest.raises(ZeroDivisionError):
        get({"b": Task.fuse(Task("a", inc, -1), Task("b", truediv, 1, TaskRef("a")))}, "b")


def test_tasks_that_are_fused_too_deeply():
    code = """
import sys, treadle
from dask._task_spec import Task, _execute_subgraph
from dask.utils_test import inc
def nested(depth):
    node = Task("k0", inc, 1)
    for level in range(depth):
        node = Task(f"k{level + 1}", _execute_subgraph, {f"k{level}": node}, f"k{level}", ())
    return {node.key: node}, node.key
assert treadle.get(*nested(300)) == 2
for limit in 1000, 10**6:
    sys.setrecursionlimit(limit)
    try:
        treadle.get(*nested(20_000))
    except RecursionError as error:
        print("RecursionError")
"""
    command = [sys.executable, "-c", code]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout) == (0, "RecursionError\n" * 2), ended.stderr[-2000:]
