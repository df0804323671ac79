"""Scheduler plugins, and the plugins that workers and their nannies ask for when they start."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import logging
import pickle
import time
import warnings
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from distributed.diagnostics.plugin import SchedulerPlugin

from treadle._compat.distributed import get_plugin_name

if TYPE_CHECKING:
    from treadle.scheduler._standin import SchedulerStandIn

__all__ = ["NannyPlugins", "SchedulerPlugins", "WorkerPlugins"]

# Where distributed logs what plugins raise.
logger = logging.getLogger("distributed.scheduler")

# This would have to run in the scheduler's own steps, which are native.
_NOT_SERVED = ("valid_workers_downscaling",)

# Seconds for the workers to restart that a nanny plugin wants to.
_REPLACED = 30.0

_NO_NANNY = (
    "the nanny plugin {name} is refused: nobody looks after the process of {names}. Start workers as "
    "processes (Client(workers=2), `treadle worker` without --no-nanny), or use a WorkerPlugin"
)

_OVERWRITES = "Scheduler already contains a plugin with name {}; overwriting."

# Seconds that clients have to know that what they submit is to be told.
_PATIENCE = 5.0


class SchedulerPlugins:
    """The scheduler plugins, by name (``Scheduler.plugins``)."""

    def __init__(self, scheduler: SchedulerStandIn) -> None:
        self._scheduler = scheduler
        self._observing = False
        # Hooks that are coroutines and that nobody waits for.
        self._running: set[asyncio.Future[Any]] = set()

    async def add(
        self, plugin: bytes | SchedulerPlugin, name: str | None = None, *, idempotent: bool = False
    ) -> None:
        """Start a plugin; it replaces one of the same name unless that is ``idempotent``.

        Raises
        ------
        NotImplementedError
            The plugin has a hook that is not served.
        Exception
            What its ``start`` raises.
        """
        if isinstance(plugin, bytes):
            plugin = pickle.loads(plugin)
        name = _checked(plugin, name)
        assert isinstance(plugin, SchedulerPlugin)
        if idempotent and name in self._scheduler.plugins:
            return
        result: Any = plugin.start(self._scheduler)  # type: ignore[arg-type]
        if inspect.isawaitable(result):
            await result
        if name in self._scheduler.plugins and self._scheduler.plugins[name] is not plugin:
            warnings.warn(_OVERWRITES.format(name), UserWarning, stacklevel=2)
        self._scheduler.plugins[name] = plugin
        self.watch()
        await self.observe()

    def put(self, plugin: SchedulerPlugin, name: str | None, *, idempotent: bool) -> None:
        """Keep a plugin that was started; as ``Scheduler.add_plugin``."""
        name = _checked(plugin, name)
        if name in self._scheduler.plugins:
            if idempotent:
                return
            warnings.warn(_OVERWRITES.format(name), UserWarning, stacklevel=3)
        self._scheduler.plugins[name] = plugin
        self.watch()

    async def remove(self, name: str) -> None:
        """Forget a plugin.

        Raises
        ------
        ValueError
            There is none of that name.
        """
        self.forget(name)
        await self.observe()

    def forget(self, name: str | None) -> None:
        """Forget a plugin, as ``Scheduler.remove_plugin``."""
        try:
            del self._scheduler.plugins[name]  # type: ignore[arg-type]
        except KeyError:
            raise ValueError(
                f"Could not find plugin {name!r} among the current scheduler plugins"
            ) from None
        self.watch()

    @property
    def observing(self) -> bool:
        """Whether clients tell what they submit."""
        return self._observing

    def watch(self) -> None:
        """Have the scheduler tell each step of tasks if a plugin wants to know, and only then."""
        plugins = self._scheduler.plugins.values()
        if any(_overrides(plugin, "transition") for plugin in plugins):
            self._scheduler.steps.begin(keep=False)
        else:
            self._scheduler.steps.end()

    async def observe(self) -> None:
        """Have clients tell what they submit if somebody wants to know, and only then."""
        plugins = self._scheduler.plugins.values()
        wanted = self._scheduler.steps.wanted or any(
            _overrides(plugin, "update_graph") for plugin in plugins
        )
        if wanted == self._observing:
            return
        self._observing = wanted
        argument = {"submissions": wanted}
        # Clients that come later are told by the scheduler.
        await self._scheduler.ask("", "observe", argument)
        clients = set(self._scheduler.nodes.values())
        asked = [self._scheduler.ask(client, "observe", argument) for client in clients]
        # One that leaves meanwhile, or has no time to answer, submits nothing either.
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), _PATIENCE)

    def call(self, hook: str, *args: Any, **kwargs: Any) -> None:
        """Call a hook of all plugins that have it, in the loop; what it raises is logged.

        One that is a coroutine runs when the caller is through.
        """
        for name, plugin in list(self._scheduler.plugins.items()):
            if _overrides(plugin, hook):
                try:
                    result = getattr(plugin, hook)(*args, **kwargs)
                    if inspect.isawaitable(result):
                        task = asyncio.ensure_future(result)
                        self._running.add(task)
                        task.add_done_callback(self._running.discard)
                except Exception:
                    logger.exception("Plugin %s failed in %s", name, hook)

    async def tell(self, hook: str, *args: Any, **kwargs: Any) -> None:
        """Call a hook of all plugins, then wait for those that are coroutines, together.

        What they raise is logged.
        """
        waiting = {}
        for name, plugin in list(self._scheduler.plugins.items()):
            try:
                result = getattr(plugin, hook)(*args, **kwargs)
                if inspect.isawaitable(result):
                    waiting[name] = result
            except Exception:
                logger.exception("Plugin %s failed in %s", name, hook)
        results = await asyncio.gather(*waiting.values(), return_exceptions=True)
        for name, result in zip(waiting, results, strict=True):
            if isinstance(result, Exception):
                logger.error("Plugin %s failed in %s", name, hook, exc_info=result)


def _checked(plugin: Any, name: str | None) -> str:
    """Return a plugin's name.

    Raises
    ------
    NotImplementedError
        The plugin has a hook that is not served.
    """
    if not isinstance(plugin, SchedulerPlugin):
        raise TypeError(f"{plugin!r} is not a SchedulerPlugin")
    for hook in _NOT_SERVED:
        if _overrides(plugin, hook):
            raise NotImplementedError(
                f"SchedulerPlugin.{hook} is not served: Treadle's scheduler is native. Served are "
                "start, before_close, close, restart, log_event, update_graph, transition, and add and "
                "remove of workers and clients"
            )
    return name or str(get_plugin_name(plugin))


class RegisteredPlugins:
    """Plugins that workers, or their nannies, ask for when they start, by name.

    Each registration has a number, so that a worker that starts meanwhile, and both asks for the
    plugins and is told of this one, sets it up once.

    Parameters
    ----------
    plugins
        Their pickles, as plugins of the scheduler see them (``Scheduler.worker_plugins``).
    """

    _kind = "worker"
    _add, _remove = "plugin-add", "plugin-remove"

    def __init__(self, scheduler: SchedulerStandIn, plugins: dict[str, bytes]) -> None:
        self._scheduler = scheduler
        self._numbers = itertools.count(1)
        self._plugins = plugins
        self._registered: dict[str, int] = {}

    async def add(
        self, plugin: bytes, name: str, *, idempotent: bool = False
    ) -> dict[str, dict[str, Any]]:
        """Keep a plugin for workers to come and have those that are there set it up."""
        if idempotent and name in self._registered:
            return {}
        number = next(self._numbers)
        self._registered[name] = number
        self._plugins[name] = plugin
        return await self._broadcast(op=self._add, plugin=plugin, name=name, number=number)

    async def remove(self, name: str) -> dict[str, dict[str, Any]]:
        """Forget a plugin, and have the workers tear it down.

        Raises
        ------
        ValueError
            There is none of that name.
        """
        if self._registered.pop(name, None) is None:
            raise ValueError(f"The {self._kind} plugin {name} does not exist")
        self._plugins.pop(name, None)
        return await self._broadcast(op=self._remove, name=name)

    def registered(self) -> list[tuple[str, int]]:
        """Return the names and numbers, oldest first."""
        return list(self._registered.items())

    def get(self, name: str) -> tuple[bytes, int] | None:
        """Return a plugin's pickle and number, unless it is registered no more."""
        number = self._registered.get(name)
        return None if number is None else (self._plugins[name], number)

    async def _broadcast(self, **message: Any) -> dict[str, dict[str, Any]]:
        # A worker that is lost meanwhile needs no plugin.
        return await self._scheduler.broadcast(msg=message, on_error="ignore")


