"""What default clients set in Dask's configuration, and how that is undone."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager
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
    was made before it and has ended. So it undoes those of the oldest one too.
    """

    # Of the clients that have ended since there was a default client; the newer ones restore less.
    _oldest: ClassVar[DefaultSettings | None] = None

    def __init__(self) -> None:
        self._number = next(_numbers)
        self._settings: Sequence[AbstractContextManager[Any]] = ()

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
            oldest = DefaultSettings._oldest
            if oldest is None or self._number < oldest._number:
                oldest = self
            if get_global_client():
                DefaultSettings._oldest = oldest
                return
            DefaultSettings._oldest = None
            self._undo()
            if oldest is not self:
                oldest._undo()

    def _undo(self) -> None:
        for setting in reversed(self._settings):
            with setting:
                pass  # leaving it undoes it
