"""Where ipyparallel, or IPython, is not installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

WITHOUT_IPYPARALLEL = """
import sys
sys.modules["ipyparallel"] = None
import treadle

with treadle.Client(processes=False, n_workers=1) as client:
    assert client.submit(pow, 2, 3).result() == 8
    for call in (
        lambda: client.ids,
        lambda: client[:],
        lambda: client.direct_view(),
        lambda: client.broadcast_view(),
        lambda: client.load_balanced_view(),
        lambda: client.interrupt(),
        lambda: treadle.load_ipython_extension(None),
    ):
        try:
            call()
        except ImportError as error:
            assert "pip install '.[ipython]'" in str(error), error
        else:
            raise AssertionError("it works without ipyparallel")
"""


def test_without_ipyparallel() -> None:
    subprocess.run([sys.executable, "-c", WITHOUT_IPYPARALLEL], timeout=100, check=True)


def test_workers_without_ipython(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their engines have a plain namespace."""
    import ipyparallel  # noqa: F401 (here it is)

    import treadle

    for name in ("IPython", "ipyparallel"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('not installed')")
    monkeypatch.syspath_prepend(tmp_path)
    with treadle.Client(workers=2, threads_per_worker=1, set_as_default=False) as client:
        view: Any = client[:]
        view["a"] = 3
        done = view.execute("print(a)\na * 2", silent=False, block=True)
        assert done.stdout == ["3\n", "3\n"]
        assert [one["data"]["text/plain"] for one in done.execute_result] == ["6", "6"]
        assert view["_"] == [6, 6]
        with pytest.raises(Exception, match="ZeroDivisionError"):
            view.execute("1 / 0", block=True)
        assert view.map_sync(lambda x: x + 1, range(4)) == [1, 2, 3, 4]
