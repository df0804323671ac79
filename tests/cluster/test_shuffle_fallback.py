"""Shuffles that P2P cannot do are done by tasks, with a warning, or refused where that is configured."""

from __future__ import annotations

import warnings

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from pandas.testing import assert_frame_equal

from client_support import AGAINST
from treadle.shuffle import ShuffleRefusedError, _p2p_check, _spec

pytestmark = pytest.mark.skipif(AGAINST != "treadle", reason="it is Treadle's own")


def frame(npartitions=6):
    """Six categories, whose names have a thousand characters."""
    names = pd.Categorical.from_codes(np.arange(600) % 6, [f"{n}" * 1000 for n in range(6)])
    rows = pd.DataFrame({"key": np.arange(600), "name": names})
    return rows, dd.from_pandas(rows, npartitions, sort=False)


@pytest.fixture
def little_room(monkeypatch):
    """Workers can be told nothing of these categories."""
    monkeypatch.setattr(_spec, "_MOST_BYTES", 5000)
    monkeypatch.setattr(_p2p_check, "_said", type(_p2p_check._said)())


def kinds_of(lazy):
    return {str(key[0] if isinstance(key, tuple) else key) for key in lazy.optimize().dask}


def uses_p2p(lazy):
    return any("p2p" in kind or "barrier" in kind for kind in kinds_of(lazy))


def computed(lazy):
    """The rows, and what was warned of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        rows = lazy.compute()
    return rows, [str(one.message) for one in caught if "P2P" in str(one.message)]


@pytest.mark.parametrize("method", ["p2p", None])
@pytest.mark.usefixtures("little_room")
def test_tasks_do_it_with_one_warning(client, method):
    rows, lazy = frame()
    with dask.config.set({"dataframe.shuffle.method": method}), client.as_current():
        shuffled = lazy.shuffle("key")
        result, [warning] = computed(shuffled)
        assert not uses_p2p(shuffled)
        assert_frame_equal(result.sort_values("key"), rows)
        assert (
            "P2P cannot do a shuffle, so tasks do it: what its meta or chunks say takes" in warning
        )
        # Whoever computes it again knows.
        assert computed(shuffled)[1] == []
        other = dd.from_pandas(pd.DataFrame({"key": np.arange(600), "more": 1}), 6, sort=False)
        merged, [warning] = computed(lazy.merge(other, on="key"))
        assert "P2P cannot do a merge" in warning
        assert len(merged) == 600
    assert client.shuffles().running == []


@pytest.mark.usefixtures("little_room")
def test_it_is_refused_where_that_is_configured(client):
    _, lazy = frame()
    forbidden = {"dataframe.shuffle.method": "p2p", "treadle.shuffle.fallback": False}
    with dask.config.set(forbidden), client.as_current():
        with pytest.raises(ShuffleRefusedError, match=r"treadle\.shuffle\.fallback is false"):
            lazy.shuffle("key").compute()
        other = dd.from_pandas(pd.DataFrame({"key": np.arange(600), "more": 1}), 6, sort=False)
        with pytest.raises(ShuffleRefusedError, match=r"P2P cannot do a merge: .* meta"):
            lazy.merge(other, on="key").compute()
        # Who chose tasks is not concerned.
        assert len(lazy.shuffle("key", shuffle_method="tasks").compute()) == 600


def test_what_can_be_done_is_done_without_a_warning(client):
    rows, lazy = frame()
    with dask.config.set({"dataframe.shuffle.method": "p2p"}), client.as_current():
        shuffled = lazy.shuffle("key")
        assert uses_p2p(shuffled)
        result, warned = computed(shuffled)
        assert warned == []
        assert_frame_equal(result.sort_values("key"), rows)


def test_reasons():
    rows, _ = frame()
    numbered = rows.assign(_partitions=0)
    assert _p2p_check.why_not(numbered, "_partitions", 8) is None
    assert "at most" in _p2p_check.why_not(numbered, "_partitions", 2**32)
    twice = pd.concat([numbered, numbered[["_partitions"]]], axis=1)
    assert "several columns are named '_partitions'" in _p2p_check.why_not(twice, "_partitions", 8)
    levels = pd.DataFrame(
        [[1, 2]], columns=pd.MultiIndex.from_tuples([("a", "x"), ("_partitions", "")])
    )
    assert "columns have 2 levels" in _p2p_check.why_not(levels, "_partitions", 8)
    assert _p2p_check.why_not(levels, ("_partitions", ""), 8) is None
    assert "its frames are pandas.Series" in _p2p_check.why_not(rows["name"], "_partitions", 8)


@pytest.mark.parametrize(
    ("kind", "said"), [("complex128", "complex128"), (pd.SparseDtype("int64", 0), "sparse")]
)
def test_what_dask_refuses_where_p2p_is_chosen(client, kind, said):
    """As `docs/shuffles.md` says: for `df.shuffle` alone, and not where Treadle chooses."""
    rows = pd.DataFrame({"key": np.arange(30), "value": np.arange(30)}).astype({"value": kind})
    lazy = dd.from_pandas(rows, 6, sort=False)
    with client.as_current():
        shuffled = lazy.shuffle("key")
        assert uses_p2p(shuffled)
        assert_frame_equal(shuffled.compute().sort_values("key"), rows)
        with dask.config.set({"dataframe.shuffle.method": "p2p"}):
            with pytest.raises(TypeError, match=f"p2p does not support .*{said}"):
                lazy.shuffle("key")
            assert len(lazy.merge(lazy, on="key").compute()) == 30
            assert len(lazy.set_index("key").compute()) == 30
