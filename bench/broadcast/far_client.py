"""A client on another machine: ``python far_client.py ADDRESS COUNT``.

Says ``ready`` when it knows so many engines; for each line on standard input, a number of bytes, it
pushes so much to all of them, and says how many seconds that took.
"""

from __future__ import annotations

import socket
import sys
import time

import numpy as np

import treadle

if __name__ == "__main__":
    # Where it shares no memory with the engines, it must not look as if it did.
    socket.sethostname("far")
    with treadle.Client(sys.argv[1], insecure=True) as client:
        client.wait_for_workers(int(sys.argv[2]))
        view = client[:]
        assert len(view) == int(sys.argv[2])
        view.push({"chunk": 0}, block=True)
        print("ready", flush=True)
        for line in sys.stdin:
            chunk = np.random.default_rng(0).random(int(line) // 8)
            start = time.perf_counter()
            view.push({"chunk": chunk}, block=True)
            print(time.perf_counter() - start, flush=True)
