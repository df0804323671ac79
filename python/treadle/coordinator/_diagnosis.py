"""Diagnosis: rules look at the measures of an application, and name causes with their evidence.

A rule is a class with a ``name`` and a method ``look``. Other packages add theirs as entry points of the group
``treadle.coordinator_rules``. Dask's setting ``treadle.coordinator.rules.NAME`` has the arguments that such a class is
made with.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from functools import cache
from importlib.metadata import entry_points

from treadle.coordinator._dask_rules import DASK_RULES
from treadle.coordinator._finding import Finding, Rule, size_text
from treadle.coordinator._measures import Application, Stage
from treadle.coordinator._settings import rule_parameters

__all__ = ["GROUP", "Finding", "Rule", "diagnose", "rules"]

GROUP = "treadle.coordinator_rules"
_MiB, _GiB = 2**20, 2**30
# Seconds of all tasks below which a stage is too short to say anything of.
_WORTH = 1.0
_logger = logging.getLogger("treadle.coordinator")


def diagnose(app: Application, chosen: Sequence[Rule] | None = None) -> list[Finding]:
    """Return what the rules find, the weightiest first. A rule that fails is logged, and the others go on."""
    found = []
    for rule in rules() if chosen is None else chosen:
        try:
            one = rule.look(app)
        except Exception:
            _logger.exception("rule %s failed on %s", rule.name, app.id)
            continue
        if one is not None:
            found.append(one)
    return sorted(found, key=lambda one: -one.weight)


@cache
def rules() -> tuple[Rule, ...]:
    """Return the rules here, and those of other packages. One that cannot be made is logged and left out.

    Raises
    ------
    ValueError
        What is configured of them is no table of tables.
    """
    found: list[Rule] = [make() for make in (*_BUILT_IN, *DASK_RULES)]
    parameters = rule_parameters()
    for point in entry_points(group=GROUP):
        given = parameters.pop(point.name.replace("-", "_"), {})
        try:
            found.append(point.load()(**given))
        except Exception:
            _logger.exception("rule %s cannot be made with %s", point.name, given or "no parameter")
    if parameters:
        names = ", ".join(sorted(parameters))
        _logger.warning("treadle.coordinator.rules has %s, and no package has such a rule", names)
    return tuple(found)


def _share(app: Application, stage: Stage) -> float:
    total = sum(one.run for one in app.stages)
    return stage.run / total if total else 0.0


def _heaviest(app: Application, holds: Callable[[Stage], bool]) -> Stage | None:
    found = [one for one in app.stages if holds(one)]
    return max(found, key=lambda one: one.run + one.deserialise, default=None)


def _is_adaptive(app: Application) -> bool:
    """Return whether partitions are coalesced while a query runs: by default since Spark 3.2."""
    numbers = [int(part) for part in re.findall(r"\d+", app.version)[:2]]
    return app.is_on("spark.sql.adaptive.enabled", numbers >= [3, 2])


class SmallPartitions:
    """Tasks that read a few kilobytes each: their number costs more than their rows."""

    name = "small partitions"
    _SMALL, _AIM = 4 * _MiB, 64 * _MiB

    def look(self, app: Application) -> Finding | None:
        stage = _heaviest(
            app,
            lambda s: (
                s.shuffle_read > 0
                and s.tasks >= max(50, 4 * app.cores)
                and s.task_read.median < self._SMALL
                and s.task_read.largest < self._AIM
                and s.task_run.median < 1
            ),
        )
        if stage is None:
            return None
        mean = stage.shuffle_read / stage.tasks
        evidence = f"stage {stage.number}: {stage.tasks:,} tasks read {size_text(mean)} each"
        expected = "fewer and larger reads, and fewer tasks to start"
        weight = _share(app, stage)
        if _is_adaptive(app):
            name = "spark.sql.adaptive.advisoryPartitionSizeInBytes"
            old = app.number(name, 64 * _MiB)
            return Finding(
                self.name,
                evidence,
                expected,
                weight,
                name,
                old,
                min(old * 8, 512 * _MiB),
                stage.number,
            )
        name = "spark.sql.shuffle.partitions"
        old = app.number(name, 200)
        new = max(2 * app.cores, round(stage.shuffle_read / self._AIM), 1)
        return Finding(self.name, evidence, expected, weight, name, old, float(new), stage.number)


class LargePartitions:
    """Tasks that read gigabytes each."""

    name = "large partitions"
    _LARGE, _AIM = 2 * _GiB, 256 * _MiB

    def look(self, app: Application) -> Finding | None:
        stage = _heaviest(app, lambda s: s.task_read.median > self._LARGE)
        if stage is None:
            return None
        name = "spark.sql.shuffle.partitions"
        evidence = f"stage {stage.number}: half of {stage.tasks:,} tasks read more than {size_text(stage.task_read.median)} each"
        new = float(max(2 * app.cores, round(stage.shuffle_read / self._AIM)))
        expected = "less memory for each task, and a repeated task costs less"
        return Finding(
            self.name,
            evidence,
            expected,
            _share(app, stage),
            name,
            app.number(name, 200),
            new,
            stage.number,
        )


class SmallSplits:
    """Tasks that read a little of a file each: combining before a shuffle has nothing to combine."""

    name = "small splits"
    _SMALL, _AIM = 32 * _MiB, 128 * _MiB

    def look(self, app: Application) -> Finding | None:
        name = "spark.sql.files.maxPartitionBytes"
        old = app.number(name, 128 * _MiB)
        stage = _heaviest(
            app,
            lambda s: (
                s.input_bytes > 0
                and s.reads_files
                and s.tasks >= max(20, 4 * app.cores)
                and s.task_input.median < self._SMALL
                and s.task_run.median < 2
            ),
        )
        if stage is None:
            return None
        evidence = f"stage {stage.number}: {stage.tasks:,} tasks read {size_text(stage.input_bytes / stage.tasks)} of files each"
        expected = "rows are combined over more of the input, so that fewer bytes are shuffled"
        new = max(old * 8, float(self._AIM)) if old < self._AIM else old * 8
        return Finding(
            self.name, evidence, expected, _share(app, stage), name, old, new, stage.number
        )


class Skew:
    """One task has many times as many rows as the others, and the stage waits for it."""

    name = "skew"

    def look(self, app: Application) -> Finding | None:
        stage = _heaviest(
            app,
            lambda s: (
                s.tasks >= 4
                and s.run > _WORTH
                and s.task_read.largest > 5 * max(s.task_read.median, 64 * 1024)
                and s.task_run.largest > 3 * max(s.task_run.median, 0.1)
            ),
        )
        if stage is None:
            return None
        times = stage.task_run.largest / max(stage.task_run.median, 1e-3)
        evidence = (
            f"stage {stage.number}: one task reads {size_text(stage.task_read.largest)}, half of them less than "
            f"{size_text(stage.task_read.median)}; it runs {min(times, 9999):.0f} times as long"
        )
        name = "spark.sql.adaptive.skewJoin.enabled"
        weight = _share(app, stage)
        if "SortMergeJoin" in app.joins and not app.is_on(name, True):
            return Finding(
                self.name,
                evidence,
                "the large partition is read by several tasks",
                weight,
                name,
                0.0,
                1.0,
                stage.number,
            )
        return Finding(
            self.name, evidence, "divide the key that has most rows", weight, stage=stage.number
        )


class Spill:
    """Tasks write rows to disk because their memory does not hold them."""

    name = "spill"

    def look(self, app: Application) -> Finding | None:
        stage = _heaviest(
            app,
            lambda s: (
                s.spilled_disk > 0.2 * max(s.shuffle_read + s.input_bytes, 1)
                and s.spilled_disk > 8 * _MiB
            ),
        )
        if stage is None:
            return None
        evidence = (
            f"stage {stage.number}: {size_text(stage.spilled_disk)} went to disk for want of memory"
        )
        name = "spark.sql.shuffle.partitions"
        weight = _share(app, stage)
        if stage.shuffle_read == 0 or stage.input_bytes > stage.shuffle_read:
            return Finding(
                self.name, evidence, "give executors more memory", weight, stage=stage.number
            )
        old = app.number(name, 200)
        return Finding(
            self.name,
            evidence,
            "partitions that fit into memory",
            weight,
            name,
            old,
            old * 4,
            stage.number,
        )


class ManyCores:
    """Executors have more cores than their memory can feed: each task gets a small part of it."""

    name = "many cores an executor"
    _FEWEST, _AIM = 4, 512 * _MiB

    def look(self, app: Application) -> Finding | None:
        memory = app.executor_memory
        if app.executor_cores < self._FEWEST or memory / app.executor_cores > self._AIM / 2:
            return None
        stage = _heaviest(
            app,
            lambda s: (
                s.tasks >= self._FEWEST
                and (
                    (s.run > 10 * _WORTH and s.gc > 0.15 * s.run)
                    or s.spilled_disk > max(0.2 * (s.shuffle_read + s.input_bytes), 8 * _MiB)
                )
            ),
        )
        if stage is None:
            return None
        evidence = (
            f"stage {stage.number}: {app.executor_cores} cores share {size_text(memory)}; {size_text(stage.spilled_disk)} "
            f"went to disk, {100 * stage.gc / max(stage.run, 1e-3):.0f} % of the time is garbage collection"
        )
        name = "spark.executor.cores"
        return Finding(
            self.name,
            evidence,
            "more memory for each task",
            _share(app, stage),
            name,
            app.number(name, app.executor_cores),
            float(max(2, round(memory / self._AIM))),
            stage.number,
        )


class FewTasks:
    """A long stage has fewer tasks than there are cores."""

    name = "few tasks"

    def look(self, app: Application) -> Finding | None:
        stage = _heaviest(
            app,
            lambda s: 0 < s.tasks < app.cores and s.duration > 2 and s.shuffle_read > _MiB
            and s.run > 0.5 * s.tasks * s.duration,
        )  # fmt: skip
        if stage is None:
            return None
        evidence = f"stage {stage.number}: {stage.tasks} tasks for {app.cores} cores, {stage.duration:.1f} s long"
        expected = f"up to {app.cores / stage.tasks:.0f} times as many cores work"
        weight = _share(app, stage)
        name = "spark.sql.adaptive.advisoryPartitionSizeInBytes"
        old, new = app.number(name, 64 * _MiB), stage.shuffle_read / (2.0 * app.cores)
        if not _is_adaptive(app) or new >= old:
            name = "spark.sql.shuffle.partitions"
            old, new = app.number(name, 200), 2.0 * app.cores
        return Finding(self.name, evidence, expected, weight, name, old, new, stage.number)


class GarbageCollection:
    """Executors spend much of their time on collecting garbage."""

    name = "garbage collection"

    def look(self, app: Application) -> Finding | None:
        run, gc = sum(s.run for s in app.stages), sum(s.gc for s in app.stages)
        if run < 10 * _WORTH or gc < 0.15 * run:
            return None
        evidence = f"{100 * gc / run:.0f} % of the tasks' time is garbage collection"
        name = "spark.executor.memory"
        if name not in app.settings:
            return Finding(self.name, evidence, "give executors more memory", gc / run)
        old = app.number(name, _GiB)
        return Finding(
            self.name, evidence, "less time for collections", gc / run, name, old, 1.5 * old
        )


class IdleExecutors:
    """Executors are there and do nothing for most of the time."""

    name = "idle executors"

    def look(self, app: Application) -> Finding | None:
        busy = sum(s.run + s.deserialise for s in app.stages)
        if app.core_seconds < 15 or busy > 0.2 * app.core_seconds:
            return None
        share = 1 - busy / app.core_seconds
        evidence = f"{app.cores} cores do nothing for {100 * share:.0f} % of the time"
        name = "spark.dynamicAllocation.maxExecutors"
        if app.is_on("spark.dynamicAllocation.enabled", False) and app.executors > 1:
            new = float(max(1, app.executors // 2))
            return Finding(
                self.name,
                evidence,
                "as fast with fewer executors",
                share * 0.1,
                name,
                app.number(name, app.executors),
                new,
            )
        return Finding(
            self.name, evidence, "as fast with fewer executors, or give them work", share * 0.1
        )


class BroadcastInstead:
    """A join shuffles both sides although one is small."""

    name = "broadcast instead of shuffle"
    _SMALL = 32 * _MiB

    def look(self, app: Application) -> Finding | None:
        name = "spark.sql.autoBroadcastJoinThreshold"
        if not app.joins.get("SortMergeJoin"):
            return None
        sides = sorted(s.shuffle_written for s in app.stages if s.shuffle_written)
        old = app.number(name, 10 * _MiB)
        if len(sides) < 2 or sides[0] > self._SMALL or sides[-1] < 20 * sides[0]:
            return None
        # Rows in memory take several times what they take in a shuffle, compressed.
        new = float(max(10 * _MiB, min(8 * sides[0], 256 * _MiB)))
        if old >= new:
            return None
        evidence = (
            f"a sort-merge join shuffles {size_text(sides[-1])} to meet {size_text(sides[0])}"
        )
        weight = 0.5
        return Finding(
            self.name, evidence, "the large side is not shuffled", weight, name, old, new
        )


class FailedTasks:
    """Tasks fail and run again."""

    name = "failed tasks"

    def look(self, app: Application) -> Finding | None:
        failed, tasks = sum(s.failed_tasks for s in app.stages), sum(s.tasks for s in app.stages)
        if failed < 3 or failed < 0.02 * tasks:
            return None
        evidence = f"{failed:,} of {tasks + failed:,} attempts of tasks failed"
        return Finding(
            self.name, evidence, "see the first error of the executors", min(1.0, failed / tasks)
        )


class BlockedReads:
    """Tasks wait for the rows of their shuffles."""

    name = "blocked reads"

    def look(self, app: Application) -> Finding | None:
        stage = _heaviest(app, lambda s: s.run > 5 * _WORTH and s.waited > 0.3 * s.run)
        if stage is None:
            return None
        share = stage.waited / stage.run
        evidence = f"stage {stage.number}: tasks wait {100 * share:.0f} % of their time for rows"
        return Finding(
            self.name,
            evidence,
            "the shuffle service reads each partition in one piece",
            share * _share(app, stage),
            stage=stage.number,
        )


class TooManyTasks:
    """Starting tasks takes longer than what they do."""

    name = "task overhead"

    def look(self, app: Application) -> Finding | None:
        stage = _heaviest(
            app,
            lambda s: (
                s.tasks >= max(500, 20 * app.cores)
                and s.task_run.median < 0.05
                and s.shuffle_read == 0
                and not s.reads_files
            ),
        )
        if stage is None:
            return None
        evidence = (
            f"stage {stage.number}: {stage.tasks:,} tasks of {1000 * stage.task_run.median:.0f} ms"
        )
        name = "spark.default.parallelism"
        return Finding(
            self.name,
            evidence,
            "fewer tasks to start",
            _share(app, stage),
            name,
            app.number(name, float(stage.tasks)),
            4.0 * max(app.cores, 1),
            stage.number,
        )


_BUILT_IN: tuple[Callable[[], Rule], ...] = (
    SmallPartitions, LargePartitions, SmallSplits, Skew, Spill, ManyCores, FewTasks, GarbageCollection,
    IdleExecutors, BroadcastInstead, FailedTasks, BlockedReads, TooManyTasks,
)  # fmt: skip
