"""`kill -9` of workers at random moments of a mixed workload: the results are those of one thread.

TREADLE_ROUNDS says how many rounds there are, TREADLE_SEED with which the first one begins. A round
that fails names its seed.
"""

from __future__ import annotations

import os
import random
import time

import pytest

from client_support import AGAINST, SOON
from process_support import kill
from reliability_support import Workload, connected, until_replaced

ROUNDS = int(os.environ.get("TREADLE_ROUNDS", "50"))
SEED = int(os.environ.get("TREADLE_SEED", "0"))
# Rounds that share a cluster.
LEG = 10

pytestmark = [
    pytest.mark.skipif(AGAINST != "treadle", reason="it reaches into treadle's cluster"),
    pytest.mark.usefixtures("quiet"),
]


@pytest.mark.timeout(120 + 10 * ROUNDS, method="signal")
@pytest.mark.parametrize("first", range(SEED, SEED + ROUNDS, LEG))
def test_the_results_are_right_whoever_is_killed(new_client, first):
    client = new_client(workers=3, threads_per_worker=2)
    for seed in range(first, min(first + LEG, SEED + ROUNDS)):
        print("seed", seed)
        chance = random.Random(seed)
        workload = Workload(client, seed)
        workload.submit()
        time.sleep(chance.random() * 0.25)
        name, pid = chance.choice(sorted(connected(client).items()))
        kill(pid)
        workload.check()
        until_replaced(client, name, pid)
    client.wait_for_workers(3, timeout=SOON)
