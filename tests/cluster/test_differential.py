"""A fixed part of what `differential` plays: the same answers as distributed."""

from __future__ import annotations

import pytest

from client_support import AGAINST
from differential import Pair, quiet

# Each kind of workload is among them.
SEEDS = range(23, 59)


@pytest.mark.skipif(AGAINST != "treadle", reason="it plays distributed as well")
@pytest.mark.timeout(300, method="signal")
def test_random_workloads_have_the_answers_of_distributed() -> None:
    pair = Pair()
    try:
        with quiet():
            differing = {seed: found for seed in SEEDS if (found := pair.play(seed, times=False))}
    finally:
        pair.close()
    assert not differing
