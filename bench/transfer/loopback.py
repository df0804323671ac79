"""Arrays of 100 MB over an open loopback: beside ``iperf3``, a receiver in C, and grpcio."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial

from figures import Figure, interleave
from network import LOOPBACK, Network
from streams import (
    Iperf,
    Stream,
    c_stream,
    faster_congestion,
    grpc_stream,
    our_stream,
    treadle_is_there,
)

MB, BLOCKS = 100, 8
IPERF = {"iperf3": (), "iperf3, 1 MiB blocks": ("-l", "1M")}


def measure(quick: bool) -> Iterator[Figure]:
    yield from compare(LOOPBACK, "loopback", quick)


def compare(network: Network, where: str, quick: bool) -> Iterator[Figure]:
    faster = faster_congestion()
    with ExitStack() as stack:
        iperf = stack.enter_context(Iperf(network))
        turns: dict[str, Callable[[], float]] = {}
        for name, options in IPERF.items():
            turns[name] = partial(iperf.turn, *options)
        fastest = f"iperf3 with {faster}"
        if faster:
            turns[fastest] = lambda: iperf.turn("-l", "1M", "-C", faster)
        c: dict[str, tuple[str, str | None]] = {
            f"C, {kind}": (kind, None) for kind in ("warm", "pooled", "fresh")
        }
        c |= {f"C, {kind}, {faster}": (kind, faster) for kind in ("warm", "pooled") if faster}
        for name, (kind, congestion) in c.items():
            stream = stack.enter_context(c_stream(network, kind, MB, BLOCKS, congestion))
            turns[name] = stream.turn
        grpc = {
            "grpcio": ("threads", False),
            "grpcio, large frames": ("threads", True),
            "grpcio, asyncio server": ("aio", True),
        }
        for name, (kind, large) in grpc.items():
            turns[name] = stack.enter_context(
                grpc_stream(network, kind, large, MB, 2 if quick else 3)
            ).turn
        ours: dict[str, Stream] = {}
        if treadle_is_there():
            for into in ("warm", "new"):
                ours[into] = stack.enter_context(our_stream(network, into, MB, BLOCKS))
                turns[into] = ours[into].turn
        samples = interleave(turns, 3 if quick else 7)
        limits = {into: stream.limit for into, stream in ours.items()}
    lines: list[tuple[str, str, list[str], list[str], float | None]] = [
        ("warm", "recv_into a warm array", ["iperf3"], [], 0.9),
        # One block that stays in the cache, as no array of 100 MB does.
        (
            "warm",
            "recv_into a warm array",
            ["iperf3, 1 MiB blocks"],
            [fastest] if faster else [],
            None,
        ),
        # What a checksum leaves of it, for the eye: iperf3 looks at nothing.
        ("warm", "recv_into a warm array", [name for name in c if "warm" in name], [], None),
        ("new", "recv() of new arrays", [n for n in c if "pooled" in n], ["C, fresh"], 0.9),
        ("new", "recv() of new arrays", list(grpc), [], 4.0),
    ]
    for into, what, peers, also, least in lines:
        yield samples.against(
            f"100 MB arrays, {where}, {what}",
            into,
            peers,
            least,
            also=also,
            limit=limits.get(into, ""),
        )
