"""Strangers on every port: they get nothing, cost little, and nobody else notices."""

from __future__ import annotations

import os
import random
import socket
import urllib.error
from contextlib import ExitStack, suppress

import pytest

from client_support import AGAINST, SOON, inc
from process_support import descriptors, resident
from waiting import until

pytestmark = pytest.mark.skipif(AGAINST != "treadle", reason="the ports are Treadle's")

CROWD = 1000

# Bytes that strangers say first.
WORDS = {
    "nothing": b"",
    "zeros": bytes(10_000),
    "ones": b"\xff" * 10_000,
    "a huge length": b"\xff\xff\xff\x7f" * 4 + bytes(100),
    "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "a long request": b"GET /" + b"a" * 100_000,
    "tls": bytes.fromhex("16030100c8010000c40303") + bytes(200),
    "pickle": b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7f.",
    "distributed's": (0).to_bytes(8, "little") + (2**40).to_bytes(8, "little") * 3,
}


def port_of(address):
    host, _, port = address.rpartition("://")[2].rpartition(":")
    return host, int(port)


@pytest.fixture
def cluster(start, join):
    scheduler = start("scheduler", "--port", "0")
    worker = start("worker", scheduler.address, "--nthreads", "1")
    assert worker.address
    client = join(scheduler)
    client.submit(bytes, 100_000).result(timeout=SOON)
    ports = {
        "scheduler": (port_of(scheduler.address), scheduler),
        "worker": (port_of(worker.address), worker),
        "http": (port_of(scheduler.http), scheduler),
    }
    return client, ports, scheduler


def goes_on(client, scheduler):
    value = client.submit(bytes, 100_000, pure=False)
    assert value.result(timeout=SOON) == bytes(100_000)
    assert client.submit(inc, 1, pure=False).result(timeout=SOON) == 2

    def page():
        # With sixteen connections open, others are told to come again.
        with suppress(urllib.error.URLError, OSError):
            return len(scheduler.state()["workers"]) == 1
        return False

    until(page, "the page is there")


@pytest.mark.parametrize("port", ["scheduler", "worker", "http"])
def test_garbage_is_thrown_out(cluster, port):
    client, ports, scheduler = cluster
    address, process = ports[port]
    memory, open_before = resident(process.pid), descriptors(process.pid)
    chance = random.Random(0)
    words = list(WORDS.values()) + [chance.randbytes(chance.randrange(1, 5000)) for _ in range(100)]
    with ExitStack() as stack:
        for said in words:
            # It may be thrown out before it has said all.
            with suppress(OSError):
                stranger = stack.enter_context(socket.create_connection(address, timeout=SOON))
                stranger.sendall(said)
                if chance.random() < 0.3:
                    stranger.shutdown(socket.SHUT_WR)
        goes_on(client, scheduler)
    until(lambda: descriptors(process.pid) <= open_before + 3, "they are closed")
    grown = resident(process.pid) - memory
    assert grown < 64_000_000, f"{grown} bytes for strangers"
    goes_on(client, scheduler)


@pytest.mark.parametrize("port", ["scheduler", "worker", "http"])
def test_a_thousand_that_say_nothing(cluster, port):
    client, ports, scheduler = cluster
    address, process = ports[port]
    memory, open_before = resident(process.pid), descriptors(process.pid)
    with ExitStack() as stack:
        for _ in range(CROWD):
            # One that is not let in has been refused, which is as well.
            with suppress(ConnectionError):
                stack.enter_context(socket.create_connection(address, timeout=SOON))
        goes_on(client, scheduler)
        grown = resident(process.pid) - memory
        assert grown < CROWD * 100_000, f"{grown} bytes for {CROWD} connections"
    until(lambda: descriptors(process.pid) <= open_before + 3, "they are closed")
    goes_on(client, scheduler)


def test_a_stranger_who_stays_silent_is_closed(cluster):
    client, ports, scheduler = cluster
    for port in ("scheduler", "worker", "http"):
        address, _ = ports[port]
        with socket.create_connection(address, timeout=2 * SOON) as stranger:
            heard = b"?"
            with suppress(ConnectionError):
                while heard:
                    heard = stranger.recv(4096)
    goes_on(client, scheduler)


def test_few_descriptors_are_no_end(start, join, secret):
    """A scheduler that may open few files refuses strangers, and serves those who are there."""
    import resource

    def few():
        resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))

    scheduler = start("scheduler", "--port", "0", before=few)
    worker = start("worker", scheduler.address, "--nthreads", "1")
    assert worker.address
    client = join(scheduler)
    with ExitStack() as stack:
        for _ in range(200):
            with suppress(OSError):
                stack.enter_context(
                    socket.create_connection(port_of(scheduler.address), timeout=SOON)
                )
        assert client.submit(inc, 1, pure=False).result(timeout=SOON) == 2
    goes_on(client, scheduler)
    late = join(scheduler)
    assert late.submit(inc, 2, pure=False).result(timeout=SOON) == 3


def test_the_secret_is_nowhere(cluster, secret):
    """Nothing that processes print or show says it."""
    _client, ports, scheduler = cluster
    text = secret.read_text()
    assert text not in str(scheduler.state())
    assert all(text not in process.output for _, process in ports.values())
    assert text not in os.popen(f"ps -o args= -p {scheduler.pid}").read()
