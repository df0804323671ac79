"""Transfers for asyncio."""

from __future__ import annotations

import asyncio
import os
import pickle
import threading
import time
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
from transfer_support import LIMIT, Peer

from ports import free_port
from treadle import transfer
from treadle.transfer import aio

LARGE = np.arange(4_000_000.0)

Pair = tuple[aio.Connection, aio.Connection]


@asynccontextmanager
async def pair(**options: Any) -> AsyncIterator[Pair]:
    async with await aio.listen(**options) as listener:
        one = await aio.connect(listener.address, **options)
        other = await listener.accept(LIMIT)
        async with one, other:
            yield one, other


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 60))


def test_objects_in_both_directions() -> None:
    async def test() -> None:
        async with pair() as (one, other):
            for obj in [1, b"x" * 10, b"x" * 200_000, LARGE, {"a": LARGE}, None]:
                _, received = await asyncio.gather(one.send(obj), other.recv())
                assert pickle.dumps(received) == pickle.dumps(obj)
                received, _ = await asyncio.gather(one.recv(timeout=LIMIT), other.send(obj))
                assert pickle.dumps(received) == pickle.dumps(obj)
            assert one.last_timings is not None
            assert one.last_timings["total"] > 0
            assert one.stats()["bytes_sent"] > 2 * LARGE.nbytes
            assert one.address in repr(one)

    run(test)


def test_into_an_array() -> None:
    async def test() -> None:
        async with pair(prefetch=0) as (one, other):
            target = np.zeros_like(LARGE)
            _, result = await asyncio.gather(one.send(LARGE), other.recv_into(target))
            assert result is target
            assert (target == LARGE).all()
            sending = asyncio.create_task(one.send(LARGE))
            with pytest.raises(ValueError, match="float32"):
                await other.recv_into(np.zeros(4_000_000, "f4"))
            assert (await other.recv() == LARGE).all()
            await sending

    run(test)


def test_batches() -> None:
    async def test() -> None:
        async with pair() as (one, other):
            sent = [b"%d" % i for i in range(20_000)] + ["end", LARGE]
            sending = asyncio.create_task(one.send_many(sent))
            received: list[Any] = []
            while len(received) < len(sent):
                received += await other.recv_many(timeout=LIMIT)
            await sending
            assert received[:-1] == sent[:-1]
            assert (received[-1] == LARGE).all()
            await one.send_many([b"1", b"2", b"3"])
            assert len(await other.recv_many(1)) == 1

    run(test)


def test_receivers_are_served_in_their_order() -> None:
    async def test() -> None:
        async with pair() as (one, other):
            receiving = [asyncio.create_task(other.recv()) for _ in range(20)]
            await asyncio.sleep(0)
            for i in range(20):
                await one.send(np.full(10 ** (i % 6), i))
            received = await asyncio.gather(*receiving)
            assert [array[0] for array in received] == list(range(20))

    run(test)


def test_many_connections() -> None:
    async def serve(listener: aio.Listener) -> None:
        async def echo(connection: aio.Connection) -> None:
            async with connection:
                while True:
                    try:
                        await connection.send(await connection.recv())
                    except EOFError:
                        return

        tasks = []
        async for connection in listener:
            tasks.append(asyncio.create_task(echo(connection)))
        await asyncio.gather(*tasks)

    async def client(address: str, number: int) -> None:
        async with await aio.connect(address) as connection:
            for i in range(20):
                await connection.send((number, i))
                assert await connection.recv() == (number, i)

    async def test() -> None:
        threads = threading.active_count()
        listener = await aio.listen()
        server = asyncio.create_task(serve(listener))
        await asyncio.gather(*[client(listener.address, n) for n in range(30)])
        await listener.close()
        await server
        # Those of the executor connect.
        assert threading.active_count() - threads <= 32

    run(test)


