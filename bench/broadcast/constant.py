"""What a push costs its client, and what the relays send, by the number of engines."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

import engines
from figures import Figure, time_of

REAL = (1, 8, 32)
SIMULATED = (1, 8, 32, 128, engines.CROWD)
# Doubles of what is pushed, n × n: one fits into a message, one does not.
SIDES = (16, 512)
# Small messages are one more or less, as results come together or do not.
MESSAGES, BYTES = 2, 500
# What messages have beside the payload, of its size.
HEADS = 0.01
# Every cast is settled after 50 ms, which is a message, unless another cast tells it before.
PAUSE = 0.3


class Cost(NamedTuple):
    """What a client sent for a push, and what came back; sent as ``cast_traffic`` counts it."""

    messages: float
    sent: float
    shared: float
    answers: float
    received: float

    @property
    def bytes(self) -> float:
        return self.sent + self.shared

    def __str__(self) -> str:
        passed = f" and {self.shared:,.0f} as shared memory" if self.shared else ""
        return f"{self.messages:g} messages, {self.sent:,.0f} bytes{passed}"


def cost(client: Any, view: Any, side: int, rounds: int) -> tuple[Cost, float]:
    """What a push costs, and its seconds: medians."""
    chunk = np.random.default_rng(side).random((side, side))
    found, times = [], []
    # Whom it speaks to, a client is told with the first push.
    for _ in range(1 + rounds):
        before = client._connection.cast_traffic()
        start = time.perf_counter()
        view.push({"chunk": chunk}, block=True)
        times.append(time.perf_counter() - start)
        time.sleep(PAUSE)
        after = client._connection.cast_traffic()
        found.append([b - a for a, b in zip(before, after, strict=True)])
    columns = zip(*found[1:], strict=True)
    return Cost(*map(statistics.median, columns)), statistics.median(times[1:])


class Row(NamedTuple):
    """A push to some engines, and what the one of them sent that sent most."""

    engines: int
    side: int
    cost: Cost
    seconds: float
    most: float = 0
    degree: int = 0


def real(counts: tuple[int, ...], rounds: int) -> Iterator[Row]:
    with engines.treadle(max(counts)) as client:
        for count in counts:
            for side in SIDES:
                yield Row(count, side, *cost(client, client[:count], side, rounds))


def simulated(counts: tuple[int, ...], rounds: int) -> Iterator[Row]:
    for count in counts:
        with engines.simulated(count) as (client, crowd):
            view = client[:]
            for side in SIDES:
                crowd.sent()
                cost_, seconds = cost(client, view, side, rounds)
                degree, sent = crowd.sent(8 * side**2)
                # Of all pushes of `cost`.
                yield Row(count, side, cost_, seconds, max(sent) / (1 + rounds), degree)


def measure(quick: bool) -> Iterator[Figure]:
    rounds = 3 if quick else 9
    yield from compare("{} engines of this host", real(REAL, rounds))
    yield from compare("{} simulated engines, each its own host", simulated(SIMULATED, rounds))


def compare(what: str, rows: Iterator[Row]) -> Iterator[Figure]:
    """What each push costs the client, beside the same push to the first number of engines."""
    first: dict[int, Cost] = {}
    for row in rows:
        least = first.setdefault(row.side, row.cost)
        whom = what.format(row.engines)
        yield Figure(
            f"push of {row.side}² doubles to {whom}: the client sends",
            str(row.cost),
            f"to one engine: {least}",
            f"{row.cost.bytes / least.bytes:.3f} ×",
            "constant",
            abs(row.cost.messages - least.messages) <= MESSAGES
            and abs(row.cost.bytes - least.bytes) <= BYTES,
            f"it gets {row.cost.answers:g} messages, {row.cost.received:,.0f} bytes; "
            f"{time_of(row.seconds)}",
        )
        size = 8 * row.side**2
        if row.side == max(SIDES) and row.degree and row.engines > 1:
            share = row.most / (row.degree * size)
            yield Figure(
                f"the same push to {whom}: the most that one of them sends",
                f"{row.most:,.0f} bytes",
                f"size {size:,}, degree {row.degree}",
                f"{share:.3f} × degree × size",
                "≤ degree × size",
                share <= 1 + HEADS,
            )
