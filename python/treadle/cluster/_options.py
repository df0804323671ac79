"""What options of a local cluster stand for."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import dask
from distributed.utils import format_dashboard_link

from treadle.cluster._inherited import inherited
from treadle.common._lifetime import lifetime_of
from treadle.common._pages import resolved

__all__ = [
    "ProcessOptions",
    "dashboard_at",
    "http_address",
    "level_of",
    "warn_without_effect",
]


def warn_without_effect(worker_dashboard_address: Any) -> None:
    """Warn of options of distributed's that have no effect here."""
    if worker_dashboard_address is not None:
        warnings.warn(
            "treadle.LocalCluster: worker_dashboard_address= has no effect: workers have no pages; the "
            "scheduler's show them",
            UserWarning,
            stacklevel=3,
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


class ProcessOptions(NamedTuple):
    """What only workers that are processes can be told."""

    env: Mapping[str, Any]
    preload: Sequence[str]
    #: How long they stay, give or take how long, and whether others come then.
    lifetime: tuple[str | None, str | None, bool | None]

    @classmethod
    def of(cls, in_process: bool, **given: Any) -> ProcessOptions:
        """Return the options that were given, which are right.

        Raises
        ------
        TypeError, ValueError
            They are not, or workers are threads.
        """
        named = [name for name, value in given.items() if value is not None]
        if in_process and named:
            raise ValueError(
                f"{', '.join(f'{name}=' for name in named)}: only workers that are processes have "
                "this: give processes=True"
            )
        if in_process and dask.config.get("distributed.worker.lifetime.duration", None) is not None:
            warnings.warn(
                "distributed.worker.lifetime has no effect: only workers that are processes have one "
                "(processes=True)",
                UserWarning,
                stacklevel=4,
            )
        env, preload = given["env"] or {}, given["preload"] or ()
        if not isinstance(env, Mapping):
            raise TypeError(f"env={env!r}: give names of variables and their values")
        times = (given["lifetime"], given["lifetime_stagger"])
        duration, stagger = (None if time is None else str(time) for time in times)
        options = cls(
            env,
            [preload] if isinstance(preload, str) else list(preload),
            (duration, stagger, given["lifetime_restart"]),
        )
        lifetime_of(*options.lifetime)
        return options

    def environment(self) -> dict[str, str]:
        """Return what their environment has beside this process's."""
        own = {str(name): str(value) for name, value in self.env.items() if value is not None}
        return {**inherited(), **own}

    def arguments(self) -> list[str]:
        """Return the arguments of ``treadle worker``."""
        duration, stagger, restart = self.lifetime
        found = [part for each in self.preload for part in ("--preload", each)]
        found += () if duration is None else ("--lifetime", duration)
        found += () if stagger is None else ("--lifetime-stagger", stagger)
        if restart is not None:
            found.append("--lifetime-restart" if restart else "--no-lifetime-restart")
        return found


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
