"""What each rank of an MPI job does."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import dask.config

from treadle.common._lifetime import warn_of_no_lifetime
from treadle.common._secret import new_secret
from treadle.common._security import certificates_of, temporary
from treadle.common._worker_options import OF_PROCESSES, WorkerOptions
from treadle.hosting._host_base import Place

if TYPE_CHECKING:
    from treadle.hosting._worker_parts import WorkerPart

__all__ = ["initialize", "worker_comm"]

SCHEDULER, SCRIPT, FIRST_WORKER = 0, 1, 2

# Seconds until all ranks have to answer when the script has ended. A worker may be late because a task
# holds the interpreter.
_ANSWER = 30.0
# The tag of that question and of the answers.
_END = 1

# Seconds between two looks whether the others have come to the same place. MPI's own waiting would
# take a whole core of each rank.
_PAUSE = 0.02

_T = TypeVar("_T")

_workers: Any = None

# What the script gave `sys.exit`.
_code: object = None

# That of this process, once `initialize` made it.
_job: _Job | None = None


def worker_comm() -> Any:
    """Return the communicator of the ranks that are workers: rank 0 of it is rank 2 of the job.

    A call to all engines (``client.engines[:].apply_sync(...)``), or one task on each worker, may use
    it for collective operations.

    Raises
    ------
    RuntimeError
        This process is not a worker of an MPI job.
    """
    if _workers is None:
        raise RuntimeError(
            "treadle.mpi.worker_comm() is for functions that run on a worker which "
            "`mpirun -n N python -m treadle.mpi script.py` started"
        )
    return _workers


def initialize(
    *,
    nthreads: int | None = None,
    memory_limit: Any = "auto",
    interface: str | None = None,
    local_directory: str | None = None,
    **options: Any,
) -> None:
    """Make a cluster of the ranks of this MPI job. Returns on rank 1; the others serve until it ends.

    All ranks have to call it. Afterwards ``treadle.Client()`` connects to the cluster. When the process
    of rank 1 ends, the workers and the scheduler end, and so do their processes.

    If there is such a cluster already, because the script runs under ``python -m treadle.mpi`` or
    called this before, it returns with a warning.

    Parameters
    ----------
    nthreads
        Tasks at once in a worker. By default, the cores that a worker may use, divided by the workers
        of its host that may use the same.
    memory_limit
        Of a worker's process: bytes, ``"2GiB"``, a share of the machine's memory such as 0.5 (1 is all
        of it), or 0 for no limit. By default what the host has, divided by the workers there.
    interface
        The network interface on which they listen if the job has more than one host, such as
        ``"ib0"``. By default the one that leads out.
    local_directory
        Where workers make directories for values on disk. By default Dask's
        ``temporary-directory``, or the system's.
    **options
        ``resources``: abstract resources of each worker, for ``resources=`` of tasks. By default those of
        ``distributed.worker.resources`` in Dask's configuration.

    Raises
    ------
    TypeError
        There is no such option.
    ImportError
        There is no ``mpi4py``.
    SystemExit
        The job has fewer than three ranks, or a rank could not start; a line says which and why. On
        ranks other than 1 it is also how this function ends.
    """
    global _job
    given = {
        "nthreads": nthreads,
        "memory_limit": memory_limit,
        "local_directory": local_directory,
        **options,
    }
    # A worker here is threads of its rank's process.
    WorkerOptions.refuse_others("treadle.mpi.initialize", given, without=OF_PROCESSES)
    try:
        from mpi4py import MPI
    except ImportError as error:
        text = "treadle.mpi needs mpi4py: `pip install mpi4py`, and an MPI such as Open MPI"
        raise ImportError(text) from error
    if _job is not None:
        warnings.warn(
            "the ranks of this MPI job are a cluster already (of `python -m treadle.mpi` or of another "
            "call): this call of treadle.mpi.initialize() changes nothing, its arguments included. "
            "Remove it, or run the script without `-m treadle.mpi`",
            RuntimeWarning,
            stacklevel=2,
        )
        return
    with _ending_all_ranks():
        _job = job = _Job(MPI.COMM_WORLD.Dup(), interface)
        if job.size <= FIRST_WORKER:
            job.fail(
                f"this job has {job.size} of the ranks that it needs: a scheduler, the script and at "
                "least one worker. Run `mpirun -n 3 ...` or more."
            )
        if job.rank == SCHEDULER:
            _serve_scheduler(job)
        if job.rank == SCRIPT:
            _connect(job)
        else:
            _serve_worker(job, given)


@contextlib.contextmanager
def _ending_all_ranks() -> Iterator[None]:
    """End the whole job if the block raises, be it a Ctrl-C.

    A process that only ended itself would wait in MPI's ``Finalize`` until the others end, and they
    wait for it.
    """
    try:
        yield
    except BaseException:
        try:
            traceback.print_exc()
        finally:
            _abort(1)


def _abort(status: int) -> NoReturn:
    """End all processes of the job."""
    from mpi4py import MPI

    try:
        _flush()
    finally:
        MPI.COMM_WORLD.Abort(status)
    os._exit(status)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()


def _cores() -> frozenset[int]:
    """Return the cores that this process may use; none if the system has no such sets."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset()


