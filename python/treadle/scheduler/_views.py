"""What the scheduler knows of tasks, workers and clients, to be read as distributed's state.

``Scheduler.tasks``, ``workers``, ``clients``, ``task_prefixes`` and ``task_groups`` of distributed are
dictionaries of objects that tools and tests read. Here each is a view: it asks the native scheduler
when it is read. An object that was got by its key is asked for anew at each attribute; those of
``values()`` and ``items()`` are of one moment. Nothing can be changed through them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

import dask
from dask.sizeof import sizeof
from dask.utils import parse_timedelta
from distributed import Status

from treadle import _core
from treadle._compat.distributed import ALL_TASK_STATES, MemoryState
from treadle.common._groups import group_of, prefix_of
from treadle.common._names import name_of
from treadle.common._priorities import ranked
from treadle.errors._unserved import UnservedError, not_followed
from treadle.scheduler._story import state_of

if TYPE_CHECKING:
    from treadle.scheduler._steps import Steps

__all__ = [
    *("ClientView", "Clients", "Groups", "Scheduled", "TaskView", "WorkerView", "Workers"),
    *("class_name", "worker_at"),
]


class Ask(Protocol):
    """Asks the native scheduler: operation and argument."""

    @property
    def steps(self) -> Steps:
        """What became of tasks, if somebody wanted to know."""

    def __call__(self, operation: str, argument: Mapping[str, Any]) -> Any: ...


_OF_STEPS = (
    *("annotations", "exception", "exception_blame", "exception_text"),
    *("metadata", "occupancy", "traceback", "traceback_text"),
)


class _View:
    """Something of the scheduler's, read-only."""

    __slots__ = ("_ask", "_known")

    def __init__(self, ask: Ask, known: Mapping[str, Any]) -> None:
        object.__setattr__(self, "_ask", ask)
        object.__setattr__(self, "_known", known)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in _OF_STEPS:
            # Their properties have raised the same, which ends here.
            raise not_followed(f"{name!r} of {self!r}")
        raise UnservedError(
            f"Treadle's scheduler does not know {name!r} of {self!r}: a view has "
            f"{', '.join(sorted(n for n in dir(self) if not n.startswith('_')))}"
        )

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{self!r} is a view: {name} cannot be set")

    @property
    def _identity(self) -> Hashable:
        raise NotImplementedError

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)


def _of_task(name: str) -> Any:
    return property(lambda task: task._now[name])


def _of_steps(name: str) -> Any:
    def of(task: TaskView) -> Any:
        return getattr(task._followed(name), name, None)

    of.__doc__ = f"As distributed's, while steps of tasks are followed: {name}."
    return property(of)


