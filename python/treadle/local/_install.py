"""Making Treadle Dask's scheduler."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import dask.config
from dask.base import named_schedulers

from treadle import processes, sync, threaded

__all__ = ["install", "installed", "uninstall"]

#: For ``compute(scheduler="treadle")`` and Dask's configuration.
_schedulers: dict[str, Any] = named_schedulers
_schedulers["treadle"] = threaded.get
_schedulers["treadle-sync"] = sync.get
_schedulers["treadle-processes"] = processes.get

#: What :func:`install` takes, by the names that Dask has for such schedulers.
_NAMES = {
    "treadle": "treadle",
    "treadle-sync": "treadle-sync",
    "treadle-processes": "treadle-processes",
    "processes": "treadle-processes",
}
#: Dask's names of its scheduler on processes, which are Treadle's while that is installed.
_OF_PROCESSES = {name: _schedulers[name] for name in ("processes", "multiprocessing")}

_ABSENT: Any = object()


@dataclass
class Installation:
    """One call of :func:`install`."""

    scheduler: str
    #: What ``scheduler`` was in Dask's configuration before it.
    before: Any
    #: The clients that were made after it: each restores ``scheduler`` when it is closed.
    clients: weakref.WeakSet[Any] = field(default_factory=weakref.WeakSet)
    undone: bool = False


_installed: list[Installation] = []


def install(scheduler: str = "treadle") -> None:
    """Make Treadle Dask's default scheduler, until :func:`uninstall`.

    Collections that are computed without ``scheduler=`` run on Treadle, bags too, whose default
    in Dask are processes. ``scheduler="processes"`` means :func:`treadle.processes.get` then.

    Parameters
    ----------
    scheduler
        ``"treadle"`` (threads), ``"treadle-processes"`` (or ``"processes"``) or ``"treadle-sync"``
        (the calling thread).
    """
    if scheduler not in _NAMES:
        raise ValueError(
            f"scheduler must be 'treadle', 'treadle-processes' or 'treadle-sync', not {scheduler!r}"
        )
    scheduler = _NAMES[scheduler]
    _installed.append(Installation(scheduler, dask.config.config.get("scheduler", _ABSENT)))
    dask.config.config["scheduler"] = scheduler
    _schedulers.update(dict.fromkeys(_OF_PROCESSES, processes.get))


def uninstall() -> None:
    """Undo the last :func:`install`; without one, do nothing.

    A client that was made after it stays Dask's scheduler until it is closed.
    """
    if not _installed:
        return
    last = _installed.pop()
    last.undone = True
    if not _installed:
        _schedulers.update(_OF_PROCESSES)
    if not last.clients or dask.config.config.get("scheduler") == last.scheduler:
        _restore(last.before)


def found_by_client(client: Any) -> Installation | None:
    """Note that a client becomes Dask's scheduler; return the installation that it takes over from."""
    last = _installed[-1] if _installed else None
    if last is None or dask.config.config.get("scheduler") != last.scheduler:
        return None
    last.clients.add(client)
    return last


def left_by_client(client: Any, found: Installation) -> None:
    """Note that a client has restored ``scheduler``, which may have been undone meanwhile."""
    found.clients.discard(client)
    if found.undone and dask.config.config.get("scheduler") == found.scheduler:
        _restore(found.before)


def _restore(before: Any) -> None:
    if before is _ABSENT:
        dask.config.config.pop("scheduler", None)
    else:
        dask.config.config["scheduler"] = before


@contextmanager
def installed(scheduler: str = "treadle") -> Iterator[None]:
    """Make Treadle Dask's default scheduler inside the ``with`` block."""
    install(scheduler)
    try:
        yield
    finally:
        uninstall()
