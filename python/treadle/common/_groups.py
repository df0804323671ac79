"""Names that tasks are counted and drawn under, whatever their keys are."""

from __future__ import annotations

from collections.abc import Hashable

from dask.utils import key_split

__all__ = ["group_of", "prefix_of"]

# What dask calls keys that it makes nothing of.
_OTHER = "Other"


def prefix_of(key: Hashable) -> str:
    """Return ``dask.utils.key_split`` of a key; "Other" where that raises, as for ``()``."""
    try:
        return str(key_split(key))
    except Exception:
        return _OTHER


def group_of(key: Hashable) -> str:
    """Return ``distributed.utils.key_split_group`` of a key, as text; "Other" where that raises."""
    # Not before somebody has a cluster.
    from distributed.utils import key_split_group

    try:
        return str(key_split_group(key))
    except Exception:
        return _OTHER
