"""Arrays of 100 MB through TLS, against what ``openssl speed`` and plain TCP together allow."""

from __future__ import annotations

import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial

from figures import MISSING, Figure, interleave
from network import LOOPBACK
from streams import c_stream, our_stream, treadle_is_there

MB, BLOCKS = 100, 8
CIPHERS = ("aes-128-gcm", "aes-256-gcm")


def openssl(cipher: str) -> float:
    """MB/s of one core that encrypts records of 16 KiB, the largest of TLS."""
    done = subprocess.run(
        ["openssl", "speed", "-mr", "-seconds", "1", "-bytes", "16384", "-evp", cipher],
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    # +F:22:AES-128-GCM:8765432100.00
    found = re.search(r"^\+F:.*:([0-9.]+)$", done.stdout, re.MULTILINE)
    if found is None:
        raise RuntimeError(f"openssl speed said: {done.stdout}")
    return float(found[1]) / 1e6


def measure(quick: bool) -> Iterator[Figure]:
    what = "100 MB arrays through TLS, recv_into a warm array"
    with ExitStack() as stack:
        turns: dict[str, Callable[[], float]] = {name: partial(openssl, name) for name in CIPHERS}
        c = stack.enter_context(c_stream(LOOPBACK, "warm", MB, BLOCKS))
        turns["C"] = c.turn
        stream = None
        if treadle_is_there():
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            make = [sys.executable, "-m", "treadle", "certs", "--dir", folder, "node"]
            subprocess.run(make, check=True, timeout=60, stdout=subprocess.DEVNULL)
            options = ("--tls", f"{folder}/node")
            stream = stack.enter_context(
                our_stream(LOOPBACK, "warm", MB, BLOCKS, *options, server_options=options)
            )
            turns["plain"] = stack.enter_context(our_stream(LOOPBACK, "warm", MB, BLOCKS)).turn
            turns["TLS"] = stream.turn
        samples = interleave(turns, 3 if quick else 7)
    # A side encrypts and moves the bytes with the same core, so their times add up.
    speed = samples.median("aes-128-gcm")
    tcp = max(samples.median(name) for name in ("C", "plain") if name in samples)
    floor = 1 / (1 / tcp + 1 / speed)
    peer = (
        f"limit {floor:,.0f} MB/s: TCP {tcp:,.0f}, openssl AES-128-GCM {speed:,.0f} a core "
        f"(AES-256-GCM {samples.median('aes-256-gcm'):,.0f})"
    )
    if stream is None:
        yield Figure(what, MISSING, peer, bar="≥ 60%")
        return
    ratio = statistics.median(
        tls * (1 / max(plain, c) + 1 / cipher)
        for tls, plain, c, cipher in zip(
            *(samples.values[name] for name in ("TLS", "plain", "C", "aes-128-gcm")), strict=True
        )
    )
    yield Figure(
        what,
        f"{samples.median('TLS'):,.0f} MB/s",
        peer,
        f"{ratio:.0%}",
        "≥ 60%",
        ratio >= 0.6,
        f"{stream.limit}; of its time {samples.median('TLS') / tcp:.0%} would do for TCP alone "
        f"and {samples.median('TLS') / speed:.0%} for the cipher alone",
    )
