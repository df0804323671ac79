"""The sidecar: the Python side of the native scheduler. No scheduling happens here.

It has distributed's locks, queues, variables and so on, plugins, and what ``run_on_scheduler`` acts on.
"""

from __future__ import annotations

from treadle.scheduler._restarted import SupervisedSidecar
from treadle.scheduler._sidecar import Sidecar

__all__ = ["Sidecar", "SupervisedSidecar"]
