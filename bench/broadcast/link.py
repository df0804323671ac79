"""A slow link into a network namespace: ``python link.py NAMESPACE HOST RATE LATENCY``, ports on standard input.

Who connects to one of the ports of ``HOST`` in the namespace gets to the same port of it here, later: each direction of the link carries ``RATE`` bytes a second in all, and takes ``LATENCY`` seconds
from one end to the other. TCP itself is at both ends of it, so its slow start is none of the link's.

Says ``ready``; for each line on standard input, how many bytes went out of the namespace and into it.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import socket
import sys
from pathlib import Path

CLONE_NEWNET = 0x40000000
BLOCK = 16 << 10
# Bytes that wait at the entrance of the link, as in a router.
BUFFER = 128 << 10


class Direction:
    """One direction of the link: first in, first out, whosesoever it is."""

    def __init__(self, rate: float, latency: float) -> None:
        self.rate = rate
        self.latency = latency
        self.carried = 0
        self._free = 0.0

    async def carry(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        """Carry what comes from a connection's one end to the other, with its end."""
        loop = asyncio.get_running_loop()
        way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        leaving = asyncio.ensure_future(self._leave(way, target))
        try:
            while True:
                block = await source.read(BLOCK)
                now = loop.time()
                self._free = max(self._free, now) + len(block) / self.rate
                self.carried += len(block)
                way.put_nowait((self._free + self.latency, block))
                if not block:
                    break
                if (waits := self._free - now - BUFFER / self.rate) > 0:
                    await asyncio.sleep(waits)
        except ConnectionError:
            way.put_nowait((0.0, b""))
        await leaving

    async def _leave(
        self, way: asyncio.Queue[tuple[float, bytes]], target: asyncio.StreamWriter
    ) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due, block = await way.get()
            await asyncio.sleep(max(0.0, due - loop.time()))
            try:
                if not block:
                    target.close()
                    return
                target.write(block)
                await target.drain()
            except ConnectionError:
                return


def listeners(namespace: str, host: str, ports: list[int]) -> list[socket.socket]:
    """Sockets that listen in the namespace; this process stays where it is."""
    libc = ctypes.CDLL(None, use_errno=True)

    def enter(path: str) -> None:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            if libc.setns(descriptor, CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), f"cannot enter {path}")
        finally:
            os.close(descriptor)

    here = f"/proc/{os.getpid()}/fd/{os.open('/proc/self/ns/net', os.O_RDONLY)}"
    enter(str(Path("/var/run/netns") / namespace))
    try:
        return [socket.create_server((host, port)) for port in ports]
    finally:
        enter(here)


async def main(namespace: str, host: str, rate: float, latency: float) -> None:
    out, back = Direction(rate, latency), Direction(rate, latency)

    async def serve(listener: socket.socket) -> None:
        port = listener.getsockname()[1]

        async def link(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            # A connection is there after a round trip.
            await asyncio.sleep(2 * latency)
            try:
                far_reader, far_writer = await asyncio.open_connection(host, port)
            except ConnectionError:
                writer.close()
                return
            await asyncio.gather(out.carry(reader, far_writer), back.carry(far_reader, writer))

        await asyncio.start_server(link, sock=listener)

    ports = [int(text) for text in sys.stdin.readline().split()]
    for listener in listeners(namespace, host, ports):
        await serve(listener)
    print("ready", flush=True)
    loop = asyncio.get_running_loop()
    while await loop.run_in_executor(None, sys.stdin.readline):
        print(out.carried, back.carried, flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:3], *map(float, sys.argv[3:])))
