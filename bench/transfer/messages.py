"""Messages of 1 KB: how many a second, and the round trip with 1, 64 and 1,024 under way, beside grpcio."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

from figures import MISSING, Figure, time_of
from network import LOOPBACK
from program import Program
from programs import python
from streams import treadle_is_there

Ask = Callable[[], dict[str, Any]]

COUNT = 1_000_000
GRPC = (("threads", "blocking"), ("threads", "futures"), ("threads", "aio"), ("aio", "aio"))
OURS, SOCKETS = "Treadle", "sockets"


def measure(quick: bool) -> Iterator[Figure]:
    with ExitStack() as stack:

        def start(program: str, *arguments: str) -> Program:
            return stack.enter_context(Program(python(program, *arguments)))

        def started(program: str, *arguments: str) -> str:
            address: str = start(program, *arguments).told()["address"]
            return address

        clients: dict[str, Program] = {}
        if treadle_is_there():
            address = started("ours.py", "serve", LOOPBACK.host)
            yield batches(start("ours.py", "messages", address), quick)
            clients[OURS] = start("ours.py", "latency", address)
        else:
            yield Figure("1 KB messages in batches, one connection", MISSING, bar="≥ 500,000/s")
        servers = {kind: started("grpc_peer.py", "serve", LOOPBACK.host, kind) for kind, _ in GRPC}
        for kind, how in GRPC:
            name = f"grpcio ({how}, server {kind})"
            clients[name] = start("grpc_peer.py", "latency", servers[kind], how)
        ping = start("sockets_peer.py", "ping", started("sockets_peer.py", "serve", LOOPBACK.host))
        seconds, rounds = (0.5, 2) if quick else (1.0, 5)
        for concurrency in (1, 64, 1024):
            asked: dict[str, Ask] = {
                name: partial(client.ask, concurrency=concurrency, seconds=seconds)
                for name, client in clients.items()
            }
            if concurrency == 1:
                asked[SOCKETS] = partial(ping.ask, seconds=seconds)
            yield from compare(concurrency, asked, rounds)


def batches(client: Program, quick: bool) -> Figure:
    rates = []
    for _ in range(4 if quick else 8):
        told = client.ask(count=COUNT)
        rates.append(told["count"] / told["seconds"])
    rate = statistics.median(rates[1:])
    return Figure(
        "1 KB messages in batches, one connection",
        f"{rate:,.0f}/s ({rate * 1024 / 1e6:,.0f} MB/s)",
        bar="≥ 500,000/s",
        passed=rate >= 500_000,
    )


def compare(concurrency: int, asked: dict[str, Ask], rounds: int) -> Iterator[Figure]:
    told: dict[str, list[dict[str, Any]]] = {name: [] for name in asked}
    for number in range(rounds + 1):
        for name, ask in asked.items():
            answer = ask()
            if number:  # the first does not count
                told[name].append(answer)

    def median(name: str, what: str) -> float:
        return statistics.median(answer[what] for answer in told[name])

    def line(name: str) -> str:
        return (
            f"p50 {time_of(median(name, 'p50'))}, p99 {time_of(median(name, 'p99'))}, "
            f"{median(name, 'per_second'):,.0f}/s"
        )

    peers = [name for name in told if name.startswith("grpcio")]
    best = min(peers, key=lambda name: median(name, "p50"))
    steady = min(peers, key=lambda name: median(name, "p99"))
    peer = f"{best}: {line(best)}"
    if steady != best:
        peer += f"; {steady}: {line(steady)}"
    what = f"1 KB round trip, {concurrency:,} under way"
    bar = "p50 ≤ 60 µs" if concurrency == 1 else "p50 and p99 no worse"
    floor = f"plain Python sockets: {line(SOCKETS)}" if SOCKETS in told else ""
    if OURS not in told:
        yield Figure(what, MISSING, peer, bar=bar, limit=floor)
        return
    p50, p99 = median(OURS, "p50"), median(OURS, "p99")
    passed = p50 <= 60e-6
    if concurrency > 1:
        passed = p50 <= median(best, "p50") and p99 <= median(steady, "p99")
    yield Figure(
        what,
        line(OURS),
        peer,
        f"p50 {median(best, 'p50') / p50:.1f} ×, p99 {median(steady, 'p99') / p99:.1f} × shorter",
        bar,
        passed,
        floor,
    )
