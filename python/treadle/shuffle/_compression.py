"""How the rows of a shuffle of the stand-alone service are compressed: what users call it, and where it is kept."""

from __future__ import annotations

import json

from treadle import _core

__all__ = ["NONE", "chosen", "noted", "of_note"]

NONE = "none"
"""Rows are left as they are."""

_SETTING = "treadle.shuffle.compression"


def chosen(*given: str | None) -> str:
    """Return the first name that is given, that of Dask's configuration otherwise.

    Raises
    ------
    ValueError
        There is no such compression.
    """
    named, name = "compression", next((name for name in given if name is not None), None)
    if name is None:
        import dask.config

        named, name = _SETTING, dask.config.get(_SETTING, None)
    name = NONE if name is None else name
    known = (*_core.COMPRESSIONS, NONE)
    if name not in known:
        names = ", ".join(map(repr, known))
        raise ValueError(f"{named}={name!r} is not known here: give one of {names}")
    return str(name)


def noted(note: bytes, compression: str) -> bytes:
    """Return the note of a shuffle that also says how its rows are compressed."""
    if compression == NONE:
        return note
    head, *rest = note.split(b"\n", 1)
    said = {**json.loads(head), "compression": compression}
    return b"\n".join([json.dumps(said).encode(), *rest])


def of_note(note: bytes) -> str:
    """Return what :func:`noted` has added. Whoever only reads need not know it."""
    head = note.partition(b"\n")[0]
    return str(json.loads(head).get("compression", NONE))
