"""What the tests of shuffles share."""

from __future__ import annotations

import numpy as np
import pandas as pd


def table(seed: int = 0, n: int = 6000) -> pd.DataFrame:
    """Numbers and text, some of it missing, with an index that repeats."""
    chance = np.random.default_rng(seed)
    words = np.array(["", "a", "grün", "x" * 200, None], object)[chance.integers(0, 5, n)]
    return pd.DataFrame(
        {
            "key": chance.integers(0, 200, n),
            "value": chance.normal(size=n),
            "text": pd.array(words, dtype="string[pyarrow]"),
        },
        index=chance.integers(0, n, n),
    )
