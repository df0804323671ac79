"""What each page takes for granted: clusters and servers that run, data, and names from other pages."""

from __future__ import annotations

import contextlib
import importlib.util
import pathlib
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

from blocks import Setting
from ports import free_port
from waiting import until

SETTINGS: dict[str, Callable[[ExitStack], Setting]] = {}


def page(name: str) -> Callable[[Callable[[ExitStack], Setting]], Callable[[ExitStack], Setting]]:
    def keep(make: Callable[[ExitStack], Setting]) -> Callable[[ExitStack], Setting]:
        SETTINGS[name] = make
        return make

    return keep


@contextlib.contextmanager
def setting(name: str) -> Iterator[Setting]:
    """What the page needs, until its blocks have run."""
    with ExitStack() as stack:
        yield SETTINGS.get(name, lambda _: Setting())(stack)


def command(stack: ExitStack, *arguments: str) -> str:
    """Start a command of Treadle, and give the address at which it listens."""
    process = subprocess.Popen(
        [sys.executable, "-m", "treadle", *arguments], stdout=subprocess.PIPE, text=True
    )
    stack.callback(_end, process)
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("listening at "):
            return line.split()[-1]
    raise AssertionError(f"treadle {' '.join(arguments)} does not listen")


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def cluster(stack: ExitStack, *options: str, workers: int = 1, tls: bool = False) -> str:
    """A scheduler and workers, as a user starts them."""
    scheme = "treadle+tls" if tls else "treadle"
    address = command(stack, "scheduler", f"{scheme}://127.0.0.1:0", *options)
    command(stack, "worker", address, "--nworkers", str(workers), "--nthreads", "1", *options)
    return address


def certificates() -> tuple[str, str]:
    subprocess.run([sys.executable, "-m", "treadle", "certs", "node"], check=True)
    return "--tls", "treadle-certs/node"


def listens(port: int) -> None:
    """Wait until another thread listens at the port."""

    # A connection would be taken for the other program.
    def is_listed() -> bool:
        sockets = pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]
        found = (line.split()[1:4] for line in sockets)
        return any(own.endswith(f":{port:04X}") and state == "0A" for own, _, state in found)

    until(is_listed, f"another program listens at port {port}")


def frame() -> Any:
    import pandas as pd
    from dask import dataframe as dd

    rows = pd.DataFrame({"name": [f"n{n % 7}" for n in range(70)], "value": range(70)})
    return dd.from_pandas(rows, npartitions=4)


def array() -> Any:
    from dask import array as da

    return da.ones((400, 400), chunks=(100, 100))


@page("README.md")
def readme(_: ExitStack) -> Setting:
    two = "two programs in one block: docs/how-to/arrays.md has them apart, and runs"
    return Setting(not_run={"from treadle import transfer": two})


@page("docs/start/first-cluster.md")
def first_cluster(stack: ExitStack) -> Setting:
    return Setting(replaced={"treadle://127.0.0.1:7786": cluster(stack, workers=2)})


@page("docs/how-to/deploy.md")
def deploy(stack: ExitStack) -> Setting:
    return Setting(replaced={"treadle+tls://a:7786": cluster(stack, *certificates(), tls=True)})


@page("docs/how-to/arrays.md")
def arrays(_: ExitStack) -> Setting:
    port = free_port()
    return Setting(
        replaced={"127.0.0.1:7000": f"127.0.0.1:{port}"},
        before={"import numpy as np": lambda _: listens(port)},
        beside={"from treadle import transfer"},
    )


@page("docs/how-to/tensors.md")
def tensors(_: ExitStack) -> Setting:
    sends, loads = "from torch import nn", "import torch"
    if importlib.util.find_spec("torch") is None:
        return Setting(
            not_run=dict.fromkeys((sends, loads), "torch is not here: make test-tensors")
        )
    port = free_port()
    return Setting(
        replaced={"127.0.0.1:7000": f"127.0.0.1:{port}"},
        before={loads: lambda _: listens(port)},
        beside={sends},
    )


@page("docs/using-a-cluster.md")
def using_a_cluster(stack: ExitStack) -> Setting:
    import distributed

    import treadle

    secret = pathlib.Path("secret")
    secret.write_text(secrets.token_hex(32))
    secret.chmod(0o600)
    plain = cluster(stack)
    return Setting(
        names={
            "distributed": distributed,
            "pathlib": pathlib,
            "treadle": treadle,
            "frame": array(),
        },
        replaced={
            "treadle://host:7786": plain,
            "treadle://127.0.0.1:7786": plain,
            "treadle+tls://a:7786": cluster(stack, *certificates(), tls=True),
            "treadle://a:7786": cluster(stack, "--secret-file", "secret"),
        },
    )


@page("docs/shuffles.md")
def shuffles(stack: ExitStack) -> Setting:
    master = command(stack, "shuffle-master", "treadle://127.0.0.1:0")
    for domain in ("one", "two"):
        command(stack, "shuffle-server", master, "--domain", domain)
    return Setting(
        names={"df": frame(), "other": frame()},
        replaced={
            "treadle://127.0.0.1:7786": cluster(stack, workers=2),
            "treadle://127.0.0.1:7790": master,
        },
    )


@page("docs/tracing.md")
def tracing(_: ExitStack) -> Setting:
    import treadle

    treadle.install()
    return Setting(names={"treadle": treadle, "x": array()})


@page("docs/mpi.md")
def mpi(_: ExitStack) -> Setting:
    ranks = "needs the ranks of an MPI job: tests/cluster/test_mpi.py"
    return Setting(
        not_run={"from treadle import mpi": ranks, "def total(values):": ranks},
    )


@page("docs/hosting.md")
def hosting(stack: ExitStack) -> Setting:
    import distributed

    import treadle

    dask = stack.enter_context(
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None)
    )

    def attached(names: dict[str, Any]) -> None:
        names["here"] = treadle.attach(names["there"])

    return Setting(
        names={
            "distributed": distributed,
            "treadle": treadle,
            "x": array(),
            "df": frame(),
            "load": lambda: 1,
            "frame": array(),
            "model": [0.5] * 1000,
        },
        replaced={
            "tcp://scheduler:8786": dask.scheduler_address,
            'protocol="treadle-tcp"': 'protocol="treadle-tcp", n_workers=1, dashboard_address=None',
        },
        before={"loaded = there.submit(load)": attached},
        not_run={
            "import ray, treadle": "needs Ray: tests/cluster/test_hosting_ray.py (make test-ray)"
        },
    )


@page("docs/hosting-guides.md")
def hosting_guides(stack: ExitStack) -> Setting:
    import distributed

    import treadle

    made = [sys.executable, "-m", "treadle", "certs", "--dir", "."]
    subprocess.run(made, check=True)
    security = distributed.Security(
        tls_ca_file="ca.pem",
        require_encryption=True,
        **{
            f"tls_{role}_{kind}": f"node{suffix}.pem"
            for role in ("client", "scheduler", "worker")
            for kind, suffix in (("cert", ""), ("key", "-key"))
        },
    )
    options = {"n_workers": 1, "threads_per_worker": 1, "dashboard_address": None}
    plain = stack.enter_context(distributed.LocalCluster(**options))
    with distributed.Client(plain) as client:
        client.write_scheduler_file("scheduler.json")
    encrypted = stack.enter_context(
        distributed.LocalCluster(**options, protocol="tls://", security=security)
    )
    return Setting(
        names={"distributed": distributed, "treadle": treadle},
        replaced={
            "tls://10.73.0.1:8786": encrypted.scheduler_address,
            "n_workers=4": "n_workers=2",
        },
    )
