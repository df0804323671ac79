"""Who is kept out: whoever passes a connection on, other clusters, half of what was asked for."""

from __future__ import annotations

from contextlib import suppress

import distributed
import pytest
from relay_support import Relay, only_refused, port_of

from client_support import AGAINST, SOON, client_class, has_no_workers, inc, refused
from ports import free_port
from treadle import _core
from waiting import until

pytestmark = pytest.mark.skipif(AGAINST != "treadle", reason="the handshake is Treadle's")


class Nothing:
    """The Python side of a connection that expects nothing."""

    def on_closed(self, reason):
        pass


class TestRelays:
    """A port of the user that another one has now, who passes on what comes there."""

    def test_to_a_scheduler(self, start, join):
        old = start("scheduler", "--port", str(free_port()))
        stale = old.address
        old.end()
        scheduler = start("scheduler", "--port", "0")
        client = join(scheduler)
        with Relay(scheduler.address, port_of(stale)) as relay:
            assert f"{stale} was dialled" in refused(stale)
            worker = start("worker", stale)
            assert worker.wait() == 1
            assert f"{stale} was dialled" in worker.output
            assert "Traceback" not in worker.output
            assert only_refused(relay.end())
        assert has_no_workers(client)

    def test_to_a_worker(self, start, join):
        scheduler = start("scheduler", "--port", "0")
        client = join(scheduler)
        other = start("worker", scheduler.address, "--name", "other", "--nthreads", "1")
        with Relay(other.address) as relay:
            # One that is believed to be where the relay is.
            start("worker", scheduler.address, "--name", "stale", "--nthreads", "1",
                  "--contact-address", f"127.0.0.1:{relay.port}")  # fmt: skip
            taker = start("worker", scheduler.address, "--name", "taker", "--nthreads", "1")
            client.wait_for_workers(3, timeout=SOON)
            value = client.submit(bytes, 3_000_000, workers=["stale"])
            # The client, and another worker.
            taken = client.submit(len, value, workers=["taker"])
            until(lambda: "was dialled" in taker.output, "the worker is refused", 2 * SOON)
            with suppress(OSError, distributed.TimeoutError):
                # It asks for the value again and again.
                value.result(timeout=2)
            assert only_refused(relay.end())
            assert not taken.done()

    def test_a_port_that_is_meant_to_lead_there(self, start, join):
        port = free_port()
        contact = f"localhost:{port}"
        scheduler = start("scheduler", "--port", "0", "--contact-address", contact)
        with Relay(scheduler.address, port):
            client = client_class()(contact, set_as_default=False)
            start("worker", contact, "--nthreads", "1")
            assert client.submit(inc, 1).result(timeout=SOON) == 2
            client.close()


class TestClusters:
    def test_another_one_at_the_same_address_is_named(self, start, secret):
        key = secret.read_text()
        first = start("scheduler", "--port", str(free_port()))
        connection = _core.Connection(first.address, "a", Nothing(), secret=key)
        cluster = connection.cluster
        connection.close()
        # The same one is found again.
        _core.Connection(first.address, "b", Nothing(), secret=key, cluster=cluster).close()
        first.end()
        start("scheduler", first.address.removeprefix("treadle://")).address  # noqa: B018
        with pytest.raises(OSError, match=f"this is another cluster: {cluster} was meant"):
            _core.Connection(first.address, "c", Nothing(), secret=key, cluster=cluster)
        with pytest.raises(ValueError, match="32 hexadecimal digits"):
            _core.Connection(first.address, "d", Nothing(), secret=key, cluster="x")

    def test_the_file_of_one_that_has_ended_leads_to_no_other(self, start, tmp_path):
        written, kept = tmp_path / "scheduler.json", tmp_path / "kept.json"
        first = start("scheduler", "--port", str(free_port()), "--scheduler-file", str(written))
        address = first.address
        kept.touch(mode=0o600)
        kept.write_bytes(written.read_bytes())
        first.end()
        start("scheduler", address.removeprefix("treadle://")).address  # noqa: B018
        with pytest.raises(OSError, match="this is another cluster"):
            client_class()(scheduler_file=str(kept), timeout=20, set_as_default=False)
        worker = start("worker", "--scheduler-file", str(kept))
        assert worker.wait() == 1
        assert "this is another cluster" in worker.output
