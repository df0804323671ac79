"""Workers that leave after a time: `treadle worker --lifetime`, and `distributed.worker.lifetime`."""

from __future__ import annotations

import os
import time

import dask
import pytest

import treadle
from client_support import AGAINST, SOON
from process_support import until
from treadle.common._lifetime import lifetime_of

pytestmark = [
    pytest.mark.skipif(AGAINST != "treadle", reason="of Treadle's commands"),
    pytest.mark.timeout(4 * SOON, method="signal"),
]


def test_a_worker_leaves_and_its_values_stay(start, secret):
    scheduler = start("scheduler", "--port", "0")
    start("worker", scheduler.address, "--name", "stays")
    with treadle.Client(scheduler.address, secret=secret, set_as_default=False) as client:
        client.wait_for_workers(1, timeout=SOON)
        leaves = start("worker", scheduler.address, "--name", "leaves", "--lifetime", "8 s")
        client.wait_for_workers(2, timeout=SOON)
        value = client.submit(os.urandom, 100_000, workers=["leaves"], allow_other_workers=True)
        before = value.result(timeout=SOON)
        # It leaves for good: nothing replaces it.
        assert leaves.wait() == 0
        assert [worker["name"] for worker in client.scheduler_info()["workers"].values()] == [
            "stays"
        ]
        assert value.result(timeout=SOON) == before, "it was computed again"


def test_another_process_comes_where_that_is_wanted():
    lifetime = {"duration": "4s", "stagger": "1s", "restart": True}
    with (
        dask.config.set({"distributed.worker.lifetime": lifetime}),
        treadle.LocalCluster(n_workers=2, threads_per_worker=1) as cluster,
        treadle.Client(cluster, set_as_default=False) as client,
    ):
        before = set(client.run(os.getpid).values())
        [scattered] = client.scatter([b"x" * 100_000], broadcast=True)
        found = set(before)

        def are_replaced():
            found.update(
                client.submit(os.getpid, pure=False).result(timeout=SOON) for _ in range(4)
            )
            found.update(client.run(os.getpid, on_error="ignore").values())
            return len(found) >= 4

        until(are_replaced)
        until(lambda: len(client.scheduler_info()["workers"]) == 2)
        assert scattered.result(timeout=SOON) == b"x" * 100_000


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--lifetime", "soon"], "--lifetime is 'soon'"),
        (["--lifetime", "nan"], "--lifetime is 'nan'"),
        (["--lifetime", ""], "--lifetime is ''"),
        (["--lifetime", "1e400 s"], "--lifetime is '1e400 s'"),
        (["--lifetime", "0"], "a lifetime of 0 s"),
        (["--lifetime", "1h", "--lifetime-stagger", "-1s"], "--lifetime-stagger is '-1s'"),
        (["--lifetime", "1h", "--lifetime-stagger", "2h"], "give or take 7200 s"),
    ],
)
def test_what_is_no_lifetime_is_refused(start, options, reason):
    # There is no such scheduler: nobody looks for it.
    refused = start("worker", "127.0.0.1:1", *options)
    assert refused.wait() == 2
    assert reason in refused.output
    assert "Traceback" not in refused.output


def test_workers_do_not_all_leave_at_once():
    ends = {lifetime_of("1h", "10 minutes", None)._until for _ in range(20)}
    left = [end - time.monotonic() for end in ends]
    assert len(left) == 20
    assert all(49 * 60 < seconds <= 70 * 60 for seconds in left)
    assert lifetime_of(None, "1h", True) is None
