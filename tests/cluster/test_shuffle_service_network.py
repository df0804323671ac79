"""A network that changes rows: the other copy is read, or an error says what is gone.

Rows have no checksum on their way. Their digests are compared when they are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from relay_support import Relay

from ports import free_port
from service_support import ROWS, Servers, Table
from treadle.shuffle import DamagedRows, RowsLost
from waiting import until

MAPS, PARTITIONS = 8, 4
# What the network changes: in every tenth row.
MARK = 0xD1A5_F00D_CAFE_BEE5


@pytest.fixture
def table() -> Table:
    # Enough that neither what is pushed nor what is read travels in messages, which have checksums.
    table = Table(MAPS, PARTITIONS, rows=60_000)
    for rows in table.rows:
        rows["value"][::10] = MARK
    return table


@pytest.fixture
def begin_behind_relay(
    new_servers: Callable[..., Servers],
) -> Iterator[Callable[..., Servers]]:
    """Starts servers; those that are named are reached through a relay that flips bits."""
    with ExitStack() as stack:

        def begin(*names: str) -> Servers:
            servers = new_servers()
            for name in ("a", "b"):
                options: tuple[str, ...] = ()
                listen = f"127.0.0.1:{free_port()}"
                if name in names:
                    flip = MARK.to_bytes(8, "little")
                    relay = stack.enter_context(Relay(listen, flip=flip))
                    options = ("--contact-address", f"127.0.0.1:{relay.port}")
                servers.begin(name, *options, listen=listen)
            servers.ready()
            return servers

        yield begin


def test_rows_that_change_on_the_way_to_one_server_are_read_from_the_other(
    begin_behind_relay: Callable[..., Servers], table: Table
) -> None:
    servers = begin_behind_relay("a")
    with servers.service.shuffle(MAPS, PARTITIONS, ROWS) as shuffle:
        shuffle.commit(table.write_all(shuffle))
        table.compare(shuffle)
        # It was noticed: what is damaged counts as no copy.
        until(
            lambda: servers.copied(shuffle)["groups_with_fewer_copies"] > 0,
            lambda: str(servers.service.state()),
        )
        assert shuffle.lost() == []


def test_rows_that_change_on_the_way_to_both_servers_are_an_error(
    begin_behind_relay: Callable[..., Servers], table: Table
) -> None:
    servers = begin_behind_relay("a", "b")
    with servers.service.shuffle(MAPS, PARTITIONS, ROWS, name="torn") as shuffle:
        shuffle.commit(table.write_all(shuffle))
        with pytest.raises((RowsLost, DamagedRows), match="shuffle torn"):
            table.compare(shuffle)
        assert set(shuffle.lost()) <= set(range(MAPS))
        assert shuffle.lost()
