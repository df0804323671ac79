"""Runs with a planted cause: those that ``record.py`` and ``record_dask.py`` have recorded, and those made of them here.

Two causes need more data, or more machines, than a recording had. Their logs are recorded healthy ones with other sizes,
times and waits; all else in them is Spark's. The test and ``bench/coordinator/rules.py`` count on the same logs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import zstandard

from treadle.coordinator._dask_run import DaskRun
from treadle.coordinator._event_log import read_application
from treadle.coordinator._measures import Application

LOGS = Path(__file__).parent / "logs"
GiB = 2**30
# What was recorded, the rule that names it, and rules that name what follows from it.
RECORDED = {
    "tiny-partitions": ("small partitions", {"task overhead"}),
    "tiny-splits": ("small splits", set()),
    "skew": ("skew", {"spill"}),
    "spill": ("spill", set()),
    "broadcast": ("broadcast instead of shuffle", set()),
    "few-tasks": ("few tasks", {"spill"}),
    "many-tasks": ("task overhead", {"idle executors"}),
    "crowded": ("many cores an executor", {"spill", "garbage collection", "few tasks"}),
    "garbage": ("garbage collection", {"spill"}),
    "idle": ("idle executors", set()),
    "retries": ("failed tasks", {"small partitions"}),
}  # fmt: skip
# Healthy logs whose heaviest stage reads a shuffle.
_SHUFFLING = ("healthy-2", "healthy-3", "healthy-6", "healthy-13", "healthy-14")
HEALTHY = 20
EACH = 5


def lines_of(name: str) -> list[str]:
    """Return the lines of a recorded log."""
    packed = (LOGS / f"{name}.zstd").read_bytes()
    text = zstandard.ZstdDecompressor().decompressobj().decompress(packed).decode()
    return text.splitlines()


def numbered(name: str, number: int) -> str:
    """Return the name of the ``number``-th log of a cause, from 1 on."""
    return name if number == 1 else f"{name}-{number}"


def edited(
    lines: list[str], change: Callable[[dict[str, Any]], None], speed: float = 1.0
) -> list[str]:
    """Return a log in which the metrics of each task are changed, and all moments after the start are ``speed`` later."""
    found, start = [], None
    for line in lines:
        event = json.loads(line)
        if event["Event"] == "SparkListenerApplicationStart":
            start = event["Timestamp"]
        if event["Event"] == "SparkListenerTaskEnd" and event.get("Task Metrics"):
            change(event["Task Metrics"])
        found.append(json.dumps(later(event, start, speed)))
    return found


def later(value: Any, start: int | None, speed: float) -> Any:
    """Return an event with its moments moved away from the start."""
    if isinstance(value, dict):
        return {
            key: round(start + (one - start) * speed)
            if start and isinstance(one, int) and ("Time" in key and one > 10**12)
            else later(one, start, speed)
            for key, one in value.items()
        }
    return [later(one, start, speed) for one in value] if isinstance(value, list) else value


def large_partitions(name: str) -> list[str]:
    """As if each task had read 3 GiB or more, in ten times the time."""
    lines = lines_of(name)
    read = sorted(size for size in map(_read, lines) if size)
    factor = 3 * GiB / read[0]

    def change(metrics: dict[str, Any]) -> None:
        for part, names in (
            ("Shuffle Read Metrics", ("Remote Bytes Read", "Local Bytes Read")),
            ("Shuffle Write Metrics", ("Shuffle Bytes Written",)),
        ):
            for one in names:
                metrics[part][one] = round(metrics[part][one] * factor)
        _slow(metrics, 10)

    return edited(lines, change, 10)


def blocked_reads(name: str) -> list[str]:
    """As if tasks had waited for the rows of their shuffles for half of their time, which is five times as long."""

    def change(metrics: dict[str, Any]) -> None:
        _slow(metrics, 5)
        read = metrics["Shuffle Read Metrics"]
        if read["Remote Bytes Read"] + read["Local Bytes Read"]:
            read["Fetch Wait Time"] = metrics["Executor Run Time"] // 2

    return edited(lines_of(name), change, 5)


MADE = {
    "large-partitions": ("large partitions", {"few tasks"}, large_partitions),
    "blocked-reads": ("blocked reads", set(), blocked_reads),
}


# Of Dask, by what record_dask.py has recorded.
DASK = {
    "small-chunks": ("small chunks", set()),
    "large-chunks": ("large chunks", set()),
    "threads": ("many threads a worker", set()),
    "memory": ("memory limit", set()),
    "shuffle-by-tasks": ("shuffle by tasks", {"small chunks"}),
    "p2p-of-few": ("p2p for few rows", set()),
}  # fmt: skip
DASK_HEALTHY = 10


def dask_runs() -> dict[str, Application]:
    """Return the runs of Dask that were recorded, by name."""
    lines = map(json.loads, (LOGS / "dask.jsonl").read_text().splitlines())
    return {one["name"]: Application(dask=DaskRun.of(one["run"])) for one in lines}


def planted(most: int = EACH) -> Iterator[tuple[str, str, set[str], Application]]:
    """Yield runs with a planted cause: the cause, the rule, rules of what follows from it, the run."""
    for cause, (rule, follows) in RECORDED.items():
        for number in range(1, most + 1):
            yield cause, rule, follows, read_application(lines_of(numbered(cause, number)))
    for cause, (rule, follows, make) in MADE.items():
        for name in _SHUFFLING[:most]:
            yield cause, rule, follows, read_application(make(name))
    runs = dask_runs()
    for cause, (rule, follows) in DASK.items():
        for number in range(1, most + 1):
            yield f"dask: {cause}", rule, follows, runs[numbered(cause, number)]


def healthy(most: int = HEALTHY) -> Iterator[tuple[str, Application]]:
    """Yield healthy runs: at most so many of Spark, and half as many of Dask."""
    for number in range(1, most + 1):
        name = numbered("healthy", number)
        yield name, read_application(lines_of(name))
    runs = dask_runs()
    for number in range(1, min(most // 2, DASK_HEALTHY) + 1):
        yield f"dask: {numbered('healthy', number)}", runs[numbered("healthy", number)]


def _slow(metrics: dict[str, Any], factor: float) -> None:
    for name in ("Executor Run Time", "Executor CPU Time"):
        metrics[name] = round(metrics[name] * factor)


def _read(line: str) -> int:
    event = json.loads(line)
    if event["Event"] != "SparkListenerTaskEnd" or not event.get("Task Metrics"):
        return 0
    read = event["Task Metrics"]["Shuffle Read Metrics"]
    return int(read["Remote Bytes Read"]) + int(read["Local Bytes Read"])
