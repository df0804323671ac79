"""grpcio beside Treadle: generic handlers whose serialisers leave bytes alone, so no message is encoded.

grpc_peer.py serve HOST (threads | aio)
grpc_peer.py blocks ADDRESS --mb 100 [--large-frames]
grpc_peer.py latency ADDRESS (blocking | futures | aio)
grpc_peer.py requests ADDRESS --mb 1
"""

from __future__ import annotations

import argparse
import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import grpc.aio

from answers import answer, in_window, say, summary, until_told

SINK, ECHO = "/bench/sink", "/bench/echo"
UNLIMITED = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
)
# Fewer and larger HTTP/2 frames, with as much in flight as the peer has room for.
LARGE_FRAMES = (
    ("grpc.http2.max_frame_size", (1 << 24) - 1),
    ("grpc.http2.lookahead_bytes", 1 << 26),
    ("grpc.http2.write_buffer_size", 1 << 26),
    ("grpc.http2.bdp_probe", 1),
)
# A server refuses calls at random from 1,000 waiting ones on.
MANY_CALLS = (
    ("grpc.server.max_pending_requests", 1 << 20),
    ("grpc.server.max_pending_requests_hard_limit", 1 << 20),
)


class Handlers(grpc.GenericRpcHandler):
    """``sink`` answers nothing, ``echo`` what it was sent."""

    def __init__(self, coroutines: bool) -> None:
        def sink(_request: bytes, _context: Any) -> bytes:
            return b""

        def echo(request: bytes, _context: Any) -> bytes:
            return request

        async def sink_async(_request: bytes, _context: Any) -> bytes:
            return b""

        async def echo_async(request: bytes, _context: Any) -> bytes:
            return request

        self.methods = {
            SINK: grpc.unary_unary_rpc_method_handler(sink_async if coroutines else sink),
            ECHO: grpc.unary_unary_rpc_method_handler(echo_async if coroutines else echo),
        }

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        return self.methods.get(handler_call_details.method)


def serve(host: str, kind: str) -> None:
    options = UNLIMITED + LARGE_FRAMES + MANY_CALLS
    if kind == "aio":
        asyncio.run(serve_aio(host, options))
        return
    server = grpc.server(ThreadPoolExecutor(8), handlers=[Handlers(False)], options=options)
    port = server.add_insecure_port(f"{host}:0")
    server.start()
    say({"address": f"{host}:{port}"})
    until_told()
    server.stop(None).wait(5)


async def serve_aio(host: str, options: Any) -> None:
    server = grpc.aio.server(handlers=[Handlers(True)], options=options)
    port = server.add_insecure_port(f"{host}:0")
    await server.start()
    say({"address": f"{host}:{port}"})
    await asyncio.to_thread(until_told)
    await server.stop(None)


def blocks(address: str, mb: float, large_frames: bool) -> None:
    """A number of blocks, one unary call after the other."""
    data = bytes(bytearray(range(256)) * int(mb * 1e6 / 256))
    options = UNLIMITED + (LARGE_FRAMES if large_frames else ())
    with grpc.insecure_channel(address, options=options) as channel:
        call = channel.unary_unary(SINK)

        def transfer(blocks: int) -> dict[str, float]:
            start = time.perf_counter()
            for _ in range(blocks):
                call(data, timeout=60)
            return {"bytes": blocks * len(data), "seconds": time.perf_counter() - start}

        answer(transfer)


def requests(address: str, mb: float) -> None:
    """One request after the other in a window."""
    data = bytes(int(mb * 1e6))
    with grpc.insecure_channel(address, options=UNLIMITED + LARGE_FRAMES) as channel:
        call = channel.unary_unary(SINK)

        def ask(start: float, seconds: float) -> dict[str, Any]:
            return in_window(lambda: call(data, timeout=60), start, seconds)

        answer(ask)


def ask_blocking(call: Callable[..., Any], data: bytes, concurrency: int, seconds: float) -> Any:
    """A thread for each request under way."""
    taken: list[float] = []
    start = time.perf_counter()

    def ask() -> None:
        while (began := time.perf_counter()) < start + seconds:
            call(data, timeout=60)
            taken.append(time.perf_counter() - began)

    threads = [threading.Thread(target=ask) for _ in range(concurrency)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return summary(taken, time.perf_counter() - start)


def ask_futures(call: Any, data: bytes, concurrency: int, seconds: float) -> Any:
    """Each answer's callback wakes one thread that asks again."""
    taken: list[float] = []
    free = threading.Semaphore(concurrency)
    start = time.perf_counter()
    while (began := time.perf_counter()) < start + seconds:
        free.acquire()
        began = time.perf_counter()

        def note(_future: Any, began: float = began) -> None:
            taken.append(time.perf_counter() - began)
            free.release()

        call.future(data, timeout=60).add_done_callback(note)
    for _ in range(concurrency):
        free.acquire()
    return summary(taken, time.perf_counter() - start)


async def ask_aio(call: Any, data: bytes, concurrency: int, seconds: float) -> Any:
    taken: list[float] = []
    start = time.perf_counter()

    async def ask() -> None:
        while (began := time.perf_counter()) < start + seconds:
            await call(data, timeout=60)
            taken.append(time.perf_counter() - began)

    await asyncio.gather(*(ask() for _ in range(concurrency)))
    return summary(taken, time.perf_counter() - start)


def latency(address: str, kind: str) -> None:
    data = bytes(1024)
    if kind == "aio":

        async def ask(concurrency: int, seconds: float) -> Any:
            async with grpc.aio.insecure_channel(address) as channel:
                return await ask_aio(channel.unary_unary(ECHO), data, concurrency, seconds)

        answer(lambda concurrency, seconds: asyncio.run(ask(concurrency, seconds)))
        return
    run = ask_blocking if kind == "blocking" else ask_futures
    with grpc.insecure_channel(address) as channel:
        call = channel.unary_unary(ECHO)
        answer(lambda concurrency, seconds: run(call, data, concurrency, seconds))


def main() -> None:
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("serve")
    command.add_argument("host")
    command.add_argument("kind", choices=("threads", "aio"))
    command = commands.add_parser("blocks")
    command.add_argument("address")
    command.add_argument("--mb", type=float, default=100)
    command.add_argument("--large-frames", action="store_true")
    command = commands.add_parser("latency")
    command.add_argument("address")
    command.add_argument("kind", choices=("blocking", "futures", "aio"))
    command = commands.add_parser("requests")
    command.add_argument("address")
    command.add_argument("--mb", type=float, default=1)
    args = vars(parser.parse_args())
    programs: dict[str, Callable[..., None]] = {
        "serve": serve,
        "blocks": blocks,
        "latency": latency,
        "requests": requests,
    }
    programs[args.pop("command")](**args)


if __name__ == "__main__":
    main()
