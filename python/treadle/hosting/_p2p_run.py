"""A P2P shuffle of Dask whose rows Treadle moves: what Dask's worker has of it.

Dask's own ``plugins["shuffle"]`` of the worker makes a run from what the scheduler sends it, and calls the
methods of the run. So a run is Dask's or Treadle's in all workers alike.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from distributed.exceptions import Reschedule
from distributed.utils import sync

from treadle._compat.distributed import P2PConsistencyError, ShuffleClosedError, ShuffleSpec
from treadle.common._loop import off_loop
from treadle.hosting._accelerate import NAME
from treadle.shuffle._kinds import Kind, kind_of
from treadle.shuffle._named_errors import named
from treadle.shuffle._piece import Piece
from treadle.shuffle._spec import read_spec
from treadle.worker._native import Native

__all__ = ["HostedRun", "HostedSpec", "Receipt"]

#: What workers ask Dask's scheduler when a run cannot go on.
AGAIN = "treadle_shuffle_again"

# The assignment of partitions that a run has. If a server is lost there is another one, and Dask begins
# another run.
_GENERATION = 1
# Seconds in which Treadle's worker joins its scheduler again, and in which Dask's scheduler answers.
_PATIENCE = 60.0


class Receipt(int):
    """The number of a run, as Dask's worker compares it, with the receipt of a transfer."""

    receipt: bytes

    def __new__(cls, run_id: int, receipt: bytes) -> Receipt:
        self = super().__new__(cls, run_id)
        self.receipt = receipt
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return Receipt, (int(self), self.receipt)


@dataclass(frozen=True)
class HostedSpec(ShuffleSpec):  # type: ignore[misc]
    """What Dask's scheduler sends the workers of a run."""

    number: int
    """Of the shuffle, in Treadle."""
    maps: int
    told: bytes
    """What :func:`treadle.shuffle._spec.describe` says."""

    @property
    def output_partitions(self) -> Iterator[Any]:
        raise NotImplementedError

    def pick_worker(self, partition: Any, workers: Sequence[str]) -> str:
        raise NotImplementedError

    def create_run_on_worker(
        self, run_id: int, span_id: str | None, worker_for: dict[Any, str], plugin: Any
    ) -> HostedRun:
        del span_id, worker_for
        return HostedRun(self, run_id, plugin.worker)


class HostedRun:
    """A run in a worker. Dask's plugin calls it, in the threads of its tasks or in its loop."""

    def __init__(self, spec: HostedSpec, run_id: int, worker: Any) -> None:
        self.id = spec.id
        self.run_id = run_id
        self._spec = spec
        self._worker = worker
        self._started = time.time()
        # What Dask's plugin raises where somebody asks for a run that has failed.
        self._exception: Exception | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: id={self.id!r}, run_id={self.run_id!r}>"

    @cached_property
    def _kind(self) -> Kind:
        return kind_of(read_spec(self._spec.told))

    # Tasks

    def add_partition(self, data: Any, partition_id: Any, **_: Any) -> Receipt:
        """Push the rows of an input to the servers of their partitions; return the receipt."""
        native = self._native()
        try:
            with named(f"Shuffle {self.id}, input {partition_id}", native.address):
                rows = self._kind.split(data, partition_id)
                number = self._kind.map_of(partition_id)
                receipt = native.shuffle_transfer(self._spec.number, number, rows)
        except Reschedule as reason:
            self._ask_again(str(reason))
            # Dask's functions for transfers give a task back for this error alone.
            raise ShuffleClosedError(str(reason)) from reason
        return Receipt(self.run_id, receipt)

    async def barrier(self, run_ids: Sequence[int]) -> int:
        """Make all servers compare their rows with the receipts."""
        receipts = [
            one.receipt for one in run_ids if isinstance(one, Receipt) and one == self.run_id
        ]
        if len(receipts) < len(run_ids):
            reason = "inputs were transferred in other runs"
        else:
            native = await off_loop(self._native)
            commit = partial(native.shuffle_commit, self._spec.number, self._spec.maps, receipts)
            try:
                with named(f"Shuffle {self.id}, barrier", native.address):
                    generation = await off_loop(commit)
                if generation == _GENERATION:
                    return self.run_id
                reason = "a worker that had rows of it is lost"
            except Reschedule as error:
                reason = str(error)
        await self._again(reason)
        raise Reschedule(reason)

    def get_output_partition(self, partition_id: Any, **_: Any) -> Any:
        """Return an output: the rows of all inputs for it, in the order of the inputs."""
        native = self._native()
        kind = self._kind
        try:
            with named(f"Shuffle {self.id}, output {partition_id}", native.address):
                partition = kind.partition_of(partition_id)
                pieces = native.shuffle_read(self._spec.number, _GENERATION, partition, kind.width)
                return kind.assemble([Piece(*piece) for piece in pieces])
        except Reschedule as reason:
            self._ask_again(str(reason))
            raise

    def _native(self) -> Native:
        """Return the native side of Treadle's worker beside Dask's; wait while it joins again."""
        until = time.monotonic() + _PATIENCE
        while self._exception is None:
            native = self._there()
            if native is not None:
                return native
            if time.monotonic() > until:
                raise RuntimeError(
                    f"Treadle does not run on worker {self._worker.address}: see its log, and call "
                    "treadle.decelerate(client) to shuffle without it"
                )
            time.sleep(0.05)
        raise ShuffleClosedError(str(self._exception))

    def _there(self) -> Native | None:
        # Without Treadle, or with another version, a worker has a plugin that does nothing.
        native: Native | None = getattr(self._worker.plugins.get(NAME), "native", None)
        return native

    # Again

    def _ask_again(self, reason: str) -> None:
        """Have Dask's scheduler begin another run of the shuffle, unless it has done so."""
        sync(self._worker.loop, self._again, reason, callback_timeout=_PATIENCE)

    async def _again(self, reason: str) -> None:
        if self._exception is not None:
            return
        ask = getattr(self._worker.scheduler, AGAIN)
        refusal = await ask(id=self.id, run_id=self.run_id, reason=reason)
        if refusal is not None:
            raise P2PConsistencyError(refusal)

    # What Dask's plugin does with runs

    def fail(self, exception: Exception) -> None:
        self._exception = exception

    async def close(self) -> None:
        """Nothing is here: Treadle's scheduler ends the shuffle in all workers."""

    async def inputs_done(self) -> None:
        """Nothing waits for it."""

    async def receive(self, **_: Any) -> Any:
        """Refuse rows of Dask's own: all workers have the same run."""
        raise P2PConsistencyError(f"{self!r} takes no rows of distributed's P2P")

    def heartbeat(self) -> dict[str, Any]:
        """Return what Dask's dashboard shows: the rows here."""
        native = self._there()
        stats: dict[str, int] = {} if native is None else native.shuffle_stats()
        few = {"buckets": 0, "avg_size": 0, "avg_duration": 0, "memory_limit": 0}
        moved = {"memory": stats.get("in_flight", 0), "written": stats.get("pushed", 0)}
        kept = {"memory": stats.get("resident", 0), "written": stats.get("spilled", 0)}
        return {
            "comm": few | moved | {"total": moved["written"], "read": stats.get("stored", 0)},
            "disk": few | kept | {"total": kept["written"], "read": stats.get("loaded", 0)},
            "start": self._started,
        }
