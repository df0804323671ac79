"""Control and small messages while transfers of 1 GB run: beside plain sockets next to ``iperf3``."""

from __future__ import annotations

import statistics
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

from figures import MISSING, Figure, time_of
from network import LOOPBACK
from program import Program
from programs import python
from streams import Iperf, treadle_is_there

MB = 1000


def line(told: dict[str, Any]) -> str:
    return f"p50 {time_of(told['p50'])}, p99 {time_of(told['p99'])}"


def median_of(told: list[dict[str, Any]]) -> dict[str, float]:
    return {what: statistics.median(t[what] for t in told) for what in told[0]}


def measure(quick: bool) -> Iterator[Figure]:
    seconds, rounds = (2.0, 2) if quick else (3.0, 5)
    with ExitStack() as stack:

        def start(program: str, *arguments: str) -> Program:
            return stack.enter_context(Program(python(program, *arguments)))

        server = start("sockets_peer.py", "serve", LOOPBACK.host)
        ping = start("sockets_peer.py", "ping", server.told()["address"])
        iperf = stack.enter_context(Iperf(LOOPBACK))

        def beside_iperf() -> dict[str, Any]:
            load = threading.Thread(target=iperf.turn, kwargs={"seconds": int(seconds) + 1})
            load.start()
            told = ping.ask(seconds=seconds, pause=0.002)
            load.join()
            return told

        ours: Program | None = None
        if treadle_is_there():
            server = start("ours.py", "serve", LOOPBACK.host)
            ours = start("ours.py", "control", server.told()["address"], "--mb", str(MB))
        idle, loaded, plain = [], [], []
        for _ in range(rounds):
            plain.append(beside_iperf())
            if ours:
                idle.append(ours.ask(seconds=seconds, loaded=False))
                loaded.append(ours.ask(seconds=seconds, loaded=True))
        what = "1 KB round trip, second connection, while 1 GB transfers run"
        peer = median_of(plain)
        told = f"plain sockets beside iperf3: {line(peer)}"
        if not ours:
            yield Figure(what, MISSING, told, bar="p99 ≤ 2 × the plain sockets'")
            return
    mine, quiet = median_of(loaded), median_of(idle)
    yield Figure(
        what,
        line(mine),
        told,
        f"p99 {mine['p99'] / peer['p99']:.2f} ×",
        "p99 ≤ 2 × the plain sockets'",
        mine["p99"] <= 2 * peer["p99"],
        f"two cores for two transfers and two pingers; idle {line(quiet)}; "
        f"the load {mine['mb_per_second']:,.0f} MB/s",
    )
    yield Figure(
        "keep-alive round trip of the loaded connection (stats()['control_rtt'])",
        f"p50 {time_of(mine['control_p50'])}, longest {time_of(mine['control_max'])}",
        limit=f"idle p50 {time_of(quiet['control_p50'])}, longest {time_of(quiet['control_max'])}",
    )
