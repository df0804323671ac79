"""Arrays of 10,000² doubles from rows to columns and back, and in a million pieces."""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator
from functools import partial
from typing import Any

import dask.array as da
from distributed import wait

import clusters
from figures import Figure
from peaks import peak, proportional
from sides import OUR_TASKS, THEIR_TASKS, THEIRS, by, in_turns, kept, sides, ways

SIDE = 10_000
MB = 1e6
# Chunks before and after, by what they are.
CASES = {
    "rows to columns": ((100, SIDE), (SIDE, 100)),
    "columns to rows": ((SIDE, 100), (100, SIDE)),
    "rows to columns, 1,000 × 1,000 pieces": ((10, SIDE), (SIDE, 10)),
}
WARM = 64


def array(chunks: tuple[int, int], side: int = SIDE) -> Any:
    return da.random.default_rng(0).random((side, side), chunks=chunks)


def times(quick: bool) -> Iterator[Figure]:
    with sides() as engines:
        for what, (before, after) in CASES.items():
            for side in engines.values():
                side.hold(array(before))

            def run(client: Any, x: Any, chunks: tuple[int, int] = after) -> None:
                kept(client, x.rechunk(chunks))

            outcome = in_turns(ways(engines, run), 1 if quick else 3)
            yield outcome.at_least(f"`rechunk` of 800 MB, {what}", 3, THEIRS, THEIR_TASKS)
            yield outcome.at_most("the same", 1, OUR_TASKS)


def _once(client: Any, side: int, before: tuple[int, int], after: tuple[int, int]) -> None:
    x = client.persist(array(before, side))
    wait(x)
    kept(client, x.rechunk(after))


def above(name: str, before: tuple[int, int], after: tuple[int, int]) -> float:
    """The most memory of new workers, in bytes above what they have when they know the work."""
    with by("p2p"), clusters.CLIENTS[name]() as client:
        pids = list(client.run(os.getpid).values())
        _once(client, WARM, (1, WARM), (WARM, 1))
        start = sum(map(proportional, pids))
        return peak(pids, partial(_once, client, SIDE, before, after)) - start


def memory(quick: bool) -> Iterator[Figure]:
    for what, chunks in list(CASES.items())[:2]:
        rounds = range(1 if quick else 3)
        found = {
            name: statistics.median(above(name, *chunks) for _ in rounds)
            for name in clusters.CLIENTS
        }
        ratio = found["treadle"] / found["distributed"]
        yield Figure(
            f"peak memory of `rechunk`, {what}",
            f"{found['treadle'] / MB:.0f} MB",
            f"{THEIRS} {found['distributed'] / MB:.0f} MB",
            f"{ratio:.2f} ×",
            "≤ 1 ×",
            ratio <= 1,
            f"input and result: {2 * SIDE * SIDE * 8 / MB:.0f} MB",
        )


def measure(quick: bool) -> Iterator[Figure]:
    yield from times(quick)
    yield from memory(quick)
