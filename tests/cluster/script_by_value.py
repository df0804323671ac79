"""A script for `test_scripts.py`: what it defines, in all ways in which that gets to a worker."""

from __future__ import annotations

import abc
import collections
import contextlib
import dataclasses
import enum
import functools
import sys
import typing

import dask
from distributed.diagnostics.plugin import WorkerPlugin
from toolz import curry

import treadle

T = typing.TypeVar("T")
Parameters = typing.ParamSpec("Parameters")
Number = typing.NewType("Number", int)


@functools.lru_cache(maxsize=10)
def square(x):
    """A cached function."""
    return x * x


@functools.cache
def fibonacci(n):
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)


def counted(f):
    @functools.wraps(f)
    def inner(*args):
        inner.calls += 1
        return f(*args)

    inner.calls = 0
    return inner


@counted
def wrapped(x):
    return x + 1


@counted
@functools.cache
def cached_and_wrapped(x):
    return x + 1


@functools.cache
@counted
def wrapped_and_cached(x):
    return x + 1


def local():
    @functools.cache
    def inner(x):
        return x + 1

    return inner


@curry
def curried(a, b):
    return a + b


@functools.singledispatch
def shown(_x):
    return "anything"


@shown.register
def _(x: int):
    return f"{x} of int"


@shown.register
def _(x: list):
    return [shown(part) for part in x]


class Left:
    def other(self):
        return Right()


class Right(Left):
    def other(self):
        return Left()


class Box(typing.Generic[T]):
    def __init__(self, value: T):
        self.value = value


class Calling(typing.Generic[Parameters]):
    pass


class IntBox(Box[int]):
    pass


class Colour(enum.Enum):
    RED = 1
    GREEN = 2

    @property
    def low(self):
        return self.name.lower()


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Point:
    x: int
    more: list = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Plain:
    x: int


Pair = collections.namedtuple("Pair", "first second")


class Named(typing.NamedTuple):
    first: int

    def twice(self):
        return 2 * self.first


class Abstract(abc.ABC):
    @abc.abstractmethod
    def value(self): ...


class Concrete(Abstract):
    def value(self):
        return 1


@functools.total_ordering
class Decorated:
    def __init__(self, value=2):
        self.value = value

    @counted
    def wrapped(self, x):
        return self.value + x

    @functools.cache  # noqa: B019
    def cached(self, x):
        return self.value * x

    @functools.cached_property
    def once(self):
        return 10 * self.value

    @staticmethod
    @functools.cache
    def static(x):
        return x + 1

    @classmethod
    def made(cls, x):
        return cls(x)

    @functools.singledispatchmethod
    def shown(self, _x):
        return "anything"

    @shown.register
    def _(self, x: int):
        return self.value + x

    partial = functools.partialmethod(cached, 5)

    def __eq__(self, other):
        return self.value == other.value

    def __lt__(self, other):
        return self.value < other.value

    def __hash__(self):
        return hash(self.value)


@contextlib.contextmanager
def context():
    yield 1


def entered(manager):
    with manager() as value:
        return value


CASES = [
    (square, lambda f: (f(3), f.cache_parameters(), f.__doc__), (9, {"maxsize": 10, "typed": False}, "A cached function.")),
    (fibonacci, lambda f: f(30), 832040),
    (wrapped, lambda f: f(1), 2),
    (cached_and_wrapped, lambda f: f(1), 2),
    (wrapped_and_cached, lambda f: f(1), 2),
    (local(), lambda f: f(1), 2),
    (curried, lambda f: f(1)(2), 3),
    (curried(1), lambda f: f(2), 3),
    (shown, lambda f: f([1, ""]), ["1 of int", "anything"]),
    (Left, lambda c: isinstance(c().other().other(), c), True),
    (Box(3), lambda b: b.value, 3),
    (IntBox(3), lambda b: b.value, 3),
    (Box[int], lambda b: b(3).value, 3),
    (Calling, lambda c: len(c.__parameters__), 1),
    (Number, lambda n: (n(3), n.__name__), (3, "Number")),
    (Colour.RED, lambda c: (c.low, type(c)(2).low, c is type(c).RED), ("red", "green", True)),
    (Point(1), lambda p: p < type(p)(2), True),
    (Plain(1), lambda p: p == type(p)(1), True),
    (Pair(1, 2), lambda p: p.second, 2),
    (Named(1), lambda n: n.twice(), 2),
    (Concrete(), lambda c: c.value(), 1),
    (Decorated(), lambda d: (d.wrapped(1), d.cached(3), d.once, d.static(1), d.shown(1), d.shown(""), d.partial()), (3, 6, 20, 2, 3, "anything", 10)),
    (Decorated, lambda c: c(1) <= c.made(2), True),
    (Decorated().cached, lambda f: f(3), 6),
    (Decorated().wrapped, lambda f: f(3), 5),
    (functools.partial(square, 3), lambda f: f(), 9),
    (functools.partial(Decorated.cached, x=3), lambda f: f(Decorated()), 6),
    (vars(Decorated)["static"], lambda f: f(1), 2),
    (vars(Decorated)["once"], lambda p: p.func(Decorated()), 20),
    (context, entered, 1),
]  # fmt: skip

