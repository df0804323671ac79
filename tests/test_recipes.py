"""Recipes: tasks as bytes."""

from __future__ import annotations

import contextlib
import functools
import operator
import random
import threading
import weakref
from typing import ClassVar

import dask
import numpy as np
import pytest
from dask._task_spec import (
    Alias,
    DataNode,
    Dict,
    List,
    Set,
    Task,
    TaskRef,
    Tuple,
)
from recipe_support import Future, Pair, Point, arguments, call, execute, run

from treadle import _core

# Nodes


def test_every_kind_of_node():
    def f(*args, **kwargs):
        return args, kwargs

    a, b = TaskRef("a"), TaskRef("b")
    values = {"a": 1, "b": 2}
    nodes = [
        Task("t", f),
        Task("t", f, a, 3, b, a, x=b, y=[1]),
        Task("t", f, List(a, List(b, 1), "s"), Tuple(a), Set(a, b), Dict({"k": a, "l": 1})),
        Task("t", f, Task(None, operator.add, a, b), k=Task(None, operator.neg, a)),
        Task("t", f, Alias("a"), DataNode("d", [1, 2])),
        Task("t", f, slice(1, 2), ..., {1, 2}, frozenset({3}), (slice(None), None)),
        Task("t", f, np.sum, np.dtype("f4"), int, len, Pair(1, 2), 2**80),
        Alias("t", "a"),
        DataNode("t", {"x": (1, None)}),
        DataNode("t", "text"),
        List(a, b),
        Dict({"a": a}),
    ]
    for node in nodes:
        assert repr(run(node, values)) == repr(node(values))


def test_a_reference_inside_a_plain_container_of_a_task_is_what_it_seems():
    result = run(Task("t", arguments, [TaskRef("a")], {"k": TaskRef("b")}))
    assert result == (([TaskRef("a")], {"k": TaskRef("b")}), {})


def test_graphs_of_the_old_form():
    graph = {
        "x": 1,
        "y": (operator.add, "x", 2),
        "z": [(operator.neg, "y"), "x", "text"],
        "w": (sum, ["x", "y", (operator.mul, "x", "y")]),
        "v": "y",
        "u": (dict, [["k", "x"]]),
        ("t", 0): (arguments, {"k": 1}, ("x", "w")),
        "named": (list, Pair("x", "y")),
    }
    values, _ = execute(graph)
    for key in graph:
        assert values[key] == dask.get(graph, key)


class Doubling(Task):
    """A node with a call of its own."""

    __slots__ = ()

    def __call__(self, values=()):
        return 2 * super().__call__(values)


class Renamed(Task):
    """A node like any task."""

    __slots__ = ("note",)


def test_nodes_of_classes_of_their_own():
    keys = [("a", 0.0), ("a", 1)]
    node = Doubling("t", operator.add, *map(TaskRef, keys))
    assert run(node, dict(zip(keys, (3, 4), strict=True))) == 14
    recipes = _core._Recipes()
    encoded, _ = recipes.encode_graph({"t": Renamed("t", operator.add, TaskRef("a"), 1)})
    recipe, inputs, _ = encoded["t"]
    assert inputs == ["a"]
    assert len(recipe) < 10, "not pickled"


def test_an_alias_is_seen_in_its_recipe():
    recipes = _core._Recipes()
    encoded, _ = recipes.encode_graph(
        {"a": Alias("a", "x"), "b": Task("b", operator.neg, TaskRef("x")), "c": DataNode("c", 1)}
    )
    assert [_core._recipe_alias(encoded[key][0]) for key in "abc"] == [0, None, None]


def test_inputs_are_numbered_as_they_are_met_and_only_once():
    names = [("k", i) for i in range(40)]
    graph = {"t": Task("t", arguments, *[TaskRef(name) for name in names + names[::-1]])}
    encoded, _ = _core._Recipes().encode_graph(graph)
    assert encoded["t"][1] == names
    equal = [TaskRef(("k", 1)), TaskRef(("k", 1.0)), TaskRef(("k", True))]
    encoded, _ = _core._Recipes().encode_graph({"t": Task("t", arguments, *equal)})
    assert len(encoded["t"][1]) == 1


# Fused tasks


