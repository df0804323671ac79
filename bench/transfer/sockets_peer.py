"""Plain sockets of Python: the round trip of 1 KB that this machine and its scheduler allow.

sockets_peer.py serve HOST
sockets_peer.py ping ADDRESS
"""

from __future__ import annotations

import socket
import sys
import time
from typing import Any

from answers import answer, say, summary

MESSAGE = bytes(1024)


def receive(connection: socket.socket) -> bool:
    return len(connection.recv(len(MESSAGE), socket.MSG_WAITALL)) == len(MESSAGE)


def serve(host: str) -> None:
    with socket.create_server((host, 0)) as listener:
        say({"address": f"{host}:{listener.getsockname()[1]}"})
        connection, _ = listener.accept()
        with connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while receive(connection):
                connection.sendall(MESSAGE)


def ping(address: str) -> None:
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def ask(seconds: float, pause: float = 0) -> dict[str, Any]:
            taken: list[float] = []
            start = time.monotonic()
            while (began := time.monotonic()) < start + seconds:
                connection.sendall(MESSAGE)
                receive(connection)
                taken.append(time.monotonic() - began)
                if pause:
                    time.sleep(pause)
            return summary(taken, time.monotonic() - start)

        answer(ask)


if __name__ == "__main__":
    {"serve": serve, "ping": ping}[sys.argv[1]](sys.argv[2])
