"""Spark's history server over the logs of applications: it has the tab, and without Treadle's jar the rest of them."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from application_support import JAR, LONG, Application
from cluster_support import daemon
from conftest import Place
from tab_support import check_tab
from waiting import until

TOLD = "sums <script>alert(1)</script> & 'more'\""
NOWHERE = {"spark.treadle.servers": "127.0.0.1:1", "spark.treadle.connectTimeout": "1s"}
MAPS, PARTITIONS = 6, 4


class Logs(NamedTuple):
    """The logs of three applications, with their numbers, and what the service's records say of the last shuffle of two."""

    folder: Path
    ended: str
    ended_record: dict[str, Any]
    killed: str
    killed_record: dict[str, Any]
    stock: str


def log_of(application: Application) -> Path:
    (log,) = application.events.iterdir()
    return log


def number_of(application: Application) -> str:
    return log_of(application).name.removesuffix(".inprogress")


def ended(place: Place) -> tuple[Application, dict[str, Any]]:
    """One that has ended, with a query whose shuffle was written and read."""
    application = place.application({"spark.ui.enabled": "true", "spark.ui.port": "0"})
    application.run("described", TOLD)
    master = application.run("setting", "spark.treadle.master")

    def record() -> dict[str, Any]:
        return place.records(master)[-1]

    until(lambda: record()["stages"], lambda: str(record()), LONG)
    last = record()
    application.stop()
    return application, last


def killed(place: Place, gates: Path) -> tuple[Application, dict[str, Any]]:
    """One that was killed after its log had what the service says."""
    application = place.application()
    application.begin("kept", str(gates), MAPS, PARTITIONS)
    until((gates / "between-begun").exists, application.said, LONG)

    def record() -> dict[str, Any]:
        """What the last whole line says that has one."""
        lines = log_of(application).read_text().splitlines(keepends=True)
        own = [line for line in lines if '.ShuffleRecorded"' in line and line.endswith("\n")]
        last: dict[str, Any] = json.loads(json.loads(own[-1])["record"]) if own else {}
        return last

    until(lambda: record().get("sizes"), application.said, LONG)
    os.killpg(application.process.pid, signal.SIGKILL)
    application.process.wait(LONG)
    return application, record()


@pytest.fixture(scope="module")
def logs(shared_place: Place, tmp_path_factory: pytest.TempPathFactory) -> Logs:
    folder = tmp_path_factory.mktemp("logs")
    whole, whole_record = ended(shared_place)
    cut, cut_record = killed(shared_place, tmp_path_factory.mktemp("gates"))
    stock = shared_place.application(NOWHERE, master="local[2]")
    assert stock.run("reduced")
    stock.stop()
    for application in (whole, cut, stock):
        shutil.copy(log_of(application), folder)
    assert log_of(cut).name.endswith(".inprogress")
    return Logs(
        folder, number_of(whole), whole_record, number_of(cut), cut_record, number_of(stock)
    )


class History:
    """A history server."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self.log = log

    def said(self) -> str:
        return self.log.read_text(errors="replace")[-6000:]

    def address(self) -> str:
        assert self.process.poll() is None, self.said()
        found = re.search(r"started at (http://[^\s\"]+)", self.log.read_text(errors="replace"))
        return found[1] if found else ""

    def page(self, path: str) -> str:
        with urllib.request.urlopen(f"{self.address()}/{path}", timeout=LONG) as answer:
            text: str = answer.read().decode()
        return text

    def applications(self) -> set[str]:
        return {one["id"] for one in json.loads(self.page("api/v1/applications"))}


@contextmanager
def history(logs: Logs, directory: Path, settings: dict[str, str], jar: str) -> Iterator[History]:
    given = {
        "spark.history.fs.logDirectory": logs.folder.as_uri(),
        "spark.history.fs.update.interval": "1s",
        "spark.history.ui.port": "0",
        **settings,
    }
    options = " ".join(f"-D{key}={value}" for key, value in given.items())
    log = directory / "history.log"
    environment = {"SPARK_HISTORY_OPTS": options, "SPARK_DAEMON_CLASSPATH": jar}
    process = daemon(log, "127.0.0.1", "history.HistoryServer", **environment)
    server = History(process, log)
    try:
        until(server.address, server.said, LONG)
        every = {logs.ended, logs.killed, logs.stock}
        until(lambda: server.applications() == every, server.said, LONG)
        yield server
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(LONG)


@pytest.mark.parametrize("store", ["memory", "disk"])
def test_the_history_server_has_the_tab(logs: Logs, tmp_path: Path, store: str) -> None:
    settings = {"disk": {"spark.history.store.path": str(tmp_path / "store")}}.get(store, {})
    with history(logs, tmp_path, settings, JAR) as server:
        assert f'href="/history/{logs.ended}/treadle' in server.page(f"history/{logs.ended}/jobs/")
        shown = server.page(f"history/{logs.ended}/treadle/")
        assert "<script>alert" not in shown
        assert "0 shuffles in files of executors" in shown
        assert check_tab(shown, logs.ended_record)["Shuffle"].endswith(TOLD)
        check_tab(server.page(f"history/{logs.killed}/treadle/"), logs.killed_record)
        shown = server.page(f"history/{logs.stock}/treadle/")
        assert "0 shuffles in files" not in shown
        assert "127.0.0.1:1" in shown
        assert re.search(r"<li>Shuffle \d+: ", shown)


def test_without_the_jar_a_history_server_has_the_rest(logs: Logs, tmp_path: Path) -> None:
    with history(logs, tmp_path, {}, "") as server:
        for number in (logs.ended, logs.killed, logs.stock):
            shown = server.page(f"history/{number}/jobs/")
            assert "Completed Jobs" in shown
            assert "/treadle" not in shown
        # Its log says that it has skipped what it does not know.
        unknown = "io.treadle.spark.service.ShuffleRecorded"
        until(lambda: unknown in server.log.read_text(), server.said, LONG)
