"""A Ray cluster as the host: an actor has Treadle's scheduler, one on each node has a worker."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from treadle import _core
from treadle.common._certificates import Certificates
from treadle.common._loop import LoopThread, off_loop
from treadle.common._secret import new_secret
from treadle.common._security import certificates_of, temporary
from treadle.hosting._host_base import Host, Place

if TYPE_CHECKING:
    from treadle.client import Client

__all__ = ["RayHost", "attach_ray", "from_ray", "to_ray"]

logger = logging.getLogger("treadle.hosting")

# Seconds between two looks at Ray's nodes.
_PAUSE = 1.0
# Seconds that an actor may take to start: Ray may have to start a process, and to import.
_START = 60.0
# Seconds in which the values of a worker that leaves move to others.
_HAND_OVER = 10.0
# Seconds in which Ray stores values that it is given.
_STORING = 600.0

# What a node of Ray has that is not a resource of tasks.
_NOT_RESOURCES = ("CPU", "memory", "object_store_memory")


def _options(node: str, **options: Any) -> dict[str, Any]:
    """The options of an actor on one node. It takes none of the node's CPUs from Ray's own tasks."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    strategy = NodeAffinitySchedulingStrategy(node_id=node, soft=False)
    return {"num_cpus": 0, "scheduling_strategy": strategy, **options}


def _name(node: str) -> str:
    """The name of the worker on a node of Ray."""
    return f"ray-{node[:12]}"


def _check_version(ours: str) -> None:
    if _core.__version__ != ours:
        raise RuntimeError(
            f"Treadle {_core.__version__} is installed on the Ray node {socket.gethostname()}, and "
            f"{ours} here: run `pip install treadle=={ours}` there"
        )


class _WorkerActor:
    """A worker of Treadle in a process of Ray. Ray starts it again if the process ends."""

    def __init__(
        self, version: str, options: Mapping[str, Any], arguments: Mapping[str, Any]
    ) -> None:
        _check_version(version)
        from treadle.common._worker_options import WorkerOptions
        from treadle.hosting._worker_parts import WorkerPart

        own = WorkerOptions(**options)
        if not os.path.isdir(own.local_directory or ""):
            own = replace(own, local_directory=None)
        self._part = WorkerPart(options=own, **arguments)

    def ready(self) -> bool:
        return True

    def hold(self, references: Mapping[str, list[Any]]) -> None:
        """Keep references for tasks of :func:`_take`. Ray knows that they are here."""
        _held.update(references)

    def given(self, token: str) -> Any:
        """Return what a task of :func:`_give` has left here: the value itself.

        Ray puts it into the object store of this node, and the caller owns it: it stays when this
        process has ended.

        Raises
        ------
        RuntimeError
            It is not here any more.
        """
        try:
            (value,) = _held.pop(token)
        except KeyError:
            text = f"the process that had the value of {token} has ended: call to_ray again"
            raise RuntimeError(text) from None
        return value

    def forget(self, tokens: Sequence[str]) -> None:
        """Drop what is here for these tokens."""
        for token in tokens:
            _held.pop(token, None)

    def close(self) -> None:
        """End the worker."""
        _held.clear()
        self._part.close()


# References, and values that become objects of Ray, by token, in the process of a worker. Each is in a
# list: Ray would fetch the value of an argument otherwise.
_held: dict[str, list[Any]] = {}


class _NodeWorker:
    """The worker of one node, as the actor of the scheduler looks after it."""

    def __init__(self, ray: Any, actor: Any) -> None:
        self._ray = ray
        self.actor = actor
        self.question = actor.ready.remote()
        self._was_ready = False

    def has_ended(self) -> bool:
        """Whether it was ready once, and Ray does not start it again, since somebody killed its actor."""
        answered, _ = self._ray.wait([self.question], timeout=0)
        if not answered:
            return False
        question, self.question = self.question, self.actor.ready.remote()
        try:
            self._ray.get(question)
        except self._ray.exceptions.ActorDiedError:
            return self._was_ready
        except self._ray.exceptions.RayError:
            # Ray starts it again.
            return False
        self._was_ready = True
        return False


