"""Treadle in a Dask cluster of Coiled. Run it in the network of the cluster (``coiled run``, a notebook)."""

import coiled

import treadle

#: What Coiled is asked for.
OPTIONS = {
    "name": "treadle",
    "n_workers": 4,
    "worker_vm_types": ["m6i.2xlarge"],  # x86_64; m7g (aarch64) with arm=True
    "scheduler_vm_types": ["m6i.xlarge"],
    # The packages of this environment, Treadle among them, are installed there in the same versions.
    "package_sync": True,
    "idle_timeout": "20 minutes",
}

if __name__ == "__main__":
    with (
        coiled.Cluster(**OPTIONS) as cluster,
        cluster.get_client(set_as_default=False) as there,
        treadle.attach(there) as here,
    ):
        print(here.submit(sum, [1, 2]).result())