try:
    import numba
except ImportError:
    pass
else:

    @numba.njit
    def compiled(x):
        return x + 1

    @numba.njit
    def calls_compiled(x):
        return compiled(x) + 1

    @numba.vectorize
    def vectorized(x):
        return x + 1

    CASES += [
        (compiled, lambda f: f(1), 2),
        (calls_compiled, lambda f: f(1), 3),
        (vectorized, lambda f: f(1), 2),
    ]


NEED_GLOBALS = {
    number
    for number, (value, function, _) in enumerate(CASES)
    if {"Decorated"} & {*function.__code__.co_names}
    or any(value is one for one in (fibonacci, shown, Left))
}


class Holder:
    """An actor."""

    def __init__(self, value):
        self.value = value

    def apply(self, function):
        return function(self.value)

    def get(self):
        return self.value


class Plugin(WorkerPlugin):
    name = "own"

    def __init__(self, case):
        self.case = case

    def setup(self, worker):
        value, function, _ = self.case
        worker.outcome = function(value)


def apply(function, value):
    return function(value)


def outcome(dask_worker):
    return dask_worker.outcome


def same(value):
    return value


def ways(client):
    view = client[:]
    yield "submit", lambda value, f: client.submit(f, value, pure=False).result()
    yield "map", lambda value, f: client.gather(client.map(f, [value], pure=False))[0]
    yield "scatter", lambda value, f: client.submit(f, client.scatter(value), pure=False).result()
    yield (
        "processes",
        lambda value, f: dask.delayed(f)(value).compute(
            scheduler="treadle-processes", num_workers=2
        ),
    )
    yield "view", lambda value, f: view.apply_sync(f, value)[0]
    yield (
        "pushed",
        lambda value, f: (view.push({"value": value}), f(view.pull("value", block=True)[0]))[1],
    )
    view.use_cloudpickle()
    yield "view by value", lambda value, f: view.apply_sync(f, value)[0]
    yield (
        "pushed by value",
        lambda value, f: (view.push({"value": value}), f(view.pull("value", block=True)[0]))[1],
    )
    yield "run", lambda value, f: next(iter(client.run(f, value).values()))
    yield "scheduler", lambda value, f: client.run_on_scheduler(f, value)
    yield "back", lambda value, f: f(client.submit(same, value, pure=False).result())
    yield (
        "actor",
        lambda value, f: client.submit(Holder, value, actor=True).result().apply(f).result(),
    )
    yield (
        "of actor",
        lambda value, f: f(client.submit(Holder, value, actor=True).result().get().result()),
    )
    yield "plugin", lambda value, f: plugin(client, (value, f, None))


def plugin(client, case):
    client.register_plugin(Plugin(case))
    return next(iter(client.run(outcome).values()))


if __name__ == "__main__":
    wrong = []
    with treadle.Client(n_workers=2, threads_per_worker=1) as client:
        for way, do in ways(client):
            for number, (value, function, expected) in enumerate(CASES):
                if way == "view" and number in NEED_GLOBALS:
                    # Functions have those of the engine there.
                    continue
                try:
                    got = do(value, function)
                except Exception as error:
                    got = f"{type(error).__name__}: {error}"
                if got != expected:
                    wrong.append(f"{way}: {value}: {got}")
        ran = client.run(lambda: "__mp_main__" in sys.modules)
        wrong += [f"{worker} has run the script" for worker, has in ran.items() if has]
    print("\n".join(wrong) or "fine")
