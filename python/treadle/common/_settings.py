"""Settings of schedulers and workers that Dask's configuration has names for."""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import dask
from dask.system import CPU_COUNT
from dask.utils import parse_bytes, parse_timedelta

from treadle.common._numbers import amounts, whole

__all__ = [
    "idle_timeout_of",
    "length_of_time",
    "memory_share_of_termination",
    "num_workers_of",
    "preloads_of",
    "process_environment",
    "resources_of",
    "scheduler_settings",
    "seconds_of",
    "sight_memory_of_worker",
    "temporary_directory",
    "warn_of_unread",
]

_ALLOWED = "distributed.scheduler.allowed-failures"
_IDLE = "distributed.scheduler.idle-timeout"
# Whether workers record what they do, and the scheduler keeps it; in how many bytes here and there, and how long a
# history may be.
_SIGHT = "treadle.sight"
_SIGHT_MEMORY = "treadle.sight-memory"
_WORKER_SIGHT_MEMORY = "treadle.worker.sight-memory"
_HISTORY_LIMIT = "treadle.history-limit"
_LEAST = 64 * 1024

# What is read of `distributed.`, here or by those parts of distributed that Treadle runs; a name that
# ends with a point stands for all below it.
_READ = (
    *("adaptive.", "deploy.", "logging.", "version"),
    *("admin.event-loop", "admin.large-graph-warning-threshold", "admin.log-format"),
    *("admin.log-length", "admin.low-level-log-length", "admin.max-error-length"),
    *("client.direct-to-workers", "client.preload", "client.preload-argv"),
    *("client.scheduler-info-interval", "client.security-loader"),
    *("comm.default-scheme", "comm.require-encryption", "comm.retry.", "comm.timeouts.connect"),
    "diagnostics.computations.",
    "comm.tls.",
    *("nanny.environ.", "nanny.pre-spawn-environ.", "nanny.preload", "nanny.preload-argv"),
    *("scheduler.allowed-failures", "scheduler.dashboard.status.task-stream-length"),
    *("scheduler.dashboard.tasks.task-stream-length", "scheduler.locks."),
    *("scheduler.idle-timeout", "scheduler.preload", "scheduler.preload-argv"),
    "scheduler.unknown-task-duration",
    *("worker.memory.terminate", "worker.profile.cycle", "worker.profile.enabled"),
    *("worker.lifetime.", "worker.preload", "worker.preload-argv", "worker.profile.interval"),
    "worker.resources.",
)

# Workers give memory back by themselves. By distributed's own value the allocator would do so again and
# again while tasks run, and each time their memory would be pages that are new.
_TRIM = ("MALLOC_TRIM_THRESHOLD_", 65536)

_warned_of: set[str] = set()


def num_workers_of(given: int | None) -> int:
    """Return how many tasks run at once: what was given, or configured, or one for each core."""
    count = given or dask.config.config.get("num_workers") or CPU_COUNT
    return whole("num_workers", count, 1, 2**31 - 1)


def scheduler_settings(
    worker_timeout: float,
    history: str | os.PathLike[str] | None = None,
    history_limit: str | None = None,
) -> dict[str, Any]:
    """Return the settings of a scheduler: those of this call, and what Dask's configuration says.

    Raises
    ------
    ValueError
        A history is wanted, and nothing is recorded; or a number of bytes is none.
    """
    settings: dict[str, Any] = {"worker_timeout": worker_timeout}
    settings["sight"] = bool(dask.config.get(_SIGHT, True))
    if history is not None:
        if not settings["sight"]:
            raise ValueError(f"history={os.fspath(history)!r} needs {_SIGHT}, which is false")
        settings["history"] = os.path.abspath(history)
    memory = _bytes_of(_SIGHT_MEMORY, dask.config.get(_SIGHT_MEMORY, None))
    if memory is not None:
        settings["sight_memory"] = memory
    limit = _bytes_of("--history-limit", history_limit)
    if limit is None:
        limit = _bytes_of(_HISTORY_LIMIT, dask.config.get(_HISTORY_LIMIT, None))
    if limit is not None:
        settings["history_limit"] = limit
    allowed = dask.config.get(_ALLOWED, None)
    if allowed is not None:
        settings["allowed_losses"] = whole(_ALLOWED, allowed, 0, 2**32 - 1)
    return settings


def sight_memory_of_worker() -> int:
    """Return in how many bytes a worker keeps what it did until that is sent; 0: as many as by default."""
    return _bytes_of(_WORKER_SIGHT_MEMORY, dask.config.get(_WORKER_SIGHT_MEMORY, None)) or 0


def _bytes_of(name: str, given: Any) -> int | None:
    """Return a number of bytes, which may be text such as 64MiB; None: none was given.

    Raises
    ------
    ValueError
        It is none, or fewer than 64 KiB.
    """
    if given is None:
        return None
    try:
        number = int(parse_bytes(given))
    except (AttributeError, OverflowError, TypeError, ValueError):
        number = 0
    if not _LEAST <= number < 2**63:
        raise ValueError(f"{name} is {given!r}: give bytes, 64 KiB or more, such as 64MiB")
    return number


