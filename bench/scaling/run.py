"""Dask's published scaling report on Treadle and on distributed: tasks, arrays and dataframes on ever more workers.

``python bench/scaling/run.py`` runs all workloads on 1, 2, 4, … worker processes of two threads each on this machine,
with both engines in turns, writes the seconds to ``--json`` and draws the pictures beside it. distributed has its
default settings (P2P included). On a cluster of yours, start one engine's scheduler and workers, and give its address:
``--scheduler treadle://HOST:PORT`` or ``--scheduler tcp://HOST:PORT``, once for each size; points are added to the file.

A workload is left out where its data do not fit into this machine's memory. Points at which a workload that computes
has more threads than there are cores say what the machine does, and are drawn hollow.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent.parent))

import plots
from report import machine
from workloads import ALL, GROUPS, Data

HERE = Path(__file__).parent
THREADS = 2
# Of the memory that is available, and how many copies a workload may need.
SHARE, COPIES = 0.6, 4
# Seconds that one run of a workload may take; beyond, larger clusters leave it out.
LONGEST = 300


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


def measure(
    client: Any, names: list[str], rounds: int, here: bool, options: dict[str, int]
) -> Iterator[dict[str, Any]]:
    """Yield a point for each workload that fits."""
    n_cores = sum(client.nthreads().values())
    data = Data(client, n_cores, **options)
    limit = SHARE * available() if here else float("inf")
    for name in names:
        workload = ALL[name]
        needs = {"array": data.array_bytes, "frame": data.frame_bytes}.get(
            name.partition("-")[0], 0
        )
        if COPIES * needs > limit:
            print(f"{name}: left out, {needs / 1e9:.1f} GB of data", file=sys.stderr)
            continue
        if name.startswith("frame-"):
            data.drop_array()
        if needs and not name.endswith("-create"):
            # Made, and not timed.
            _ = data.array if name.startswith("array-") else data.frame
        taken, amount = [], 0.0
        for _round in range(rounds):
            start = time.perf_counter()
            amount = workload.run(client, n_cores, data)
            taken.append(time.perf_counter() - start)
            if taken[-1] > LONGEST:
                break
        yield {
            "workload": name,
            "workers": len(client.nthreads()),
            "cores": n_cores,
            "seconds": statistics.median(taken),
            "rounds": len(taken),
            "amount": amount,
            "unit": workload.unit,
            "oversubscribed": here and workload.computes and n_cores > (os.cpu_count() or 1),
        }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64, 128])
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument(
        "--only", nargs="+", choices=[*GROUPS, *ALL], metavar="NAME", help="groups or workloads"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--quick", action="store_true", help="1 and 2 workers, one round each: some minutes"
    )
    parser.add_argument("--scheduler", metavar="ADDRESS", help="of a cluster that runs already")
    parser.add_argument(
        "--expert",
        action="store_true",
        help="one worker with all threads, chunks of 10,000² and 10 million rows",
    )
    parser.add_argument("--json", type=Path, default=HERE / "out" / "scaling.json", metavar="PATH")
    args = parser.parse_args()
    if args.quick:
        args.workers, args.rounds = [1, 2], 1
    args.json.parent.mkdir(parents=True, exist_ok=True)
    chosen = args.only or list(GROUPS)
    names = [name for one in chosen for name in GROUPS.get(one, {one: None})]
    options = {"chunk": 10_000, "rows": 10_000_000} if args.expert else {}
    result: dict[str, Any] = {"machine": machine(), "threads": THREADS, "points": []}
    if args.scheduler and args.json.exists():
        result = json.loads(args.json.read_text(encoding="utf-8"))

    def note(engine: str, point: dict[str, Any]) -> None:
        point = {"engine": engine, "expert": args.expert, **point}
        result["points"].append(point)
        rate = point["amount"] / point["seconds"]
        shown = f"{rate:,.0f} tasks/s" if point["unit"] == "tasks" else f"{rate / 1e6:,.4g} MB/s"
        print(
            f"{point['workload']:20} {engine:12} {point['workers']:4} workers {point['seconds']:9.3f} s {shown}",
            flush=True,
        )
        args.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")

    if args.scheduler:
        with connected(args.scheduler) as (engine, client):
            for point in measure(client, names, args.rounds, False, options):
                note(engine, point)
    else:
        for workers in args.workers:
            for engine in args.engines:
                size = (1, THREADS * workers) if args.expert else (workers, THREADS)
                with ENGINES[engine](*size) as client:
                    for point in measure(client, names, args.rounds, True, options):
                        note(engine, point)
    plots.draw(result, args.json.parent)
    print("\n".join(plots.table(result)))


if __name__ == "__main__":
    main()
