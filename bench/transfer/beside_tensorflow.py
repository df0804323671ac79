"""The published report's program beside TensorFlow's own: a worker assigns its variable to the parameter server's.

``TENSORFLOW_PYTHON=PATH`` names an interpreter that has ``tensorflow`` (`requirements/tensorflow.in`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial

from figures import MISSING, Figure, interleave
from network import LOOPBACK, Network, free_port, may_have_namespaces, routed
from nic import GBIT, MB, QUEUES, RATE
from programs import HERE
from streams import treadle_is_there

INTERPRETER = os.environ.get("TENSORFLOW_PYTHON")
# TensorFlow imports for long on a busy machine.
TIMEOUT = 180
PORT = 12260


def measure(quick: bool) -> Iterator[Figure]:
    if not INTERPRETER or not treadle_is_there():
        limit = "TENSORFLOW_PYTHON names no interpreter that has tensorflow"
        yield Figure(f"assign {MB} MB", MISSING, limit=limit)
        return
    yield beside(LOOPBACK, "loopback", quick, None)
    if may_have_namespaces():
        with routed(RATE, *QUEUES["deep"]) as network:
            yield beside(network, f"a link of {RATE}, deep queue", quick, 1.8)
    else:
        yield Figure(f"assign {MB} MB, {RATE}", MISSING, limit="network namespaces need root")


def beside(network: Network, where: str, quick: bool, bar: float | None) -> Figure:
    # Some three seconds of a link that is used well.
    iters = 10 if quick else max(10, int(3 * GBIT * 1e9 / 8 / (MB * 1e6)))
    turns = {
        "ours": partial(assigned, network, sys.executable, "tensor_transfer_throughput.py", iters),
        "TensorFlow": partial(assigned, network, INTERPRETER, "tensorflow_peer.py", iters),
    }
    samples = interleave(turns, 2 if quick else 5)
    what = f"assign {MB} MB, {where}: the report's program"
    limit = "its figures: 173 MB/s on the slow socket, 5 of 10 Gbit/s on the good one"
    return samples.against(what, "ours", ["TensorFlow"], bar, limit=limit)


def assigned(network: Network, interpreter: str, program: str, iters: int) -> float:
    """MB/s, as the worker says; both ends are new: TensorFlow's server knows its workers by their start."""
    ports = (free_port(), free_port()) if network.loopback else (PORT, PORT + 1)
    flags = [f"--ps_hosts={network.host}:{ports[0]}"]
    flags += [f"--worker_hosts={network.client_host}:{ports[1]}"]
    flags += ["--task=0", f"--data_mb={MB}", f"--iters={iters}"]
    command = [interpreter, str(HERE / program), *flags]
    with ExitStack() as stack:
        server = stack.enter_context(network.server([*command, "--job_name=ps"]))
        server.line(TIMEOUT)
        worker = stack.enter_context(network.client([*command, "--job_name=worker"]))
        worker.line(TIMEOUT)
        return float(worker.line(TIMEOUT).split()[-2])
