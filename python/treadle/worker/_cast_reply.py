"""What an engine says of a call beside its value: the first frame of a result, a dictionary.

Most calls succeed, and there is nothing else to say: that takes no bytes.
"""

from __future__ import annotations

import pickle
from typing import Any

__all__ = ["ABORTED", "OK", "dumps", "loads"]


def dumps(reply: dict[str, Any]) -> bytes:
    """Return a reply as bytes."""
    return OK if reply == _OK else pickle.dumps(reply)


def loads(frame: Any) -> dict[str, Any]:
    """Return what :func:`dumps` was given; it is not the caller's to change."""
    if not len(frame):
        return _OK
    reply: dict[str, Any] = pickle.loads(frame)
    return reply


#: Of a call that succeeded, and there is nothing else to say.
OK = b""
_OK = {"status": "ok"}

#: Of a call that was never run.
ABORTED = dumps({"status": "aborted"})
