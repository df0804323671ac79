"""The published scenario: a worker assigns its variable to the parameter server's again and again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

from figures import MISSING, Figure, interleave
from network import LOOPBACK
from streams import our_stream, treadle_is_there

PLACE = "place"  # the stage that puts what arrived into the variable
SIZES = (10, 100)  # MB


def measure(quick: bool) -> Iterator[Figure]:
    for mb in SIZES[-1:] if quick else SIZES:
        yield from of_size(mb, quick)


def of_size(mb: int, quick: bool) -> Iterator[Figure]:
    what = f"ps/worker, variable of {mb} MB"
    if not treadle_is_there():
        yield Figure(f"{what}: assign over raw", MISSING, bar="≥ 95%")
        yield Figure(f"{what}: placement", MISSING, bar="≤ 1%")
        return
    blocks = 1000 // mb
    with ExitStack() as stack:
        raw = stack.enter_context(our_stream(LOOPBACK, "warm", mb, blocks))
        assign = stack.enter_context(our_stream(LOOPBACK, "tensor", mb, blocks))
        samples = interleave({"raw": raw.turn, "assign": assign.turn}, 5 if quick else 11)
        yield samples.against(
            f"{what}: assign over raw (the report: 56 %)",
            "assign",
            ["raw"],
            0.95,
            limit=assign.limit,
        )
        told = assign.client.ask(blocks=blocks, traced=True)
    stages = told["stages"]
    share = stages.get(PLACE, 0.0) / told["seconds"]
    yield Figure(
        f"{what}: placement on the receiving side",
        f"{share:.2%} of the time",
        bar="≤ 1%",
        passed=share <= 0.01 if PLACE in stages else False,
        limit=", ".join(f"{name} {s / told['seconds']:.1%}" for name, s in stages.items())
        or "the trace of the receiving side has no stages",
    )
