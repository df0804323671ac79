"""``da.ones(1000, chunks=(2,)).sum().compute()``, and the same in one chunk, against Dask's own graph building plus the bare user functions.

Building is all that ``compute`` does up to its call of the scheduler, and the materialising of the graph.
The bare user functions are the inner functions of every task, fused tasks opened, in order, called in a plain
loop with arguments that were resolved beforehand.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import dask
import dask.array as da
from dask._task_spec import (
    Alias,
    DataNode,
    GraphNode,
    NestedContainer,
    Task,
    TaskRef,
    _execute_subgraph,
    convert_legacy_graph,
)
from dask.order import order

import treadle
from figures import Figure
from timing import interleave, ms

Call = tuple[Any, tuple[Any, ...], dict[str, Any]]


def work(chunk: int) -> da.Array:
    return da.ones(1000, chunks=(chunk,)).sum()


def only_build(dsk: Any, keys: list[Any], **_kwargs: Any) -> tuple[None, ...]:
    """A scheduler that materialises the graph and runs nothing."""
    dsk.__dask_graph__()
    return (None,) * len(keys)


def user_calls(chunk: int) -> list[Call]:
    """Every call of a user function that the work makes, with its resolved arguments, in order."""
    calls: list[Call] = []

    def resolve(node: Any, values: Mapping[Any, Any]) -> Any:
        if isinstance(node, (TaskRef, Alias)):
            return values[node.key if isinstance(node, TaskRef) else node.target]
        if isinstance(node, DataNode):
            return node.value
        if not isinstance(node, GraphNode):
            return node
        assert isinstance(node, Task)
        args = tuple(resolve(a, values) for a in node.args)
        if node.func is _execute_subgraph:
            inner, outkey, inkeys, *dependencies = args
            return run(inner, dict(zip(inkeys, dependencies, strict=True)))[outkey]
        kwargs = {k: resolve(v, values) for k, v in node.kwargs.items()}
        if not isinstance(node, NestedContainer):
            calls.append((node.func, args, kwargs))
        return node.func(*args, **kwargs)

    def run(dsk: Mapping[Any, Any], values: dict[Any, Any]) -> dict[Any, Any]:
        rank = order(dict(dsk))
        for key in sorted(dsk, key=rank.__getitem__):
            values[key] = resolve(dsk[key], values)
        return values

    def record(dsk: Any, keys: list[Any], **_kwargs: Any) -> list[Any]:
        values = run(convert_legacy_graph(dsk.__dask_graph__()), {})
        return [values[k] for k in keys]

    assert work(chunk).compute(scheduler=record) == 1000
    return calls


def measure(quick: bool) -> list[Figure]:
    return [
        *_of_chunks(2, 5 if quick else 15, least=0.0),
        *_of_chunks(1000, 5 if quick else 15, least=0.05),
    ]


def _of_chunks(chunk: int, rounds: int, least: float) -> list[Figure]:
    calls = user_calls(chunk)

    def bare() -> None:
        for func, args, kwargs in calls:
            func(*args, **kwargs)

    times = interleave(
        {
            "build": lambda: work(chunk).compute(scheduler=only_build),
            "bare": bare,
            "sync": lambda: work(chunk).compute(scheduler=treadle.sync.get),
            "threads": lambda: work(chunk).compute(scheduler=treadle.threaded.get, num_workers=2),
            "processes": lambda: work(chunk).compute(
                scheduler=treadle.processes.get, num_workers=2
            ),
            "dask sync": lambda: work(chunk).compute(scheduler="sync"),
            "dask threads": lambda: work(chunk).compute(scheduler=dask.threaded.get, num_workers=2),
        },
        rounds,
        least,
    )
    # Dask's part and the functions, added round by round.
    times.seconds["floor"] = [
        a + b for a, b in zip(times.seconds["build"], times.seconds["bare"], strict=True)
    ]
    base = f"build {ms(times.median('build'))} + {len(calls)} bare functions {ms(times.median('bare'))}"
    what = f"da.ones(1000, chunks={chunk}).sum()"
    figures = []
    for who in ("threads", "sync"):
        ratio = times.ratio(who, "floor")
        figures.append(
            Figure(
                f"{what}, {who}",
                f"{ratio:.2f} × ({ms(times.median(who))} over {base})",
                # One chunk has next to nothing to schedule: what is left is Dask's own.
                bar="≤ 1.25 ×" if chunk == 2 else "",
                passed=ratio <= 1.25 if chunk == 2 else None,
            )
        )
    figures.append(
        Figure(
            f"{what}, dask threads over treadle threads",
            f"{times.ratio('dask threads', 'threads'):.2f} × ({ms(times.median('dask threads'))}; "
            f"dask sync {ms(times.median('dask sync'))}, {times.ratio('dask sync', 'sync'):.2f} × treadle's; "
            f"treadle processes {ms(times.median('processes'))})",
            bar="about 4 ×" if chunk == 2 else "",
        )
    )
    return figures
