"""Bytes of values, as ``Client.nbytes`` tells them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping

from treadle.common._groups import prefix_of

__all__ = ["by_prefix"]


def by_prefix(sizes: Mapping[Hashable, int]) -> dict[str, int]:
    """Return the sum of sizes by the prefix of their keys."""
    sums: defaultdict[str, int] = defaultdict(int)
    for key, size in sizes.items():
        sums[prefix_of(key)] += size
    return dict(sums)
