"""An array of 1 GB to another process of this machine: handed over as memory, beside loopback TCP."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import ExitStack

from figures import MISSING, Figure, interleave, time_of
from network import LOOPBACK
from program import Program
from programs import python
from streams import c_stream, treadle_is_there

MB = 1000


def measure(quick: bool) -> Iterator[Figure]:
    born = "1 GB array of treadle.empty to another process"
    ordinary = "1 GB ordinary array to another process"
    rounds = 3 if quick else 7
    with ExitStack() as stack:
        c = stack.enter_context(c_stream(LOOPBACK, "pooled", MB, 1))
        if not treadle_is_there():
            samples = interleave({"C": c.turn}, rounds)
            peer = f"C sender and receiver over TCP: {samples.median('C'):,.0f} MB/s"
            yield Figure(born, MISSING, peer, bar="≥ 50 × TCP")
            yield Figure(ordinary, MISSING, peer, bar="no slower than TCP (≥ 95%)")
            return

        def pair(*options: str) -> Program:
            server = stack.enter_context(
                Program(python("ours.py", "serve", LOOPBACK.host, *options))
            )
            address = server.told()["address"]
            command = python("ours.py", "handed", address, "--mb", str(MB), *options)
            return stack.enter_context(Program(command))

        shared, tcp = pair("--shared-memory"), pair()
        reads: dict[str, list[tuple[float, float]]] = {"shared": [], "private": [], "tcp": []}

        def turn(name: str) -> float:
            told = (tcp if name == "tcp" else shared).ask(born="private" if name == "tcp" else name)
            reads[name].append((told["first"], told["next"]))
            return float(told["bytes"] / told["seconds"] / 1e6)

        samples = interleave(
            {
                "shared": lambda: turn("shared"),
                "private": lambda: turn("private"),
                "tcp": lambda: turn("tcp"),
                "C": c.turn,
            },
            rounds,
        )
    first = {name: statistics.median(r[0] for r in reads[name]) for name in reads}
    again = {name: statistics.median(r[1] for r in reads[name]) for name in reads}
    peer = (
        f"Treadle over TCP {time_of(MB / samples.median('tcp'))}, "
        f"C over TCP {time_of(MB / samples.median('C'))}"
    )
    tcp_name = samples.highest(["tcp", "C"])
    for name, what, least, bar in (
        ("shared", born, 50.0, "≥ 50 × TCP"),
        ("private", ordinary, 0.95, "no slower than TCP (≥ 95%)"),
    ):
        # The lenient bar is an ordinary array's: it is to be no slower than Treadle's own TCP.
        base = tcp_name if name == "shared" else "tcp"
        ratio = samples.ratio(name, base)
        handed = MB / samples.median(name)
        yield Figure(
            what,
            f"{time_of(handed)}, and read once {time_of(handed + first[name])}",
            peer,
            f"{ratio:,.0f} ×" if ratio >= 2 else f"{ratio:.0%}",
            bar,
            ratio >= least,
            f"first full read {time_of(first[name])}, next {time_of(again[name])} "
            f"(after TCP {time_of(first['tcp'])})",
        )
