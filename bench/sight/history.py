"""What a history costs: its bytes a task, how long it takes to open, and what is there after a kill in the middle.

    python bench/sight/history.py [--tasks 1000000] [--kill]

A scheduler with --history and two workers are processes; a client maps tiny tasks. ``--kill`` ends the scheduler with
SIGKILL when half of them are done. Build with `make PROFILE=release build` first: a development build opens it slowly.
"""

from __future__ import annotations

import argparse
import json
import signal
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from processes import Cluster

_IDLE = 20.0


def inc(x: int) -> int:
    return x + 1


def run(folder: Path, tasks: int, kill: bool, workers: int) -> tuple[Path, dict[str, Any]]:
    """Run them; return the history, and what was seen."""
    import treadle

    path = folder / "one.history"
    found: dict[str, Any] = {"tasks": tasks, "workers": workers}
    with ExitStack() as stack:
        cluster = Cluster(folder, stack, workers, ("--history", str(path)))
        scheduler = cluster.scheduler
        client = stack.enter_context(treadle.Client(scheduler_file=cluster.file))
        client.wait_for_workers(workers)
        time.sleep(2)
        before = path.stat().st_size
        time.sleep(_IDLE)
        found["bytes a second, idle"] = round((path.stat().st_size - before) / _IDLE, 1)
        half = tasks // 2
        client.gather(client.map(inc, range(half), pure=False))
        if kill:
            scheduler.send_signal(signal.SIGKILL)
            scheduler.wait()
        else:
            client.gather(client.map(inc, range(tasks - half), pure=False))
            time.sleep(2)
            scheduler.terminate()
            scheduler.wait()
    return path, found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=1_000_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--kill", action="store_true")
    given = parser.parse_args()
    from treadle import _core
    from treadle.sight._pages import Pages

    with tempfile.TemporaryDirectory() as folder:
        path, found = run(Path(folder), given.tasks, given.kill, given.workers)
        found["MB"] = round(path.stat().st_size / 1e6, 2)
        began = time.perf_counter()
        shown = _core.History(path)
        overview = Pages(shown.http).get("/sight/overview")
        found["seconds to open"] = round(time.perf_counter() - began, 2)
        found["runs"] = sum(group["runs"] for group in overview["groups"])
        found["end"] = shown.end
        found["bytes left out"] = shown.unread
        found["bytes a task"] = round(path.stat().st_size / max(found["runs"], 1), 1)
        shown.close()
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
