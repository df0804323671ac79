"""``client.scatter(broadcast=...)`` of Dask over Treadle's broadcast tree: what Dask's scheduler has of it.

A client sends its values to Dask's scheduler, as ever. From there one copy goes to the root of a tree of
Treadle's workers, which pass it on, and within a host each worker maps the same memory. Without Treadle the
scheduler has Dask's workers fetch copies from each other, in rounds that wait for the slowest.
"""

from __future__ import annotations

import asyncio
import logging
import random
import uuid
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from distributed import Status

from treadle._compat.distributed import Serialized
from treadle.common._loop import off_loop
from treadle.hosting._scheduler_part import SchedulerPart
from treadle.hosting._shared_values import Parcel, hand_over

if TYPE_CHECKING:
    from treadle.client import Client

__all__ = ["HostedBroadcasts"]

logger = logging.getLogger("treadle.hosting")

_NAME = "scatter"
# Seconds in which values get to all workers. Whoever does not answer is lost long before.
_PATIENCE = 600.0
# Parcels of less travel together: each piece of memory is freed as a whole.
_TOGETHER = 1 << 20
# Fewer bytes travel in the call that hands values over.
_LITTLE = 1 << 16

_Parcels = dict[Hashable, Parcel]


class HostedBroadcasts:
    """In the place of what Dask's scheduler does for ``scatter``, until :meth:`leave`."""

    def __init__(self, scheduler: Any, part: SchedulerPart) -> None:
        self._scheduler = scheduler
        self._part = part
        self._own = scheduler.handlers[_NAME]
        self._client: Client | None = None
        self._connecting = asyncio.Lock()
        self._left = False
        scheduler.handlers[_NAME] = self.scatter

    def leave(self) -> None:
        """Leave it to Dask. What is on its way arrives, unless :meth:`close` is faster."""
        if not self._left:
            self._left = True
            self._scheduler.handlers[_NAME] = self._own

    async def close(self) -> None:
        async with self._connecting:
            client, self._client = self._client, None
        if client is not None:
            await off_loop(client.close)

    async def scatter(
        self,
        data: Mapping[Hashable, Any],
        workers: Iterable[Any] | None = None,
        client: str | None = None,
        broadcast: bool | int = False,
        **kwargs: Any,
    ) -> Any:
        """Send values to workers, as Dask's own; those that do not get there Dask sends itself."""
        scheduler = self._scheduler
        own = partial(self._own, client=client, broadcast=broadcast, **kwargs)
        workers = None if workers is None else list(workers)
        targets = self._targets(data, workers, broadcast) if broadcast else []
        if len(targets) < 2:
            return await own(data=data, workers=workers)
        try:
            sizes = await asyncio.wait_for(self._send(data, targets), _PATIENCE)
        except Exception as error:
            logger.warning("Dask broadcasts values without Treadle: %s", error)
            return await own(data=data, workers=workers)
        who_has: defaultdict[Hashable, list[str]] = defaultdict(list)
        nbytes: dict[Hashable, int] = {}
        for address, found in sizes.items():
            # It may have gone after its answer.
            if address in scheduler.workers:
                for key, size in found.items():
                    who_has[key].append(address)
                    nbytes[key] = size
        if who_has:
            scheduler.update_data(who_has=dict(who_has), nbytes=nbytes, client=client)
        if rest := {key: value for key, value in data.items() if key not in who_has}:
            logger.warning("Dask broadcasts %s values without Treadle: none arrived", len(rest))
            await own(data=rest, workers=workers)
        await self._complete(who_has, [one for one in targets if one in scheduler.workers])
        event = {"action": "scatter", "client": client, "count": len(data)}
        scheduler.log_event([client, "all"], event)
        return list(data)

    def _targets(
        self, data: Mapping[Hashable, Any], workers: Any, broadcast: bool | int
    ) -> list[str]:
        """Return the addresses of the workers that are to have the values.

        There are none where Dask has to do it: nobody is there yet, or values and workers are in this
        process, so that nothing has to be copied.
        """
        scheduler = self._scheduler
        if not all(isinstance(value, Serialized) for value in data.values()):
            return []
        found = scheduler.running
        if workers is not None:
            states = [scheduler.workers.get(scheduler.coerce_address(one)) for one in workers]
            if None in states:
                # Dask says so.
                return []
            found = {state for state in states if state.status == Status.running}
        addresses = sorted(state.address for state in found)
        if broadcast is True or broadcast >= len(addresses):
            return addresses
        return random.sample(addresses, broadcast)

    async def _send(
        self, data: Mapping[Hashable, Any], targets: list[str]
    ) -> dict[str, dict[Hashable, int]]:
        """Have workers take values; return how many bytes each takes, by the address of the worker.

        Workers without Treadle, and those that are lost meanwhile, are left out.
        """
        there = await self._workers(targets)
        if not there:
            raise RuntimeError("it runs on none of the workers")
        client = await self._connected()
        parcels = {key: Parcel.of(value) for key, value in data.items()}
        little: _Parcels = {}
        large: dict[str, _Parcels] = {}
        for bundle, nbytes in _bundled(parcels):
            if nbytes < _LITTLE:
                little |= bundle
            else:
                large[f"broadcast-{uuid.uuid4().hex}"] = bundle
        # Released when this returns: the values hold what they need.
        held: Any = {}
        if large:
            held = await off_loop(partial(client.scatter, large, workers=there, broadcast=True))
        names = (await self._part.ask("objects", {"keys": list(held)})) if held else {}
        run = partial(client.run, hand_over, list(names.values()), little)
        answers = await off_loop(partial(run, workers=there, on_error="return"))
        sizes: dict[str, dict[Hashable, int]] = {}
        for one, answer in answers.items():
            if isinstance(answer, BaseException):
                logger.warning("Treadle's worker %s has not taken values: %r", one, answer)
            else:
                address, found = answer
                sizes[address] = found
        return sizes

    async def _workers(self, targets: list[str]) -> list[str]:
        """Return the addresses of Treadle's workers beside workers of Dask."""
        names = {str(self._scheduler.workers[one].name) for one in targets}
        identity = await self._part.ask("identity", {"n_workers": -1})
        workers = identity["workers"].items()
        return [address for address, worker in workers if str(worker["name"]) in names]

    async def _connected(self) -> Client:
        async with self._connecting:
            if self._left:
                raise RuntimeError("Treadle leaves")
            if self._client is None:
                self._client = await off_loop(self._part.connect)
            return self._client

    async def _complete(self, who_has: Mapping[Hashable, list[str]], targets: list[str]) -> None:
        """Have Dask copy values to those that have not got them."""
        few = [key for key, holders in who_has.items() if len(set(holders)) < len(targets)]
        # Its client may have let go of it.
        if few := [key for key in few if key in self._scheduler.tasks]:
            await self._scheduler.replicate(keys=few, workers=targets, n=len(targets))


def _bundled(parcels: _Parcels) -> Iterator[tuple[_Parcels, int]]:
    """Return parcels as they travel, with their bytes: large ones alone, others together."""
    bundle: _Parcels = {}
    total = 0
    for key, parcel in parcels.items():
        nbytes = parcel.nbytes
        if nbytes >= _TOGETHER:
            yield {key: parcel}, nbytes
            continue
        if total + nbytes > _TOGETHER:
            yield bundle, total
            bundle, total = {}, 0
        bundle[key] = parcel
        total += nbytes
    if bundle:
        yield bundle, total
