"""Where the rows of a shuffle are: at the cluster's workers, or at stand-alone shuffle servers."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from distributed.exceptions import Reschedule

from treadle.shuffle._p2p_errors import DamagedRows, OutOfDisk
from treadle.shuffle._spec import ranges
from treadle.shuffle.service._errors import DamagedRows as DamagedAtServers
from treadle.shuffle.service._errors import NoRoom, RowsLost, ShuffleError, Superseded
from treadle.shuffle.service._registries import is_registry
from treadle.shuffle.service._service import Service
from treadle.shuffle.service._shuffle import Shuffle

if TYPE_CHECKING:
    from treadle import _core
    from treadle.worker._native import Native

__all__ = [
    "AtServers",
    "AtWorkers",
    "Gone",
    "Place",
    "Services",
    "label",
    "labelled",
    "unreachable",
]

Pieces = list[tuple[int, int, "_core.RowMemory"]]

# How long a task waits for servers that take or give no rows, in seconds.
_PATIENCE = 600.0
# How long a worker waits for an answer of a shuffle master, in seconds.
_ANSWER = 30.0


class Gone(RuntimeError):
    """The service does not have the shuffle any more."""


class Place(Protocol):
    """Keeps the rows of a shuffle.

    What is asked of it raises ``Reschedule`` if the task must run again, ``Gone``, ``DamagedRows``,
    ``OutOfDisk`` or ``RuntimeError``.
    """

    @property
    def is_over(self) -> bool:
        """Whether it cannot be used any more."""

    def transfer(self, number: int, rows: _core.Rows) -> bytes:
        """Push the rows of an input; return the receipt."""

    def commit(self, receipts: Sequence[bytes]) -> int:
        """Have what is there compared with the receipts of all inputs; return the generation."""

    def read(self, generation: int, partition: int, width: int) -> Pieces:
        """Return the rows of a partition, in the order of the inputs."""


class AtWorkers:
    """At the workers of the cluster."""

    def __init__(self, native: Native, shuffle: int, maps: int) -> None:
        self._native = native
        self._shuffle = shuffle
        self._maps = maps

    @property
    def is_over(self) -> bool:
        return False

    def transfer(self, number: int, rows: _core.Rows) -> bytes:
        return self._native.shuffle_transfer(self._shuffle, number, rows)

    def commit(self, receipts: Sequence[bytes]) -> int:
        return self._native.shuffle_commit(self._shuffle, self._maps, receipts)

    def read(self, generation: int, partition: int, width: int) -> Pieces:
        return self._native.shuffle_read(self._shuffle, generation, partition, width)


class AtServers:
    """At the servers of a stand-alone service, in two copies.

    Parameters
    ----------
    native
        The worker whose tasks write and read.
    shuffle
        The shuffle, as the service knows it.
    tell_lost
        Tells the scheduler which inputs must be transferred again, since all copies of some of their rows
        are lost, and whether what was read is not valid either.
    """

    def __init__(
        self,
        native: Native,
        shuffle: Shuffle,
        tell_lost: Callable[[list[tuple[int, int]], bool], None],
    ) -> None:
        # The member asks it whether the calling task is over.
        self._native: Any = native
        self._shuffle = shuffle
        self._tell_lost = tell_lost

    @property
    def is_over(self) -> bool:
        return self._shuffle.service._native.over is not None

    def transfer(self, number: int, rows: _core.Rows) -> bytes:
        with self._served():
            # Whether the map has run before is what the worker knows of the task.
            return self._shuffle._push(number, rows, False, _PATIENCE, self._native).data

    def commit(self, receipts: Sequence[bytes]) -> int:
        with self._served():
            return self._shuffle._commit(receipts, _PATIENCE, self._native)

    def read(self, generation: int, partition: int, width: int) -> Pieces:
        with self._served():
            return self._shuffle._pieces(
                generation, partition, width, None, _PATIENCE, self._native
            )

    @contextmanager
    def _served(self) -> Iterator[None]:
        at = f"the shuffle service at {self._shuffle.service.address}"
        try:
            yield
        except RowsLost as error:
            # The scheduler knows it before this task is given back.
            self._tell_lost(ranges(error.maps), error.read_again)
            raise Reschedule(str(error)) from None
        except Superseded as error:
            # The scheduler runs it again with what the later barrier returns.
            raise Reschedule(str(error)) from None
        except NoRoom as error:
            raise OutOfDisk(f"{at}: {error}") from error
        except DamagedAtServers as error:
            raise DamagedRows(f"{at}: {error}") from error
        except ConnectionError as error:
            raise Gone(f"{at} is gone, and the rows with it: {error}") from error
        except ShuffleError as error:
            if self._has_ended():
                raise Gone(f"{at} has ended this shuffle: {error}") from error
            raise RuntimeError(f"{at}: {error}") from error
        except TimeoutError as error:
            raise RuntimeError(f"{at}: {error}") from error

    def _has_ended(self) -> bool:
        try:
            self._shuffle.lost(timeout=_ANSWER)
        except (ShuffleError, ConnectionError):
            return True
        return False


class Services:
    """The connections of a worker to masters of shuffles, by address."""

    def __init__(self, credentials: Mapping[str, Any], native: Native) -> None:
        # What they keep is memory of the worker.
        self._native: Any = native
        self._credentials = {
            name: credentials[name]
            for name in ("secret", "certificates", "insecure")
            if credentials.get(name) is not None
        }
        self._services: dict[str, Service] = {}
        self._lock = threading.Lock()

    def at(self, address: str, application: int) -> Service:
        """Return the connection to a service, a new one where that is over.

        Raises
        ------
        OSError
            The master cannot be reached.
        """
        with self._lock:
            for other, known in list(self._services.items()):
                if known._native.over is not None:
                    self._services.pop(other).close()
            service = self._services.get(address)
            if service is None:
                try:
                    service = Service(
                        address,
                        own_master=False,
                        application=application,
                        timeout=_ANSWER,
                        **self._credentials,
                    )
                except OSError as error:
                    raise OSError(
                        f"the master of this cluster's shuffles, at {address} in the process of the scheduler's "
                        f"Python side, cannot be reached from this worker: {error}"
                    ) from error
                service._native.belong_to(self._native)
                self._services[address] = service
            return service

    def close(self) -> None:
        """End them all."""
        with self._lock:
            services, self._services = self._services, {}
        for service in services.values():
            service.close()


def unreachable(address: str, whence: str, error: OSError) -> OSError:
    """Return what is raised where a shuffle master cannot be reached."""
    if is_registry(address):
        return OSError(f"the shuffle servers of {address} cannot be used from {whence}: {error}")
    return OSError(
        f"the shuffle master at {address} cannot be reached from {whence}: {error}. Start "
        "`treadle shuffle-master` there, with the same secret or certificates"
    )


def label(name: str, number: int) -> str:
    """Return what a service calls a shuffle of a cluster: ``name`` for people, and its number there."""
    return f"{name} #{number}"


def labelled(called: str) -> tuple[str, int] | None:
    """Return the name and the number of the shuffle that has this :func:`label`."""
    found = re.fullmatch(r"(.*) #(\d+)", called, re.DOTALL)
    return (found[1], int(found[2])) if found else None
