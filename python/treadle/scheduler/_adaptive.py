"""How many workers there should be, and which of them can go, by what there is to do.

As distributed's ``Scheduler.adaptive_target`` and ``workers_to_close`` have it. Both functions take
answers of the native scheduler: to ``load``, and the workers of ``identity``.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import dask
from dask.utils import parse_timedelta

__all__ = ["is_busy", "target_of", "workers_to_close"]

# Of the memory of all workers: beyond it there should be twice as many.
_FULL = 0.6
# How many times the memory of all values the workers that stay have, unless somebody says how many go.
_ROOM = 2.0

Workers = Mapping[str, Mapping[str, Any]]


def target_of(
    load: Mapping[str, float], workers: Workers, target_duration: str | float | None = None
) -> int:
    """Return how many workers there should be.

    Parameters
    ----------
    load
        How many tasks are ``ready`` and ``assigned``, the ``seconds`` that they take, and how many
        are of ``unknown`` duration.
    workers
        Those that there are, by address.
    target_duration
        The time in which all should be done, by default Dask's
        ``distributed.adaptive.target-duration``.
    """
    if target_duration is None:
        target_duration = dask.config.get("distributed.adaptive.target-duration")
    guess = parse_timedelta(dask.config.get("distributed.scheduler.unknown-task-duration"))
    tasks = load["ready"] + load["assigned"]
    seconds = load["seconds"] + load["unknown"] * guess
    # A few long tasks ask for no more threads than there are tasks.
    threads = min(tasks, math.ceil(seconds / parse_timedelta(target_duration)))
    if not workers:
        return int(threads)
    present = sum(worker["nthreads"] for worker in workers.values())
    target: int = math.ceil(threads * len(workers) / present)
    limit = sum(worker["memory_limit"] for worker in workers.values())
    if limit and sum(map(_bytes, workers.values())) > _FULL * limit:
        target = max(target, 2 * len(workers))
    if target >= len(workers):
        return target
    return len(workers) - len(workers_to_close(workers))


def workers_to_close(
    workers: Workers,
    *,
    n: int | None = None,
    target: int | None = None,
    minimum: int | None = None,
    memory_ratio: float | None = None,
    groups: Mapping[str, Hashable] | None = None,
) -> list[str]:
    """Return the addresses of workers that can go, those first that are idle and hold little.

    With neither ``n`` (how many go) nor ``target`` (how many stay), as many as are idle, if the
    others have ``memory_ratio`` (2) times the memory that all values take. However many go, the
    values fit into the others' memory. Workers of one of the ``groups``, given by address, go
    together.
    """
    if target is not None and n is None:
        n = max(len(workers) - target, 0)
    room = _ROOM if n is None and memory_ratio is None else memory_ratio or 1.0
    total = sum(map(_bytes, workers.values()))
    left = sum(worker["memory_limit"] for worker in workers.values())
    has_limits = all(worker["memory_limit"] for worker in workers.values())
    chosen: list[str] = []
    members: dict[Hashable, list[str]] = {}
    for address in workers:
        members.setdefault(groups[address] if groups else address, []).append(address)
    for group in sorted(members.values(), key=lambda group: _cost([workers[a] for a in group])):
        left -= sum(workers[address]["memory_limit"] for address in group)
        if n is None and any(is_busy(workers[address]) for address in group):
            break
        stay = len(workers) - len(chosen) - len(group)
        if n is not None and stay < len(workers) - n:
            break
        if minimum and stay < minimum:
            break
        if total and (not stay or (has_limits and left < room * total)):
            # Its values would be nowhere.
            break
        chosen += group
    return chosen


def is_busy(worker: Mapping[str, Any]) -> bool:
    """Return whether a worker has tasks, by what the scheduler says of it."""
    metrics = worker["metrics"]
    return bool(metrics["executing"] or metrics["ready"])


def _bytes(worker: Mapping[str, Any]) -> int:
    metrics = worker["metrics"]
    # What it told last may be older than its first value.
    return int(max(metrics["managed_bytes"], metrics["in_memory"]))


def _cost(group: Sequence[Mapping[str, Any]]) -> tuple[bool, int]:
    return any(map(is_busy, group)), sum(map(_bytes, group))
