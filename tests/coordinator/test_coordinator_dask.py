"""Clients of Dask ask a coordinator at their start, and report their end: all of it real, in this process."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import distributed
import numpy as np
import pandas as pd
import pytest
import uvicorn

import treadle
from treadle.coordinator import _store
from treadle.coordinator._access import Access
from treadle.coordinator._app import app_of
from treadle.coordinator._dask_run import DaskRun
from treadle.coordinator._rules import Rule
from treadle.coordinator._service import Coordinator
from treadle.shuffle import Service
from waiting import until


class Serving:
    """A coordinator that jobs of this process ask."""

    def __init__(self, folder: Path) -> None:
        self.coordinator = Coordinator(f"sqlite:///{folder}/c.db")
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        app = app_of(self.coordinator, Access(None))
        self._server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._listener]}
        )
        self._thread.start()

    def rows(self) -> list[dict[str, Any]]:
        return self.coordinator.database.read(_store.jobs_page)

    def body(self, identity: str) -> Any:
        return self.coordinator.database.read(lambda c: _store.measures_of(c, identity))

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join(60)
        self._listener.close()
        self.coordinator.close()


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Serving]:
    one = Serving(tmp_path)
    with dask.config.set({"treadle.coordinator.url": one.url}):
        yield one
    one.close()


def shuffled() -> int:
    frame = dd.from_pandas(pd.DataFrame({"k": np.arange(20_000) % 97, "v": 1.0}), npartitions=6)
    with dask.config.set({"dataframe.shuffle.method": "p2p"}):
        return int(frame.shuffle("k", npartitions=5).map_partitions(len).sum().compute())


def test_a_client_asks_at_its_start_and_reports_its_end(serving: Serving) -> None:
    with treadle.Client(workers=2, threads_per_worker=1):
        assert shuffled() == 20_000
    (row,) = serving.rows()
    assert (row["engine"], row["verdict"], row["state"]) == ("dask", "stock", "finished")
    assert row["duration"] > 0
    assert row["shuffle_bytes"] > 20_000 * 8
    run = DaskRun.of(serving.body(row["id"])["application"]["dask"])
    assert (run.workers, run.threads) == (2, 1)
    assert run.tasks > 10
    assert [one.partitions for one in run.shuffles] == [5]
    waited = sum(one.push_seconds + one.compare_seconds + one.read_seconds for one in run.shuffles)
    assert waited == pytest.approx(row["blocked"])
    assert waited > 0
    assert run.busy_seconds > 0
    # So that the next run has a history.
    history, _ = serving.coordinator.database.read(
        lambda c: _store.recurring_of(c, row["recurring"])
    )
    assert [one.shuffle_bytes for one in history.runs] == [row["shuffle_bytes"]]


def test_a_job_on_the_service_says_so(serving: Serving) -> None:
    with Service(servers=2) as service:
        rule = Rule("dask", settings={"treadle.shuffle.servers": service.address})
        serving.coordinator.keep_rule(rule, "olga")
        with treadle.Client(workers=2) as client:
            assert client.shuffle_servers == service.address
            assert shuffled() == 20_000
    (row,) = serving.rows()
    assert (row["verdict"], row["fallbacks"], row["lost_servers"]) == ("service", 0, 0)
    assert row["shuffle_bytes"] > 20_000 * 8


def test_an_error_that_ends_the_block_is_a_failure(serving: Serving) -> None:
    with pytest.raises(ZeroDivisionError), treadle.Client(workers=1) as client:
        client.submit(lambda: 1 / 0).result()
    (row,) = serving.rows()
    assert (row["state"], row["cause"]) == ("failed", "job")


def test_a_cluster_of_dask_that_is_attached_is_a_job(serving: Serving) -> None:
    with (
        distributed.LocalCluster(n_workers=1, threads_per_worker=2, dashboard_address=":0") as cluster,
        distributed.Client(cluster) as dask_client,
        treadle.attach(dask_client) as client,
    ):  # fmt: skip
        assert client.submit(sum, [1, 2]).result() == 3
    (row,) = serving.rows()
    assert row["state"] == "finished"
    run = DaskRun.of(serving.body(row["id"])["application"]["dask"])
    assert (run.workers, run.threads) == (1, 2)


def test_without_a_coordinator_there_is_a_line_and_no_report(caplog) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    with (
        caplog.at_level(logging.INFO, "treadle.coordinator"),
        dask.config.set({"treadle.coordinator.url": url}),
        treadle.Client(workers=1) as client,
    ):
        assert client.submit(sum, [1, 2]).result() == 3
        assert client.shuffle_servers is None
    lines = [one.getMessage() for one in caplog.records if one.name == "treadle.coordinator"]
    assert len(lines) == 1
    assert "did not decide" in lines[0]


@pytest.mark.parametrize(
    "run",
    [
        [],
        {"workers": -1},
        {"workers": "2"},
        {"unknown": 1},
        {"groups": [{"name": "x"}]},
        {"groups": [1]},
        {"groups": [{}] * 101},
        {"shuffles": {"kind": "shuffle"}},
        {"seconds": float("nan")},
        {"workers": True},
    ],
)
def test_a_malformed_run_is_refused(run) -> None:
    with pytest.raises(ValueError, match=r"run|groups|shuffles"):
        DaskRun.of(run)


def held_back(part: pd.DataFrame, until_is: Path) -> pd.DataFrame:
    until(until_is.exists)
    return part


def test_a_worker_that_is_lost_is_counted(serving: Serving, tmp_path: Path) -> None:
    go_on = tmp_path / "go-on"
    with treadle.Client(n_workers=3, threads_per_worker=1) as client:
        frame = dd.from_pandas(pd.DataFrame({"k": np.arange(9000), "v": 1.0}), npartitions=12)
        with dask.config.set({"dataframe.shuffle.method": "p2p"}):
            held = client.persist(
                frame.shuffle("k", npartitions=12).map_partitions(
                    held_back, go_on, meta=frame._meta
                )
            )
        until(lambda: any(one.phase == "read" for one in client.shuffles()), "rows are read")
        os.kill(next(iter(client.scheduler_info()["workers"].values()))["pid"], signal.SIGKILL)
        go_on.touch()
        assert len(held.compute()) == 9000
    (row,) = serving.rows()
    run = DaskRun.of(serving.body(row["id"])["application"]["dask"])
    assert run.lost_workers == 1
