"""What Dask's configuration says of a coordinator, and the one question of a client of Dask."""

from __future__ import annotations

import getpass
import logging
import os
import sys
from dataclasses import dataclass

import dask

from treadle.coordinator._asking import ask

__all__ = ["Configured", "configured", "shuffle_servers", "user"]

_logger = logging.getLogger("treadle.coordinator")


@dataclass(frozen=True)
class Configured:
    """Where a coordinator is, and what it cannot find out of a job."""

    url: str
    cluster: str = ""
    queue: str = ""
    token_file: str | None = None
    settings: tuple[str, ...] = ()
    """Names that a coordinator may give besides those of its own list."""


def configured() -> Configured | None:
    """Return what is configured; None: there is no coordinator."""
    url = dask.config.get("treadle.coordinator.url", None)
    if not url:
        return None
    return Configured(
        str(url),
        str(dask.config.get("treadle.coordinator.cluster", "") or ""),
        str(dask.config.get("treadle.coordinator.queue", "") or ""),
        dask.config.get("treadle.coordinator.token-file", None),
        _names(dask.config.get("treadle.coordinator.settings", None)),
    )


def _names(told: object) -> tuple[str, ...]:
    """Return a list of names; one text has commas or blanks between them."""
    if isinstance(told, str):
        return tuple(told.replace(",", " ").split())
    return tuple(map(str, told)) if isinstance(told, (list, tuple)) else ()


def user() -> str:
    """Return who runs this process, or an empty text."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return ""


def shuffle_servers() -> str | None:
    """Ask whether the shuffles of this process use the service, and return its address; None: they do not.

    Without a coordinator, and without its answer within two seconds, they do not.
    """
    told = configured()
    if told is None:
        return None
    import treadle

    job = {
        "cluster": told.cluster,
        "queue": told.queue,
        "user": user(),
        "name": os.path.basename(sys.argv[0] or "") or "interactive",
        "engine": "dask",
        "version": treadle.__version__,
    }
    answer = ask(told.url, job, token_file=told.token_file)
    if not answer.id:
        _logger.warning("shuffles stay at the workers: %s", answer.reason)
        return None
    _logger.info("decision %s: %s", answer.id, answer.reason)
    return answer.settings.get("treadle.shuffle.servers") if answer.uses_service else None
