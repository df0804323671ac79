"""Worker plugins."""

from __future__ import annotations

import asyncio
import inspect
import logging
import pickle
import time
from collections import deque
from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING, Any

import dask
from distributed.diagnostics.plugin import WorkerPlugin

from treadle._compat.distributed import get_plugin_name
from treadle.errors import _pickled as errors

if TYPE_CHECKING:
    from treadle.worker._standin import WorkerStandIn

__all__ = ["Plugins", "call_hook"]

logger = logging.getLogger(__name__)


class Plugins:
    """The plugins of a worker, by name. Used in the worker's loop, but for :meth:`transition`."""

    def __init__(self, worker: WorkerStandIn) -> None:
        self._worker = worker
        self._plugins = worker.plugins
        # The sidecar's numbers of the registrations: one may arrive twice while the worker starts.
        self._numbers: dict[str, int] = {}
        self._observers: list[WorkerPlugin] = []
        # What became of tasks, in the form of distributed's log; none before somebody has asked.
        self._log: deque[tuple[Any, ...]] | None = None

    async def add(
        self, plugin: bytes | WorkerPlugin, name: str | None = None, number: int | None = None
    ) -> dict[str, Any]:
        """Set a plugin up; one of the same name is torn down first. Errors are the answer."""
        if name is not None and number is not None and self._numbers.get(name) == number:
            return {"status": "OK"}
        if isinstance(plugin, bytes):
            plugin = pickle.loads(plugin)
        if not isinstance(plugin, WorkerPlugin):
            raise TypeError(f"{plugin!r} is not a WorkerPlugin")
        if name is None:
            name = get_plugin_name(plugin)
        if name in self._plugins:
            await self.remove(name)
        self._plugins[name] = plugin
        if number is not None:
            self._numbers[name] = number
        self._observe()
        return await call_hook(
            plugin, "setup", f"Worker plugin {name}", logger, worker=self._worker
        )

    async def remove(self, name: str) -> dict[str, Any]:
        """Tear a plugin down and forget it. Errors are the answer."""
        self._numbers.pop(name, None)
        try:
            plugin = self._plugins.pop(name)
        except KeyError as error:
            return errors.as_message(error)
        self._observe()
        return await call_hook(
            plugin, "teardown", f"Worker plugin {name}", logger, worker=self._worker
        )

    async def close(self) -> None:
        """Tear all plugins down."""
        await asyncio.gather(*(self.remove(name) for name in list(self._plugins)))

    def transition(self, key: Hashable, start: str, finish: str) -> None:
        """Tell the plugins that want to know how a task went on."""
        state: Any = self._worker.state
        if self._log is not None:
            self._log.append((key, start, finish, finish, {}, f"task-{finish}", time.time()))
        if finish == "executing":
            state.annotate(key)
        for plugin in self._observers:
            try:
                plugin.transition(key, start, finish)  # type: ignore[arg-type]
            except Exception:
                logger.exception("Plugin %r failed in transition", plugin)
        if start == "executing":
            try:
                state.annotated(key)
            except Exception:
                logger.exception("The metadata of %r cannot be told to the scheduler", key)

    def record(self) -> None:
        """Keep the transitions of tasks from now on, ``distributed.admin.low-level-log-length`` of them."""
        if self._log is None:
            self._log = deque(
                maxlen=dask.config.get("distributed.admin.low-level-log-length", None)
            )
            self._observe()

    def story(self, keys_or_stimuli: Iterable[Any] = ()) -> list[tuple[Any, ...]]:
        """Return the transitions of these keys that were recorded; the first call begins to record."""
        self.record()
        wanted = set(keys_or_stimuli)
        return [step for step in tuple(self._log or ()) if step[0] in wanted]

    def _observe(self) -> None:
        """Have the native side report transitions if somebody wants them, and only then."""
        self._observers = [
            plugin
            for plugin in self._plugins.values()
            if type(plugin).transition is not WorkerPlugin.transition
        ]
        self._worker._native.observe(bool(self._observers) or self._log is not None)


async def call_hook(
    plugin: Any, hook: str, what: str, logger: logging.Logger, **whom: Any
) -> dict[str, Any]:
    """Call ``setup`` or ``teardown`` of a plugin; what that raises is the answer."""
    logger.info("%s: %s", what, hook)
    try:
        result = getattr(plugin, hook)(**whom)
        if inspect.isawaitable(result):
            await result
    except Exception as error:
        logger.exception("%s failed to %s", what, hook)
        return errors.as_message(error)
    return {"status": "OK"}
