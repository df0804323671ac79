"""What is wrong in real runs, as the overview names it: causes that do not depend on how fast a machine is.

``bench/sight/faults.py`` plants the others, too, and looks at more runs without a fault.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from pathlib import Path

import dask
import dask.dataframe as dd
import distributed
import numpy as np
import pandas as pd
import pytest

import treadle
from client_support import AGAINST, inc
from test_sight import get, group, observed, ran, rule_of, slow, two
from treadle import _core
from waiting import until

pytestmark = pytest.mark.skipif(AGAINST != "treadle", reason="the pages are Treadle's")


@contextmanager
def processes(workers, threads, **options):
    """A cluster of processes, a client of it, and its link."""
    with (
        treadle.LocalCluster(workers, threads_per_worker=threads, **options) as cluster,
        treadle.Client(cluster) as client,
    ):
        client.wait_for_workers(workers)
        # What tasks need is imported before they are measured.
        client.gather(client.map(slow, range(4 * workers * threads), pure=False))
        yield client, client.dashboard_link


def verdict(link, rule):
    """Wait until a rule speaks; what it says, which the terminal says as well."""
    found = until(lambda: rule_of(link, rule), f"{rule} speaks")
    assert f"[{rule}]" in observed(link)
    assert 0 < found["first"] <= found["last"]
    return found


def fails_once(folder, number):
    path = Path(folder, str(number))
    if not path.exists():
        path.touch()
        raise OSError("the disk was not there for once")
    return number


def by_worker(slow_one, number):
    time.sleep(0.4 if str(distributed.get_worker().name) == slow_one else 0.02)
    return number


def part(number):
    """Rows of which nine of ten have one key."""
    rows = 800_000
    keys = np.where(np.arange(rows) % 10 == 0, np.arange(rows) % 97, 5)
    return pd.DataFrame({"key": keys, "value": np.random.default_rng(number).random(rows)})


def shuffled(frame, partitions):
    return frame.shuffle("key", npartitions=partitions, shuffle_method="p2p").map_partitions(len)


def test_runs_that_raised_and_were_done_again(tmp_path):
    with two(False) as (client, link):
        numbers = client.map(fails_once, [str(tmp_path)] * 20, range(20), pure=False, retries=2)
        assert client.gather(numbers) == list(range(20))
        found = verdict(link, "errors")
        ran(link, "fails_once", 40)
        assert group(link, "fails_once")["failed"] == 20
        until(lambda: "20 runs raised" in rule_of(link, "errors")["text"])
        assert found["severity"] == "bad"
        # The task has a value, and what it raised before is known.
        key = get(link, "/sight/errors")["errors"][0]["key"]
        assert get(link, "/sight/task", f"key={key}")["state"] == "memory"


def test_one_worker_that_takes_longer():
    with processes(3, 1) as (client, link):
        worker = next(iter(client.scheduler_info()["workers"].values()))
        name = str(worker["name"])
        client.gather(client.map(by_worker, [name] * 600, range(600), pure=False))
        found = verdict(link, "slow-worker")
        ids = {one["name"]: one["id"] for one in get(link, "/sight/overview")["workers"]}
        assert found["where"]["worker"] == ids[name]
        # Gone, it is slow no more, and was before.
        client.retire_workers(names=[worker["name"]])

        def is_over():
            view = get(link, "/sight/overview")
            now = {one["rule"] for one in view["verdicts"]}
            earlier = {one["rule"] for one in view["earlier"]}
            return "slow-worker" not in now and "slow-worker" in earlier

        until(is_over)
        assert "earlier" in observed(link)


def test_many_short_tasks():
    with processes(2, 1) as (client, link):
        client.gather(client.map(inc, range(12_000), pure=False))
        assert "inc" in verdict(link, "short-tasks")["text"]


def test_one_partition_that_is_far_larger():
    with processes(2, 2) as (client, link):
        frame = dd.from_map(part, range(8))
        client.gather(client.compute(shuffled(frame, 16)))
        found = verdict(link, "skewed-shuffle")
        (row,) = get(link, "/sight/overview")["shuffles"]
        assert found["where"]["shuffle"] == row["name"]


def test_a_short_shuffle_has_its_end_and_its_sizes(tmp_path):
    path = tmp_path / "history"
    with two(True, history=path) as (client, link):
        frame = pd.DataFrame({"key": np.arange(5_000) % 97, "value": np.arange(5_000)})
        lengths = shuffled(dd.from_pandas(frame, npartitions=4), 8)
        assert sum(client.gather(client.compute(lengths))) == 5_000

        def ended():
            found = get(link, "/sight/overview")["shuffles"]
            return found if found and found[0]["state"] == "finished" else None

        (row,) = until(ended, "the shuffle has ended")
        assert (row["inputs"], row["transferred"], row["partitions"]) == (4, 4, 8)
        assert len(row["bars"]) == 8
        assert max(row["bars"]) == row["largest"] > 0
        assert sum(row["bars"]) == row["bytes"]
        assert dict(row["quantiles"])[0] == min(row["bars"])
        text = observed(link, "shuffles")
        assert "finished" in text
        assert "4/4" in text
    shown = _core.History(path)
    try:
        assert get(shown.http, "/sight/overview")["shuffles"] == [row]
    finally:
        shown.close()


def test_nothing_is_said_of_a_run_without_a_fault():
    with two(True) as (client, link):
        client.gather(client.map(slow, range(40), pure=False))
        ran(link, "slow", 40)
        view = get(link, "/sight/overview")
        # Of a machine that is slow, others may speak.
        told = {one["rule"] for one in view["verdicts"] + view["earlier"]}
        assert not told & {"errors", "lost-workers", "spilling", "short-tasks", "skewed-shuffle"}


def test_how_much_is_kept_is_a_setting(start, tmp_path):
    path = tmp_path / "history"
    settings = {
        "treadle.sight-memory": "2MiB",
        "treadle.history-limit": "128KiB",
        "treadle.worker.sight-memory": "1MiB",
    }
    with dask.config.set(settings), two(False, history=path) as (client, link):
        assert client.submit(inc, 1).result() == 2
        view = get(link, "/sight/overview")
        assert 1 << 20 < view["spans"]["limit"] <= 2 << 20
        assert view["history"]["limit"] == 128 << 10
    for name in settings:
        with (
            dask.config.set({name: "many"}),
            pytest.raises(ValueError, match=rf"{name} is 'many': give bytes"),
        ):
            treadle.LocalCluster(1, threads_per_worker=1, processes=False)
    scheduler = start(
        *("scheduler", "--port", "0", "--history", str(tmp_path / "other")),
        *("--history-limit", "256KiB"),
    )
    assert get(scheduler.link, "/sight/overview")["history"]["limit"] == 256 << 10
