"""Spark's event log: lines of JSON in, measures out. Files are ``_event_files``' business."""

from __future__ import annotations

import json
import re
from bisect import insort
from collections import Counter
from collections.abc import Iterable
from typing import Any

from treadle.coordinator._measures import Application, Spread, Stage
from treadle.coordinator._plans import fingerprint, shape_of_plan, shape_of_stage
from treadle.coordinator._spark_submit import parse

__all__ = ["SETTINGS", "read_application"]

# Settings that are read; others, secrets among them, are never kept.
SETTINGS = (
    "spark.app.name", "spark.default.parallelism", "spark.driver.memory",
    "spark.dynamicAllocation.enabled", "spark.dynamicAllocation.maxExecutors",
    "spark.executor.cores", "spark.executor.instances", "spark.executor.memory", "spark.master",
    "spark.shuffle.manager", "spark.sql.adaptive.advisoryPartitionSizeInBytes",
    "spark.sql.adaptive.enabled", "spark.sql.adaptive.skewJoin.enabled",
    "spark.sql.autoBroadcastJoinThreshold", "spark.sql.files.maxPartitionBytes",
    "spark.sql.files.openCostInBytes", "spark.sql.shuffle.partitions", "spark.yarn.queue",
)  # fmt: skip
_LONGEST_LINE = 64 * 2**20
# The years 2000 and 2100, in seconds since 1970.
_EARLIEST, _LATEST = 946_684_800.0, 4_102_444_800.0
_MOST_STAGES = 5000
# Of the tasks of a stage, figures of so many are kept for their quantiles: of more, each n-th.
_MOST_SAMPLES = 4096
_JOIN = re.compile(r"\b(SortMergeJoin|BroadcastHashJoin|ShuffledHashJoin|BroadcastNestedLoopJoin|CartesianProduct)\b")  # fmt: skip
# What names an error of the service, as ServiceException.isIn does in the driver.
_OF_SERVICE = (
    "io.treadle.spark.service.ServiceException", "org.apache.spark.shuffle.FetchFailedException",
    "org.apache.spark.shuffle.MetadataFetchFailedException",
)  # fmt: skip
_INTERRUPTED = "io.treadle.spark.service.ServiceException$Interrupted"
_SUBMIT = "org.apache.spark.deploy.SparkSubmit"
_STOPPED = "cancelled because SparkContext was shut down"
_EXECUTION = "spark.sql.execution.id"
# Jobs that run, queries of which one has failed, and shapes of plans that are remembered.
_MOST_KNOWN = 5000


