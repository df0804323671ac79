"""The worker plugin that Dask's shuffle tasks call: ``get_worker().plugins["shuffle"]``.

Dask's seven task functions call its three methods. Dask passes the result of a transfer (a receipt) to the
barrier, and the result of the barrier (a generation) to the readers. It does not look at them.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from distributed.exceptions import Reschedule

from treadle.common._calls import error_of, pack, unpack_answer
from treadle.shuffle._kinds import Kind, kind_of
from treadle.shuffle._named_errors import named
from treadle.shuffle._piece import Piece
from treadle.shuffle._places import AtServers, AtWorkers, Gone, Place, Services, label
from treadle.shuffle._spec import ranges, read_spec

if TYPE_CHECKING:
    from treadle.worker._native import Native

__all__ = ["Shuffles"]

T = TypeVar("T")

# What Dask's graph carries: the number of the shuffle with the receipt of an input, or with the
# generation of all.
Receipt = tuple[int, bytes]
Committed = tuple[int, int]

# How many shuffles a worker remembers. It asks the scheduler again for one that it has forgotten.
_REMEMBERED = 64
# How long a worker waits for the scheduler's answer, in seconds.
_PATIENCE = 60.0


class Known(NamedTuple):
    """What the scheduler has said of a shuffle."""

    number: int
    """The scheduler's number, never used again. Dask uses a name again if it computes a graph again."""
    kind: Kind
    place: Place


class Told(NamedTuple):
    """What the scheduler answers about a shuffle (``shuffle`` in ``crates/schedule/gateway/src/shuffles.rs``)."""

    number: int
    maps: int
    spec: bytes
    partitions: int
    service: str | None
    """The address of the shuffle master at whose servers the rows are; None: at workers."""
    outputs: Any
    again: Any


