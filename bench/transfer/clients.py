"""One server and 1 to 32 clients with requests of 1 MB, each a process: paced by themselves, then not."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

from answers import LEAD
from figures import MISSING, Figure, time_of
from network import LOOPBACK, Network
from program import Program
from programs import python
from streams import treadle_is_there

RATE = 10  # requests a second of a paced client: 32 of them stay well below what the server takes
LONGEST = 200  # seconds


def measure(quick: bool) -> Iterator[Figure]:
    counts, seconds = size(quick)
    peer = told_of("grpc_peer.py", (1, counts[-1]), seconds)
    yield from paced(LOOPBACK, "", quick)
    yield from at_saturation(LOOPBACK, "", peer, quick)


def size(quick: bool) -> tuple[tuple[int, ...], float]:
    """How many clients there are in turn, and for how many seconds."""
    return ((1, 4, 16), 2.0) if quick else ((1, 2, 4, 8, 16, 32), 4.0)


def paced(network: Network, where: str, quick: bool) -> Iterator[Figure]:
    """Clients that ask for less than the server gives: their sum is linear."""
    counts, seconds = size(quick)
    what = f"{where}one server, 1 … {counts[-1]} clients, paced: sum"
    if not treadle_is_there():
        yield Figure(what, MISSING, bar="linear within 5%")
        return
    with ExitStack() as stack:
        clients = Clients(stack, "ours.py", network)
        each, rates = [], []
        for count in counts:
            told = clients.ask(count, seconds, RATE)
            rates.append(sum(t["per_second"] for t in told))
            each.append(rates[-1] / count / RATE)
    yield Figure(
        what,
        ", ".join(f"{r:,.0f}" for r in rates) + " MB/s",
        f"asked for: {RATE} MB/s each",
        f"{min(each):.0%} … {max(each):.0%}",
        "linear within 5%",
        min(each) >= 0.95 and max(each) <= 1.05,
    )


def at_saturation(network: Network, where: str, peer: str, quick: bool) -> Iterator[Figure]:
    """Clients that ask for all they can get: the total is flat, and the latency grows with their number."""
    counts, seconds = size(quick)
    open_, even = (
        f"{where}one server, 1 … {counts[-1]} clients, {what}"
        for what in ("at saturation: total", "at saturation: most over least")
    )
    if not treadle_is_there():
        yield Figure(open_, MISSING, peer, bar="flat within 10%, latency ∝ clients")
        yield Figure(even, MISSING, bar="≤ 1.5")
        return
    with ExitStack() as stack:
        clients = Clients(stack, "ours.py", network)
        results = [clients.ask(count, seconds) for count in counts]
    yield from saturated(open_, even, peer, counts, results)


def saturated(
    what: str,
    even: str,
    peer: str,
    counts: Sequence[int],
    results: Sequence[Sequence[dict[str, Any]]],
) -> Iterator[Figure]:
    rates = [sum(told["per_second"] for told in result) for result in results]
    # Saturated is the server from the count on that reaches 90 % of the highest total.
    first = next(i for i, rate in enumerate(rates) if rate >= 0.9 * max(rates))
    flat = min(rates[first:]) / max(rates)
    latency = [sum(told["p50"] for told in result) / len(result) for result in results]
    # By Little's law a closed loop's latency is the clients over the total rate.
    bent = [
        latency[i] * rates[first] / counts[i] / (latency[first] * rates[first] / counts[first])
        for i in range(first, len(counts))
    ]
    yield Figure(
        what,
        ", ".join(f"{rate:,.0f}" for rate in rates) + " MB/s",
        peer,
        f"{flat:.0%} of the highest; latency over clients {min(bent):.2f} … {max(bent):.2f}",
        "flat within 10%, latency ∝ clients",
        flat >= 0.9 and min(bent) >= 0.75 and max(bent) <= 1.25,
        f"saturated from {counts[first]} clients on; p50 "
        + ", ".join(time_of(value) for value in latency),
    )
    share = [
        max(told["count"] for told in result) / max(1, min(told["count"] for told in result))
        for result in results
    ]
    yield Figure(
        even,
        ", ".join(f"{value:.2f}" for value in share),
        bar="≤ 1.5",
        passed=max(share) <= 1.5,
        limit="p99 " + ", ".join(time_of(max(t["p99"] for t in result)) for result in results),
    )


class Clients:
    """A server and as many client processes as were asked for so far."""

    def __init__(self, stack: ExitStack, program: str, network: Network) -> None:
        self.stack, self.program, self.network = stack, program, network
        kind = ("threads",) if program == "grpc_peer.py" else ()
        self.options = () if network.loopback or kind else ("--insecure",)
        command = python(program, "serve", network.host, *kind, *self.options)
        self.address = stack.enter_context(network.server(command)).told()["address"]
        self.clients: list[Program] = []

    def ask(self, count: int, seconds: float, rate: float = 0) -> list[dict[str, Any]]:
        made = []
        while len(self.clients) < count:
            command = python(self.program, "requests", self.address, "--mb", "1", *self.options)
            made.append(self.stack.enter_context(self.network.client(command)))
            self.clients.append(made[-1])
        for client in made:  # the first requests do not count
            client.tell_to(start=0, seconds=1.0)
        for client in made:
            client.told(LONGEST)
        start = time.monotonic() + LEAD + 0.2
        arguments = {"start": start, "seconds": seconds} | ({"rate": rate} if rate else {})
        asked = self.clients[:count]
        for client in asked:
            client.tell_to(**arguments)
        return [client.told(LONGEST) for client in asked]


def told_of(program: str, counts: Sequence[int], seconds: float) -> str:
    """The peer's totals, from processes that are gone again before ours start."""
    with ExitStack() as own:
        clients = Clients(own, program, LOOPBACK)
        results = [clients.ask(count, seconds) for count in counts]
    totals = ", ".join(
        f"{sum(told['per_second'] for told in result):,.0f} MB/s with {count}"
        for count, result in zip(counts, results, strict=True)
    )
    return f"grpcio: {totals}"
