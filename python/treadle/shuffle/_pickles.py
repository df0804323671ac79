"""Values as bytes."""

from __future__ import annotations

import pickle

import cloudpickle


def dumps(value: object) -> bytes:
    """``value`` pickled, by value where that has to be."""
    try:
        return pickle.dumps(value, 5)
    except Exception:  # whatever reducing raises: cloudpickle knows more, and says what it cannot
        return bytes(cloudpickle.dumps(value, 5))
