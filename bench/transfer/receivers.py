"""One array of 100 MB to many receivers at once: the sender's rate must not fall with their number."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import ExitStack

from figures import MISSING, Figure
from network import LOOPBACK
from program import Program
from programs import python
from streams import treadle_is_there

MB = 100


def measure(quick: bool) -> Iterator[Figure]:
    counts = (1, 4) if quick else (1, 2, 4, 8)
    what = f"one 100 MB array to 1 … {counts[-1]} receivers at once: total"
    if not treadle_is_there():
        yield Figure(what, MISSING, bar="flat within 10%")
        return
    rates, uneven = [], []
    for count in counts:
        with ExitStack() as stack:
            command = python("ours.py", "spread", LOOPBACK.host, "--mb", str(MB))
            sender = stack.enter_context(Program(command))
            address = sender.told()["address"]
            for _ in range(count):
                taker = stack.enter_context(Program(python("ours.py", "take", address)))
                taker.told()
            told = [
                sender.ask(receivers=count, blocks=max(2, 16 // count))
                for _ in range(4 if quick else 8)
            ][1:]
        rates.append(statistics.median(t["bytes"] / t["seconds"] / 1e6 for t in told))
        uneven.append(statistics.median(max(t["ends"]) / min(t["ends"]) for t in told))
    flat = min(rates[1:]) / rates[0]
    yield Figure(
        what,
        ", ".join(f"{rate:,.0f}" for rate in rates) + " MB/s",
        "one receiver",
        f"{flat:.0%}",
        "≥ 90% of one receiver's",
        flat >= 0.9,
        "last over first to finish " + ", ".join(f"{value:.2f}" for value in uneven),
    )
