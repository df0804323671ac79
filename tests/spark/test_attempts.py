"""An attempt that YARN starts after one that failed because of the service shuffles without it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from application_support import JAR, LONG, PYTHON, SETTINGS, Application
from conftest import Place
from service_support import Servers
from waiting import until

PLUGIN = "spark.shuffle.sort.io.plugin.class"
STOCK = "the service was why an earlier one failed"


class Attempts:
    """Drivers that have the environment of attempts of one application."""

    def __init__(self, place: Place, staging: Path) -> None:
        self.place = place
        self.staging = staging
        staging.mkdir()

    def begin(self, number: int, settings: dict[str, str] | None = None) -> Application:
        environment = {
            "CONTAINER_ID": f"container_e17_1700000000000_0001_{number:02}_000001",
            "SPARK_YARN_STAGING_DIR": self.staging.as_uri(),
            "LOCAL_DIRS": str(self.staging.parent),
        }
        return self.place.application(settings, master="local[2]", environment=environment)

    def noted(self) -> list[Path]:
        return [file for file in self.staging.iterdir() if not file.name.startswith(".")]


def is_stock(application: Application) -> bool:
    assert application.run("reduced")
    is_said = STOCK in application.log.read_text()
    assert is_said == (application.run("setting", PLUGIN) == "")
    return is_said


def fails_with_its_servers(application: Application, servers: Servers, gates: Path) -> None:
    """Run a job of which all servers, `a` and `b`, are killed between its stages."""
    gates.mkdir()
    job = application.begin("kept", str(gates), 4, 3)
    ready = gates / "between-begun"
    until(lambda: ready.exists() or application.process.poll() is not None, application.said, LONG)
    assert ready.exists(), application.said()
    for name in ("a", "b"):
        servers.kill(name)
    (gates / "between").touch()
    until(lambda: len(application.answers) > job, application.said, LONG)
    kind, text = application.answers[job]
    assert kind == "error", text


def test_the_attempt_after_one_that_the_service_failed_is_without_it(
    new_place: Callable[[], Place], tmp_path: Path
) -> None:
    place = new_place()
    servers = place.serve("a", "b")
    attempts = Attempts(place, tmp_path / "staging")
    first = attempts.begin(1, {"spark.treadle.timeout": "30s"})
    fails_with_its_servers(first, servers, tmp_path / "gates")
    first.stop()
    assert len(attempts.noted()) == 1, first.said()
    servers.begin("c")
    servers.begin("d")
    servers.ready()
    assert is_stock(attempts.begin(2))
    # Neither another application's first attempt, nor one whose staging folder has no such file.
    assert not is_stock(attempts.begin(1))
    other = Attempts(place, tmp_path / "another")
    assert not is_stock(other.begin(2))


def test_an_attempt_after_a_failure_of_the_service_and_then_another_is_with_it(
    new_place: Callable[[], Place], tmp_path: Path
) -> None:
    place = new_place()
    servers = place.serve("a", "b")
    attempts = Attempts(place, tmp_path / "staging")
    first = attempts.begin(1, {"spark.treadle.timeout": "5s"})
    fails_with_its_servers(first, servers, tmp_path / "gates")
    until(lambda: len(attempts.noted()) == 1, first.said, LONG)
    for name in ("c", "d"):
        servers.begin(name)
    servers.ready()
    # The program goes on, and its own code fails.
    failing = first.begin("failing")
    until(lambda: len(first.answers) > failing, first.said, LONG)
    assert "ZeroDivisionError" in first.answers[failing][1]
    first.stop()
    assert attempts.noted() == []
    assert not is_stock(attempts.begin(2))


def test_an_attempt_after_another_failure_is_with_the_service(
    shared_place: Place, tmp_path: Path
) -> None:
    attempts = Attempts(shared_place, tmp_path / "staging")
    first = attempts.begin(1)
    failing = first.begin("failing")
    assert first.run("reduced")
    assert first.answers[failing][0] == "error"
    first.stop()
    assert attempts.noted() == []
    assert not is_stock(attempts.begin(2))
    assert first.process.wait(LONG) == 0


AGAIN = """
import sys, time
from pathlib import Path
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
context, gates = spark.sparkContext, Path(sys.argv[1])
pairs = context.parallelize(range(3000), 3).map(lambda one: (one % 101, one)).partitionBy(4)
assert pairs.count() == 3000
(gates / "begun").touch()
while not (gates / "go").exists():
    time.sleep(0.05)
found = sorted(pairs.map(lambda pair: pair[1]).collect())
assert found == list(range(3000))
print("all rows:", context.getConf().get("spark.shuffle.sort.io.plugin.class", "stock"), flush=True)
"""


def test_spark_submit_runs_an_application_again_without_the_service_that_failed_it(
    new_place: Callable[[], Place], tmp_path: Path
) -> None:
    place = new_place()
    servers = place.serve("a", "b")
    program = tmp_path / "again.py"
    program.write_text(AGAIN)
    settings = {
        **SETTINGS,
        "spark.master": "local[2]",
        "spark.eventLog.enabled": "false",
        "spark.driver.extraClassPath": JAR,
        "spark.shuffle.manager": "io.treadle.spark.TreadleShuffleManager",
        "spark.treadle.secretFile": str(place.secret),
        "spark.treadle.servers": servers.master.address,
        "spark.treadle.timeout": "30s",
    }
    options = [text for name, value in settings.items() for text in ("--conf", f"{name}={value}")]
    home = subprocess.check_output(
        [PYTHON, "-c", "import pyspark; print(pyspark.__path__[0])"], text=True
    )
    environment = {**os.environ, "SPARK_HOME": home.strip(), "PYSPARK_PYTHON": PYTHON}
    command = [
        sys.executable,
        "-m",
        "treadle",
        "spark-submit",
        *options,
        str(program),
        str(tmp_path),
    ]
    log = tmp_path / "log"
    with log.open("w") as file:
        process = subprocess.Popen(command, env=environment, stdout=file, stderr=file)
    try:
        until(
            lambda: (tmp_path / "begun").exists() or process.poll() is not None, log.read_text, LONG
        )
        for name in ("a", "b"):
            servers.kill(name)
        (tmp_path / "go").touch()
        code = process.wait(LONG)
    finally:
        process.kill()
    said = log.read_text()
    assert code == 0, said
    assert "submitted again without it" in said
    assert STOCK in said
    assert "all rows: stock" in said
