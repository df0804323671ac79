"""What runs on the first of three hosts: it uses Treadle while one of the others is cut off.

Its lines on standard output, and those that it reads, tell and ask how far it is.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import distributed
import numpy as np

import treadle
from waiting import until


def slow(number: int) -> Any:
    time.sleep(0.05)
    return np.full(50_000, number)


def total(*parts: Any) -> int:
    return int(sum(int(part.sum()) for part in parts))


def main(scheduler: str, ca: str, certificate: str, key: str) -> None:
    security = distributed.Security(
        tls_ca_file=ca, tls_client_cert=certificate, tls_client_key=key, require_encryption=True
    )
    options: Any = {"security": security, "set_as_default": False, "timeout": 30}
    with distributed.Client(scheduler, **options) as there:
        there.wait_for_workers(2, timeout=30)
        with treadle.attach(there) as here:
            links = [here.scheduler.address, *here.ncores()]
            assert len(links) == 3, links
            assert all(link.startswith("treadle+tls://10.73.0.") for link in links), links
            parts = here.map(slow, range(120), pure=False)
            sums = [here.submit(total, *parts[i::8], pure=False) for i in range(8)]
            until(lambda: any(future.done() for future in parts), "the work has begun")
            print("works", flush=True)
            input()  # one of the workers is cut off
            expected = [sum(50_000 * number for number in range(i, 120, 8)) for i in range(8)]
            assert here.gather(sums) == expected
            assert [int(part[0]) for part in here.gather(parts)] == list(range(120))
            until(lambda: len(here.ncores()) == 1, "it is lost")
            print("is right", flush=True)
            input()  # it is back
            until(lambda: len(here.ncores()) == 2, "it has joined again", 60)
            assert here.gather(here.map(abs, range(-20, 0))) == list(range(20, 0, -1))
            print("is whole", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
