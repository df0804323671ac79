"""What processes of a test have of their own, by namespaces of the kernel: files, another host's network."""

from __future__ import annotations

import ctypes
import os
import subprocess
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

_CLONE_NEWNS, _CLONE_NEWNET = 0x20000, 0x40000000
_MS_BIND, _MS_REC, _MS_PRIVATE = 0x1000, 0x4000, 0x40000
# Processes that read the same here take each other for processes of one host.
_BOOT_ID = "/proc/sys/kernel/random/boot_id"


class OwnFiles:
    """Has a process see files in other places: called in it before it runs anything.

    Parameters
    ----------
    binds
        What it sees, by where.
    """

    def __init__(self, binds: Mapping[str, Path]) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._binds = {os.fsencode(at): os.fsencode(path) for at, path in binds.items()}

    def __call__(self) -> None:
        libc = self._libc
        failed = libc.unshare(_CLONE_NEWNS)
        failed = failed or libc.mount(None, b"/", None, _MS_REC | _MS_PRIVATE, None)
        for at, path in self._binds.items():
            failed = failed or libc.mount(path, at, None, _MS_BIND, None)
        if failed:
            raise OSError(ctypes.get_errno(), "this user may not have mounts of its own")


def other_host(directory: Path) -> OwnFiles:
    """Return what has a process take itself for one of another host."""
    path = directory / uuid.uuid4().hex
    path.write_text(f"{uuid.uuid4()}\n")
    return OwnFiles({_BOOT_ID: path})


class Hosts:
    """Network namespaces that reach each other through a bridge in one more namespace.

    Parameters
    ----------
    names
        Of the namespaces; the first one is the bridge's.
    directory
        For files of the hosts.
    """

    def __init__(self, names: list[str], directory: Path) -> None:
        self._bridge, *self._hosts = names
        self._files = [other_host(directory) for _ in self._hosts]
        self.addresses = [f"10.73.0.{number + 1}" for number in range(len(self._hosts))]

    def enter(self, number: int) -> Callable[[], None]:
        """Return what has a child process be on a host, before it runs anything."""
        path = Path("/var/run/netns", self._hosts[number])
        libc, files = ctypes.CDLL(None, use_errno=True), self._files[number]

        def enter() -> None:
            descriptor = os.open(path, os.O_RDONLY)
            if libc.setns(descriptor, _CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), f"{path} cannot be entered")
            os.close(descriptor)
            files()

        return enter

    def cut(self, number: int) -> None:
        """Take a host off the network: what is sent to it vanishes, and nobody is told."""
        _ip("-n", self._bridge, "link", "set", f"port{number}", "down")

    def mend(self, number: int) -> None:
        """Undo :meth:`cut`."""
        _ip("-n", self._bridge, "link", "set", f"port{number}", "up")

    def processes(self, number: int) -> list[int]:
        """Return the ids of all processes on a host."""
        return [int(word) for word in _ip("netns", "pids", self._hosts[number]).split()]

    def _connect(self) -> None:
        _ip("-n", self._bridge, "link", "add", "bridge", "type", "bridge")
        _ip("-n", self._bridge, "link", "set", "bridge", "up")
        for number, (host, address) in enumerate(zip(self._hosts, self.addresses, strict=True)):
            port = f"port{number}"
            pair = ["type", "veth", "peer", "eth0", "netns", host]
            _ip("link", "add", port, "netns", self._bridge, *pair)
            _ip("-n", self._bridge, "link", "set", port, "master", "bridge", "up")
            _ip("-n", host, "address", "add", f"{address}/24", "dev", "eth0")
            for link in ("lo", "eth0"):
                _ip("-n", host, "link", "set", link, "up")


@contextmanager
def hosts(count: int, directory: Path) -> Iterator[Hosts | None]:
    """Yield so many hosts; None where this user may not make any."""
    stem = f"treadle-{uuid.uuid4().hex[:6]}"
    names = [f"{stem}-{number}" for number in range(count + 1)]
    with ExitStack() as stack:
        made = Hosts(names, directory)
        try:
            for name in names:
                _ip("netns", "add", name)
                stack.callback(_ip, "netns", "delete", name)
            made._connect()
        except (OSError, subprocess.CalledProcessError):
            yield None
            return
        yield made


def _ip(*arguments: str) -> str:
    done = subprocess.run(
        ["ip", *arguments], check=True, timeout=30, capture_output=True, text=True
    )
    return done.stdout
