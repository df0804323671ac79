"""Graphs of the old form, tuples, mean what they mean to Dask."""

from __future__ import annotations

import re
from collections import namedtuple
from operator import add
from random import Random

import numpy as np
import pytest
from dask._task_spec import Task, TaskRef
from dask.local import get_sync
from dask.utils_test import inc

import treadle

Point = namedtuple("Point", "x y")


def keep(*args):
    return args


BASE = {"x": 1, ("k", 0): (inc, "x"), 7: (inc, 7.5), 2.5: "half", "list": [1, 2]}


@pytest.mark.parametrize(
    "value",
    [
        1,
        "text",
        "x",
        ("k", 0),
        ("k", 1),
        (),
        None,
        (inc, "x"),
        (inc, (inc, ("k", 0))),
        (keep, "x", "text", 7, 7.0, 2.5, True, b"x", None, ("k", 0), ("k", 1)),
        (keep, np.str_("x"), np.float64(2.5), np.arange(3)),
        (keep, ["x", ["x", 3], ("k", 0)], ["text", [1]], (), []),
        (keep, ("x", "text"), ("x", ["x"]), (1, (2, [3]))),
        (keep, {"x"}, frozenset(["x", "text"]), {"x": "x"}, {"a": (inc, "x")}),
        (keep, {"a": TaskRef("x")}),
        (keep, Point("x", 2), [Point(1, "x")], Point((inc, "x"), [("k", 0)])),
        (keep, Task(None, inc, TaskRef("x")), TaskRef("x"), [TaskRef("x")]),
        (keep, slice(0, 1), inc, lambda: 1, object),
        (keep, [(inc, "x"), [(inc, "x")], {(inc, "x")}]),
        ["x", "text", (inc, "x")],
        [("k", 0), {"x": "x"}, {"x"}],
        {"x": "x"},
        {"x", "text"},
        Point("x", 2),
        (keep,),
        [[[[]]]],
        ([1, 2], "x"),
        (keep, ([1, 2], "x"), "list"),
    ],
)
def test_the_same_as_dask(get, value):
    graph = {**BASE, "it": value}
    expected, result = get_sync(graph, "it"), get(graph, "it")
    assert repr(result) == repr(expected)
    assert type(result) is type(expected)


def nested(random, depth=3):
    """A random value of an old-style graph: keys and other atoms in containers and tasks."""
    kinds = ["atom"] * 3 + ["list", "tuple", "task", "dict", "set"]
    kind = random.choice(kinds) if depth else "atom"
    items = [nested(random, depth - 1) for _ in range(random.randrange(4) if depth else 0)]
    if kind == "list":
        return items
    if kind == "tuple":
        return tuple(items)
    if kind == "task":
        return (keep, *items)
    if kind == "dict":
        return dict(zip("abc", items, strict=False))
    atoms = ["x", "z", "text", ("k", 0), ("k", 1), 1, 2.5, True, None]
    return {random.choice(atoms)} if kind == "set" else random.choice(atoms)


@pytest.mark.parametrize("seed", range(300))
def test_any_nesting_is_the_same_as_in_dask(seed):
    random = Random(seed)
    graph = {"x": (add, 1, 1), "z": [2], ("k", 0): [1, "x"]}
    graph |= {"first": nested(random), "second": nested(random)}
    for key in ("first", "second"):
        try:
            expected = get_sync(graph, key)
        except TypeError as error:  # a key that stands for a list, inside a set
            with pytest.raises(TypeError, match=re.escape(str(error))):
                treadle.sync.get(graph, key)
        else:
            assert treadle.sync.get(graph, key) == expected


def test_a_task_may_change_its_list_without_changing_the_graph(get):
    graph = {"it": (list.append, [1, [2]], 3), "again": (keep, [1, [2]])}
    nested = graph["it"][1][1]
    get(graph, "it")
    get({"it": (lambda value: value[1].append(3), graph["it"][1])}, "it")
    assert graph["it"][1] == [1, [2]]
    assert nested == [2]


def test_a_key_that_stands_for_itself_and_a_cycle(get):
    with pytest.raises(KeyError, match="x"):
        get({"x": "x"}, "x")
    with pytest.raises(treadle.CycleError):
        get({"x": (inc, "y"), "y": "x"}, "x")


def test_too_deep_a_nesting_is_an_error_not_a_crash(get):
    value = []
    for _ in range(100_000):
        value = [value]
    with pytest.raises(RecursionError):
        get({"x": (keep, value)}, "x")


def test_old_tasks_reach_other_processes_and_callbacks():
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        assert treadle.get({"x": 1, "it": (add, "x", (add, "x", 2))}, "it", pool=pool) == 4
