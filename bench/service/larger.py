"""Servers that get three times as much as their memory."""

from __future__ import annotations

from collections.abc import Iterator

from figures import Figure, time_of
from jobs import Took, service, shuffled
from peaks import peak, proportional

LIMIT = 256 << 20
TIMES = 3


def measure(quick: bool) -> Iterator[Figure]:
    """Yield the figure."""
    with service(LIMIT) as (running, folder):
        pids = [server._process.pid for server in running._servers]
        took: list[Took] = []
        size = TIMES * LIMIT // (4 if quick else 1)
        before = max(map(proportional, pids))

        def once() -> None:
            took.append(shuffled(running, folder, 100, 100, size))

        memory = peak(pids, once, max) - before
    yield Figure(
        f"{size / 1e6:,.0f} MB at each of two servers with {LIMIT / 1e6:,.0f} MB of memory for rows",
        f"a server grows {memory / 1e6:,.0f} MB",
        f"{time_of(took[0].whole)}, {took[0].files} files of {took[0].file_bytes / 1e6:,.0f} MB",
        f"{memory / LIMIT:.2f} ×",
        "≤ 1 ×",
        memory <= LIMIT,
    )
