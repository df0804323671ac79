"""A client that is killed: its tasks stop and its values go; whoever shares them keeps them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap

import pytest

from client_support import AGAINST, SOON, inc, reach
from process_support import HERE
from waiting import until

pytestmark = pytest.mark.skipif(AGAINST != "treadle", reason="it reads Treadle's state")

SCRIPT = """
    import sys
    from pathlib import Path
    from client_support import Gate, note, pass_gate
    from treadle import Client

    if __name__ == "__main__":
        client = Client(sys.argv[1])
        gate = Gate(Path(sys.argv[2]))
        value = client.submit(bytes, 1_000_000, key="its-value")
        small = client.submit(int, 5, key="its-small-value")
        shared = client.submit(bytes, 1_000_000, key="shared")
        data = client.scatter(bytes(2_000_000), hash=False)
        client.gather([value, small, shared])
        running = client.submit(pass_gate, gate, name="running", key="running")
        while not gate.arrived():
            pass
        queued = client.map(note, [gate] * 50, [f"queued-{i}" for i in range(50)])
        reader = client.submit(note, gate, "reader", running)
        print("ready", flush=True)
        sys.stdin.read()
"""


def test_what_a_killed_client_had_is_gone(start, join, gate, secret):
    scheduler = start("scheduler", "--port", "0")
    assert start("worker", scheduler.address, "--nthreads", "1").address
    client = join(scheduler)
    path = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
    victim = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SCRIPT), scheduler.address, str(gate.directory)],
        env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert victim.stdout.readline() == "ready\n"
        shared = client.submit(bytes, 1_000_000, key="shared")
        assert shared.result(timeout=SOON) == bytes(1_000_000)
        assert "its-value" in client.who_has()
        victim.send_signal(signal.SIGKILL)
        victim.wait(SOON)
    finally:
        victim.kill()
        victim.communicate()
    until(lambda: set(client.who_has()) == {"shared"}, "the scheduler forgets its keys")
    [held] = client.has_what().values()
    assert list(held) == ["shared"]
    # What ran still runs: nobody can stop a Python function. What waited behind it never will.
    reach(client)
    assert gate.arrivals() == ["running"]
    gate.open()
    until(lambda: client.submit(inc, 1, pure=False).result(timeout=SOON) == 2, "the slot is free")
    until(lambda: sum(scheduler.state()["tasks"].values()) == 1, "only the shared value is left")
    until(
        lambda: [w["values"] for w in scheduler.state()["workers"].values()] == [1],
        "the worker has let go of the values",
    )
    assert gate.arrivals() == ["running"]
    assert len(scheduler.state()["clients"]) == 2  # this one, and the scheduler's Python side
    assert shared.result(timeout=SOON) == bytes(1_000_000)
