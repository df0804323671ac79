"""What becomes of the objects in recipes: identity, definitions, large constants."""

from __future__ import annotations

import datetime
import functools
import gc
import operator
import pickle
import random
import subprocess
import sys
import textwrap
import threading
import weakref
from collections import OrderedDict

import numpy as np
import pandas as pd
import pytest
from dask._task_spec import (
    DataNode,
    List,
    Task,
    TaskRef,
)
from recipe_support import LARGE, Colour, Future, Pair, arguments, call, execute, run

from treadle import _core

# Constants, mutability, identity


def grow(items):
    items.append(1)
    return len(items)


@pytest.mark.parametrize("items", [[], list(range(200)), [np.zeros(20)], [{}, object]])
def test_tasks_that_write_into_their_arguments_do_not_see_each_other(items):
    recipes = _core._Recipes()
    for _ in range(3):
        graph = {i: Task(i, grow, items) for i in range(3)}
        values, _ = execute(graph, recipes)
        assert [values[i] for i in range(3)] == [len(items) + 1] * 3
    (recipe, _, _), _ = recipes.encode_call("c", grow, (items,))
    assert recipes.execute(recipe, []) == recipes.execute(recipe, []) == len(items) + 1


def test_arrays_and_objects_are_fresh_for_each_task():
    def write(array):
        array += 1
        return array.sum()

    array = np.zeros(30)
    graph = {i: Task(i, write, array) for i in range(5)}
    values, _ = execute(graph)
    assert [values[i] for i in range(5)] == [30] * 5
    assert array.sum() == 0


def test_one_object_in_several_arguments_is_one_object():
    part = [1]
    array = np.zeros(3)
    args, kwargs = call(arguments, part, [part], array, k=(array, {"p": part}))
    assert args[0] is args[1][0] is kwargs["k"][1]["p"]
    assert args[2] is kwargs["k"][0]
    assert args[0] is not part


def test_arguments_that_contain_themselves():
    loop = [1]
    loop.append(loop)
    pair = ([],)
    pair[0].append(pair)
    (back, other), kwargs = call(arguments, loop, (2, pair), k={"loop": [3]})
    assert back[1] is back
    assert other[1][0][0] is other[1]
    assert kwargs == {"k": {"loop": [3]}}
    (one, (two,)), _ = call(arguments, loop, [loop])
    assert one is two is one[1]


def test_arguments_that_are_nested_too_deeply():
    deep = []
    for _ in range(150):
        deep = [deep]
    assert call(arguments, deep) == ((deep,), {})
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises((TypeError, RecursionError)):
        call(arguments, deep)
    while deep:
        deep = deep[0]
    node = TaskRef("a")
    for _ in range(1000):
        node = List(node) if node.__class__ is not List else Task(None, operator.neg, node)
    with pytest.raises(RecursionError):
        run(Task("t", operator.neg, node), {"a": 1})


def make_random(random, depth=0):
    atoms = [
        lambda: None,
        lambda: random.random() < 0.5,
        lambda: random.randrange(-(2**70), 2**70),
        lambda: random.randrange(-300, 300),
        random.random,
        lambda: "".join(random.choices("aé\udc80 \N{SNOWMAN}", k=random.randrange(40))),
        lambda: random.randbytes(random.randrange(150)),
        lambda: complex(random.random(), 1),
        lambda: slice(random.randrange(9), None),
        lambda: np.float32(random.random()),
        lambda: datetime.timedelta(random.randrange(9)),
        lambda: ...,
        lambda: random.choice([int, len, operator.add, np.sum]),
    ]
    containers = [
        lambda items: items,
        tuple,
        lambda items: dict(enumerate(items)),
        lambda items: {str(i): item for i, item in enumerate(items)},
        lambda items: Pair(items, items),
        lambda items: OrderedDict(enumerate(items)),
        lambda items: {repr(item) for item in items[:1]},
        lambda items: [items, items],
    ]
    if depth == 4 or random.random() < 0.3:
        return random.choice(atoms)()
    items = [make_random(random, depth + 1) for _ in range(random.randrange(5))]
    return random.choice(containers)(items)


