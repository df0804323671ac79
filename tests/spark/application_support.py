"""Spark applications of a test: a driver that runs jobs of ``program.py`` one after another, in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from process_support import alive
from service_support import Servers
from waiting import until

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "spark"))

from executors import executors_of

HERE = Path(__file__).parent
PYTHON = os.environ.get("TREADLE_SPARK_PYTHON", "")
JAR = os.environ.get("TREADLE_SPARK_JAR", "")
# Starting an application takes 5 s, and 60 s on a busy machine.
LONG = 180
LOCAL_CLUSTER = "local-cluster[2,1,1024]"

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "20",
    "spark.eventLog.enabled": "true",
    # Whole files, that Python reads.
    "spark.eventLog.rolling.enabled": "false",
    "spark.eventLog.compress": "false",
}


class Application:
    """A driver with its executors."""

    def __init__(
        self,
        directory: Path,
        settings: dict[str, str],
        master: str = LOCAL_CLUSTER,
        stock: bool = False,
        environment: dict[str, str] | None = None,
    ) -> None:
        self.events = directory / "events"
        self.events.mkdir(parents=True)
        own = {} if stock else {"spark.shuffle.manager": "io.treadle.spark.TreadleShuffleManager"}
        given = {
            **SETTINGS,
            "spark.master": master,
            "spark.eventLog.dir": self.events.as_uri(),
            "spark.local.dir": str(directory / "local"),
            "spark.driver.extraClassPath": JAR,
            "spark.executor.extraClassPath": JAR,
            **own,
            **settings,
        }
        self.log = directory / "log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [PYTHON, str(HERE / "program.py"), json.dumps(given)],
                env={
                    **os.environ,
                    "PYSPARK_PYTHON": PYTHON,
                    "SPARK_LOCAL_IP": "127.0.0.1",
                    **(environment or {}),
                },
                cwd=directory,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        self.answers: list[Any] = []
        self.port: str | None = None
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("answer "):
                self.answers.append(json.loads(line.removeprefix("answer ")))

    def begin(self, job: str, *arguments: Any) -> int:
        """Have the driver run a job. Returns the number of its answer."""
        assert self.process.stdin is not None
        self.begun = getattr(self, "begun", -1) + 1
        self.process.stdin.write(json.dumps([job, *arguments]) + "\n")
        self.process.stdin.flush()
        return self.begun

    def answer(self, number: int) -> Any:
        """What a job has returned."""

        def ended() -> bool:
            return len(self.answers) > number or self.process.poll() is not None

        until(ended, lambda: f"an answer: {self.said()}", LONG)
        assert len(self.answers) > number, self.said()
        kind, value = self.answers[number]
        assert kind == "value", f"{value}\n{self.said()}"
        return value

    def run(self, job: str, *arguments: Any) -> Any:
        return self.answer(self.begin(job, *arguments))

    def said(self) -> str:
        """The end of the driver's log."""
        return self.log.read_text(errors="replace")[-6000:]

    def executors(self) -> list[int]:
        """The processes of its executors. Asked first while no job runs."""
        if self.port is None:
            self.port = self.run("driver_port")
        return executors_of(self.port)

    def kill_executor(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        until(lambda: not alive(pid), f"the end of executor {pid}")

    def stop(self) -> list[dict[str, Any]]:
        """End it in order. Returns its events."""
        if self.process.stdin is not None and self.process.poll() is None:
            self.process.stdin.close()
        self.process.wait(LONG)
        (log,) = self.events.iterdir()
        return [json.loads(line) for line in log.read_text().splitlines()]

    def end(self) -> None:
        if self.process.poll() is None:
            # Its executors see that it has gone.
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(LONG)
        self.reader.join(LONG)


def told(gates: Path, what: str) -> Counter[int]:
    """How often each map, or reader, has begun."""
    return Counter(int(file.name.split("-")[1]) for file in gates.glob(f"{what}-*"))


def begun(gates: Path, application: Application, what: str, count: int) -> None:
    until(lambda: len(told(gates, what)) >= count, application.said, LONG)


def all_copies_are_lost(
    application: Application, gates: Path, servers: Servers, maps: int, partitions: int
) -> None:
    """Replace the servers ``a`` and ``b``, which have all rows, before they are read: each map runs twice, and no more."""
    job = application.begin("kept", str(gates), maps, partitions)
    until((gates / "between-begun").exists, application.said, LONG)
    for name in ("a", "b"):
        servers.kill(name)
    for name in ("c", "d"):
        servers.begin(name)
    servers.ready()
    (gates / "between").touch()
    assert application.answer(job) == [1_000 * maps, True]
    assert told(gates, "map") == dict.fromkeys(range(maps), 2)


def succeeded(events: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The ends of tasks that have succeeded."""
    for event in events:
        is_end = event["Event"] == "SparkListenerTaskEnd"
        if is_end and event["Task End Reason"]["Reason"] == "Success":
            yield event


def tasks(events: list[dict[str, Any]], kind: str) -> Counter[tuple[int, int]]:
    """How often each task has succeeded, by its stage and its index, of those of a kind."""
    ended = (event for event in succeeded(events) if event["Task Type"] == kind)
    return Counter((event["Stage ID"], event["Task Info"]["Index"]) for event in ended)


def metric(events: list[dict[str, Any]], *names: str) -> int:
    """A number of all tasks that have succeeded, together. ``names``: from the groups of metrics to the number."""
    total = 0
    for event in succeeded(events):
        found: Any = event["Task Metrics"]
        for name in names:
            found = found[name]
        total += found
    return total
