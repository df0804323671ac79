"""``%load_ext treadle``: ipyparallel's magics, for the engines of the current client."""

from __future__ import annotations

from typing import Any

from IPython.core.error import UsageError

from treadle._compat.distributed import get_global_client
from treadle._compat.ipyparallel import ParallelMagics

__all__ = ["Magics", "load"]


class Magics(ParallelMagics):  # type: ignore[misc]
    """``%px``, ``%%px``, ``%autopx``, ``%pxresult`` and ``%pxconfig``.

    They use all engines of the current client, and wait, until a view is activated.
    """

    # What somebody activated.
    _view: Any = None
    # All engines of the client that was the current one.
    _all: Any = None

    @property
    def view(self) -> Any:
        """The view that is used."""
        if self._view is not None and not self._view.client._closed:
            return self._view
        client = get_global_client()
        if client is None or not hasattr(client, "engines"):
            raise UsageError("%px needs engines: make a treadle.Client first")
        engines = client.engines
        if self._all is None or self._all.client is not engines:
            # What %pxconfig said of waiting stays; targets are of one client.
            block = True if self._all is None else self._all.block
            self._all = engines.direct_view("all", block=block)
        return self._all

    @view.setter
    def view(self, view: Any) -> None:
        self._view = view


def load(shell: Any) -> None:
    """Register the magics."""
    shell.register_magics(Magics(shell, None))
