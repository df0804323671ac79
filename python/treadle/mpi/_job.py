"""What each rank of an MPI job does."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import sys
import time
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import dask.config

from treadle._secret import new_secret
from treadle._security import certificates_of, temporary
from treadle.hosting._host import Place

__all__ = ["initialize", "worker_comm"]

SCHEDULER, SCRIPT, FIRST_WORKER = 0, 1, 2

# Seconds between two looks whether the others have come to the same place. MPI's own waiting would
# take a whole core of each rank.
_PAUSE = 0.02

_T = TypeVar("_T")

_workers: Any = None


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
) -> None:
    """Make a cluster of the ranks of this MPI job. Returns on rank 1; the others serve until it ends.

    All ranks have to call it. Afterwards ``treadle.Client()`` connects to the cluster. When the process
    of rank 1 ends, the workers and the scheduler end, and so do their processes.

    Parameters
    ----------
    nthreads
        Tasks at once in a worker. By default, the cores that a worker may use, divided by the workers
        of its host.
    memory_limit
        Of a worker, for values: bytes, ``"2GiB"``, a share of the memory such as 0.5, or 0 for no
        limit. By default its share of what the host has, by threads.
    interface
        The network interface on which they listen if the job has more than one host, such as
        ``"ib0"``. By default the one that leads out.
    local_directory
        Where workers make directories for values on disk. By default Dask's
        ``temporary-directory``, or the system's.

    Raises
    ------
    ImportError
        There is no ``mpi4py``.
    SystemExit
        The job has fewer than three ranks, or a rank could not start; a line says which and why. On
        ranks other than 1 it is also how this function ends.
    """
    try:
        from mpi4py import MPI
    except ImportError as error:
        text = "treadle.mpi needs mpi4py: `pip install mpi4py`, and an MPI such as Open MPI"
        raise ImportError(text) from error
    job = _Job(MPI.COMM_WORLD.Dup(), interface)
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
        _serve_worker(job, nthreads, memory_limit, local_directory)


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
        self.workers_of_host = on_host.Get_size() if self.rank >= FIRST_WORKER else 0
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
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
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
    from treadle.hosting._scheduler_part import SchedulerPart

    parts = []

    def start() -> Place:
        secret = new_secret()
        # On several hosts, MPI brings the certificates to where they are needed.
        certificates = None if job.is_one_host else certificates_of(temporary())
        part = SchedulerPart(job.host, secret, certificates, insecure=False)
        parts.append(part)
        return Place(part.address, secret, certificates, insecure=False)

    try:
        job.share(start)
        job.agree(lambda: True)
        # The script ends, then the workers, then the scheduler.
        job.meet()
        job.meet()
    finally:
        for part in parts:
            part.close()
    job.end(0)


def _serve_worker(
    job: _Job, nthreads: int | None, memory_limit: Any, local_directory: str | None
) -> NoReturn:
    global _workers
    from dask.system import CPU_COUNT

    from treadle._compat.distributed import parse_memory_limit
    from treadle.hosting._worker_parts import WorkerPart

    _workers = job.workers
    place = job.share()

    def start() -> WorkerPart:
        threads = nthreads or max(1, CPU_COUNT // job.workers_of_host)
        logger = logging.getLogger("treadle.mpi")
        return WorkerPart(
            place.address,
            host=job.host,
            directory=local_directory or dask.config.get("temporary-directory", None),
            secret=place.secret,
            certificates=place.certificates,
            insecure=False,
            name=str(job.rank),
            nthreads=threads,
            memory_limit=parse_memory_limit(memory_limit, threads, logger=logger) or 0,
            resources={},
        )

    part = job.agree(start)
    job.meet()
    # Nobody wants the values any more.
    part.close()
    job.meet()
    job.end(0)


def _connect(job: _Job) -> None:
    from treadle.client import _addresses

    place = job.share()
    _addresses.remember(place.address, secret=place.secret, certificates=place.certificates)
    dask.config.set({"scheduler-address": place.address})
    job.agree(lambda: True)
    atexit.register(_leave, job)


def _leave(job: _Job) -> None:
    """Close the script's clients, then let the other ranks end."""
    from treadle._compat.distributed import close_global_client

    close_global_client()
    job.meet()
    job.meet()
