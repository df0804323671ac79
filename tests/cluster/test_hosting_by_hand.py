"""The guide of docs/hosting-guides.md for a cluster that commands have started."""

from __future__ import annotations

import os
import subprocess
import sys

import distributed
import pytest

import treadle
from client_support import AGAINST, SOON
from process_support import until

pytestmark = [
    pytest.mark.skipif(AGAINST != "treadle", reason="it is about both"),
    pytest.mark.timeout(4 * SOON, method="signal"),
]


@pytest.fixture
def dask_command(tmp_path):
    """Starts `dask` with arguments, and ends what it has started."""
    started = []

    def start(*arguments):
        command = [sys.executable, "-m", "dask", *arguments]
        process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL)
        started.append(process)
        return process

    yield start
    for process in reversed(started):
        process.terminate()
        process.wait(SOON)


def test_a_cluster_started_by_hand(dask_command, tmp_path):
    known = str(tmp_path / "scheduler.json")
    dask_command("scheduler", "--port", "0", "--no-dashboard", "--scheduler-file", known)
    dask_command("worker", "--no-dashboard", "--scheduler-file", known, "--nthreads", "1")
    until(lambda: os.path.exists(known), "the scheduler has written its file")
    with distributed.Client(scheduler_file=known, set_as_default=False, timeout=SOON) as there:
        there.wait_for_workers(1, timeout=SOON)
        with treadle.attach(there) as here:
            assert here.submit(os.getpid).result() in there.run(os.getpid).values()
            with treadle.Client(here.scheduler.address, set_as_default=False) as further:
                assert len(further.ncores()) == 1
            dask_command("worker", "--no-dashboard", "--scheduler-file", known, "--nthreads", "1")
            until(lambda: len(here.ncores()) == 2, "another worker of Dask has one of ours")
            assert here.gather(here.map(abs, range(-9, 0))) == list(range(9, 0, -1))
        assert there.submit(sum, [1, 2]).result() == 3
