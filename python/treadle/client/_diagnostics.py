"""What ``client.scheduler`` answers about the past and the state of the cluster."""

from __future__ import annotations

import asyncio
import random
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Hashable, Mapping
from typing import Any

from treadle._compat.distributed import TaskStreamPlugin, get_versions, write_state
from treadle.client import _report

__all__ = ["Diagnostics", "TaskStream"]


# Seconds by which runs of one thread may seem to overlap: reports are of different moments.
_OVERLAP = 0.001


# Asks the scheduler for runs.
Ask = Callable[[int | None], Awaitable[Mapping[str, Any]]]


class TaskStream:
    """The runs of tasks that the scheduler has told of, since somebody first asked.

    ``ask`` of its methods asks the scheduler for runs: it is called with the number of the first one that
    is wanted. It is not kept, since it belongs to whoever keeps this.
    """

    def __init__(self) -> None:
        self._next: int | None = None
        self._lock = asyncio.Lock()
        # By worker, when the last run of each row of the stream ends.
        self._rows: defaultdict[str, list[float]] = defaultdict(list)
        # Of distributed: keeps a bounded number of runs, and finds those of a time.
        self._runs = TaskStreamPlugin(None)

    async def collect(self, ask: Ask, **which: Any) -> list[dict[str, Any]]:
        """Return runs as ``Scheduler.get_task_stream`` does; see ``TaskStreamPlugin.collect``."""
        await self._pull(ask)
        runs: list[dict[str, Any]] = self._runs.collect(**which)
        return runs

    async def index(self, ask: Ask) -> int:
        """Return how many runs there have been."""
        await self._pull(ask)
        index: int = self._runs.index
        return index

    async def _pull(self, ask: Ask) -> None:
        async with self._lock:
            answer = await ask(self._next)
            self._next = answer["next"]
            for run in answer["runs"]:
                self._add(*run)

    def _add(
        self,
        key: Hashable,
        name: str,
        worker: str,
        start: float,
        stop: float,
        nbytes: int,
        good: bool,
    ) -> None:
        self._runs.transition(
            key,
            "processing",
            "memory" if good else "erred",
            name=name,
            worker=worker,
            thread=self._row(worker, start, stop),
            startstops=({"action": "compute", "start": start, "stop": stop},),
            status="OK" if good else "error",
            nbytes=nbytes,
        )

    def _row(self, worker: str, start: float, stop: float) -> int:
        """Return the number of a row of the worker's that is free: its threads are not told.

        Runs come in about the order of their ends, so that there are about as many rows as threads if
        the one is taken that was free for the shortest time.
        """
        rows = self._rows[worker]
        free = [row for row, end in enumerate(rows) if end <= start + _OVERLAP]
        if not free:
            rows.append(stop)
            return len(rows) - 1
        row = max(free, key=rows.__getitem__)
        rows[row] = stop
        return row


