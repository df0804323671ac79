"""Where pages are that somebody names by a host."""

from __future__ import annotations

import socket
import urllib.request

import pytest

import treadle
from client_support import AGAINST, SOON
from treadle.cluster import _pages
from treadle.cluster._options import http_address

pytestmark = pytest.mark.skipif(AGAINST != "treadle", reason="the pages are Treadle's")


@pytest.fixture
def cluster_example(monkeypatch):
    """A name that resolves to both kinds of addresses."""
    ask = socket.getaddrinfo

    def answer(host, *rest, **options):
        if host != "cluster.example":
            return ask(host, *rest, **options)
        kind = socket.SOCK_STREAM
        return [
            (socket.AF_INET6, kind, 6, "", ("::1", 0, 0, 0)),
            (socket.AF_INET, kind, 6, "", ("127.0.0.1", 0)),
        ]

    monkeypatch.setattr(socket, "getaddrinfo", answer)


def test_a_name_is_resolved_and_allowed(cluster_example):
    assert _pages.resolved("cluster.example:0") == ("127.0.0.1:0", "cluster.example")
    for own in ("127.0.0.1:7787", "[::1]:0", "0.0.0.0:1"):
        assert _pages.resolved(own) == (own, None)
    # Whatever a resolver says.
    assert _pages.resolved("localhost:5") == ("127.0.0.1:5", None)


@pytest.mark.parametrize(
    "wrong", ["", "foo", ":1", "foo:", "foo:x", "127.0.0.1:65536", "::1:1", "[x]:1"]
)
def test_what_is_no_host_and_port_is_named(wrong):
    with pytest.raises(ValueError, match=r"give .*:7787|give another HOST:PORT") as caught:
        _pages.resolved(wrong)
    assert repr(wrong) in str(caught.value)


def test_a_dashboard_address_may_have_a_name(cluster_example):
    assert http_address("localhost:5") == "127.0.0.1:5"
    assert http_address("cluster.example:5") == "127.0.0.1:5"
    assert http_address(":5") == http_address(5) == "127.0.0.1:5"
    with (
        treadle.LocalCluster(processes=False, dashboard_address="localhost:0") as cluster,
        urllib.request.urlopen(cluster.dashboard_link, timeout=SOON) as page,
    ):
        assert page.status == 200
