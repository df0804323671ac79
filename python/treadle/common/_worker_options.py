"""What a worker can be told, by one name and checked once, whoever starts it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from dask.system import CPU_COUNT

from treadle.common._lifetime import lifetime_of
from treadle.common._memory_limit import memory_limit_of
from treadle.common._numbers import MOST_THREADS, integer
from treadle.common._settings import length_of_time, resources_of

__all__ = ["OF_PROCESSES", "WorkerOptions", "threads_of"]

# Marks what only a worker that is a process can be told.
_OF_PROCESS = {"of_process": True}


def threads_of(option: str, given: Any, default: int) -> int:
    """Return how many tasks a worker runs at once; None and 0, as in distributed, are the default.

    Raises
    ------
    TypeError, ValueError
        It is no such number.
    """
    return (0 if given is None else integer(option, given, 0, MOST_THREADS)) or default


@dataclass(frozen=True)
class WorkerOptions:
    """What a worker is told: checked, and in the units of its native side.

    :meth:`of` makes them of what a user gives by these names, as ``treadle worker``, ``LocalCluster``,
    ``Client``, ``treadle.deploy.Worker``, ``treadle.mpi.initialize`` and ``python -m treadle.mpi`` do. Who
    starts workers inside another cluster makes them of what that cluster's workers have.

    A new option is a field here, its check in :meth:`of`, and its help in ``cli/_worker_options.py``.
    """

    #: How many tasks it runs at once.
    nthreads: int
    #: Of its process, in bytes; 0: none.
    memory_limit: int
    resources: Mapping[str, float] = field(default_factory=dict)
    #: Where it makes a directory of its own, for values on disk. None: Dask's ``temporary-directory``.
    local_directory: str | None = None
    #: Of its process, beside that of the process that starts it.
    env: Mapping[str, str] = field(default_factory=dict, metadata=_OF_PROCESS)
    #: Modules or scripts whose ``dask_setup`` runs first. None: what Dask's configuration has.
    preload: Sequence[str] = field(default=(), metadata=_OF_PROCESS)
    #: How many seconds it stays, give or take how many. None: what Dask's configuration has.
    lifetime: float | None = field(default=None, metadata=_OF_PROCESS)
    lifetime_stagger: float | None = field(default=None, metadata=_OF_PROCESS)
    #: Whether another one comes then. None: what Dask's configuration has.
    lifetime_restart: bool | None = field(default=None, metadata=_OF_PROCESS)

    @classmethod
    def of(
        cls,
        given: Mapping[str, Any],
        *,
        workers: int = 1,
        share: float | None = None,
        spelled: Callable[[str], str] = str,
    ) -> WorkerOptions:
        """Return the options that a user gives, by their names here.

        None is the default of each, but of ``memory_limit``: it is no limit then, as in distributed.

        Parameters
        ----------
        workers
            How many workers the cores are for.
        share
            Of the memory, with ``memory_limit="auto"``. By default it is that of the threads in the cores.
        spelled
            Returns how the user wrote a name.

        Raises
        ------
        TypeError, ValueError
            One of them cannot be; it is named.
        """
        threads = threads_of(
            spelled("nthreads"), given.get("nthreads"), max(1, CPU_COUNT // max(1, workers))
        )
        limit = memory_limit_of(
            given.get("memory_limit", "auto"),
            spelled("memory_limit"),
            threads / CPU_COUNT if share is None else share,
        )
        directory, preload = given.get("local_directory"), given.get("preload") or ()
        duration, stagger = (
            None if given.get(name) is None else length_of_time(spelled(name), given[name])
            for name in ("lifetime", "lifetime_stagger")
        )
        restart = given.get("lifetime_restart")
        # What is wrong with all three together is said now, and not by each worker.
        lifetime_of(duration, stagger, restart, spelled)
        return cls(
            nthreads=threads,
            memory_limit=limit,
            resources=resources_of(given.get("resources")),
            local_directory=os.fspath(directory) if directory else None,
            env=_environment_of(given.get("env") or {}),
            preload=(preload,) if isinstance(preload, str) else tuple(preload),
            lifetime=duration,
            lifetime_stagger=stagger,
            lifetime_restart=restart,
        )

    @classmethod
    def refuse_others(
        cls, taker: str, given: Mapping[str, Any], *, without: Collection[str] = ()
    ) -> None:
        """Refuse what is no option of workers, or one of those that ``taker`` does without.

        Raises
        ------
        TypeError
            There is such a name.
        """
        unknown = given.keys() - ({each.name for each in fields(cls)} - set(without))
        if unknown:
            raise TypeError(f"{taker} does not take {', '.join(sorted(unknown))}")

    def as_argument(self) -> str:
        """Return them as text, for the command line of a worker's process.

        Its environment is not in it: the process has it, and everybody can read a command line.
        """
        return json.dumps({name: value for name, value in asdict(self).items() if name != "env"})

    @classmethod
    def of_argument(cls, text: str) -> WorkerOptions:
        """Return what :meth:`as_argument` has made text of."""
        told = json.loads(text)
        return cls(**{**told, "preload": tuple(told["preload"])})


#: What only a worker that is a process can be told.
OF_PROCESSES = frozenset(
    each.name for each in fields(WorkerOptions) if each.metadata.get("of_process")
)


def _environment_of(env: Any) -> dict[str, str]:
    if not isinstance(env, Mapping):
        raise TypeError(f"env={env!r}: give names of variables and their values")
    return {str(name): str(value) for name, value in env.items() if value is not None}
