"""A cluster of the ranks of an MPI job.

``mpirun -n 8 python -m treadle.mpi script.py`` runs the scheduler on rank 0, the script on rank 1, and a
worker on each other rank. In the script, ``treadle.Client()`` connects to them. Ranks, and
:func:`initialize` for scripts that are started without ``-m treadle.mpi``, are those of ``dask-mpi``.

Needs ``mpi4py``.
"""

from __future__ import annotations

from treadle.mpi._job import initialize, worker_comm

__all__ = ["initialize", "worker_comm"]
