"""What options of a local cluster stand for."""

from __future__ import annotations

import html
import logging
import re
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from dask.system import CPU_COUNT
from distributed.utils import format_dashboard_link

from treadle.cluster._pages import resolved
from treadle.common._lifetime import warn_of_no_lifetime
from treadle.common._numbers import MOST_WORKERS, integer
from treadle.common._worker_options import OF_PROCESSES, WorkerOptions

__all__ = [
    "WorkersOfBeginning",
    "dashboard_at",
    "http_address",
    "level_of",
    "warn_without_effect",
    "with_links",
]


# Distributed's to the pages of the scheduler. Those of workers have a space before the tag's end.
_LINK = re.compile(r'(<strong>Dashboard:</strong> )<a href="[^"]*" target="_blank">[^<]*</a>')


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


class WorkersOfBeginning(NamedTuple):
    """The workers with which a local cluster begins, and what further ones are told."""

    number: int
    #: Whether they are threads of this process.
    in_process: bool
    options: WorkerOptions

    @classmethod
    def of(
        cls,
        *,
        workers: Any,
        n_workers: Any,
        threads_per_worker: Any,
        processes: bool | None,
        **given: Any,
    ) -> WorkersOfBeginning:
        """Return what the options of ``LocalCluster`` come to; ``given`` are those of its workers.

        Raises
        ------
        TypeError, ValueError
            One of them cannot be; it is named.
        """
        WorkerOptions.refuse_others("treadle.LocalCluster", given, without=["nthreads"])
        count = workers if workers is not None else n_workers
        if count is not None:
            name = "n_workers" if workers is None else "workers"
            count = integer(name, count, 0, MOST_WORKERS)
        in_process = count is None and not processes if processes is None else not processes
        if count is None:
            count = 1 if in_process else CPU_COUNT
        if in_process:
            _check_threads(given)
        options = WorkerOptions.of(
            {**given, "nthreads": threads_per_worker},
            workers=count,
            # Without any, those that come later have what `treadle worker` would have.
            share=1 / count if count else None,
            spelled=lambda name: "threads_per_worker" if name == "nthreads" else name,
        )
        return cls(count, in_process, options)


def _check_threads(given: Mapping[str, Any]) -> None:
    """Refuse, for workers that are threads, what only those that are processes can be told.

    Raises
    ------
    ValueError
        Such an option was given.
    """
    named = [name for name, value in given.items() if name in OF_PROCESSES and value is not None]
    if named:
        raise ValueError(
            f"{', '.join(f'{name}=' for name in named)}: only workers that are processes have "
            "this: give processes=True"
        )
    warn_of_no_lifetime("only workers that are processes have one (processes=True)")


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


def with_links(text: str, link: str | None) -> str:
    """Return HTML of distributed's about a scheduler, where its links let in, and workers have none.

    Parameters
    ----------
    text
        As ``SchedulerInfo`` has it: with the address of the pages, but not with what lets in.
    link
        What :func:`dashboard_at` returned.
    """
    text = text.replace('<a href="None" target="_blank">None</a>', "none")
    if link is None:
        return text
    shown = f'<a href="{html.escape(link)}" target="_blank">{html.escape(link.partition("?token=")[0])}</a>'
    return _LINK.sub(lambda found: found[1] + shown, text)
