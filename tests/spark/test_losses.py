"""Parts of a cluster that end while an application goes on, and an application that ends itself."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from application_support import LONG, Application, begun, told
from cluster_support import WORKERS, Cluster
from conftest import Place
from waiting import until

MAPS, PARTITIONS, WIDTH = 8, 4, 500
DYNAMIC = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.minExecutors": "0",
    "spark.dynamicAllocation.initialExecutors": "2",
    "spark.dynamicAllocation.executorIdleTimeout": "1s",
}


def test_idle_executors_are_released_and_nothing_runs_again(
    new_place: Callable[[], Place], gates: Path
) -> None:
    place = new_place()
    place.serve("a", "b")
    application = place.application(DYNAMIC)
    # It asks the driver while no job runs.
    application.executors()
    job = application.begin("kept", str(gates), MAPS, PARTITIONS)
    until((gates / "between-begun").exists, application.said, LONG)
    until(lambda: not application.executors(), application.said, LONG)
    (gates / "between").touch()
    # Others have come.
    assert application.answer(job) == [1_000 * MAPS, True]
    assert told(gates, "map") == dict.fromkeys(range(MAPS), 1)
    application.stop()


@pytest.mark.parametrize("stock", [False, True], ids=["treadle", "stock"])
def test_a_worker_that_is_killed_takes_no_finished_map_with_it(
    new_place: Callable[[], Place], cluster: Cluster, gates: Path, stock: bool
) -> None:
    place = new_place()
    place.serve("a", "b")
    settings = {"spark.executor.memory": "600m", "spark.locality.wait": "0s"}
    application = place.application(settings, master=cluster.address, stock=stock)
    # Both workers have an executor before there is something to do.
    until(lambda: len(application.executors()) == len(WORKERS), application.said, LONG)
    job = application.begin("kept", str(gates), MAPS, PARTITIONS)
    until((gates / "between-begun").exists, application.said, LONG)
    cluster.kill(WORKERS[0])
    # The driver drops what it takes to be lost with the executor, and with the host.
    until(lambda: "Lost executor" in application.log.read_text(), application.said, LONG)
    until(lambda: "Telling app of lost worker" in cluster.said(), cluster.said, LONG)
    (gates / "between").touch()
    assert application.answer(job) == [1_000 * MAPS, True]
    counts = told(gates, "map")
    assert set(counts) == set(range(MAPS))
    # Stock's runs those again that were there.
    assert (counts.total() > MAPS) == stock
    application.stop()


def test_rows_of_a_killed_driver_are_dropped_by_all_servers(
    new_place: Callable[[], Place], gates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TREADLE_TESTING_SHUFFLE_ROWS", "250000")
    place = new_place()
    servers = place.serve("a", "b")

    def files(name: str) -> int:
        """Bytes of rows that a server has in files."""
        found = servers.directory(name).rglob("*.shuffle")
        return sum(file.stat().st_size for file in found)

    application = place.application()
    application.begin("kept", str(gates), MAPS, PARTITIONS, WIDTH)
    until((gates / "between-begun").exists, application.said, LONG)
    half = 1_000 * MAPS * WIDTH // 2
    until(lambda: all(files(name) > half for name in servers.processes), application.said)
    os.killpg(application.process.pid, signal.SIGKILL)
    until(
        lambda: not any(map(files, servers.processes)), lambda: str(servers.service.state()), LONG
    )
    # The servers serve others.
    other = place.application()
    assert other.run("reduced")


@pytest.mark.parametrize("differ", [False, True], ids=["equal rows", "other rows"])
def test_a_late_run_of_an_older_attempt_of_the_stage_changes_nothing_that_is_read(
    new_place: Callable[[], Place], gates: Path, differ: bool
) -> None:
    place = new_place()
    servers = place.serve("a", "b")
    application = place.application()
    job = application.begin("replaced", str(gates), PARTITIONS, differ)
    # The second stage's first two tasks run: they have read what they need.
    begun(gates, application, "second", 2)
    for name in ("a", "b"):
        servers.kill(name)
    for name in ("c", "d"):
        servers.begin(name)
    servers.ready()
    # The next one finds that its rows are gone. So there is a second attempt of the stage, which runs task 0 again.
    (gates / "go-1").touch()
    begun(gates, application, "reader", 2)
    assert told(gates, "second")[0] == 2
    # The first run of task 0 ends after a reader has read. With equal rows, Spark counts it from now on.
    (gates / "go-0").touch()

    def ended() -> bool:
        refused = "ServiceException$LateAttempt" in application.log.read_text()
        return refused if differ else (gates / "replaced").exists()

    until(ended, application.said, LONG)
    (gates / "readers").touch()
    is_whole, runs = application.answer(job)
    assert is_whole
    # All readers, and those of a later job, have read one run, which is not the late one.
    assert runs == [int(differ)]
    application.stop()


def test_a_server_whose_disk_is_full_is_passed_over(
    new_place: Callable[[], Place], gates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TREADLE_TESTING_SHUFFLE_ROWS", "250000")
    place = new_place()
    servers = place.serve("a", "b")
    # With this factor it gets more than half of the partitions.
    full = servers.begin("full", "--disk-limit", "1kB", "--weight", "100000")
    servers.ready()
    application: Application = place.application()
    job = application.begin("kept", str(gates), MAPS, PARTITIONS, WIDTH)
    until((gates / "between-begun").exists, application.said, LONG)
    until(lambda: "cannot write rows of a shuffle" in full.output, lambda: full.output)
    (gates / "between").touch()
    assert application.answer(job) == [1_000 * MAPS, True]
    assert told(gates, "map") == dict.fromkeys(range(MAPS), 1)
    application.stop()
