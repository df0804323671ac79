"""Limits of memory and of disk, as options and keyword arguments give them."""

from __future__ import annotations

import logging
from typing import Any

from treadle._compat.machine import memory_of_machine

__all__ = ["HELP", "disk_limit_of", "memory_limit_of"]

HELP = (
    "bytes, 2GiB, a share of the machine's memory such as 0.5 (1 is all of it), or 0 for no limit"
)

_BYTES = "bytes, 2GiB, or 0 for no limit"


def memory_limit_of(limit: Any, option: str, share: float = 1.0) -> int:
    """Return the bytes that a limit of memory stands for; 0: no limit.

    ``auto`` is a share of the machine's memory, at most all of it. A limit above that counts as all of it.

    Raises
    ------
    ValueError
        It stands for none.
    """
    from dask.utils import format_bytes

    most = memory_of_machine()
    try:
        if isinstance(limit, str) and limit.strip().lower() == "auto":
            return int(most * min(1.0, share))
        found = _bytes_of(limit, most)
    except (OverflowError, TypeError, ValueError):
        raise ValueError(f"{option}={limit!r:.100}: give {HELP}, or auto") from None
    if found > most:
        logging.getLogger("treadle").warning(
            "%s=%s counts as %s: the machine has no more memory",
            option,
            limit,
            format_bytes(most),
        )
    return min(found, most)


def disk_limit_of(limit: Any, option: str) -> int:
    """Return the bytes that a limit of disks stands for; 0: no limit.

    Raises
    ------
    ValueError
        It stands for none.
    """
    try:
        return _bytes_of(limit, None)
    except (OverflowError, TypeError, ValueError):
        raise ValueError(f"{option}={limit!r:.100}: give {_BYTES}") from None


def _bytes_of(limit: Any, all_bytes: int | None) -> int:
    """Return bytes. Numbers up to 1 are shares of ``all_bytes``, as in distributed."""
    from dask.utils import parse_bytes

    if limit is None or (isinstance(limit, str) and limit.strip().lower() == "none"):
        return 0
    if isinstance(limit, bool):
        raise TypeError("a limit is a number")
    number, is_share = limit, True
    if isinstance(limit, str):
        try:
            number = float(limit)
        except ValueError:
            # With its unit it is no share, however small it is. Dask reads nothing as a byte.
            number, is_share = parse_bytes(limit) if limit.strip() else -1, False
    if not 0 <= number < 2**63:
        raise ValueError("out of range")
    if is_share and 0 < number <= 1:
        if all_bytes is None:
            raise ValueError("a share of nothing")
        return max(1, int(number * all_bytes))
    return int(number)
