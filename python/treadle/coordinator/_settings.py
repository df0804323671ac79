"""What Dask's configuration says of a coordinator, and what a client of Dask asks and reports."""

from __future__ import annotations

import getpass
import logging
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import dask

from treadle.coordinator._asking import Answer, ask, report

__all__ = [
    "Configured",
    "asked",
    "configured",
    "reported",
    "rule_parameters",
    "servers_of",
    "user",
]

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


def rule_parameters() -> dict[str, dict[str, Any]]:
    """Return what ``treadle.coordinator.rules`` gives rules of other packages, by the names of their entry points.

    Raises
    ------
    ValueError
        It is no table of tables.
    """
    told = dask.config.get("treadle.coordinator.rules", None) or {}
    is_table = isinstance(told, Mapping) and all(isinstance(one, Mapping) for one in told.values())
    if not is_table:
        raise ValueError(
            "treadle.coordinator.rules must have a table of parameters for each name of a rule"
        )
    # Dask takes both signs in names, and those of the environment have no other.
    return {
        _plain(name): {_plain(key): value for key, value in given.items()}
        for name, given in told.items()
    }


def _plain(name: object) -> str:
    return str(name).replace("-", "_")


def user() -> str:
    """Return who runs this process, or an empty text."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return ""


def asked() -> Answer | None:
    """Ask about this process' job, and say so in a line; None: no coordinator is configured.

    Without an answer within two seconds, an answer without an id says why, and shuffles stay at the workers.
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
    if answer.id:
        _logger.info("decision %s: %s", answer.id, answer.reason)
    else:
        _logger.warning("shuffles stay at the workers: %s", answer.reason)
    return answer


def servers_of(answer: Answer | None) -> str | None:
    """Return the address of the service that an answer gives; None: shuffles stay at the workers."""
    if answer is None or not answer.uses_service:
        return None
    return answer.settings.get("treadle.shuffle.servers")


def reported(identity: str, end: Mapping[str, Any]) -> None:
    """Report the end of a job. A coordinator that does not take it within two seconds is named in a line."""
    told = configured()
    if told is None:
        return
    if failure := report(told.url, identity, end, token_file=told.token_file):
        _logger.warning("%s", failure)
