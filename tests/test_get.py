"""Graphs of every form, and the values that come back."""

from __future__ import annotations

from operator import add, mul

import dask
import dask.array as da
import dask.bag as db
import pytest
from dask import delayed
from dask._task_spec import Alias, DataNode, Dict, List, Set, Task, TaskRef, Tuple
from dask.highlevelgraph import HighLevelGraph
from dask.utils_test import GetFunctionTestMixin, inc

import treadle


class TestDaskSpecificationSync(GetFunctionTestMixin):
    get = staticmethod(treadle.sync.get)


class TestDaskSpecificationThreaded(GetFunctionTestMixin):
    get = staticmethod(treadle.threaded.get)


def keep(*args, **kwargs):
    return args, kwargs


def test_lists_of_keys_become_tuples_of_values(get):
    dsk = {"a": Task("a", inc, 1), ("b", 0): Task(("b", 0), inc, TaskRef("a"))}
    assert get(dsk, "a") == 2
    assert get(dsk, ("b", 0)) == 3
    assert get(dsk, ["a", [("b", 0), []]]) == (2, (3, ()))
    assert get(dsk, []) == ()
    assert get({}, []) == ()


def test_every_kind_of_argument_is_resolved(get):
    node = Task(
        "t",
        keep,
        TaskRef("x"),
        Alias("x"),
        DataNode(None, "data"),
        Task(None, add, TaskRef("x"), 1),
        List(TaskRef("x"), [1], Tuple(Alias("y"), 2)),
        Set(TaskRef("x")),
        Dict({"k": TaskRef("y"), "n": Dict({"m": TaskRef("x")})}),
        ["x"],
        plain="x",
        ref=TaskRef("y"),
        nested=List(TaskRef("y")),
        data=DataNode(None, 7),
    )
    dsk = {"x": DataNode("x", 10), "y": Task("y", inc, TaskRef("x")), "t": node}
    args, kwargs = get(dsk, "t")
    assert args == (10, 10, "data", 11, [10, [1], (11, 2)], {10}, {"k": 11, "n": {"m": 10}}, ["x"])
    assert kwargs == {"plain": "x", "ref": 11, "nested": [11], "data": 7}
    assert args == node({"x": 10, "y": 11})[0]


@pytest.mark.parametrize(
    ("node", "value"),
    [
        (Alias("n", "x"), 10),
        (DataNode("n", [1]), [1]),
        (List(TaskRef("x"), 2), [10, 2]),
        (Tuple(TaskRef("x"), TaskRef("x")), (10, 10)),
        (Set(TaskRef("x"), 2), {10, 2}),
        (Dict({"a": TaskRef("x")}), {"a": 10}),
    ],
)
def test_any_node_may_stand_in_the_graph(get, node, value):
    assert get({"x": Task("x", inc, 9), "n": node}, "n") == value


class Doubled(Task):
    """A subclass whose meaning only its own code knows."""

    __slots__ = ()

    def __call__(self, values=()):
        return 2 * super().__call__(values)


def test_a_subclass_is_called_as_it_is(get):
    dsk = {"x": DataNode("x", 1), "t": Doubled("t", add, TaskRef("x"), 2)}
    dsk["outer"] = Task("outer", inc, Doubled(None, add, TaskRef("x"), TaskRef("t")))
    assert get(dsk, ["t", "outer"]) == (6, 15)


class Future(TaskRef):
    """As `distributed.Future`, a subclass of TaskRef."""

    __slots__ = ()


def test_a_subclass_of_a_reference_is_a_reference(get):
    assert get({"x": DataNode("x", 1), "t": Task("t", inc, Future("x"))}, "t") == 2


def test_keys_that_are_equal_are_the_same_key(get):
    dsk = {1: Task(1, inc, 1), ("a", 1.0): Task(("a", 1.0), inc, TaskRef(True))}
    assert get(dsk, [1.0, ("a", 1)]) == (2, 3)


def test_old_style_tuples_and_new_nodes_mix(get):
    dsk = {"x": 1, "y": (inc, "x"), "z": Task("z", mul, TaskRef("y"), 10), "w": (sum, ["x", "z"])}
    assert get(dsk, "w") == 21


def test_high_level_graphs_and_expressions(get):
    layers = {"a": {"x": 1, "y": (inc, "x")}, "b": {"z": (add, (inc, "x"), "y")}}
    assert get(HighLevelGraph(layers, {"a": set(), "b": {"a"}}), "z") == 4
    x = da.arange(100, chunks=7)
    assert (x * 2).sum().compute(scheduler=get) == 9900
    assert db.range(10, npartitions=3).sum().compute(scheduler=get) == 45
    assert delayed(add)(delayed(inc)(1), [delayed(inc)(2)][0]).compute(scheduler=get) == 5


def test_only_what_is_needed_runs(get):
    ran = []
    dsk = {k: Task(k, ran.append, k) for k in "abc"}
    dsk["d"] = Task("d", keep, TaskRef("b"))
    get(dsk, ["d", "a"])
    assert sorted(ran) == ["a", "b"]


def test_a_long_chain_is_an_ordinary_graph(get):
    n = 200_000
    dsk = {i: Task(i, inc, TaskRef(i - 1)) for i in range(1, n)}
    dsk[0] = DataNode(0, 0)
    assert get(dsk, n - 1) == n - 1


def test_a_node_that_is_nested_too_deeply_is_an_error_not_a_crash(get):
    node = Task(None, inc, 0)
    for _ in range(100_000):
        node = List(node)
    with pytest.raises(RecursionError):
        get({"x": Task("x", keep, node)}, "x")


def test_values_are_released_as_soon_as_nobody_needs_them(get):
    alive = set()

    class Value:
        def __init__(self, name):
            self.name = name
            alive.add(name)

        def __del__(self):
            alive.discard(self.name)

    seen = []

    def step(name, *inputs):
        seen.append(set(alive))
        return Value(name)

    dsk = {0: Task(0, step, 0)}
    dsk |= {i: Task(i, step, i, TaskRef(i - 1)) for i in range(1, 6)}
    result = get(dsk, 5)
    assert seen == [set(), {0}, {1}, {2}, {3}, {4}]
    assert alive == {5}
    del result
    assert not alive


def test_a_cache_provides_values_and_keeps_results(get):
    cache = {"y": 1, "unused": 0}
    ran = []

    def note(x):
        ran.append(set(cache))
        return x + 1

    dsk = {"x": Task("x", note, TaskRef("y")), "w": Task("w", note, TaskRef("x"))}
    assert get(dsk, "w", cache=cache) == 3
    assert ran == [{"y", "unused"}, {"y", "unused", "x"}]
    assert cache["w"] == 3
    assert "x" not in cache
    with dask.config.set(cache={"x": 41}):
        assert get(dsk, "w") == 42


def test_other_keywords_are_ignored_as_in_dask(get):
    assert get({"x": Task("x", inc, 1)}, "x", optimize_graph=True, whatever=1) == 2