class _Job:
    """The ranks of a job, and how they meet."""

    def __init__(self, comm: Any, interface: str | None) -> None:
        from mpi4py import MPI

        self.comm = comm
        self.rank: int = comm.Get_rank()
        self.size: int = comm.Get_size()
        host = comm.Split_type(MPI.COMM_TYPE_SHARED)
        self.is_one_host = host.Get_size() == self.size
        color = 0 if self.rank >= FIRST_WORKER else MPI.UNDEFINED
        self.workers = comm.Split(color)
        on_host = host.Split(color)
        self.workers_of_host = 0
        #: Of them, those that may use the same cores as this one.
        self.workers_of_cores = 0
        if self.rank >= FIRST_WORKER:
            own = _cores()
            of_each = on_host.allgather(own)
            self.workers_of_host = len(of_each)
            self.workers_of_cores = of_each.count(own)
        self._interface = interface

    @property
    def host(self) -> str:
        """The address on which this rank listens. Nobody outside of a single host can reach it."""
        from distributed.utils import get_ip, get_ip_interface

        if self.is_one_host:
            return "127.0.0.1"
        return str(get_ip_interface(self._interface) if self._interface else get_ip())

    def fail(self, reason: str) -> NoReturn:
        """End this process. All ranks fail, and rank 0 says why."""
        if self.rank == SCHEDULER:
            print(f"Error: {reason}", file=sys.stderr)
        self.end(1)

    def end(self, status: int) -> NoReturn:
        """End this process, whatever tasks still run in it, without ending the other ranks."""
        from mpi4py import MPI

        logging.shutdown()
        _flush()
        MPI.Finalize()
        os._exit(status)

    def agree(self, start: Callable[[], _T]) -> _T:
        """Call ``start`` on this rank; return what it does, once all ranks have done so.

        All processes end if it raises on one of them.
        """
        error, result = None, None
        try:
            result = start()
        except Exception as exception:
            error = f"rank {self.rank}: {exception}"
        self.meet()
        errors = [each for each in self.comm.allgather(error) if each is not None]
        if errors:
            self.fail("; ".join(errors[:3]))
        assert result is not None
        return result

    def meet(self) -> None:
        """Wait until all ranks have come here, without using a processor."""
        request = self.comm.Ibarrier()
        while not request.Test():
            time.sleep(_PAUSE)

    def dismiss(self, limit: float) -> list[int]:
        """Tell all ranks that the script has ended. Return those without an answer in ``limit`` seconds."""
        silent = {rank for rank in range(self.size) if rank != SCRIPT}
        requests = [self.comm.isend(None, rank, _END) for rank in silent]
        until = time.monotonic() + limit
        while silent and time.monotonic() < until:
            time.sleep(_PAUSE)
            while self.comm.iprobe(tag=_END):
                silent.discard(self.comm.recv(tag=_END))
        if not silent:
            for request in requests:
                request.wait()
        return sorted(silent)

    def wait_until_dismissed(self) -> None:
        """Wait until the script has ended, without using a processor, and answer that it was heard."""
        while not self.comm.iprobe(SCRIPT, _END):
            time.sleep(_PAUSE)
        self.comm.recv(source=SCRIPT, tag=_END)
        self.comm.send(self.rank, SCRIPT, _END)

    def share(self, start: Callable[[], Place] | None = None) -> Place:
        """Return on all ranks what ``start`` does on rank 0. All processes end if it raises."""
        place: Place | None = None
        error = None
        if start is not None:
            try:
                place = start()
            except Exception as exception:
                error = f"rank {self.rank}: {exception}"
        self.meet()
        place, error = self.comm.bcast((place, error), SCHEDULER)
        if place is None:
            self.fail(str(error))
        return place