class TestCancelling:
    def test_a_send(self) -> None:
        async def test() -> None:
            async with pair(prefetch=0) as (one, other):
                sending = asyncio.create_task(one.send(LARGE))
                await asyncio.sleep(0.05)
                assert not sending.done()
                sending.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await sending
                assert one.stats()["pending"] == 0
                await one.send("next")
                assert await other.recv() == "next"

        run(test)

    def test_a_recv_loses_nothing(self) -> None:
        async def test() -> None:
            async with pair(prefetch=0) as (one, other):
                for delay in [0, 0, 0.001, 0.002, 0.005, 0.01]:
                    sending = asyncio.create_task(one.send(LARGE))
                    receiving = asyncio.create_task(other.recv())
                    await asyncio.sleep(delay)
                    receiving.cancel()
                    try:
                        received = await receiving
                    except asyncio.CancelledError:
                        received = await other.recv()
                    assert (received == LARGE).all()
                    await sending

        run(test)

    def test_what_the_peer_gives_up_is_left_out(self) -> None:
        async def test() -> None:
            async with pair(prefetch=0) as (one, other):
                big = np.zeros(1 << 28, np.uint8)
                while True:
                    receiving = asyncio.create_task(other.recv())
                    started = await one.start_send(big)
                    while not started.progress[0]:
                        await asyncio.sleep(0)
                    if started.cancel():
                        break
                    # It was faster.
                    await receiving
                await one.send("next")
                assert await receiving == "next"

        run(test)

    def test_an_accept(self) -> None:
        async def test() -> None:
            async with await aio.listen() as listener:
                accepting = asyncio.create_task(listener.accept())
                await asyncio.sleep(0.01)
                accepting.cancel()
                one = await aio.connect(listener.address)
                async with one, await listener.accept(LIMIT) as other:
                    await one.send(1)
                    assert await other.recv() == 1

        run(test)


class TestTimeouts:
    def test_nothing_arrives(self) -> None:
        async def test() -> None:
            async with pair() as (one, _):
                with pytest.raises(TimeoutError, match="receiving from"):
                    await one.recv(timeout=0.02)
                with pytest.raises(TimeoutError, match="receiving from"):
                    await one.recv_many(timeout=0.02)
            async with await aio.listen() as listener:
                with pytest.raises(TimeoutError, match="accepting at"):
                    await listener.accept(0.02)

        run(test)

    def test_nobody_receives(self) -> None:
        async def test() -> None:
            async with pair(prefetch=0) as (one, other):
                with pytest.raises(TimeoutError, match="sending to"):
                    await one.send(LARGE, timeout=0.05)
                await one.send("next")
                assert await other.recv() == "next"

        run(test)

    def test_of_a_transfer(self) -> None:
        async def test() -> None:
            async with pair(prefetch=0) as (one, other):
                started = await one.start_send(LARGE)
                with pytest.raises(TimeoutError):
                    await started.result(0.02)
                assert not started.done()
                assert started.timings is None
                assert (await other.recv() == LARGE).all()
                await started.result(LIMIT)
                assert await started.exception() is None
                assert started.timings is not None
                assert started.progress[0] == started.progress[1]

        run(test)


