"""The floor of ``clients.py``: the same requests over plain sockets, ``python bench/transfer/plain_clients.py``.

One server process in a loop over ``selectors``, 1 … 32 client processes that each send 1 MB and wait
for one byte. No checksum, no framing, no second connection.
"""

from __future__ import annotations

import selectors
import socket
import subprocess
import sys
import time

SIZE = 1_000_000
COUNTS = (1, 2, 4, 8, 16, 32)
SECONDS = 2.0


def client(port: int, start: float) -> None:
    data = memoryview(bytes(SIZE))
    with socket.create_connection(("127.0.0.1", port)) as sock:
        # As Treadle does on the loopback interface.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"cubic")
        time.sleep(max(0.0, start - time.monotonic()))
        done = 0
        while time.monotonic() < start + SECONDS:
            sock.sendall(data)
            sock.recv(1)
            done += 1
        print(done, flush=True)


def serve(listener: socket.socket, count: int) -> None:
    selector = selectors.DefaultSelector()
    for _ in range(count):
        sock, _ = listener.accept()
        sock.setblocking(False)
        selector.register(sock, selectors.EVENT_READ, [memoryview(bytearray(SIZE)), 0])
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
            if state[1] == SIZE:
                state[1] = 0
                sock.send(b"x")


def main() -> None:
    if len(sys.argv) > 1:
        client(int(sys.argv[1]), float(sys.argv[2]))
        return
    totals = []
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        port = listener.getsockname()[1]
        for count in COUNTS:
            start = time.monotonic() + 1 + count * 0.1
            clients = [
                subprocess.Popen(
                    [sys.executable, __file__, str(port), str(start)],
                    stdout=subprocess.PIPE,
                    text=True,
                )
                for _ in range(count)
            ]
            serve(listener, count)
            done = [int(process.communicate()[0]) for process in clients]
            totals.append(sum(done) * SIZE / SECONDS / 1e6)
            print(
                f"{count:3} clients: {totals[-1]:,.0f} MB/s, "
                f"most over least {max(done) / max(1, min(done)):.2f}"
            )
    print(f"lowest over highest: {min(totals) / max(totals):.0%}")


if __name__ == "__main__":
    main()
