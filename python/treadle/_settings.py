"""Settings of schedulers and workers that Dask's configuration has names for."""

from __future__ import annotations

from typing import Any

import dask

__all__ = ["memory_share_of_termination", "scheduler_settings"]


def scheduler_settings(worker_timeout: float) -> dict[str, Any]:
    """Return the settings of a scheduler: those of this call, and what Dask's configuration says."""
    settings: dict[str, Any] = {"worker_timeout": worker_timeout}
    allowed = dask.config.get("distributed.scheduler.allowed-failures", None)
    if allowed is not None:
        settings["allowed_losses"] = int(allowed)
    return settings


def memory_share_of_termination() -> float:
    """Return the share of its memory limit above which a worker's process ends; 0: never."""
    return float(dask.config.get("distributed.worker.memory.terminate", 0.95) or 0.0)
