"""What can be passed, and what it is by default, is what distributed says."""

from __future__ import annotations

import inspect
from typing import Any

import distributed
import distributed.client
import pytest

import treadle
import treadle.client
from treadle.worker._standin import WorkerStandIn

PAIRS = {
    "Client": (treadle.Client, distributed.Client),
    "Future": (treadle.client.Future, distributed.Future),
    "LocalCluster": (treadle.LocalCluster, distributed.LocalCluster),
    "as_completed": (treadle.client.as_completed, distributed.as_completed),
    "get_worker()": (WorkerStandIn, distributed.Worker),
}

# What is another signature on purpose.
DIFFERENT = {
    "LocalCluster": "its own parameters; those of distributed's that mean nothing are refused",
    "LocalCluster.close": "ends in 5 s by default",
    "get_worker().close": "what it ends is native",
    "get_worker().close_gracefully": "what it ends is native",
}
if inspect.signature(distributed.Client.scheduler_info).parameters["n_workers"].default == 5:
    DIFFERENT["Client.scheduler_info"] = "shows all workers, as distributed does since 2026.7"


def public(kind: type) -> dict[str, Any]:
    return {
        name: inspect.getattr_static(kind, name)
        for name in dir(kind)
        if not name.startswith("_") and callable(getattr(kind, name, None))
    }


def parameters(function: Any) -> dict[str, Any]:
    """Default by name, without what is not for users."""
    found = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if name == "self" or parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            continue
        found[name] = parameter.default
    return found


CASES = [
    (ours, theirs, name, method)
    for name, (ours, theirs) in PAIRS.items()
    for method in sorted(public(theirs))
]


@pytest.mark.parametrize(("ours", "theirs", "name", "method"), CASES)
def test_methods_take_what_distributed_takes(
    ours: Any, theirs: Any, name: str, method: str
) -> None:
    if f"{name}.{method}" in DIFFERENT:
        pytest.skip(DIFFERENT[f"{name}.{method}"])
    if not hasattr(ours, method):
        # Whoever asks for it is told its name.
        bare = object.__new__(ours)
        with pytest.raises(NotImplementedError, match=method):
            getattr(bare, method)
        return
    mine, other = (parameters(getattr(kind, method)) for kind in (ours, theirs))
    # More may follow.
    assert list(mine)[: len(other)] == list(other)
    assert {key: mine[key] for key in other} == other


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (treadle.Client, distributed.Client),
        (treadle.client.as_completed, distributed.as_completed),
        (treadle.client.wait, distributed.wait),
    ],
)
def test_calls_take_what_distributed_takes(ours: Any, theirs: Any) -> None:
    mine, other = parameters(ours), parameters(theirs)
    assert list(mine)[: len(other)] == list(other)
    assert {key: mine[key] for key in other} == other


@pytest.mark.parametrize("method", ["submit", "map", "get", "gather", "cancel"])
def test_help_says_what_parameters_mean(method: str) -> None:
    shown = inspect.getdoc(getattr(treadle.Client, method))
    theirs = inspect.getdoc(getattr(distributed.Client, method))
    assert shown
    assert theirs
    start = theirs.index("Parameters\n---")
    assert theirs[start:] in shown
    assert shown.index("Parameters\n---") < 500


def test_completion_shows_what_a_client_can_start() -> None:
    shown = inspect.signature(treadle.Client).parameters
    assert {"workers", "threads_per_worker", "memory_limit", "processes", "secret"} <= shown.keys()


def test_classes_of_distributed_keep_their_signatures() -> None:
    """Although they are Treadle's where the scheduler is."""
    shown = inspect.signature(distributed.Client).parameters
    assert {"address", "security", "asynchronous"} <= shown.keys()
    shown = inspect.signature(distributed.as_completed).parameters
    assert {"futures", "with_results", "timeout"} <= shown.keys()


def test_hasattr_does_not_claim_what_is_not_served() -> None:
    assert not hasattr(object.__new__(WorkerStandIn), "validate_state")
    with treadle.LocalCluster(0) as cluster:
        assert not hasattr(cluster, "scheduler_spec")
        assert not hasattr(cluster.scheduler, "stream_comms")
