"""Shuffles between workers that cannot share memory, as on different hosts."""

from __future__ import annotations

import socket
import subprocess
import sys

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from dask.dataframe.shuffle import partitioning_index
from numpy.testing import assert_array_equal
from pandas.testing import assert_frame_equal

from client_support import AGAINST, SOON
from namespaces_support import other_host
from treadle import Client
from waiting import until

pytestmark = [
    pytest.mark.skipif(AGAINST != "treadle", reason="about Treadle's processes"),
    pytest.mark.timeout(2 * SOON, method="signal"),
]


@pytest.fixture(name="other_host")
def other_host_fixture(tmp_path):
    host = other_host(tmp_path)
    try:
        subprocess.run([sys.executable, "-c", ""], preexec_fn=host, check=True)
    except subprocess.SubprocessError:
        pytest.skip("this user may not have mounts of its own")
    return host


@pytest.fixture
def interface():
    """An address of this machine that is not its loopback interface's, which hosts do not share."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        try:
            # No packet is sent.
            one.connect(("198.51.100.1", 9))
        except OSError:
            pytest.skip("this machine has no network")
        return one.getsockname()[0]


@pytest.fixture
def client(start, secret, interface, other_host):
    scheduler = start("scheduler", "--host", interface, "--insecure")
    options = (scheduler.address, "--listen", f"{interface}:0", "--insecure")
    hosts = {"here": None, "there": other_host}
    workers = [
        start("worker", *options, "--name", name, before=host) for name, host in hosts.items()
    ]
    with Client(scheduler.address, secret=secret, insecure=True) as client:
        until(
            lambda: len(client.scheduler_info()["workers"]) == 2,
            lambda: str([worker.output for worker in workers]),
        )
        yield client


def moved(dask_worker):
    stats = dask_worker._native.shuffle_stats()
    return stats["leftovers"], stats["transfers"]


def test_rows_go_through_sockets(client):
    n = 200_000
    random = np.random.default_rng(0)
    frame = pd.DataFrame({"key": random.integers(0, 99, n), "value": random.normal(size=n)})
    frame["text"] = pd.array(frame["key"].astype(str) * 3, dtype="string[pyarrow]")
    with dask.config.set({"dataframe.shuffle.method": "p2p", "array.rechunk.method": "p2p"}):
        lazy = dd.from_pandas(frame, 6, sort=False).shuffle("key", npartitions=5)
        found = client.gather(client.compute(lazy.to_delayed()))
        numbers = partitioning_index(frame[["key"]].astype("f8"), 5)
        for number, output in enumerate(found):
            assert_frame_equal(output, frame[numbers == number])
        whole = random.normal(size=(1200, 800))
        array = da.from_array(whole, chunks=(100, 800)).rechunk((1200, 80))
        assert_array_equal(array.compute(), whole)
    # Both workers had a part in it, and nothing is left.
    until(lambda: not any(left for left, _ in client.run(moved).values()), "nothing is left")
    assert all(transfers for _, transfers in client.run(moved).values())