class WorkerPlugins(RegisteredPlugins):
    """The worker plugins (``Scheduler.worker_plugins``)."""

    def names(self) -> list[str]:
        """Return the names, oldest first."""
        return list(self._registered)


class NannyPlugins(RegisteredPlugins):
    """The nanny plugins (``Scheduler.nanny_plugins``)."""

    _kind = "nanny"
    _add, _remove = "plugin_add", "plugin_remove"

    async def add(
        self, plugin: bytes, name: str, *, idempotent: bool = False
    ) -> dict[str, dict[str, Any]]:
        """Keep a plugin for nannies to come and have those that are there set it up.

        Those whose workers are to restart have done so.

        Raises
        ------
        NotImplementedError
            A worker has no nanny.
        """
        if idempotent and name in self._registered:
            return {}
        before = await self._workers()
        answers = await self._scheduler.broadcast(msg={"op": "has_nanny"}, on_error="ignore")
        if without := [address for address, has in answers.items() if not has]:
            names = ", ".join(
                sorted(before[address][0] for address in without if address in before)
            )
            raise NotImplementedError(_NO_NANNY.format(name=name, names=names))
        answers = await super().add(plugin, name, idempotent=idempotent)
        restarting = {
            before[address]
            for address, answer in answers.items()
            if answer.pop("restart", False) and address in before
        }
        await self._replaced(restarting)
        return answers

    async def _replaced(self, workers: set[tuple[str, int]]) -> None:
        """Wait until other processes have joined with the names of some."""
        until = time.monotonic() + _REPLACED
        pause = 0.01
        while workers:
            now = set((await self._workers()).values())
            missing = {name for name, _ in workers} - {name for name, _ in now - workers}
            if not missing:
                return
            if time.monotonic() > until:
                # distributed waits no longer either, and says so.
                logger.error(
                    "Workers have not restarted within %g s: %s", _REPLACED, ", ".join(missing)
                )
                return
            await asyncio.sleep(pause)
            pause = min(2 * pause, 0.1)

    async def _workers(self) -> dict[str, tuple[str, int]]:
        """Return the names and the process ids of the workers, by address."""
        identity = await self._scheduler.ask("", "identity", {"n_workers": -1})
        workers = identity["workers"].items()
        return {address: (str(worker["name"]), worker["pid"]) for address, worker in workers}

    async def _broadcast(self, **message: Any) -> dict[str, dict[str, Any]]:
        return await self._scheduler.broadcast(msg=message, nanny=True, on_error="ignore")


def _overrides(plugin: SchedulerPlugin, hook: str) -> bool:
    return getattr(type(plugin), hook, None) is not getattr(SchedulerPlugin, hook, None)
