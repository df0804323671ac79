"""Every socket capped at 1.4 Gbit/s: Treadle has to find out for itself that it takes several."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import pairwise

from figures import Figure, interleave
from network import CAP, LOOPBACK, Network
from streams import Iperf, Stream, grpc_stream, our_stream, treadle_is_there

MB = 100
RAMP = 1.0  # seconds until the stripes have to be there


def measure(quick: bool) -> Iterator[Figure]:
    yield from compare(LOOPBACK, "loopback", quick)


def steady(stream: Stream) -> float:
    """MB/s of the blocks that arrived after the ramp."""
    stream.turn()
    told = stream.told[-1]
    late = [at for at in told["at"] if at > RAMP]
    if len(late) < 2:
        raise RuntimeError(f"{told['at'][-1]:.2f} s for all blocks: nothing arrived after the ramp")
    return float(MB * (len(late) - 1) / (late[-1] - late[0]))


def compare(network: Network, where: str, quick: bool) -> Iterator[Figure]:
    paced = network.paced()
    seconds = 2 if quick else 3
    with ExitStack() as stack:
        iperf = stack.enter_context(Iperf(paced))
        turns: dict[str, Callable[[], float]] = {
            "iperf3 -P 8": lambda: iperf.turn("-P", "8", seconds=seconds, omit=1),
            "iperf3 -P 8, 1 MiB blocks": lambda: iperf.turn(
                "-P", "8", "-l", "1M", seconds=seconds, omit=1
            ),
            "iperf3, one stream": lambda: iperf.turn(seconds=1, omit=1),
        }
        turns["grpcio"] = stack.enter_context(grpc_stream(paced, "threads", True, MB, 1)).turn
        ours: Stream | None = None
        if treadle_is_there():
            # As many blocks as fill the ramp and the measured seconds at the full rate.
            blocks = int(8 * CAP * (seconds + RAMP) / (MB * 1e6))
            ours = stack.enter_context(our_stream(paced, "warm", MB, blocks))
            turns["ours"] = lambda: steady(ours)
        samples = interleave(turns, 2 if quick else 5)
        yield samples.against(
            f"sockets capped at 1.4 Gbit/s, {where}, steady",
            "ours",
            ("iperf3 -P 8", "iperf3 -P 8, 1 MiB blocks"),
            0.95,
            also=("iperf3, one stream", "grpcio"),
            limit=f"stripes {ours.told[-1]['stripes']}; {ours.limit}" if ours else "",
        )
        if ours:
            at = [0.0, *ours.told[0]["at"][:8]]
            rates = [MB / (b - a) for a, b in pairwise(at)]
            yield Figure(
                f"sockets capped at 1.4 Gbit/s, {where}, ramp",
                "first transfers " + ", ".join(f"{rate:,.0f}" for rate in rates) + " MB/s",
                limit=f"stripes after the first turn {ours.told[0]['stripes']}, "
                f"{at[-1]:.2f} s for {len(rates)} transfers",
            )
