"""The coordinator looks at real shuffle servers, and asks one to leave."""

from __future__ import annotations

import time

import pytest

from treadle.coordinator._polling import Servers
from treadle.shuffle import Service


def test_room_comes_from_real_servers_and_one_is_drained() -> None:
    with Service(servers=3) as service:
        servers = Servers(service.address, {}, 60)
        assert servers.room() is None
        servers.look()
        room = servers.room()
        assert room is not None
        assert room.servers == 3
        assert 0 < room.free_bytes <= room.total_bytes
        with pytest.raises(KeyError, match="nobody"):
            servers.drain("nobody")
        servers.drain(servers.servers()[0]["name"])
        deadline = time.monotonic() + 60
        while len(service.state()["servers"]) > 2:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        servers.look()
        assert len(servers.servers()) == 2


def test_room_that_is_too_old_is_not_known() -> None:
    with Service(servers=1) as service:
        servers = Servers(service.address, {}, 0.0)
        servers.look()
        assert servers.room() is None
    with pytest.raises(OSError, match=r"\S"):
        servers.look()
