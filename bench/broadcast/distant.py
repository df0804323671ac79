"""A client far away: 50 ms of latency each way and 100 Mbit/s between it and the engines."""

from __future__ import annotations

import contextlib
import os
import socket
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import engines
from figures import Figure, time_of
from program import Program

HERE = Path(__file__).parent
LATENCY = 0.05
RATE = 100e6 / 8
# 2 MB are 512² doubles; of 20 MB, the latency is a small part. Before them next to nothing: what the
# engines take of this machine's cores, which they share.
NOTHING = 8
SIZES = (NOTHING, 8 * 512**2, 20_000_000)
SLOWER = 1.2
# What each host gets, the cores of this machine copy: a host for each engine would measure them.
HOSTS = 8
# Bytes on the link beside the payload, of its size, and for messages.
HEADS, WORDS = 0.01, 20_000


def own_address() -> str:
    """This machine's address on its network: a client refuses to reach a loopback address elsewhere."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        # Nothing is sent to that network, which is reserved for benchmarks.
        probe.connect(("198.18.0.1", 9))
        address: str = probe.getsockname()[0]
        return address


@contextlib.contextmanager
def namespace(host: str) -> Iterator[str]:
    """A network namespace with nothing but its loopback interface, on which ``host`` is. Needs root."""
    name = f"treadle-{os.getpid()}-far"
    subprocess.run(["ip", "netns", "add", name], check=True, timeout=30)
    try:
        subprocess.run(["ip", "-n", name, "link", "set", "lo", "up"], check=True, timeout=30)
        if not host.startswith("127."):
            command = ["ip", "-n", name, "address", "add", f"{host}/32", "dev", "lo"]
            subprocess.run(command, check=True, timeout=30)
        yield name
    finally:
        subprocess.run(["ip", "netns", "delete", name], check=True, timeout=30)


@contextlib.contextmanager
def far_client(client: Any, count: int) -> Iterator[tuple[Program, Program]]:
    """A client behind a link to the cluster of another client, and the link."""
    scheduler = client.cluster.scheduler_address
    addresses = [scheduler, *client.scheduler_info(n_workers=-1)["workers"]]
    ports = " ".join(address.rpartition(":")[2] for address in addresses)
    host = own_address()
    with namespace(host) as name:
        command = [sys.executable, str(HERE / "link.py"), name, host, str(RATE), str(LATENCY)]
        with Program(command) as link:
            link.tell(ports)
            link.line()
            # A host name of its own, too.
            enter = ["ip", "netns", "exec", name, "unshare", "--uts"]
            program = [sys.executable, str(HERE / "far_client.py"), scheduler, str(count)]
            secret = {"TREADLE_SECRET_FILE": client.cluster.secret_file}
            with Program([*enter, *program], secret) as far:
                far.line()
                yield far, link


def carried(link: Program) -> int:
    """Bytes that the client has sent."""
    link.tell("")
    return int(link.line().split()[0])


def measure(quick: bool) -> Iterator[Figure]:
    if os.geteuid() != 0:
        yield Figure("a client far away", "not run", limit="network namespaces need root")
        return
    rounds = 3 if quick else 7
    where = {"host": own_address(), "insecure": True}
    with engines.treadle(32, **where) as client:
        yield from pushes(client, 32, "32 engines of one host", rounds)
    crowd = engines.CROWD
    with engines.simulated(crowd, HOSTS, **where) as (client, _):
        yield from pushes(client, crowd, f"{crowd} simulated engines on {HOSTS} hosts", rounds)


def pushes(client: Any, count: int, what: str, rounds: int) -> Iterator[Figure]:
    with far_client(client, count) as (far, link):
        for size in SIZES:
            times, sent = [], []
            for _ in range(1 + rounds):
                before = carried(link)
                far.tell(str(size))
                times.append(float(far.line()))
                sent.append(carried(link) - before)
            taken, most = statistics.median(times[1:]), max(sent[1:])
            if size == NOTHING:
                yield Figure(
                    f"{size} bytes from {LATENCY * 1e3:g} ms away to {what}",
                    time_of(taken),
                    f"{time_of(2 * LATENCY)} there and back",
                    f"{time_of(taken - 2 * LATENCY)} more",
                    limit="all engines share this machine's cores",
                )
                continue
            transmission = size / RATE
            # The last byte arrives a latency later, and so does the answer to it.
            floor = transmission + 2 * LATENCY
            ratio = taken / floor
            yield Figure(
                f"{size / 1e6:.3g} MB from {LATENCY * 1e3:g} ms and {RATE * 8 / 1e6:g} Mbit/s away "
                f"to {what}",
                time_of(taken),
                f"{time_of(transmission)} of transmission, {time_of(2 * LATENCY)} there and back",
                f"{ratio:.2f} × ({taken / transmission:.2f} × the transmission alone)",
                f"≤ {SLOWER} ×",
                ratio <= SLOWER,
            )
            yield Figure(
                "the same: bytes that cross the link",
                f"{most:,}",
                f"payload {size:,}",
                f"{most / size:.3f} ×",
                "once",
                most <= size * (1 + HEADS) + WORDS,
            )
