"""Ours and distributed's shuffles, by P2P and by tasks, in turns on the same data."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import dask
from distributed import futures_of, wait

import clusters
from figures import MISSING, Figure, Samples, time_of

OURS = "Treadle, P2P"
OUR_TASKS = "Treadle, tasks"
THEIRS = "distributed, P2P"
THEIR_TASKS = "distributed, tasks"
WAYS = {
    OURS: ("treadle", "p2p"),
    OUR_TASKS: ("treadle", "tasks"),
    THEIRS: ("distributed", "p2p"),
    THEIR_TASKS: ("distributed", "tasks"),
}
CAP = 180.0  # seconds: what takes longer is given up
SLOW = 20.0  # seconds: what takes longer is not repeated

Turn = Callable[[], float]


def by(method: str) -> Any:
    return dask.config.set({"dataframe.shuffle.method": method, "array.rechunk.method": method})


def computed(client: Any, collection: Any) -> Any:
    """Its value, at the client."""
    future = client.compute(collection)
    try:
        return future.result(timeout=CAP)
    finally:
        future.cancel()


def kept(client: Any, collection: Any) -> None:
    """Compute it, and leave it at the workers."""
    persisted = client.persist(collection)
    wait(persisted, timeout=CAP)
    for future in futures_of(persisted):
        if future.status != "finished":
            future.result(timeout=CAP)  # raises its error


class Side:
    """An engine, and the data that it holds."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.held: Any = ()

    def hold(self, *collections: Any) -> None:
        self.held = self.client.persist(list(collections))
        wait(self.held)
        keys = {str(future.key) for future in futures_of(self.held)}
        self.settle = clusters.settled(self.client, keys)

    def turn(self, method: str, run: Callable[..., Any]) -> Turn:
        """Seconds of ``run(client, *held)``."""

        def seconds() -> float:
            self.settle()
            with by(method):
                start = time.perf_counter()
                run(self.client, *self.held)
                return time.perf_counter() - start

        return seconds


@contextmanager
def sides() -> Iterator[dict[str, Side]]:
    """Both engines, with two workers of one thread each."""
    with ExitStack() as stack:
        engines = dict.fromkeys(engine for engine, _ in WAYS.values())
        yield {name: Side(stack.enter_context(clusters.CLIENTS[name]())) for name in engines}


def ways(sides: Mapping[str, Side], run: Callable[..., Any]) -> dict[str, Turn]:
    return {name: sides[engine].turn(method, run) for name, (engine, method) in WAYS.items()}


@dataclass
class Outcome:
    """Seconds of the ways in turns. What failed or took too long says so instead."""

    samples: Samples = field(default_factory=Samples)
    failed: dict[str, str] = field(default_factory=dict)

    def told(self, name: str) -> str:
        if name in self.failed:
            return f"{name}: {self.failed[name]}"
        return f"{name} {time_of(self.samples.median(name))}" if name in self.samples else ""

    def at_least(self, what: str, least: float, *peers: str, limit: str = "") -> Figure:
        """The first of ``peers`` takes ``least`` times as long as ours; the others are only told."""
        return self._figure(what, peers, f"≥ {least:g} ×", limit, lambda ours: 1 / ours, least)

    def at_most(self, what: str, most: float, *floors: str, limit: str = "") -> Figure:
        """Ours takes at most ``most`` times as long as the first of ``floors``."""
        return self._figure(what, floors, f"≤ {most:g} ×", limit, lambda ours: -ours, -most)

    def _figure(
        self,
        what: str,
        others: tuple[str, ...],
        bar: str,
        limit: str,
        good: Callable[[float], float],
        least: float,
    ) -> Figure:
        peers = ", ".join(filter(None, map(self.told, others)))
        if OURS not in self.samples:
            return Figure(what, self.failed.get(OURS, MISSING), peers, bar=bar, passed=False)
        measured = time_of(self.samples.median(OURS))
        if others[0] not in self.samples:
            return Figure(what, measured, peers, bar=bar, limit=limit)
        found = good(self.samples.ratio(OURS, others[0]))
        return Figure(what, measured, peers, f"{abs(found):.2f} ×", bar, found >= least, limit)


def in_turns(turns: Mapping[str, Turn], rounds: int) -> Outcome:
    """Seconds of each, a round after the other.

    In a round, each runs twice, and the second run counts: its memory was used before, by itself. Between
    two rounds the others run, and freed memory goes back to the system. What is slow runs once.
    """
    outcome = Outcome()
    quick = {}
    for name, turn in turns.items():
        try:
            first = turn()
        except TimeoutError:
            outcome.failed[name] = f"more than {CAP:g} s"
        except Exception as error:  # a peer that cannot do it: the line says so
            outcome.failed[name] = f"failed: {type(error).__name__}: {error}"[:200]
        else:
            outcome.samples.values[name] = [first] * rounds if first > SLOW else []
            if first <= SLOW:
                quick[name] = turn
    for number in range(rounds):
        for name, turn in list(quick.items())[:: -1 if number % 2 else 1]:
            turn()
            outcome.samples.values[name].append(turn())
    return outcome