def test_fused_chains_and_diamonds():
    a = Task("a", operator.add, TaskRef("in"), 1)
    b = Task("b", operator.add, TaskRef("a"), TaskRef("a"))
    c = Task("c", operator.mul, TaskRef("b"), TaskRef("a"))
    fused = Task.fuse(a, b, c)
    assert run(fused, {"in": 2}) == fused({"in": 2}) == 18
    inner = Task.fuse(Task("p", operator.neg, TaskRef("x")), Task("q", operator.neg, TaskRef("p")))
    outer = Task.fuse(
        inner,
        Task("left", operator.add, TaskRef("q"), 1),
        Task("right", operator.add, TaskRef("q"), TaskRef("y")),
        Task("out", operator.mul, TaskRef("left"), TaskRef("right")),
    )
    values = {"x": 3, "y": 10}
    assert run(outer, values) == outer(values)
    assert run(Task("t", operator.neg, outer), values) == -outer(values)


def test_fused_tasks_with_data_aliases_and_inputs_of_every_kind():
    from dask._task_spec import _execute_subgraph

    inner = {
        "d": DataNode("d", [5]),
        "e": Alias("e", "d"),
        "f": Task("f", operator.add, TaskRef("e"), TaskRef("i")),
        "g": Task("g", arguments, TaskRef("f"), TaskRef("j"), TaskRef("k"), TaskRef("j")),
        "unused": Task("unused", operator.truediv, 1, 0),
    }
    node = Task(
        "g",
        _execute_subgraph,
        inner,
        "g",
        ("i", "j", "k"),
        DataNode(None, [1]),
        Task(None, operator.neg, TaskRef("x")),
        TaskRef("x"),
    )
    assert run(node, {"x": 4}) == (([5, 1], -4, 4, -4), {})
    data = {"d": inner["d"], "e": inner["e"]}
    assert run(Task("t", _execute_subgraph, data, "d", ())) == [5]
    assert run(Task("t", _execute_subgraph, data, "e", ())) == [5]
    passed = Task("t", _execute_subgraph, data, "i", ("i",), TaskRef("x"))
    assert run(passed, {"x": 4}) == 4


class Value:
    alive: ClassVar[weakref.WeakSet] = weakref.WeakSet()
    most = 0

    def __init__(self, *_):
        Value.alive.add(self)
        Value.most = max(Value.most, len(Value.alive))


def test_fused_values_are_released_after_their_last_reader():
    chain = [Task(0, Value)]
    chain += [Task(i, Value, TaskRef(i - 1)) for i in range(1, 20)]
    run(Task.fuse(*chain))
    assert Value.most == 2


def test_a_constant_that_several_inner_tasks_read_is_one_object():
    data = DataNode("d", [])
    one = Task("one", list.append, TaskRef("d"), 1)
    two = Task("two", arguments, TaskRef("one"), TaskRef("d"))
    fused = Task.fuse(data, one, two)
    assert run(fused) == ((None, [1]), {})
    assert data.value == []


# Calls


class Foreign:
    """A future of another library."""

    __dask_future__ = True

    def __init__(self, key):
        self.key = key


def test_futures_are_found_in_arguments():
    a, b = Future("a"), Future("b")
    result = call(arguments, a, [b, (a, 1)], {"k": {"l": b}}, {a}, Foreign("c"), k=Pair(a, [b]))
    assert result == (
        ("a", ["b", ("a", 1)], {"k": {"l": "b"}}, {"a"}, "c"),
        {"k": Pair("a", ["b"])},
    )
    (recipe, inputs, _), _ = _core._Recipes().encode_call("k", arguments, (b, a, [b]))
    assert inputs == ["b", "a"]
    assert len(recipe) < 20


def test_keyword_arguments():
    assert call(arguments, 1, b=2, a=[3]) == ((1,), {"b": 2, "a": [3]})
    assert call(dict, a=1) == {"a": 1}
    assert call(functools.partial(arguments, x=1), 2, y=3) == ((2,), {"x": 1, "y": 3})


def test_lambdas_closures_and_methods():
    offset = 5
    assert call(lambda x: x + offset, 1) == 6
    assert call(Point(3).__eq__, Point(3)) is True
    assert call("a-b".split, "-") == ["a", "b"]

    class Local:
        def __init__(self, x):
            self.x = x

    assert call(Local, 4).x == 4
    assert call(operator.attrgetter("x"), Local(5)) == 5


# Errors


