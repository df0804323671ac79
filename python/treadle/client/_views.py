"""What a client has of ``ipyparallel.Client``: views of the workers as engines."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence, Set
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
        """All that an ``ipyparallel.Client`` is, also what a client has under another meaning.

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

    def executor(self, targets: Any = None) -> Any:
        """Return a ``concurrent.futures`` executor whose calls run on one of the engines each."""
        return self.engines.executor(targets)

    def activate(self, targets: Any = "all", suffix: str = "") -> DirectView:
        """Have the magics ``%px``, ``%autopx`` and ``%pxresult``, with this suffix, use these engines."""
        view: DirectView = self.engines.activate(targets, suffix)
        return view

    @property
    def history(self) -> Sequence[str]:
        """The ids of the calls of views, in their order."""
        return self.engines.history

    @property
    def outstanding(self) -> Set[str]:
        """The ids of those that have not ended."""
        return self.engines.outstanding

    def wait(self, jobs: Any = None, timeout: float = -1) -> bool:
        """Wait for calls of views: results, ids or indices of the history; by default all.

        Returns whether they ended within so many seconds; a negative number is no limit.
        """
        done: bool = self.engines.wait(jobs, timeout)
        return done

    def wait_interactive(
        self, jobs: Any = None, interval: float = 1.0, timeout: float = -1
    ) -> None:
        """Show a progress bar while waiting for calls of views, as :meth:`wait` does."""
        self.engines.wait_interactive(jobs, interval, timeout)

    def get_result(self, ids: Any = None, block: bool | None = None) -> Any:
        """Return the result of calls of views, given by ids or indices; by default of the last one."""
        return self.engines.get_result(ids, block)

    def abort(self, jobs: Any = None, targets: Any = None, block: bool | None = None) -> None:
        """End calls of views that have not begun: those given, or all."""
        self.engines.abort(jobs, targets, block)

    def clear(self, targets: Any = None, block: bool | None = None) -> Any:
        """Empty the namespaces of engines, by default of all."""
        return self.engines.clear(targets, block)

    def queue_status(self, targets: Any = "all", verbose: bool = False) -> dict[Any, Any]:
        """Return how many calls engines have before them, by number of the engine."""
        status: dict[Any, Any] = self.engines.queue_status(targets, verbose)
        return status

    def become_dask(self) -> Viewing:
        """Return this client, which is one of Dask already."""
        return self

    def interrupt(self, targets: int | slice | Iterable[int] | str = "all") -> None:
        """Raise ``KeyboardInterrupt`` in what engines run now; those that run nothing go on."""
        self.engines.send_signal("SIGINT", targets, block=True)
