"""``treadle.Client`` and what belongs to it.

Import these names from :mod:`treadle`.
"""

from __future__ import annotations

try:
    import distributed
except ImportError as error:
    raise ImportError(
        "Treadle's clients are those of distributed, and distributed is not installed: "
        "run `pip install 'distributed>=2025.11'`, or `pip install '.[cluster]'` in a clone"
    ) from error

from treadle.client import _dispatch, _progress_comm
from treadle.client._as_completed import as_completed
from treadle.client._client import Client
from treadle.client._future import Future
from treadle.client._progress import progress
from treadle.cluster._local_cluster import LocalCluster
from treadle.errors import _own_frames
from treadle.errors._lost_keys import ActorLost, DataLost, InputUnavailable, WorkerLost

__all__ = [
    "ActorLost",
    "Client",
    "DataLost",
    "Future",
    "InputUnavailable",
    "LocalCluster",
    "WorkerLost",
    "as_completed",
    "progress",
    "wait",
]

wait = distributed.wait
_progress_comm.register()
_dispatch.register()
LocalCluster.client_class = Client

_own_frames.shorten(_own_frames.CLIENT)
