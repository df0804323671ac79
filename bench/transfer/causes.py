"""What `treadle probe` says of links that were made slow in a known way: how often it names the cause.

Two agents in two network namespaces that a veth pair joins; the way from the near to the far one is judged, by one
socket. Needs root, `ip` and `tc`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from figures import Figure
from network import CAP, Network, free_port, may_have_namespaces, namespaces, routed, shape

# Bits a second: less than the processors of two cores carry.
RATE = "2gbit"


def limited(network: Network, *options: str) -> None:
    """Limit what leaves the near side to `RATE`."""
    shape([*network.client_side, "tc"], RATE, *options)


def small_window(network: Network) -> None:
    command = [*network.server_side, "sysctl", "-qw", "net.ipv4.tcp_rmem=4096 16384 16384"]
    subprocess.run(command, check=True, timeout=30)


Change = Callable[[Network], object]
# The cause, how the network is made, and what is changed of it.
LINKS: dict[str, tuple[str, Callable[[], Any], Change]] = {
    "a router with a queue of 100 kB before 2 Gbit/s": (
        "loss",
        lambda: routed(RATE, "burst", "64kb", "limit", "100kb"),
        bool,
    ),
    "a queue of 20 MB before 2 Gbit/s": (
        "pacing or policing",
        namespaces,
        lambda network: limited(network, "burst", "256kb", "limit", "20mb"),
    ),
    f"SO_MAX_PACING_RATE of {CAP / 1e6:g} MB/s": (
        "pacing or policing",
        namespaces,
        bool,
    ),
    "a receive buffer of 16 kB": ("window", namespaces, small_window),
    "nothing": ("processor", namespaces, bool),
}


def probed(network: Network) -> tuple[str, str]:
    """The cause and the evidence of the way from the near to the far side."""
    treadle = [sys.executable, "-m", "treadle", "probe"]
    near = f"{network.host.rpartition('.')[0].replace('198.18.2', '198.18.1')}.1:{free_port()}"
    far = f"{network.host}:{free_port()}"
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "probe.json"
        with (
            network.client([*treadle, "--insecure", "--until-eof", "--agent", near]) as one,
            network.server([*treadle, "--insecure", "--until-eof", "--agent", far]) as other,
        ):
            one.line()
            other.line()
            command = [*network.client_side, *treadle, "--insecure", "--seconds", "1", near, far]
            subprocess.run(
                [*command, "--json", str(path)], check=True, timeout=120, stdout=subprocess.DEVNULL
            )
        pairs = json.loads(path.read_text())["pairs"]
    (pair,) = (pair for pair in pairs if pair["to"] == far)
    return pair["cause"], pair["evidence"]


def measure(quick: bool) -> Iterator[Figure]:
    if not may_have_namespaces():
        yield Figure("causes", "not run", limit="network namespaces need root")
        return
    runs = 3 if quick else 20
    for link, (expected, made, change) in LINKS.items():
        with made() as network:
            change(network)
            if link.startswith("SO_MAX"):
                network = network.paced()
            found = [probed(network) for _ in range(runs)]
        right = sum(cause == expected for cause, _ in found)
        others = Counter(cause for cause, _ in found if cause != expected)
        said = "".join(f", {cause} {count}" for cause, count in others.items())
        yield Figure(
            f"`treadle probe` over {link}: says {expected}",
            f"{right} of {runs}{said}",
            bar="≥ 19 of 20",
            passed=right * 20 >= 19 * runs,
            limit=found[-1][1],
        )
