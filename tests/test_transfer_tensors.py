"""Tensors of torch between two processes. They run where torch is (``make test-tensors``)."""

from __future__ import annotations

import collections
import textwrap
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from transfer_support import ECHO, LIMIT, Peer, echoing, exchanged, pair

from treadle import transfer

torch: Any = pytest.importorskip("torch", exc_type=ImportError)

Exchange = Callable[[Any], Any]

LARGE = 300_000


@pytest.fixture(scope="module")
def conn() -> Iterator[transfer.Connection]:
    with echoing() as conn:
        yield conn


@pytest.fixture
def exchange(conn: transfer.Connection) -> Exchange:
    """Send an object to a process that sends it back."""
    return partial(exchanged, conn)


def bits(tensor: Any) -> bytes:
    return bytes(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy())


def assert_same(received: Any, sent: Any) -> None:
    assert type(received) is type(sent)
    assert (received.dtype, received.shape) == (sent.dtype, sent.shape)
    assert received.requires_grad == sent.requires_grad
    if sent.numel():
        assert bits(received) == bits(sent)


def filled(dtype: Any, count: int) -> Any:
    size = torch.empty(0, dtype=dtype).element_size()
    pattern = torch.arange(count * size, dtype=torch.int64) % 251
    if dtype is torch.bool:
        pattern %= 2
    return pattern.to(torch.uint8).view(dtype)


DTYPES = sorted(
    {
        value
        for value in vars(torch).values()
        if isinstance(value, torch.dtype) and not str(value).startswith("torch.q")
    },
    key=str,
)


@pytest.mark.parametrize("within", [False, True], ids=["alone", "within"])
class TestElements:
    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    @pytest.mark.parametrize("count", [1, 40, LARGE])
    def test_every_dtype(self, exchange: Exchange, dtype: Any, count: int, within: bool) -> None:
        sent = filled(dtype, count)
        received = exchange({"a": sent})["a"] if within else exchange(sent)
        assert_same(received, sent)

    @pytest.mark.parametrize("shape", [(), (1,), (0,), (3, 0, 2), (2, 3, 4), (1, 1), (300, 400)])
    def test_shapes(self, exchange: Exchange, shape: tuple[int, ...], within: bool) -> None:
        sent = torch.rand(shape)
        received = exchange([sent])[0] if within else exchange(sent)
        assert_same(received, sent)

    @pytest.mark.parametrize("length", [10, 500])
    @pytest.mark.parametrize(
        "layout",
        [
            "transposed",
            "part",
            "steps",
            "columns",
            "expanded",
            "permuted",
            "channels last",
            "reversed",
        ],
    )
    def test_layouts(self, exchange: Exchange, layout: str, length: int, within: bool) -> None:
        base = torch.arange(4.0 * length * length).reshape(2, length, length, 2)
        matrix = base.view(-1, 4 * length)
        sent = {
            "transposed": matrix.t(),
            "part": matrix[3:7],
            "steps": matrix[::2],
            "columns": matrix[:, 1:3],
            "expanded": matrix[0].expand(5, -1),
            "permuted": base.permute(2, 0, 3, 1),
            "channels last": base.contiguous(memory_format=torch.channels_last),
            "reversed": base.permute(3, 2, 1, 0),
        }[layout]
        received = exchange((sent,))[0] if within else exchange(sent)
        assert_same(received, sent)
        # What has holes between its elements arrives without them.
        expected = sent.contiguous() if layout in ("steps", "columns") else sent
        assert received.stride() == expected.stride()

    def test_received_tensors_can_be_written_to(self, exchange: Exchange, within: bool) -> None:
        sent = torch.zeros(LARGE)
        received = exchange([sent])[0] if within else exchange(sent)
        received += 1
        assert received.sum() == LARGE
        assert sent.sum() == 0


