"""Where the two sides of a figure run: one loopback, or two network namespaces joined by a veth pair."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from program import Program
from programs import compiled

CAP = 175_000_000  # bytes a second and socket: 1.4 Gbit/s, as in the published report


@dataclass(frozen=True)
class Network:
    """Both sides' addresses, what starts a program on either side, and the environment of both."""

    host: str = "127.0.0.1"
    client_host: str = "127.0.0.1"
    server_side: tuple[str, ...] = ()
    client_side: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)

    def paced(self, rate: int = CAP) -> Network:
        """The same with every socket capped at ``rate`` bytes a second."""
        shim = compiled("pace.c", "-O2", "-shared", "-fPIC")
        return replace(
            self, environment={**self.environment, "PACE": str(rate), "LD_PRELOAD": shim}
        )

    @property
    def loopback(self) -> bool:
        return not self.server_side

    def server(self, command: Sequence[str]) -> Program:
        return Program([*self.server_side, *command], self.environment)

    def client(self, command: Sequence[str], **environment: str) -> Program:
        return Program([*self.client_side, *command], {**self.environment, **environment})


LOOPBACK = Network()


def free_port(host: str = "127.0.0.1") -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, timeout=30)


def may_have_namespaces() -> bool:
    return os.geteuid() == 0 and Path("/proc/self/ns/net").exists()


@contextmanager
def namespaces() -> Iterator[Network]:
    """Two namespaces of this run's own; both are gone afterwards, whatever happens. Needs root."""
    near, far = (f"treadle-{os.getpid()}-{end}" for end in ("near", "far"))
    made: list[str] = []
    try:
        for name in (near, far):
            ip("netns", "add", name)
            made.append(name)
        ip("link", "add", "veth0", "netns", near, "type", "veth", "peer", "veth0", "netns", far)
        # A network that is reserved for benchmarks (RFC 2544).
        for name, address in ((near, "198.18.0.1/24"), (far, "198.18.0.2/24")):
            ip("-n", name, "address", "add", address, "dev", "veth0")
            for device in ("lo", "veth0"):
                ip("-n", name, "link", "set", device, "up")
        enter = ("ip", "netns", "exec")
        yield Network("198.18.0.2", "198.18.0.1", (*enter, far), (*enter, near))
    finally:
        for name in made:
            ip("netns", "delete", name)


def shape(tc: Sequence[str], rate: str, *options: str, device: str = "veth0") -> None:
    """Limit what leaves a device with the token bucket filter of ``tc``."""
    command = [*tc, "qdisc", "replace", "dev", device, "root", "tbf", "rate", rate, *options]
    subprocess.run(command, check=True, timeout=30)


@contextmanager
def routed(rate: str, *options: str) -> Iterator[Network]:
    """Two namespaces with a router between them, which sends to the far side at ``rate`` and drops what its queue has
    no room for: at a queue of its own a sender would wait.
    """
    near, router, far = (f"treadle-{os.getpid()}-{end}" for end in ("near", "router", "far"))
    made: list[str] = []
    try:
        for name in (near, router, far):
            ip("netns", "add", name)
            made.append(name)
            ip("-n", name, "link", "set", "lo", "up")
        for name, device, number in ((near, "veth1", 1), (far, "veth0", 2)):
            ends = ("netns", name, "type", "veth", "peer", device, "netns", router)
            ip("link", "add", "veth0", *ends)
            for there, its, end in ((name, "veth0", number), (router, device, 100)):
                ip("-n", there, "address", "add", f"198.18.{number}.{end}/24", "dev", its)
                ip("-n", there, "link", "set", its, "up")
            ip("-n", name, "route", "add", "default", "via", f"198.18.{number}.100")
        inside = ["ip", "netns", "exec", router]
        forward = [*inside, "sysctl", "-qw", "net.ipv4.ip_forward=1"]
        subprocess.run(forward, check=True, timeout=30)
        shape([*inside, "tc"], rate, *options)
        enter = ("ip", "netns", "exec")
        yield Network("198.18.2.2", "198.18.1.1", (*enter, far), (*enter, near))
    finally:
        for name in made:
            ip("netns", "delete", name)