@pytest.mark.parametrize("seed", range(200))
def test_random_arguments_come_back_as_a_pickle_brings_them(seed):
    value = make_random(random.Random(seed))
    expected = pickle.loads(pickle.dumps((value, [value])))
    (one, (other,)), _ = call(arguments, value, [value])
    for back in (one, other):
        assert repr(back) == repr(expected[0])
        assert pickle.dumps(back) == pickle.dumps(expected[0]) or back == expected[0]
    if isinstance(one, list | dict | set):
        assert one is other
    encoded = _core._encode_value(value, 1 << 20)
    if encoded is not None:
        assert repr(_core._decode_value(encoded)) == repr(value)


# Definitions


def test_what_tasks_share_is_defined_once():
    meta = pd.DataFrame({"a": [1]}).iloc[:0]
    dtype = np.dtype([("a", "i4"), ("b", "f8")])
    graph = {i: Task(i, arguments, meta, dtype, columns=["x"] * 50) for i in range(20)}
    recipes = _core._Recipes()
    values, encoded = execute(graph, recipes)
    lengths = sorted(len(recipe) for recipe, _, _ in encoded.values())
    assert lengths[-2] < 30, "all but the first"
    names = [name for _, name, _ in recipes.definitions()]
    assert names[0] == "arguments"
    assert sorted(names) == sorted(
        ["arguments", "names", "DataFrame", dtype.__class__.__name__, "list"]
    )
    assert values[3][0][0].equals(meta)
    assert values[3][1] == {"columns": ["x"] * 50}
    for _, _, used in encoded.values():
        assert used[0] == 0, "the function first"
    before = len(recipes.definitions())
    execute(graph, recipes)
    assert len(recipes.definitions()) == before


def test_a_function_is_found_by_content_when_it_is_another_object():
    recipes = _core._Recipes()
    for _ in range(5):
        partial = functools.partial(operator.add, 1)
        (recipe, _, used), _ = recipes.encode_call("k", partial, (2,))
        assert used == [0]
        assert recipes.execute(recipe, []) == 3
    assert len(recipes.definitions()) == 1


def test_a_function_whose_globals_or_closure_changed_is_another():
    recipes = _core._Recipes()
    namespace = {"__name__": "__main__", "limit": 5}
    exec("def over(x, least=0): return x > limit", namespace)
    over = namespace["over"]

    def result():
        (recipe, _, _), _ = recipes.encode_call("k", over, (3,))
        return recipes.execute(recipe, []), recipes.call_key(over, (3,))

    small, key = result()
    assert small is False
    assert result() == (False, key)
    namespace["limit"] = 2
    large, other = result()
    assert large is True
    assert other != key
    namespace["limit"] = 5
    assert result() == (False, key)
    cell = 1

    def closure(x):
        return x + cell

    (recipe, _, _), _ = recipes.encode_call("k", closure, (1,))
    assert recipes.execute(recipe, []) == 2
    cell = 10
    (recipe, _, _), _ = recipes.encode_call("k", closure, (1,))
    assert recipes.execute(recipe, []) == 11


def test_a_function_whose_keyword_defaults_changed_is_another():
    recipes = _core._Recipes()
    namespace = {"__name__": "__main__"}
    exec("def call(*, x=1, y): return x, y", namespace)
    function = namespace["call"]

    def result(**kwargs):
        (recipe, _, _), _ = recipes.encode_call("k", function, (), kwargs)
        return recipes.execute(recipe, []), recipes.call_key(function, (), kwargs)

    first, key = result(y=0)
    function.__kwdefaults__["x"] = 5
    second, other = result(y=0)
    function.__kwdefaults__["y"] = 6
    third, _ = result()
    assert (first, second, third) == ((1, 0), (5, 0), (5, 6))
    assert key != other


