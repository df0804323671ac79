"""Names of workers."""

from __future__ import annotations

from typing import Any

__all__ = ["name_of", "rename_workers"]


def name_of(text: str) -> str | int:
    """Return a worker's name as users know it: distributed's ``LocalCluster`` numbers workers."""
    return int(text) if text.isdecimal() and str(int(text)) == text else text


def rename_workers(workers: dict[str, Any]) -> None:
    """Give workers the names that distributed gives them: numbers where they look like some."""
    for worker in workers.values():
        worker["name"] = worker["id"] = name_of(worker["name"])
