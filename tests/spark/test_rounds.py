"""Random rounds of Spark on the shuffle service. TREADLE_ROUNDS is how many; the number of a round, from TREADLE_ROUND on, is its seed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import Place
from spark_rounds import Round

ROUNDS = int(os.environ.get("TREADLE_ROUNDS", "6"))
FIRST = int(os.environ.get("TREADLE_ROUND", "0"))


@pytest.mark.parametrize("seed", range(FIRST, FIRST + ROUNDS))
def test_a_random_round(seed: int, new_place: Callable[[], Place], tmp_path: Path) -> None:
    Round(new_place(), seed, tmp_path).run()
