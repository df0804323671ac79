"""What else shuffles in Spark: streams, barrier stages, executors that are decommissioned. And what people see of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from application_support import LONG, PYTHON, Application, metric, told
from conftest import Place
from ports import free_port
from process_support import alive
from tab_support import check_tab
from waiting import until

MAPS, PARTITIONS = 6, 4
SETTINGS = {
    "spark.ui.enabled": "true",
    "spark.ui.port": "0",
    "spark.decommission.enabled": "true",
    "spark.storage.decommission.enabled": "true",
    "spark.storage.decommission.shuffleBlocks.enabled": "true",
}


@pytest.fixture(scope="module")
def application(shared_place: Place) -> Iterator[Application]:
    application = shared_place.application(SETTINGS)
    yield application
    application.end()


def test_micro_batches_of_a_stream_are_grouped(application: Application, tmp_path: Path) -> None:
    assert application.run("streamed", str(tmp_path)) == [4, True]


def test_a_barrier_stage_reads_and_writes_shuffles(application: Application) -> None:
    assert application.run("barred")


def test_an_executor_that_is_decommissioned_takes_nothing_with_it(
    application: Application, gates: Path
) -> None:
    pid = application.executors()[0]
    job = application.begin("kept", str(gates), MAPS, PARTITIONS)
    until((gates / "between-begun").exists, application.said, LONG)
    os.kill(pid, signal.SIGPWR)
    until(lambda: not alive(pid), application.said, LONG)
    (gates / "between").touch()
    assert application.answer(job) == [1_000 * MAPS, True]
    assert told(gates, "map") == dict.fromkeys(range(MAPS), 1)


def test_a_shuffle_is_found_by_what_spark_calls_it(
    shared_place: Place, application: Application
) -> None:
    interface = application.run("described", "daily sums")

    def asked(what: str) -> Any:
        with urllib.request.urlopen(f"{interface}/{what}", timeout=LONG) as answer:
            return json.loads(answer.read())

    # What Spark's page Environment shows.
    shown = dict(asked("environment")["sparkProperties"])
    (execution,) = [one["id"] for one in asked("sql") if one["description"] == "daily sums"]

    def record() -> dict[str, Any]:
        records = shared_place.records(shown["spark.treadle.master"])
        name = f" SQL {execution} daily sums"
        (own,) = [record for record in records if record["name"].endswith(name)]
        return own

    assert record()["name"].startswith("tests/")
    # Spark tells its listeners of stages some time after they have begun.
    until(lambda: record()["stages"], lambda: str(record()), LONG)

    def written() -> Any:
        """The job of the query that runs its maps: the other one skips them."""
        jobs = [one for one in asked("jobs") if one["description"] == "daily sums"]
        done = [
            one for one in jobs if (one["numCompletedStages"], one["numSkippedStages"]) == (1, 0)
        ]
        return done[0] if len(done) == 1 else None

    job = until(written, lambda: str(asked("jobs")), LONG)
    assert record()["stages"] in map(str, job["stageIds"])


def page(application: Application, interface: str, name: str) -> str:
    base = interface.partition("/api/")[0]
    with urllib.request.urlopen(f"{base}/{name}/", timeout=LONG) as answer:
        text: str = answer.read().decode()
    return text


def test_a_tab_of_spark_shows_the_shuffles(shared_place: Place, application: Application) -> None:
    told = "sums <script>alert(1)</script> & 'more'\""
    interface = application.run("described", told)
    master = application.run("setting", "spark.treadle.master")
    assert 'href="/treadle' in page(application, interface, "jobs")

    def record() -> dict[str, Any]:
        return shared_place.records(master)[-1]

    until(lambda: record()["stages"], lambda: str(record()), LONG)
    shown = page(application, interface, "treadle")
    assert "<script>alert" not in shown
    assert f"treadle shuffle list --service {master}" in shown
    assert check_tab(shown, record())["Shuffle"].endswith(told)
    assert "0 shuffles in files of executors" in shown


def test_the_tab_says_why_a_shuffle_is_not_at_the_service(shared_place: Place) -> None:
    nowhere = {"spark.treadle.servers": "127.0.0.1:1", "spark.treadle.connectTimeout": "1s"}
    settings = {**SETTINGS, **nowhere, "spark.treadle.decision": "a b"}
    settings["spark.treadle.coordinator"] = "http://127.0.0.1:1/"
    application = shared_place.application(settings, master="local[2]")
    shown = page(application, application.run("described", "daily sums"), "treadle")
    assert "0 shuffles in files" not in shown
    assert "127.0.0.1:1" in shown
    assert "No shuffle is at the service yet" in shown
    assert 'href="http://127.0.0.1:1/jobs/a%20b"' in shown


# Spark 3.5 has no server of it among PyPI's jars.
@pytest.mark.skipif("-3.5." in PYTHON, reason="pyspark 3.5 is without the server of Spark Connect")
def test_queries_of_spark_connect(shared_place: Place) -> None:
    port = free_port()
    settings = {
        "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
    }
    application = shared_place.application(settings)
    assert application.run("setting", "spark.shuffle.sort.io.plugin.class")
    client = subprocess.run(
        [PYTHON, str(Path(__file__).with_name("connect_client.py")), f"sc://127.0.0.1:{port}"],
        capture_output=True,
        text=True,
        timeout=2 * LONG,
        check=False,
    )
    assert client.stdout.strip() == "right", client.stderr
    written = metric(application.stop(), "Shuffle Write Metrics", "Shuffle Records Written")
    assert written > 100_000