def _serve_scheduler(job: _Job) -> NoReturn:
    parts = []

    def start() -> Place:
        from treadle.hosting._scheduler_part import SchedulerPart

        secret = new_secret()
        # On several hosts, MPI brings the certificates to where they are needed.
        certificates = None if job.is_one_host else certificates_of(temporary())
        part = SchedulerPart(job.host, secret, certificates, insecure=False)
        parts.append(part)
        return Place(part.address, secret, certificates, insecure=False)

    job.share(start)
    job.agree(lambda: True)
    # The script ends, then the workers, then the scheduler.
    job.wait_until_dismissed()
    job.meet()
    for part in parts:
        part.close()
    job.end(0)


def _serve_worker(job: _Job, given: Mapping[str, Any]) -> NoReturn:
    global _workers
    _workers = job.workers
    place = job.share()

    def start() -> WorkerPart:
        from treadle.hosting._worker_parts import WorkerPart

        if job.rank == FIRST_WORKER:
            warn_of_no_lifetime("a worker stays as long as its rank of the MPI job")
        own = WorkerOptions.of(
            given,
            workers=job.workers_of_cores,
            # By default, each worker of the host has the same one.
            share=1 / job.workers_of_host,
        )
        return WorkerPart(
            place.address,
            own,
            name=str(job.rank),
            host=job.host,
            secret=place.secret,
            certificates=place.certificates,
            insecure=False,
            preloads=True,
        )

    part = job.agree(start)
    job.wait_until_dismissed()
    # Nobody wants the values any more.
    part.close()
    job.meet()
    job.end(0)


def _connect(job: _Job) -> None:
    place = job.share()

    def start() -> bool:
        from treadle.common import _addresses

        _addresses.remember(place.address, secret=place.secret, certificates=place.certificates)
        dask.config.set({"scheduler-address": place.address})
        return True

    job.agree(start)
    atexit.register(_leave, job, os.getpid())


def _leave(job: _Job, process: int) -> None:
    """Close the script's clients, then let the other ranks end.

    Parameters
    ----------
    process
        The id of the script's own process. One that it forked just ends: MPI, which would wait for all
        ranks at its end, is not its own.
    """
    if os.getpid() != process:
        _flush()
        os._exit(_status_of_script())
    with _ending_all_ranks():
        from treadle._compat.distributed import close_global_client

        close_global_client()
        silent = job.dismiss(_ANSWER)
        if silent:
            names = ", ".join(_named(rank) for rank in silent[:3])
            more = f" and {len(silent) - 3} more" if len(silent) > 3 else ""
            print(
                f"Error: {names}{more} did not answer within {_ANSWER:.0f} s when the script had ended: "
                "the process was killed, or it is held up. The job is aborted. Look in its output, and "
                "in the system's log, for what ended it, such as a lack of memory",
                file=sys.stderr,
            )
            _abort(_status_of_script())
        job.meet()


def _named(rank: int) -> str:
    return "rank 0 (the scheduler)" if rank == SCHEDULER else f"rank {rank} (worker {rank})"


def ended(code: object) -> None:
    """Say that the script ended by ``SystemExit(code)``, which Python doesn't keep."""
    global _code
    _code = code


def _status_of_script() -> int:
    """Return the exit status that Python will end with, as far as it can be known."""
    if isinstance(_code, int):
        return _code
    # Python keeps the exception of which it printed the traceback.
    return int(_code is not None or hasattr(sys, "last_value"))
