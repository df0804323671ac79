"""A disk that is full while values are written to it: what fails says so, and nothing is lost."""

from __future__ import annotations

import subprocess

import numpy as np
import pytest

from client_support import AGAINST, SOON, inc
from test_reliability_memory import LIMIT, block, total

pytestmark = [
    pytest.mark.skipif(AGAINST != "treadle", reason="distributed's worker stops for good"),
    pytest.mark.usefixtures("quiet"),
]


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 60 MB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=60m", "treadle-test", str(disk)]
    done = subprocess.run(mount, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"no disk can be made here: {done.stderr}")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


@pytest.mark.timeout(240, method="signal")
def test_a_full_disk_is_named_and_nothing_is_wrong(new_client, small_disk):
    client = new_client(workers=1, memory_limit=LIMIT, local_directory=str(small_disk))
    futures = client.map(block, range(16), retries=0)
    outcomes = {"finished": 0, "error": 0}
    for number, future in enumerate(futures):
        error = future.exception(timeout=180)
        outcomes[future.status] += 1
        if error is None:
            assert np.array_equal(future.result(timeout=SOON)[[0, -1]], [number, number])
        else:
            assert isinstance(error, MemoryError)
            assert "disk is full" in str(error)
    assert outcomes["finished"] >= 6, outcomes  # memory and disk hold that many
    assert outcomes["error"] >= 1, outcomes  # and cannot hold all
    del future, error
    client.cancel(futures)
    futures = None
    # With the values gone it goes on as before.
    assert client.submit(inc, 1).result(timeout=SOON) == 2
    sums = client.map(total, client.map(block, range(100, 103)))
    assert client.gather(sums) == [5e6 * number for number in range(100, 103)]
