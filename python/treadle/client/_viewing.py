"""What a client has of ``ipyparallel.Client``: views of the workers as engines."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from treadle.client._managing import Managing

if TYPE_CHECKING:
    from treadle.views import BroadcastView, DirectView, Engines, LoadBalancedView

__all__ = ["Viewing"]

_making = threading.Lock()


class Viewing(Managing):
    """A client whose workers are engines, too: each has a namespace that stays."""

    _engines: Engines | None = None
    # With `__getitem__` alone it would count as a sequence.
    __iter__ = None

    @property
    def engines(self) -> Engines:
        """What an ``ipyparallel.Client`` is: history, results, ``wait``, ``abort``, and views.

        Raises
        ------
        ImportError
            ipyparallel is not installed: ``pip install '.[ipython]'`` in a clone of Treadle.
        """
        if self._engines is None:
            from treadle.views import Engines

            with _making:
                if self._engines is None:
                    self._engines = Engines(self)
        return self._engines

    def _forget_all(self) -> None:
        super()._forget_all()
        if self._engines is not None:
            self._engines.disconnected("the client was closed, or lost the scheduler")

    @property
    def ids(self) -> list[int]:
        """The numbers of the engines that there are now. An engine keeps its own."""
        return self.engines.ids

    def __len__(self) -> int:
        return len(self.ids)

    def __bool__(self) -> bool:
        # One without engines is a client, too.
        return True

    def wait_for_engines(self, n: int | None = None, *, timeout: float = -1) -> None:
        """Wait until there are ``n`` engines, by default one.

        Raises
        ------
        TimeoutError
            Not within so many seconds; a negative number is no limit.
        """
        self.engines.wait_for_engines(n, timeout=timeout)

    def direct_view(self, targets: Any = "all", **flags: Any) -> DirectView:
        """Return a view that runs everything on each of its engines."""
        return self.engines.direct_view(targets, **flags)

    def broadcast_view(self, targets: Any = "all", **flags: Any) -> BroadcastView:
        """Return a view that runs everything on each of its engines, with one merged result."""
        return self.engines.broadcast_view(targets, **flags)

    def load_balanced_view(self, targets: Any = None, **flags: Any) -> LoadBalancedView:
        """Return a view that runs each call on one of its engines: by the scheduler."""
        return self.engines.load_balanced_view(targets, **flags)

    def __getitem__(self, targets: int | slice | Sequence[int] | str) -> DirectView:
        """``client[0]``, ``client[::2]``, ``client[[1, 3]]``, ``client["all"]``: direct views."""
        if targets == "all":
            return self.engines.direct_view()
        view: DirectView = self.engines[targets]
        return view

    def interrupt(self, targets: int | slice | Iterable[int] | str = "all") -> None:
        """Raise ``KeyboardInterrupt`` in what engines run now; those that run nothing go on."""
        self.engines.send_signal("SIGINT", targets, block=True)
