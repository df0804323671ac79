"""One of four servers with a tenth of the others' network: network namespaces and a token bucket filter.

The disk is not slowed down: rows stay in memory here.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent))
sys.path.append(str(Path(__file__).parent.parent / "transfer"))

from figures import MISSING, Figure, time_of

BYTES = 400_000_000
PIECES = 100
SERVERS = 4
MEMORY = 4 << 30


def run(prefix: tuple[str, ...], far: tuple[str, ...], here: str, there: str, nbytes: int) -> float:
    """Seconds of a run whose last server is at the far side."""
    command = [*prefix, sys.executable, __file__, here, there, str(nbytes), *far]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        command, check=True, timeout=300, stdout=subprocess.PIPE, text=True, env=environment
    )
    return float(json.loads(done.stdout))


def measure(quick: bool) -> Iterator[Figure]:
    """Yield the figure."""
    from network import may_have_namespaces, namespaces, shape

    name, bar = "one of four servers has a tenth of the network", "≤ 1.5 ×"
    if not may_have_namespaces():
        yield Figure(name, MISSING, "needs root, for network namespaces", bar=bar)
        return
    rounds = 1 if quick else 3
    nbytes = BYTES // 10 if quick else BYTES
    plain, slow, rates = [], [], []
    with namespaces() as network:
        sides = (network.client_side, network.server_side)
        for _ in range(rounds):
            took = run(*sides, "198.18.0.1", network.host, nbytes)
            plain.append(took)
            # Two copies are written and one is read: a quarter of that passes each server.
            rate = nbytes * 3 / SERVERS / took / 10
            rates.append(rate)
            for side in sides:
                shape(
                    [*side, "tc"], f"{rate * 8 / 1000:.0f}kbit", "burst", "256kb", "latency", "50ms"
                )
            slow.append(run(*sides, "198.18.0.1", network.host, nbytes))
            for side in sides:
                command = [*side, "tc", "qdisc", "delete", "dev", "veth0", "root"]
                subprocess.run(command, check=True, timeout=30)
    ratio = statistics.median(a / b for a, b in zip(slow, plain, strict=True))
    yield Figure(
        f"{name}: {nbytes / 1e6:.0f} MB, {PIECES} × {PIECES}, two copies",
        time_of(statistics.median(slow)),
        f"all alike: {time_of(statistics.median(plain))}",
        f"{ratio:.1f} ×",
        bar,
        ratio <= 1.5,
        f"{statistics.median(rates) / 1e6:.1f} MB/s each way at that server; its disk is as fast as the others'",
    )


def main(here: str, there: str, nbytes: int, far: list[str]) -> None:
    """Start the service, run once to warm up, and print how long another run takes."""
    from jobs import shuffled
    from processes import begun
    from treadle.shuffle import Service

    # A server that is not reached at once is no reason to give up.
    patience = ("--timeout", "60")
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        start = partial(begun, stack)
        master = start("shuffle-master", f"{here}:0", "--shuffle-journal", "none", *patience)
        for number in range(SERVERS):
            is_far = number == SERVERS - 1
            name = f"server-{number}"
            where = there if is_far else here
            start(
                *("shuffle-server", master, "--name", name, "--domain", name, "--http", "none"),
                *("--listen", f"{where}:0", "--memory-limit", str(MEMORY)),
                *("--local-directory", folder),
                prefix=far if is_far else None,
            )
        service = stack.enter_context(Service(master, insecure=True, timeout=280))
        # So little that nobody notices yet which server is slow.
        shuffled(service, Path(folder), 8, 8, nbytes // 1000)
        took = shuffled(service, Path(folder), PIECES, PIECES, nbytes)
        print(json.dumps(took.whole))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4:])
