"""Bytes of an object that was given up do not reach an array that was used again."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import numpy as np
import pytest

from treadle import transfer
from waiting import SOON

SECRET = b"0123456789abcdef0123456789abcdef"
BYTES = 32 << 20


class Delaying:
    """A proxy that holds back the first data connection in the middle of an extent."""

    def __init__(self) -> None:
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.port = self.listening.getsockname()[1]
        self.target = 0
        self.holds = threading.Event()
        self.released = threading.Event()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        for number in range(1000):
            try:
                from_sender, _ = self.listening.accept()
            except OSError:
                return
            # So that nothing of the next object waits behind what is held back.
            from_sender.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
            to_receiver = socket.create_connection(("127.0.0.1", self.target))
            # The first one is the control connection, the others are data connections.
            pairs = (from_sender, to_receiver, number == 1), (to_receiver, from_sender, False)
            for arguments in pairs:
                threading.Thread(target=self._pump, args=arguments, daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, is_held: bool) -> None:
        passed = 0
        try:
            while data := source.recv(1 << 16):
                if is_held and passed > 100_000 and not self.released.is_set():
                    self.holds.set()
                    self.released.wait(SOON)
                target.sendall(data)
                passed += len(data)
        except OSError:
            pass
        with suppress(OSError):
            target.shutdown(socket.SHUT_WR)


@pytest.fixture
def proxy() -> Iterator[Delaying]:
    proxy = Delaying()
    yield proxy
    proxy.released.set()
    proxy.listening.close()


def test_an_array_is_not_written_after_it_was_received(proxy: Delaying) -> None:
    contact = f"127.0.0.1:{proxy.port}"
    options = {"secret": SECRET, "shared_memory": False}
    listener = transfer.listen("127.0.0.1:0", contact=contact, prefetch=0, **options)
    proxy.target = int(listener.address.rpartition(":")[2])
    with (
        listener,
        transfer.connect(contact, stripes=2, **options) as sender,
        listener.accept(timeout=SOON) as receiver,
    ):
        array = np.zeros(BYTES, np.uint8)
        received = threading.Thread(target=receiver.recv_into, args=[array])
        received.start()
        given_up = sender.start_send(np.full(BYTES, 1, np.uint8))
        assert proxy.holds.wait(SOON)
        given_up.cancel()
        sender.start_send(np.full(BYTES, 2, np.uint8))
        received.join(SOON)
        assert not received.is_alive()
        assert (array == 2).all()
        # The rest of the extent comes only now, and another object after it.
        proxy.released.set()
        sender.start_send(np.full(BYTES, 3, np.uint8))
        assert (receiver.recv(timeout=SOON) == 3).all()
        time.sleep(0.2)
        assert (array == 2).all()
