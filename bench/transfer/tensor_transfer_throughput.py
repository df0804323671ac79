"""The published report's program, with its flags, on Treadle: workers assign their variables to the parameter server's.

One process for each host named: ::

    python tensor_transfer_throughput.py --ps_hosts=HOST1:12222 --worker_hosts=HOST2:12222 --job_name=ps --task=0
    python tensor_transfer_throughput.py --ps_hosts=HOST1:12222 --worker_hosts=HOST2:12222 --job_name=worker --task=0 \
        --data_mb=100 --iters=100

Several workers have a variable each; with several parameter servers, worker N assigns to number N modulo their
number. A worker of Treadle listens nowhere, so of ``--worker_hosts`` only the count matters. ``--job`` is the same as
``--job_name``. A parameter server ends when its standard input does.
"""

from __future__ import annotations

import argparse
import threading
import time
from typing import Any

import numpy

from answers import until_told
from treadle import transfer

WARM_UP = 3  # assignments before anything counts
TIMEOUT = 120.0


def is_local(address: str) -> bool:
    return address.startswith(("127.", "localhost"))


def attend(connection: Any) -> None:
    """Be one worker's variable."""
    with connection:
        elements, count = connection.recv(timeout=TIMEOUT)
        variable = numpy.zeros(elements)
        for _ in range(count):
            connection.recv_into(variable, timeout=TIMEOUT)
            connection.send("assigned")
        connection.send(float(variable[-1]))


def serve(address: str) -> None:
    with transfer.listen(address, insecure=not is_local(address), shared_memory=False) as listener:
        print(f"listening at {listener.address}", flush=True)

        def accept() -> None:
            for connection in listener:
                threading.Thread(target=attend, args=(connection,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        until_told()


def work(address: str, mb: float, iters: int) -> None:
    variable = numpy.ones(max(1, round(mb * 1e6 / 8)))
    insecure = not is_local(address)
    with transfer.connect(
        address, timeout=30, insecure=insecure, shared_memory=False
    ) as connection:
        connection.send((len(variable), WARM_UP + iters))
        start, stripes = 0.0, 0
        for number in range(WARM_UP + iters):
            if number == WARM_UP:
                start = time.perf_counter()
            variable[-1] = number
            connection.send(variable, timeout=TIMEOUT)
            if connection.recv(timeout=TIMEOUT) != "assigned":
                raise SystemExit("the parameter server does not answer as it should")
            stripes = max(stripes, connection.stats()["stripes"])
        seconds = time.perf_counter() - start
        if connection.recv(timeout=TIMEOUT) != variable[-1]:
            raise SystemExit("what the parameter server has is not what was sent")
    print(f"most stripes: {stripes}")
    print(f"transfer rate: {variable.nbytes * iters / seconds / 1e6:.6f} MB/s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ps_hosts", required=True, help="HOST:PORT,…")
    parser.add_argument("--worker_hosts", required=True, help="HOST:PORT,…")
    parser.add_argument("--job_name", "--job", choices=("ps", "worker"), required=True)
    parser.add_argument("--task", type=int, default=0, help="which of the hosts this is")
    parser.add_argument("--data_mb", type=float, default=100)
    parser.add_argument("--iters", type=int, default=100)
    args = parser.parse_args()
    servers, workers = args.ps_hosts.split(","), args.worker_hosts.split(",")
    hosts = servers if args.job_name == "ps" else workers
    if not 0 <= args.task < len(hosts):
        parser.error(f"--task={args.task}: there are {len(hosts)} of {args.job_name}")
    if args.job_name == "ps":
        serve(servers[args.task])
    else:
        work(servers[args.task % len(servers)], args.data_mb, args.iters)


if __name__ == "__main__":
    main()
