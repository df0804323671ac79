"""The small graphs of the figures, and the bare Python loops over the same tasks that are their floors."""

from __future__ import annotations

import random
from typing import Any

from dask._task_spec import Task, TaskRef

Graph = dict[Any, Task]


def inc(x: int) -> int:
    return x + 1


def take(*args: Any) -> Any:
    return args[0]


def flat(n: int, func: Any = inc) -> tuple[Graph, list[Any]]:
    """``n`` independent tasks, every result requested."""
    dsk = {("x", i): Task(("x", i), func, i) for i in range(n)}
    return dsk, list(dsk)


def chain(n: int, func: Any = inc) -> tuple[Graph, list[Any]]:
    """``n`` tasks that each read the one before, the last result requested."""
    dsk = {("x", 0): Task(("x", 0), func, 0)}
    for i in range(1, n):
        dsk["x", i] = Task(("x", i), func, TaskRef(("x", i - 1)))
    return dsk, [("x", n - 1)]


def dense(n: int, k: int) -> tuple[Graph, list[Any]]:
    """``n`` tasks that each read ``k`` random ones of ``n`` source tasks; the readers' results are requested."""
    rng = random.Random(0)
    dsk = {("s", i): Task(("s", i), inc, i) for i in range(n)}
    for i in range(n):
        reads = rng.sample(range(n), k)
        dsk["x", i] = Task(("x", i), take, *(TaskRef(("s", j)) for j in reads))
    return dsk, [("x", i) for i in range(n)]


def bare_flat(dsk: Graph) -> dict[Any, Any]:
    """The plain call of every task."""
    r = {}
    for k, t in dsk.items():
        r[k] = t.func(*t.args)
    return r


def bare_chain(dsk: Graph) -> dict[Any, Any]:
    """As :func:`bare_flat`, with the one argument looked up: the least that a chain needs."""
    r = {}
    tasks = iter(dsk.items())
    k, t = next(tasks)
    r[k] = t.func(*t.args)
    for k, t in tasks:
        (a,) = t.args
        r[k] = t.func(r[a.key])
    return r


def bare_dense(dsk: Graph) -> dict[Any, Any]:
    """As :func:`bare_flat`, with every argument that is a reference looked up."""
    r: dict[Any, Any] = {}
    for k, t in dsk.items():
        if t.func is inc:
            r[k] = t.func(*t.args)
        else:
            r[k] = t.func(*[r[a.key] for a in t.args])
    return r
