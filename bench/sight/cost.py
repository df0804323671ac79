"""What it costs to record what a cluster does: `map` of tiny tasks with it, without it, and with a page open.

    python bench/sight/cost.py [--tasks 100000] [--rounds 5]

A scheduler and two workers are processes; the three ways are run in turns, each in a cluster of its own, and every
figure is the median of the ratios of a round. Build with `make PROFILE=release build` first: the figures of a
development build say nothing.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from processes import Cluster

WAYS = ("off", "on", "page")


def inc(x: int) -> int:
    return x + 1


def watch(link: str, stack: ExitStack) -> None:
    """Ask what an open page asks: everything, twice a second."""
    base, _, query = link.partition("/?")
    ended = threading.Event()

    def ask() -> None:
        while not ended.wait(0.5):
            for path in ("overview", "transfers", f"spans?from=0&to={10**12}&width=1600"):
                url = f"{base}/sight/{path}{'&' if '?' in path else '?'}{query}"
                with urllib.request.urlopen(url, timeout=60) as page:
                    page.read()

    thread = threading.Thread(target=ask)
    thread.start()
    stack.callback(thread.join)
    stack.callback(ended.set)


def run(way: str, tasks: int) -> dict[str, float]:
    """Return seconds, the scheduler's processor time, and its memory afterwards."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        cluster = Cluster(Path(folder), stack, sight=way != "off")
        if way == "page":
            watch(cluster.link, stack)
        import treadle

        with treadle.Client(scheduler_file=cluster.file) as client:
            client.wait_for_workers(2)
            client.gather(client.map(inc, range(1000), pure=False))
            taken, began = cluster.processor(), time.perf_counter()
            futures: Any = client.map(inc, range(tasks), pure=False, batch_size=10_000)
            assert len(client.gather(futures)) == tasks
            seconds = time.perf_counter() - began
            del futures
            time.sleep(1.5)
            return {
                "seconds": seconds,
                "processor": cluster.processor() - taken,
                "memory": cluster.memory(),
            }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    rounds = []
    for number in range(options.rounds):
        order = WAYS[number % 3 :] + WAYS[: number % 3]
        rounds.append({way: run(way, options.tasks) for way in order})
        print({way: f"{one['seconds']:.2f} s" for way, one in rounds[-1].items()}, flush=True)
    print(f"{options.tasks} tasks, {options.rounds} rounds: beside nothing recorded")
    for way in ("on", "page"):
        for what in ("seconds", "processor", "memory"):
            ratios = [one[way][what] / one["off"][what] for one in rounds]
            spread = f"{min(ratios):.3f} to {max(ratios):.3f}"
            print(f"{way:5} {what:10} {median(ratios):.3f} × ({spread})")
    print(f"memory with it: {median(one['on']['memory'] for one in rounds) / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
