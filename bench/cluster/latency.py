"""One thing at a time: a dependent step, a round trip, an element of an array."""

from __future__ import annotations

import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import dask.array as da
from dask._task_spec import Task, TaskRef
from dask.highlevelgraph import HighLevelGraph, MaterializedLayer

import clusters
from figures import Figure, interleave, time_of
from work import inc

_numbers = iter(range(1 << 60))

# Clients that do nothing.
CROWD = 1_000
# Of a chain, for all engines.
STEPS = 500
# Seconds that an element may take.
ELEMENT = 300e-6


def workers(client: Any) -> list[str]:
    return list(client.scheduler_info(n_workers=-1)["workers"])


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
    options = clusters.new_each_time(client)
    for number in range(count):
        start = time.perf_counter()
        client.submit(inc, number, **options).result()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def elements(client: Any, count: int) -> dict[str, float]:
    """Median seconds of reading one element of a persisted array, and what there is to compare.

    ``building`` is Dask's own part: slicing, optimising and materialising, the same call with nobody
    to send the graph to. ``echoes`` is that part and two bare echoes of another process, as many as
    there are hops from the client by way of the scheduler to the worker and back. The three take
    turns, so that all find the processor's caches as an answer leaves them: that alone makes Dask's
    part a quarter slower than in a loop of its own.
    """
    array = client.persist(da.arange(10_000, chunks=1000))
    clusters.wait(client, array)
    times: dict[str, list[float]] = {"element": [], "building": [], "echoes": []}
    with _echo() as ask, client.as_current():

        def get(*args: Any, **kwargs: Any) -> Any:
            built = _nothing(*args, **kwargs)
            ask()
            ask()
            return built

        for number in range(count):
            index = number * 37 % 10_000
            for what, instead in (("element", None), ("building", _nothing), ("echoes", get)):
                if instead is not None:
                    client.get = instead  # where Dask looks it up
                start = time.perf_counter()
                array[index].compute()
                times[what].append(time.perf_counter() - start)
                vars(client).pop("get", None)
    return {what: statistics.median(taken) for what, taken in times.items()}


@contextmanager
def _echo() -> Iterator[Callable[[], None]]:
    """Something to ask that another process answers at once, over a socket."""
    here, there = socket.socketpair()
    program = f"import socket; s = socket.socket(fileno={there.fileno()})\n"
    program += "while m := s.recv(4096): s.sendall(m)"
    with here, subprocess.Popen([sys.executable, "-c", program], pass_fds=[there.fileno()]):
        there.close()

        def ask() -> None:
            here.sendall(bytes(300))
            here.recv(4096)

        yield ask
        here.close()


@contextmanager
def _crowd(client: Any, count: int) -> Iterator[None]:
    """So many more clients, which do nothing, in another process.

    That process stands still meanwhile, shorter than the scheduler's patience: what it does by itself
    it would do on other machines.
    """
    cluster = client.cluster
    program = [sys.executable, str(Path(__file__).with_name("crowd.py")), str(count)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(program, **pipes) as crowd:
        crowd.stdin.write(f"{cluster.scheduler_address} {cluster.secret_file}\n")
        crowd.stdin.flush()
        assert crowd.stdout.readline() == "ready\n"
        crowd.send_signal(signal.SIGSTOP)
        yield
        crowd.send_signal(signal.SIGCONT)
        crowd.stdin.close()


def _nothing(dsk: Any, keys: Any, **_: Any) -> Any:
    dsk.__dask_graph__() if hasattr(dsk, "__dask_graph__") else dict(dsk)
    return [[0] * len(key) if isinstance(key, list) else 0 for key in keys]


def measure(quick: bool) -> Iterator[Figure]:
    count, rounds = (30, 3) if quick else (100, 5)
    found: dict[str, dict[str, float]] = {}
    with clusters.beside() as clients:
        trips = interleave({n: partial(round_trips, c, count) for n, c in clients.items()}, rounds)
        chains = interleave(
            {
                name: partial(chain, client, STEPS, sorted(workers(client)))
                for name, client in clients.items()
                if name != "frisky"  # it takes no restrictions
            },
            rounds,
        )
        for name in ("treadle", "distributed"):
            found[name] = elements(clients[name], count)
        with _crowd(clients["treadle"], CROWD):
            crowded = elements(clients["treadle"], count)
    with clusters.beside(1) as clients:
        alone = interleave({n: partial(chain, c, STEPS, None) for n, c in clients.items()}, rounds)
    for what, samples, bar in (
        (f"a step of a chain of {STEPS:,}, one worker", alone, 20e-6),
        ("a step of a chain, each on the other worker", chains, 150e-6),
        ("`submit(…).result()`, median", trips, 200e-6),
    ):
        measured = samples.median("treadle")
        for peer in samples.values:
            if peer != "treadle":
                yield Figure(
                    what,
                    time_of(measured),
                    f"{peer} {time_of(samples.median(peer))}",
                    f"{samples.ratio(peer, 'treadle'):.3g} ×",
                    f"≤ {time_of(bar)}",
                    measured <= bar,
                )
                what = "the same"
    ours, theirs = found["treadle"], found["distributed"]
    measured, peer_takes = (one["element"] - one["building"] for one in (ours, theirs))
    yield Figure(
        "one element of a persisted array, beyond Dask's own part",
        f"{time_of(measured)} (and {time_of(ours['building'])})",
        f"distributed {time_of(peer_takes)}",
        f"{peer_takes / measured:.0f} ×",
        f"≤ {time_of(ELEMENT)}",
        measured <= ELEMENT,
        f"two bare echoes: {time_of(ours['echoes'] - ours['building'])}",
    )
    among = crowded["element"] - crowded["building"]
    yield Figure(
        f"the same beside {CROWD:,} idle connections",
        time_of(among),
        ratio=f"{among / measured:.2f} ×",
        bar="≤ 1.2 × (flat)",
        passed=among <= 1.2 * measured,
    )