class Unit(str):
    """A value with attributes, as `class Unit(str)` has them."""


def rename(index):
    before, index.name = index.name, "renamed"
    return before


def scale(unit):
    before, unit.scale = getattr(unit, "scale", None), 5
    return before


def first_field(record):
    before, record["a"] = record["a"], 7
    return before


@pytest.mark.parametrize(
    ("function", "value", "expected"),
    [
        (rename, pd.Index([f"label {i}" for i in range(100)]), None),
        (scale, Unit("m" * 300), None),
        (first_field, np.zeros(1, [("a", "i4"), ("b", "S300")])[0], 0),
    ],
)
def test_a_value_that_can_be_written_to_is_fresh_for_each_task(function, value, expected):
    recipes = _core._Recipes()
    for _ in range(5):
        (recipe, _, _), _ = recipes.encode_call("k", function, (value,))
        assert recipes.execute(recipe, []) == expected


def test_a_global_whose_attributes_changed_makes_another_function():
    recipes = _core._Recipes()
    index, unit = pd.Index([1, 2]), Unit("m")
    unit.scale = 1
    namespace = {"__name__": "__main__", "index": index, "unit": unit}
    exec("def names(): return index.name, unit.scale", namespace)

    def result():
        (recipe, _, _), _ = recipes.encode_call("k", namespace["names"], ())
        return recipes.execute(recipe, [])

    assert result() == (None, 1)
    index.name, unit.scale = "second", 2
    assert result() == ("second", 2)


def test_functions_are_not_kept_alive_by_their_tokens():
    recipes = _core._Recipes()

    def function(x):
        return x

    recipes.call_key(function, (1,))
    dead = weakref.ref(function)
    del function
    gc.collect()
    assert dead() is None


def test_code_of_the_main_script_runs_elsewhere():
    script = textwrap.dedent(
        """
        import pickle, sys
        from treadle import _core
        offset = 10
        class Box:
            def __init__(self, value): self.value = value
            def get(self): return self.value + offset
        def add(box, y): return helper(box.get()) + y
        def helper(x): return 2 * x
        recipes = _core._Recipes()
        (recipe, _, used), _ = recipes.encode_call("k", add, (Box(1), 3))
        (other, _, _), _ = recipes.encode_call("l", lambda x: x + offset, (1,))
        sent = recipe, other, recipes.definitions()
        sys.stdout.buffer.write(pickle.dumps(sent))
        """
    )
    out = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, check=True, timeout=60
    ).stdout
    recipe, other, definitions = pickle.loads(out)
    assert [name for _, name, _ in definitions] == ["add", "lambda"]
    worker = _core._Recipes()
    for number, _, definition in definitions:
        worker.define(number, definition)
    assert worker.execute(recipe, []) == 25
    assert worker.execute(other, []) == 11


# Large constants


@pytest.mark.parametrize(
    "value",
    [
        np.arange(LARGE),
        "x" * (LARGE + 1),
        b"x" * (LARGE + 1),
        list(range(LARGE)),
        {"a": {i: str(i) for i in range(LARGE)}},
        pd.DataFrame({"a": np.arange(LARGE)}),
        pd.Series(["text"] * LARGE),
        Pair(np.zeros(LARGE), 1),
    ],
    ids=lambda value: type(value).__name__,
)
def test_large_constants_become_inputs(value):
    graph = {i: Task(i, arguments, value, i) for i in range(3)}
    graph["data"] = DataNode("data", value)
    recipes = _core._Recipes()
    encoded, constants = recipes.encode_graph(graph)
    key, *of_data = constants
    for constant, size in constants.values():
        assert constant is value
        assert size > LARGE
    assert key.startswith("treadle-constant-")
    # Who reads the data shares one object, under a key of its own where it can be written to.
    assert len(of_data) == (not isinstance(value, (str, bytes)))
    assert all(own.startswith(key) for own in of_data)
    for name, (recipe, inputs, _) in encoded.items():
        assert inputs == (of_data if of_data and name == "data" else [key])
        assert len(recipe) < 20
    (back, number), _ = recipes.execute(encoded[2][0], [value])
    assert number == 2
    assert (back is value) == (not of_data)
    assert pickle.dumps(back) == pickle.dumps(value)
    assert recipes.execute(encoded["data"][0], [value]) is value
    _, again = recipes.encode_graph({"x": Task("x", arguments, value)})
    assert list(again) == [key], "named by its content"


