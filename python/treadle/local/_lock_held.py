"""Telling the user that threads gain nothing, because the tasks hold the interpreter's lock."""

from __future__ import annotations

import warnings

__all__ = ["InterpreterLockWarning"]

_told = False


class InterpreterLockWarning(UserWarning):
    """The tasks of a graph hold the interpreter's lock, so that its threads run one after another.

    :func:`treadle.get` says so once in a process, by measurement: while at least two threads worked,
    it had to wait for the lock at most of its looks, for a second. Tasks of less than a
    millisecond are not reported: processes would cost more than they gain.
    """


def tell(held: int, looks: int, seconds: float) -> None:
    """Warn, unless that was done before; called by the engine."""
    global _told
    if _told:
        return
    _told = True
    warnings.warn(
        f"The tasks hold the interpreter's lock: it was taken at {held} of {looks} looks in "
        f"{seconds:.1f} s, so threads run one after another. Processes run side by side: "
        'compute(scheduler="treadle-processes") or treadle.install("treadle-processes"). '
        "To silence this: "
        'warnings.simplefilter("ignore", treadle.InterpreterLockWarning)',
        InterpreterLockWarning,
        stacklevel=3,
    )
