"""Treadle in a Dask cluster that is started by SSH: ``python ssh.py scheduler-host worker-host…``."""

import sys

from distributed import Client, SSHCluster

import treadle

if __name__ == "__main__":
    # Each host has this Python at the same path, with Dask and Treadle, and lets you in with a key.
    with (
        SSHCluster(
            sys.argv[1:],  # the first host has the scheduler
            worker_options={"nthreads": 4},
            remote_python=sys.executable,
        ) as cluster,
        Client(cluster, set_as_default=False) as there,
        treadle.attach(there) as here,
    ):
        print(here.submit(sum, [1, 2]).result())
