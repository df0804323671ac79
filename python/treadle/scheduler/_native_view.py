"""What the native scheduler knows, by the names that distributed's scheduler has for it."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from dask.sizeof import sizeof

from treadle import _core
from treadle._compat.distributed import MemoryState
from treadle.common._ask import ask_now
from treadle.common._groups import group_of, prefix_of
from treadle.common._sizes import by_prefix
from treadle.errors._unserved import not_followed
from treadle.scheduler._connection import Connection
from treadle.scheduler._futures import Tasks
from treadle.scheduler._story import told
from treadle.scheduler._views import (
    Clients,
    Groups,
    Scheduled,
    TaskView,
    Workers,
    WorkerView,
    worker_at,
)

if TYPE_CHECKING:
    from treadle.scheduler._steps import Steps

__all__ = ["OF_STEPS", "Known"]

# Seconds that the scheduler has to describe itself: so long locks and queues wait at most.
_PATIENCE = 5.0

#: What is known only while steps of tasks are followed.
OF_STEPS = ("computations", "total_nthreads_history", "total_occupancy")


class Known:
    """The tasks, workers and clients of the native scheduler, to be read.

    ``tasks``, ``workers`` and the like are views, which ask the scheduler when they are read.
    """

    #: What became of tasks, if somebody wanted to know.
    steps: Steps

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._asked = _Asked(self)
        self._tasks = Scheduled(self._asked)
        # The keys that variables, queues and published data hold.
        self.held = Tasks(connection)
        # The clients, and the nodes that they are.
        self.nodes: dict[str, str] = {}

    def identity(self, n_workers: int = -1) -> dict[str, Any]:
        """Return what the scheduler says about itself and its workers."""
        identity: dict[str, Any] = self.ask_now("identity", {"n_workers": n_workers})
        return identity

    def ask_now(self, operation: str, argument: Any) -> Any:
        """Ask the native scheduler; blocks the calling thread for a moment."""
        return ask_now(self._connection, operation, argument, _PATIENCE)

    @property
    def tasks(self) -> Mapping[Hashable, Any]:
        """All tasks. While a plugin is told of a step, they are as they were at that step."""
        return self.steps.tasks if self.steps.applying else self._tasks

    @property
    def computations(self) -> Any:
        """What was submitted together, oldest first, since somebody wanted to know.

        Raises
        ------
        NotImplementedError
            Steps of tasks are not followed.
        """
        self._followed("computations")
        return self.steps.computations

    @property
    def total_nthreads_history(self) -> list[tuple[float, int]]:
        """When workers have come and gone, and how many threads there were since."""
        self._followed("total_nthreads_history")
        return self.steps.nthreads

    def _followed(self, what: str) -> None:
        if not self.steps.wanted:
            raise not_followed(f"Scheduler.{what}")
        self.steps.sync()

    @property
    def workers(self) -> Workers:
        """What is known of each worker, by address."""
        return Workers(self._asked)

    def worker_at(self, address: str) -> WorkerView:
        """Return a view of a worker that asks whenever it is read."""
        return worker_at(self._asked, address)

    @property
    def clients(self) -> Clients:
        """The clients, by id."""
        return Clients(self._asked, list(self.nodes), self.held.by_holder())

    @property
    def task_prefixes(self) -> Any:
        """The tasks by what their keys begin with."""
        if self.steps.wanted:
            self.steps.sync()
            return self.steps.prefixes
        return Groups(self._asked, prefix_of)

    @property
    def task_groups(self) -> Any:
        """The tasks by their keys without the place in a collection."""
        if self.steps.wanted:
            self.steps.sync()
            return self.steps.groups
        return Groups(self._asked, group_of)

    @property
    def transition_log(self) -> Any:
        """What the scheduler remembers of all tasks: (key, from, to, {}, cause, time), oldest first.

        While steps are followed, those of tasks that it has forgotten, too.
        """
        if self.steps.wanted:
            self.steps.sync()
            return self.steps.log
        return self.story(*self.tasks)

    @property
    def unrunnable(self) -> dict[TaskView, float]:
        """The tasks that no worker may run as it is now; since when is not known, and 0."""
        found = self.tasks.values()
        return {task: 0.0 for task in found if task.state == "no-worker"}

    @property
    def total_nthreads(self) -> int:
        """How many tasks all workers run at once."""
        return int(self.identity(0)["total_threads"])

    @property
    def total_memory(self) -> int:
        """The bytes of memory of all workers that have a limit."""
        return int(self.identity(0)["total_memory"])

    @property
    def n_tasks(self) -> int:
        """How many tasks there are."""
        return len(self.tasks)

    @property
    def aliases(self) -> dict[Hashable, str]:
        """The addresses of the workers, by their names."""
        workers = self.identity()["workers"]
        return {worker["name"]: address for address, worker in workers.items()}

    @property
    def total_occupancy(self) -> float:
        """The sum of what all workers have to do, in seconds: see ``WorkerState.occupancy``."""
        return sum(worker.occupancy for worker in self.workers.values())

    def get_task_status(self, keys: Iterable[Hashable]) -> dict[Hashable, str | None]:
        """Return the state of each key; None: there is no such task."""
        keys = list(keys)
        found = self.ask_now("tasks", {"keys": keys})
        known = {one["key"]: TaskView(self._asked, one, live=False).state for one in found}
        return {key: known.get(key) for key in keys}

    def get_task_prefix_states(self) -> dict[str, dict[str, int]]:
        """Return how many tasks of each prefix are in each state."""
        shown = ("memory", "erred", "released", "processing", "waiting")
        return {
            name: {state: prefix.states[state] for state in shown}
            for name, prefix in self.task_prefixes.items()
        }

    def get_who_has(self, keys: Iterable[Hashable] | None = None) -> dict[Hashable, list[str]]:
        """Return the addresses of the workers that have values, by key."""
        return self.ask_now("who_has", {"keys": None if keys is None else list(keys)})  # type: ignore[no-any-return]

    def get_has_what(self, workers: Iterable[str] | None = None) -> dict[str, list[Hashable]]:
        """Return the keys of the values that workers have, by address."""
        return self.ask_now("has_what", {"workers": None if workers is None else list(workers)})  # type: ignore[no-any-return]

    def get_ncores(self, workers: Iterable[str] | None = None) -> dict[str, int]:
        """Return the threads of workers, by address."""
        return self.ask_now("ncores", {"workers": None if workers is None else list(workers)})  # type: ignore[no-any-return]

    def get_processing(self, workers: Iterable[str] | None = None) -> dict[str, list[Hashable]]:
        """Return the keys of the tasks that were sent to workers, by address."""
        return self.ask_now("processing", {"workers": None if workers is None else list(workers)})  # type: ignore[no-any-return]

    def get_nbytes(
        self, keys: Iterable[Hashable] | None = None, summary: bool = True
    ) -> dict[Any, int]:
        """Return the bytes of values by key, or by prefix: those of small ones in memory."""
        asked = {"keys": None if keys is None else list(keys)}
        sizes: dict[Any, int] = self.ask_now("nbytes", {**asked, "summary": False})
        for key, encoded in self.ask_now("small_values", asked).items():
            # What cannot be unpickled here keeps the size of its encoding.
            with suppress(Exception):
                sizes[key] = sizeof(_core.decode_value(encoded))
        return by_prefix(sizes) if summary else sizes

    def story(self, *keys: Hashable) -> list[tuple[Any, ...]]:
        """Return what the scheduler remembers of keys: (key, from, to, more, cause, time)."""
        return told(self.ask_now("story", {"keys": list(keys)}))

    @property
    def memory(self) -> MemoryState:
        """The memory of all workers, as they said last."""
        return self.workers.memory()


class _Asked:
    """How views ask the native scheduler, and where the steps of tasks are."""

    def __init__(self, scheduler: Known) -> None:
        self._scheduler = scheduler

    def __call__(self, operation: str, argument: Any) -> Any:
        return self._scheduler.ask_now(operation, argument)

    @property
    def steps(self) -> Steps:
        """What became of tasks, if somebody wanted to know."""
        return self._scheduler.steps
