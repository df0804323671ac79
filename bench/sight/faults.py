"""Which verdicts name a planted fault, and which speak in healthy runs.

    python bench/sight/faults.py [NAME …] [--healthy]

Each run has a cluster of processes of its own. The dashboard is asked twice a second, and every rule that spoke is
listed. A fault counts as named when its rule spoke, a healthy run as silent when none did.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from distributed import wait

MB = 10**6


def sleep(seconds: float, *_inputs: Any) -> int:
    time.sleep(seconds)
    return 0


def inc(x: int) -> int:
    return x + 1


def spin(seconds: float, _number: int = 0) -> int:
    """Compute in the interpreter: no other thread of it runs meanwhile."""
    end, count = time.thread_time() + seconds, 0
    while time.thread_time() < end:
        count += 1
    return count


def multiply(seed: int) -> float:
    """Compute without the interpreter's lock."""
    block = np.random.default_rng(seed).random((700, 700))
    for _ in range(6):
        block = block @ block
        block /= block.max()
    return float(block.sum())


def ones(_number: int, nbytes: int) -> Any:
    return np.ones(nbytes // 8)


def size(*arrays: Any) -> int:
    return sum(array.nbytes for array in arrays)


def hold(nbytes: int) -> int:
    # The globals of this function go with it.
    sys.modules["held"] = bytearray(b"x") * nbytes  # type: ignore[assignment]
    return nbytes


def by_worker(slow: str, number: int) -> int:
    from distributed import get_worker

    time.sleep(0.2 if str(get_worker().name) == slow else 0.04)
    return number


def fails_once(folder: str, number: int) -> int:
    path = Path(folder, str(number))
    if not path.exists():
        path.touch()
        raise OSError("the disk was not there for once")
    return number


# Faults


def client(c: Any) -> None:
    """The client submits one task at a time."""
    for _ in range(300):
        c.submit(sleep, 0.01, pure=False).result()
        time.sleep(0.1)


def critical_path(c: Any) -> None:
    """All wait for a chain."""
    chain = None
    for _ in range(14):
        chain = c.submit(sleep, 1.0, chain, pure=False)
    c.gather([c.submit(sleep, 0.01, chain, pure=False) for _ in range(200)])


def short_tasks(c: Any) -> None:
    """Tasks of microseconds."""
    c.gather(c.map(inc, range(30_000), pure=False))


def skew(c: Any) -> None:
    """One task of many takes far longer."""
    c.gather(c.map(sleep, [0.05] * 40 + [4.0], pure=False))


def partition(c: Any) -> None:
    """One partition of a shuffle has most rows."""
    import dask.dataframe as dd
    import pandas as pd

    def part(number: int) -> Any:
        rows = 1_000_000
        keys = np.where(np.arange(rows) % 10 == 0, np.arange(rows) % 97, 5)
        return pd.DataFrame({"key": keys, "value": np.random.default_rng(number).random(rows)})

    frame = dd.from_map(part, range(8))
    shuffled = frame.shuffle("key", npartitions=16, shuffle_method="p2p")
    c.gather(c.compute(shuffled.map_partitions(len)))
    time.sleep(2)


def transfers(c: Any) -> None:
    """Values are at a worker that stands still."""
    names = [worker["name"] for worker in c.scheduler_info()["workers"].values()]
    pid = c.submit(os.getpid, workers=names[0]).result()
    made = [c.submit(ones, n, MB, pure=False, workers=names[0]) for n in range(8)]
    # All are connected to it then.
    known = c.submit(ones, 0, MB, pure=False, workers=names[0])
    c.gather([c.submit(size, known, pure=False, workers=name) for name in names[1:]])
    wait(made)
    os.kill(pid, signal.SIGSTOP)
    try:
        read = [c.submit(size, *made, pure=False, workers=name) for name in names[1:]]
        time.sleep(6)
    finally:
        os.kill(pid, signal.SIGCONT)
    c.gather(read)


def spilling(c: Any) -> None:
    """More values than memory."""
    values = [c.submit(ones, n, 40 * MB, pure=False) for n in range(30)]
    wait(values)
    time.sleep(1)


def paused(c: Any) -> None:
    """A worker whose memory is full of what cannot be spilled."""
    name = next(iter(c.scheduler_info()["workers"].values()))["name"]
    c.submit(hold, 315 * MB, workers=name).result()
    # One with nothing to do asks for tasks again.
    c.gather(c.map(sleep, [0.1] * 200, pure=False, workers=name, allow_other_workers=True))


def lock(c: Any) -> None:
    """Threads that compute in the interpreter."""
    c.gather(c.map(spin, [0.05] * 320, range(320), pure=False))


def slow_worker(c: Any) -> None:
    """One worker takes longer for the same tasks."""
    name = str(next(iter(c.scheduler_info()["workers"].values()))["name"])
    c.gather(c.map(by_worker, [name] * 300, range(300), pure=False))


def retries(c: Any) -> None:
    """Tasks that raise, and are run again."""
    with tempfile.TemporaryDirectory() as folder:
        c.gather(c.map(fails_once, [folder] * 20, range(20), pure=False, retries=2))


FAULTS: dict[str, tuple[Callable[[Any], None], str, dict[str, Any]]] = {
    "client": (client, "client", {}),
    "critical-path": (critical_path, "critical-path", {}),
    "short-tasks": (short_tasks, "short-tasks", {}),
    "partition": (partition, "skewed-shuffle", {}),
    "transfers": (transfers, "transfers", {"n_workers": 4, "threads_per_worker": 1}),
    "spilling": (spilling, "spilling", {"memory_limit": "400MB"}),
    "paused": (paused, "paused", {"memory_limit": "400MB"}),
    "lock": (lock, "lock-held", {"n_workers": 1, "threads_per_worker": 2}),
    "slow-worker": (slow_worker, "slow-worker", {"n_workers": 3, "threads_per_worker": 1}),
    "retries": (retries, "errors", {}),
    "skew": (skew, "skew", {}),
}

# Healthy runs


def waits(c: Any) -> None:
    c.gather(c.map(sleep, [0.1] * 400, pure=False))


def tree(c: Any) -> None:
    level = c.map(sleep, [0.15] * 64, pure=False)
    while len(level) > 1:
        pairs = zip(level[::2], level[1::2], strict=True)
        level = [c.submit(sleep, 0.05, *pair, pure=False) for pair in pairs]
    level[0].result()


def products(c: Any) -> None:
    c.gather(c.map(multiply, range(120), pure=False))


def few_long(c: Any) -> None:
    c.gather(c.map(sleep, [5.0] * 4, pure=False))


def many(c: Any) -> None:
    c.gather(c.map(sleep, [0.005] * 3_000, pure=False))


def idle(c: Any) -> None:
    c.submit(inc, 1).result()
    time.sleep(25)


def array(c: Any) -> None:
    import dask.array as da

    x = da.random.random((6_000, 6_000), chunks=(1_000, 1_000))
    c.compute((x @ x.T).mean()).result()


def grouped(c: Any) -> None:
    from dask.datasets import timeseries

    frame = timeseries("2000-01-01", "2000-02-01", freq="10s")
    c.compute(frame.groupby("name").x.mean()).result()


def shuffled(c: Any) -> None:
    from dask.datasets import timeseries

    frame = timeseries("2000-01-01", "2000-01-20", freq="5s")
    c.gather(c.compute(frame.shuffle("id", shuffle_method="p2p").map_partitions(len)))


def mixed(c: Any) -> None:
    c.gather(c.map(spin, [0.02] * 100, range(100), pure=False))
    c.gather(c.map(sleep, [0.02] * 400, pure=False))


HEALTHY: dict[str, tuple[Callable[[Any], None], dict[str, Any]]] = {
    "waits": (waits, {}),
    "tree": (tree, {}),
    "products": (products, {}),
    "few-long": (few_long, {}),
    "many": (many, {}),
    "idle": (idle, {}),
    "array": (array, {}),
    "grouped": (grouped, {}),
    "shuffled": (shuffled, {}),
    "mixed": (mixed, {"threads_per_worker": 1}),
}


def seen(work: Callable[[Any], None], options: dict[str, Any]) -> dict[str, str]:
    """Return the rules that spoke while something was computed, and what they said at last."""
    import treadle
    from treadle.sight._pages import Pages

    spoken: dict[str, str] = {}
    ended = threading.Event()
    given = {"n_workers": 2, "threads_per_worker": 2, "memory_limit": "2GB"} | options
    with treadle.LocalCluster(processes=True, **given) as cluster, treadle.Client(cluster) as c:
        c.wait_for_workers(given["n_workers"])
        pages = Pages(cluster.pages_link)

        def look() -> None:
            while not ended.wait(0.5):
                for verdict in pages.get("/sight/overview")["verdicts"]:
                    spoken[verdict["rule"]] = verdict["text"]

        thread = threading.Thread(target=look)
        thread.start()
        try:
            work(c)
            time.sleep(2)
        finally:
            ended.set()
            thread.join()
    return spoken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--healthy", action="store_true", help="only the healthy runs")
    given = parser.parse_args()
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    named = silent = 0
    for name, (work, rule, options) in FAULTS.items():
        if given.healthy or (given.names and name not in given.names):
            continue
        spoken = seen(work, options)
        named += rule in spoken
        others = sorted(set(spoken) - {rule})
        print(f"{name}: {'named' if rule in spoken else 'NOT NAMED'}; others: {others or 'none'}")
        print(f"    {spoken.get(rule, '')}", flush=True)
    for name, (work, options) in HEALTHY.items():
        if given.names and name not in given.names:
            continue
        spoken = seen(work, options)
        silent += not spoken
        print(f"healthy {name}: {spoken or 'silent'}", flush=True)
    print(f"{named} faults named, {silent} healthy runs silent")


if __name__ == "__main__":
    main()