class TestMeaning:
    """What a tensor is beside its elements is as torch's own pickles have it."""

    def test_gradients(self, exchange: Exchange) -> None:
        leaf = torch.rand(LARGE, requires_grad=True)
        for sent in (
            leaf,
            leaf * 2,
            torch.rand(3, requires_grad=True),
            torch.zeros(0, requires_grad=True),
        ):
            received = exchange(sent)
            assert_same(received, sent)
            assert received.is_leaf
        assert not exchange(leaf.detach()).requires_grad
        matrix = torch.rand(40, 50, requires_grad=True).t()
        assert_same(exchange([matrix])[0], matrix)

    def test_parameters_and_modules(self, exchange: Exchange) -> None:
        model = torch.nn.Sequential(torch.nn.Linear(300, 200), torch.nn.BatchNorm1d(200))
        received = exchange(model)
        assert type(received) is type(model)
        for name, value in model.state_dict().items():
            assert_same(received.state_dict()[name], value)
        parameter = torch.nn.Parameter(torch.rand(1000), requires_grad=False)
        assert_same(exchange(parameter), parameter)
        state = exchange(model.state_dict())
        assert type(state) is collections.OrderedDict
        assert state._metadata == model.state_dict()._metadata

    def test_attributes(self, exchange: Exchange) -> None:
        sent = torch.rand(LARGE)
        sent.unit = "K"
        assert exchange(sent).unit == "K"

    def test_subclasses(self, exchange: Exchange) -> None:
        sent = torch.rand(1000).as_subclass(Named)
        received = exchange(sent)
        assert type(received) is Named
        assert (received == sent).all()

    @pytest.mark.parametrize("of", ["conj", "imag"])
    def test_views_that_compute(self, exchange: Exchange, of: str) -> None:
        base = torch.rand(1000, dtype=torch.complex64)
        sent = base.conj() if of == "conj" else base.conj().imag
        received = exchange(sent)
        assert (received.is_conj(), received.is_neg()) == (sent.is_conj(), sent.is_neg())
        assert torch.equal(received, sent)

    @pytest.mark.parametrize("kind", ["coo", "csr"])
    def test_sparse(self, exchange: Exchange, kind: str) -> None:
        dense = torch.eye(400)
        sent = dense.to_sparse() if kind == "coo" else dense.to_sparse_csr()
        received = exchange(sent)
        assert received.layout == sent.layout
        assert torch.equal(received.to_dense(), dense)

    def test_quantised(self, exchange: Exchange) -> None:
        sent = torch.quantize_per_tensor(torch.rand(1000), 0.1, 3, torch.qint8)
        received = exchange(sent)
        assert (received.q_scale(), received.q_zero_point()) == (0.1, 3)
        assert torch.equal(received.int_repr(), sent.int_repr())

    def test_nested(self, exchange: Exchange) -> None:
        sent = torch.nested.nested_tensor([torch.rand(3, 400), torch.rand(5, 400)])
        received = exchange(sent)
        assert received.is_nested
        assert all(torch.equal(a, b) for a, b in zip(received.unbind(), sent.unbind(), strict=True))

    def test_meta(self, exchange: Exchange) -> None:
        received = exchange(torch.empty(10, 20, device="meta"))
        assert (received.device.type, received.shape) == ("meta", (10, 20))

    def test_storages(self, exchange: Exchange) -> None:
        tensor = torch.arange(LARGE)
        untyped, typed = exchange((tensor.untyped_storage(), tensor.storage()))
        assert bytes(untyped) == bits(tensor)
        assert typed.dtype is torch.int64
        assert typed.data_ptr() == untyped.data_ptr()

    @pytest.mark.parametrize("within", [False, True])
    def test_devices_are_refused(self, conn: transfer.Connection, within: bool) -> None:
        from torch._subclasses import FakeTensorMode  # a tensor of a device without a device

        with FakeTensorMode():
            sent = torch.empty(3, device="cuda")
        with pytest.raises(TypeError, match=r"on cuda:0 cannot be sent.*\.cpu\(\)"):
            conn.send([sent] if within else sent)


class Named(torch.Tensor):
    pass


def shares(one: Any, other: Any) -> bool:
    """Whether two are tensors of one storage, or it."""
    storages = [
        value.untyped_storage() if isinstance(value, torch.Tensor) else value
        for value in (one, other)
    ]
    return bool(storages[0].data_ptr() == storages[1].data_ptr())


