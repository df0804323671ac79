"""What the end of a job says: alerts, and jobs that are taken off the service by themselves."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from treadle.coordinator._plans import Plans

__all__ = ["KINDS", "Alert", "End", "History", "Run", "judge", "noise_of"]

# Failures in a row on the service after which a recurring job is taken off it.
MOST_FAILURES = 2
# Runs of a history that count, and the fewest that show how much they differ.
RUNS_KEPT = 60
_FEWEST = 5
# Standard deviations above the usual that are an alert, and the least share of the duration.
_SIGMAS = 3.0
_LEAST_SLOWDOWN = 1.1
# Two equal durations do not show that a job has no noise.
LEAST_NOISE = 0.02

_CAUSES = ("", "service", "job", "unknown")
_LONGEST_TEXT = 2000
# Columns of 32 bits, and a time before the year 5138.
_MOST: Mapping[str, float] = {
    "retries": 2**31,
    "fallbacks": 2**31,
    "lost_servers": 2**31,
    "at": 1e11,
}
_MOST_OF_OTHERS = 2**62
# Of so many runs is what is usual, and below this share of it a run did far less.
_USUAL_OF = 10
_FEWEST_USUAL = 3
_FAR_BELOW = 0.5


@dataclass(frozen=True)
class End:
    """How a job ended. Times are seconds, and of the blocked time all tasks together."""

    failed: bool = False
    cause: str = ""
    """Of a failure: ``service``, ``job`` or ``unknown``."""
    error: str = ""
    duration: float | None = None
    shuffle_bytes: int | None = None
    input_bytes: int | None = None
    input_rows: int | None = None
    stages: int | None = None
    blocked: float | None = None
    retries: int = 0
    fallbacks: int = 0
    """Shuffles that ran on stock shuffle although the job was on the service."""
    lost_servers: int = 0
    """Shuffle servers with rows of it that were lost."""
    at: float | None = None
    """Seconds since 1970; by default when it is reported."""

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> End:
        """Return the end of a dictionary.

        Raises
        ------
        ValueError
            A field is unknown, or has a value that it cannot have.
        """
        known = {one.name for one in fields(cls)}
        if unknown := sorted(set(values) - known):
            raise ValueError(
                f"an end has no {', '.join(unknown)}: it has {', '.join(sorted(known))}"
            )
        found: dict[str, Any] = {}
        for name, value in values.items():
            if value is None:
                continue
            if name == "failed":
                if not isinstance(value, bool):
                    raise ValueError("failed of an end must be true or false")
            elif name in ("cause", "error"):
                if not isinstance(value, str):
                    raise ValueError(f"{name} of an end must be text")
                value = value[:_LONGEST_TEXT].replace("\0", "").encode("utf-8", "replace").decode()
            else:
                is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
                if not is_number or not 0 <= value < _MOST.get(name, _MOST_OF_OTHERS):
                    raise ValueError(
                        f"{name} of an end must be a number from 0 to {_MOST.get(name, _MOST_OF_OTHERS):g}"
                    )
                value = float(value) if name in ("duration", "blocked", "at") else int(value)
            found[name] = value
        if found.get("cause", "") not in _CAUSES:
            raise ValueError(f"cause of an end must be one of {', '.join(_CAUSES[1:])}")
        return cls(**found)

    def to_dict(self) -> dict[str, Any]:
        """Return its fields."""
        return asdict(self)


@dataclass(frozen=True)
class Run:
    """What is remembered of a run of a recurring job."""

    duration: float
    shuffle_bytes: int
    on_service: bool
    change: int = 0
    """The change of settings that it was run with; 0: none."""
    input_bytes: int = 0
    stages: int = 0
    input_rows: int = 0
    at: float = 0.0
    """When it ended, seconds since 1970."""


@dataclass
class History:
    """What is remembered of a recurring job."""

    runs: list[Run] = field(default_factory=list)
    """The latest ones that did not fail, the latest last."""
    failures: int = 0
    """On the service, since the last success there."""
    taken_off: str = ""
    """Why it is not taken onto the service; empty: it may be."""
    silent: int = 0
    """So many of the failures are runs without an end."""
    plans: Plans = field(default_factory=Plans)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> History:
        """Return the history that :meth:`to_dict` wrote."""
        runs = [Run(*one) for one in values.get("runs", ())]
        return cls(
            runs,
            values.get("failures", 0),
            values.get("taken_off", ""),
            values.get("silent", 0),
            Plans.of(values.get("plans", {})),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return what JSON can keep."""
        runs = [
            [
                r.duration,
                r.shuffle_bytes,
                r.on_service,
                r.change,
                r.input_bytes,
                r.stages,
                r.input_rows,
                r.at,
            ]
            for r in self.runs
        ]
        return {
            "runs": runs,
            "failures": self.failures,
            "taken_off": self.taken_off,
            "silent": self.silent,
            "plans": self.plans.to_dict(),
        }

    def has_changed(self, plan: str, ended: float) -> bool:
        """Take the plan of a run that ended at a time; return whether the job is another one by it.

        Then only runs that ended since count: those before were of the other one.
        """
        if not plan or not self.plans.changed(plan, ended):
            return False
        self.runs = [one for one in self.runs if one.at >= ended]
        return True

    def was_only_silent(self, end: End) -> bool:
        """Take back the failure that a run without an end was; return whether its job is put back by that.

        One that ends well says that others may only be long, too. Failures that were reported still count.
        """
        was_off = bool(self.taken_off) and self.failures >= MOST_FAILURES
        self.failures = max(0, self.failures - 1)
        self.silent = max(0, self.silent - 1)
        known = self.failures if end.failed else self.failures - self.silent
        is_failure = end.failed and end.cause != "job"
        is_put_back = was_off and not is_failure and known < MOST_FAILURES
        if is_put_back:
            self.taken_off = ""
        return is_put_back

    def did_less(self, end: End, on_service: bool, trying: int) -> bool:
        """Return whether a run did far less than those before it, without the change that is tried.

        A driver that ends early without a failure looks like a fast run. A change may reduce what is shuffled, and
        not what is read: where that is known, it counts instead. Rows before bytes: each task reads a file's footer, so
        that fewer and larger splits are fewer bytes.
        """
        like = [one for one in self.runs if one.on_service == on_service]
        usual = [one for one in like if one.change != trying or not trying][-_USUAL_OF:]
        if len(usual) < _FEWEST_USUAL:
            return False
        stages = statistics.median(one.stages for one in usual)
        if end.stages is not None and end.stages < _FAR_BELOW * stages:
            return True
        rows = statistics.median(one.input_rows for one in usual)
        if end.input_rows is not None and rows:
            return end.input_rows < _FAR_BELOW * rows
        read = statistics.median(one.input_bytes for one in usual)
        if end.input_bytes is not None and read:
            return end.input_bytes < _FAR_BELOW * read
        shuffled = statistics.median(one.shuffle_bytes for one in usual)
        return end.shuffle_bytes is not None and end.shuffle_bytes < _FAR_BELOW * shuffled