class _SchedulerActor:
    """Treadle's scheduler in a process of Ray. It has a worker started on each node."""

    def __init__(
        self,
        version: str,
        secret: bytes,
        certificates: Certificates | None,
        nthreads: int | None,
        memory_fraction: float,
        autoscale: bool,
    ) -> None:
        import ray

        _check_version(version)
        from treadle.hosting._scheduler_part import SchedulerPart

        self._ray = ray
        self._version = version
        self._nthreads = nthreads
        self._memory_fraction = memory_fraction
        self._autoscale = autoscale
        # What Ray's autoscaler was last asked for.
        self._requested: list[dict[str, float]] = []
        self._credentials: dict[str, Any] = {
            "secret": secret,
            "certificates": certificates,
            "insecure": certificates is None,
        }
        self._part = SchedulerPart(ray.util.get_node_ip_address(), **self._credentials)
        self._workers: dict[str, _NodeWorker] = {}
        self._closing = threading.Event()
        self._watching = threading.Thread(target=self._watch, daemon=True, name="treadle-nodes")

    def address(self) -> str:
        return self._part.address

    def start(self) -> None:
        """Start the workers."""
        self._follow()
        ready = {node: worker.question for node, worker in self._workers.items()}
        self._ray.wait(list(ready.values()), num_returns=len(ready), timeout=_START)
        for node, reference in ready.items():
            try:
                self._ray.get(reference, timeout=0)
            except self._ray.exceptions.ActorUnschedulableError:
                # The node has gone meanwhile.
                del self._workers[node]
        self._watching.start()

    def _watch(self) -> None:
        while not self._closing.wait(_PAUSE):
            try:
                self._follow()
                if self._autoscale:
                    self._request(self._part.adaptive_target(None, timeout=_HAND_OVER))
            except Exception:
                logger.warning("Treadle cannot look at Ray's nodes", exc_info=True)

    def _request(self, wanted: int) -> None:
        """Ask Ray's autoscaler for so many nodes as small as the smallest that there is."""
        sizes = [node["Resources"].get("CPU", 0) for node in self._ray.nodes() if node["Alive"]]
        size = min(filter(None, sizes), default=1.0)
        bundles = [{"CPU": size} for _ in range(wanted)]
        # What is asked for at the end stays.
        if bundles != self._requested and not (bundles and self._closing.is_set()):
            from ray.autoscaler.sdk import request_resources

            request_resources(bundles=bundles)
            self._requested = bundles

    def _follow(self) -> None:
        """Start a worker on each node that has none. The one of a node that is gone has gone with it."""
        nodes = {node["NodeID"]: node for node in self._ray.nodes() if node["Alive"]}
        for gone in self._workers.keys() - nodes.keys():
            del self._workers[gone]
        for ended in [node for node, worker in self._workers.items() if worker.has_ended()]:
            logger.warning("Somebody killed the actor of %s: it is started anew", _name(ended))
            del self._workers[ended]
        for node in nodes.keys() - self._workers.keys():
            self._workers[node] = self._start_worker(nodes[node])

    def _start_worker(self, node: Mapping[str, Any]) -> _NodeWorker:
        resources = node["Resources"]
        # Of built-in types, which another version there can read, too.
        worker = {
            "local_directory": os.path.dirname(node["ObjectStoreSocketName"]),
            "nthreads": self._nthreads or max(1, int(resources.get("CPU", 1))),
            "memory_limit": int(resources.get("memory", 0) * self._memory_fraction),
            "resources": {
                name: amount
                for name, amount in resources.items()
                if name not in _NOT_RESOURCES and not name.startswith("node:")
            },
        }
        arguments = {
            "scheduler": self._part.address,
            "host": node["NodeManagerAddress"],
            "name": _name(node["NodeID"]),
            **self._credentials,
        }
        actor = self._ray.remote(_WorkerActor).options(**_options(node["NodeID"], max_restarts=-1))
        return _NodeWorker(self._ray, actor.remote(self._version, worker, arguments))

    def workers(self) -> dict[str, Any]:
        """The actors of the workers, by name."""
        # The thread that looks at nodes may add one meanwhile.
        return {_name(node): worker.actor for node, worker in list(self._workers.items())}

    def stop(self) -> None:
        """End the workers and the scheduler."""
        self._closing.set()
        if self._watching.is_alive():
            self._watching.join(2 * _PAUSE)
        if self._requested:
            self._request(0)
        workers = [worker.actor for worker in self._workers.values()]
        closing = [worker.close.remote() for worker in workers]
        self._ray.wait(closing, num_returns=len(closing), timeout=_HAND_OVER)
        for worker in workers:
            self._ray.kill(worker)
        self._part.close()


