"""A slow link in user space: a relay in front of a server that lets so many bytes a second through, each way."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress

# Bytes that are passed on at once, and that a socket keeps: so a sender notices how fast the link is.
CHUNK, KEPT = 64 << 10, 128 << 10


class SlowLink:
    """A process with a relay. Connections to ``address`` reach the server that listens at ``port``."""

    def __init__(self, port: int, rate: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(port), str(rate)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.address = f"127.0.0.1:{int(self._process.stdout.readline())}"

    def end(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        self._process.wait(10)


class Limit:
    """Says when the next bytes may pass."""

    def __init__(self, rate: int) -> None:
        self._rate, self._lock, self._until = rate, threading.Lock(), 0.0

    def wait(self, nbytes: int) -> None:
        with self._lock:
            self._until = max(self._until, time.monotonic()) + nbytes / self._rate
            until = self._until
        time.sleep(max(0.0, until - time.monotonic()))


def pass_on(source: socket.socket, target: socket.socket, limit: Limit) -> None:
    with suppress(OSError):
        while data := source.recv(CHUNK):
            limit.wait(len(data))
            target.sendall(data)
    for one in (source, target):
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)


def main(port: int, rate: int) -> None:
    """Relay until standard input ends."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, KEPT)
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    print(listener.getsockname()[1], flush=True)
    there, back = Limit(rate), Limit(rate)

    def accept() -> None:
        while True:
            client, _ = listener.accept()
            try:
                server = socket.create_connection(("127.0.0.1", port), 10)
            except OSError:
                client.close()
                continue
            server.settimeout(None)
            for one in (client, server):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for way in ((client, server, there), (server, client, back)):
                threading.Thread(target=pass_on, args=way, daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    sys.stdin.read()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