class TestEnds:
    def test_the_peer_closes(self) -> None:
        async def test() -> None:
            async with pair() as (one, other):
                receiving = asyncio.create_task(one.recv())
                await asyncio.sleep(0.01)
                await other.send("last")
                await other.close()
                assert await receiving == "last"
                with pytest.raises(EOFError):
                    await one.recv()
                assert one.closed
                assert other.closed

        run(test)

    def test_this_side_closes(self) -> None:
        async def test() -> None:
            async with pair() as (one, _):
                receiving = asyncio.create_task(one.recv())
                await asyncio.sleep(0.01)
                await one.close()
                with pytest.raises(transfer.ConnectionClosed, match="closed here"):
                    await receiving
                with pytest.raises(transfer.ConnectionClosed, match="closed here"):
                    await one.send(1)

        run(test)

    def test_the_peer_is_killed(self) -> None:
        async def test() -> None:
            with Peer("while True: conn.recv()", prefetch=0) as peer:
                connection = aio.Connection(peer.conn)
                big = np.zeros(1 << 28, np.uint8)
                sending = await connection.start_send(big)
                while not sending.progress[0]:
                    await asyncio.sleep(0)
                peer.process.kill()

                async def send() -> None:
                    # The first may be over before the kill comes; then the next one is not.
                    await sending.result(LIMIT)
                    while True:
                        await connection.send(big)

                with pytest.raises(transfer.ConnectionEnded):
                    await send()
                await connection.close()

        run(test)

    def test_a_forgotten_connection_is_closed(self) -> None:
        async def test() -> None:
            async with await aio.listen() as listener:
                one = await aio.connect(listener.address)
                other = await listener.accept(LIMIT)
                await one.send("last")
                del one
                assert await other.recv() == "last"
                with pytest.raises(EOFError):
                    await other.recv(timeout=LIMIT)
                await other.close()

        run(test)

    def test_a_loop_that_ends_first(self) -> None:
        async def test() -> tuple[aio.Listener, aio.Connection]:
            listener = await aio.listen()
            return listener, await aio.connect(listener.address)

        kept = asyncio.run(test())
        del kept


class Claimed:
    """Something that has come, and goes back when nobody holds it."""


def test_what_comes_in_the_turn_of_a_cancellation_goes_back_at_once() -> None:
    class Native:
        def _notifier(self) -> int:
            return os.eventfd(0, os.EFD_NONBLOCK)

    async def test() -> None:
        notices = aio._Notices(Native())  # type: ignore[arg-type]
        came: list[Claimed] = []
        waiting = asyncio.create_task(notices.until(lambda: came.pop() if came else None))
        await asyncio.sleep(0)
        came.append(Claimed())
        claimed = weakref.ref(came[0])
        notices.look()
        waiting.cancel()
        try:
            await waiting
        except asyncio.CancelledError:
            # Its exception is alive here.
            assert claimed() is None
        else:
            pytest.fail("it is cancelled")
        notices.close()

    run(test)


def test_progress() -> None:
    async def test() -> None:
        async with pair(prefetch=0) as (one, other):
            sent: list[tuple[int, int]] = []
            received: list[tuple[int, int]] = []
            await asyncio.gather(
                one.send(LARGE, progress=lambda *n: sent.append(n)),
                other.recv(progress=lambda *n: received.append(n)),
            )
            for reports in sent, received:
                done, total = reports[-1]
                assert done == total >= LARGE.nbytes

    run(test)


def test_the_loop_goes_on_while_bytes_move() -> None:
    async def test() -> None:
        async with pair(prefetch=0) as (one, other):
            turns = 0

            async def count() -> None:
                nonlocal turns
                while True:
                    turns += 1
                    await asyncio.sleep(0)

            counting = asyncio.create_task(count())
            await asyncio.gather(one.send(np.zeros(1 << 25)), other.recv())
            counting.cancel()
            assert turns > 20

    run(test)


def test_loops_in_several_threads() -> None:
    errors: list[BaseException] = []

    async def exchange() -> None:
        async with pair() as (one, other):
            for i in range(50):
                array = np.full(20_000, i)
                _, received = await asyncio.gather(one.send(array), other.recv())
                assert (received == i).all()

    def work() -> None:
        try:
            run(exchange)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors


def test_another_loop_is_refused() -> None:
    async def test() -> None:
        async with pair() as (one, _):

            def elsewhere() -> None:
                with pytest.raises(RuntimeError, match="another event loop"):
                    asyncio.run(one.recv())

            await asyncio.get_running_loop().run_in_executor(None, elsewhere)

    run(test)


def test_connecting_does_not_stop_the_loop() -> None:
    async def test() -> None:
        port = free_port()
        began = time.monotonic()
        with pytest.raises(transfer.TransferError):
            await aio.connect(f"127.0.0.1:{port}", connect_timeout=5)
        assert time.monotonic() - began < LIMIT

    run(test)
