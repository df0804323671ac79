"""Rules of diagnosis for runs of Dask. What they name is in the program: none of them changes a setting."""

from __future__ import annotations

from collections.abc import Callable

from treadle.coordinator._dask_run import DaskRun, TaskGroup
from treadle.coordinator._finding import Finding, Rule, size_text
from treadle.coordinator._measures import Application

__all__ = ["DASK_RULES"]

_KiB, _MiB = 2**10, 2**20


def _share(run: DaskRun, group: TaskGroup) -> float:
    return group.seconds / run.task_seconds if run.task_seconds else 0.0


class SmallChunks:
    """Very many tasks that do next to nothing each."""

    name = "small chunks"
    _FEWEST, _SMALL, _SHORT, _AIM = 1000, _MiB, 0.01, 64 * _MiB

    def look(self, app: Application) -> Finding | None:
        run = app.dask
        if run is None:
            return None
        found = [
            one
            for one in run.groups
            if one.tasks >= self._FEWEST
            and one.median_bytes < self._SMALL
            and one.median_seconds < self._SHORT
            # Results that are single numbers are no chunks.
            and one.largest_bytes > _KiB
        ]
        group = max(found, key=lambda one: one.tasks, default=None)
        if group is None:
            return None
        factor = min(self._AIM / max(group.median_bytes, 1), group.tasks / max(4 * run.workers * run.threads, 1))  # fmt: skip
        evidence = (
            f"{group.tasks:,} tasks {group.name} of {1000 * group.median_seconds:.1f} ms have results of "
            f"{size_text(group.median_bytes)}"
        )
        expected = f"chunks or partitions of {max(2.0, factor):.0f} times the size need so many fewer tasks"
        return Finding(self.name, evidence, expected, max(_share(run, group), 0.2))


class LargeChunks:
    """Chunks of which a worker's memory holds but a few for each of its threads."""

    name = "large chunks"
    _HELD = 3

    def look(self, app: Application) -> Finding | None:
        run = app.dask
        if run is None or not run.memory_limit or not run.threads:
            return None
        limit = run.memory_limit / (self._HELD * run.threads)
        # A single result may be what the job is for.
        found = [one for one in run.groups if one.tasks >= 4 and one.median_bytes > limit]
        group = max(found, key=lambda one: one.median_bytes, default=None)
        if group is None:
            return None
        evidence = (
            f"half of {group.tasks:,} results of {group.name} have {size_text(group.median_bytes)} or more; "
            f"a worker has {size_text(run.memory_limit)} for {run.threads} threads"
        )
        expected = (
            f"chunks or partitions of {size_text(limit / 4)} leave room for inputs and results"
        )
        return Finding(self.name, evidence, expected, max(_share(run, group), 0.3))


class ManyThreads:
    """Threads of a worker wait for the interpreter's lock."""

    name = "many threads a worker"
    _FEWEST, _LONG = 4, 2.0

    def look(self, app: Application) -> Finding | None:
        run = app.dask
        if run is None or run.threads < self._FEWEST or run.busy_seconds < self._LONG:
            return None
        # About one processor is what the lock leaves. Less is waiting: for disks, for other hosts, for a processor.
        is_locked = 0.6 < run.processors < max(1.5, 0.25 * run.executing)
        if run.executing < 0.75 * self._FEWEST or not is_locked:
            return None
        evidence = (
            f"a worker that runs {run.executing:.1f} tasks at once uses {run.processors:.1f} processors: "
            "the tasks hold the interpreter's lock"
        )
        expected = "more workers with one or two threads each use all processors"
        return Finding(self.name, evidence, expected, 1 - run.processors / run.executing)


class MemoryLimit:
    """Values go to disk, or workers are lost, for want of memory."""

    name = "memory limit"
    _NEAR, _SPILLED = 0.6, 0.25

    def look(self, app: Application) -> Finding | None:
        run = app.dask
        if run is None or not run.memory_limit:
            return None
        total = run.memory_limit * max(run.workers, 1)
        spilled = max(run.spilled_bytes, sum(one.spilled_bytes for one in run.shuffles))
        is_near = run.peak_memory > self._NEAR * run.memory_limit
        if not (is_near and (spilled > self._SPILLED * total or run.lost_workers)):
            return None
        lost = f", {run.lost_workers} workers were lost" if run.lost_workers else ""
        evidence = (
            f"{size_text(spilled)} went to disk{lost}; a worker came to {size_text(run.peak_memory)} of "
            f"{size_text(run.memory_limit)}"
        )
        return Finding(
            self.name, evidence, "more memory for each worker, or more workers", min(1.0, spilled / total)
        )  # fmt: skip


class ShuffleByTasks:
    """A shuffle that is made of tasks: their number is the square of that of the partitions, or so."""

    name = "shuffle by tasks"
    _PARTS, _WORTH = ("shuffle-split", "split-shuffle", "taskshuffle", "split-taskshuffle", "shuffle-group"), 200  # fmt: skip

    def look(self, app: Application) -> Finding | None:
        run = app.dask
        if run is None:
            return None
        found = [one for one in run.groups if self._is_split(one.name) and one.tasks >= self._WORTH]
        group = max(found, key=lambda one: one.tasks, default=None)
        if group is None:
            return None
        evidence = f"{group.tasks:,} tasks {group.name} split rows for other partitions"
        expected = "dataframe.shuffle.method p2p moves rows with one task a partition"
        return Finding(self.name, evidence, expected, max(_share(run, group), 0.3))

    def _is_split(self, name: str) -> bool:
        return any(part in name for part in self._PARTS)


class ShuffleOfFew:
    """P2P for a few rows: its barrier costs more than they do."""

    name = "p2p for few rows"
    _FEWEST, _SMALL, _LIKE = 20, _MiB, 0.8

    def look(self, app: Application) -> Finding | None:
        run = app.dask
        if run is None or len(run.shuffles) < self._FEWEST:
            return None
        small = [one for one in run.shuffles if one.bytes < self._SMALL and one.partitions <= 32]
        if len(small) < self._LIKE * len(run.shuffles):
            return None
        evidence = f"{len(small)} of {len(run.shuffles)} shuffles have less than {size_text(self._SMALL)} each"
        expected = "dataframe.shuffle.method tasks, or one partition, has no barrier for each"
        return Finding(self.name, evidence, expected, 0.2)


DASK_RULES: tuple[Callable[[], Rule], ...] = (
    SmallChunks, LargeChunks, ManyThreads, MemoryLimit, ShuffleByTasks, ShuffleOfFew,
)  # fmt: skip
