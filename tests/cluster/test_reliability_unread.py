"""A standard error that is a pipe which nobody reads, and which is full, holds up nobody."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from client_support import AGAINST, SOON
from process_support import HERE

pytestmark = pytest.mark.skipif(AGAINST != "treadle", reason="it is about Treadle's own threads")

SCRIPT = """
import os, sys
import distributed, treadle
from client_support import Gate, inc, note
from pathlib import Path

def end_once(gate):
    gate.arrive()
    if not gate.arrived(2):
        os._exit(3)
    return os.getpid()

def chatter(number):
    for _ in range(2000):
        print("x" * 100)
    return number

def main(directory):
    os.set_blocking(2, False)
    try:
        while True:
            os.write(2, b"x" * 4096)
    except BlockingIOError:
        os.set_blocking(2, True)
    client = treadle.Client(workers=2)
    client.wait_for_workers(2)
    assert client.gather(client.map(chatter, range(8))) == list(range(8))
    for number in range(3):
        directory_ = Path(directory) / str(number)
        directory_.mkdir()
        # The scheduler, the supervisor and the next worker have something to say.
        client.submit(end_once, Gate(directory_)).result(timeout=20)
        client.wait_for_workers(2, timeout=20)
    assert client.gather(client.map(inc, range(50))) == list(range(1, 51))
    client.close()
    print("done", flush=True)

if __name__ == "__main__":
    main(*sys.argv[1:])
"""


def test_a_full_pipe_that_nobody_reads_stops_no_cluster(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    output = tmp_path / "output.txt"
    reading, writing = os.pipe()
    with open(output, "w") as file:
        process = subprocess.Popen(
            [sys.executable, script, tmp_path],
            env={**os.environ, "PYTHONPATH": str(HERE)},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=writing,
        )
    os.close(writing)
    try:
        assert process.wait(2 * SOON - 5) == 0
        assert output.read_text() == "done\n"
    finally:
        process.kill()
        process.wait(SOON)
        os.close(reading)
