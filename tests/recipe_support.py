"""What the tests of recipes share."""

from __future__ import annotations

from collections import namedtuple
from enum import Enum, IntEnum
from itertools import count

from dask._task_spec import TaskRef, convert_legacy_graph
from dask.base import collections_to_expr
from dask.order import order

from treadle import _core

if not hasattr(_core, "_Recipes"):
    raise ImportError("this build has no recipes by themselves to test: run `make build`")

# Constants of more bytes than this are not put into recipes.
LARGE = 64 << 10


def execute(graph, recipes=None):
    """Run a graph by recipes; the values of all keys, and the recipes."""
    recipes = recipes or _core._Recipes()
    encoded, constants = recipes.encode_graph(dict(graph))
    values = {key: value for key, (value, _) in constants.items()}
    priorities = order(convert_legacy_graph(graph))
    for key in sorted(encoded, key=lambda key: priorities.get(key, -1)):
        recipe, inputs, _ = encoded[key]
        assert len(set(inputs)) == len(inputs)
        values[key] = recipes.execute(recipe, [values[name] for name in inputs])
    return values, encoded


def run(node, values=None):
    """Run one node by its recipe, with its inputs from `values`."""
    recipes = _core._Recipes()
    encoded, constants = recipes.encode_graph({"node": node})
    recipe, inputs, _ = encoded["node"]
    values = {**(values or {}), **{key: value for key, (value, _) in constants.items()}}
    return recipes.execute(recipe, [values[name] for name in inputs])


def call(function, *args, **kwargs):
    """Run one call by its recipe; its futures' values are their keys."""
    recipes = _core._Recipes()
    (recipe, inputs, _), constants = recipes.encode_call("call", function, args, kwargs)
    values = {key: value for key, (value, _) in constants.items()}
    return recipes.execute(recipe, [values.get(name, name) for name in inputs])


def materialise(*collections):
    graph = collections_to_expr(list(collections)).optimize().__dask_graph__()
    return convert_legacy_graph(graph)


def arguments(*args, **kwargs):
    return args, kwargs


class Colour(str, Enum):
    RED = "red"


class Number(IntEnum):
    TWO = 2


class Text(str):
    pass


Pair = namedtuple("Pair", "a b")


class Point:
    def __init__(self, x):
        self.x = x

    def __eq__(self, other):
        return type(other) is Point and other.x == self.x


class Future(TaskRef):
    """As distributed's: a reference wherever it occurs."""

    __slots__ = ("__weakref__", "_id")

    numbers = count()

    def __init__(self, key):
        super().__init__(key)
        self._id = ("client", next(Future.numbers))
