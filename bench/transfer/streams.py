"""Streams of large blocks between two processes: Treadle's and its peers', each asked for a rate in MB/s."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from network import Network, free_port
from program import Program
from programs import compiled, python

PROC = Path("/proc/sys/net/ipv4")


def treadle_is_there() -> bool:
    return (
        not os.environ.get("PEERS_ONLY")
        and importlib.util.find_spec("treadle") is not None
        and importlib.util.find_spec("treadle.transfer") is not None
    )


def faster_congestion() -> str | None:
    """CUBIC where it is to be had and another congestion control is the default: BBR, the default of
    some machines, paces by its own estimate and halves what one loopback socket carries."""
    default = (PROC / "tcp_congestion_control").read_text().strip()
    available = (PROC / "tcp_available_congestion_control").read_text().split()
    return "cubic" if default != "cubic" and "cubic" in available else None


class Stream:
    """A server and a client that were started; ``turn`` sends blocks and gives the rate in MB/s."""

    def __init__(self, server: Program, client: Program, blocks: int) -> None:
        self.server, self.client, self.blocks = server, client, blocks
        self.busy, self.elapsed = [0.0, 0.0], 0.0
        self.told: list[dict[str, Any]] = []

    def ask(self) -> dict[str, Any]:
        return self.client.ask(blocks=self.blocks)

    def turn(self) -> float:
        before = self.client.cpu(), self.server.cpu()
        told = self.ask()
        after = self.client.cpu(), self.server.cpu()
        self.told.append(told)
        self.elapsed += told["seconds"]
        for side in (0, 1):
            self.busy[side] += after[side] - before[side]
        return float(told["bytes"] / told["seconds"] / 1e6)

    @property
    def limit(self) -> str:
        """How much of a core each side used: a side at 100 % is the limit."""
        sender, receiver = (busy / self.elapsed for busy in self.busy)
        return f"sender {sender:.0%} of a core, receiver {receiver:.0%}"


class CStream(Stream):
    def ask(self) -> dict[str, Any]:
        self.client.tell(str(self.blocks))
        return self.client.told()


@contextmanager
def c_stream(
    network: Network, kind: str, mb: float, blocks: int, congestion: str | None = None
) -> Iterator[CStream]:
    """The C sender and receiver, into memory of a kind."""
    program = compiled("receiver.c", "-O3", "-msse4.2")
    chosen = {"CONGESTION": congestion} if congestion else {}
    with network.server([program, "serve", network.host, kind]) as server:
        address = (network.host, str(server.told()["port"]), str(mb))
        with network.client([program, "send", *address], **chosen) as client:
            yield CStream(server, client, blocks)


@contextmanager
def grpc_stream(
    network: Network, kind: str, large_frames: bool, mb: float, blocks: int
) -> Iterator[Stream]:
    """grpcio's unary calls with bytes; its server with threads or with asyncio."""
    with network.server(python("grpc_peer.py", "serve", network.host, kind)) as server:
        arguments = ["blocks", server.told()["address"], "--mb", str(mb)]
        arguments += ["--large-frames"] if large_frames else []
        with network.client(python("grpc_peer.py", *arguments)) as client:
            yield Stream(server, client, blocks)


class GrpcCppStream(Stream):
    """So many messages ``under_way`` on each channel, of ``size`` bytes."""

    def __init__(
        self, server: Program, client: Program, blocks: int, under_way: int, size: int
    ) -> None:
        super().__init__(server, client, blocks)
        self.under_way, self.size = under_way, size

    def ask(self) -> dict[str, Any]:
        self.client.tell(f"{self.under_way} {self.size} {self.blocks} 0")
        return self.client.told()


@contextmanager
def grpc_cpp_stream(
    network: Network,
    program: str,
    mb: float,
    blocks: int,
    *,
    under_way: int = 1,
    channels: int = 1,
    large_frames: bool = False,
) -> Iterator[Stream]:
    """gRPC's asynchronous calls in C++ with ByteBuffers, in ``program`` (`programs.grpc_cpp`)."""
    frames = f"--large_frames={int(large_frames)}"
    served = [program, "--job_type=server", f"--host={network.host}", "--server_threads=2", frames]
    with network.server(served) as server:
        asked = [program, "--job_type=turns", f"--target={server.told()['address']}", frames]
        with network.client([*asked, f"--channels={channels}"]) as client:
            size = int(mb * 1e6)
            yield GrpcCppStream(server, client, blocks, max(1, under_way // channels), size)


@contextmanager
def our_stream(
    network: Network,
    into: str,
    mb: float,
    blocks: int,
    *options: str,
    server_options: tuple[str, ...] = (),
) -> Iterator[Stream]:
    """Treadle's: ``into`` a ``warm`` array, ``new`` arrays, or a variable (``tensor``)."""
    where = () if network.loopback else ("--insecure",)
    command = python("ours.py", "serve", network.host, *where, *server_options)
    with network.server(command) as server:
        address = server.told()["address"]
        command = python("ours.py", "blocks", address, into, "--mb", str(mb), *where, *options)
        with network.client(command) as client:
            yield Stream(server, client, blocks)


class Iperf:
    """``iperf3``'s server, and its client for a turn."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.report: dict[str, Any] = {}
        self.port = free_port() if network.loopback else 5201
        command = ["iperf3", "-s", "--forceflush", "-B", network.host, "-p", str(self.port)]
        self.server = network.server(command)
        while "listening" not in self.server.line(10):
            pass

    def turn(self, *options: str, seconds: int = 1, omit: int = 0) -> float:
        """MB/s that arrived in so many seconds, after ``omit`` seconds that do not count."""
        command = [*self.network.client_side, "iperf3", "-J", "-c", self.network.host]
        command += ["-p", str(self.port), "-t", str(seconds), "-O", str(omit), *options]
        done = subprocess.run(
            command,
            env={**os.environ, **self.network.environment},
            capture_output=True,
            text=True,
            timeout=seconds + omit + 20,
        )
        report = json.loads(done.stdout)
        if "error" in report:
            raise RuntimeError(f"iperf3: {report['error']}")
        self.report = report
        return float(report["end"]["sum_received"]["bits_per_second"] / 8e6)

    def __enter__(self) -> Iperf:
        return self

    def __exit__(self, *_: object) -> None:
        self.server.close()
