"""Pickles of values in rows.

They go from worker to worker. What one of them finds by its name, the others find, too: a class of the script
is not in the pickle of each value.
"""

from __future__ import annotations

import pickle

from treadle.pickling import _by_value


def dumps(value: object) -> bytes:
    """Return ``value`` pickled, by value if ``pickle`` cannot."""
    try:
        return pickle.dumps(value, 5)
    except Exception:  # reducing may raise anything; if that fails too, its error says why
        return _by_value.dumps(value)
