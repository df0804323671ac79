"""The cluster's shuffles at stand-alone shuffle services: who registers them there, and ends them."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from treadle.shuffle._compression import chosen, noted
from treadle.shuffle._places import label, labelled, unreachable
from treadle.shuffle.service._errors import ShuffleError
from treadle.shuffle.service._row_kinds import kind_of
from treadle.shuffle.service._service import Service

__all__ = ["ShuffleServices"]

logger = logging.getLogger(__name__)

# At how many servers each row is.
_COPIES = 2
# Seconds for a call to a shuffle master, and to reach it.
_PATIENCE = 15.0
# Shuffles that have ended and are remembered, for workers that ask late.
_REMEMBERED = 4096
# What a shuffle had if nobody knows it: no shuffle has that.
_UNKNOWN = (2**64 - 1,) * 3
# Ranges of outputs that a service is told; with more of them it takes the rows of all partitions.
_MOST_RANGES = 10_000


# The masters of clusters whose scheduler is in this process, by service and application. A Python side that
# replaces another finds its master here.
_kept: dict[tuple[str, int], Service] = {}


class _OfCluster(Service):
    """The connection of a cluster. No other process has a master of the cluster's application."""

    _is_shared = False


class ShuffleServices:
    """The services at which shuffles of this cluster are, by address.

    The cluster is one application of a service, and this process has its master: shuffles of the cluster end
    with this process, and with nothing else, not even with this object if it is replaced. Workers that write and read are members of it.

    Parameters
    ----------
    cluster
        The id of the cluster.
    credentials
        ``secret``, ``certificates``, ``insecure``: those of the scheduler's connections.
    running
        Returns the numbers of the shuffles that the scheduler has.
    """

    def __init__(
        self,
        cluster: str,
        credentials: Mapping[str, Any],
        running: Callable[[], Awaitable[set[int]]],
    ) -> None:
        digest = hashlib.sha256(cluster.encode()).digest()
        self._application = int.from_bytes(digest[:8], "little") >> 1
        self._credentials = dict(credentials)
        self._running = running
        self._services: dict[str, _At] = {}

    async def register(
        self,
        name: str,
        number: int,
        service: str,
        maps: int,
        partitions: int,
        outputs: list[tuple[int, int]],
        again: bool,
    ) -> tuple[int, int, str]:
        """Return the cluster's application at a service, the number of a shuffle there, and where its master is.

        It is registered when somebody asks for the first time. Rows for other partitions than ``outputs``, in
        ranges, are not pushed. ``again``: it has ended before, and its outputs may be used still.

        Raises
        ------
        OSError
            The shuffle master cannot be reached.
        ShuffleError
            It refuses, has no servers, or the shuffle is over.
        """
        at = self._at(service)
        there, master = await at.register(name, number, maps, partitions, outputs, again)
        return self._application, there, master

    async def over(self, number: int, service: str) -> None:
        """End a shuffle: nobody needs its rows any more."""
        try:
            await self._at(service).over(number)
        except (OSError, ShuffleError) as error:
            # Its rows go with this process.
            logger.warning("shuffle %s at %s is not ended: %s", number, service, error)

    async def records(self) -> dict[int, dict[str, Any]]:
        """Return what the services have recorded of this cluster's shuffles, by their number here."""
        found: dict[int, dict[str, Any]] = {}
        # Others may register at a further service meanwhile.
        for at in list(self._services.values()):
            found.update(await at.records())
        return found

    def close(self) -> None:
        """Leave the services."""
        for at in self._services.values():
            at.close()
        self._services.clear()

    def _at(self, address: str) -> _At:
        at = self._services.get(address)
        if at is None:
            at = self._services[address] = _At(
                address, self._application, self._credentials, self._running
            )
        return at


def _note() -> bytes:
    try:
        return noted(kind_of(bytes).note, chosen())
    except ValueError as error:
        raise ShuffleError(f"{error}: set it for the scheduler's process") from None