class _Samples:
    """Quantiles of a stream in a bounded memory. The largest is exact."""

    def __init__(self) -> None:
        self._kept: list[float] = []
        self._seen = 0
        self._every = 1
        self._largest = 0.0

    def add(self, value: float) -> None:
        self._largest = max(self._largest, value)
        if self._seen % self._every == 0:
            insort(self._kept, value)
            if len(self._kept) > _MOST_SAMPLES:
                self._kept = self._kept[::2]
                self._every *= 2
        self._seen += 1

    def spread(self) -> Spread:
        if not self._kept:
            return Spread()
        last = len(self._kept) - 1
        return Spread(self._kept[last // 2], self._kept[int(0.95 * last)], self._largest)


class _StageSums:
    """What is known of a stage so far."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.name = ""
        self.begun: float | None = None
        self.done: float | None = None
        self.attempts = 1
        self.sums: Counter[str] = Counter()
        self.run, self.read, self.input = _Samples(), _Samples(), _Samples()
        self.reads_files = False

    def stage(self, now: float) -> Stage:
        sums = self.sums
        begun = self.begun or 0.0
        return Stage(
            number=self.number, name=self.name, tasks=sums["tasks"], failed_tasks=sums["failed"],
            duration=max(0.0, (self.done or now) - begun) if self.begun else 0.0,
            run=sums["run"] / 1e3, cpu=sums["cpu"] / 1e9, gc=sums["gc"] / 1e3,
            waited=sums["waited"] / 1e3, deserialise=sums["deserialise"] / 1e3,
            input_bytes=sums["input"], output_bytes=sums["output"], shuffle_read=sums["read"],
            shuffle_written=sums["written"], spilled_memory=sums["spilled"],
            spilled_disk=sums["spilled_disk"], task_run=self.run.spread(),
            task_read=self.read.spread(), task_input=self.input.spread(), attempts=self.attempts,
            reads_files=self.reads_files, input_rows=sums["rows"],
        )  # fmt: skip


def read_application(lines: Iterable[str | bytes]) -> Application:
    """Return what the lines of an event log tell. A last line that is cut off is skipped, and so is what is unknown.

    Raises
    ------
    ValueError
        It is no event log of Spark: no line names an application.
    """
    reader = _Reader()
    for line in lines:
        reader.take(line)
    return reader.application()


class _Reader:
    def __init__(self) -> None:
        self._app = Application()
        self._stages: dict[int, _StageSums] = {}
        self._cores: dict[str, tuple[int, float]] = {}
        # Of queries, and of stages.
        self._plans: set[str] = set()
        self._steps: set[str] = set()
        # The query that a job is of, and queries that the service has failed.
        self._queries: dict[int, str] = {}
        self._lost_queries: set[str] = set()
        self._latest = 0.0
        self._failed_jobs: list[str] = []
        self._last_job_failed = False
        self._is_of_service = False

    def take(self, line: str | bytes) -> None:
        if not line.strip():
            return
        try:
            if len(line) > _LONGEST_LINE:
                raise ValueError("too long")
            event = json.loads(line)
            name = event["Event"].rpartition(".")[2]
            act = _ACTS.get(name)
            if act is not None:
                act(self, event)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
            self._app.skipped_lines += 1

    def application(self) -> Application:
        app = self._app
        if not app.began:
            raise ValueError("it is no event log of Spark: no line names an application")
        end = app.ended or self._latest
        for cores, begun in self._cores.values():
            app.core_seconds += cores * max(0.0, end - begun)
        self._cores = {}
        app.stages = [
            one.stage(self._latest) for _, one in sorted(self._stages.items()) if one.sums["tasks"]
        ]
        app.failed = app.ended is not None and self._last_job_failed
        app.failed_by_service = app.failed and self._is_of_service
        app.error = self._failed_jobs[-1] if app.failed and self._failed_jobs else ""
        app.plan = fingerprint(self._plans or self._steps)
        return app

    # Events

    def _log_start(self, event: Any) -> None:
        self._app.version = str(event["Spark Version"])

    def _application_start(self, event: Any) -> None:
        app = self._app
        app.id, app.name = str(event.get("App ID") or ""), str(event["App Name"])
        app.user, app.began = str(event.get("User") or ""), _seconds(event["Timestamp"])
        self._latest = app.began

    def _application_end(self, event: Any) -> None:
        self._app.ended = _seconds(event["Timestamp"])

    def _environment(self, event: Any) -> None:
        told = event["Spark Properties"]
        app = self._app
        app.settings = {name: str(told[name])[:400] for name in SETTINGS if name in told}
        queues = ("spark.treadle.queue", "spark.yarn.queue", "spark.kubernetes.namespace")
        app.queue = next((str(told[name]) for name in queues if told.get(name)), "")
        command = str((event.get("System Properties") or {}).get("sun.java.command", ""))
        app.name = str(told.get("spark.treadle.name", "")) or _submitted(command, app.name)
        app.cluster = str(told.get("spark.treadle.cluster", ""))
        app.decision = str(told.get("spark.treadle.decision", ""))[:100]
        app.on_service = "treadle" in app.settings.get("spark.shuffle.manager", "").lower()

    def _executor_added(self, event: Any) -> None:
        self._note(event["Timestamp"])
        self._app.executors += 1
        cores = int(event["Executor Info"]["Total Cores"])
        self._cores[str(event["Executor ID"])] = (cores, _seconds(event["Timestamp"]))
        self._app.executor_cores = max(self._app.executor_cores, cores)
        self._app.cores = max(self._app.cores, sum(cores for cores, _ in self._cores.values()))

    def _executor_removed(self, event: Any) -> None:
        self._note(event["Timestamp"])
        found = self._cores.pop(str(event["Executor ID"]), None)
        if found is not None:
            self._app.core_seconds += found[0] * max(0.0, _seconds(event["Timestamp"]) - found[1])
        reason = str(event.get("Removed Reason", "")).lower()
        if (
            "killed by driver" not in reason
            and "idle" not in reason
            and "decommission" not in reason
        ):
            self._app.lost_executors += 1

    def _stage_submitted(self, event: Any) -> None:
        info = event["Stage Info"]
        one = self._stage(int(info["Stage ID"]))
        if one is None:
            return
        one.name = str(info.get("Stage Name", ""))[:200]
        one.attempts = max(one.attempts, int(info.get("Stage Attempt ID", 0)) + 1)
        begun = info.get("Submission Time")
        if begun is not None and one.begun is None:
            one.begun = _seconds(begun)
        if len(self._steps) < _MOST_KNOWN:
            self._steps.add(shape_of_stage(info.get("RDD Info", ())))
        scopes = [
            str(rdd.get("Name", "")) + str(rdd.get("Scope", "")) for rdd in info.get("RDD Info", ())
        ]
        one.reads_files |= any(
            "FileScanRDD" in text or ("Scan " in text and "ExistingRDD" not in text)
            for text in scopes
        )

    def _stage_completed(self, event: Any) -> None:
        self._stage_submitted(event)
        info = event["Stage Info"]
        one = self._stage(int(info["Stage ID"]))
        if one is not None and info.get("Completion Time") is not None:
            one.done = _seconds(info["Completion Time"])
            self._note(info["Completion Time"])
        if "FetchFailed" in str(info.get("Failure Reason", "")):
            self._app.lost_shuffle = True

    def _task_end(self, event: Any) -> None:
        one = self._stage(int(event["Stage ID"]))
        if one is None:
            return
        reason = event["Task End Reason"]["Reason"]
        if reason != "Success":
            # One that was killed, as a copy of another one, is no failure.
            one.sums["failed"] += reason not in ("TaskKilled", "TaskCommitDenied")
            self._app.lost_shuffle |= reason == "FetchFailed"
            return
        info, metrics = event["Task Info"], event["Task Metrics"]
        self._note(info["Finish Time"])
        read, written = metrics["Shuffle Read Metrics"], metrics["Shuffle Write Metrics"]
        size = int(read["Remote Bytes Read"]) + int(read["Local Bytes Read"])
        got = int(metrics["Input Metrics"]["Bytes Read"])
        run = int(metrics["Executor Run Time"])
        one.sums.update({
            "tasks": 1, "run": run, "cpu": int(metrics["Executor CPU Time"]),
            "gc": int(metrics["JVM GC Time"]), "waited": int(read["Fetch Wait Time"]),
            "deserialise": int(metrics["Executor Deserialize Time"]), "input": got,
            "output": int(metrics["Output Metrics"]["Bytes Written"]), "read": size,
            "written": int(written["Shuffle Bytes Written"]),
            "spilled": int(metrics["Memory Bytes Spilled"]),
            "spilled_disk": int(metrics["Disk Bytes Spilled"]),
            "rows": int(metrics["Input Metrics"]["Records Read"]),
        })  # fmt: skip
        one.run.add(run / 1e3)
        one.read.add(size)
        one.input.add(got)

    def _job_start(self, event: Any) -> None:
        query = (event.get("Properties") or {}).get(_EXECUTION)
        if query is not None and len(self._queries) < _MOST_KNOWN:
            self._queries[int(event["Job ID"])] = str(query)

    def _job_end(self, event: Any) -> None:
        query = self._queries.pop(int(event.get("Job ID", -1)), "")
        self._note(event["Completion Time"])
        result, had_failed = event["Job Result"], self._last_job_failed
        self._last_job_failed = result["Result"] != "JobSucceeded"
        if self._last_job_failed:
            text = str((result.get("Exception") or {}).get("Message", "a job failed"))
            # What still runs when the driver ends because of a failure is no failure of its own.
            if not had_failed or _STOPPED not in text:
                self._failed(text, query)
            if "FetchFailed" in text or "MetadataFetchFailed" in text:
                self._app.lost_shuffle = True

    def _query_end(self, event: Any) -> None:
        self._note(event["time"])
        error = event.get("errorMessage")
        # None is of a release that does not say. A driver that dies after a query's jobs reports no failed job.
        if error is None:
            return
        self._last_job_failed = bool(error)
        if error:
            self._failed(str(error), str(event.get("executionId", "")))

    def _failed(self, text: str, query: str) -> None:
        """Take a failure. The last one has ended the application: those before it were recovered from.

        A query whose job the service has failed ends its other jobs, and then itself, with errors that need not say so.
        """
        self._failed_jobs = [*self._failed_jobs, text[:2000]][-5:]
        self._is_of_service = _is_of_service(text) or (query != "" and query in self._lost_queries)
        if self._is_of_service and query and len(self._lost_queries) < _MOST_KNOWN:
            self._lost_queries.add(query)

    def _query(self, event: Any) -> None:
        text = str(event["physicalPlanDescription"])
        shape = shape_of_plan(text)
        if shape and len(self._plans) < _MOST_KNOWN:
            self._plans.add(shape)
        joins = Counter(_JOIN.findall(text.partition("\n\n")[0]))
        self._app.joins = dict(Counter(self._app.joins) + joins)

    def _stage(self, number: int) -> _StageSums | None:
        if number not in self._stages and len(self._stages) >= _MOST_STAGES:
            return None
        return self._stages.setdefault(number, _StageSums(number))

    def _note(self, stamp: Any) -> None:
        self._latest = max(self._latest, _seconds(stamp))


_ACTS = {
    "SparkListenerLogStart": _Reader._log_start,
    "SparkListenerApplicationStart": _Reader._application_start,
    "SparkListenerApplicationEnd": _Reader._application_end,
    "SparkListenerEnvironmentUpdate": _Reader._environment,
    "SparkListenerExecutorAdded": _Reader._executor_added,
    "SparkListenerExecutorRemoved": _Reader._executor_removed,
    "SparkListenerStageSubmitted": _Reader._stage_submitted,
    "SparkListenerStageCompleted": _Reader._stage_completed,
    "SparkListenerTaskEnd": _Reader._task_end,
    "SparkListenerJobStart": _Reader._job_start,
    "SparkListenerJobEnd": _Reader._job_end,
    "SparkListenerSQLExecutionStart": _Reader._query,
    "SparkListenerSQLExecutionEnd": _Reader._query_end,
}


def _submitted(command: str, name: str) -> str:
    """Return the name by which ``treadle spark-submit`` asks: one that the application's code sets comes later."""
    program, _, arguments = command.partition(" ")
    # Java joins the arguments with blanks, so that one that has some cannot be read for sure.
    found = parse(arguments.split()) if program == _SUBMIT else None
    # A shell's name is Spark's own, and a program that starts Spark itself looks like one.
    if found is None or not found.is_job or found.resource.endswith("-shell"):
        return name
    # A file of settings may have the name. That of Kubernetes' drivers does: their command has no --name.
    if "--properties-file" in found.options:
        return name
    given = found.conf | ({"spark.app.name": one} if (one := found.options.get("--name")) else {})
    told = found.name(given)
    return name if not told or name.startswith(told) else told


def _is_of_service(text: str) -> bool:
    """Return whether a failure names an error of the service. A task that was interrupted was ended by Spark."""
    text = text.replace(_INTERRUPTED, "")
    return any(one in text for one in _OF_SERVICE)


def _seconds(milliseconds: Any) -> float:
    seconds = int(milliseconds) / 1e3
    # One of a damaged line would move all charts, and what is forgotten.
    if not _EARLIEST <= seconds < _LATEST:
        raise ValueError(f"{milliseconds} is no time of the years 2000 to 2100")
    return seconds
