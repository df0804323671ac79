"""Rows that are compressed, and rows that cannot be: seconds and bytes without compression, with lz4 and with zstd."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

import numpy as np

from figures import Figure, time_of
from jobs import Took, service, shuffled

BYTES = 800_000_000
MAPS = PARTITIONS = 100
WORDS, COPIES = 4, 2
MEMORY = 8 << 30
KINDS = ("none", "lz4", "zstd")


def orders(rows: int) -> Any:
    """Rows of a table: a key, a time, a number and a price, of eight bytes each."""
    random = np.random.default_rng(0)
    values = np.empty((rows, WORDS), np.int64)
    values[:, 0] = random.integers(0, 100_000, rows)
    values[:, 1] = 1_700_000_000_000_000 + np.cumsum(random.integers(0, 1_000_000, rows))
    values[:, 2] = random.integers(1, 50, rows)
    values[:, 3] = 100 * random.integers(1, 1_000, rows) - 1
    return values


def noise(rows: int) -> Any:
    """Rows that no codec makes smaller."""
    return np.frombuffer(np.random.default_rng(0).bytes(8 * rows * WORDS), np.int64).reshape(
        -1, WORDS
    )


def measure(quick: bool) -> Iterator[Figure]:
    """Yield the figures."""
    rounds = 1 if quick else 3
    nbytes = BYTES // 10 if quick else BYTES
    for name, make in (("orders", orders), ("random bytes", noise)):
        values = make(nbytes // 8 // WORDS // MAPS)
        took: dict[str, list[Took]] = {kind: [] for kind in KINDS}
        with service(MEMORY) as (running, folder):

            def run(
                kind: str, values: Any = values, running: Any = running, folder: Any = folder
            ) -> Took:
                return shuffled(
                    running,
                    folder,
                    MAPS,
                    PARTITIONS,
                    nbytes,
                    COPIES,
                    WORDS,
                    values,
                    compression=kind,
                )

            run("zstd")
            for _ in range(rounds):
                for kind in KINDS:
                    took[kind].append(run(kind))
        plain = statistics.median(one.whole for one in took["none"])
        for kind in KINDS:
            whole = statistics.median(one.whole for one in took[kind])
            write, read = (
                statistics.median(getattr(one, phase) for one in took[kind])
                for phase in ("write", "read")
            )
            part = took[kind][0].compressed / nbytes
            # Both copies are sent, and one is read.
            saved, lost = (1 - part) * nbytes * (COPIES + 1), whole - plain
            pays = (
                f"pays below {saved / lost / 1e6:,.0f} MB/s of network" if lost > 0 < saved else ""
            )
            yield Figure(
                f"{nbytes / 1e6:.0f} MB of {name}, {MAPS} × {PARTITIONS}, two copies: {kind}",
                f"{time_of(whole)} ({time_of(write)} + {time_of(read)})",
                f"none: {time_of(plain)}",
                f"{whole / plain:.2f} ×",
                "",
                None,
                f"{part:.0%} of the bytes{'; ' if pays else ''}{pays}",
            )
