"""YARN runs the driver and the executors, in a cluster of real daemons. It needs network namespaces."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

import yarn as sources
from downloads import jars

from application_support import JAR, LONG, PYTHON
from process_support import Process
from waiting import until
from yarn_support import Yarn, yarn

SITE = next(Path(PYTHON).parents[1].glob("lib/python3*/site-packages/pyspark"))


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Yarn]:
    sources.CACHE.mkdir(parents=True, exist_ok=True)
    hadoop = jars(sources.SOURCES, sources.CACHE / "jars", "-DincludeScope=runtime")
    with yarn(hadoop, tmp_path, 1) as made:
        if made is None:
            pytest.skip("this user may not have network namespaces")
        yield made


class Service:
    """Servers on the node, beside all containers."""

    def __init__(self, cluster: Yarn, secret: Path) -> None:
        self.cluster, self.secret = cluster, secret
        self.master = self.start("shuffle-master", "127.0.0.1:0", "--shuffle-journal", "none")
        self.servers: list[Process] = []
        for name in "ab":
            options = ("--domain", name, "--http", "none", "--listen", "127.0.0.1:0")
            self.servers.append(self.start("shuffle-server", self.master.address, *options))
        assert all(server.address for server in self.servers)

    def start(self, *arguments: str) -> Process:
        return Process(*arguments, secret=self.secret, before=self.cluster.enter(1))

    def kill(self) -> None:
        for server in self.servers:
            server.end()


def submit(cluster: Yarn, service: Service, directory: Path) -> subprocess.Popen[bytes]:
    settings = {
        "spark.yarn.jars": f"local:{SITE}/jars/*",
        "spark.yarn.stagingDir": (directory / "staging").as_uri(),
        "spark.yarn.maxAppAttempts": "2",
        "spark.pyspark.python": PYTHON,
        "spark.driver.memory": "600m",
        "spark.executor.memory": "600m",
        "spark.executor.instances": "1",
        "spark.ui.enabled": "false",
        "spark.driver.extraClassPath": JAR,
        "spark.executor.extraClassPath": JAR,
        "spark.shuffle.manager": "io.treadle.spark.TreadleShuffleManager",
        "spark.treadle.servers": service.master.address,
        "spark.treadle.secretFile": str(service.secret),
        "spark.treadle.timeout": "30s",
        "spark.task.maxFailures": "1",
    }
    options = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    program = Path(__file__).with_name("yarn_program.py")
    with (directory / "submit.log").open("wb") as log:
        return subprocess.Popen(
            [
                *(SITE / "bin" / "spark-submit", "--master", "yarn", "--deploy-mode", "cluster"),
                *(*options, program, directory / "gates"),
            ],
            env={
                **os.environ,
                "SPARK_HOME": str(SITE),
                "HADOOP_CONF_DIR": str(directory / "configuration"),
                "PYSPARK_PYTHON": PYTHON,
            },
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            preexec_fn=cluster.enter(0),
        )


def test_the_second_attempt_is_without_the_service_that_failed_the_first(
    cluster: Yarn, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.touch(mode=0o600)
    secret.write_text("a secret of this test alone")
    gates = tmp_path / "gates"
    gates.mkdir()
    (tmp_path / "staging").mkdir()
    service = Service(cluster, secret)
    submitted = submit(cluster, service, tmp_path)

    def said() -> str:
        return (tmp_path / "submit.log").read_text()[-3000:] + cluster.errors()

    def is_there(name: str) -> bool:
        assert submitted.poll() is None or (gates / name).exists(), said()
        return (gates / name).exists()

    try:
        until(lambda: is_there("written-01"), said, 2 * LONG)
        service.kill()
        (gates / "read-01").touch()
        until(lambda: is_there("written-02"), said, 2 * LONG)
        (gates / "read-02").touch()
        assert submitted.wait(LONG) == 0, said()
    finally:
        submitted.kill()
        submitted.wait()
        service.kill()
        service.master.end()
    assert not (gates / "answer-01").exists()
    # What Treadle sets was not set: executors' files are Spark's to look after.
    assert json.loads((gates / "answer-02").read_text()) == [True, ""]
