"""The published report's network: a link of 10 Gbit/s between two hosts, behind a router with a deep queue and with a
shallow one that drops; its programs with their flags, beside ``iperf3`` and gRPC in C++.

Needs root, `ip` and `tc`. On a machine too busy for 10 Gbit/s, ``TREADLE_LINK_GBIT=2`` names another rate.
"""

from __future__ import annotations

import os
import statistics
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

from clients import at_saturation, paced
from figures import MISSING, Figure, interleave
from network import Network, may_have_namespaces, routed
from program import Program
from programs import GRPC_CPP_MISSING, grpc_cpp, python
from streams import Iperf, grpc_cpp_stream, treadle_is_there

GBIT = float(os.environ.get("TREADLE_LINK_GBIT", "10"))
RATE = f"{GBIT:g}gbit"
MB = 100
# Of the router: bytes that it may send at once, and bytes that wait.
QUEUES = {
    "deep": ("burst", "256kb", "limit", "20mb"),
    "shallow": ("burst", "128kb", "limit", "300kb"),
}
HEADERS = 14 + 20 + 32  # bytes of Ethernet, IP and TCP with timestamps
WARM_UP = 3  # of the program
TOLERANCE = 0.02
PORT = 12230


def measure(quick: bool) -> Iterator[Figure]:
    if not may_have_namespaces() or not treadle_is_there():
        yield Figure(f"a link of {RATE}", MISSING, limit="network namespaces need root")
        return
    for queue, options in QUEUES.items():
        with routed(RATE, *options) as network:
            yield from arrays(network, f"{RATE}, {queue} queue", quick)
    with routed(RATE, *QUEUES["deep"]) as network:
        yield from paced(network, f"{RATE}, ", quick)
        yield from at_saturation(network, f"{RATE}, ", "", quick)


class Assigning:
    """The published program: parameter servers that stay, and workers of a turn."""

    def __init__(self, network: Network, stack: ExitStack, workers: int, iters: int) -> None:
        self.network, self.workers, self.iters = network, workers, iters
        names = ",".join(f"worker{number}:{PORT}" for number in range(workers))
        self.flags = [f"--ps_hosts={network.host}:{PORT + workers}", f"--worker_hosts={names}"]
        self.start(network.server, stack, "ps", 0).line()
        self.stripes = 0
        self.off: list[float] = []

    def start(
        self, start: Callable[[list[str]], Program], stack: ExitStack, job: str, task: int
    ) -> Program:
        flags = [*self.flags, f"--job_name={job}", f"--task={task}"]
        flags += [f"--data_mb={MB}", f"--iters={self.iters // self.workers}"]
        return stack.enter_context(start(python("tensor_transfer_throughput.py", *flags)))

    def turn(self) -> float:
        """MB/s of all workers, each of which says its own; how far the interface's counter is off is noted."""
        before = received(self.network)
        with ExitStack() as stack:
            begin = partial(self.start, self.network.client, stack, "worker")
            workers = [begin(task) for task in range(self.workers)]
            rates = []
            for worker in workers:
                self.stripes = max(self.stripes, int(worker.line(120).split()[-1]))
                rates.append(float(worker.line(120).split()[-2]))
        after = received(self.network)
        sent = (WARM_UP * self.workers + self.iters) * MB * 1e6
        arrived, packets = (b - a for a, b in zip(before, after, strict=True))
        self.off.append(arrived / (sent + HEADERS * packets) - 1)
        return sum(rates)


def received(network: Network) -> tuple[int, int]:
    """Bytes and packets that came in at the far interface so far."""
    files = [f"/sys/class/net/veth0/statistics/rx_{what}" for what in ("bytes", "packets")]
    command = [*network.server_side, "cat", *files]
    told = subprocess.run(command, check=True, capture_output=True, text=True, timeout=30)
    first, second = told.stdout.split()
    return int(first), int(second)


def raw(network: Network, concurrency: int, total: int) -> float:
    """MB/s of the published raw program on Treadle."""
    flags = [f"--target_ip={network.host}", f"--message_size={MB * 1000000}", "--channels=1"]
    flags += [f"--concurrency={concurrency}", f"--total_message={total}"]
    with network.client(python("raw.py", "--job_type=client", *flags)) as client:
        told: dict[str, Any] = client.told(120)
    return float(told["mb_per_second"])


def arrays(network: Network, where: str, quick: bool) -> Iterator[Figure]:
    seconds, rounds = (2, 2) if quick else (5, 5)
    iters = max(8, int(seconds * GBIT * 1e9 / 8 / (MB * 1e6)))
    with ExitStack() as stack:
        iperf = stack.enter_context(Iperf(network))
        retransmits: dict[str, list[int]] = {}

        def of_iperf(streams: int) -> float:
            rate = iperf.turn("-P", str(streams), seconds=seconds, omit=1)
            again = iperf.report["end"]["sum_sent"]["retransmits"]
            retransmits.setdefault(f"{streams}", []).append(again)
            return rate

        one, two = (Assigning(network, stack, workers, iters) for workers in (1, 2))
        server = python("raw.py", "--job_type=server", f"--host={network.host}")
        stack.enter_context(network.server([*server, "--server_threads=1"])).line()
        turns: dict[str, Callable[[], float]] = {
            "iperf3 -P 8": partial(of_iperf, 8),
            "iperf3, one stream": partial(of_iperf, 1),
            "ours": one.turn,
            "ours, two workers": two.turn,
            "ours, raw": partial(raw, network, 2, iters),
        }
        also = ["iperf3, one stream"]
        peers = []
        if program := grpc_cpp():
            for channels in (1, 8):
                name = f"gRPC C++, {channels} channel{'s'[: channels > 1]}"
                stream = grpc_cpp_stream(
                    network, program, MB, max(8, iters // 4), under_way=8, channels=channels
                )
                turns[name] = stack.enter_context(stream).turn
                peers.append(name)
        samples = interleave(turns, rounds)
    lost = "; ".join(
        f"iperf3 -P {streams}: {statistics.median(counts):,.0f} retransmits in {seconds} s"
        for streams, counts in retransmits.items()
    )
    for ours, what in (
        ("ours", f"the report's program, at most {one.stripes} stripes"),
        ("ours, two workers", "the report's program, two workers"),
        ("ours, raw", "the report's raw program"),
    ):
        name = f"{MB} MB arrays, {where}, {what}"
        lowest = min(samples.values[ours])
        limit = f"lowest of {rounds} runs {lowest:,.0f} MB/s; {lost}"
        # Two workers do not end at the same time, and whole messages are few: these only inform.
        bar = 0.95 if ours == "ours" else None
        yield samples.against(name, ours, ["iperf3 -P 8"], bar, also=also, limit=limit)
        if peers:
            yield samples.against(
                f"{name}: beside gRPC", ours, peers, 1.0 if ours == "ours" else None
            )
        else:
            yield Figure(f"{name}: beside gRPC", MISSING, limit=GRPC_CPP_MISSING)
    off = [*one.off, *two.off]
    yield Figure(
        f"{MB} MB arrays, {where}: the interface's counter over bytes plus headers",
        f"{min(off):+.2%} … {max(off):+.2%}",
        bar="within 2%",
        passed=max(map(abs, off)) <= TOLERANCE,
    )
