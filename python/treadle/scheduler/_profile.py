"""The profiles of all workers, as distributed's scheduler hands them out."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from itertools import groupby
from typing import TYPE_CHECKING, Any

import dask
from dask.utils import parse_timedelta
from distributed import profile

if TYPE_CHECKING:
    from treadle.scheduler._standin import SchedulerStandIn

__all__ = ["Profiles"]


class Profiles:
    """Asks the workers, which begin to sample when they are asked first."""

    def __init__(self, scheduler: SchedulerStandIn) -> None:
        self._scheduler = scheduler

    async def get(
        self,
        workers: Iterable[str] | None = None,
        scheduler: bool = False,
        server: bool = False,
        merge_workers: bool = True,
        start: float | None = None,
        stop: float | None = None,
        key: Hashable = None,
    ) -> dict[str, Any]:
        """Return the tree of calls of tasks; see ``distributed.Scheduler.get_profile``.

        It is empty where ``distributed.worker.profile.enabled`` is off.

        Raises
        ------
        NotImplementedError
            Of the scheduler, or of what serves workers: both are native.
        """
        if not dask.config.get("distributed.worker.profile.enabled"):
            empty: dict[str, Any] = profile.create()
            return empty if merge_workers else {}
        for name, asked in (("scheduler", scheduler), ("server", server)):
            if asked:
                raise NotImplementedError(
                    f"profile({name}=True) is not served: Treadle's scheduler and engine are native"
                )
        found = await self._ask(workers, op="profile", start=start, stop=stop, key=key)
        if not merge_workers:
            return found
        merged: dict[str, Any] = profile.merge(*found.values())
        return merged

    async def metadata(
        self,
        workers: Iterable[str] | None = None,
        start: float = 0,
        stop: float | None = None,
        profile_cycle_interval: Any = None,
    ) -> dict[str, Any]:
        """Return how many samples there were over time, and of which prefix.

        See ``distributed.Scheduler.get_profile_metadata``.
        """
        setting = profile_cycle_interval or dask.config.get("distributed.worker.profile.cycle")
        cycle = parse_timedelta(setting, default="ms")
        found = (await self._ask(workers, op="profile_metadata", start=start, stop=stop)).values()

        def at(entry: Any) -> float:
            return float(entry[0] // cycle * cycle)

        counts = sorted(entry for one in found for entry in one["counts"])
        entries = sorted((entry for one in found for entry in one["keys"]), key=at)
        prefixes = {prefix for _, keys in entries for prefix in keys}
        lines: dict[str, list[list[float]]] = {prefix: [] for prefix in prefixes}
        for moment, group in groupby(entries, at):
            together = [keys for _, keys in group]
            for prefix, line in lines.items():
                line.append([moment, sum(keys.get(prefix, 0) for keys in together)])
        summed = [(moment, sum(n for _, n in group)) for moment, group in groupby(counts, at)]
        return {"counts": summed, "keys": lines}

    async def _ask(self, workers: Iterable[str] | None, **message: Any) -> dict[str, Any]:
        # One that is lost meanwhile has no profile.
        known = None if workers is None else set(self._scheduler.workers) & set(workers)
        return await self._scheduler.broadcast(msg=message, workers=known, on_error="ignore")
