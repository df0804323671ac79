"""A scheduler that is killed: everybody says so at once, and ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap

import pytest

from client_support import AGAINST, SOON
from process_support import HERE

pytestmark = pytest.mark.skipif(AGAINST != "treadle", reason="the messages are Treadle's")

# Each way to wait says what it raised; the process ends without closing anything.
SCRIPT = """
    import logging, sys, threading, time
    from pathlib import Path
    import distributed
    from client_support import Gate, pass_gate
    from treadle import Client

    logging.disable(logging.CRITICAL)

    if __name__ == "__main__":
        client = Client(sys.argv[1])
        gate = Gate(Path(sys.argv[2]))
        futures = client.map(pass_gate, [gate] * 3, range(3), pure=False)
        finished = client.submit(bytes, 100_000)
        queue, lock = distributed.Queue("q"), distributed.Event("e")
        ways = {
            "result": futures[0].result,
            "exception": futures[0].exception,
            "gather": lambda: client.gather(futures),
            "wait": lambda: distributed.wait(futures),
            "completed": lambda: list(distributed.as_completed(futures, with_results=True)),
            "compute": lambda: client.get({"x": (pass_gate, gate, 1)}, "x"),
            "queue": queue.get,
            "event": lock.wait,
            "run": lambda: client.run(pass_gate, gate),
            "workers": lambda: client.wait_for_workers(9),
        }

        def say(line):
            # In one piece, whichever threads say something.
            sys.stdout.write(line + "\\n")
            sys.stdout.flush()

        def attempt(name, way):
            try:
                found = way()
                outcome = type(found).__name__ if isinstance(found, BaseException) else "ended"
            except BaseException as error:
                outcome = type(error).__name__
            say(f"{name} {outcome}")

        threads = [threading.Thread(target=attempt, args=way) for way in ways.items()]
        for thread in threads:
            thread.start()
        while not gate.arrived(6):  # three futures, a graph's task, a call to each worker
            time.sleep(0.01)
        say("ready")
        for thread in threads:
            thread.join()
        say(f"futures {sorted({future.status for future in futures})}")
        attempt("submit", lambda: client.submit(abs, 1))
"""


@pytest.mark.timeout(180, method="signal")  # four processes start, and end in their own time
def test_everybody_says_so_when_the_scheduler_is_killed(start, gate, secret):
    scheduler = start("scheduler", "--port", "0")
    workers = [start("worker", scheduler.address, "--nthreads", "4") for _ in range(2)]
    for worker in workers:
        assert worker.address
    path = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
    client = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SCRIPT), scheduler.address, str(gate.directory)],
        env={**os.environ, "PYTHONPATH": path, "TREADLE_SECRET_FILE": str(secret)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert client.stdout.readline() == "ready\n"
        scheduler.send(signal.SIGKILL)
        output, errors = client.communicate(timeout=SOON)
    finally:
        client.kill()
    lines = dict(line.split(" ", 1) for line in output.splitlines())
    assert client.returncode == 0, errors
    refused = {"CancelledError", "FutureCancelledError", "FuturesCancelledError"}
    for way in ("result", "gather", "wait", "compute"):
        assert lines[way] in refused, lines
    # Anything but silence: these are Python's, of one kind or another.
    for way in ("exception", "completed", "queue", "event", "run", "submit", "workers"):
        assert lines[way].endswith(("Error", "ended")), lines
    assert lines["futures"] == "['cancelled']", lines
    for worker in workers:
        # They have tasks that wait for the gate still.
        assert worker.wait() == 1
        assert "Error: the connection to the scheduler ended" in worker.output
