"""What else shuffles in Spark: streams, barrier stages, executors that are decommissioned. And what people see of it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from application_support import LONG, PYTHON, Application, metric, told
from conftest import Place
from process_support import alive
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
    names = [record["name"] for record in shared_place.records(shown["spark.treadle.master"])]
    (execution,) = [one["id"] for one in asked("sql") if one["description"] == "daily sums"]
    (own,) = [name for name in names if name.endswith(f" SQL {execution} daily sums")]
    assert own.startswith("tests/")


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


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
