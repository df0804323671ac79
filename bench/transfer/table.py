"""The table of values of one worker behind its lock: 1 to 64 clients that fetch the same value again and again.

The published report suspected the coarse lock around TensorFlow's table of tensors. Treadle's worker has one lock
around its store and one around its small values. It adds up how long threads waited for them, whatever for, and how
long it took to answer those that fetched values.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import numpy

import clusters
from answers import LEAD
from figures import MISSING, Figure, time_of
from program import Program
from programs import python
from streams import treadle_is_there

# Values of 1,024 bytes and less travel with the news that their task is done: clients do not ask the worker for them.
SIZES = {1: "1 B", 1_025: "1 KB", 16_384: "16 KB", 1_000_000: "1 MB"}
# Beyond this, clients share processes: an interpreter for each would measure interpreters.
PROCESSES = 8


def serving(client: Any) -> dict[str, float]:
    (told,) = client.run(lambda dask_worker: dask_worker._native.serving()).values()
    return dict(told)


def measure(quick: bool) -> Iterator[Figure]:
    if not treadle_is_there():
        yield Figure("the table of values", MISSING)
        return
    counts = (1, 4, 16, 64) if quick else (1, 2, 4, 8, 16, 32, 64)
    seconds = 1.0 if quick else 3.0
    for size, named in SIZES.items():
        with clusters.apart(1) as (client, *_):
            name = f"bench-table-{size}"
            future = client.submit(numpy.zeros, size, numpy.uint8, key=name)
            client.publish_dataset(future, name=name)
            address = client.scheduler.address
            results = [pulled(client, address, name, count, seconds) for count in counts]
        yield from figures(f"value of {named}, 1 … {counts[-1]} clients fetch it", counts, results)


def pulled(client: Any, address: str, dataset: str, count: int, seconds: float) -> dict[str, float]:
    """What so many clients fetched in a window, and what it cost the worker."""
    with ExitStack() as stack:
        processes = min(count, PROCESSES)
        shares = [count // processes] * processes
        pullers = [
            stack.enter_context(Program(python("puller.py", address, dataset, str(share))))
            for share in shares
        ]
        for puller in pullers:
            puller.told()
        before = serving(client)
        start = time.monotonic() + LEAD + 0.2
        for puller in pullers:
            puller.tell_to(start=start, seconds=seconds)
        told = [puller.told(120) for puller in pullers]
        after = serving(client)
    spent = {what: after[what] - before[what] for what in after}
    return {
        "per_second": sum(each["per_second"] for each in told),
        "p50": sum(each["p50"] for each in told) / len(told),
        "waited": spent["waited"] / spent["serving"] if spent["served"] else 0.0,
        "each": spent["serving"] / spent["served"] if spent["served"] else 0.0,
    }


def figures(
    what: str, counts: tuple[int, ...], results: list[dict[str, float]]
) -> Iterator[Figure]:
    rates = [result["per_second"] for result in results]
    waited = [result["waited"] for result in results]
    yield Figure(
        f"{what}: values a second",
        ", ".join(f"{rate:,.0f}" for rate in rates),
        "the highest",
        f"{rates[-1] / max(rates):.0%} with {counts[-1]}",
        "≥ 90%",
        rates[-1] >= 0.9 * max(rates),
        "p50 " + ", ".join(time_of(result["p50"]) for result in results),
    )
    yield Figure(
        f"{what}: waiting for locks of the table",
        ", ".join(f"{share:.2%}" for share in waited),
        "the time of serving",
        "",
        "≤ 1%",
        max(waited) <= 0.01,
        "serving takes " + ", ".join(time_of(result["each"]) for result in results) + " a value"
        if any(result["each"] for result in results)
        else "the worker is not asked: the clients have the value",
    )
