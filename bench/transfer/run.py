"""Print the figures of the transfer plane, each beside its peer in this run: ``python bench/transfer/run.py``."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))

from report import machine, parser, report

MODULES = (
    "loopback",
    "paced",
    "veth",
    "tensor",
    "tensors",
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
    "tensorflow",
)
# Programs of this folder import TensorFlow: nothing here may have its name.
FILES = {"tensorflow": "beside_tensorflow"}


def load(name: str) -> Any:
    return importlib.import_module(FILES.get(name, name))


def main() -> None:
    options = parser(__doc__, MODULES)
    options.add_argument("--peers", action="store_true", help="only the peers")
    args = options.parse_args()
    if args.peers:
        os.environ["PEERS_ONLY"] = "1"
    congestion = Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip()
    report(args, f"{machine()}, TCP with {congestion}", load)


if __name__ == "__main__":
    main()
