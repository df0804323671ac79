"""The open and the capped lines between two network namespaces that a veth pair joins."""

from __future__ import annotations

from collections.abc import Iterator

import loopback
import paced
from figures import Figure
from network import may_have_namespaces, namespaces


def measure(quick: bool) -> Iterator[Figure]:
    if not may_have_namespaces():
        yield Figure("two network namespaces", "not run", limit="network namespaces need root")
        return
    with namespaces() as network:
        yield from loopback.compare(network, "veth pair", quick)
        yield from paced.compare(network, "veth pair", quick)