class TaskView(_View):
    """A task, as ``distributed.scheduler.TaskState`` has it."""

    __slots__ = ("_live", "key")

    key: Hashable

    def __init__(self, ask: Ask, known: Mapping[str, Any], *, live: bool) -> None:
        super().__init__(ask, known)
        object.__setattr__(self, "key", known["key"])
        object.__setattr__(self, "_live", live)

    @property
    def _now(self) -> Mapping[str, Any]:
        if self._live:
            found = self._ask("tasks", {"keys": [self.key]})
            fresh = found[0] if found else {**self._known, **_FORGOTTEN}
            object.__setattr__(self, "_known", fresh)
        known: Mapping[str, Any] = self._known
        return known

    @property
    def _identity(self) -> Hashable:
        return self.key

    def __repr__(self) -> str:
        return f"<TaskState {self.key!r} {state_of(self._known['state'])}>"

    @property
    def state(self) -> str:
        """As distributed names it: "released", "waiting", "queued", "processing", "memory", …"""
        now = self._now
        if now["state"] == "ready" and not self._has_place(now):
            return "no-worker"
        return state_of(now["state"])

    def _has_place(self, now: Mapping[str, Any]) -> bool:
        """Whether some worker may run it, now or when others are through."""
        wanted, needed = set(now["restrictions"]), now["resources"]
        workers = self._ask("identity", {"n_workers": -1})["workers"]
        for address, info in workers.items():
            if info["status"] != "running":
                continue
            is_meant = not wanted or now["loose"] or wanted & {address, info["name"], info["host"]}
            has = info["resources"]
            if is_meant and all(has.get(name, 0) >= amount for name, amount in needed.items()):
                return True
        return False

    def _tasks(self, name: str) -> set[TaskView]:
        keys = list(self._now[name])
        found = self._ask("tasks", {"keys": keys}) if keys else ()
        return {TaskView(self._ask, one, live=self._live) for one in found}

    @property
    def dependencies(self) -> set[TaskView]:
        """What it reads."""
        return self._tasks("dependencies")

    @property
    def dependents(self) -> set[TaskView]:
        """What reads it, as far as it is not done."""
        return self._tasks("dependents")

    @property
    def waiting_on(self) -> set[TaskView]:
        """What it reads and has no value yet."""
        return {task for task in self.dependencies if task.state != "memory"}

    @property
    def waiters(self) -> set[TaskView]:
        """What waits for it."""
        done = ("memory", "erred", "released", "forgotten")
        return {task for task in self.dependents if task.state not in done}

    @property
    def who_has(self) -> set[WorkerView]:
        """The workers that have its value."""
        return set(_workers(self._ask, self._now["who_has"]))

    @property
    def processing_on(self) -> WorkerView | None:
        """The worker that it was sent to."""
        address = self._now["processing_on"]
        return next(iter(_workers(self._ask, [address])), None) if address else None

    @property
    def who_wants(self) -> set[ClientView]:
        """The clients that have futures of it."""
        return {ClientView(self._ask, {"name": name}) for name in self._now["who_wants"]}

    @property
    def nbytes(self) -> int:
        """Bytes of its value; -1: it has none. Of a small one, those in memory: in a view of one moment,
        those of its encoding.
        """
        now = self._now
        nbytes = int(now["nbytes"])
        if now["small"] and self._live:
            for encoded in self._ask("small_values", {"keys": [self.key]}).values():
                # What cannot be unpickled here keeps the size of its encoding.
                with suppress(Exception):
                    return int(sizeof(_core.decode_value(encoded)))
        return nbytes

    retries = _of_task("retries")
    suspicious = _of_task("suspicious")
    actor = _of_task("actor")
    loose_restrictions = _of_task("loose")
    annotations = _of_steps("annotations")
    exception = _of_steps("exception")
    exception_blame = _of_steps("exception_blame")
    exception_text = _of_steps("exception_text")
    metadata = _of_steps("metadata")
    traceback = _of_steps("traceback")
    traceback_text = _of_steps("traceback_text")

    @property
    def priority(self) -> tuple[Any, ...]:
        """The user's, negated; the number of the submission; the place in that one's order."""
        user, *rest = self._now["priority"]
        return -ranked(-user), *rest

    @property
    def _restrictions(self) -> tuple[set[str], set[str]]:
        workers = self._ask("identity", {"n_workers": -1})["workers"]
        address = {str(info["name"]): address for address, info in workers.items()}
        names = [address.get(name, name) for name in self._now["restrictions"]]
        return {n for n in names if "://" in n}, {n for n in names if "://" not in n}

    @property
    def worker_restrictions(self) -> set[str] | None:
        """The addresses of the workers where it may run; None: anywhere."""
        return self._restrictions[0] or None

    @property
    def host_restrictions(self) -> set[str] | None:
        """The hosts where it may run, and names that no worker has; None: anywhere."""
        return self._restrictions[1] or None

    @property
    def resource_restrictions(self) -> dict[str, float] | None:
        """The abstract resources that it uses."""
        return dict(self._now["resources"]) or None

    @property
    def run_spec(self) -> Any:
        """Whether there is something to compute it from: None if not, a placeholder otherwise."""
        return None if self._now["scattered"] else "<what it runs is native>"

    @property
    def type(self) -> str | None:
        """The name of its value's class, where that is known."""
        return str(class_name(self._now["class"])) or None

    @property
    def prefix(self) -> Any:
        """The tasks of its prefix."""
        followed = self._followed()
        if followed is not None:
            return followed.prefix
        return Groups(self._ask, prefix_of)[self.prefix_key]

    @property
    def group(self) -> Any:
        """The tasks of its group."""
        followed = self._followed()
        if followed is not None:
            return followed.group
        return Groups(self._ask, group_of)[self.group_key]

    def _followed(self, what: str = "") -> Any:
        steps = self._ask.steps
        if not steps.wanted:
            if not what:
                return None
            raise not_followed(f"TaskState.{what}")
        if self._live:
            steps.sync()
        return steps.tasks.get(self.key)

    @property
    def prefix_key(self) -> str:
        """Its key up to its token."""
        return prefix_of(self.key)

    @property
    def group_key(self) -> str:
        """Its key without its place in a collection."""
        return group_of(self.key)


_FORGOTTEN = {
    "state": "forgotten",
    "who_has": (),
    "who_wants": (),
    "processing_on": None,
    "seceded": False,
    "small": False,
    "dependents": (),
    "nbytes": -1,
}


def class_name(pickled: bytes) -> str:
    """The name in a pickled class, without importing it."""
    import pickletools

    texts: list[str] = []
    try:
        for code, argument, _ in pickletools.genops(pickled):
            if code.name in ("GLOBAL",):
                return str(argument).replace(" ", ".")
            if "UNICODE" in code.name:
                texts.append(str(argument))
    except ValueError:
        return ""
    return ".".join(texts[:2])


