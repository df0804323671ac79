"""What it costs that a worker leaves during a shuffle: ``python bench/shuffle/leaving.py``.

Three workers of one thread shuffle 320 MB. One of them is retired when half of the inputs are transferred, or when half
of the outputs are read. Its rows are made again. The time beside that of a shuffle that nobody leaves, and how often
inputs ran and how many bytes were pushed or stored.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent))
# Workers import the functions of `work.py`.
os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])

import dask  # noqa: E402
from distributed import wait  # noqa: E402

import table  # noqa: E402
from clusters import treadle  # noqa: E402

WORKERS = 3
INPUTS = 32
ROWS = 4_000_000
POLL = 0.005  # seconds


def stats(dask_worker: Any) -> dict[str, int]:
    found: dict[str, int] = dask_worker._native.shuffle_stats()
    return found


def turn(phase: str) -> dict[str, float]:
    """One shuffle on a new cluster. ``phase``: when a worker leaves."""
    with treadle(WORKERS) as client:
        held = table.frame(INPUTS, ROWS).persist()
        wait(held)
        # Modules are imported, and the connections are made.
        table.shuffled(table.frame(6, 6000)).compute()
        before = client.run(stats)
        start = time.perf_counter()
        futures = client.compute(table.shuffled(held).to_delayed())
        left: dict[str, dict[str, int]] = {}
        if phase != "nobody leaves":
            while True:
                read = sum(future.done() for future in futures)
                transferred = sum(one.transferred for one in client.shuffles().running)
                if (read if phase == "in reads" else transferred) >= INPUTS // 2:
                    break
                time.sleep(POLL)
            address = next(iter(before))
            left = client.run(stats, workers=[address])
            client.retire_workers([address])
        lengths = sum(int(part.sum()) for part in client.gather(futures))
        seconds = time.perf_counter() - start
        if lengths != ROWS:
            raise ValueError(f"{lengths} rows instead of {ROWS}")
        after = client.run(stats) | left

        def grown(what: str) -> int:
            return sum(now[what] - before[address][what] for address, now in after.items())

        return {"seconds": seconds, "transfers": grown("transfers"), "stored": grown("stored")}


if __name__ == "__main__":
    with dask.config.set({"dataframe.shuffle.method": "p2p"}):
        for phase in ("nobody leaves", "in transfers", "in reads"):
            found = turn(phase)
            print(
                f"{phase}: {found['seconds']:.2f} s, {found['transfers']:.0f} transfers, "
                f"{found['stored'] / 1e6:.0f} MB stored",
                flush=True,
            )
