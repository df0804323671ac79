"""Settings of schedulers and workers that Dask's configuration has names for."""

from __future__ import annotations

from typing import Any

import dask
from dask.system import CPU_COUNT

from treadle._numbers import whole

__all__ = ["memory_share_of_termination", "num_workers_of", "scheduler_settings"]

_ALLOWED = "distributed.scheduler.allowed-failures"


def num_workers_of(given: int | None) -> int:
    """Return how many tasks run at once: what was given, or configured, or one for each core."""
    count = given or dask.config.config.get("num_workers") or CPU_COUNT
    return whole("num_workers", count, 1, 2**31 - 1)


def scheduler_settings(worker_timeout: float) -> dict[str, Any]:
    """Return the settings of a scheduler: those of this call, and what Dask's configuration says."""
    settings: dict[str, Any] = {"worker_timeout": worker_timeout}
    allowed = dask.config.get(_ALLOWED, None)
    if allowed is not None:
        settings["allowed_losses"] = whole(_ALLOWED, allowed, 0, 2**32 - 1)
    return settings


def memory_share_of_termination() -> float:
    """Return the share of its memory limit above which a worker's process ends; 0: never."""
    return float(dask.config.get("distributed.worker.memory.terminate", 0.95) or 0.0)
