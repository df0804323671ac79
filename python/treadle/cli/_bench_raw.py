"""``treadle bench transfer --mode raw``: requests and answers, driven natively."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

from treadle import _core
from treadle.cli._basics import Output, listening

__all__ = ["ask", "serve"]


def serve(address: str, options: dict[str, Any], settings: dict[str, Any]) -> None:
    """Answer requests until Ctrl-C."""
    from treadle.transfer._options import complete
    from treadle.transfer._options import settings as native

    with suppress(KeyboardInterrupt):
        _core.load_serve(
            complete(address, settings["tls"]),
            native(settings),  # type: ignore[arg-type]
            options["server_threads"],
            options["response_size"],
            listening,
        )


def ask(
    address: str, options: dict[str, Any], settings: dict[str, Any], output: Output
) -> dict[str, Any]:
    """Ask the server, and print what came of it."""
    from treadle.transfer._options import complete
    from treadle.transfer._options import settings as native

    start = time.monotonic()
    planned = options["warmup"] + options["seconds"]
    with output.progress("asking") as progress:
        report = _core.load_drive(
            complete(address, settings["tls"]),
            native(settings),  # type: ignore[arg-type]
            channels=options["channels"],
            concurrency=options["concurrency"],
            message_size=options["message_size"],
            warmup=options["warmup"],
            seconds=options["seconds"],
            look=lambda: progress(min(time.monotonic() - start, planned), planned),
        )
    result = _summary(report, options) | {"address": address}
    _show(result, output)
    return result


def _summary(report: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    seconds, requests, channels = report["seconds"], report["requests"], report["channels"]
    mean = requests / len(channels)
    return {
        **{name: options[name] for name in ("channels", "concurrency", "message_size")},
        "tls": options["tls"] is not None,
        "seconds": seconds,
        "requests": requests,
        "requests_per_second": requests / seconds,
        "request_mb_per_second": requests * options["message_size"] / seconds / 1e6,
        "response_mb_per_second": report["response_bytes"] / seconds / 1e6,
        "latency_seconds": report["latency"],
        "requests_of_channels": channels,
        # Of an equal part each.
        "min_share": min(channels) / mean if requests else 0.0,
        "max_share": max(channels) / mean if requests else 0.0,
    }


def _show(result: dict[str, Any], output: Output) -> None:
    channels = result["channels"]
    output.say(
        f"{channels} channel{'s'[: channels != 1]} to {result['address']}, "
        f"{result['concurrency']:,} requests of {result['message_size']:,} B in flight on each, "
        f"{result['seconds']:.1f} s"
    )
    latency = result["latency_seconds"]
    rows = [
        ("requests/s", f"{result['requests_per_second']:,.0f}"),
        ("MB/s of requests", f"{result['request_mb_per_second']:,.1f}"),
        ("MB/s of answers", f"{result['response_mb_per_second']:,.1f}"),
        *((name, _time(latency[name])) for name in ("p50", "p90", "p99", "max")),
        ("a channel's share", f"{result['min_share']:.2f}–{result['max_share']:.2f} of the mean"),
    ]
    output.table(("", ""), rows)


def _time(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{seconds * 1e6:,.1f} µs"
    return f"{seconds * 1e3:,.2f} ms"
