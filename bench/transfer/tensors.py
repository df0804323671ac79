"""A model's state of 1,000 tensors, 100 MB together, beside gloo and pickles; ``requirements/tensors.in`` has torch."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import ExitStack

from figures import MISSING, Figure, interleave
from network import LOOPBACK, free_port
from programs import python
from streams import treadle_is_there

WAYS = ("state", "arrays", "tensor", "into", "gloo", "broadcast", "gloo tensor", "pickle")


def measure(quick: bool) -> Iterator[Figure]:
    what = "state of 1,000 tensors, 100 MB"
    if importlib.util.find_spec("torch") is None or not treadle_is_there():
        yield Figure(what, MISSING, limit="torch is not here: install requirements/tensors.lock")
        return
    with ExitStack() as stack:
        port = str(free_port())
        server = stack.enter_context(LOOPBACK.server(python("tensors_peer.py", "serve", port)))
        address = server.told()["address"]
        client = stack.enter_context(LOOPBACK.client(python("tensors_peer.py", "send", port, address)))

        def turn(way: str) -> float:
            server.tell_to(way=way)
            told = client.ask(way=way)
            server.line()
            return float(told["bytes"] / told["seconds"] / 1e6)

        turns = {way: (lambda way=way: turn(way)) for way in WAYS}
        samples = interleave(turns, 5 if quick else 21)
    for peer, name, bar in (
        ("gloo", "gloo's send and recv, into tensors that are there", 3.0),
        ("broadcast", "gloo's broadcast, into tensors that are there", 3.0),
        ("pickle", "pickle, protocol 5, over a socket", None),
        ("tensor", "Treadle, one tensor of 100 MB", 0.8),
        ("arrays", "Treadle, the same as arrays of NumPy", None),
    ):
        yield _line(samples, f"{what}, beside {name}", "state", peer, bar)
    yield _line(samples, "tensor of 100 MB, beside gloo's send and recv", "into", "gloo tensor", None)


def _line(samples, what, ours, peer, bar) -> Figure:
    return samples.against(what, ours, [peer], bar)
