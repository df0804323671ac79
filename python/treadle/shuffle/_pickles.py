"""Pickles values."""

from __future__ import annotations

import pickle

import cloudpickle


def dumps(value: object) -> bytes:
    """Return ``value`` pickled, with ``cloudpickle`` if ``pickle`` cannot."""
    try:
        return pickle.dumps(value, 5)
    except Exception:  # reducing may raise anything; if cloudpickle fails too, its error says why
        return bytes(cloudpickle.dumps(value, 5))
