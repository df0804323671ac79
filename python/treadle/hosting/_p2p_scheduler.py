"""P2P shuffles of Dask whose rows Treadle moves: what Dask's scheduler has of them.

Dask's own plugin knows the runs of each shuffle: it begins another one when a worker is lost, and what
was computed from the one before is computed again. Here only the rows, and where they are, belong to
Treadle: each run is a shuffle with a number of its own there.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from itertools import count
from time import monotonic
from typing import Any

from treadle._compat.distributed import (
    P2PConsistencyError,
    ShuffleSchedulerPlugin,
    barrier_key,
    error_message,
    id_from_key,
)
from treadle.hosting._p2p_run import AGAIN, HostedSpec
from treadle.hosting._scheduler_part import SchedulerPart
from treadle.shuffle._graph import kind_named, number_of, unpacks
from treadle.shuffle._spec import describe

__all__ = ["HostedShuffles"]

logger = logging.getLogger("treadle.hosting")

# The name of Dask's plugin, among plugins and extensions of the scheduler.
_NAME = "shuffle"
# What Dask's plugin shares with this one.
_SHARED = ("active_shuffles", "heartbeats", "_shuffles", "_archived_by_stimulus", "_shift_counter")
# Seconds until a worker of Treadle has to be there that can hold rows.
_PATIENCE = 30.0
# How often workers may ask for another run of a shuffle. Runs for lost workers of Dask do not count.
_REPAIRS = 5
# The order of what this plugin makes Dask's scheduler do.
_stimuli = count(1)


class HostedShuffles(ShuffleSchedulerPlugin):  # type: ignore[misc]
    """In the place of Dask's plugin, until :meth:`leave`. Runs that Dask's has begun go on."""

    def __init__(self, scheduler: Any, part: SchedulerPart) -> None:
        self.scheduler = scheduler
        self._part = part
        self._own = scheduler.plugins[_NAME]
        for name in _SHARED:
            setattr(self, name, getattr(self._own, name))
        # One run begins at a time: both sides of a merge are to be at one place.
        self._beginning = asyncio.Lock()
        self._asked: defaultdict[str, int] = defaultdict(int)
        self._is_left = False
        self._enter(self)
        scheduler.handlers[AGAIN] = self.again

    def _enter(self, plugin: Any) -> None:
        scheduler = self.scheduler
        scheduler.plugins[_NAME] = scheduler.extensions[_NAME] = plugin
        scheduler.handlers["shuffle_barrier"] = plugin.barrier
        scheduler.handlers["shuffle_get"] = plugin.get
        scheduler.handlers["shuffle_get_or_create"] = plugin.get_or_create
        scheduler.handlers["shuffle_restrict_task"] = plugin.restrict_task

    async def start(self, scheduler: Any) -> None:
        """Do nothing: workers have Dask's plugin already."""

    def leave(self) -> None:
        """Give its place back to Dask's plugin, which begins what runs anew."""
        self._is_left = True
        self._enter(self._own)
        self.scheduler.handlers.pop(AGAIN, None)
        for name in self._hosted():
            stimulus = _stimulus("leave")
            self._restart_shuffle(name, self.scheduler, stimulus_id=stimulus)
            # One whose tasks have failed does not begin anew.
            if (shuffle := self.active_shuffles.get(name)) is not None:
                self._fail_on_workers(shuffle, message=f"{shuffle} ended: Treadle leaves")
                self._own._clean_on_scheduler(name, stimulus)

    def _hosted(self) -> list[Any]:
        """Return the names of the shuffles whose rows Treadle moves."""
        shuffles = self.active_shuffles.items()
        return [name for name, one in shuffles if isinstance(one.run_spec.spec, HostedSpec)]

    # A run begins

    async def get_or_create(self, shuffle_id: Any, key: Any, worker: str) -> Any:
        """Return what a worker has to know of a shuffle, which the first one makes begin."""
        try:
            while not self._is_left and shuffle_id not in self.active_shuffles:
                async with self._beginning:
                    if not self._is_left and shuffle_id not in self.active_shuffles:
                        await self._begin(shuffle_id, key)
        except P2PConsistencyError as error:
            return error_message(error)
        except Exception:
            # Treadle's scheduler may have ended meanwhile.
            if not self._is_left:
                raise
        if self._is_left:
            return self._own.get_or_create(shuffle_id, key, worker)
        return super().get_or_create(shuffle_id, key, worker)

    async def _begin(self, shuffle_id: Any, key: Any) -> None:
        until = monotonic() + _PATIENCE
        while True:
            spec = self._needed(shuffle_id, key)
            barrier = self.scheduler.tasks[barrier_key(shuffle_id)]
            partitions, outputs, told = describe(spec)
            maps = len(barrier.dependencies)
            addresses = self._addresses(barrier)
            partner = self._partner(barrier)
            begun = await self._part.ask(
                "host_shuffle",
                {
                    "name": str(shuffle_id),
                    "maps": maps,
                    "partitions": partitions,
                    "outputs": [list(one) for one in outputs],
                    "workers": list(addresses),
                    "aligned": partner.number if isinstance(partner, HostedSpec) else None,
                    "kind": kind_named(spec, partner),
                },
            )
            if self._is_left:
                return
            if begun is not None:
                number, homes = begun
                try:
                    self._needed(shuffle_id, key)
                    if self._are_there(homes, addresses):
                        break
                except BaseException:
                    self._end(number)
                    raise
                self._end(number)
            if monotonic() > until:
                raise RuntimeError(
                    f"Shuffle {shuffle_id}: Treadle runs on none of the workers that it may use. See "
                    "their logs, and call treadle.decelerate(client) to shuffle without it"
                )
            await asyncio.sleep(0.1)
        places = {at: addresses[name] for name, first, end in homes for at in range(first, end)}
        worker_for = {one: places[number_of(one, spec)] for one in spec.output_partitions}
        hosted = HostedSpec(id=spec.id, disk=spec.disk, number=number, maps=maps, told=told)
        span = self.scheduler.tasks[key].group.span_id
        state = hosted.create_new_run(worker_for=worker_for, span_id=span)
        self.active_shuffles[shuffle_id] = state
        self._shuffles[shuffle_id].add(state)
        self._ensure_output_tasks_are_non_rootish(spec)
        if partner is None or isinstance(partner, HostedSpec):
            self._send_outputs_home(barrier, spec, worker_for)

    def _needed(self, shuffle_id: Any, key: Any) -> Any:
        """Return the spec of a shuffle that a task of a worker begins.

        Raises
        ------
        P2PConsistencyError
            Nobody needs it any more.
        """
        if key not in self.scheduler.tasks:
            raise P2PConsistencyError(f"the task {key!r} is forgotten")
        self._raise_if_barrier_unknown(shuffle_id)
        self._raise_if_task_not_processing(key)
        return self._retrieve_spec(shuffle_id)

    def _addresses(self, barrier: Any) -> dict[str, str]:
        """Return the addresses, by name, of the workers that may hold rows."""
        workers = self.scheduler.workers
        allowed = barrier.worker_restrictions or workers
        return {str(workers[one].name): one for one in allowed if one in workers}

    def _are_there(self, homes: list[tuple[str, int, int]], addresses: dict[str, str]) -> bool:
        """Return whether Dask still has the workers that Treadle has chosen."""
        workers = self.scheduler.workers
        return all(addresses.get(name) in workers for name, _, _ in homes)

    def _partner(self, barrier: Any) -> Any:
        """Return the spec of the other side of a merge, if it has begun."""
        for reader in barrier.dependents:
            for other in reader.dependencies:
                if other is not barrier and (name := id_from_key(other.key)):
                    shuffle = self.active_shuffles.get(name)
                    if shuffle is not None:
                        return shuffle.run_spec.spec
        return None

    def _send_outputs_home(self, barrier: Any, spec: Any, worker_for: dict[Any, str]) -> None:
        """Have tasks that read an output run where its rows are."""
        for reader in barrier.dependents:
            found = {part for names, part in unpacks(reader.run_spec) if spec.id in names}
            if len(found) == 1 and (home := worker_for.get(found.pop())) is not None:
                self._set_restriction(reader, home)

    # A run ends

    def again(self, id: Any, run_id: int, reason: str) -> str | None:  # noqa: A002
        """Begin another run in the place of one that cannot go on; return why not, if it must not."""
        shuffle = self.active_shuffles.get(id)
        if shuffle is None or shuffle.run_id != run_id:
            return None
        self._asked[id] += 1
        if self._asked[id] > _REPAIRS:
            return f"Shuffle {id} could not go on in {_REPAIRS} runs; the last time: {reason}"
        logger.warning("Shuffle %s begins anew: %s", id, reason)
        self._restart_shuffle(id, self.scheduler, stimulus_id=_stimulus("again"))
        return None

    def _clean_on_scheduler(self, id: Any, stimulus_id: str) -> None:  # noqa: A002
        spec = self.active_shuffles[id].run_spec.spec
        super()._clean_on_scheduler(id, stimulus_id)
        if isinstance(spec, HostedSpec):
            self._end(spec.number)

    def transition(self, key: Any, start: Any, finish: Any, *args: Any, **kwargs: Any) -> None:
        super().transition(key, start, finish, *args, **kwargs)
        if finish == "forgotten" and (name := id_from_key(key)):
            self._asked.pop(name, None)

    def restart(self, scheduler: Any) -> None:
        for name in self._hosted():
            self._end(self.active_shuffles[name].run_spec.spec.number)
        self._asked.clear()
        super().restart(scheduler)

    def _end(self, number: int) -> None:
        self._part.tell("end_shuffle", {"number": number})


def _stimulus(what: str) -> str:
    return f"treadle-shuffle-{what}-{next(_stimuli)}"
