"""The published report's raw program, with its flags, on Treadle: messages that the server drops. ::

    python raw.py --job_type=server --host=HOST1 --server_threads=1
    python raw.py --job_type=client --target_ip=HOST1 --message_size=104857600 --total_message=1000

Both sides run without the interpreter, as in ``treadle bench transfer --mode raw``. The client measures for so long as
``--total_message`` messages take at the rate of the first second, and prints how many it sent in that time.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from treadle import _core
from treadle.cli._basics import listening
from treadle.transfer._options import complete, settings

PORT = 12223
FIRST = 1.0  # seconds


def options_of(address: str) -> Any:
    return settings({"insecure": not address.startswith(("127.", "localhost"))})


def ask(args: argparse.Namespace, address: str) -> None:
    def drive(warmup: float, seconds: float) -> dict[str, Any]:
        report: dict[str, Any] = _core.load_drive(
            complete(address, None),
            options_of(address),
            channels=args.channels,
            concurrency=args.concurrency,
            message_size=args.message_size,
            warmup=warmup,
            seconds=seconds,
            look=lambda: None,
        )
        return report

    first = drive(0.2, FIRST)
    rate = max(1, first["requests"]) / first["seconds"]
    told = drive(0.5, max(0.5, args.total_message / rate))
    told["mb_per_second"] = told["requests"] * args.message_size / told["seconds"] / 1e6
    print(json.dumps(told), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--job_type", choices=("server", "client"), required=True)
    parser.add_argument("--host", default="127.0.0.1", help="where the server listens")
    parser.add_argument("--target_ip", default="127.0.0.1", help="where the client finds it")
    parser.add_argument("--port", type=int, default=PORT)
    parser.add_argument("--server_threads", type=int, default=1)
    parser.add_argument("--channels", type=int, default=1)
    parser.add_argument("--concurrency", type=int, default=1)
    parser.add_argument("--message_size", type=int, default=10)
    parser.add_argument("--response_size", type=int, default=0)
    parser.add_argument("--total_message", type=int, default=1000)
    args = parser.parse_args()
    if args.job_type == "client":
        ask(args, f"{args.target_ip}:{args.port}")
        return
    address = f"{args.host}:{args.port}"
    _core.load_serve(
        complete(address, None),
        options_of(address),
        args.server_threads,
        args.response_size,
        listening,
    )


if __name__ == "__main__":
    main()
