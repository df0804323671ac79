"""The scheduler's Python side: distributed's locks, queues, variables and so on, and plugins."""

from __future__ import annotations

from treadle.scheduler._sidecar import Sidecar
from treadle.scheduler._supervised import SupervisedSidecar

__all__ = ["Sidecar", "SupervisedSidecar"]
