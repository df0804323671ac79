"""How long a worker's process stays."""

from __future__ import annotations

import random
import time
import warnings
from collections.abc import Callable
from typing import Any

import dask

from treadle.common._settings import seconds_of

__all__ = ["Lifetime", "lifetime_of", "warn_of_no_lifetime"]

_SETTING = "distributed.worker.lifetime"


class Lifetime:
    """The time after which a worker leaves, from now; its values move first.

    Parameters
    ----------
    seconds
        How long it stays.
    restart
        Whether another process replaces it then.
    """

    def __init__(self, seconds: float, restart: bool) -> None:
        self.restart = restart
        self._until = time.monotonic() + seconds

    @property
    def is_over(self) -> bool:
        """Whether the worker has to leave."""
        return time.monotonic() >= self._until


def lifetime_of(
    duration: Any, stagger: Any, restart: bool | None, spelled: Callable[[str], str] = str
) -> Lifetime | None:
    """Return the lifetime of a worker that starts now: as given, or by Dask's configuration; None: for ever.

    It is longer or shorter by at most ``stagger``, at random, so that workers do not all leave at once.
    ``spelled`` returns how the user wrote a name.

    Raises
    ------
    ValueError
        One of them is no length of time, or workers might leave as soon as they come.
    """
    longer, shorter = spelled("lifetime"), spelled("lifetime_stagger")
    seconds = seconds_of(f"{_SETTING}.duration", longer, duration)
    if seconds is None:
        return None
    most = seconds_of(f"{_SETTING}.stagger", shorter, stagger) or 0.0
    if seconds <= most:
        raise ValueError(
            f"a lifetime of {seconds:g} s, give or take {most:g} s, may be over at once: give a longer "
            f"{longer}, or a shorter {shorter}"
        )
    if restart is None:
        restart = bool(dask.config.get(f"{_SETTING}.restart", False))
    return Lifetime(seconds + random.uniform(-most, most), restart)


def warn_of_no_lifetime(why: str) -> None:
    """Warn whoever starts workers as threads of a lifetime that Dask's configuration has, and they do not."""
    if dask.config.get(f"{_SETTING}.duration", None) is not None:
        warnings.warn(f"{_SETTING} has no effect: {why}", UserWarning, stacklevel=5)
