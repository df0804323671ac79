"""Both attempts of a map write all of its rows, and each row is read once. Spark starts the second one on another host."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from application_support import LONG, PYTHON, tasks
from conftest import Place
from waiting import until

WORKERS = ("127.0.0.2", "127.0.0.3")


class Cluster:
    """A stand-alone master of Spark, and a worker on each of two hosts."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.start("master", "127.0.0.1", "master.Master", "--host", "127.0.0.1", "--port", "0")
        self.address = until(self.listens, self.said, LONG)
        for host in WORKERS:
            options = ("--cores", "1", "--memory", "1g", "--work-dir", str(directory / host))
            self.start(host, host, "worker.Worker", "--host", host, *options, self.address)

    def start(self, name: str, host: str, program: str, *options: str) -> None:
        site = next(Path(PYTHON).parents[1].glob("lib/python3*/site-packages/pyspark"))
        environment = {"SPARK_HOME": str(site), "SPARK_LOCAL_IP": host, "SPARK_NO_DAEMONIZE": "1"}
        with (self.directory / f"{name}.log").open("w") as log:
            self.processes[name] = subprocess.Popen(
                [
                    site / "bin" / "spark-class",
                    f"org.apache.spark.deploy.{program}",
                    "--webui-port",
                    "0",
                    *options,
                ],
                env={**os.environ, **environment},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def said(self) -> str:
        return (self.directory / "master.log").read_text()

    def listens(self) -> str:
        lines = [line for line in self.said().splitlines() if "Starting Spark master at" in line]
        return lines[0].rpartition(" ")[2] if lines else ""

    def end(self) -> None:
        for process in self.processes.values():
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(LONG)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path)
    yield cluster
    cluster.end()


def test_both_attempts_of_a_map_end(
    new_place: Callable[[], Place], cluster: Cluster, tmp_path: Path
) -> None:
    place = new_place()
    place.serve("a", "b")
    settings = {
        "spark.speculation": "true",
        "spark.speculation.interval": "50ms",
        "spark.speculation.multiplier": "1.1",
        "spark.speculation.quantile": "0.4",
        "spark.speculation.minTaskRuntime": "0",
        "spark.locality.wait": "0s",
        "spark.executor.memory": "600m",
    }
    application = place.application(settings, master=cluster.address)
    gates = tmp_path / "gates"
    gates.mkdir()
    job = application.begin("slow", str(gates), 4)
    until(lambda: len(list(gates.glob("attempt-0-*"))) == 2, application.said, LONG)
    # The first attempt goes on as the second one ends.
    (gates / "slow").touch()
    assert application.answer(job)
    # Rows of the attempt that comes later have no effect, neither before the commit nor after it.
    assert application.run("reduced")
    counted = tasks(application.stop(), "ShuffleMapTask")
    assert len(counted) >= 4
