"""Masters of applications: one of eight is killed, and the registry is away for two minutes of twenty shuffles.

Each application is a process with a master of its own. It runs a small shuffle each 100 ms, and says how long each one
took. An application's pause is its longest shuffle within three seconds after the kill. The registry is
``treadle shuffle-master``; a server that is started while it is away has to be used afterwards.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent))

import numpy as np

from figures import Figure, time_of
from jobs import small
from program import Program
from treadle.common._command_process import Child
from treadle.shuffle import Service

APPLICATIONS = 8
SERVERS = 2
LEASE = 5
# Seconds between the beginnings of two shuffles, and those that are looked at before and after the kill.
PAUSE, LOOK = 0.1, 3.0
AWAY, SHUFFLES = 120.0, 20
WAIT = 60


def application(address: str) -> None:
    """Run shuffles until the input has a line; print when each one began and how long it took."""
    with Service(address, timeout=WAIT) as service:
        # What stays at the servers until the master's lease has run out.
        kept = service.shuffle(1, 1, "i8")
        kept.write(0, np.arange(10_000), 0)
        small(service)
        print(json.dumps("ready"), flush=True)
        is_over = threading.Event()
        threading.Thread(target=lambda: (sys.stdin.readline(), is_over.set()), daemon=True).start()
        took = []
        while not is_over.is_set():
            began = time.monotonic()
            small(service)
            took.append((began, time.monotonic() - began))
            time.sleep(max(0.0, began + PAUSE - time.monotonic()))
        print(json.dumps(took), flush=True)


class Cluster:
    """A registry and servers, in processes of their own."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self.registry = self._begin("127.0.0.1:0")
        self.address = self.registry.address
        for number in range(SERVERS):
            self.server(f"server-{number}")

    def _begin(self, where: str) -> Child:
        options = ("--shuffle-journal", "none", "--lease", str(LEASE))
        return self._stack.enter_context(Child("shuffle-master", where, *options, "--supervised"))

    def server(self, name: str) -> Child:
        folder = self._stack.enter_context(tempfile.TemporaryDirectory())
        options = ("--memory-limit", "1GiB", "--local-directory", folder, "--http", "none")
        command = ("shuffle-server", self.address, "--name", name, "--domain", name)
        return self._stack.enter_context(Child(*command, *options, "--supervised"))

    def kill_registry(self) -> None:
        os.kill(self.registry._process.pid, signal.SIGKILL)
        self.registry._process.wait(WAIT)

    def begin_again(self) -> None:
        self.registry = self._begin(self.address.rpartition("://")[2])

    def held(self) -> int:
        with Service(self.address, own_master=False, timeout=WAIT) as service:
            return sum(server["held_bytes"] for server in service.state()["servers"])


def one_is_killed(look: float) -> Iterator[Figure]:
    with ExitStack() as stack:
        cluster = Cluster(stack)
        command = (sys.executable, __file__, cluster.address)
        path = {"PYTHONPATH": os.pathsep.join(sys.path)}
        running = [stack.enter_context(Program(command, path)) for _ in range(APPLICATIONS)]
        for one in running:
            assert one.line(WAIT).strip() == json.dumps("ready")
        time.sleep(look)
        victim, *others = running
        killed = time.monotonic()
        victim.process.kill()
        time.sleep(look)
        before, after = [], []
        for one in others:
            one.tell("")
            took = json.loads(one.line(WAIT))
            before.append(max(seconds for began, seconds in took if began < killed - 0.5))
            after.append(max(seconds for began, seconds in took if began >= killed - 0.1))
        until = time.monotonic() + LEASE + WAIT
        while cluster.held() and time.monotonic() < until:
            time.sleep(0.2)
        gone = time.monotonic() - killed
        rows = cluster.held()
    yield Figure(
        f"one of {APPLICATIONS} masters is killed: the longest shuffle of the other {len(others)}",
        time_of(max(after)),
        f"the longest one before: {time_of(max(before))}",
        f"{time_of(max(0.0, max(after) - max(before)))} more",
        "≤ 100 ms more",
        max(after) - max(before) <= 0.1,
        "no call failed",
    )
    yield Figure(
        "the same: its rows are gone from all servers after",
        f"{gone:.1f} s",
        f"its lease: {LEASE} s",
        f"{rows} bytes left",
        "0 bytes left",
        rows == 0,
    )


def the_registry_is_away(away: float) -> Iterator[Figure]:
    with ExitStack() as stack:
        cluster = Cluster(stack)
        service = stack.enter_context(Service(cluster.address, timeout=WAIT))
        small(service)
        cluster.kill_registry()
        begins = threading.Timer(away, cluster.begin_again)
        # It waits for the registry before it says where it listens.
        pool = stack.enter_context(ThreadPoolExecutor(1))
        began = time.monotonic()
        begins.start()
        late = pool.submit(cluster.server, "late")
        failed = 0
        for number in range(SHUFFLES):
            try:
                small(service)
            except Exception as error:
                print(f"shuffle {number} failed: {error}", file=sys.stderr)
                failed += 1
            time.sleep(max(0.0, began + (number + 1) * away / SHUFFLES - time.monotonic()))
        begins.join()
        late.result(WAIT)
        used, until = 0, time.monotonic() + WAIT
        while not used and time.monotonic() < until:
            with service.shuffle(1, 64, "i8") as shuffle:
                shuffle.commit([shuffle.write(0, np.arange(64), np.arange(64))])
                servers = service.state()["servers"]
                used = sum(one["partitions"] for one in servers if one["name"] == "late")
            time.sleep(0.2)
        joined = time.monotonic() - began - away
    yield Figure(
        f"the registry is killed for {away:g} s of {SHUFFLES} shuffles: calls that failed",
        str(failed),
        bar="0",
        passed=failed == 0,
    )
    yield Figure(
        "the same: a server that was started meanwhile has copies of",
        f"{used} of 64 partitions",
        bar="some",
        passed=used > 0,
        limit=f"{joined:.1f} s after the registry was back",
    )


def measure(quick: bool) -> Iterator[Figure]:
    """Yield the figures."""
    yield from one_is_killed(1.5 if quick else LOOK)
    yield from the_registry_is_away(5.0 if quick else AWAY)


if __name__ == "__main__":
    application(sys.argv[1])
