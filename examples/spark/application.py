"""A Spark application of the demo: a driver with two executors on this machine, and what its event log says."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from executors import executors_of

HERE = Path(__file__).parent
# Seconds that an answer may take.
LONGEST = 900

SETTINGS = {
    "spark.master": "local-cluster[2,1,1024]",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.eventLog.enabled": "true",
    "spark.eventLog.rolling.enabled": "false",
    "spark.eventLog.compress": "false",
    "spark.sql.shuffle.partitions": "16",
    "spark.sql.files.maxPartitionBytes": "16MB",
    # Each join is a shuffle.
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    # A partition of 80 % of the rows is small at this scale: it counts as skewed all the same.
    "spark.sql.adaptive.advisoryPartitionSizeInBytes": "8MB",
    "spark.sql.adaptive.skewJoin.skewedPartitionThresholdInBytes": "8MB",
}


@dataclass(frozen=True)
class Task:
    """A run of a task. ``start`` and ``end`` are seconds since 1970. ``rows``: the number of what its stage computes,
    which stays when Spark makes another stage of it."""

    query: str
    stage: int
    rows: int
    partition: int
    executor: str
    is_map: bool
    start: float
    end: float
    is_done: bool
    written: int


class Application:
    """A driver that runs one query after another."""

    def __init__(
        self, python: str, jar: str, directory: Path, data: Path, settings: dict[str, str]
    ) -> None:
        self._events = directory / "events"
        self._events.mkdir(parents=True)
        given = {
            **SETTINGS,
            "spark.eventLog.dir": self._events.as_uri(),
            "spark.local.dir": str(directory / "local"),
            "spark.driver.extraClassPath": jar,
            "spark.executor.extraClassPath": jar,
            **settings,
        }
        self._log = directory / "log"
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [python, str(HERE / "driver.py"), json.dumps([given, str(data)])],
                env={**os.environ, "PYSPARK_PYTHON": python, "SPARK_LOCAL_IP": "127.0.0.1"},
                cwd=directory,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        try:
            self._port = self._answer()
        except BaseException:
            self.kill()
            raise

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("answer "):
                return json.loads(line.removeprefix("answer "))
        raise RuntimeError(f"Spark has ended:\n{self._log.read_text()[-4000:]}")

    def begin(self, name: str, query: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([name, query]) + "\n")
        self._process.stdin.flush()

    def result(self) -> dict[str, Any]:
        answer: dict[str, Any] = self._answer()
        return answer

    def stages(self) -> int:
        """How many stages have completed so far."""
        (log,) = self._events.iterdir()
        return log.read_text().count('{"Event":"SparkListenerStageCompleted"')

    def after(self, stages: int, event: Callable[[], None]) -> None:
        """Call it when so many stages more have completed."""
        before, deadline = self.stages(), time.monotonic() + LONGEST
        while self.stages() < before + stages:
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"no stage completes:\n{self._log.read_text()[-4000:]}")
            time.sleep(0.02)
        event()

    def kill_executor(self) -> None:
        """End its eldest executor by force."""
        os.kill(min(executors_of(self._port)), signal.SIGKILL)

    def stop(self) -> list[Task]:
        """End it in order. Returns its tasks."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(LONGEST)
        (log,) = self._events.iterdir()
        return list(tasks(json.loads(line) for line in log.read_text().splitlines()))

    def kill(self) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(LONGEST)


def tasks(events: Iterator[dict[str, Any]]) -> Iterator[Task]:
    """The runs of tasks in an event log."""
    stages: dict[int, tuple[str, int]] = {}
    for event in events:
        if event["Event"] == "SparkListenerStageSubmitted":
            info = event["Stage Info"]
            query = event["Properties"].get("spark.job.description", "")
            stages[info["Stage ID"]] = query, info["RDD Info"][0]["RDD ID"]
        elif event["Event"] == "SparkListenerTaskEnd":
            info, metrics = event["Task Info"], event.get("Task Metrics") or {}
            written = metrics.get("Shuffle Write Metrics", {}).get("Shuffle Bytes Written", 0)
            query, rows = stages[event["Stage ID"]]
            yield Task(
                query=query,
                stage=event["Stage ID"],
                rows=rows,
                partition=info["Partition ID"],
                executor=info["Executor ID"],
                is_map=event["Task Type"] == "ShuffleMapTask",
                start=info["Launch Time"] / 1e3,
                end=info["Finish Time"] / 1e3,
                is_done=event["Task End Reason"]["Reason"] == "Success",
                written=written,
            )