class RayHost(Host):
    """The Ray cluster that this process is connected to."""

    def __init__(
        self, nthreads: int | None, memory_fraction: float, node: str | None, autoscale: bool
    ) -> None:
        import ray

        self._ray = ray
        self._options = nthreads, memory_fraction, autoscale
        self._node = node
        self._scheduler: Any = None
        self._address = ray.get_runtime_context().gcs_address

    def __str__(self) -> str:
        return f"the Ray cluster at {self._address}"

    @property
    def dashboard_link(self) -> str | None:
        try:
            from treadle._compat.ray import get_dashboard_url
        except ImportError:  # another Ray: there is no link
            return None
        url = get_dashboard_url() if self._ray.is_initialized() else None
        return f"http://{url}" if url else None

    async def start_scheduler(self) -> Place:
        ray = self._ray
        # As Ray's own connections: with TLS where Ray has TLS, and plain where it has none.
        has_tls = os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true")
        certificates = certificates_of(temporary()) if has_tls else None
        secret = new_secret()
        options = _options(self._node or self._head())
        actor = ray.remote(_SchedulerActor).options(**options)
        self._scheduler = actor.remote(_core.__version__, secret, certificates, *self._options)
        address = await self._get(self._scheduler.address.remote())
        return Place(address, secret, certificates, certificates is None)

    async def start_workers(self, place: Place) -> None:
        del place
        await self._get(self._scheduler.start.remote())

    async def stop(self) -> None:
        scheduler, self._scheduler = self._scheduler, None
        if scheduler is None or not self._ray.is_initialized():
            return
        try:
            with suppress(self._ray.exceptions.RayError, asyncio.TimeoutError):
                await asyncio.wait_for(scheduler.stop.remote(), 2 * _HAND_OVER)
        finally:
            # Even where this is cancelled: the workers end with it.
            self._ray.kill(scheduler)

    async def _get(self, reference: Any) -> Any:
        try:
            return await asyncio.wait_for(reference, _START)
        except asyncio.TimeoutError:
            text = f"{self} has not started Treadle's actors after {_START:g} s"
            raise TimeoutError(text) from None
        except self._ray.exceptions.RayError as error:
            raise RuntimeError(_cause(error)) from error

    def _head(self) -> str:
        """The node for the scheduler."""
        alive = [node for node in self._ray.nodes() if node["Alive"]]
        heads = [node for node in alive if "node:__internal_head__" in node["Resources"]]
        for node in heads or alive:
            return str(node["NodeID"])
        raise RuntimeError(f"{self} has no node")

    async def hold(self, tokens: Mapping[str, Any]) -> dict[str, str]:
        """Have the workers keep references, each where its value is; return the workers by token."""
        workers = await self._get(self._scheduler.workers.remote())
        if not workers:
            raise RuntimeError(f"{self} has no worker of Treadle")
        places = self._ray.experimental.get_object_locations(list(tokens.values()))
        found: dict[str, str] = {}
        groups: dict[str, dict[str, list[Any]]] = {}
        for token, reference in tokens.items():
            nodes = map(_name, places.get(reference, {}).get("node_ids", ()))
            name = next((node for node in nodes if node in workers), next(iter(workers)))
            found[token] = name
            groups.setdefault(name, {})[token] = [reference]
        for name, references in groups.items():
            await self._get(workers[name].hold.remote(references))
        return found

    async def given(self, tokens: Mapping[str, str]) -> dict[str, Any]:
        """Return references for what workers have left, by token; ``tokens`` names the worker of each.

        This process owns the objects.

        Raises
        ------
        TimeoutError
            Ray has not stored them.
        """
        workers = await self._get(self._scheduler.workers.remote())
        found = {token: workers[name].given.remote(token) for token, name in tokens.items()}
        references = list(found.values())
        # They are stored when this returns, and stay where they are.
        wait = partial(
            self._ray.wait,
            references,
            num_returns=len(references),
            timeout=_STORING,
            fetch_local=False,
        )
        _, missing = await off_loop(wait)
        if missing:
            text = f"{self} has not stored {len(missing)} values after {_STORING:g} s"
            raise TimeoutError(text)
        return found

    async def forget(self, tokens: Sequence[str]) -> None:
        """Have the workers drop what they have for these tokens, as far as they can be reached."""
        workers = await self._get(self._scheduler.workers.remote())
        for worker in workers.values():
            worker.forget.remote(tokens)


def _cause(error: BaseException) -> str:
    text = str(error)
    version = _core.__version__
    if "No module named 'treadle'" in text:
        return (
            f"Treadle is not installed on the nodes of Ray: run `pip install treadle=={version}` "
            f"there, or ray.init(runtime_env={{'pip': ['treadle=={version}']}})"
        )
    return f"Treadle cannot start in Ray: {text}"


def _ray() -> Any:
    try:
        import ray
    except ImportError as error:
        text = 'treadle.attach_ray needs Ray: `pip install "treadle[ray]"`'
        raise ImportError(text) from error
    return ray