class Diagnostics:
    """The part of ``client.scheduler`` for those who look into the cluster."""

    def __init__(self) -> None:
        self._stream = TaskStream()

    async def _ask(self, operation: str, argument: Mapping[str, Any]) -> Any:
        raise NotImplementedError

    async def broadcast(self, msg: Mapping[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Call a handler of workers."""
        raise NotImplementedError

    async def proxy(self, worker: str, msg: Mapping[str, Any], **kwargs: Any) -> Any:
        """Call a handler of one worker."""
        raise NotImplementedError

    async def _task_events(self, since: int | None) -> Mapping[str, Any]:
        events: dict[str, Any] = await self._ask("task-events", {"since": since})
        if events["runs"]:
            # Workers are told by name there, and by address here.
            known = (await self._ask("identity", {"n_workers": -1}))["workers"]
            addresses = {str(worker["name"]): address for address, worker in known.items()}
            events["runs"] = [
                (key, name, addresses.get(worker, worker), *rest)
                for key, name, worker, *rest in events["runs"]
            ]
        return events

    async def get_task_stream(
        self,
        start: str | float | None = None,
        stop: str | float | None = None,
        count: int | None = None,
        start_index: int | None = None,
    ) -> tuple[dict[str, Any], ...]:
        """Return the runs of tasks since this or another question for them was first asked."""
        found = await self._stream.collect(
            self._task_events, start=start, stop=stop, count=count, start_index=start_index
        )
        return tuple(found)

    async def get_task_stream_index(self) -> int:
        """Return how many runs there have been since then."""
        return await self._stream.index(self._task_events)

    async def performance_report(
        self, *, start: float, code: str = "", mode: str | None = None, **_kwargs: Any
    ) -> str:
        """Return a page about what ran since a time, in seconds since 1970."""
        runs = await self._stream.collect(self._task_events, start=start)
        identity = await self._ask("identity", {"n_workers": -1})
        return _report.page(runs, identity, start=start, code=code, mode=mode)

    async def benchmark_hardware(self) -> dict[str, dict[str, float]]:
        """Measure disks, memory, and the network between pairs of workers: bytes per second."""
        disk = await self.broadcast({"op": "benchmark_disk"})
        memory = await self.broadcast({"op": "benchmark_memory"})
        workers = list(disk)
        # Neighbours in the list are likely to be on the same host.
        random.shuffle(workers)
        pairs = zip(workers[::2], workers[1::2], strict=False)
        network = await asyncio.gather(
            *(self.proxy(a, {"op": "benchmark_network", "address": b}) for a, b in pairs)
        )
        return {
            "disk": _means(disk.values()),
            "memory": _means(memory.values()),
            "network": _means(network),
        }

    async def get_cluster_state(self, exclude: Collection[str] = ()) -> dict[str, Any]:
        """Return what the scheduler and the workers know, as plain values, for a dump."""
        identity = await self._ask("identity", {"n_workers": -1})
        holders = await self._ask("who_has", {})
        sizes = await self._ask("nbytes", {"summary": False})
        processing = await self._ask("processing", {})
        tasks = {
            str(key): {
                "key": str(key),
                "state": "memory" if key in sizes else "released",
                "who_has": list(workers),
                "nbytes": sizes.get(key, -1),
            }
            for key, workers in holders.items()
        }
        for worker, keys in processing.items():
            for key in keys:
                tasks[str(key)] |= {"state": "processing", "processing_on": worker}
        story = await self._ask("story", {"keys": list(holders)})
        scheduler = {
            **identity,
            # A dump is handed on: whoever has it is not to be let in.
            "http": (identity["http"] or "").partition("?")[0] or None,
            "tasks": tasks,
            "transition_log": [[str(step[name]) for name in sorted(step)] for step in story],
            "time": time.time(),
        }
        workers = {
            address: {**about, "tasks": {}} for address, about in identity["workers"].items()
        }
        for task in tasks.values():
            at = [task["processing_on"]] if "processing_on" in task else task["who_has"]
            state = "executing" if "processing_on" in task else "memory"
            for worker in at:
                if worker in workers:
                    workers[worker]["tasks"][task["key"]] = {"key": task["key"], "state": state}
        versions = await self.broadcast({"op": "versions"}, on_error="ignore")
        return {
            "scheduler": _without(scheduler, exclude),
            "workers": _without(workers, exclude),
            "versions": {"scheduler": get_versions(), "workers": versions},
        }

    async def dump_cluster_state_to_url(
        self, url: str, exclude: Collection[str] = (), **options: Any
    ) -> None:
        """Write that to a URL: from here, where the client's credentials for it are."""

        async def state() -> dict[str, Any]:
            return await self.get_cluster_state(exclude)

        await write_state(state, url, **options)


def _without(state: Any, names: Collection[str]) -> Any:
    """Return nested dictionaries without some names."""
    if not isinstance(state, Mapping):
        return state
    return {name: _without(of, names) for name, of in state.items() if name not in names}


def _means(measured: Collection[Mapping[str, float]]) -> dict[str, float]:
    sizes = {size: None for one in measured for size in one}
    return {
        size: sum(one[size] for one in measured if size in one)
        / sum(1 for one in measured if size in one)
        for size in sizes
    }
