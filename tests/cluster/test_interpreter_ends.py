"""Processes end as they would without Treadle while tasks run in their threads.

CPython before 3.14 ends such threads by force, which must not end the process by a signal.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from distributed import Client

import treadle
from client_support import AGAINST, SOON
from waiting import until

pytestmark = [
    pytest.mark.skipif(AGAINST != "treadle", reason="it is Treadle's own"),
    pytest.mark.timeout(4 * SOON, method="signal"),
]

# Tasks that want the interpreter's lock again and again, for longer than the process is there.
TASKS = f"""
import asyncio, time
import numpy as np

def sleep(mark):
    open(mark, "w").close()
    for _ in range({SOON} * 1000):
        time.sleep(0.001)

def compute(mark):
    open(mark, "w").close()
    until = time.monotonic() + {SOON}
    while time.monotonic() < until:
        sum(range(10_000))

async def wait(mark):
    open(mark, "w").close()
    await asyncio.sleep({SOON})

TASKS = sleep, compute, wait
"""

SCRIPT = (
    TASKS
    + """
import os, sys, treadle

if __name__ == "__main__":
    marks = [f"{sys.argv[1]}/{function.__name__}" for function in TASKS]
    client = treadle.Client(processes=False, workers=1, threads_per_worker=len(TASKS))
    futures = [client.submit(*task) for task in zip(TASKS, marks)]
    while not all(map(os.path.exists, marks)):
        time.sleep(0.01)
"""
)


def test_a_script_ends_while_tasks_run_in_its_threads(tmp_path: Path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT, encoding="utf-8")
    command = [sys.executable, str(script), str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=2 * SOON, check=False)
    assert (ran.returncode, "FATAL" in ran.stderr) == (0, False), ran.stderr


def test_a_worker_of_dask_ends_while_tasks_of_ours_run_in_it(tmp_path: Path):
    defined: dict[str, object] = {}
    exec(TASKS, defined)
    functions = defined["TASKS"]
    with Client(n_workers=0, dashboard_address=None, processes=True) as there:
        address = there.scheduler.address
        options = ["--no-nanny", "--no-dashboard", "--nthreads", str(len(functions))]
        command = [sys.executable, "-m", "dask", "worker", address, *options]
        worker = subprocess.Popen([*command, "--local-directory", str(tmp_path)], stderr=-1)
        try:
            there.wait_for_workers(1, timeout=SOON)
            with treadle.attach(there) as here:
                here.wait_for_workers(1, timeout=SOON)
                marks = [tmp_path / function.__name__ for function in functions]
                futures = [
                    here.submit(function, str(mark), pure=False)
                    for function, mark in zip(functions, marks, strict=True)
                ]
                until(lambda: all(mark.exists() for mark in marks), "tasks run")
                worker.terminate()
                _, said = worker.communicate(timeout=SOON)
                here.cancel(futures)
        finally:
            worker.kill()
    assert worker.returncode == 0, said.decode()
