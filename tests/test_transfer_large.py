"""Objects of more than 2 and 4 GiB. They need as much memory twice, and some time."""

from __future__ import annotations

import os

import numpy as np
import pytest
from transfer_support import Peer

pytestmark = [
    pytest.mark.skipif(
        os.environ.get("TREADLE_LARGE") != "1", reason="set TREADLE_LARGE=1 to run it"
    ),
    pytest.mark.timeout(600),
]

CHECK = """
obj = conn.recv(timeout=500)
array = np.frombuffer(obj, np.uint8) if isinstance(obj, bytes) else obj
conn.send((array.nbytes, array.dtype.str, [int(array[i]) for i in PLACES]))
"""


@pytest.mark.parametrize("size", [2_000_000_000, (1 << 31) + 5, 5_000_000_000])
@pytest.mark.parametrize("kind", ["array", "bytes"])
def test_one_object(size: int, kind: str) -> None:
    if kind == "bytes" and size > (1 << 31) + 5:
        pytest.skip("bytes of that size exist twice at the receiver")
    array = np.zeros(size, np.uint8)
    places = [0, 1, 1 << 20, (1 << 30) + 1, size // 2, (1 << 31) - 1, 1 << 32, size - 1]
    places = [place for place in places if place < size]
    array[places] = np.arange(1, len(places) + 1)
    with Peer(CHECK.replace("PLACES", repr(places))) as peer:
        peer.conn.send(array.tobytes() if kind == "bytes" else array, timeout=500)
        received = peer.conn.recv(timeout=100)
        assert received == (size, "|u1", list(range(1, len(places) + 1)))
        peer.finish()
