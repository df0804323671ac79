"""Print the figures of the transfer plane, each beside its peer in this run: ``python bench/transfer/run.py``."""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

from report import machine, parser, report

MODULES = (
    "loopback",
    "paced",
    "veth",
    "tensor",
    "messages",
    "clients",
    "receivers",
    "same_host",
    "tls",
    "control",
    "causes",
    "cpp",
    "nic",
    "table",
)


def main() -> None:
    options = parser(__doc__, MODULES)
    options.add_argument("--peers", action="store_true", help="only the peers")
    args = options.parse_args()
    if args.peers:
        os.environ["PEERS_ONLY"] = "1"
    congestion = Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip()
    report(args, f"{machine()}, TCP with {congestion}")


if __name__ == "__main__":
    main()
