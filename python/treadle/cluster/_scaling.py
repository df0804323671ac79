"""How many workers a cluster has: by hand, and by load."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import distributed

from treadle.cluster._scheduler_comm import identity
from treadle.cluster._worker_process import WorkerProcess
from treadle.common._loop import off_loop

if TYPE_CHECKING:
    from treadle.cluster._local_cluster import LocalCluster

__all__ = ["FAREWELL", "Adaptive", "Scaling"]

# Where distributed logs it.
logger = logging.getLogger("distributed.deploy.adaptive")

#: Seconds for all workers to end by themselves.
FAREWELL = 5.0
# Seconds for one of them, though others have taken all of that.
_LEAST = 0.1

# Seconds between two looks at workers that leave.
_PAUSE = 0.005


class Scaling:
    """Starts the workers of a cluster, retires them, and forgets those that left.

    One thread at a time does so. Nobody counts workers that another one is about to retire. The
    cluster makes the workers.
    """

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self._lock = threading.RLock()
        # The next one's. No name is given twice: who asks for a worker to go means the one that had it.
        self._number = 0
        # How many there shall be, until that is done. A list of one, for each call another.
        self._asked: list[int] | None = None

    def staying(self) -> dict[str, Any]:
        """Return the workers that count: none that leaves, or could not be started."""
        return {
            name: worker
            for name, worker in list(self._cluster.workers.items())
            if not (worker.left or worker.leaving or worker.given_up)
        }

    def wanted(self) -> list[str]:
        """Return the names of the workers that count once what was asked for is done."""
        names = list(self.staying())
        asked = self._asked
        if asked is None:
            return names
        return names[: asked[0]] + [name for _, name in self._free(asked[0] - len(names))]

    def _free(self, count: int) -> list[tuple[int, str]]:
        """Return the numbers and names of the next workers."""
        # A subclass may name them otherwise.
        make = self._cluster._new_worker_name
        names = ((number, str(make(number))) for number in itertools.count(self._number))
        free = (one for one in names if one[1] not in self._cluster.workers)
        return list(itertools.islice(free, max(0, count)))

    def ask(self, n: int) -> None:
        """Have ``n`` workers be wanted: :meth:`apply` sees to what was asked for last."""
        self._asked = [n]

    def apply(self) -> None:
        """Start or retire workers until there are as many as were asked for."""
        with self._lock:
            asked = self._asked
            if asked is None:
                # Whoever had the lock before has done it.
                return
            try:
                if not self._cluster._closed:
                    self._scale(asked[0])
            finally:
                if self._asked is asked:
                    self._asked = None

    def _scale(self, n: int) -> None:
        self._forget_those_that_left()
        staying = list(self.staying())
        if fresh := self._free(n - len(staying)):
            try:
                self._cluster._start_workers([name for _, name in fresh])
            finally:
                self._number = fresh[-1][0] + 1
        if surplus := staying[n:]:
            self._retire(None, surplus)
            self._drop(surplus)

    def scale_down(self, names: list[str]) -> None:
        """Retire workers, given by name, and end those that the scheduler has let go."""
        with self._lock:
            if self._cluster._closed:
                return
            self._retire(None, names)
            present = {str(worker["name"]) for worker in self._known().values()}
            workers = self._cluster.workers
            self._drop([name for name in names if name in workers and name not in present])

    def retire_unless(self, is_stopped: Callable[[], bool], names: list[str]) -> bool:
        """Retire workers for who may be stopped meanwhile; returns whether it was not."""
        with self._lock:
            if self._cluster._closed or is_stopped():
                return False
            self._retire(None, names)
            return True

    def retire_alone(self, addresses: Any, names: Any) -> dict[str, Any]:
        """Retire workers while nobody scales: who does would count them."""
        with self._lock:
            return self._retire(addresses, names)

    def end(self, timeout: float) -> None:
        """End all workers, also those that are just being started, those by force that take longer.

        Whoever starts or retires some is waited for, but not for ever.
        """
        is_alone = self._lock.acquire(timeout=FAREWELL)
        try:
            workers = list(self._cluster.workers.values())
            for worker in workers:
                with suppress(Exception):
                    worker.close()
            until = time.monotonic() + timeout
            for worker in workers:
                if isinstance(worker, WorkerProcess):
                    worker.join(max(until - time.monotonic(), _LEAST))
            self._cluster.workers.clear()
        finally:
            if is_alone:
                self._lock.release()

    def _retire(self, addresses: Any, names: Any) -> dict[str, Any]:
        """Have workers leave after their values have moved; returns what was known of them.

        Instead of addresses there may be names. If there are values, one worker stays.
        """
        workers = self._known()
        wanted = {str(one) for one in (*(addresses or ()), *(names or ()))}
        chosen = [
            address
            for address, worker in workers.items()
            if wanted & {address, str(worker["name"])}
        ]
        held = {address: worker["metrics"]["in_memory"] for address, worker in workers.items()}
        if len(chosen) == len(workers) and any(held.values()):
            chosen.remove(max(chosen, key=held.__getitem__))
        if not chosen:
            return {}
        # Their tasks end first, and then their values move, however long that takes.
        asked = {"workers": chosen}
        gone: dict[str, Any] = self._cluster._tell("retire_workers", asked, patience=None)
        return gone

    def _drop(self, names: list[str]) -> None:
        """End workers that are not wanted any more."""
        dropped = [self._cluster.workers.pop(name) for name in names]
        for worker in dropped:
            worker.close()
        for worker in dropped:
            if isinstance(worker, WorkerProcess):
                worker.join(FAREWELL)

    def _forget_those_that_left(self) -> None:
        # One that was retired a moment ago, by a client or by `Adaptive`, has not ended yet.
        until = time.monotonic() + FAREWELL
        while self._is_leaving() and time.monotonic() < until:
            time.sleep(_PAUSE)
        workers = self._cluster.workers
        for name, worker in list(workers.items()):
            if worker.left or worker.given_up:
                del workers[name]

    def _is_leaving(self) -> bool:
        """Return whether a worker has joined and is not with the scheduler, and has not ended.

        One that is asked to leave, and still has tasks or values, is let go.
        """
        staying = self.staying()
        if not staying:
            return False
        status = {str(worker["name"]): worker["status"] for worker in self._known().values()}
        for name, worker in staying.items():
            if status.get(name) == "closing_gracefully":
                worker.let_go()
        return any(
            worker.announced for name, worker in self.staying().items() if name not in status
        )

    def _known(self) -> dict[str, Any]:
        """Return the workers that the scheduler knows, by address."""
        workers: dict[str, Any] = identity(self._cluster)["workers"]
        return workers


class Adaptive(distributed.Adaptive):
    """distributed's, which scales nothing any more once it is stopped.

    Somebody may stop it, and then scale by hand, between what it decides and what it does.
    """

    cluster: Any

    async def scale_up(self, n: Any) -> None:
        """Start workers, until there are ``n``."""
        if self.state != "stopped":
            await super().scale_up(n)  # type: ignore[no-untyped-call]

    async def scale_down(self, workers: Any) -> None:
        """Retire workers, given by name."""
        names = list(workers)
        if not names:
            return
        logger.info("Retiring workers %s", names)
        if await off_loop(self.cluster._scaling.retire_unless, self._is_stopped, names):
            await self.cluster.scale_down(names)

    def _is_stopped(self) -> bool:
        return bool(self.state == "stopped")
