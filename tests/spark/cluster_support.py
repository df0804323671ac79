"""A stand-alone cluster of Spark: its own master and workers, as processes of a test."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

from application_support import LONG, PYTHON
from waiting import until

WORKERS = ("127.0.0.2", "127.0.0.3")


def daemon(
    log: Path, host: str, program: str, *options: str, **environment: str
) -> subprocess.Popen[bytes]:
    """A process of Spark itself: a class of ``org.apache.spark.deploy``."""
    site = next(Path(PYTHON).parents[1].glob("lib/python3*/site-packages/pyspark"))
    own = {"SPARK_HOME": str(site), "SPARK_LOCAL_IP": host, "SPARK_NO_DAEMONIZE": "1"}
    with log.open("w") as into:
        return subprocess.Popen(
            [site / "bin" / "spark-class", f"org.apache.spark.deploy.{program}", *options],
            env={**os.environ, **own, **environment},
            stdout=into,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


class Cluster:
    """A stand-alone master of Spark, and a worker on each of two hosts."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.start("master", "127.0.0.1", "master.Master", "--host", "127.0.0.1", "--port", "0")
        self.address = until(self.listens, self.said, LONG)
        for host in WORKERS:
            self.begin(host)

    def begin(self, host: str) -> None:
        """Start a worker."""
        options = ("--cores", "1", "--memory", "1g", "--work-dir", str(self.directory / host))
        self.start(host, host, "worker.Worker", "--host", host, *options, self.address)

    def kill(self, host: str) -> None:
        """End a worker and its executors by force."""
        process = self.processes.pop(host)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(LONG)

    def start(self, name: str, host: str, program: str, *options: str) -> None:
        log = self.directory / f"{name}.log"
        self.processes[name] = daemon(log, host, program, "--webui-port", "0", *options)

    def said(self) -> str:
        return (self.directory / "master.log").read_text()

    def listens(self) -> str:
        lines = [line for line in self.said().splitlines() if "Starting Spark master at" in line]
        return lines[0].rpartition(" ")[2] if lines else ""

    def end(self) -> None:
        for process in self.processes.values():
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(LONG)
