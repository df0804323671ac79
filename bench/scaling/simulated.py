"""Simulated points beside real ones: ``python bench/scaling/simulated.py --workers 1 2 4``.

It learns from short runs on a small cluster, and on a larger one, what things cost on this machine beyond the cores of
the state machines (the wire, wake-ups, Python in the client, the workers' own work), writes that to
``out/parameters-4.txt`` and the like, runs four workloads of the report for real, and has ``treadle-sim --scaling`` run
the same ones with the costs of the cluster whose size is nearest: with many processes all takes longer. Then it runs each
of them again within ``treadle.trace``, and has ``treadle-sim --replay`` run what was recorded. The table has the error
beside each simulated point and each replay; ``--simulate`` adds sizes that are simulated only.

``cargo build --release -p treadle-sim`` makes the simulation.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent.parent))

import sparse_tasks

from clusters import treadle
from report import machine
from treadle import trace
from workloads import ALL, add, inc, slowinc

HERE = Path(__file__).parent
THREADS = 2
WORKLOADS = ("tasks-100ms", "tree", "neighbours", "client-in-the-loop")
# How often each is run for real, at the median: those that are not named, once. How many results the loop
# has at a time decides how many tasks there are, and chance decides that.
TIMES = {"client-in-the-loop": 5}
# Seconds between two calls.
PAUSE = 0.001
# Tasks of a sparse run, for each slot.
PER_SLOT = 30


def round_trip(client: Any, times: int = 300) -> float:
    """Seconds of one call and its result, at the median."""
    taken = []
    for number in range(times):
        start = time.perf_counter()
        client.submit(inc, number, pure=False).result()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def submitting(client: Any, times: int = 300) -> float:
    """Processor seconds of this thread for one call that reads two futures, whose result a loop waits for.

    There are pauses, as there are for a loop that waits for tasks: the caches are cold then.
    """
    from distributed import as_completed, wait

    futures = client.map(inc, range(2 * times), pure=False)
    wait(futures)
    pool = as_completed([])
    taken = []
    for pair in zip(futures[::2], futures[1::2], strict=True):
        time.sleep(PAUSE)
        start = time.thread_time()
        pool.add(client.submit(add, *pair, pure=False))
        taken.append(time.thread_time() - start)
    return statistics.median(taken)


def slept(number: int) -> tuple[float, float]:
    """Take 100 ms; return when that began and ended, by a clock that all processes of a machine share."""
    start = time.perf_counter()
    slowinc(number)
    return start, time.perf_counter()


def arriving(client: Any, times: int = 30) -> float:
    """Seconds from the end of a task of 100 ms until a loop over `as_completed` has it."""
    from distributed import as_completed

    taken = []
    for number in range(times):
        future = next(as_completed([client.submit(slept, number, pure=False)]))
        now = time.perf_counter()
        taken.append(now - future.result()[1])
    return statistics.median(taken)


def starting(client: Any, slots: int, times: int = 10) -> float:
    """Processor seconds before a task runs: those that start together wait for each other's."""
    apart = []
    for _ in range(times):
        starts = sorted(
            start for start, _ in client.gather(client.map(slept, range(slots), pure=False))
        )
        apart.append((starts[-1] - starts[0]) / (slots - 1))
    return statistics.median(apart) * (os.cpu_count() or 1)


def mapping(client: Any, count: int = 20_000) -> float:
    """Seconds of a task of a map."""
    from distributed import wait

    start = time.perf_counter()
    futures = client.map(inc, range(count), pure=False)
    taken = time.perf_counter() - start
    wait(futures)
    return taken / count


def building(leaves: int = 2048) -> float:
    """Seconds of a task of a graph, all of it: the tasks themselves take nothing."""
    from dask import delayed

    def run() -> float:
        start = time.perf_counter()
        level: Any = range(leaves)
        while len(level) > 1:
            level = [delayed(add)(a, b) for a, b in zip(level[::2], level[1::2], strict=True)]
        level[0].compute()
        return time.perf_counter() - start

    run()
    return run() / (leaves - 1)


def writing(times: int = 1000) -> float:
    """Processor seconds of a write to a socket at which another process sleeps."""
    here, there = socket.socketpair()
    child = os.fork()
    if child == 0:
        here.close()
        while there.recv(64):
            pass
        os._exit(0)
    there.close()
    taken = 0.0
    with here:
        for _ in range(times):
            time.sleep(0.0005)  # so that it sleeps
            start = time.thread_time()
            here.send(bytes(64))
            taken += time.thread_time() - start
    os.waitpid(child, 0)
    return taken / times


