"""What does not fit into an engine's memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from ipyparallel import CompositeError

import treadle
from treadle.pickling import _canning
from views_support import SOON
from waiting import until

# A worker's process takes some 150 MB itself.
LIMIT = 400_000_000


def test_a_push_beyond_the_memory_of_an_engine(tmp_path: Path) -> None:
    """An error that names it, from this engine only; the others have what was pushed."""
    with treadle.Client(workers=2, threads_per_worker=1, set_as_default=False) as client:
        large = client.ids
        command = [sys.executable, "-m", "treadle", "worker", client.scheduler_info()["address"]]
        options = ["--memory-limit", str(LIMIT), "--name", "small", "--nthreads", "1"]
        options += ["--local-directory", str(tmp_path)]
        with subprocess.Popen([*command, *options]) as process:
            try:
                until(lambda: len(client.ids) == 3, "the small worker is there")
                (small,) = set(client.ids).difference(large)
                view = client[:]
                size = LIMIT // 8 + 1_000_000
                with pytest.raises(CompositeError, match="memory limit of worker small") as caught:
                    view.push({"x": np.ones(size)}, block=True)
                ((kind, _, _, where),) = caught.value.elist
                assert (kind, where["engine_id"]) == ("MemoryError", small)
                client[large].execute("total = float(x.sum())", block=True)
                assert client[large]["total"] == [size] * 2
                # It goes on with what fits.
                view.execute("has = 'x' in globals()", block=True)
                assert view["has"] == [engine in large for engine in view.targets]
            finally:
                process.terminate()
                process.wait(SOON)


def test_more_arrays_than_a_message_has_frames() -> None:
    """Those that do not stay out of the pickle are in it: a message has 65,535 frames at most."""
    arrays = [np.array([number]) for number in range(66_000)]
    frames = _canning.dumps(arrays)
    assert len(frames) < 65_000
    assert _canning.loads(frames) == arrays
    assert len(_canning.dumps_values(dict(enumerate(arrays)))) < 65_000
