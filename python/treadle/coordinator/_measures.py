"""Measures of an application and of its stages, as rules of diagnosis see them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from treadle.coordinator._dask_run import DaskRun
from treadle.coordinator._jobs import LONGEST, Job, kept_text
from treadle.coordinator._watching import End

__all__ = ["Application", "Spread", "Stage"]


@dataclass(frozen=True)
class Spread:
    """How a quantity differs between the tasks of a stage."""

    median: float = 0.0
    p95: float = 0.0
    largest: float = 0.0


@dataclass(frozen=True)
class Stage:
    """A stage, all its attempts together. Times are seconds of all tasks together, but ``duration``."""

    number: int
    name: str
    tasks: int
    failed_tasks: int
    duration: float
    run: float
    cpu: float
    gc: float
    waited: float
    """Blocked on rows of other executors or of the service."""
    deserialise: float
    input_bytes: int
    output_bytes: int
    shuffle_read: int
    shuffle_written: int
    spilled_memory: int
    spilled_disk: int
    task_run: Spread
    task_read: Spread
    task_input: Spread
    attempts: int = 1
    reads_files: bool = False
    input_rows: int = 0


@dataclass
class Application:
    """What an event log tells of an application."""

    id: str = ""
    name: str = ""
    user: str = ""
    queue: str = ""
    cluster: str = ""
    version: str = ""
    decision: str = ""
    """The id that the coordinator gave it, or empty."""
    began: float = 0.0
    ended: float | None = None
    failed: bool = False
    error: str = ""
    lost_shuffle: bool = False
    """Stages failed because rows could not be fetched. Spark may have made those rows again."""
    failed_by_service: bool = False
    """The error that it failed with is one of the service: of reading, or of writing."""
    on_service: bool = False
    stages: list[Stage] = field(default_factory=list)
    settings: dict[str, str] = field(default_factory=dict)
    """Those of Spark that matter to tuning."""
    cores: int = 0
    """Of all executors, at most at one time."""
    core_seconds: float = 0.0
    """That executors had from their beginning to their end."""
    executors: int = 0
    executor_cores: int = 0
    """Of the executor that has most."""
    lost_executors: int = 0
    joins: dict[str, int] = field(default_factory=dict)
    """Joins in the plans of its queries, by kind."""
    plan: str = ""
    """A fingerprint of the shapes of its plans. Of one that has failed, of those that it came to."""
    skipped_lines: int = 0
    dask: DaskRun | None = None
    """What a client of Dask reported; then there are no stages."""

    @property
    def whole_plan(self) -> str:
        """The fingerprint, if it came to its end; else nothing."""
        return "" if self.ended is None or self.failed else self.plan

    @property
    def shuffle_bytes(self) -> int:
        """Bytes that all stages wrote for others."""
        return sum(one.shuffle_written for one in self.stages)

    def job(self) -> Job:
        """Return what the coordinator knows a job by."""
        values = {
            "cluster": self.cluster, "queue": self.queue, "user": self.user,
            "name": self.name, "engine": "spark", "version": self.version,
        }  # fmt: skip
        return Job.of({name: kept_text(value[:LONGEST]) for name, value in values.items()})

    def end(self) -> End | None:
        """Return how it ended; None: it still runs."""
        if self.ended is None:
            return None
        cause = ""
        if self.failed:
            cause = "service" if self.on_service and self.failed_by_service else "job"
        return End(
            failed=self.failed,
            cause=cause,
            error=kept_text(self.error[:2000]),
            duration=max(0.0, self.ended - self.began),
            shuffle_bytes=self.shuffle_bytes,
            input_bytes=sum(one.input_bytes for one in self.stages),
            input_rows=sum(one.input_rows for one in self.stages) or None,
            stages=len(self.stages),
            blocked=sum(one.waited for one in self.stages),
            retries=sum(one.failed_tasks for one in self.stages),
            at=self.ended,
        )

    @property
    def executor_memory(self) -> float:
        """The heap of an executor, bytes. In local mode it is the driver's."""
        is_local = self.settings.get("spark.master", "").startswith("local")
        return self.number(f"spark.{'driver' if is_local else 'executor'}.memory", 2**30)

    def number(self, name: str, default: float) -> float:
        """Return a setting as a number: of bytes, seconds or things."""
        text = self.settings.get(name, "")
        return default if not text else _number(text, default, _PLAIN.get(name, 1))

    def is_on(self, name: str, default: bool) -> bool:
        """Return a switch."""
        return self.settings.get(name, str(default)).lower() == "true"

    def to_dict(self) -> dict[str, Any]:
        """Return what JSON can keep."""
        return asdict(self)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Application:
        """Return what :meth:`to_dict` wrote."""
        spreads = ("task_run", "task_read", "task_input")
        stages = [
            Stage(**{**one, **{name: Spread(**one[name]) for name in spreads}})
            for one in values.get("stages", ())
        ]
        dask = values.get("dask")
        return cls(**{**values, "stages": stages, "dask": DaskRun.of(dask) if dask else None})


# What a number without a unit counts: Spark reads memory as MiB, and sizes of SQL as bytes.
_PLAIN = {"spark.executor.memory": 2**20, "spark.driver.memory": 2**20}
_UNITS = {"b": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40, "s": 1}


def _number(text: str, default: float, plain: int) -> float:
    text = text.strip().lower()
    digits = text.rstrip("bkmgts")
    unit = text[len(digits) :].removesuffix("b") if text[len(digits) :] != "b" else "b"
    try:
        return float(digits) * (_UNITS[unit] if unit else plain)
    except (ValueError, KeyError):
        return default
