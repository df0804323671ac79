"""What a task of 100 ms costs whom, by the number of workers: ``python bench/scaling/sparse_tasks.py --workers 1 16 128``.

Each worker is a process of two threads, whose tasks sleep. Beside the share of the ideal (the tasks' time over what
passed), it prints processor time: of the scheduler's thread, of every other thread of this process (the client), and of
the workers, each a task, from ``/proc``; how often the scheduler's thread slept, which is how often it was woken; and what
an idle cluster of that size costs. The last columns say how much of the machine that is: workers that need more
processor time than there are cores cannot reach the ideal, whatever schedules them.

"floor" is what the same messages cost a thread in C that does nothing else (``sparse_floor.c``): one from a process whose
task is done, one back to it and one to a client, over loopback TCP.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent.parent))

import accounts

from clusters import treadle
from program import compiled
from report import machine
from workloads import slowinc

THREADS = 2
TASK = 0.1
FLOOR = Path(__file__).with_name("sparse_floor.c")
SCHEDULER = "treadle-schedul"


def floor(workers: int, per_slot: int) -> dict[str, float]:
    """Microseconds and wake-ups a task of a thread that only passes the messages on."""
    command = [compiled(FLOOR, "-O2"), str(workers), str(per_slot)]
    ran = subprocess.run(command, check=True, capture_output=True, text=True, timeout=600)
    us, wakeups = map(float, ran.stdout.split())
    return {"us": us, "wakeups": wakeups}


def measure(workers: int, per_slot: int, idle: float) -> dict[str, Any]:
    """One point."""
    from distributed import wait

    slots = workers * THREADS
    count = slots * per_slot
    with treadle(workers, THREADS) as client:
        own, pids = os.getpid(), accounts.children()
        # All have run it, and the scheduler knows how long it takes.
        wait(client.map(slowinc, range(-3 * slots, 0)))
        time.sleep(1)
        rested = accounts.threads(own), accounts.total(pids)
        time.sleep(idle)
        began = accounts.threads(own), accounts.total(pids)
        resting = accounts.since(began[0], rested[0]), began[1] - rested[1]
        told = accounts.counts(client)
        before, start = accounts.threads(own), time.perf_counter()
        futures = client.map(slowinc, range(count))
        mapped = time.perf_counter() - start
        wait(futures)
        seconds = time.perf_counter() - start
        after, workers_after = accounts.threads(own), accounts.total(pids)
        tells = accounts.counts(client)
        del futures
    of_threads = accounts.since(after, before)
    of_workers = workers_after - began[1]
    scheduler = of_threads.pop(SCHEDULER)
    of_client = sum(of_threads.values(), accounts.Used())
    busy = scheduler.ran + of_client.ran + of_workers.ran

    def grown(name: str) -> float:
        return (tells[f"{name}_total"] - told[f"{name}_total"]) / count

    return {
        "workers": workers,
        "tasks": count,
        "seconds": seconds,
        "ideal": per_slot * TASK / seconds,
        "mapped": mapped,
        "us": {
            "scheduler": 1e6 * scheduler.ran / count,
            "client": 1e6 * of_client.ran / count,
            "workers": 1e6 * of_workers.ran / count,
        },
        "threads": {
            name: 1e6 * used.ran / count
            for name, used in sorted(of_threads.items(), key=lambda item: -item[1].ran)
        },
        "wakeups": {
            "scheduler": scheduler.slept / count,
            "client": of_client.slept / count,
            "workers": of_workers.slept / count,
        },
        "waited": {
            "scheduler": scheduler.waited / seconds,
            "client": of_client.waited / seconds,
            "workers": of_workers.waited / seconds / slots,
        },
        "idle": {
            "scheduler": resting[0][SCHEDULER].ran / idle,
            "client": sum((used.ran for used in resting[0].values()), -resting[0][SCHEDULER].ran)
            / idle,
            "workers": resting[1].ran / idle,
        },
        "messages": {name: grown(name) for name in ("reports", "commands", "notices")},
        "cores": busy / seconds,
        "floor": floor(workers, per_slot),
    }


HEAD = (
    "| workers | of ideal | scheduler, µs a task | floor | client | workers | wake-ups a task: scheduler | floor | client | workers "
    "| reports, commands, notices a task | idle, cores: scheduler, client, workers | cores used |"
)


def row(point: dict[str, Any]) -> str:
    us, wakes, idle, told = (point[key] for key in ("us", "wakeups", "idle", "messages"))
    cells = [
        f"{point['workers']}",
        f"{point['ideal']:.1%}",
        f"{us['scheduler']:.1f}",
        f"{point['floor']['us']:.1f}",
        f"{us['client']:.1f} ("
        + ", ".join(f"{name} {t:.1f}" for name, t in list(point["threads"].items())[:3])
        + ")",
        f"{us['workers']:.0f}",
        f"{wakes['scheduler']:.2f}",
        f"{point['floor']['wakeups']:.2f}",
        *(f"{wakes[name]:.2f}" for name in ("client", "workers")),
        ", ".join(f"{told[name]:.2f}" for name in ("reports", "commands", "notices")),
        ", ".join(f"{idle[name]:.3f}" for name in ("scheduler", "client", "workers")),
        f"{point['cores']:.2f} of {os.cpu_count()}",
    ]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64, 128])
    parser.add_argument("--per-slot", type=int, default=100, help="tasks for each thread")
    parser.add_argument("--idle", type=float, default=5.0, help="seconds of rest, measured too")
    parser.add_argument("--quick", action="store_true", help="1, 16 and 64 workers, 20 tasks each")
    parser.add_argument("--json", type=Path, metavar="PATH")
    args = parser.parse_args()
    sizes, per_slot = ([1, 16, 64], 20) if args.quick else (args.workers, args.per_slot)
    print(machine(), HEAD, "|".join(["", *["---"] * 13, ""]), sep="\n", flush=True)
    points = []
    for workers in sizes:
        points.append(measure(workers, per_slot, args.idle))
        print(row(points[-1]), flush=True)
    if args.json:
        result = {"machine": machine(), "points": points}
        args.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