def idle_timeout_of(given: str | None) -> float | None:
    """Return after how many seconds without work a cluster ends: as given, or by Dask's configuration.

    Raises
    ------
    ValueError
        That is no length of time.
    """
    return seconds_of(_IDLE, "--idle-timeout", given, zero=False)


def seconds_of(setting: str, option: str, given: Any, *, zero: bool = True) -> float | None:
    """Return a length of time in seconds: as given by an option, or by Dask's configuration; None: by neither.

    Raises
    ------
    ValueError
        That is none, or it is 0 where ``zero`` does not allow that.
    """
    text = dask.config.get(setting, None) if given is None else given
    name = setting if given is None else option
    return None if text is None else length_of_time(name, text, zero=zero)


def length_of_time(name: str, given: Any, *, zero: bool = True) -> float:
    """Return a length of time in seconds, which is a number of them, text or a ``timedelta``.

    Raises
    ------
    ValueError
        It is none, or it is 0 where ``zero`` does not allow that.
    """
    try:
        seconds = float(parse_timedelta(given))
    except (AttributeError, LookupError, OverflowError, TypeError, ValueError):
        seconds = -1.0
    if not (seconds > 0 or (zero and seconds == 0)):
        raise ValueError(f"{name} is {given!r}: give a length of time, such as 30 minutes or 1h")
    return seconds


def temporary_directory() -> str:
    """Return where directories of processes are by default: as Dask's configuration or the system says."""
    return str(dask.config.get("temporary-directory", None) or tempfile.gettempdir())


def process_environment() -> dict[str, str]:
    """Return the environment variables that Dask's configuration has for the processes of workers.

    By default each library computes on one thread of a task (``OMP_NUM_THREADS=1`` and the like). ``None``
    unsets one. As with distributed, a variable of this process counts before the configuration's.
    """
    found: dict[str, str] = {}
    for key in ("distributed.nanny.pre-spawn-environ", "distributed.nanny.environ"):
        variables = dask.config.get(key, None) or {}
        if not isinstance(variables, Mapping):
            raise TypeError(f"{key} is {variables!r}: give names of variables and their values")
        found |= {
            name: str(value)
            for name, value in variables.items()
            if value is not None and (name, value) != _TRIM
        }
    return found


def preloads_of(kind: str) -> tuple[list[str], list[Any]]:
    """Return the scripts that Dask's configuration has for a "worker", a "nanny" or a "scheduler" to run
    first, and their arguments.

    Raises
    ------
    TypeError
        They are no names of modules or files.
    """
    scripts = dask.config.get(f"distributed.{kind}.preload", None) or []
    if isinstance(scripts, str):
        scripts = [scripts]
    if not isinstance(scripts, (list, tuple)) or not all(isinstance(one, str) for one in scripts):
        raise TypeError(
            f"distributed.{kind}.preload is {scripts!r}: give modules, files or addresses of scripts"
        )
    return list(scripts), list(dask.config.get(f"distributed.{kind}.preload-argv", None) or [])


def memory_share_of_termination() -> float:
    """Return the share of its memory limit above which a worker's process ends; 0: never."""
    return float(dask.config.get("distributed.worker.memory.terminate", 0.95) or 0.0)


def resources_of(given: Mapping[Any, Any] | None) -> dict[str, float]:
    """Return a worker's abstract resources: those given, or those of Dask's configuration."""
    if given is None:
        given = dask.config.get("distributed.worker.resources", None) or {}
    return amounts(given)


def warn_of_unread() -> None:
    """Warn, once in this process, of each setting of distributed that somebody set and nobody reads."""
    defaults = dask.config.merge(*dask.config.defaults).get("distributed", {})
    found = _set(dask.config.config.get("distributed", {}), defaults, "")
    groups = tuple(name for name in _READ if name.endswith("."))
    read = _warned_of.union(_READ)
    unread = [name for name in found if name not in read and not name.startswith(groups)]
    if unread:
        _warned_of.update(unread)
        warnings.warn(
            "Treadle does not read these settings of Dask's configuration: "
            f"{', '.join(f'distributed.{name}' for name in unread)} "
            '(the page "Configuration" of its documentation lists those that it reads)',
            UserWarning,
            stacklevel=3,
        )


def _set(config: Any, defaults: Any, prefix: str) -> Iterator[str]:
    """Yield the names of the settings that differ from the defaults."""
    for given, value in config.items():
        # From the environment, Dask takes them with underscores.
        name = given if given in defaults else given.replace("_", "-")
        default = defaults.get(name)
        if isinstance(value, Mapping) and isinstance(default, Mapping):
            yield from _set(value, default, f"{prefix}{name}.")
        elif name not in defaults or value != default:
            yield f"{prefix}{name}"
