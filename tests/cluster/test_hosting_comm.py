"""Dask's own clients, schedulers and workers, which talk over Treadle's connections."""

from __future__ import annotations

import asyncio
import sys

import dask
import distributed
import numpy as np
import pytest
from distributed.comm import connect, listen
from distributed.protocol import to_serialize

from client_support import AGAINST, SOON
from treadle import _core
from treadle._compat.distributed import FatalCommClosedError

pytestmark = [
    pytest.mark.skipif(AGAINST != "treadle", reason="it is about both"),
    pytest.mark.timeout(4 * SOON, method="signal"),
]

TCP = "treadle-tcp://127.0.0.1:0"


@pytest.fixture
def certificates(tmp_path):
    """Files for all roles, in Dask's configuration."""
    _core.create_certs(str(tmp_path), ["node"], 2, False)
    pair = {"cert": str(tmp_path / "node.pem"), "key": str(tmp_path / "node-key.pem")}
    tls = {"ca-file": str(tmp_path / "ca.pem"), "client": pair, "scheduler": pair, "worker": pair}
    with dask.config.set({f"distributed.comm.tls.{name}": value for name, value in tls.items()}):
        yield


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, SOON))


async def echo(comm):
    try:
        while True:
            await comm.write(await comm.read())
    except OSError:
        assert comm.closed()


def messages():
    """Small ones, and frames that are smaller and larger than have places of their own."""
    arrays = [np.arange(n, dtype="i8") for n in (0, 5, 511, 512, 300_000)]
    yield {"op": "ping", "reply": True}
    yield {"op": "data", "arrays": [to_serialize(array) for array in arrays]}


async def exchange(address):
    listener = await listen(address, echo)
    comm = await connect(listener.contact_address)
    assert comm.same_host
    for message in messages():
        await comm.write(message)
        found = await comm.read()
        assert found["op"] == message["op"]
        for sent, came in zip(message.get("arrays", ()), found.get("arrays", ()), strict=True):
            np.testing.assert_array_equal(came, sent.data)
            assert came.flags.writeable
    await comm.close()
    assert comm.closed()
    with pytest.raises(OSError, match="is closed"):
        await comm.write({})
    await listener.stop()


def test_messages_come_as_they_were_sent():
    run(exchange(TCP))


def test_messages_with_certificates(certificates):
    run(exchange("treadle-tls://127.0.0.1:0"))


def test_a_frame_that_distributed_splits_is_joined_without_a_copy(monkeypatch):
    def refused(_):
        raise AssertionError("the parts of a frame came in different memory")

    async def one():
        listener = await listen(TCP, echo)
        comm = await connect(listener.contact_address)
        # Each is split into frames of 64 MiB. The last two are parts of the same memory with a gap.
        split = np.arange(9_000_000)
        base = np.arange(20_000)
        arrays = [split, split[:8_500_000], base[:5_000], base[10_000:]]
        await comm.write({"arrays": [to_serialize(array) for array in arrays]})
        found = (await comm.read())["arrays"]
        for sent, came in zip(arrays, found, strict=True):
            np.testing.assert_array_equal(came, sent)
            assert came.flags.writeable
        found[0][0] = 7
        assert found[1][0] == 0
        await comm.close()
        await listener.stop()

    # The package has a function of the module's name.
    module = sys.modules["distributed.protocol.serialize"]
    monkeypatch.setattr(module, "host_array_from_buffers", refused)
    run(one())


def test_the_end_of_one_side_is_told_to_the_other():
    async def one():
        comms = []

        async def keep(comm):
            comms.append(comm)
            await comm.read()

        listener = await listen(TCP, keep)
        comm = await connect(listener.contact_address)
        while not comms:
            await asyncio.sleep(0.01)
        comms[0].abort()
        with pytest.raises(OSError, match="TransferComm"):
            await comm.read()
        assert comm.closed()
        await listener.stop()

    run(one())


def test_who_does_not_know_the_secret_is_refused(tmp_path, monkeypatch):
    async def one():
        listener = await listen(TCP, echo)
        other = tmp_path / "secret"
        other.write_text("another secret than the user's own")
        other.chmod(0o600)
        monkeypatch.setenv("TREADLE_SECRET_FILE", str(other))
        with pytest.raises(FatalCommClosedError, match="secret"):
            await connect(listener.contact_address)
        await listener.stop()

    run(one())


def test_nobody_listens():
    async def one():
        listener = await listen(TCP, echo)
        address = listener.contact_address
        await listener.stop()
        with pytest.raises(OSError, match="Timed out trying to connect"):
            await connect(address, timeout=0.5)

    run(one())


def test_what_is_not_safe_is_refused_by_name():
    async def one():
        with pytest.raises(RuntimeError, match="use treadle-tls://"):
            await listen(TCP, echo, require_encryption=True)
        with pytest.raises(ValueError, match="needs certificates in Dask's configuration"):
            await listen("treadle-tls://127.0.0.1:0", echo)
        with pytest.raises(ValueError, match="TLS"):
            await listen("treadle-tcp://0.0.0.0:0", echo)

    run(one())


def large(n):
    return np.arange(n)


def test_a_cluster_of_dask(tmp_path):
    with (
        distributed.LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            protocol="treadle-tcp",
            dashboard_address=None,
            local_directory=str(tmp_path),
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        one, other = client.scheduler_info(n_workers=-1)["workers"]
        assert one.startswith("treadle-tcp://")
        value = client.submit(large, 1_000_000, workers=[one])
        total = client.submit(np.sum, value, workers=[other])
        assert total.result(timeout=SOON) == 499_999_500_000
        assert value.result(timeout=SOON)[-1] == 999_999
        [again] = client.scatter([np.ones(100_000)], broadcast=True)
        assert client.submit(np.sum, again).result(timeout=SOON) == 100_000
