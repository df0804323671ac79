"""Tensors of torch in a cluster: results, scattered values, arguments, state of actors."""

from __future__ import annotations

from typing import Any

import pytest

from treadle import Client
from treadle.transfer import _serialise

torch: Any = pytest.importorskip("torch", exc_type=ImportError)


@pytest.fixture(scope="module")
def client() -> Any:
    with Client(workers=2, threads_per_worker=1) as client:
        yield client


class Counter:
    def __init__(self, count: int) -> None:
        self.weights = torch.zeros(count)

    def add(self, update: Any) -> Any:
        self.weights += update
        return self.weights


@pytest.mark.parametrize("count", [10, 300_000])
def test_results_scattered_values_and_arguments(client: Client, count: int) -> None:
    first, second = client.scheduler_info()["workers"]
    made = client.submit(torch.arange, count, workers=[first], pure=False)
    [brought] = client.scatter([torch.arange(count).bfloat16()])
    for value in made, brought, torch.arange(count):
        # It goes from one worker to the other.
        total = client.submit(torch.sum, value, workers=[second], pure=False).result()
        assert torch.equal(
            total, torch.sum(value if isinstance(value, torch.Tensor) else value.result())
        )
    assert made.result().dtype is torch.int64
    assert brought.result().dtype is torch.bfloat16


@pytest.mark.parametrize("count", [10, 300_000])
def test_actors(client: Client, count: int) -> None:
    counter = client.submit(Counter, count, actor=True).result()
    for step in 1, 2:
        assert torch.equal(
            counter.add(torch.ones(count)).result(), torch.full((count,), float(step))
        )


def test_a_model_stays_tied(client: Client) -> None:
    def tied(count: int) -> dict[str, Any]:
        weights = torch.rand(count, 10)
        return {"in": weights, "out": weights.t(), "part": weights[3:7]}

    made = client.submit(tied, 30_000, pure=False).result()
    made["in"][4, 5] = 7
    assert made["out"][5, 4] == made["part"][1, 5] == 7


def test_frames_view_the_memory() -> None:
    tensor = torch.rand(300_000)
    for value in tensor, [tensor], {"a": tensor.bfloat16(), "b": tensor.view(300, 1000).t()}:
        _, _, buffers = _serialise.encode(value, False)
        assert sum(memoryview(buffer).nbytes for buffer in buffers) >= 600_000
        values = list(value.values()) if isinstance(value, dict) else value
        values = values if isinstance(values, list) else [values]
        import numpy as np

        found = [np.frombuffer(buffer, np.uint8).ctypes.data for buffer in buffers]
        assert found == [one.data_ptr() for one in values]


def test_gradients_are_kept(client: Client) -> None:
    def ready(tensor: Any) -> tuple[bool, bool]:
        return tensor.requires_grad, tensor.is_leaf

    assert client.submit(ready, torch.rand(3, requires_grad=True)).result() == (True, True)
    assert client.submit(torch.rand, 3, requires_grad=True).result().requires_grad
