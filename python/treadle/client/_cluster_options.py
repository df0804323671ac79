"""What options of a local cluster stand for."""

from __future__ import annotations

import logging
import warnings
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from dask.utils import parse_bytes
from distributed.system import MEMORY_LIMIT
from distributed.utils import format_dashboard_link

from treadle._pages import resolved

__all__ = [
    "dashboard_at",
    "http_address",
    "level_of",
    "memory_limit_of",
    "warn_without_effect",
]


def warn_without_effect(loop: Any, worker_dashboard_address: Any) -> None:
    """Warn of options of distributed's that have no effect here."""
    without_effect = {
        "loop": loop is not None and "its scheduler and workers have no event loop",
        "worker_dashboard_address": worker_dashboard_address is not None
        and "workers have no pages; the scheduler's show them",
    }
    for name, reason in without_effect.items():
        if reason:
            warnings.warn(
                f"treadle.LocalCluster: {name}= has no effect: {reason}", UserWarning, stacklevel=3
            )


def level_of(silence_logs: Any) -> int:
    """Return the level of what processes log to standard error; 0: all of it.

    Raises
    ------
    ValueError
        There is no such level.
    """
    if not silence_logs:
        return 0
    level = silence_logs
    if isinstance(level, str):
        level = getattr(logging, level.upper(), None)
    if isinstance(level, bool) or not isinstance(level, int) or not 0 <= level < 2**31:
        raise ValueError(
            f"silence_logs={silence_logs!r}: give a level of logging, such as logging.ERROR or 'error', or False"
        )
    return level


def memory_limit_of(limit: Any, workers: int) -> int:
    """Return the bytes that each of so many workers may use; 0: no limit.

    Raises
    ------
    ValueError
        It stands for none.
    """
    try:
        found = _bytes_of(limit, workers)
    except (OverflowError, ValueError):
        found = -1
    if found < 0:
        raise ValueError(
            f"memory_limit={limit!r}: give bytes, '2GiB', a share such as 0.5, 0 for no limit, or 'auto'"
        )
    return found


def _bytes_of(limit: Any, workers: int) -> int:
    if limit is None or limit == 0:
        return 0
    if limit == "auto":
        return int(MEMORY_LIMIT / workers)
    if isinstance(limit, float) and limit <= 1.0:
        return int(limit * MEMORY_LIMIT)
    if isinstance(limit, str):
        with suppress(ValueError):
            return _bytes_of(float(limit), workers)
        return int(parse_bytes(limit))
    return int(limit)


def http_address(address: str | int | None) -> str | None:
    """Return where the scheduler's pages are, as ``IP:PORT``, by default on the loopback interface.

    Raises
    ------
    ValueError
        The host has no address, or there is no such port.
    """
    if address is None:
        return None
    text = str(address)
    host, _, port = text.rpartition(":")
    return resolved(f"{host or '127.0.0.1'}:{port or 0}")[0]


def dashboard_at(http: str | None) -> str | None:
    """Return the link to the pages of a scheduler, as ``distributed.dashboard.link`` has it.

    It holds the token that lets in.
    """
    if http is None:
        return None
    pages = urlsplit(http)
    link: str = format_dashboard_link(pages.hostname, pages.port)
    return f"{link}{'&' if '?' in link else '?'}{pages.query}"
