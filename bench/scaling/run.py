"""Dask's published scaling report on Treadle and on distributed: tasks, arrays and dataframes on ever more workers.

``python bench/scaling/run.py`` runs all workloads on 1, 2, 4, … worker processes of two threads each on this machine,
with both engines in turns, writes the seconds to ``--json`` and draws the pictures beside it. distributed has its
default settings (P2P included). On a cluster of yours, start one engine's scheduler and workers, and give its address:
``--scheduler treadle://HOST:PORT`` or ``--scheduler tcp://HOST:PORT``, once for each size; points are added to the file.

What it takes is printed first. ``--minutes`` bounds it: what would begin later is left out, and so is a run that takes
longer than what is left. A workload is left out, too, where its data do not fit into this machine's memory, and on larger
clusters where one run of it took longer than five minutes. Points at which a workload that computes
has more threads than there are cores say what the machine does, and are drawn hollow.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import math
import os
import signal
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent.parent))

import plots
from clusters import settled
from report import machine
from workloads import ALL, GROUPS, Data

HERE = Path(__file__).parent
THREADS = 2
# Of the memory that is available, and how many copies a workload may need.
SHARE, COPIES = 0.6, 4
# Seconds that one run of a workload may take; beyond, larger clusters leave it out.
LONGEST = 300
# Seconds that tasks sleep at least in a run, whatever the cluster.
SLEEPS = {
    "tasks-1s": 4.0,
    "tasks-100ms": 10.0,
    "tree": 12.8,
    "neighbours": 4.0,
    "client-in-the-loop": 2.0,
    "array-overlap": 0.6,
    "frame-100ms": 0.2,
}
MINUTES_QUICK = 15.0


class TooLong(Exception):
    """A run of a workload was stopped."""


@contextlib.contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Stop the block after so long. The cluster is of no use then."""

    def stop(*_: Any) -> None:
        raise TooLong

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.1))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def treadle(workers: int, threads: int) -> Iterator[Any]:
    import treadle

    with treadle.Client(workers=workers, threads_per_worker=threads) as client:
        client.wait_for_workers(workers)
        yield client


