"""A million tasks: the cost a task stays that of 10,000 tasks, and the engine's memory stays small.

Each graph is measured in a process of its own (``python million.py GRAPH TASKS ROUNDS``, prints JSON).
Memory: the graph and the list of keys are built, garbage is collected and the C heap trimmed; then the kernel's
high-water mark of the resident set is reset, and one ``get`` runs. The mark's growth over the resident set before
is the engine's memory at its worst moment, the returned results included. Every task returns None, so that values
are no memory of their own.
"""

from __future__ import annotations

import ctypes
import gc
import json
import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import dask.local

# It runs itself in processes of their own, which find only this folder.
sys.path.append(str(Path(__file__).parent.parent))

import graphs
import treadle
from figures import Figure
from timing import interleave, us

SMALL = 10_000
STATUS = Path("/proc/self/status")


def nothing(_x: Any) -> None:
    return None


def status(field: str) -> int:
    """A field of this process's status, in bytes."""
    found = re.search(rf"^{field}:\s+(\d+) kB$", STATUS.read_text(), re.MULTILINE)
    assert found
    return int(found[1]) * 1024


def growth(run: Callable[[], Any]) -> int:
    """Bytes by which the resident set grows at most during ``run``."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS")
    run()
    return status("VmHWM") - before


def child(kind: str, n: int, rounds: int) -> dict[str, Any]:
    make, bare = {
        "flat": (graphs.flat, graphs.bare_flat),
        "chain": (graphs.chain, graphs.bare_chain),
    }[kind]
    warm, warm_keys = make(SMALL, nothing)
    gets = {
        "sync": treadle.sync.get,
        "threads": partial(treadle.threaded.get, num_workers=2),
    }
    for get in (*gets.values(), dask.local.get_sync):
        get(warm, warm_keys)

    dsk, keys = make(n, nothing)
    memory = {name: growth(partial(get, dsk, keys)) / n for name, get in gets.items()}
    some, some_keys = make(n // 10, nothing)
    memory["dask sync"] = growth(lambda: dask.local.get_sync(some, some_keys)) / len(some)

    times = {}
    for size, graph, wanted in (("small", *make(SMALL)), ("large", *make(n))):
        runs = {"bare": partial(bare, graph)}
        runs |= {name: partial(get, graph, wanted) for name, get in gets.items()}
        taken = interleave(runs, rounds, least_seconds=0.1)
        times[size] = {
            name: {"ratio": taken.ratio(name, "bare"), "seconds": taken.median(name) / len(graph)}
            for name in runs
        }
    return {"memory": memory, "times": times}


def measure(quick: bool) -> list[Figure]:
    n = 100_000 if quick else 1_000_000
    figures = []
    for kind in ("flat", "chain"):
        command = [sys.executable, __file__, kind, str(n), "3" if quick else "5"]
        result = json.loads(
            subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        )
        times, memory = result["times"], result["memory"]
        for who in ("sync", "threads"):
            small, large = times["small"][who], times["large"][who]
            growth_ = large["ratio"] / small["ratio"]
            figures.append(
                Figure(
                    f"{kind}, {n:,} tasks, {who}: per task over bare loop, relative to {SMALL:,} tasks",
                    f"{growth_:.2f} × ({large['ratio']:.2f} × bare, {us(large['seconds'])} a task; "
                    f"at {SMALL:,}: {small['ratio']:.2f} × bare, {us(small['seconds'])})",
                    bar="≤ 1.5 ×",
                    passed=growth_ <= 1.5,
                )
            )
            figures.append(
                Figure(
                    f"{kind}, {n:,} tasks, {who}: engine memory a task",
                    f"{memory[who]:.0f} B (dask sync, {n // 10:,} tasks: {memory['dask sync']:.0f} B)",
                    bar="≤ 150 B",
                    passed=memory[who] <= 150,
                )
            )
    return figures


if __name__ == "__main__":
    print(json.dumps(child(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
