"""Somebody who has a port that was another's, and passes on what comes there: a process of its own."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from typing import Any

LIMIT = 30.0


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


class Relay:
    """A process that passes connections to a port of this machine on to another one.

    Parameters
    ----------
    target
        The address of whoever the connections reach.
    port
        The port to take; 0 for a free one.
    flip
        Bytes of which one bit is flipped, wherever they pass.
    """

    def __init__(self, target: str, port: int = 0, flip: bytes = b"") -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(port), str(port_of(target)), flip.hex()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    def end(self) -> list[dict[str, Any]]:
        """End it; return how many bytes each connection passed on, and what a listener said."""
        out, _ = self._process.communicate(timeout=2 * LIMIT)
        return [json.loads(line) for line in out.splitlines()]

    def __enter__(self) -> Relay:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate(timeout=LIMIT)


def only_refused(connections: list[dict[str, Any]], reason: str = "was dialled") -> bool:
    """Whether there were connections, and nothing but a refusal came of any of them."""
    assert connections
    # A preamble and a `Hello` of this side; those, and the reason, of the other.
    return all(
        found["sent"] < 1000 and found["received"] < 1000 and reason in found["said"]
        for found in connections
    )


def _pump(source: socket.socket, target: socket.socket, flip: bytes, passed: bytearray) -> None:
    flipped = bytes([flip[0] ^ 1]) + flip[1:] if flip else b""
    with suppress(OSError):
        while data := source.recv(65536):
            if flip:
                data = data.replace(flip, flipped)
            else:
                passed += data
            target.sendall(data)
    for end in source, target:
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


def _pass_on(client: socket.socket, target: int, flip: bytes) -> None:
    listener = socket.create_connection(("127.0.0.1", target))
    sent, said = bytearray(), bytearray()
    thread = threading.Thread(target=_pump, args=(client, listener, flip, sent), daemon=True)
    thread.start()
    _pump(listener, client, flip, said)
    thread.join()
    text = said.decode("latin-1")
    line = json.dumps({"sent": len(sent), "received": len(said), "said": text})
    sys.stdout.write(f"{line}\n")


def _main() -> None:
    port, target, flip = int(sys.argv[1]), int(sys.argv[2]), bytes.fromhex(sys.argv[3])
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind(("127.0.0.1", port))
    server.listen(64)
    print(server.getsockname()[1], flush=True)
    threads: list[threading.Thread] = []

    def serve() -> None:
        with suppress(OSError):
            while True:
                client, _ = server.accept()
                thread = threading.Thread(target=_pass_on, args=(client, target, flip), daemon=True)
                threads.append(thread)
                thread.start()

    threading.Thread(target=serve, daemon=True).start()
    sys.stdin.read()
    server.close()
    # What is under way is seen to its end.
    for thread in list(threads):
        thread.join(LIMIT)


if __name__ == "__main__":
    _main()