def test_an_exception_is_the_tasks_own():
    def fails(x):
        raise KeyError(x)

    with pytest.raises(KeyError) as caught:
        call(fails, "reason")
    assert caught.traceback[-1].name == "fails"
    assert caught.value.args == ("reason",)


@pytest.mark.parametrize(
    ("args", "kwargs", "what"),
    [
        ((1, threading.Lock()), {}, "argument 1"),
        (([(i for i in ())],), {}, "argument 0"),
        ((), {"k": threading.Lock()}, "argument 'k'"),
    ],
)
def test_what_cannot_be_pickled_is_named(args, kwargs, what):
    for encode in (
        lambda: _core._Recipes().encode_call("the-key", arguments, args, kwargs),
        lambda: _core._Recipes().encode_graph(
            {"the-key": Task("the-key", arguments, *args, **kwargs)}
        ),
    ):
        with pytest.raises(TypeError, match="Could not serialize object of type") as caught:
            encode()
        assert f"{what} of task 'the-key'" in str(caught.value)
        assert "cannot pickle" in str(caught.value)
        assert isinstance(caught.value.__cause__, TypeError)


def test_a_function_that_cannot_be_pickled_is_named():
    lock = threading.Lock()
    with pytest.raises(
        TypeError, match="Could not serialize object of type function: the function"
    ):
        call(lambda: lock)


def test_interrupts_pass():
    class Interrupts:
        def __reduce__(self):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        call(arguments, Interrupts())


def test_after_an_error_the_next_task_is_fine():
    recipes = _core._Recipes()
    with pytest.raises(TypeError):
        recipes.encode_graph({"a": 1, "b": Task("b", arguments, [TaskRef("a"), threading.Lock()])})
    values, _ = execute({"a": 1, "b": Task("b", operator.neg, TaskRef("a"))}, recipes)
    assert values["b"] == -1


# What the bytes mean nothing to, and what the functions say to arguments that they were not made for.
ERRORS = (RuntimeError, TypeError, KeyError, ValueError)


def garbage():
    generator = random.Random(1)
    for length in [0, 1, 2, 5, 20, 100] * 500:
        yield generator.randbytes(length)
    for _ in range(2000):
        tags = [*range(48)]
        yield bytes(generator.choice(tags) for _ in range(generator.randrange(60)))
    recipes = _core._Recipes()
    chain = Task.fuse(Task(0, abs, TaskRef("x")), Task(1, max, TaskRef(0), TaskRef(0), 3))
    graph = {
        "x": Task("x", arguments, [1, {2: (slice(1), "text", 2.5)}], k=TaskRef("y")),
        "y": chain,
        "z": Task("z", min, List(TaskRef("x"), 5), key=abs),
    }
    encoded, _ = recipes.encode_graph(graph)
    for recipe, _, _ in encoded.values():
        for cut in range(len(recipe)):
            yield recipe[:cut]
        for _ in range(2000):
            changed = bytearray(recipe)
            changed[generator.randrange(len(changed))] = generator.randrange(256)
            yield bytes(changed)


def test_malformed_recipes_raise():
    recipes = _core._Recipes()
    for function in (abs, arguments, max, min):
        recipes.encode_call("k", function, ())
    recipes.encode_call("k", arguments, (), {"k": 1})
    for recipe in garbage():
        # Unpickling noise may do anything, here as elsewhere.
        recipe = recipe.replace(b"\n", b"")
        with contextlib.suppress(*ERRORS):
            recipes.execute(recipe, [1, 2])
        for decode in (_core._decode_value, _core._decode_key):
            with contextlib.suppress(RuntimeError, TypeError):
                decode(recipe)


def test_malformed_recipes_of_great_depth():
    results = []

    def nested(depth):
        # Lists of one item, calls of a function with one argument, programs of no steps.
        for level in (b"\x08\x01", b"\x26\x00\x01", b"\x24\x00", b"\x23"):
            try:
                results.append(recipes.execute(level * depth + b"\x00", []))
            except RecursionError:
                results.append(RecursionError)

    recipes = _core._Recipes()
    recipes.encode_call("k", list, ())
    size = threading.stack_size(512 << 10)
    try:
        thread = threading.Thread(target=nested, args=(1_000_000,))
        thread.start()
        thread.join()
    finally:
        threading.stack_size(size)
    assert results == [RecursionError] * 4
