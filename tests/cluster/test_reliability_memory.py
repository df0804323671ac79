"""Workers that run short of memory: values go to disk, what takes too much is ended by name."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
from distributed import Event, wait

from client_support import AGAINST, SOON, inc, pass_gate
from process_support import HERE
from reliability_support import nap
from treadle.client import WorkerLost
from waiting import until

pytestmark = [
    pytest.mark.skipif(AGAINST != "treadle", reason="the causes are Treadle's"),
    pytest.mark.usefixtures("quiet"),
]

LIMIT = 400_000_000
CGROUPS = Path("/sys/fs/cgroup/memory")


def block(number: int) -> np.ndarray:
    """40 MB."""
    return np.full(5_000_000, number, "f8")


def total(block: np.ndarray) -> float:
    return float(block.sum())


def await_event(name: str) -> bool:
    return Event(name).wait(timeout=2 * SOON)


def set_event(name: str) -> None:
    Event(name).set()


def hog() -> int:
    """Five times of what there is, a little at a time."""
    taken = []
    for _ in range(50):
        taken.append(b"x" * (LIMIT // 10))
        time.sleep(0.02)
    time.sleep(2 * SOON)
    return len(taken)


def hog_at_once() -> int:
    """The interpreter's lock is held all the time."""
    taken = b"x" * (5 * LIMIT)
    ctypes.PyDLL(None).sleep(2 * SOON)
    return len(taken)


def hog_of_arrays() -> int:
    """The same in arrays, which are in shared memory."""
    taken = []
    for _ in range(50):
        taken.append(np.ones(LIMIT // 80))
        time.sleep(0.02)
    time.sleep(2 * SOON)
    return len(taken)


BALLAST = []


def fill(share: float) -> None:
    """Take memory that is nobody's value, as imported modules do, up to a share of the limit."""
    resident, shared = map(int, Path("/proc/self/statm").read_text().split()[1:3])
    taken = (resident - shared) * os.sysconf("SC_PAGE_SIZE")
    BALLAST.append(b"x" * max(int(share * LIMIT) - taken, 0))


def test_values_beyond_the_limit_go_to_disk(new_client):
    client = new_client(workers=1, memory_limit=LIMIT)
    futures = client.map(block, range(25))  # two and a half times the limit
    sums = client.map(total, futures)
    assert client.gather(sums) == [5e6 * number for number in range(25)]
    assert float(futures[0].result(timeout=SOON)[-1]) == 0
    assert float(futures[24].result(timeout=SOON)[-1]) == 24


@pytest.fixture
def full(new_client):
    """A client of one worker of two slots, with more values than its memory holds."""
    client = new_client(workers=1, threads_per_worker=2, memory_limit=LIMIT)
    kept = client.map(block, range(12))  # 480 MB
    wait(kept, timeout=2 * SOON)
    yield client
    del kept


def test_a_full_worker_uses_its_free_slot(full, gate):
    held = full.submit(pass_gate, gate)
    until(gate.arrived, "the task to begin")
    assert full.submit(inc, 1).result(timeout=SOON) == 2
    assert float(full.submit(block, 99).result(timeout=SOON)[0]) == 99
    gate.open()
    held.result(timeout=SOON)


def test_a_full_worker_runs_what_a_task_waits_for(full):
    waiting = full.submit(await_event, "of-a-full-worker")
    setting = full.submit(set_event, "of-a-full-worker")
    assert waiting.result(timeout=SOON) is True
    setting.result(timeout=SOON)


@pytest.mark.parametrize("share", [0.5, 0.85])
def test_an_interpreter_that_takes_much_leaves_values_less(new_client, share):
    client = new_client(workers=1, memory_limit=LIMIT)
    client.submit(fill, share).result(timeout=SOON)
    sums = client.map(total, client.map(block, range(10)))
    assert client.gather(sums) == [5e6 * number for number in range(10)]


@pytest.mark.parametrize("take", [hog, hog_at_once, hog_of_arrays])
def test_a_task_that_takes_too_much_is_named(new_client, take):
    client = new_client(workers=2, memory_limit=LIMIT)
    taking = client.submit(take, key="the-hog", retries=0)
    others = client.map(nap, [0.05] * 20, pure=False)
    error = taking.exception(timeout=2 * SOON)
    assert isinstance(error, WorkerLost)
    assert error.task == "the-hog"
    assert "memory limit" in error.cause
    assert len(error.workers) == 4  # the allowed failures, and one more
    assert "the-hog" in error.workers[-1].log
    assert client.gather(others) == [None] * 20
    client.wait_for_workers(2, timeout=SOON)
    assert client.submit(inc, 1).result(timeout=SOON) == 2


def test_the_kernel_is_named_where_it_was_the_kernel(tmp_path):
    group = CGROUPS / f"treadle-{os.getpid()}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(2 * LIMIT))
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    script = """
        import dask, os, sys
        from client_support import make_client, inc
        from test_reliability_memory import hog_at_once

        if __name__ == "__main__":
            dask.config.set({"distributed.scheduler.allowed-failures": 0})
            client = make_client(workers=1, memory_limit=0)
            future = client.submit(hog_at_once, key="the-hog")
            print(repr(future.exception(timeout=50).cause))
            print(client.submit(inc, 1).result(timeout=50))
            client.close()
    """
    file = tmp_path / "script.py"
    file.write_text(textwrap.dedent(script))
    path = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
    try:
        done = subprocess.run(
            [sys.executable, str(file)],
            env={**os.environ, "PYTHONPATH": path},
            preexec_fn=lambda: (group / "cgroup.procs").write_text(str(os.getpid())),
            capture_output=True,
            text=True,
            timeout=55,
        )
    finally:
        deadline = time.monotonic() + SOON
        while time.monotonic() < deadline:
            try:
                group.rmdir()
                break
            except OSError:
                time.sleep(0.1)
    assert done.stdout == "'out of memory: killed by the kernel'\n2\n", done.stderr
