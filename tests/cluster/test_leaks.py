"""What is closed leaves nothing: no descriptor, no thread. Nobody starts a thread that is not needed."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from contextlib import closing, suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import treadle
from client_support import AGAINST, SOON, inc
from waiting import until

pytestmark = pytest.mark.skipif(AGAINST != "treadle", reason="what Treadle leaves behind")

PROGRAM = """
import gc, os, sys, threading, time
import treadle

def use(what, scheduler):
    if what == "clients":
        client = treadle.Client(scheduler, set_as_default=False)
    else:
        client = treadle.Client(processes=False, set_as_default=False)
    with client:
        assert client.submit(abs, -1, pure=False).result() == 1
        assert client.submit(bytes, 100_000, pure=False).result() == bytes(100_000)

def left():
    gc.collect()
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))

def main(what):
    cluster = treadle.Client(workers=1) if what == "clients" else None
    scheduler = cluster.scheduler.address if cluster else None
    # What the first one makes may stay.
    for _ in range(2):
        use(what, scheduler)
    before = left()
    for _ in range(6):
        use(what, scheduler)
    # Threads end a little later than what they belong to.
    until = time.monotonic() + 30
    while True:
        after = left()
        if after <= before and after[1] <= before[1]:
            break
        assert time.monotonic() < until, f"descriptors, threads: {before}, then {after}"
        time.sleep(0.1)
    if cluster:
        cluster.close()
    print("nothing")

if __name__ == "__main__":
    main(sys.argv[1])
"""


@pytest.mark.parametrize("what", ["clients", "clusters"])
def test_nothing_is_left_of_what_was_closed(what):
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, what],
        capture_output=True,
        text=True,
        timeout=4 * SOON,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (0, "nothing\n"), ended.stderr[-4000:]


def executors() -> int:
    """How many threads run tasks in this process."""
    count = 0
    for path in Path("/proc/self/task").glob("*/comm"):
        # A thread may end meanwhile.
        with suppress(OSError):
            count += path.read_text().strip() == "treadle-executor"[:15]
    return count


def test_a_worker_of_one_thread_has_one_executor():
    with treadle.Client(workers=2, threads_per_worker=1) as client:
        slowest = 0.0
        for _ in range(20):
            # One after the other, so that threads are between two tasks when somebody looks at them.
            for number in range(500):
                began = time.monotonic()
                assert client.submit(inc, number, pure=False).result(timeout=SOON) == number + 1
                slowest = max(slowest, time.monotonic() - began)
            # Where a task has waited for 50 ms, another thread is to take it.
            assert max(client.run(executors).values()) == 1 or slowest > 0.05
        one_each = dict.fromkeys(client.nthreads(), 1)
        until(lambda: client.run(executors) == one_each, "what is too many ends")


def test_a_closed_cluster_serves_no_pages():
    client = treadle.Client(processes=False, set_as_default=False)
    place = urlsplit(client.dashboard_link)
    with closing(socket.create_connection((place.hostname, place.port), SOON)):
        pass
    client.close()
    # Not when the interpreter has looked for cycles: the client is still here.
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((place.hostname, place.port), SOON)
