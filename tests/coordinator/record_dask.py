"""Record what a client reports of real Dask jobs with a planted cause: ``python record_dask.py FILE [NAME…]``.

All records are lines of one file, ``logs/dask.jsonl``. A name that is there is replaced.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import dask.bag as db
import dask.dataframe as dd
import numpy as np
import pandas as pd

import treadle

Job = Callable[[treadle.Client], Any]
PLAIN = {"n_workers": 2, "threads_per_worker": 2, "memory_limit": "400MB"}


def _frame(rows: int, parts: int) -> Any:
    rng = np.random.default_rng(1)
    table = pd.DataFrame({"k": rng.integers(0, 1000, rows), "v": rng.random(rows)})
    return dd.from_pandas(table, npartitions=parts)


def _shuffled(rows: int, parts: int, method: str = "p2p", times: int = 1) -> Job:
    def job(_client: treadle.Client) -> None:
        with dask.config.set({"dataframe.shuffle.method": method}):
            for n in range(times):
                frame = _frame(rows + n, parts)
                frame.shuffle("k", npartitions=parts).map_partitions(len).compute()

    return job


def _array(side: int, chunk: int, times: int = 1) -> Job:
    def job(_client: treadle.Client) -> None:
        for _ in range(times):
            x = da.random.random((side, side), chunks=(chunk, chunk))
            with dask.config.set({"optimization.fuse.active": False}):
                (x + x.T).mean().compute()

    return job


def _small_frames(rows: int, parts: int) -> Job:
    return lambda _client: _frame(rows, parts).map_partitions(lambda one: one * 2).sum().compute()


def _spinning(tasks: int, seconds: float) -> Job:
    def spin(_n: int) -> int:
        until, count = time.time() + seconds, 0
        while time.time() < until:
            count += 1
        return count

    return lambda client: client.gather(client.map(spin, range(tasks)))


def _held(chunks: int, side: int) -> Job:
    def job(client: treadle.Client) -> None:
        held = client.map(lambda n: np.full((side, side), n, dtype=float), range(chunks))
        client.gather(client.map(lambda one: float(one.sum()), held))
        # So that somebody looks at the workers.
        time.sleep(5)

    return job


def _large(side: int, tasks: int) -> Job:
    def job(client: treadle.Client) -> None:
        made = client.map(lambda n: np.full((side, side), n, dtype=float), range(tasks), key="make")
        client.gather([client.submit(lambda one: float(one.sum()), one) for one in made])

    return job


def _bag(_client: treadle.Client) -> None:
    db.from_sequence(range(20_000), npartitions=16).map(lambda n: n % 7).frequencies().compute()


def _tree(client: treadle.Client) -> None:
    level = client.map(lambda n: np.ones(50_000) * n, range(64))
    while len(level) > 1:
        level = [client.submit(np.add, *level[at : at + 2]) for at in range(0, len(level), 2)]
    level[0].result()


JOBS: dict[str, tuple[Job, dict[str, Any]]] = {
    "healthy": (_array(4000, 1000, 3), {}),
    "healthy-2": (_shuffled(2_000_000, 12), {}),
    "healthy-3": (_small_frames(3_000_000, 16), {}),
    "healthy-4": (_bag, {}),
    "healthy-5": (_tree, {}),
    "healthy-6": (_shuffled(500_000, 8, "tasks"), {}),
    "healthy-7": (_held(20, 500), {}),
    "healthy-8": (_shuffled(1_500_000, 24, "p2p", 2), {"threads_per_worker": 4}),
    "healthy-9": (_array(6000, 1500), {"threads_per_worker": 4, "memory_limit": "1GB"}),
    "healthy-10": (_spinning(6, 0.5), {"threads_per_worker": 1}),
    "small-chunks": (_array(2000, 50), {}),
    "small-chunks-2": (_array(4000, 100), {}),
    "small-chunks-3": (_small_frames(200_000, 1200), {}),
    "small-chunks-4": (_array(3000, 60), {"threads_per_worker": 4}),
    "small-chunks-5": (_small_frames(600_000, 2000), {}),
    "large-chunks": (_large(3000, 6), {"memory_limit": "360MB"}),
    "large-chunks-2": (_large(3200, 5), {"memory_limit": "400MB"}),
    "large-chunks-3": (_large(2600, 8), {"memory_limit": "320MB"}),
    "large-chunks-4": (_large(2400, 8), {"threads_per_worker": 4, "memory_limit": "500MB"}),
    "large-chunks-5": (_large(3400, 4), {"memory_limit": "450MB"}),
    "threads": (_spinning(24, 1.5), {"threads_per_worker": 8, "n_workers": 1}),
    "threads-2": (_spinning(40, 1.0), {"threads_per_worker": 6, "n_workers": 1}),
    "threads-3": (_spinning(16, 2.0), {"threads_per_worker": 4, "n_workers": 1}),
    "threads-4": (_spinning(60, 1.0), {"threads_per_worker": 8, "n_workers": 1}),
    "threads-5": (_spinning(20, 2.0), {"threads_per_worker": 5, "n_workers": 1}),
    "memory": (_held(80, 1000), {"memory_limit": "300MB"}),
    "memory-2": (_held(120, 900), {"memory_limit": "320MB"}),
    "memory-3": (_held(60, 1100), {"memory_limit": "280MB"}),
    "memory-4": (_held(100, 1000), {"memory_limit": "300MB", "threads_per_worker": 1}),
    "memory-5": (_held(160, 800), {"memory_limit": "320MB"}),
    "shuffle-by-tasks": (_shuffled(400_000, 20, "tasks"), {}),
    "shuffle-by-tasks-2": (_shuffled(600_000, 30, "tasks"), {}),
    "shuffle-by-tasks-3": (_shuffled(300_000, 16, "tasks"), {}),
    "shuffle-by-tasks-4": (_shuffled(800_000, 40, "tasks"), {"threads_per_worker": 4}),
    "shuffle-by-tasks-5": (_shuffled(500_000, 24, "tasks", 2), {}),
    "p2p-of-few": (_shuffled(2000, 4, "p2p", 24), {}),
    "p2p-of-few-2": (_shuffled(5000, 8, "p2p", 22), {}),
    "p2p-of-few-3": (_shuffled(1000, 3, "p2p", 30), {}),
    "p2p-of-few-4": (_shuffled(8000, 6, "p2p", 25), {"threads_per_worker": 4}),
    "p2p-of-few-5": (_shuffled(3000, 10, "p2p", 21), {}),
}  # fmt: skip


def record(name: str, url: str, database: Any) -> dict[str, Any]:
    from treadle.coordinator import _store

    job, options = JOBS[name]
    with (
        dask.config.set({"treadle.coordinator.url": url}),
        treadle.Client(**{**PLAIN, **options}) as client,
    ):
        job(client)
    row = database.read(lambda c: _store.jobs_page(c, limit=1))[0]
    body = database.read(lambda c: _store.measures_of(c, row["id"]))
    found = [one["rule"] for one in body["findings"]]
    print(name, f"{row['duration']:.1f} s", found, flush=True)
    return {"name": name, "run": body["application"]["dask"]}


def main() -> None:
    import socket
    import threading

    import uvicorn

    from treadle.coordinator._access import Access
    from treadle.coordinator._app import app_of
    from treadle.coordinator._service import Coordinator

    file = Path(sys.argv[1])
    known = {}
    if file.exists():
        known = {one["name"]: one for one in map(json.loads, file.read_text().splitlines())}
    with tempfile.TemporaryDirectory() as folder:
        coordinator = Coordinator(f"sqlite:///{folder}/c.db")
        listener = socket.create_server(("127.0.0.1", 0))
        config = uvicorn.Config(app_of(coordinator, Access(None)), log_level="warning")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        for name in sys.argv[2:] or JOBS:
            try:
                known[name] = record(name, url, coordinator.database)
            except Exception as error:
                print(name, repr(error), flush=True)
            lines = [json.dumps(one, separators=(",", ":")) + "\n" for one in known.values()]
            file.write_text("".join(lines))
        server.should_exit = True
        coordinator.close()


if __name__ == "__main__":
    main()