class Shuffles:
    """The shuffles of a worker, for the threads that run its tasks.

    Each method waits without the interpreter's lock. It raises ``Reschedule`` if the task must run again,
    here or elsewhere. Otherwise it raises ``DamagedRows``, ``OutOfDisk`` or ``RuntimeError``. These name
    the shuffle, the input or output, and the worker.

    Parameters
    ----------
    native
        The worker.
    credentials
        ``secret``, ``certificates``, ``insecure``: those of its connections, also to shuffle services.
    """

    def __init__(self, native: Native, credentials: Mapping[str, Any] | None = None) -> None:
        self._native = native
        self._services = Services(credentials or {}, native)
        self._known: OrderedDict[str, Known] = OrderedDict()
        self._lock = threading.Lock()
        self._asking = threading.Lock()

    def add_partition(self, data: Any, partition_id: Any, id: str, **_: Any) -> Receipt:  # noqa: A002
        """Push the rows of an input to the servers of their partitions; return the receipt."""

        def transfer(known: Known) -> Receipt:
            rows = known.kind.split(data, partition_id)
            number = known.kind.map_of(partition_id)
            return known.number, known.place.transfer(number, rows)

        # Imported late, since it imports many modules.
        from treadle._compat.distributed import ShuffleClosedError

        try:
            with named(f"Shuffle {id}, input {partition_id}", self._native.address):
                return self._at(id, transfer, ended=(Reschedule, Gone))
        except Reschedule as error:
            # Dask's functions for transfers give a task back for this error alone.
            raise ShuffleClosedError(str(error)) from error

    def barrier(self, id: str, run_ids: Sequence[Receipt]) -> Committed:  # noqa: A002
        """Make all servers compare their rows with the receipts; return the generation."""
        with named(f"Shuffle {id}, barrier", self._native.address):
            receipts = [receipt for _, receipt in run_ids]

            def others(known: Known) -> list[int]:
                return [at for at, (number, _) in enumerate(run_ids) if number != known.number]

            def refuse(known: Known) -> Exception:
                # They count where the scheduler has not lost them, and have pushed their rows to a shuffle
                # that has ended.
                stale = others(known)
                self._tell_lost(id, known.number, ranges(stale), False)
                return Reschedule(
                    f"inputs {stale} of shuffle {id} have results of an earlier run of it"
                )

            return self._at(
                id,
                lambda known: (known.number, known.place.commit(receipts)),
                # It may have ended, and be needed again.
                ended=(Reschedule, Gone),
                is_meant=lambda known: not others(known),
                refuse=refuse,
            )

    def get_output_partition(
        self,
        id: str,  # noqa: A002
        barrier_run_id: Committed,
        partition_id: Any,
        meta: Any = None,  # noqa: ARG002
    ) -> Any:
        """Return an output: the rows of all inputs for it, in the order of the inputs."""
        with named(f"Shuffle {id}, output {partition_id}", self._native.address):
            number, generation = barrier_run_id

            def read(known: Known) -> Any:
                kind = known.kind
                partition = kind.partition_of(partition_id)
                pieces = known.place.read(generation, partition, kind.width)
                return kind.assemble([Piece(*piece) for piece in pieces])

            def refuse(known: Known) -> Exception:
                return RuntimeError(
                    f"the task has the result of another run of this shuffle ({number}, now "
                    f"{known.number}): compute the whole again"
                )

            return self._at(
                id,
                read,
                ended=(Gone,),
                is_meant=lambda known: known.number == number,
                refuse=refuse,
            )

    def close(self) -> None:
        """Leave the shuffle services."""
        self._services.close()

    def _at(
        self,
        name: str,
        act: Callable[[Known], T],
        *,
        ended: tuple[type[Exception], ...],
        is_meant: Callable[[Known], bool] = lambda _known: True,
        refuse: Callable[[Known], Exception] = lambda _known: AssertionError("any is meant"),
    ) -> T:
        """Do something with a shuffle as it is known; with what it is now, if it may have ended.

        Parameters
        ----------
        ended
            What is raised by ``act`` if it may have ended.
        is_meant
            Whether it is the run of the shuffle that a receipt or a barrier is of.
        refuse
            Makes the error to raise, if it is another one now.
        """
        with self._lock:
            known = self._known.get(name)
        if known is not None and is_meant(known):
            try:
                return act(known)
            except ended as error:
                known = self._other(name, known, error)
        else:
            known = self._renew(name, known)
        if not is_meant(known):
            raise refuse(known)
        return act(known)

    def _other(self, name: str, known: Known, error: Exception) -> Known:
        """Return what is known now of a shuffle that raised an error, or raise the error.

        It may have ended, and another one may have its name. Or the connection to its service has ended, and
        the rows are there still.
        """
        try:
            now = self._renew(name, known)
        except (OSError, RuntimeError) as why:
            if not isinstance(error, Gone):
                # To run again would not help.
                raise
            raise error from why
        if now is known:
            raise error
        return now

    def _renew(self, name: str, known: Known | None) -> Known:
        """Return what is known of a shuffle beyond ``known``; ask, unless another thread has asked.

        One thread asks at a time: the answer may be long, and all tasks of a shuffle need the same.
        """
        late = f"the scheduler did not say within {_PATIENCE:.0f} s what this shuffle is"
        if not self._asking.acquire(timeout=_PATIENCE):
            raise TimeoutError(late)
        try:
            with self._lock:
                now = self._known.get(name)
            return self._ask(name, late) if now is None or now is known else now
        finally:
            self._asking.release()

    def _ask(self, name: str, late: str) -> Known:
        """Ask the scheduler for a shuffle, and remember it."""
        result = self._call("", "shuffle", {"name": name}, late)
        if result is None:
            raise RuntimeError(
                "the scheduler does not know this shuffle. It has ended, or its tasks were not "
                "submitted in one graph with its barrier. Compute the whole graph again"
            )
        told = Told(*result)
        with self._lock:
            remembered = self._known.get(name)
            if (
                remembered is not None
                and remembered.number == told.number
                and not remembered.place.is_over
            ):
                self._known.move_to_end(name)
                return remembered
        place: Place
        if told.service is None:
            place = AtWorkers(self._native, told.number, told.maps)
        else:
            asked = told._asdict()
            del asked["number"], asked["spec"], asked["service"]
            place = self._at_servers(name, told.number, told.service, asked)
        known = Known(told.number, kind_of(read_spec(told.spec)), place)
        with self._lock:
            self._known[name] = known
            self._known.move_to_end(name)
            while len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
        return known

    def _at_servers(self, name: str, number: int, address: str, about: dict[str, Any]) -> AtServers:
        """Return a shuffle of a stand-alone service, where the scheduler's Python side has registered it."""
        late = f"the scheduler did not register this shuffle at {address} within {_PATIENCE:.0f} s"
        asked = {"name": name, "number": number, "service": address, **about}
        told = self._call("sidecar", "register_shuffle", pack(asked), late)
        application, there, master = unpack_answer(told)
        shuffle = self._services.at(master, application).attach(there)
        called = label(name, number)
        if shuffle.name != called:
            raise Gone(
                f"the shuffle service at {address} began anew: its shuffle {there} is "
                f"{shuffle.name}, and not {called}"
            )

        def tell_lost(lost: list[tuple[int, int]], outputs: bool) -> None:
            self._tell_lost(name, number, lost, outputs)

        return AtServers(self._native, shuffle, tell_lost)

    def _tell_lost(
        self, name: str, number: int, maps: list[tuple[int, int]], outputs: bool
    ) -> None:
        """Tell the scheduler which inputs must be transferred again, and wait until it knows."""
        said = {"name": name, "number": number, "maps": maps, "outputs": outputs}
        late = f"the scheduler did not answer within {_PATIENCE:.0f} s"
        self._call("", "shuffle_lost", said, late)

    def _call(self, node: str, operation: str, argument: Any, late: str) -> Any:
        """Ask a node, and return its answer as it is."""
        answered = threading.Event()
        answer: list[Any] = []

        def done(*result_and_error: Any) -> None:
            answer.extend(result_and_error)
            answered.set()

        self._native.call(node, operation, argument, done)
        if not answered.wait(_PATIENCE):
            raise TimeoutError(late)
        result, error = answer
        if error is not None:
            raise error_of(error)
        return result