class TestTies:
    def test_a_tensor_twice_is_one(self, exchange: Exchange) -> None:
        sent = torch.rand(LARGE)
        one, other = exchange([sent, sent])
        assert one is other

    @pytest.mark.parametrize("count", [20, LARGE])
    def test_tied_weights(self, exchange: Exchange, count: int) -> None:
        weight = torch.nn.Parameter(torch.rand(count))
        received = exchange({"in": weight.data, "out": weight.data, "own": torch.rand(count)})
        received["in"][7] = 5
        assert received["out"][7] == 5
        assert received["own"][7] != 5

    @pytest.mark.parametrize("order", [1, -1])
    def test_a_part_and_the_whole(self, exchange: Exchange, order: int) -> None:
        base = torch.arange(1000.0 * LARGE // 1000)
        sent = {
            "part": base[100:2000],
            "whole": base,
            "steps": base[1::7],
            "bits": base.view(torch.int32),
        }
        received = exchange(dict(list(sent.items())[::order]))
        assert all(torch.equal(received[name], sent[name]) for name in sent)
        received["whole"][106] = -1
        assert received["part"][6] == received["steps"][15] == -1
        assert received["bits"][106] == torch.tensor(-1.0).view(torch.int32)

    def test_parts_that_overlap(self, exchange: Exchange) -> None:
        base = torch.arange(2000.0)
        one, other, apart, step = exchange(
            [base[:1000], base[500:1500], torch.ones(9), base[400::2]]
        )
        assert torch.equal(other, base[500:1500])
        assert torch.equal(step, base[400::2])
        one[500] = other[2] = -1
        assert other[0] == one[502] == step[50] == -1
        assert apart.sum() == 9

    def test_parts_of_a_flat_buffer_are_apart(
        self, exchange: Exchange, conn: transfer.Connection
    ) -> None:
        flat = torch.rand(10_000_000)
        before = conn.stats()["bytes_sent"]
        one, other = exchange([flat[:50_000], flat[-50_000:]])
        assert torch.equal(other, flat[-50_000:])
        assert conn.stats()["bytes_sent"] - before < 1_000_000
        assert not shares(one, other)

    def test_memory_that_two_storages_have(self, exchange: Exchange) -> None:
        array = np.arange(1000)
        one, other = exchange([torch.from_numpy(array[:600]), torch.from_numpy(array[300:])])
        assert other[0] == 300
        one[300] = -1
        assert other[0] == -1

    def test_elements_of_other_sizes(self, exchange: Exchange) -> None:
        base = torch.arange(4000, dtype=torch.uint8)
        odd, words = exchange([base[1:3001], base[4:1204].view(torch.float32)])
        assert torch.equal(odd, base[1:3001])
        odd[3:7] = torch.tensor([0, 0, 128, 63], dtype=torch.uint8)
        assert words[0] == 1

    def test_what_shares_bytes_alone_is_refused(self, conn: transfer.Connection) -> None:
        memory = np.zeros(4001, np.uint8)
        with pytest.raises(ValueError, match="clones"):
            conn.send(
                [
                    torch.from_numpy(memory[:4000].view(np.float32)),
                    torch.from_numpy(memory[1:].view(np.float32)),
                ]
            )

    def test_a_storage_and_its_tensors(self, exchange: Exchange) -> None:
        base = torch.arange(1000.0)
        for sent in (
            (base[3:5], base.untyped_storage(), base),
            (base.untyped_storage(), base[3:5], base),
        ):
            received = exchange(sent)
            assert shares(received[0], received[1])
            assert shares(received[0], received[2])
            assert torch.equal(received[2], base)

    def test_temporary_tensors(self, exchange: Exchange) -> None:
        sent = [Fresh(number) for number in range(200)] + [torch.arange(100)[:60], Overlapping()]
        received = exchange(sent)
        assert all((received[number].tensor == number).all() for number in range(200))
        assert torch.equal(received[-1].parts[0][100:], received[-1].parts[1][:50])


class Fresh:
    """It pickles a tensor that is gone afterwards."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __getstate__(self) -> Any:
        return {"number": self.number, "tensor": torch.full((1000,), self.number)}


class Overlapping:
    def __init__(self) -> None:
        base = torch.arange(300)
        self.parts = base[:150], base[100:250]


class TestInto:
    @pytest.fixture(params=[0, 64 << 20], ids=["asked for", "prefetched"])
    def ends(self, request: pytest.FixtureRequest) -> Iterator[Any]:
        with pair(prefetch=request.param) as ends:
            yield ends

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    @pytest.mark.parametrize("count", [40, LARGE])
    def test_every_dtype(self, ends: Any, dtype: Any, count: int) -> None:
        one, other = ends
        sent = filled(dtype, count)
        started = one.start_send(sent)
        target = torch.empty_like(sent)
        assert other.recv_into(target, timeout=LIMIT) is target
        assert bits(target) == bits(sent)
        started.result(LIMIT)

    def test_between_libraries(self, ends: Any) -> None:
        one, other = ends
        for sent, target in [
            (np.arange(LARGE), torch.empty(LARGE, dtype=torch.int64)),
            (torch.arange(LARGE), np.empty(LARGE, np.int64)),
            (torch.rand(30, 40).t(), np.empty((40, 30), np.float32, order="F")),
            (torch.rand(30, 400)[:, ::2], torch.empty(30, 200)),
            (torch.rand(300, 400).t(), torch.empty(300, 400).t()),
            (torch.tensor(5.0), torch.empty(())),
            (torch.empty(0, 3), torch.empty(0, 3)),
            (torch.rand(LARGE).bfloat16(), torch.empty(2, LARGE).bfloat16()[1]),
        ]:
            started = one.start_send(sent)
            other.recv_into(target, timeout=LIMIT)
            assert torch.equal(torch.as_tensor(target), torch.as_tensor(sent))
            started.result(LIMIT)

    def test_what_does_not_fit_stays_the_next_object(self, ends: Any) -> None:
        one, other = ends
        sent = torch.arange(LARGE).bfloat16()
        started = one.start_send(sent)
        for target in (
            torch.zeros(LARGE, dtype=torch.float16),
            torch.zeros(LARGE + 1, dtype=torch.bfloat16),
            np.zeros(LARGE, np.uint16),
        ):
            with pytest.raises(
                ValueError, match=rf"bfloat16.*shape \({LARGE},\).*recv_into was given"
            ):
                other.recv_into(target, timeout=LIMIT)
        assert torch.equal(other.recv(timeout=LIMIT), sent)
        started.result(LIMIT)

    def test_targets_that_cannot_be_used(self, ends: Any) -> None:
        from torch._subclasses import FakeTensorMode

        one, other = ends
        one.send(torch.zeros(10))
        with FakeTensorMode():
            elsewhere = torch.empty(10, device="cuda")
        for target, error, complaint in [
            (torch.zeros(20)[::2], ValueError, "contiguous"),
            (torch.zeros(10, requires_grad=True), ValueError, r"\.detach\(\)"),
            (elsewhere, TypeError, r"\.cpu\(\)"),
            (torch.zeros(10).to_sparse(), TypeError, "dense"),
            ([0.0] * 10, TypeError, "array of NumPy or a tensor, not list"),
        ]:
            with pytest.raises(error, match=complaint):
                other.recv_into(target, timeout=LIMIT)
        other.recv_into(torch.zeros(10), timeout=LIMIT)


class TestWithoutTorch:
    """The peer's Python does not find torch."""

    HIDE = "import sys; sys.modules['torch'] = None\n"

    @pytest.mark.parametrize("within", [False, True])
    def test_the_error_says_what_to_do(self, within: bool) -> None:
        with Peer(self.HIDE + ECHO) as peer:
            for count in 3, LARGE:
                sent = torch.ones(count)
                peer.conn.send([sent] if within else sent)
                error = peer.conn.recv(timeout=LIMIT)
                assert isinstance(error, ImportError)
                assert "cannot import torch" in str(error)
                assert "tensor.numpy()" in str(error)

    def test_it_receives_into_arrays(self) -> None:
        code = """
        target = np.zeros(300_000, np.float32)
        conn.send(conn.recv_into(target))
        print(sys.modules["torch"])
        """
        with Peer(self.HIDE + textwrap.dedent(code)) as peer:
            peer.conn.send(torch.ones(LARGE))
            assert peer.conn.recv(timeout=LIMIT).sum() == LARGE
            peer.conn.close()
            assert peer.finish() == "None\n"


def test_torch_is_not_imported_for_arrays() -> None:
    with Peer("conn.recv(); conn.send({'a': np.ones(9)})\nprint('torch' in sys.modules)") as peer:
        peer.conn.send([np.ones(1000), "text"])
        peer.conn.recv(timeout=LIMIT)
        peer.conn.close()
        assert peer.finish() == "False\n"


def test_a_thousand_small_tensors_are_one_object(exchange: Exchange) -> None:
    sent = {f"layer.{number}": torch.full((number * 40 % 9000,), number) for number in range(1000)}
    received = exchange(sent)
    assert list(received) == list(sent)
    for name, tensor in sent.items():
        assert torch.equal(received[name], tensor)


def test_the_tensor_is_let_go(conn: transfer.Connection, exchange: Exchange) -> None:
    import gc
    import weakref

    for make in (lambda: torch.ones(LARGE), lambda: torch.ones(LARGE, requires_grad=True)):
        tensor = make()
        gone = weakref.ref(tensor)
        exchange([tensor])
        exchange(tensor)
        del tensor
        gc.collect()
        conn.stats()
        assert gone() is None