KINDS = ("failed", "fell back", "lost servers", "slower", "taken off")


@dataclass(frozen=True)
class Alert:
    """What somebody should look at."""

    kind: str
    """One of :data:`KINDS`."""
    text: str


def noise_of(durations: Sequence[float]) -> float:
    """Return the standard deviation of the logarithm of durations, which a few outliers do not change."""
    logs = [math.log(max(one, 1e-3)) for one in durations]
    if len(logs) < 2:
        return LEAST_NOISE
    middle = statistics.median(logs)
    robust = 1.4826 * statistics.median(abs(one - middle) for one in logs)
    # Of few values the median deviation is often far too small.
    return max(LEAST_NOISE, robust, statistics.stdev(logs) if len(logs) < 10 else 0.0)


def judge(name: str, end: End, on_service: bool, history: History, change: int = 0) -> list[Alert]:
    """Take the end of a run into its history, and return the alerts that it gives."""
    alerts = []
    if on_service and end.lost_servers:
        servers = (
            "a shuffle server" if end.lost_servers == 1 else f"{end.lost_servers} shuffle servers"
        )
        how = "failed" if end.failed else "went on"
        alerts.append(Alert("lost servers", f"{name} lost {servers} with its rows, and {how}"))
    if end.failed:
        if on_service and end.cause == "service":
            alerts.append(
                Alert(
                    "failed",
                    f"{name} failed because of the service: {end.error or 'no reason is told'}",
                )
            )
        if on_service and end.cause != "job":
            history.failures += 1
            if history.failures >= MOST_FAILURES and not history.taken_off:
                history.taken_off = f"it failed {history.failures} times in a row on the service"
                alerts.append(
                    Alert("taken off", f"{name} is taken off the service: {history.taken_off}")
                )
        return alerts
    if on_service:
        history.failures = history.silent = 0
        if end.fallbacks:
            alerts.append(
                Alert(
                    "fell back", f"{name} fell back to stock shuffle for {end.fallbacks} shuffles"
                )
            )
    if end.duration is None:
        return alerts
    # Runs with a change of settings that is on trial are the tuning's to judge.
    usual = [one.duration for one in history.runs if one.change == 0]
    if change == 0 and len(usual) >= _FEWEST:
        middle = statistics.median(usual)
        limit = middle * max(_LEAST_SLOWDOWN, math.exp(_SIGMAS * noise_of(usual)))
        if end.duration > limit:
            alerts.append(
                Alert(
                    "slower",
                    f"{name} took {end.duration:.0f} s instead of {middle:.0f} s; "
                    f"by its history up to {limit:.0f} s are usual",
                )
            )
    history.runs.append(
        Run(
            end.duration, end.shuffle_bytes or 0, on_service, change, end.input_bytes or 0,
            end.stages or 0, end.input_rows or 0, end.at or 0.0,
        )
    )  # fmt: skip
    del history.runs[:-RUNS_KEPT]
    return alerts
