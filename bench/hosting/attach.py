"""Attaching to a running Dask cluster, with the first result, and detaching: beside `frisky.hijack`.

Each measurement is a process of its own, with a `LocalCluster` of its own; the engines take turns.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

WORKERS = (2, 4)
DETACH = 1.0  # seconds


def measure(quick: bool) -> Iterator[Any]:
    from figures import MISSING, Figure, Samples

    peer = os.environ.get("FRISKY_PYTHON")
    engines = {"treadle": sys.executable} | ({"frisky": peer} if peer else {})
    for workers in WORKERS[:1] if quick else WORKERS:
        samples = Samples()
        for _ in range(2 if quick else 5):
            for engine, python in engines.items():
                for name, seconds in _run(python, engine, workers).items():
                    samples.values.setdefault(f"{engine} {name}", []).append(seconds)
        taken = samples.median("treadle attach")
        theirs = samples.median("frisky attach") if peer else None
        ratio = samples.ratio("treadle attach", "frisky attach") if peer else None
        yield Figure(
            f"attach to {workers} workers, first result included",
            f"{taken:.2f} s",
            f"frisky.hijack {theirs:.2f} s" if peer else MISSING,
            f"{ratio:.2f}" if ratio is not None else "",
            "≤ 1",
            None if ratio is None else ratio <= 1,
        )
        for name, what in (("detach", ""), ("detach while busy", " whose threads run tasks")):
            taken = samples.median(f"treadle {name}")
            yield Figure(
                f"detach from {workers} workers{what}",
                f"{taken:.2f} s",
                bar=f"≤ {DETACH:g} s",
                passed=taken <= DETACH,
            )


def _run(python: str, engine: str, workers: int) -> dict[str, float]:
    command = [python, __file__, engine, str(workers)]
    # Each interpreter has its own modules.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if engine == "treadle":
        environment = dict(os.environ)
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=180, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{engine} failed:\n{done.stderr[-2000:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def _main(engine: str, workers: int) -> None:
    import distributed

    cluster = distributed.LocalCluster(
        n_workers=workers, threads_per_worker=1, dashboard_address=":0", silence_logs=50
    )
    there = distributed.Client(cluster, set_as_default=False)
    there.submit(sum, [1, 2]).result()
    # Not the time of an import.
    attach: Any
    if engine == "treadle":
        import treadle

        attach = treadle.attach
        attach.__module__  # noqa: B018 (imports what it needs)
    else:
        import frisky

        attach = frisky.hijack
    start = time.perf_counter()
    here = attach(there)
    assert here.submit(sum, [1, 2]).result() == 3
    taken = {"attach": time.perf_counter() - start}
    if engine == "treadle":
        start = time.perf_counter()
        here.detach()
        taken["detach"] = time.perf_counter() - start
        assert there.submit(sum, [2, 2]).result() == 4
        here = attach(there)
        running = here.map(time.sleep, [6] * workers, pure=False)
        while len([key for keys in here.processing().values() for key in keys]) < workers:
            time.sleep(0.05)
        start = time.perf_counter()
        here.detach()
        taken["detach while busy"] = time.perf_counter() - start
        del running
    print(json.dumps(taken), flush=True)
    there.close()
    cluster.close()


if __name__ == "__main__":
    _main(sys.argv[1], int(sys.argv[2]))
