"""Receiving into an array that is there already."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from transfer_support import LIMIT, pair

from treadle import transfer

Pair = tuple[transfer.Connection, transfer.Connection]

LARGE = 3_000_000


@pytest.fixture(params=[0, 64 << 20], ids=["asked for", "prefetched"])
def ends(request: pytest.FixtureRequest) -> Iterator[Pair]:
    with pair(prefetch=request.param) as ends:
        yield ends


def test_every_size(ends: Pair) -> None:
    one, other = ends
    for size in [0, 1, 100, 65_500, 65_535, 65_536, 70_000, LARGE]:
        sent = (np.arange(size) % 251).astype(np.uint8)
        started = one.start_send(sent)
        target = np.zeros(size, np.uint8)
        assert other.recv_into(target, timeout=LIMIT) is target
        assert (target == sent).all()
        started.result(LIMIT)


@pytest.mark.parametrize("dtype", [">f8", "M8[us]", "U3", "f4,i8", "c16"])
def test_types(ends: Pair, dtype: str) -> None:
    one, other = ends
    sent = np.frombuffer(bytes(range(48)) * 6000, np.uint8)[: 48 * 6000 // 48 * 48].view(dtype) \
        if np.dtype(dtype).itemsize in (8, 12, 16) and dtype != "U3" else np.full(50_000, "abc", dtype)  # fmt: skip
    started = one.start_send(sent)
    target = np.zeros(sent.shape, dtype)
    other.recv_into(target, timeout=LIMIT)
    assert target.tobytes() == sent.tobytes()
    started.result(LIMIT)


def test_layouts_that_agree(ends: Pair) -> None:
    one, other = ends
    for sent, target in [
        (np.arange(600_000.0).reshape(600, 1000).T, np.zeros((1000, 600), order="F")),
        (np.arange(600_000.0).reshape(600, 1000)[:, ::2], np.zeros((600, 500))),
        (np.arange(100_000).reshape(-1, 1), np.zeros((100_000, 1), int, order="F")),
        (np.array(5.0), np.zeros(())),
    ]:
        started = one.start_send(sent)
        other.recv_into(target, timeout=LIMIT)
        assert (target == sent).all()
        started.result(LIMIT)


def test_part_of_an_array(ends: Pair) -> None:
    one, other = ends
    target = np.zeros((4, 100_000))
    started = one.start_send(np.ones(100_000))
    other.recv_into(target[2], timeout=LIMIT)
    started.result(LIMIT)
    assert target.sum(axis=1).tolist() == [0, 0, 100_000, 0]


@pytest.mark.parametrize("size", [10, LARGE])
def test_what_does_not_fit_stays_the_next_object(ends: Pair, size: int) -> None:
    one, other = ends
    sent = np.arange(size, dtype=float)
    started = one.start_send(sent)
    for target, complaint in [
        (np.zeros(size + 1), rf"float64 with shape \({size},\).*shape \({size + 1},\)"),
        (np.zeros((size, 1)), rf"shape \({size}, 1\)"),
        (np.zeros(size, "f4"), "float32"),
        (np.zeros(size, ">f8"), ">f8"),
    ]:
        with pytest.raises(ValueError, match=complaint):
            other.recv_into(target, timeout=LIMIT)
        assert not target.any()
    assert (other.recv(timeout=LIMIT) == sent).all()
    started.result(LIMIT)


def test_another_order_does_not_fit(ends: Pair) -> None:
    one, other = ends
    started = one.start_send(np.ones((1000, 300), order="F"))
    with pytest.raises(ValueError, match=r"in Fortran order.*in C order"):
        other.recv_into(np.zeros((1000, 300)), timeout=LIMIT)
    other.recv_into(np.zeros((1000, 300), order="F"), timeout=LIMIT)
    started.result(LIMIT)


@pytest.mark.parametrize("obj", [b"x" * 100_000, {"a": np.zeros(100_000)}, None])
def test_what_is_no_array_stays_the_next_object(ends: Pair, obj: object) -> None:
    one, other = ends
    started = one.start_send(obj)
    with pytest.raises(ValueError, match="not an array"):
        other.recv_into(np.zeros(100_000), timeout=LIMIT)
    assert type(other.recv(timeout=LIMIT)) is type(obj)
    started.result(LIMIT)


def test_targets_that_cannot_be_used(ends: Pair) -> None:
    one, other = ends
    one.send(np.zeros(10))
    read_only = np.zeros(10)
    read_only.flags.writeable = False
    with pytest.raises(ValueError, match="can be written"):
        other.recv_into(read_only, timeout=LIMIT)
    with pytest.raises(ValueError, match="contiguous"):
        other.recv_into(np.zeros(20)[::2], timeout=LIMIT)
    with pytest.raises(ValueError, match="cannot be received in place"):
        other.recv_into(np.zeros(10, object), timeout=LIMIT)
    with pytest.raises(TypeError, match="array of NumPy or a tensor, not bytearray"):
        other.recv_into(bytearray(80), timeout=LIMIT)  # type: ignore[type-var]
    other.recv_into(np.zeros(10), timeout=LIMIT)


def test_the_target_is_let_go(ends: Pair) -> None:
    one, other = ends
    target = bytearray(LARGE)
    started = one.start_send(np.ones(LARGE, np.uint8))
    other.recv_into(np.frombuffer(target, np.uint8), timeout=LIMIT)
    started.result(LIMIT)
    # A bytearray cannot grow while somebody has its buffer.
    target.append(1)
    assert target.count(1) == LARGE + 1


class TestTimeouts:
    """The object goes on coming into the first target."""

    SIZE = 40_000_000

    @pytest.fixture
    def begun(self) -> Iterator[tuple[Pair, np.ndarray, np.ndarray, transfer.Transfer]]:
        with pair(prefetch=0, max_stripes=1) as (one, other):
            sent = np.arange(self.SIZE // 8, dtype=float)
            target = np.zeros_like(sent)
            while True:
                started = one.start_send(sent)
                try:
                    # Not even the fastest memory does it in this time; a thread that was held up finds all of it.
                    other.recv_into(target, timeout=0.001)
                except TimeoutError:
                    break
                started.result(LIMIT)
                target[:] = 0
            yield (one, other), sent, target, started

    def test_the_same_target(self, begun: tuple) -> None:
        (_, other), sent, target, started = begun
        other.recv_into(target, timeout=LIMIT)
        assert (target == sent).all()
        started.result(LIMIT)

    def test_another_target(self, begun: tuple) -> None:
        (_, other), sent, _, started = begun
        another = np.zeros_like(sent)
        other.recv_into(another, timeout=LIMIT)
        assert (another == sent).all()
        started.result(LIMIT)

    def test_no_target(self, begun: tuple) -> None:
        (_, other), sent, _, started = begun
        assert (other.recv(timeout=LIMIT) == sent).all()
        started.result(LIMIT)
