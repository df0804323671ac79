"""Making Treadle Dask's scheduler."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import dask.config
from dask.base import named_schedulers

from treadle import sync, threaded

__all__ = ["install", "installed", "uninstall"]

#: For ``compute(scheduler="treadle")`` and Dask's configuration.
_schedulers: dict[str, Any] = named_schedulers
_schedulers["treadle"] = threaded.get
_schedulers["treadle-sync"] = sync.get

# Dask hides its own frames in a user's traceback; Treadle's are as uninteresting.
_HIDDEN = dask.config.get("admin.traceback.shorten")
dask.config.update_defaults(
    {"admin": {"traceback": {"shorten": [*_HIDDEN, r"treadle[\\\/](sync|threaded|_steps)\.py"]}}}
)

_ABSENT: Any = object()
#: What ``scheduler`` was in Dask's configuration before each ``install``.
_before: list[Any] = []


def install(scheduler: str = "treadle") -> None:
    """Make Treadle Dask's default scheduler, until :func:`uninstall`.

    Collections that are computed without ``scheduler=`` run on Treadle, bags too, whose default
    in Dask are processes.

    Parameters
    ----------
    scheduler
        ``"treadle"`` (threads) or ``"treadle-sync"`` (the calling thread).
    """
    if scheduler not in ("treadle", "treadle-sync"):
        raise ValueError(f"scheduler must be 'treadle' or 'treadle-sync', not {scheduler!r}")
    _before.append(dask.config.config.get("scheduler", _ABSENT))
    dask.config.config["scheduler"] = scheduler


def uninstall() -> None:
    """Undo the last :func:`install`; without one, do nothing."""
    if not _before:
        return
    before = _before.pop()
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
