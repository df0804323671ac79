"""The floors of ``clients.py`` and ``table.py``: the same requests over plain sockets.

``python bench/transfer/plain_clients.py``: one server process in a loop over ``selectors``, 1 … 32 client
processes that each send 1 MB and wait for one byte. No checksum, no framing, no second connection. With
``--pull``, 1 … 64 client processes that each send 64 bytes and wait for 1 KB.
"""

from __future__ import annotations

import argparse
import selectors
import socket
import subprocess
import sys
import time

SECONDS = 2.0


def client(port: int, start: float, request: int, answer: int) -> None:
    data = memoryview(bytes(request))
    room = bytearray(answer)
    with socket.create_connection(("127.0.0.1", port)) as sock:
        # As Treadle does on the loopback interface.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"cubic")
        time.sleep(max(0.0, start - time.monotonic()))
        done = 0
        while time.monotonic() < start + SECONDS:
            sock.sendall(data)
            sock.recv_into(room, answer, socket.MSG_WAITALL)
            done += 1
        print(done, flush=True)


def serve(listener: socket.socket, count: int, request: int, answer: int) -> None:
    selector = selectors.DefaultSelector()
    data = bytes(answer)
    for _ in range(count):
        sock, _ = listener.accept()
        sock.setblocking(False)
        selector.register(sock, selectors.EVENT_READ, [memoryview(bytearray(request)), 0])
    while selector.get_map():
        for key, _ in selector.select():
            sock, state = key.fileobj, key.data
            assert isinstance(sock, socket.socket)
            try:
                got = sock.recv_into(state[0][state[1] :])
            except BlockingIOError:
                continue
            if not got:
                selector.unregister(sock)
                sock.close()
                continue
            state[1] += got
            if state[1] == request:
                state[1] = 0
                sock.send(data)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pull", action="store_true")
    parser.add_argument("--client", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    request, answer = (64, 1024) if args.pull else (1_000_000, 1)
    if args.client:
        client(int(args.client[0]), float(args.client[1]), request, answer)
        return
    counts = (1, 2, 4, 8, 16, 32, 64) if args.pull else (1, 2, 4, 8, 16, 32)
    rates = []
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        port = listener.getsockname()[1]
        for count in counts:
            start = time.monotonic() + 1 + count * 0.1
            again = ["--pull"] if args.pull else []
            command = [sys.executable, __file__, *again, "--client", str(port), str(start)]
            clients = [
                subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(count)
            ]
            serve(listener, count, request, answer)
            done = [int(process.communicate()[0]) for process in clients]
            rates.append(sum(done) / SECONDS)
            rate = f"{rates[-1]:,.0f} requests/s, {rates[-1] * (request + answer) / 1e6:,.0f} MB/s"
            print(f"{count:3} clients: {rate}, most over least {max(done) / max(1, min(done)):.2f}")
    print(
        f"lowest over highest: {min(rates) / max(rates):.0%}, with the most clients: {rates[-1] / max(rates):.0%}"
    )


if __name__ == "__main__":
    main()
