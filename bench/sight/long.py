"""Whether a long run grows: the memory of scheduler, worker and page, and the scheduler's processor time a task.

    python bench/sight/long.py [--tasks 10000000] [--batch 50000] [--page]

A client maps batches of tiny tasks, gathers them and lets them go. A line is printed after each tenth; memory after the
first one is what the last is compared with, processor time that of the second one. ``--page`` keeps the task stream open
in a headless Chromium. Build with `make PROFILE=release build` first.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "docs"))

import browser
from processes import Cluster, resident


def inc(x: int) -> int:
    return x + 1


def tenth(client: Any, tasks: int, batch: int) -> None:
    """Run the tasks of one tenth."""
    for _ in range(tasks // batch):
        assert len(client.gather(client.map(inc, range(batch), pure=False))) == batch


async def heap(tab: browser.Browser | None) -> int:
    """Bytes of objects in the page, after its garbage was collected."""
    if tab is None:
        return 0
    await tab.send("HeapProfiler.collectGarbage")
    return int((await tab.send("Runtime.getHeapUsage"))["usedSize"])


async def run(tasks: int, batch: int, page: bool) -> None:
    import treadle

    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        cluster = Cluster(Path(folder), stack)
        client = stack.enter_context(treadle.Client(scheduler_file=cluster.file))
        client.wait_for_workers(2)
        tab = None
        if page:
            tab = browser.Browser(browser.find() or "")
            await tab.__aenter__()
            await tab.open(f"{cluster.link}#stream")
        rows: list[dict[str, float]] = []
        for number in range(10):
            taken, began = cluster.processor(), time.perf_counter()
            await asyncio.to_thread(tenth, client, tasks // 10, batch)
            seconds = time.perf_counter() - began
            taken = cluster.processor() - taken
            await asyncio.sleep(2)
            rows.append(
                {
                    "tasks a second": tasks / 10 / seconds,
                    "scheduler, µs a task": taken / (tasks / 10) * 1e6,
                    "scheduler, MB": cluster.memory() / 1e6,
                    "worker, MB": resident(cluster.workers[0]) / 1e6,
                    "page, MB": await heap(tab) / 1e6,
                }
            )
            print(
                number + 1, {what: round(value, 2) for what, value in rows[-1].items()}, flush=True
            )
        if tab is not None:
            print("wrong in the page:", tab.wrong)
            await tab.__aexit__()
    last = rows[-1]
    for what, first in [("scheduler, µs a task", rows[1])] + [
        (what, rows[0]) for what in last if what.endswith("MB")
    ]:
        if first[what]:
            print(f"{what}: {last[what] / first[what]:.3f} ×")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=10_000_000)
    parser.add_argument("--batch", type=int, default=50_000)
    parser.add_argument("--page", action="store_true")
    given = parser.parse_args()
    asyncio.run(run(given.tasks, given.batch, given.page))


if __name__ == "__main__":
    main()