@contextlib.contextmanager
def distributed(workers: int, threads: int) -> Iterator[Any]:
    import distributed

    with (
        distributed.LocalCluster(
            n_workers=workers, threads_per_worker=threads, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        client.wait_for_workers(workers)
        yield client


ENGINES = {"treadle": treadle, "distributed": distributed}


@contextlib.contextmanager
def connected(address: str) -> Iterator[tuple[str, Any]]:
    """A client of somebody's cluster, and which engine that is."""
    if address.startswith("treadle"):
        import treadle

        engine, client = "treadle", treadle.Client(address)
    else:
        import distributed

        engine, client = "distributed", distributed.Client(address)
    with client:
        yield engine, client


def available() -> int:
    """Bytes of memory that programs can have now."""
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return 1 << 62


def announce(args: argparse.Namespace, names: list[str], minutes: float) -> None:
    """Say what it takes, as far as that is known."""
    points = len(names) * len(args.workers) * len(args.engines)
    sleeping = sum(SLEEPS.get(name, 0) for name in names) * points / len(names) * args.rounds
    largest = Data(None, THREADS * max(args.workers))
    print(
        f"{machine()}\n{len(names)} workloads on {', '.join(map(str, args.workers))} workers of {THREADS} threads, "
        f"{', '.join(args.engines)}, rounds: {args.rounds}: {points} points.\n"
        f"Tasks sleep for {sleeping / 60:.0f} min in all; what computes takes what the machine takes. "
        f"At most {minutes:g} min.\n"
        f"The largest array has {largest.array_bytes / 1e9:.1f} GB, the largest frame {largest.frame_bytes / 1e9:.1f} GB; "
        f"{COPIES} × that must fit into {SHARE * available() / 1e9:.1f} GB.",
        flush=True,
    )


def measure(
    client: Any, data: Data, name: str, rounds: int, here: bool, until: float
) -> dict[str, Any] | None:
    """Return a point, or None if its data do not fit here. What takes too long raises :class:`TooLong`."""
    workload, n_cores = ALL[name], data.n_cores
    kind = name.partition("-")[0]
    needs = {"array": data.array_bytes, "frame": data.frame_bytes}.get(kind, 0)
    if here and COPIES * needs > SHARE * available():
        print(f"{name}: left out, {needs / 1e9:.1f} GB of data", file=sys.stderr)
        return None
    if kind == "frame":
        data.drop_array()
    taken, amount = [], 0.0
    with at_most(min(LONGEST, until - time.monotonic())):
        if needs and not name.endswith("-create"):
            # Made, and not timed.
            _ = data.array if kind == "array" else data.frame
    for _round in range(rounds):
        settled(client, data.keys())()
        start = time.perf_counter()
        with at_most(min(LONGEST, until - time.monotonic())):
            amount = workload.run(client, n_cores, data)
        taken.append(time.perf_counter() - start)
    return {
        "workload": name,
        "workers": len(client.nthreads()),
        "cores": n_cores,
        "seconds": statistics.median(taken),
        "rounds": len(taken),
        "amount": amount,
        "unit": workload.unit,
        "oversubscribed": here and workload.computes and n_cores > (os.cpu_count() or 1),
    }


def points(
    client: Any, names: list[str], rounds: int, here: bool, options: dict[str, int], until: float
) -> Iterator[tuple[str, dict[str, Any] | None]]:
    """Yield each workload's name, and its point if its data fit here."""
    data = Data(client, sum(client.nthreads().values()), **options)
    for name in names:
        yield name, measure(client, data, name, rounds, here, until)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, nargs="+", metavar="N", help="1, 2, 4, … 128")
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument(
        "--only", nargs="+", choices=[*GROUPS, *ALL], metavar="NAME", help="groups or workloads"
    )
    parser.add_argument("--rounds", type=int, metavar="N", help="3")
    parser.add_argument(
        "--quick",
        action="store_true",
        help=f"1 and 2 workers, one round each, at most {MINUTES_QUICK:g} minutes",
    )
    parser.add_argument("--minutes", type=float, help="what it may take")
    parser.add_argument("--scheduler", metavar="ADDRESS", help="of a cluster that runs already")
    parser.add_argument(
        "--expert",
        action="store_true",
        help="the report's expert table: one worker with all threads, chunks of 10,000² and 10 million rows; points are "
        "added to the file",
    )
    parser.add_argument("--json", type=Path, default=HERE / "out" / "scaling.json", metavar="PATH")
    args = parser.parse_args()
    args.workers = args.workers or ([1, 2] if args.quick else [1, 2, 4, 8, 16, 32, 64, 128])
    args.rounds = args.rounds or (1 if args.quick else 3)
    args.json.parent.mkdir(parents=True, exist_ok=True)
    chosen = args.only or (list(plots.EXPERT) if args.expert else list(GROUPS))
    names = [name for one in chosen for name in GROUPS.get(one, {one: None})]
    minutes = args.minutes or (MINUTES_QUICK if args.quick else math.inf)
    until = time.monotonic() + 60 * minutes
    options = {"chunk": 10_000, "rows": 10_000_000} if args.expert else {}
    result: dict[str, Any] = {"machine": machine(), "threads": THREADS, "points": []}
    if (args.scheduler or args.expert) and args.json.exists():
        result = json.loads(args.json.read_text(encoding="utf-8"))

    def note(engine: str, point: dict[str, Any] | None) -> None:
        if point is None:
            return
        point = {"engine": engine, "expert": args.expert, **point}
        which = ("engine", "expert", "workload", "cores")
        result["points"] = [
            other for other in result["points"] if any(other[part] != point[part] for part in which)
        ] + [point]
        rate = point["amount"] / point["seconds"]
        shown = f"{rate:,.0f} tasks/s" if point["unit"] == "tasks" else f"{rate / 1e6:,.4g} MB/s"
        print(
            f"{point['workload']:20} {engine:12} {point['workers']:4} workers {point['seconds']:9.3f} s {shown}",
            flush=True,
        )
        args.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")

    how = (args.rounds, not args.scheduler, options, until)
    if args.scheduler:
        with connected(args.scheduler) as (engine, client):
            for _, point in points(client, names, *how):
                note(engine, point)
    else:
        announce(args, names, minutes)
        too_long: set[tuple[str, str]] = set()
        for workers, engine in itertools.product(args.workers, args.engines):
            size = (1, THREADS * workers) if args.expert else (workers, THREADS)
            left = [name for name in names if (engine, name) not in too_long]
            while left and time.monotonic() < until:
                try:
                    with ENGINES[engine](*size) as client:
                        for name, point in points(client, list(left), *how):
                            note(engine, point)
                            left.remove(name)
                except TooLong:
                    # The cluster is a new one for what is left.
                    print(f"{left[0]}, {engine}, {workers} workers: stopped", flush=True)
                    too_long.add((engine, left.pop(0)))
            if left:
                print(f"{engine}, {workers} workers, no time for: {', '.join(left)}", flush=True)
    simulated = args.json.with_name("simulated.json")
    if simulated.exists():
        result["simulated"] = json.loads(simulated.read_text(encoding="utf-8"))["points"]
    plots.draw(result, args.json.parent)
    print("\n".join(plots.table(result)))


if __name__ == "__main__":
    main()