class Scheduled(Mapping[Hashable, TaskView]):
    """``Scheduler.tasks``: all tasks that the scheduler knows."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    def __getitem__(self, key: Hashable) -> TaskView:
        found = self._ask("tasks", {"keys": [key]})
        if not found:
            raise KeyError(key)
        return TaskView(self._ask, found[0], live=True)

    def __contains__(self, key: object) -> bool:
        return bool(self._ask("tasks", {"keys": [key], "names": True}))

    def __iter__(self) -> Iterator[Hashable]:
        return iter(self._ask("tasks", {"names": True}))

    def __len__(self) -> int:
        return len(self._ask("tasks", {"names": True}))

    def values(self) -> Any:
        """Return all of them, as they are now."""
        return dict(self.items()).values()

    def items(self) -> Any:
        """Return all of them with their keys, as they are now."""
        found = self._ask("tasks", {})
        return {one["key"]: TaskView(self._ask, one, live=False) for one in found}.items()

    def __repr__(self) -> str:
        return f"<tasks of the scheduler: {len(self)}>"


def _of_worker(name: str) -> Any:
    return property(lambda worker: worker._known[name])


class WorkerView(_View):
    """A worker, as ``distributed.scheduler.WorkerState`` has it, of one moment."""

    __slots__ = ()

    @property
    def _identity(self) -> Hashable:
        return self.address

    @property
    def address(self) -> str:
        """Where it listens."""
        return str(self._known["address"])

    def __repr__(self) -> str:
        return f"<WorkerState {self.address!r}, name: {self.name}>"

    @property
    def name(self) -> Hashable:
        """A number, if it looks like one."""
        return name_of(self._known["name"])

    @property
    def status(self) -> Status:
        """Whether it gets tasks."""
        return Status.lookup[self._known["status"]]  # type: ignore[attr-defined,no-any-return]

    @property
    def processing(self) -> dict[TaskView, float]:
        """The tasks that were sent to it; how long they take is not told."""
        keys = self._ask("processing", {"workers": [self.address]}).get(self.address, ())
        return dict.fromkeys(self._of(keys), 0.0)

    @property
    def has_what(self) -> dict[TaskView, None]:
        """The tasks whose values it has."""
        keys = self._ask("has_what", {"workers": [self.address]}).get(self.address, ())
        return dict.fromkeys(self._of(keys))

    @property
    def nbytes(self) -> int:
        """Bytes of the values that it has."""
        return int(self._ask("managed", {"workers": [self.address]}).get(self.address, 0))

    @property
    def occupancy(self) -> float:
        """Seconds that the tasks which were sent to it will take, without those that have seceded.

        Raises
        ------
        NotImplementedError
            It has tasks, and steps of tasks are not followed: what tasks take is not known here.
        """
        tasks = [task for task in self.processing if not task._known["seceded"]]
        if not tasks:
            return 0.0
        if not self._ask.steps.wanted:
            raise not_followed("WorkerState.occupancy")
        unknown = parse_timedelta(dask.config.get("distributed.scheduler.unknown-task-duration"))
        means = [task.prefix.duration_average for task in tasks]
        return float(sum(unknown if mean < 0 else mean for mean in means))

    @property
    def long_running(self) -> set[TaskView]:
        """The tasks that were sent to it and have seceded."""
        return {task for task in self.processing if task._known["seceded"]}

    def _of(self, keys: Any) -> list[TaskView]:
        found = self._ask("tasks", {"keys": list(keys)}) if keys else ()
        return [TaskView(self._ask, one, live=False) for one in found]

    @property
    def memory(self) -> MemoryState:
        """Its memory, as it said last, of which its values take what the scheduler knows by now."""
        return self._memory(self.nbytes)

    def _memory(self, managed: int) -> MemoryState:
        metrics = self._known["metrics"]
        return MemoryState(
            process=metrics["memory"],
            unmanaged_old=0,
            managed=managed,
            spilled=metrics["spilled_bytes"]["disk"],
        )

    @property
    def ip(self) -> str:
        """Its host."""
        return str(self._known["host"])

    @property
    def memory_limit(self) -> int:
        """Bytes; 0: none."""
        return int(self._known["memory_limit"])

    host = _of_worker("host")
    last_seen = _of_worker("last_seen")
    local_directory = _of_worker("local_directory")
    metrics = _of_worker("metrics")
    nanny = _of_worker("nanny")
    nthreads = _of_worker("nthreads")
    pid = _of_worker("pid")
    resources = _of_worker("resources")
    services = _of_worker("services")
    used_resources = _of_worker("used_resources")

    def identity(self) -> dict[str, Any]:
        """Return all that is known of it."""
        return {key: value for key, value in self._known.items() if key != "address"}


class _Asked(dict[str, Any]):
    """What is known of a worker when it is read; of one that is gone, its address."""

    def __init__(self, ask: Ask, address: str) -> None:
        super().__init__(address=address)
        self._ask = ask

    def __missing__(self, name: str) -> Any:
        address = self["address"]
        found = self._ask("identity", {"n_workers": -1})["workers"].get(address)
        if found is not None:
            return found[name]
        if name == "name":
            return address
        raise KeyError(f"{name}: the worker at {address} is gone")


def worker_at(ask: Ask, address: str) -> WorkerView:
    """Return a view of a worker that asks whenever it is read."""
    return WorkerView(ask, _Asked(ask, address))


def _workers(ask: Ask, addresses: Any) -> list[WorkerView]:
    known = Workers(ask)
    return [known[address] for address in addresses if address in known]


class Workers(dict[str, WorkerView]):
    """``Scheduler.workers``, by address, as they are now."""

    def __init__(self, ask: Ask) -> None:
        known = ask("identity", {"n_workers": -1})["workers"]
        super().__init__(
            (address, WorkerView(ask, {**info, "address": address}))
            for address, info in known.items()
        )
        self._ask = ask

    def memory(self) -> MemoryState:
        """Return the memory of all of them."""
        managed = self._ask("managed", {})
        states = [worker._memory(managed.get(name, 0)) for name, worker in self.items()]
        return MemoryState.sum(*states)


class ClientView(_View):
    """A client, as ``distributed.scheduler.ClientState`` has it, or who holds keys as one would:
    ``queue-x``, ``variable-x``, ``published-x``.
    """

    __slots__ = ()

    @property
    def _identity(self) -> Hashable:
        return self.client_key

    @property
    def client_key(self) -> str:
        """Its id."""
        return str(self._known["name"])

    def __repr__(self) -> str:
        return f"<ClientState {self.client_key!r}>"

    @property
    def wants_what(self) -> set[TaskView]:
        """The tasks that it has futures of."""
        held = self._known.get("held")
        if held is not None:
            found = self._ask("tasks", {"keys": list(held)})
            return {TaskView(self._ask, one, live=False) for one in found}
        tasks = Scheduled(self._ask).values()
        return {task for task in tasks if self.client_key in task._known["who_wants"]}


class Clients(dict[str, ClientView]):
    """``Scheduler.clients``, by id, as they are now, and those who hold keys in the sidecar."""

    def __init__(
        self, ask: Ask, names: Iterable[str], holders: Mapping[str, Collection[Hashable]]
    ) -> None:
        super().__init__((name, ClientView(ask, {"name": name})) for name in names)
        for name, keys in holders.items():
            self[name] = ClientView(ask, {"name": name, "held": keys})


class GroupView(_View):
    """Tasks that belong together: ``TaskPrefix`` and ``TaskGroup`` of distributed, of one moment."""

    __slots__ = ()

    @property
    def _identity(self) -> Hashable:
        return self.name

    @property
    def name(self) -> str:
        """What their keys begin with."""
        return str(self._known["name"])

    def __repr__(self) -> str:
        states = ", ".join(f"{name}: {count}" for name, count in self.states.items() if count)
        return f"<{self.name}: {states}>"

    def __len__(self) -> int:
        return len(self._known["tasks"])

    @property
    def states(self) -> dict[str, int]:
        """How many are in each state."""
        counted = Counter(task.state for task in self._known["tasks"])
        return {state: counted[state] for state in ALL_TASK_STATES}

    active_states = states

    @property
    def nbytes_total(self) -> int:
        """Bytes of the values that there are."""
        return sum(max(task._known["nbytes"], 0) for task in self._known["tasks"])

    @property
    def groups(self) -> list[GroupView]:
        """The groups of a prefix."""
        groups = Groups(self._ask, group_of)
        return [groups[name] for name in {task.group_key for task in self._known["tasks"]}]

    active = groups

    @property
    def prefix(self) -> GroupView:
        """The prefix of a group."""
        return Groups(self._ask, prefix_of)[self._known["tasks"][0].prefix_key]

    @property
    def dependencies(self) -> set[GroupView]:
        """The groups that these tasks read."""
        groups = Groups(self._ask, group_of)
        keys = {t.group_key for task in self._known["tasks"] for t in task.dependencies}
        return {groups[key] for key in keys if key != self.name}


class Groups(dict[str, GroupView]):
    """``Scheduler.task_prefixes`` or ``task_groups``, by name, as they are now."""

    def __init__(self, ask: Ask, split: Callable[[Any], str]) -> None:
        tasks: dict[str, list[TaskView]] = {}
        for task in Scheduled(ask).values():
            tasks.setdefault(split(task.key), []).append(task)
        super().__init__(
            (name, GroupView(ask, {"name": name, "tasks": members}))
            for name, members in tasks.items()
        )
