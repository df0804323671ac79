"""How long after the submission the first task of a graph of 100,000 runs, beside distributed."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from dask._task_spec import List, Task, TaskRef

import clusters
from figures import Figure, Samples

TASKS = 100_000
BAR = 0.5  # seconds
PATIENCE = 300.0


def measure(quick: bool) -> Iterator[Any]:
    samples = Samples()
    for number in range(1 if quick else 3):
        # distributed takes its time: once is enough.
        for name in ("treadle", "distributed") if number == 0 else ("treadle",):
            with clusters.CLIENTS[name]() as client, tempfile.TemporaryDirectory() as folder:
                known = Path(folder, "first")
                client.submit(note, str(Path(folder, "warm")), 0).result()
                graph = _graph(str(known))
                start = time.time()
                last = client.get(graph, "all", sync=False)
                until = time.monotonic() + PATIENCE
                while not known.exists():
                    assert time.monotonic() < until, f"no task of {name} runs"
                    time.sleep(0.01)
                samples.values.setdefault(name, []).append(known.stat().st_mtime - start)
                # Nobody waits for the others.
                last.cancel()
    taken, theirs = samples.median("treadle"), samples.median("distributed")
    yield Figure(
        f"first task of {TASKS:,} runs after",
        f"{taken:.2f} s",
        f"distributed {theirs:.2f} s",
        f"{taken / theirs:.3f}",
        f"≤ {BAR:g} s",
        taken <= BAR,
    )


def _graph(path: str) -> dict[Any, Any]:
    # As collections make them: what is a tuple is converted by Dask first, for seconds.
    graph: dict[Any, Any] = {("at", i): Task(("at", i), note, path, i) for i in range(TASKS)}
    graph["all"] = Task("all", len, List(*map(TaskRef, graph)))
    return graph


def note(path: str, number: int) -> int:
    """Make a file, unless it is there: its time is when the first task ran."""
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    return number


# Workers import nothing of the benchmark.
note.__module__ = "__main__"
