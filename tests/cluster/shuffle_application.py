"""A program with a shuffle: `python shuffle_application.py ADDRESS SEED [CERTIFICATES]`.

It says how far it is, and goes on when it is told.
"""

from __future__ import annotations

import sys

from service_support import ROWS, Table
from treadle.shuffle import Service
from waiting import SOON

MAPS, PARTITIONS, COUNT = 4, 8, 5_000


def main(address: str, seed: int, certificates: str | None = None) -> None:
    table = Table(MAPS, PARTITIONS, COUNT, seed)
    with Service(address, certificates=certificates, timeout=SOON) as service:
        shuffle = service.shuffle(MAPS, PARTITIONS, ROWS)
        receipts = [table.write(shuffle, number) for number in range(MAPS // 2)]
        print("half", flush=True)
        sys.stdin.readline()
        receipts += [table.write(shuffle, number) for number in range(MAPS // 2, MAPS)]
        shuffle.commit(receipts)
        table.compare(shuffle)
        assert shuffle.lost() == []
        print("read", flush=True)
        sys.stdin.readline()
        shuffle.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
