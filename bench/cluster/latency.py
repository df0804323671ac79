"""One thing at a time: a dependent step, a round trip, an element of an array."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from typing import Any

import dask
import dask.array as da
from dask._task_spec import Task, TaskRef
from dask.highlevelgraph import HighLevelGraph, MaterializedLayer

import engines
from figures import Figure, time_of
from work import inc

_numbers = iter(range(1 << 60))


def chain(client: Any, steps: int, workers: list[str] | None) -> float:
    """Seconds a step of a prebuilt chain; each step on the other of ``workers`` where given."""
    name = f"chain-{next(_numbers)}"
    graph: dict[Any, Any] = {}
    previous: Any = 0
    for step in range(steps):
        key = (name, step)
        graph[key] = Task(key, inc, previous)
        previous = TaskRef(key)
    layer = MaterializedLayer(graph)
    if workers is not None:
        layer.annotations = {"workers": lambda key: workers[key[1] % 2]}
    whole = HighLevelGraph({name: layer}, {name: set()})
    start = time.perf_counter()
    assert client.get(whole, (name, steps - 1)) == steps
    return (time.perf_counter() - start) / steps


def round_trips(client: Any, count: int) -> float:
    """Median seconds of ``submit(...).result()``."""
    times = []
    for number in range(count):
        start = time.perf_counter()
        client.submit(inc, number, pure=False).result()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def elements(client: Any, count: int) -> float:
    """Median seconds of reading one element of a persisted array."""
    array = client.persist(da.arange(10_000, chunks=1000))
    from distributed import wait

    wait(array)
    times = []
    for number in range(count):
        start = time.perf_counter()
        array[number * 37 % 10_000].compute()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def building(count: int) -> float:
    """The same as far as Dask alone takes: slicing, optimising and materialising the graph."""
    array = da.arange(10_000, chunks=1000).persist(scheduler="sync")
    times = []
    for number in range(count):
        start = time.perf_counter()
        array[number * 37 % 10_000].compute(scheduler=_nothing)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def _nothing(dsk: Any, keys: Any, **_: Any) -> Any:
    dsk.__dask_graph__() if hasattr(dsk, "__dask_graph__") else dict(dsk)
    return [[0] * len(key) if isinstance(key, list) else 0 for key in keys]


def measure(quick: bool) -> Iterator[Figure]:
    count = 100 if quick else 500
    found: dict[str, dict[str, float]] = {}
    for name, open_engine in engines.CLIENTS.items():
        few = count if name == "treadle" else 30
        steps = 1000 if name == "treadle" else 100
        found[name] = here = {}
        with open_engine() as client:
            addresses = sorted(client.scheduler_info(n_workers=-1)["workers"])
            round_trips(client, 10)
            here["round trip"] = round_trips(client, few)
            here["element"] = elements(client, few)
            here["across"] = statistics.median(chain(client, steps, addresses) for _ in range(5))
        with open_engine(1) as client:
            chain(client, 20, None)
            here["chain"] = statistics.median(chain(client, steps, None) for _ in range(5))
    with dask.config.set(scheduler="sync"):
        base = building(count)
    ours, theirs = found["treadle"], found["distributed"]
    for what, key, bar, less in (
        ("a step of a chain of 1,000, one worker", "chain", 20e-6, 0.0),
        ("a step of a chain, each on the other worker", "across", 150e-6, 0.0),
        ("`submit(…).result()`, median", "round trip", 200e-6, 0.0),
        ("one element of a persisted array, beyond Dask's own part", "element", 300e-6, base),
    ):
        measured = ours[key] - less
        yield Figure(
            what,
            time_of(measured) + (f" (and {time_of(less)})" if less else ""),
            f"distributed {time_of(theirs[key] - less)}",
            f"{(theirs[key] - less) / measured:.0f} ×",
            f"≤ {time_of(bar)}",
            measured <= bar,
        )
