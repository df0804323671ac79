"""Shuffles: the stand-alone service, records, and what converts data frames and arrays to rows, and back.

``Service`` is the stand-alone shuffle service, with ``Writer`` and ``Reader`` for direct use.
``ShuffleRecord`` is what ``client.shuffles()`` says of a shuffle.

For Treadle's own shuffles, ``Agreed`` is what all maps of a shuffle know beforehand. ``split`` prepares the
rows of a map, from which batches are gathered. ``assemble`` makes a partition from the pieces of all maps.
``split_array`` and ``assemble_array`` do the same with the pieces of an array.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from treadle.shuffle._piece import Piece

if TYPE_CHECKING:
    from treadle.shuffle._arrays import assemble_array, split_array
    from treadle.shuffle._assemble import assemble
    from treadle.shuffle._common_plan import Agreed
    from treadle.shuffle._history import ShuffleRecord, Sizes
    from treadle.shuffle._p2p_check import ShuffleRefusedError
    from treadle.shuffle._split import split
    from treadle.shuffle.service._errors import (
        DamagedRows,
        LateAttempt,
        MapsFailed,
        NoRoom,
        RowsLost,
        ShuffleError,
        Superseded,
    )
    from treadle.shuffle.service._reader import Reader
    from treadle.shuffle.service._service import Service
    from treadle.shuffle.service._shuffle import Shuffle
    from treadle.shuffle.service._writer import Receipt, Writer

__all__ = [
    "Agreed",
    "DamagedRows",
    "LateAttempt",
    "MapsFailed",
    "NoRoom",
    "Piece",
    "Reader",
    "Receipt",
    "RowsLost",
    "Service",
    "Shuffle",
    "ShuffleError",
    "ShuffleRecord",
    "ShuffleRefusedError",
    "Sizes",
    "Superseded",
    "Writer",
    "assemble",
    "assemble_array",
    "split",
    "split_array",
]

# Arrays are shuffled without pandas and Arrow, which need not be installed.
_MODULES = {
    "Agreed": "_common_plan",
    "DamagedRows": "service._errors",
    "LateAttempt": "service._errors",
    "MapsFailed": "service._errors",
    "NoRoom": "service._errors",
    "Reader": "service._reader",
    "Receipt": "service._writer",
    "RowsLost": "service._errors",
    "Service": "service._service",
    "Shuffle": "service._shuffle",
    "ShuffleError": "service._errors",
    "ShuffleRecord": "_history",
    "ShuffleRefusedError": "_p2p_check",
    "Sizes": "_history",
    "Superseded": "service._errors",
    "Writer": "service._writer",
    "assemble": "_assemble",
    "assemble_array": "_arrays",
    "split": "_split",
    "split_array": "_arrays",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
