"""Treadle in a Dask cluster of Slurm jobs: run it on a login node, or in a job of its own."""

from dask_jobqueue import SLURMCluster
from distributed import Client

import treadle

#: What Slurm is asked for, a job: here one Dask worker, with Treadle's in it.
OPTIONS = {
    "queue": "regular",
    "cores": 8,
    "processes": 1,
    "memory": "32GB",
    "walltime": "01:00:00",
    # The network between the nodes: Treadle listens where Dask does.
    "interface": "ib0",
    # A directory on the node's own disk, where both spill.
    "local_directory": "$TMPDIR",
    # An environment on a shared file system that has Dask and Treadle.
    "job_script_prologue": ["source $HOME/environment/bin/activate"],
    "python": "python",
}

if __name__ == "__main__":
    with SLURMCluster(**OPTIONS) as cluster, Client(cluster, set_as_default=False) as there:
        cluster.adapt(minimum_jobs=1, maximum_jobs=10)  # by the load of both engines
        there.wait_for_workers(1)
        with treadle.attach(there) as here:
            print(here.submit(sum, [1, 2]).result())
