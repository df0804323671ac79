"""All of a cluster run the same minor version of Python: others are refused, with a reason.

The scheduler of these tests says that it runs another version (the setting ``python``); worker and
client are real ones, and announce and compare theirs as ever.
"""

from __future__ import annotations

import platform

import pytest

from client_support import AGAINST, client_class
from treadle import _core

pytestmark = pytest.mark.skipif(AGAINST != "treadle", reason="distributed only warns")

OTHER = "3.9"
HERE = ".".join(platform.python_version_tuple()[:2])


@pytest.fixture
def other(secret, monkeypatch):
    monkeypatch.setenv("TREADLE_SECRET_FILE", str(secret))
    server = _core.Scheduler(settings={"python": OTHER})
    yield server
    server.close()


def refusal(text):
    assert f"Python {HERE}" in text
    assert f"Python {OTHER}" in text
    assert "must run the same minor version" in text


def test_a_client_of_another_version_is_refused(other):
    with pytest.raises(OSError, match="Python") as caught:
        client_class()(other.address, timeout=20)
    refusal(str(caught.value))


def test_a_worker_of_another_version_is_refused(other, start):
    worker = start("worker", other.address, "--nthreads", "1")
    assert worker.wait() == 1
    refusal(worker.output)
    assert "Traceback" not in worker.output
