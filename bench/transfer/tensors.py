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
        client = stack.enter_context(
            LOOPBACK.client(python("tensors_peer.py", "send", port, address))
        )

        def turn(way: str) -> float:
            server.tell_to(way=way)
            told = client.ask(way=way)
            server.line()
            return float(told["bytes"] / told["seconds"] / 1e6)

        turns = {way: (lambda way=way: turn(way)) for way in WAYS}
        samples = interleave(turns, 5 if quick else 21)
    there = "into tensors that are there"
    for ours, peer, least, limit in (
        ("state", "gloo", 3.0, f"gloo's send and recv, {there}"),
        ("state", "broadcast", 3.0, f"gloo's broadcast, {there}"),
        ("state", "pickle", None, "pickle of protocol 5 over a socket"),
        ("state", "tensor", 0.8, "Treadle's own: one tensor of 100 MB"),
        ("state", "arrays", None, "Treadle's own: as arrays of NumPy"),
        ("into", "gloo tensor", None, f"gloo's send and recv, {there}"),
    ):
        about = what if ours == "state" else "one tensor of 100 MB, into one that is there"
        yield samples.against(about, ours, [peer], least, limit=limit)
