"""How long a worker's process stays."""

from __future__ import annotations

import random
import time

import dask

from treadle.common._settings import seconds_of

__all__ = ["Lifetime", "lifetime_of"]

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


def lifetime_of(duration: str | None, stagger: str | None, restart: bool | None) -> Lifetime | None:
    """Return the lifetime of a worker that starts now: as given, or by Dask's configuration; None: for ever.

    It is longer or shorter by at most ``stagger``, at random, so that workers do not all leave at once.

    Raises
    ------
    ValueError
        One of them is no length of time, or workers might leave as soon as they come.
    """
    seconds = seconds_of(f"{_SETTING}.duration", "--lifetime", duration)
    if seconds is None:
        return None
    most = seconds_of(f"{_SETTING}.stagger", "--lifetime-stagger", stagger) or 0.0
    if seconds <= most:
        raise ValueError(
            f"a lifetime of {seconds:g} s, give or take {most:g} s, may be over at once: give a longer "
            "--lifetime, or a shorter --lifetime-stagger"
        )
    if restart is None:
        restart = bool(dask.config.get(f"{_SETTING}.restart", False))
    return Lifetime(seconds + random.uniform(-most, most), restart)
