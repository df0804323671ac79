"""Messages between Dask's own processes: `protocol="treadle-tcp"` beside `tcp`, in turns."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import distributed
import numpy as np

from figures import Figure, Samples, interleave, time_of

PROTOCOLS = ("tcp", "treadle-tcp")
BAR = 2.0
NBYTES = 100_000_000


def make() -> np.ndarray[Any, Any]:
    return np.full(NBYTES, 7, "u1")


def last(array: np.ndarray[Any, Any]) -> int:
    return int(array[-1])


def increment(number: int) -> int:
    return number + 1


def between_workers(client: Any) -> float:
    """Seconds until a worker has used an array that another one has."""
    one, other = client.scheduler_info(n_workers=-1)["workers"]
    array = client.submit(make, workers=[one], pure=False)
    distributed.wait(array)
    start = time.perf_counter()
    found = client.submit(last, array, workers=[other], pure=False).result()
    took = time.perf_counter() - start
    assert found == 7
    return took


def to_client(client: Any) -> float:
    """Seconds until the client has an array that a worker has."""
    array = client.submit(make, pure=False)
    distributed.wait(array)
    start = time.perf_counter()
    found = array.result()
    took = time.perf_counter() - start
    assert found[-1] == 7
    return took


def small(client: Any) -> float:
    """Seconds for a task whose result the client waits for."""
    start = time.perf_counter()
    for number in range(100):
        assert client.submit(increment, number, pure=False).result() == number + 1
    return (time.perf_counter() - start) / 100


def measure(quick: bool) -> Iterator[Any]:
    rounds = 5 if quick else 15
    with ExitStack() as stack:
        clients = {}
        for protocol in PROTOCOLS:
            cluster = distributed.LocalCluster(
                n_workers=2,
                threads_per_worker=1,
                protocol=protocol,
                dashboard_address=None,
                silence_logs=50,
            )
            stack.enter_context(cluster)
            clients[protocol] = stack.enter_context(distributed.Client(cluster))
        for what, act, bar in (
            ("an array of 100 MB from worker to worker", between_workers, BAR),
            ("an array of 100 MB to the client", to_client, None),
            ("`submit(…).result()`", small, None),
        ):
            turns = {name: partial(act, client) for name, client in clients.items()}
            yield _figure(what, interleave(turns, rounds), bar)


def _figure(what: str, samples: Samples, bar: float | None) -> Figure:
    ratio = samples.ratio("tcp", "treadle-tcp")
    return Figure(
        what,
        time_of(samples.median("treadle-tcp")),
        f"tcp {time_of(samples.median('tcp'))}",
        f"{ratio:.2f} ×",
        "" if bar is None else f"≥ {bar} ×",
        None if bar is None else ratio >= bar,
    )
