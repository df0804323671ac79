"""Pullers of one value: each a client of its own in a thread, ``puller.py ADDRESS DATASET COUNT``."""

from __future__ import annotations

import sys
import threading
from typing import Any

import treadle
from answers import answer, in_window, say


def main() -> None:
    address, dataset, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    clients = [treadle.Client(address, set_as_default=False) for _ in range(count)]
    futures = [client.get_dataset(dataset) for client in clients]

    def pull(start: float, seconds: float) -> dict[str, Any]:
        told: list[dict[str, Any]] = []

        def one(client: Any, future: Any) -> None:
            told.append(in_window(lambda: client.gather(future), start, seconds))

        threads = [
            threading.Thread(target=one, args=pair) for pair in zip(clients, futures, strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if len(told) < count:
            raise SystemExit("a puller failed")
        return {
            "per_second": sum(one["per_second"] for one in told),
            "p50": sum(one["p50"] for one in told) / count,
            "p99": max(one["p99"] for one in told),
        }

    say({"ready": True})
    answer(pull)
    for client in clients:
        client.close()


if __name__ == "__main__":
    main()
