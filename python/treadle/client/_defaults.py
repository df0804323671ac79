"""What default clients set in Dask's configuration, and how that is undone."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager
from contextvars import Context
from typing import Any, ClassVar

from treadle._compat.distributed import del_global_client, get_global_client

__all__ = ["DefaultSettings"]

# A collection may end another client in the same thread.
_lock = threading.RLock()
_numbers = itertools.count()


class DefaultSettings:
    """The settings of a default client, which know whether they were made before those of others.

    ``dask.config.set`` restores what it found. Clients may end in any order, and two at the same
    time: if the last one undid its own settings only, it could restore those of a client that
    was made before it and has ended. So it undoes those of the first one too.
    """

    # Of those that have ended since there was no default client; later ones restore less.
    _first: ClassVar[DefaultSettings | None] = None

    def __init__(self) -> None:
        self._number = next(_numbers)
        self._settings: Sequence[AbstractContextManager[Any]] = ()
        with _lock:
            there = _default_client()
            if there is None:
                DefaultSettings._first = None
            # One of distributed does not undo its own if it ends while this one is there.
            is_foreign = there is not None and not hasattr(there, "_default_settings")
            self._foreign = getattr(there, "_set_config", None) if is_foreign else None

    def leave(self, client: Any, settings: Sequence[AbstractContextManager[Any]]) -> None:
        """Make a client the default one no more.

        Parameters
        ----------
        settings
            The ``dask.config.set`` of this client, oldest first; none if it was no default client.
        """
        self._settings = settings
        with _lock:
            del_global_client(client)
            if not settings:
                return
            first = DefaultSettings._first
            if first is None or self._number < first._number:
                first = self
            if _default_client() is not None:
                DefaultSettings._first = first
                return
            DefaultSettings._first = None
            self._undo()
            if first is not self:
                first._undo()
            if first._foreign is not None:
                _undo(first._foreign)

    def _undo(self) -> None:
        for setting in reversed(self._settings):
            _undo(setting)


def _undo(setting: AbstractContextManager[Any]) -> None:
    with setting:
        pass  # leaving it undoes it


def _default_client() -> Any:
    """The newest default client that is not closed; None: there is none.

    In a context of its own: the current client of this one may be about to end, in its own block.
    """
    return Context().run(get_global_client)