def attach_ray(
    *,
    nthreads: int | None = None,
    memory_fraction: float = 0.8,
    scheduler_node: str | None = None,
    autoscale: bool = False,
    **kwargs: Any,
) -> Client:
    """Start Treadle inside the Ray cluster that this process is connected to; return a client of it.

    One actor has Treadle's scheduler. One actor on each node of Ray, present and future, has a worker.
    The actors take no CPUs from Ray's own tasks. Closing the returned client, or ``client.detach()``,
    ends them. They end with this process, too.

    Parameters
    ----------
    nthreads
        How many tasks each worker runs at once; by default, and with 0, the CPUs of its node.
    memory_fraction
        The part of the node's ``memory`` resource that the worker has for values, from 0 to 1.
    scheduler_node
        The id of the node for the scheduler; by default Ray's head.
    autoscale
        Ask Ray's autoscaler for as many nodes as Treadle has work for. A Ray cluster has one such
        request, that of ``ray.autoscaler.sdk.request_resources``: do not use both.
    **kwargs
        What :class:`treadle.Client` takes.

    Raises
    ------
    ImportError
        Ray is not installed.
    ValueError
        ``nthreads`` or ``memory_fraction`` is out of range.
    RuntimeError
        Ray is not initialised here, or Treadle is not installed on its nodes, or in another version.

    Examples
    --------
    >>> ray.init()  # doctest: +SKIP
    >>> client = treadle.attach_ray()  # doctest: +SKIP
    """
    from treadle.hosting._attach import check_options, connect

    if not _ray().is_initialized():
        raise RuntimeError("Ray is not initialised in this process: call ray.init() first")
    check_options(nthreads, memory_fraction)
    host = RayHost(nthreads, memory_fraction, scheduler_node, autoscale)
    # A loop of its own: in a notebook, one runs in this thread already.
    loop = LoopThread("treadle-attach-ray", lambda _error: None)
    try:
        client = connect(loop.run(host.start()), kwargs)
    except BaseException:
        loop.run(host.stop())
        raise
    finally:
        loop.close()
    client._host = host
    return client


def _host_of(client: Any) -> RayHost:
    host = getattr(client, "_host", None)
    if not isinstance(host, RayHost):
        raise TypeError("this needs the client that treadle.attach_ray returned")
    return host


def from_ray(client: Client, references: Sequence[Any]) -> list[Any]:
    """Return futures of Treadle for objects of Ray.

    The values are read on the nodes where Ray has them: arrays of NumPy and tables of Arrow without a
    copy. They are read-only, as in Ray. A value that is lost later is not read again.

    Raises
    ------
    TypeError
        ``client`` is not one of :func:`attach_ray`, or there is something else than a ``ray.ObjectRef``.
    """
    ray = _ray()
    host = _host_of(client)
    for each in references:
        if not isinstance(each, ray.ObjectRef):
            raise TypeError(f"from_ray takes references of Ray, not {type(each).__name__}")
    tokens = {f"from_ray-{uuid.uuid4().hex}": each for each in references}
    if not tokens:
        return []
    workers = client.sync(host.hold, tokens)
    return [client.submit(_take, token, key=token, workers=[workers[token]]) for token in tokens]


def _take(token: str) -> Any:
    import ray

    try:
        (reference,) = _held[token]
    except KeyError:
        raise RuntimeError(
            f"the value of {token} was lost, and cannot be read from Ray again: call from_ray again"
        ) from None
    value = ray.get(reference)
    _held.pop(token, None)
    return value


def to_ray(futures: Sequence[Any]) -> list[Any]:
    """Return references of Ray for futures of Treadle, once these have finished.

    The values are stored in Ray's object stores on the nodes of their workers. This process owns them:
    they live until it ends or drops the references, whether Treadle is in the cluster or not.

    Raises
    ------
    Exception
        What a future raises.
    TypeError
        A future is not one of :func:`attach_ray`'s client.
    """
    if not futures:
        return []
    client = futures[0].client
    host = _host_of(client)
    for future in futures:
        if future.exception() is not None:
            # Before there is a value of another one that nobody would take.
            future.result()
    tokens = [f"to_ray-{uuid.uuid4().hex}" for _ in futures]
    given = [
        client.submit(_give, future, token, pure=False)
        for future, token in zip(futures, tokens, strict=True)
    ]
    try:
        places = dict(zip(tokens, client.gather(given), strict=True))
        found = client.sync(host.given, places)
    except BaseException:
        with suppress(Exception):
            client.cancel(given)
            client.sync(host.forget, tokens)
        raise
    return [found[token] for token in tokens]


def _give(value: Any, token: str) -> str:
    """Leave a value for Ray here; return the name of this worker."""
    import ray

    _held[token] = [value]
    return _name(ray.get_runtime_context().get_node_id())
