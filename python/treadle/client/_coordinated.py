"""A client's job at the coordinator that is configured: asked about at its start, reported at its end.

Nothing here fails a job. The coordinator, the scheduler and the services are waited for within bounds.
"""

from __future__ import annotations

import asyncio
import logging
import pickle
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import dask.config
from dask.utils import key_split

from treadle.client._scheduler_rpc import ask_python
from treadle.common._ask import ask
from treadle.common._loop import off_loop
from treadle.shuffle._history import ShuffleRecord

if TYPE_CHECKING:
    from treadle.client._connected import Connected
    from treadle.coordinator._asking import Answer

__all__ = ["CoordinatedJob"]

logger = logging.getLogger("treadle.coordinator")
# Seconds for what is gathered at the end.
_GATHERED_WITHIN = 2.0
# Runs of tasks that are looked at: the latest ones.
_MOST_RUNS = 50_000
# A call of each worker.
_PROCESS_TIME, _NOTHING = pickle.dumps(time.process_time), (pickle.dumps(()), pickle.dumps({}))
# As many groups and shuffles as a report may have.
_MOST_GROUPS = 100
# What tasks of a shuffle wait for: fields of its record.
_WAITS = ("push_seconds", "compare_seconds", "read_seconds")


class CoordinatedJob:
    """What a client asks of a coordinator, and tells it."""

    def __init__(self, *, is_part: bool) -> None:
        #: Whether it is part of another client's job: then nobody is asked.
        self._is_part = is_part
        #: Whether a ``with`` block of the client's ended by an error.
        self.failed = False
        self._began = time.monotonic()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._answer: Answer | None = None
        self._from: int | None = None
        self._workers: dict[str, Any] = {}
        self._peak, self._spilled = 0, 0
        self._used_before: asyncio.Task[dict[str, float]] | None = None

    def begin(self) -> bool:
        """Ask, without waiting for the answer; return whether somebody is asked."""
        if self._is_part or not dask.config.get("treadle.coordinator.url", None):
            return False
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._ask, name="coordinator", daemon=True)
                self._thread.start()
        return True

    def _ask(self) -> None:
        from treadle.coordinator._settings import asked

        try:
            self._answer = asked()
        except Exception as error:
            logger.warning("shuffles stay at the workers: %s", error)

    def servers(self) -> str | None:
        """Return the address of the servers that the coordinator gives. Waits for its answer, two seconds at most."""
        if not self.begin() or self._thread is None:
            return None
        self._thread.join()
        from treadle.coordinator._settings import servers_of

        return servers_of(self._answer)

    async def watch(self, client: Connected) -> None:
        """Have the scheduler keep the latest runs of tasks from now on, and ask what workers have used so far."""
        try:
            self._from = (await ask(_connection(client), "", "task-events", {}))["next"]
        except (OSError, ValueError) as error:
            logger.debug("tasks are not watched: %s", error)
        self._used_before = asyncio.ensure_future(_used(client))

    def look(self, identity: Mapping[str, Any]) -> None:
        """Take what the scheduler says of some workers."""
        if self._thread is None:
            return
        spilled = 0
        for address, worker in identity["workers"].items():
            self._workers[address] = worker
            metrics = worker["metrics"]
            self._peak = max(self._peak, int(metrics["memory"]))
            spilled += int(metrics["spilled_bytes"]["disk"])
        shown = len(identity["workers"])
        if shown:
            # Of those that are shown; the others are taken to be like them.
            self._spilled = max(self._spilled, spilled * identity.get("n_workers", shown) // shown)

    async def end(self, client: Connected) -> None:
        """Report the end, if there was a decision."""
        before, self._used_before = self._used_before, None
        if before is not None:
            before.cancel()
        if self._thread is None:
            return
        # It ends within the two seconds that it has: a short job has a decision, and so an end, too.
        await off_loop(self._thread.join)
        answer = self._answer
        if answer is None or not answer.id:
            return
        from treadle.coordinator._settings import reported, servers_of

        seconds = time.monotonic() - self._began
        records: list[ShuffleRecord] = []
        report: dict[str, Any] = {"duration": seconds}
        try:
            records, report["run"] = await asyncio.wait_for(
                self._gathered(client, before, seconds), _GATHERED_WITHIN
            )
        except Exception as error:
            # A scheduler that is gone: the end itself is told.
            logger.debug("the report has no measures: %r", error, exc_info=True)
        report |= _sums(records, self._has_failed(), servers_of(answer) is not None)
        await off_loop(reported, answer.id, report)

    async def _gathered(
        self, client: Connected, before: asyncio.Task[dict[str, float]] | None, seconds: float
    ) -> tuple[list[ShuffleRecord], dict[str, Any]]:
        records = await _records(_connection(client), client.id)
        assert client.scheduler is not None
        identity = await client.scheduler.identity()
        self._workers.clear()
        self.look(identity)
        runs = await self._runs(_connection(client))
        used = await _used(client)
        known = (
            before.done() and not before.cancelled() and before.exception() is None
            if before
            else False
        )
        if before is not None and known:
            used = {one: used[one] - before.result().get(one, 0.0) for one in used}
        names = {str(one["name"]): address for address, one in identity["workers"].items()}
        return records, self._run(seconds, records, runs, _load(runs["runs"], names, used))

    def _has_failed(self) -> bool:
        # What ends a script is noted before its clients are closed. In a session, an error ends nothing.
        is_session = hasattr(sys, "ps1") or "IPython" in sys.modules
        return self.failed or (not is_session and getattr(sys, "last_value", None) is not None)

    async def _runs(self, connection: Any) -> dict[str, Any]:
        if self._from is None:
            return {"runs": [], "lost": 0}
        # From beyond the end, there are none: it tells how many there were.
        told = await ask(connection, "", "task-events", {"since": 2**62})
        since = max(self._from, told["next"] - _MOST_RUNS)
        found: dict[str, Any] = await ask(connection, "", "task-events", {"since": since})
        found["lost"] += since - self._from
        return found

    def _run(
        self,
        seconds: float,
        records: list[ShuffleRecord],
        told: Mapping[str, Any],
        load: tuple[float, float, float],
    ) -> dict[str, Any]:
        workers = self._workers.values()
        limits = [one["memory_limit"] for one in workers if one["memory_limit"]]
        busy, executing, processors = load
        return {
            "workers": len(workers),
            "threads": max((one["nthreads"] for one in workers), default=0),
            "memory_limit": min(limits, default=0),
            "peak_memory": self._peak,
            "spilled_bytes": self._spilled,
            "lost_workers": _lost(records),
            "busy_seconds": busy,
            "executing": executing,
            "processors": processors,
            "seconds": seconds,
            "groups": _groups(told["runs"]),
            "shuffles": [_shuffle(one) for one in records[-_MOST_GROUPS:]],
            "left_out": told["lost"],
        }


def _connection(client: Connected) -> Any:
    # None is of a client that is closed: calls of it fail, and are taken as such.
    return client._connection


async def _records(connection: Any, client: str) -> list[ShuffleRecord]:
    """Return the shuffles that a client has submitted, as ``Client.shuffles`` does."""
    told = await ask(connection, "", "shuffle_records", {})
    told = [one for one in told if one["client"] == client]
    there: dict[int, dict[str, Any]] = {}
    if any("service" in one for one in told):
        there = await ask_python(connection, "sidecar", "shuffle_records_at_services", {})
    joined = (ShuffleRecord.joined(one, there.get(one["number"])) for one in told)
    return [ShuffleRecord.of(one) for one in joined]


async def _used(client: Connected) -> dict[str, float]:
    """Return the seconds of processors that the process of each worker has used."""
    assert client.scheduler is not None
    message = {"op": "run", "function": _PROCESS_TIME, "args": _NOTHING[0], "kwargs": _NOTHING[1], "wait": True}  # fmt: skip
    # Not `Client.run`: a client that closes refuses it.
    told = await client.scheduler.broadcast(message, on_error="return_pickle")
    is_answer = {one: isinstance(answer, Mapping) and answer.get("status") == "OK" for one, answer in told.items()}  # fmt: skip
    return {one: float(answer["result"]) for one, answer in told.items() if is_answer[one]}


def _load(
    runs: list[Any], names: Mapping[str, str], used: Mapping[str, float]
) -> tuple[float, float, float]:
    """Return of the worker that was busy for longest: for how long, how many tasks at once, on how many processors."""
    spans: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    for _key, _name, worker, start, stop, _nbytes, _good in runs:
        spans[names.get(worker, worker)].append((start, stop))
    loads = [(0.0, 0.0, 0.0)]
    for worker, some in spans.items():
        busy, until = 0.0, 0.0
        for start, stop in sorted(some):
            busy += max(0.0, stop - max(start, until))
            until = max(until, stop)
        if busy > 0:
            executing = sum(stop - start for start, stop in some) / busy
            loads.append((busy, executing, max(0.0, used.get(worker, 0.0)) / busy))
    return max(loads)


def _lost(records: list[ShuffleRecord]) -> int:
    """Return how many workers or servers were lost that had rows of these shuffles."""
    troubles = [str(one["what"]) for record in records for one in record.troubles or ()]
    # "worker NAME was lost", and why.
    return len({what.partition(" was lost")[0] for what in troubles if " was lost" in what})


def _sums(records: list[ShuffleRecord], failed: bool, on_service: bool) -> dict[str, Any]:
    """Return the fields of an end."""
    at_service = [one for one in records if one.service]
    found: dict[str, Any] = {
        "failed": failed,
        "shuffle_bytes": sum(one.bytes or 0 for one in records),
        "stages": len(records),
        "blocked": sum((one.work or {}).get(name, 0.0) for one in records for name in _WAITS),
        "retries": sum((one.repeated or 0) + (one.work or {}).get("again", 0) for one in records),
        "lost_servers": _lost(at_service),
    }
    if on_service:
        rows = [one for one in records if one.kind in ("shuffle", "merge") and not one.service]
        found["fallbacks"] = len(rows)
    if failed:
        broken = [one for one in at_service if one.state == "failed"]
        found["cause"] = "service" if broken else "job"
        error = broken[0].failure if broken else getattr(sys, "last_value", None)
        found["error"] = str(error or "")[:2000]
    return found


def _groups(runs: list[Any]) -> list[dict[str, Any]]:
    """Return the tasks by name, those that took longest first."""
    # Only jobs with a coordinator pay for it.
    import statistics

    seconds: defaultdict[str, list[float]] = defaultdict(list)
    sizes: defaultdict[str, list[int]] = defaultdict(list)
    for key, _name, _worker, start, stop, nbytes, good in runs:
        if good:
            name = key_split(key)
            seconds[name].append(stop - start)
            sizes[name].append(nbytes)
    longest = sorted(seconds, key=lambda name: -sum(seconds[name]))[:_MOST_GROUPS]
    return [
        {
            "name": name,
            "tasks": len(seconds[name]),
            "seconds": sum(seconds[name]),
            "median_seconds": statistics.median(seconds[name]),
            "median_bytes": int(statistics.median(sizes[name])),
            "largest_bytes": max(sizes[name]),
        }
        for name in longest
    ]


def _shuffle(one: ShuffleRecord) -> dict[str, Any]:
    sizes = one.sizes
    work = one.work or {}
    return {
        **{name: float(work.get(name) or 0.0) for name in _WAITS},
        "kind": str(one.kind),
        "partitions": one.partitions or 0,
        "bytes": one.bytes or 0,
        "spilled_bytes": work.get("spilled_bytes", 0),
        "seconds": sum((one.seconds or {}).values()),
        "largest_bytes": sizes.largest[0][1] if sizes is not None and sizes.largest else 0,
    }
