"""What the coordinator looks at again and again: the shuffle servers, and folders of event logs."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from treadle.coordinator._admission import Room
from treadle.coordinator._database import Busy
from treadle.coordinator._event_files import Entry, logs_in, read_log
from treadle.coordinator._service import Coordinator

if TYPE_CHECKING:
    from treadle.shuffle import Service

__all__ = ["LogFolders", "Poller", "Servers"]

_logger = logging.getLogger("treadle.coordinator")
_SECONDS = 10.0
_DAY = 24 * 3600.0
_EARLIER = 0.1
_PAUSE = 0.1


class Poller:
    """Calls functions every few seconds, in one thread, until it is closed. One that fails is logged."""

    def __init__(self, seconds: float, functions: Sequence[Callable[[], None]]) -> None:
        self._ended = threading.Event()
        self._seconds, self._functions = seconds, functions
        self._thread = threading.Thread(target=self._run, name="coordinator-poller", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.is_set():
            for function in self._functions:
                try:
                    function()
                except Exception as error:
                    _logger.warning("%s", error)
            self._ended.wait(self._seconds)

    def close(self) -> None:
        """End; what is being looked at is left behind after some seconds."""
        self._ended.set()
        self._thread.join(_SECONDS)


class Servers:
    """What the shuffle servers of a registry said last. It is forgotten when it is too old to decide by."""

    def __init__(self, url: str, credentials: Mapping[str, Any], patience: float) -> None:
        self._url, self._credentials, self._patience = url, credentials, patience
        self._found: tuple[float, list[dict[str, Any]]] | None = None

    def look(self) -> None:
        """Ask the registry."""
        self._found = (time.monotonic(), self._asked())

    def _asked(self) -> list[dict[str, Any]]:
        from treadle.shuffle.service._registries import is_registry

        if is_registry(self._url):
            from treadle._core import list_registry

            return list(list_registry(self._url, _SECONDS)[0])
        with self._service() as service:
            return list(service.state()["servers"])

    def _service(self) -> Service:
        """Return a connection to who knows the servers: the master, or where there is none, one that begins with this."""
        from treadle.shuffle import Service
        from treadle.shuffle.service._registries import is_registry

        own = is_registry(self._url)
        return Service(self._url, own_master=own, timeout=_SECONDS, **self._credentials)

    def drain(self, name: str) -> None:
        """Ask a server to leave. It ends when other servers have copies of its rows.

        Raises
        ------
        OSError
            The registry does not answer, or the server does not.
        KeyError
            There is no such server.
        """
        from treadle.shuffle import ShuffleError

        found = next((one for one in self.servers() if one.get("name") == name), None)
        if found is None:
            raise KeyError(f"there is no server {name}")
        with self._service() as service:
            try:
                service.drain(_name_at(service, name, found.get("address")))
            except ShuffleError as error:
                raise OSError(str(error)) from None
        # It was asked, whatever comes of looking: the page shows that it leaves.
        with suppress(Exception):
            self.look()

    def servers(self) -> list[dict[str, Any]]:
        """Return what each server said."""
        found = self._found
        return [] if found is None else found[1]

    def room(self) -> Room | None:
        """Return the room of all servers; None: it is not known, or was not for too long."""
        found = self._found
        if found is None or time.monotonic() - found[0] > self._patience:
            return None
        open_to_rows = [one for one in found[1] if not one.get("full") and not one.get("leaving")]
        if any(one.get("free_bytes") is None for one in open_to_rows):
            return None
        free = sum(int(one["free_bytes"]) for one in open_to_rows)
        held = sum(int(one.get("held_bytes") or 0) for one in open_to_rows)
        return Room(len(open_to_rows), free, free + held, held)


def _name_at(service: Service, name: str, address: str | None) -> str:
    """Return what a server calls itself: a list has addresses alone. A master that has just begun waits for it."""
    until = time.monotonic() + _SECONDS
    while True:
        for one in service.state()["servers"]:
            if one["name"] == name or one["address"] == address:
                return str(one["name"])
        if time.monotonic() > until:
            raise OSError("it does not answer")
        time.sleep(_PAUSE)


class LogFolders:
    """Folders of event logs: each log is read again when it has grown.

    ``places`` has the ``cluster`` and the ``queue`` of a folder's applications that say none. Applications that began ``keep_days`` ago are forgotten, so that they are not taken again from logs that stay.
    """

    def __init__(
        self,
        folders: Sequence[Entry],
        coordinator: Coordinator,
        keep_days: float = math.inf,
        clock: Callable[[], float] = time.time,
        places: Mapping[Entry, Mapping[str, str]] | None = None,
    ) -> None:
        self._coordinator = coordinator
        self._places = places or {}
        # A decision is older than its application: its row is gone a little earlier.
        self._keep_for = (
            (keep_days - min(1.0, _EARLIER * keep_days)) * _DAY
            if keep_days < math.inf
            else math.inf
        )
        self._clock = clock
        self._read: dict[Entry, dict[Entry, tuple[int, int]]] = {one: {} for one in folders}

    def look(self) -> None:
        """Read what is new."""
        for folder, read in self._read.items():
            try:
                there = dict(logs_in(folder))
            except Exception as error:
                # Stores have errors of their own.
                _logger.warning("%s is not read: %s", folder, error or type(error).__name__)
                continue
            for path, stamp in there.items():
                if read.get(path) != stamp and self._take(path, self._places.get(folder, {})):
                    read[path] = stamp
            # Logs that are gone are forgotten.
            for path in [one for one in read if one not in there]:
                del read[path]

    def _take(self, path: Entry, place: Mapping[str, str]) -> bool:
        """Read a log; return whether that was tried in full. Whatever is wrong with it, others are read."""
        try:
            application = read_log(path)
            application.cluster = application.cluster or place.get("cluster", "")
            application.queue = application.queue or place.get("queue", "")
            if application.began > self._clock() - self._keep_for:
                self._coordinator.observed(application)
        except Exception as error:
            # One that was just begun may be empty.
            is_new = path.name.endswith(".inprogress")
            _logger.log(
                logging.DEBUG if is_new else logging.WARNING,
                "%r is not read: %s",
                str(path),
                error or type(error).__name__,
            )
            # A database that is busy is so for a while.
            return not isinstance(error, (Busy, TimeoutError))
        return True