def learn(workers: int) -> dict[str, float]:
    """Return what things cost, in microseconds, by the names that the simulation knows."""
    point = sparse_tasks.measure(workers, PER_SLOT, 1.0)
    us = point["us"]
    with treadle(workers, THREADS) as client:
        round_trip(client)
        trip = 1e6 * round_trip(client)
        costs = {
            "map": 1e6 * mapping(client),
            "delayed": 1e6 * building(),
            "submit": 1e6 * submitting(client),
            "start": 1e6 * starting(client, THREADS * workers),
        }
        arrives = 1e6 * arriving(client)
    told = point["messages"]
    costs["write"] = 1e6 * writing()
    # Reports come one at a time here: each is a turn, and what follows is written at once. The scheduler's core
    # takes about 1 µs.
    writes = costs["write"] * (told["commands"] + told["notices"])
    costs["turn"] = max((us["scheduler"] - writes) / told["reports"] - 1, 0)
    costs["worker"] = max(us["workers"] - 2 * costs["start"], 0)
    costs["notice"] = max(us["client"] - costs["map"], 0)
    scheduler = 2 * (costs["turn"] + costs["write"])
    work = costs["submit"] + scheduler + 2 * costs["start"] + costs["notice"]
    costs["latency"] = max((trip - work) / 4, 20)
    told_in = costs["start"] + 2 * costs["latency"] + scheduler / 2 + costs["notice"]
    costs["look"] = max(arrives - told_in, 0)
    # What is left of the time of a slot: tasks sleep longer than they ask for.
    slot = 1e6 * (point["seconds"] - point["mapped"]) / PER_SLOT - 1e6 * sparse_tasks.TASK
    costs["over"] = max(slot - 2 * costs["latency"] - scheduler / 2 - 2 * costs["start"], 0)
    # Not learnt. Nothing above depends on it but the order in which tasks end.
    costs["spread"] = costs["over"] / 2
    costs["cores"] = float(os.cpu_count() or 1)
    return costs


def write(costs: dict[str, float], path: Path) -> None:
    lines = [f"# learnt by bench/scaling/simulated.py: {machine()}; microseconds, but for cores"]
    lines += [f"{name} {cost:.1f}" for name, cost in sorted(costs.items())]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def real(sizes: Iterable[int], traces: Path) -> Iterator[tuple[str, int, float, Path]]:
    """Each workload's name, how many workers ran it and for how many seconds, and a trace of another run."""
    for workers in sizes:
        with treadle(workers, THREADS) as client:
            for name in WORKLOADS:
                taken = []
                for _ in range(TIMES.get(name, 1)):
                    start = time.perf_counter()
                    ALL[name].run(client, THREADS * workers, None)  # type: ignore[arg-type]
                    taken.append(time.perf_counter() - start)
                path = traces / f"{name}-{workers}.json"
                with trace(path):
                    ALL[name].run(client, THREADS * workers, None)  # type: ignore[arg-type]
                yield name, workers, statistics.median(taken), path


def told_by(program: Path, *arguments: str) -> list[dict[str, Any]]:
    """The lines of the simulation."""
    command = [str(program), *arguments]
    told = subprocess.run(command, capture_output=True, text=True, timeout=1800)
    if told.returncode:
        sys.exit(f"{' '.join(command)} ended with status {told.returncode}:\n{told.stderr}")
    return [json.loads(line) for line in told.stdout.splitlines()]


HEAD = "| workload | workers | simulated | real | error | replayed | recorded | error |"


def row(point: dict[str, Any]) -> str:
    cells = [point["workload"], f"{point['workers']}", f"{point['seconds']:.3f} s"]
    if point["real"] is not None:
        replayed = point["replay"]
        cells += [f"{point['real']:.3f} s", f"{point['error']:+.1%}"]
        cells += [f"{replayed[what]['seconds']:.3f} s" for what in ("simulated", "recorded")]
        # There is none where some threads had no task.
        cells.append("" if replayed["error"] is None else f"{replayed['error']:+.1%}")
    return f"| {' | '.join([*cells, *[''] * (8 - len(cells))])} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64, 128])
    parser.add_argument(
        "--simulate", type=int, nargs="+", default=[256, 512], help="sizes without a real run"
    )
    parser.add_argument(
        "--learn-from", type=int, nargs="+", default=[4, 64], help="workers of the short runs"
    )
    parser.add_argument("--quick", action="store_true", help="1, 2 and 8 workers")
    parser.add_argument(
        "--program", type=Path, default=HERE.parent.parent / "target" / "release" / "treadle-sim"
    )
    parser.add_argument("--json", type=Path, default=HERE / "out" / "simulated.json")
    args = parser.parse_args()
    if not args.program.exists():
        parser.error(f"{args.program} is missing: run `cargo build --release -p treadle-sim`")
    sizes = [1, 2, 8] if args.quick else args.workers
    args.json.parent.mkdir(parents=True, exist_ok=True)
    learnt = {
        workers: args.json.with_name(f"parameters-{workers}.txt") for workers in args.learn_from
    }
    for workers, path in learnt.items():
        write(learn(workers), path)
        print(f"{workers} workers:\n{path.read_text(encoding='utf-8')}", flush=True)
    print(machine(), flush=True)

    def costs(workers: int) -> tuple[str, str]:
        nearest = min(learnt, key=lambda of: abs(math.log(of / workers)))
        return "--parameters", str(learnt[nearest])

    found = {}
    traces = args.json.with_name("traces")
    traces.mkdir(exist_ok=True)
    for name, workers, taken, path in real(sizes, traces):
        (replayed,) = told_by(args.program, "--replay", str(path), *costs(workers))
        found[name, workers] = taken, replayed
        print(f"{name}, {workers} workers: {taken:.3f} s", flush=True)
    points = [
        point
        for workers in (*sizes, *args.simulate)
        for point in told_by(args.program, "--scaling", *costs(workers), "--workers", f"{workers}")
    ]
    print(HEAD, "| --- " * 8 + "|", sep="\n")
    for point in sorted(points, key=lambda point: WORKLOADS.index(point["workload"])):
        taken, replayed = found.get((point["workload"], point["workers"]), (None, None))
        point |= {"real": taken, "replay": replayed, "error": None}
        if taken is not None:
            point["error"] = point["seconds"] / taken - 1
        print(row(point))
    parameters = {workers: path.read_text("utf-8") for workers, path in learnt.items()}
    result = {"machine": machine(), "parameters": parameters, "points": points}
    args.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
