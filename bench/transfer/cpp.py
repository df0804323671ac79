"""gRPC in C++ beside Treadle: arrays of 100 MB over loopback, and small messages, 1 to 1,024 of them under way.

Treadle's small messages are measured twice: driven natively (``treadle bench transfer --mode raw``), as the peer is,
and from Python (``treadle.transfer``).
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

from figures import MISSING, Figure, interleave, time_of
from network import LOOPBACK, Network
from program import Program
from programs import GRPC_CPP_MISSING, grpc_cpp, python
from streams import grpc_cpp_stream, our_stream, treadle_is_there

MB, BLOCKS = 100, 8
SIZES = {64: "64 B", 1024: "1 KB", 16384: "16 KB"}
UNDER_WAY = (1, 64, 1024)
# Where the server listens, and its threads: the best of them counts.
SERVERS = {
    "1 thread": (LOOPBACK.host, 1),
    "2 threads": (LOOPBACK.host, 2),
    "1 thread, Unix socket": (f"unix-abstract:treadle-bench-{os.getpid()}", 1),
}
NATIVE, PYTHON = "native", "Python"


def measure(quick: bool) -> Iterator[Figure]:
    program = grpc_cpp()
    if program is None or not treadle_is_there():
        yield Figure("gRPC in C++", MISSING, limit="" if program else GRPC_CPP_MISSING)
        return
    yield from blocks(LOOPBACK, "loopback", program, quick)
    yield from messages(program, quick)


def blocks(network: Network, where: str, program: str, quick: bool) -> Iterator[Figure]:
    """Arrays of 100 MB; gRPC with one and with four under way, with HTTP/2 frames of two sizes."""
    with ExitStack() as stack:
        turns: dict[str, Callable[[], float]] = {}
        for under_way in (1, 4):
            for large, frames in ((False, ""), (True, ", large frames")):
                stream = grpc_cpp_stream(
                    network, program, MB, BLOCKS, under_way=under_way, large_frames=large
                )
                name = f"gRPC C++, {under_way} under way{frames}"
                turns[name] = stack.enter_context(stream).turn
        peers = list(turns)
        ours = {
            into: stack.enter_context(our_stream(network, into, MB, BLOCKS))
            for into in ("warm", "new")
        }
        turns |= {into: stream.turn for into, stream in ours.items()}
        samples = interleave(turns, 3 if quick else 7)
        for into, what in (("warm", "recv_into a warm array"), ("new", "recv() of new arrays")):
            name = f"100 MB arrays, {where}, {what}"
            yield samples.against(name, into, peers, 1.0, limit=ours[into].limit)


def messages(program: str, quick: bool) -> Iterator[Figure]:
    """Echoes of each size; one table of median and 99th percentile."""
    seconds, rounds = (0.4, 2) if quick else (1.0, 5)
    with ExitStack() as stack:
        start = stack.enter_context
        clients: dict[str, Program] = {}
        for name, (host, threads) in SERVERS.items():
            serve = [program, "--job_type=server", f"--host={host}", "--response_size=-1"]
            server = start(Program([*serve, f"--server_threads={threads}"]))
            target = f"--target={server.told()['address']}"
            clients[name] = start(Program([program, "--job_type=turns", target]))
        echo = start(Program(python("ours.py", "serve", LOOPBACK.host))).told()["address"]
        from_python = start(Program(python("ours.py", "latency", echo)))
        for size, named in SIZES.items():
            address = raw_server(start, size)
            for under_way in UNDER_WAY:
                ask: dict[str, Callable[[], dict[str, Any]]] = {
                    name: partial(of_peer, client, under_way, size, seconds)
                    for name, client in clients.items()
                }
                ask[NATIVE] = partial(driven, address, under_way, size, seconds)
                ask[PYTHON] = partial(
                    from_python.ask, concurrency=under_way, seconds=seconds, size=size
                )
                told: dict[str, list[dict[str, Any]]] = {name: [] for name in ask}
                for number in range(rounds + 1):
                    for name, turn in list(ask.items())[:: -1 if number % 2 else 1]:
                        answer = turn()
                        if number:  # the first does not count
                            told[name].append(answer)
                yield from lines(f"{named}, {under_way:,} under way", told)


def raw_server(start: Callable[[Program], Program], size: int) -> str:
    """The address of a native server that answers with so many bytes."""
    command = [sys.executable, "-m", "treadle", "bench", "transfer", "--mode", "raw"]
    command += ["--job", "ps", "--ps-host", f"{LOOPBACK.host}:0", "--until-eof"]
    server = start(Program([*command, "--response-size", str(size)]))
    return server.line().split()[-1]


def of_peer(client: Program, under_way: int, size: int, seconds: float) -> dict[str, Any]:
    client.tell(f"{under_way} {size} 0 {seconds}")
    return client.told()


def driven(address: str, under_way: int, size: int, seconds: float) -> dict[str, Any]:
    command = [sys.executable, "-m", "treadle", "bench", "transfer", "--mode", "raw"]
    command += ["--job", "worker", "--ps-host", address, "--json", "-", "--warmup", "0.1"]
    command += ["--seconds", str(seconds), "--message-size", str(size)]
    command += ["--concurrency", str(under_way)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    told = json.loads(done.stdout)
    return {"per_second": told["requests_per_second"], **told["latency_seconds"]}


def lines(what: str, told: dict[str, list[dict[str, Any]]]) -> Iterator[Figure]:
    """Ours, native and from Python, over the peer's best median and its best 99th percentile."""

    def median(name: str, which: str) -> float:
        return statistics.median(answer[which] for answer in told[name])

    def shown(name: str) -> str:
        return (
            f"{time_of(median(name, 'p50'))}, {time_of(median(name, 'p99'))}, "
            f"{median(name, 'per_second'):,.0f}/s"
        )

    peers = "; ".join(f"{name} {shown(name)}" for name in SERVERS)
    best = {which: min(median(name, which) for name in SERVERS) for which in ("p50", "p99")}
    for ours in (NATIVE, PYTHON):
        ratio = {which: best[which] / median(ours, which) for which in best}
        yield Figure(
            f"echo of {what}, {ours}: p50, p99",
            shown(ours),
            f"gRPC C++: {peers}",
            f"p50 {ratio['p50']:.2f} ×, p99 {ratio['p99']:.2f} × shorter",
            "p99 no worse than the best",
            ratio["p99"] >= 1,
        )
