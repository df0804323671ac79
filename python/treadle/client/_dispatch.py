"""``distributed.Client`` of one of Treadle's addresses is a :class:`treadle.Client`.

Libraries make their clients themselves, of the address or the cluster that they are given.
"""

from __future__ import annotations

from functools import cache, wraps
from typing import Any

import dask

from treadle.client._client import Client
from treadle.client._distributed import ClientOfDistributed
from treadle.common._addresses import is_own

__all__ = ["register"]


def register() -> None:
    """From now on; a class that derives from ``distributed.Client`` is above Treadle's then."""
    own = ClientOfDistributed.__init__

    @wraps(own)
    def init(self: Any, address: Any = None, *args: Any, **kwargs: Any) -> None:
        place = dask.config.get("scheduler-address", None) if address is None else address
        place = getattr(place, "scheduler_address", place)
        cls: Any = type(self)
        if isinstance(place, str) and is_own(place) and not issubclass(cls, Client):
            self.__class__ = Client if cls is ClientOfDistributed else _derived(cls)
            Client.__init__(self, address, *args, **kwargs)
        else:
            own(self, address, *args, **kwargs)

    ClientOfDistributed.__init__ = init


@cache
def _derived(cls: Any) -> type:
    return type(cls.__name__, (cls, Client), {"__module__": cls.__module__})
