"""A model's state from one process to another: by Treadle, by ``torch.distributed`` over gloo, and pickled.

tensors_peer.py serve PORT               receives
tensors_peer.py send PORT ADDRESS        sends; PORT is that of gloo, ADDRESS what the first one says

Each line on standard input names a way; both are told the same ones. The sender says how many seconds passed from the
call until the receiver has said, over a socket of its own, that it has the tensors.
"""

from __future__ import annotations

import math
import os
import pickle
import random
import socket
import sys
import time
from typing import Any

import torch
import torch.distributed as gloo

from answers import answer, say
from treadle import transfer

COUNT, BYTES = 1000, 100_000_000
SMALLEST, LARGEST = 1000, 1_000_000


def sizes() -> list[int]:
    """Bytes of the tensors: as many between 1 KB and 2 KB as between 500 KB and 1 MB, at first."""
    chosen = random.Random(1)
    logs = [chosen.uniform(math.log(SMALLEST), math.log(LARGEST)) for _ in range(COUNT)]
    drawn = [math.exp(one) for one in logs]
    factor = BYTES / sum(drawn)
    return [min(LARGEST, max(SMALLEST, int(one * factor) // 4 * 4)) for one in drawn]


def state() -> dict[str, torch.Tensor]:
    return {
        f"layers.{i}.weight": torch.full((size // 4,), i) * 1.0 for i, size in enumerate(sizes())
    }


def join(rank: int, port: str) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    gloo.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)


def receive_all(channel: socket.socket, into: bytearray) -> None:
    view = memoryview(into)
    while len(view):
        view = view[channel.recv_into(view) :]


def serve(port: str) -> None:
    listener, plain = transfer.listen(), socket.create_server(("127.0.0.1", 0))
    say({"address": f"{plain.getsockname()[1]},{listener.address}"})
    (channel, _), connection = plain.accept(), listener.accept()
    join(1, port)
    warm, targets = torch.zeros(BYTES // 4), list(state().values())
    received: Any = None

    def receive(way: str) -> str:
        # What came before is let go before more comes, as by whoever works with it.
        nonlocal received
        received = None
        channel.send(b"r")
        if way == "into":
            connection.recv_into(warm)
        elif way in ("state", "tensor", "arrays"):
            received = connection.recv()
        elif way == "gloo":
            for target in targets:
                gloo.recv(target, 0)
        elif way == "broadcast":
            for target in targets:
                gloo.broadcast(target, 0)
        elif way == "gloo tensor":
            gloo.recv(warm, 0)
        else:
            length = bytearray(8)
            receive_all(channel, length)
            pickled = bytearray(int.from_bytes(length, "little"))
            receive_all(channel, pickled)
            received = pickle.loads(pickled)
        channel.send(b"d")
        return way

    answer(receive)


def send(port: str, address: str) -> None:
    plain, _, treadle = address.partition(",")
    channel = socket.create_connection(("127.0.0.1", int(plain)))
    channel.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection = transfer.connect(treadle)
    join(0, port)
    model, tensor = state(), torch.ones(BYTES // 4)
    arrays = {name: value.numpy() for name, value in model.items()}
    objects = {"state": model, "tensor": tensor, "into": tensor, "arrays": arrays}
    total = sum(value.nbytes for value in model.values())

    def give(way: str) -> dict[str, float]:
        channel.recv(1)
        began = time.monotonic()
        if way in objects:
            connection.send(objects[way])
        elif way == "gloo":
            for value in model.values():
                gloo.send(value, 1)
        elif way == "broadcast":
            for value in model.values():
                gloo.broadcast(value, 0)
        elif way == "gloo tensor":
            gloo.send(tensor, 1)
        else:
            pickled = pickle.dumps(model, protocol=5)
            channel.sendall(len(pickled).to_bytes(8, "little"))
            channel.sendall(pickled)
        channel.recv(1)
        return {"seconds": time.monotonic() - began, "bytes": total}

    answer(give)


if __name__ == "__main__":
    {"serve": serve, "send": send}[sys.argv[1]](*sys.argv[2:])
