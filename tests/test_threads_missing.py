"""Where the system has no thread for who asks for one, calls end: with a result, or an error that says so.

``failing_threads.c`` is preloaded, and has `pthread_create` fail from one call on.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

# Seconds after which a program hangs.
LIMIT = 120

_PRELUDE = """
import ctypes, os, sys

def inc(x):
    return x + 1

def limit(count):
    ctypes.CDLL(None).threads_left(ctypes.c_long(int(count)))
"""

_GET = """
import treadle

if __name__ == "__main__":
    limit(sys.argv[1])
    graph = {f"x{i}": (inc, i) for i in range(20)}
    try:
        assert list(treadle.get(graph, list(graph), num_workers=4)) == list(range(1, 21))
    except RuntimeError as error:
        assert "thread" in str(error), error
        print("an error:", error)
    else:
        print("a result")
"""

# The threads of this process, those of its worker, or those after the cluster is there.
_CLUSTER = """
import distributed
import treadle.client
from distributed.client import FutureCancelledError

if __name__ == "__main__":
    count, where = sys.argv[1:3]
    try:
        if where in ("worker", "joined"):
            os.environ["THREADS_LEFT"] = count
        if where == "joined":
            # Each worker that ends was seen before, as it is now and then.
            async def seen(*_):
                pass
            treadle.Client._wait_for_workers = seen
        if where == "client":
            limit(count)
        workers = None if where == "threads" else 1
        if where == "threads":
            limit(count)
        with treadle.Client(workers=workers, threads_per_worker=2, timeout=20) as client:
            if where == "late":
                limit(count)
            futures = client.map(inc, range(20))
            futures.append(client.submit(len, bytes(10_000_000)))
            values = client.gather(futures)
            assert values == [*range(1, 21), 10_000_000]
    except (OSError, RuntimeError, distributed.KilledWorker, FutureCancelledError) as error:
        # The last of them: each worker that was brought the large argument was lost.
        print("an error:", repr(error))
    else:
        print("a result")
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    path = tmp_path_factory.mktemp("threads") / "threads.so"
    source = Path(__file__).with_name("failing_threads.c")
    subprocess.run(
        [compiler, "-O2", "-shared", "-fPIC", str(source), "-o", str(path), "-ldl"], check=True
    )
    return path


def run(library: Path, program: str, *arguments: object) -> str:
    ended = subprocess.run(
        [sys.executable, "-c", _PRELUDE + program, *map(str, arguments)],
        # It interrupts processes that have no threads for it.
        env={**os.environ, "LD_PRELOAD": str(library), "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert ended.returncode == 0, (ended.stdout, ended.stderr[-4000:])
    assert "panicked" not in ended.stderr, ended.stderr[-4000:]
    return ended.stdout.strip()


@pytest.mark.parametrize("count", range(4))
def test_get(library, count):
    said = run(library, _GET, count)
    assert said.startswith("an error" if count == 0 else "a result"), said


# Some of each kind: threads of Python and of the engine, which many of them can do without or not.
@pytest.mark.timeout(2 * LIMIT)
@pytest.mark.parametrize(
    ("where", "count"),
    [
        *(("threads", count) for count in (0, 2, 4, 7, 9, 12, 14, 17, 20, 24, 26)),
        *(("client", count) for count in (1, 6, 8, 11, 14)),
        *(("worker", count) for count in (1, 6, 14, 16)),
        ("joined", 6),
        ("late", 0),
    ],
)
def test_a_cluster(library, where, count):
    said = run(library, _CLUSTER, count, where)
    # It was found out before a task was waited for, or every task ended.
    assert said.startswith(("an error", "a result")), said
    assert "os error" not in said or "thread" in said, said
    # A task that waits for a worker that never stays would wait for ever.
    assert where != "joined" or "cannot be started" in said, said