class _At:
    """The shuffles at one service."""

    def __init__(
        self,
        address: str,
        application: int,
        credentials: Mapping[str, Any],
        running: Callable[[], Awaitable[set[int]]],
    ) -> None:
        self._address = address
        self._application = application
        # As records and the state of the service have it.
        self._called = f"{application:016x}"
        self._credentials = credentials
        self._running = running
        self._service: Service | None = None
        self._numbers: dict[int, int] = {}
        self._names: dict[int, str] = {}
        # What shuffles that have ended had, by name: rows, bytes, digest. None: they were not committed.
        self._committed: OrderedDict[str, tuple[int, int, int] | None] = OrderedDict()
        self._over: OrderedDict[int, str] = OrderedDict()
        # One call at a time: the answers take no longer than a message.
        self._lock = asyncio.Lock()

    async def register(
        self,
        name: str,
        number: int,
        maps: int,
        partitions: int,
        outputs: list[tuple[int, int]],
        again: bool,
    ) -> tuple[int, str]:
        async with self._lock:
            service = await self._connected()
            if why := self._over.get(number):
                raise ShuffleError(f"shuffle {name}: {why}")
            there = self._numbers.get(number)
            if there is None:
                try:
                    there, domains = await _in_thread(
                        service._native.register,
                        label(name, number),
                        maps,
                        partitions,
                        _COPIES,
                        _note(),
                        _PATIENCE,
                        outputs if len(outputs) <= _MOST_RANGES else [],
                        # If that is unknown, its outputs are made again, too.
                        self._committed.get(name, _UNKNOWN) if again else None,
                    )
                except TimeoutError:
                    # It may be registered all the same. Whoever connects again finds it.
                    service._native.close()
                    raise
                if not domains:
                    await _in_thread(service._native.finish, there, _PATIENCE)
                    raise ShuffleError(
                        f"there are no shuffle servers at {self._address}: start `treadle shuffle-server`"
                    )
                if domains < _COPIES:
                    logger.warning(
                        "the shuffle servers of %s are in one failure domain: each row of shuffle %s "
                        "has one copy. Start servers with another --domain",
                        self._address,
                        name,
                    )
                self._numbers[number] = there
                self._names[number] = name
            return there, service._master_address

    async def over(self, number: int) -> None:
        async with self._lock:
            self._note_over(number, "it has ended, since nobody needs it any more")
            service = self._service
            if service is None or service._native.over is not None:
                # An earlier connection or Python side may have registered it: whoever connects, ends it.
                await self._connected()
                return
            there = self._numbers.pop(number, None)
            name = self._names.pop(number, None)
            if there is not None and name is not None:
                await self._finish(service, name, there)

    async def records(self) -> dict[int, dict[str, Any]]:
        service = self._service
        if service is None or service._native.over is not None:
            return {}
        try:
            records = json.loads(await _in_thread(service._native.records, _PATIENCE))
        except (OSError, ShuffleError) as error:
            logger.warning("records of %s are missing: %s", self._address, error)
            return {}
        mine = [told for told in records if told["application"] == self._called]
        return {found[1]: told for told in mine if (found := labelled(told["name"]))}

    def close(self) -> None:
        self._leave()

    def _leave(self) -> None:
        service, self._service = self._service, None
        if service is not None:
            _kept.pop((self._address, self._application), None)
            service.close()

    async def _connected(self) -> Service:
        """Return the connection to the service; make it, and find out what is there."""
        kept = _kept.get((self._address, self._application))
        if kept is not None and (self._service is None or kept._native.over is not None):
            self._service = kept
            try:
                await _in_thread(kept._renew)
                await self._adopt(kept)
            except OSError:
                self._leave()
        if self._service is None:
            connect = partial(
                _OfCluster,
                self._address,
                application=self._application,
                timeout=_PATIENCE,
                **self._credentials,
            )
            try:
                service = await _in_thread(connect)
            except OSError as error:
                raise unreachable(self._address, "the scheduler", error) from error
            except ValueError as error:
                raise ShuffleError(f"shuffle servers in the scheduler's process: {error}") from None
            try:
                await self._adopt(service)
            except BaseException:
                service.close()
                raise
            self._service = _kept[self._address, self._application] = service
        return self._service

    async def _adopt(self, service: Service) -> None:
        """Take over what an earlier connection of this scheduler has registered, or end it."""
        state = await _in_thread(service.state)
        running = await self._running()
        before = list(self._numbers)
        self._numbers.clear()
        self._names.clear()
        for shuffle in state["shuffles"]:
            found = labelled(shuffle["name"]) if shuffle["application"] == self._called else None
            if found is None:
                continue
            name, number = found
            if number in running:
                self._numbers[number] = shuffle["shuffle"]
                self._names[number] = name
            else:
                await self._finish(service, name, shuffle["shuffle"])
        why = (
            f"the master of the shuffle service at {self._address} has ended, and the rows with it"
        )
        for number in before:
            if number not in self._numbers:
                self._note_over(number, f"{why}. Compute it again")

    async def _finish(self, service: Service, name: str, there: int) -> None:
        """End a shuffle, and remember what it had."""
        self._committed[name] = await _in_thread(service._native.finish, there, _PATIENCE)
        self._committed.move_to_end(name)
        while len(self._committed) > _REMEMBERED:
            self._committed.popitem(last=False)

    def _note_over(self, number: int, why: str) -> None:
        self._over.setdefault(number, why)
        while len(self._over) > _REMEMBERED:
            self._over.popitem(last=False)


async def _in_thread(call: Callable[..., Any], *args: Any) -> Any:
    return await asyncio.get_running_loop().run_in_executor(None, call, *args)
