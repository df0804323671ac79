"""Pickles values."""

from __future__ import annotations

import pickle

from treadle.pickling import _by_value


def dumps(value: object) -> bytes:
    """Return ``value`` pickled, by value if ``pickle`` cannot."""
    try:
        return pickle.dumps(value, 5)
    except Exception:  # reducing may raise anything; if that fails too, its error says why
        return _by_value.dumps(value)