def test_many_small_objects_are_no_definitions():
    recipes = _core._Recipes()
    stamps = list(pd.date_range("2000", periods=50))
    numbers = [*np.arange(50), *np.arange(50.0), np.float32(0.1), np.True_, np.uint64(2**63)]
    numbers += [np.timedelta64(5, "s"), np.datetime64(5, "ns"), np.complex64(1j), np.longdouble(2)]
    graph = {i: Task(i, arguments, item) for i, item in enumerate([*stamps, *numbers])}
    graph["all"] = Task("all", arguments, numbers, np.nan, np.float64("nan"))
    values, _ = execute(graph, recipes)
    for i, item in enumerate([*stamps, *numbers]):
        ((back,), _) = values[i]
        assert back == item
        assert type(back) is type(item)
    assert repr(values["all"]) == repr(arguments(numbers, np.nan, np.float64("nan")))
    assert len(recipes.definitions()) < 20
    _, constants = recipes.encode_graph({"x": Task("x", arguments, list(np.arange(20_000)))})
    assert len(constants) == 1


def test_a_large_constant_of_many_tasks_is_looked_at_once():
    items = [Colour.RED, *range(LARGE)]
    many = {i: Task(i, arguments, items, k="x" * (LARGE + 1)) for i in range(20)}
    encoded, constants = _core._Recipes().encode_graph(many)
    assert len(constants) == 2
    assert {tuple(inputs) for _, inputs, _ in encoded.values()} == {tuple(constants)}


def test_large_constants_of_equal_content_are_one():
    graph = {i: Task(i, arguments, np.ones(LARGE)) for i in range(3)}
    graph[3] = Task(3, arguments, np.ones(LARGE, dtype="f4"))
    graph[4] = Task(4, arguments, np.ones((LARGE // 2, 2)))
    encoded, constants = _core._Recipes().encode_graph(graph)
    assert len(constants) == 3
    assert encoded[0][1] == encoded[1][1] == encoded[2][1]


def test_large_constants_beside_references_and_inside_containers():
    array = np.zeros(LARGE)
    node = Task("t", arguments, TaskRef("a"), [array, 1], k=array)
    (first, (inside, one)), kwargs = run(node, {"a": 5})
    assert (first, one) == (5, 1)
    assert inside is kwargs["k"]
    function = functools.partial(arguments, array)
    assert call(function, 1)[0][1] == 1
    ((future, (items, (text,))), _) = call(
        arguments, Future("f"), ([*range(LARGE), 1], ["x" * LARGE])
    )
    assert (future, len(items), len(text)) == ("f", LARGE + 1, LARGE)
    recipes = _core._Recipes()
    mixed = ([*range(LARGE)], [Future("f")], {"k": "x" * (LARGE + 1)})
    (recipe, inputs, _), constants = recipes.encode_call("k", arguments, mixed)
    assert len(recipe) < 50
    assert len(inputs) == 3
    assert len(constants) == 2


def test_threads_that_share_an_encoder():
    recipes = _core._Recipes()
    failures = []

    def submit(number):
        try:
            for _ in range(20):
                function = functools.partial(arguments, number)
                graph = {i: Task(i, function, len, np.dtype("f4"), i) for i in range(20)}
                values, _ = execute(graph, recipes)
                assert values[7] == ((number, len, np.dtype("f4"), 7), {})
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=submit, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures
    assert not any(thread.is_alive() for thread in threads)
    numbers = [number for number, _, _ in recipes.definitions()]
    assert numbers == list(range(len(numbers)))
