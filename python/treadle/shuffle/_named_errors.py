"""Errors of a shuffle's tasks name the shuffle, the input or output, and the worker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from distributed.exceptions import Reschedule

__all__ = ["named"]


@contextmanager
def named(what: str, address: str) -> Iterator[None]:
    """Put the shuffle with the input or output, and the worker, before the text of an error."""
    # Imported late, since it imports many modules.
    from treadle.shuffle._p2p_errors import DamagedRows, OutOfDisk

    where = f"{what}, at worker {address}"
    try:
        yield
    except Reschedule:
        raise
    except (DamagedRows, OutOfDisk) as error:
        raise type(error)(f"{where}: {error}") from error.__cause__
    except Exception as error:
        # Those that say what is wrong with an input keep their type, as with distributed.
        kind = type(error) if type(error) in (TypeError, ValueError) else RuntimeError
        raise kind(f"{where}: {error}") from error
