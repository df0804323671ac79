"""Shuffles that fail or are cancelled, on full disks and with certificates: nothing is left, no row is wrong."""

from __future__ import annotations

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from dask.dataframe.shuffle import partitioning_index
from distributed.shuffle._exceptions import P2POutOfDiskError
from pandas.testing import assert_frame_equal

from client_support import AGAINST, SOON
from shuffle_support import table
from test_reliability_disk import small_disk  # noqa: F401  a fixture
from test_reliability_shuffle import (
    INPUTS,
    Shuffle,
    check_nothing_is_left,
    client,  # noqa: F401  a fixture
    left,
    transferred,
)
from test_reliability_tls import certs, tls  # noqa: F401  fixtures
from waiting import until

pytestmark = [
    pytest.mark.skipif(AGAINST != "treadle", reason="what is left is Treadle's"),
    pytest.mark.usefixtures("quiet"),
    pytest.mark.timeout(6 * SOON, method="signal"),
]


@pytest.fixture(autouse=True)
def p2p():
    with dask.config.set({"dataframe.shuffle.method": "p2p"}):
        yield


class fails_for:
    """Inputs of which one raises."""

    def __init__(self, parts, number):
        self.parts, self.number = parts, number

    def __call__(self, number):
        if number == self.number:
            self.parts(number)
            raise ZeroDivisionError("the user's own")
        return self.parts(number)


class without_a_column:
    """Inputs of which one lacks a column of the meta, so that its transfer raises."""

    def __init__(self, parts, number):
        self.parts, self.number = parts, number

    def __call__(self, number):
        part = self.parts(number)
        return part.drop(columns="text") if number == self.number else part


@pytest.mark.parametrize(
    ("wrong", "error", "text"),
    [
        (fails_for, ZeroDivisionError, "the user's own"),
        (without_a_column, RuntimeError, "failed during transfer phase"),
    ],
)
def test_one_input_fails_after_the_others_were_pushed(client, gates, wrong, error, text):  # noqa: F811
    gate = gates()
    last = INPUTS - 1
    shuffle = Shuffle(client, table(), gates={last: gate}, change=lambda parts: wrong(parts, last))
    until(lambda: gate.arrived() and transferred(client) >= last, "all but one have ended")
    gate.open()
    with pytest.raises(error, match=text):
        client.gather(shuffle.futures)
    del shuffle
    check_nothing_is_left(client)
    Shuffle(client, table(1)).check()


def test_a_shuffle_is_cancelled(client, gates):  # noqa: F811
    gate = gates()
    shuffle = Shuffle(client, table(), gates={INPUTS - 1: gate})
    until(lambda: gate.arrived() and transferred(client) >= INPUTS - 1, "all but one have ended")
    assert sum(client.run(resident).values()) > 0
    client.cancel(shuffle.futures)
    check_nothing_is_left(client)
    assert set(client.run(resident).values()) == {0}
    assert client.shuffles().running == []
    gate.open()
    del shuffle
    Shuffle(client, table(1)).check()


def resident(dask_worker):
    stats = dask_worker._native.shuffle_stats()
    return stats["resident"] + stats["gathered"] + stats["in_flight"]


def numbers(number):
    return pd.DataFrame(
        np.full((500_000, 15), number), columns=[f"c{i}" for i in range(15)]
    ).assign(key=np.arange(500_000))


@pytest.mark.timeout(240, method="signal")
def test_a_full_disk_is_named(new_client, small_disk):  # noqa: F811
    # 960 MB of rows; memory and disk have room for less than half of them.
    client = new_client(  # noqa: F811
        workers=1, threads_per_worker=1, memory_limit=500_000_000, local_directory=str(small_disk)
    )
    made = dd.from_map(numbers, range(15), meta=numbers(0).iloc[:0])
    shuffled = made.shuffle("key", npartitions=15).map_partitions(len)
    with pytest.raises(P2POutOfDiskError, match=str(small_disk)) as caught:
        client.compute(shuffled).result(timeout=180)
    assert "at worker" in str(caught.value)
    del caught, shuffled
    check_nothing_is_left(client)
    until(lambda: not list(small_disk.rglob("*shuffle*")), "no file is left")
    Shuffle(client, table()).check()


def check_shuffle(client, workers):  # noqa: F811
    frame = table(n=60_000)
    made = dd.from_pandas(frame, 8, sort=False).shuffle("key", npartitions=6)
    found = client.gather(client.compute(made.to_delayed()))
    parts = partitioning_index(frame[["key"]].astype("f8"), 6)
    for number, output in enumerate(found):
        assert_frame_equal(output, frame[parts == number])
    pushed = client.run(lambda dask_worker: dask_worker._native.shuffle_stats()["pushed"])
    assert len(pushed) == workers
    assert all(pushed.values())


def test_workers_with_certificates(tls, start, join):  # noqa: F811
    scheduler, prefix, paths = tls
    for name in ("a", "b"):
        start("worker", scheduler.address, "--tls", prefix, "--name", name, "--nthreads", "1")
    client = join(scheduler, certificates=paths)  # noqa: F811
    client.wait_for_workers(2, timeout=SOON)
    check_shuffle(client, 2)
    until(lambda: not any(client.run(left).values()), "nothing is left")
