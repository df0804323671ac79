"""NumPy arrays in shared memory: where they are born, how they live, and what a fork does."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import os
import pickle
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from treadle import _core
from treadle.common._shared_memory import empty, empty_like, is_shared, shared_arrays, zeros

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="shared memory needs Linux")

MIB = 1 << 20


def live_bytes() -> int:
    return _core.shared_memory_stats()["live_bytes"]


@pytest.fixture(autouse=True)
def no_leak() -> Iterator[None]:
    """Every segment is freed with its array."""
    gc.collect()
    before = live_bytes()
    yield
    gc.collect()
    assert live_bytes() == before


class TestWhereArraysAreBorn:
    def test_large_arrays_inside_the_block(self) -> None:
        before = np.empty(MIB, np.uint8)
        with shared_arrays():
            large = np.empty(MIB, np.uint8)
            computed = np.arange(MIB) + 1
            copied = before.copy()
            small = np.empty(MIB - 1, np.uint8)
        after = np.empty(MIB, np.uint8)
        assert is_shared(large)
        assert is_shared(computed)
        assert is_shared(copied)
        assert not any(map(is_shared, (before, small, after)))
        assert (computed == np.arange(1, MIB + 1)).all()

    def test_the_threshold(self) -> None:
        with shared_arrays(100_000):
            assert not is_shared(np.empty(99_999, np.uint8))
            assert is_shared(np.empty(100_000, np.uint8))
        with pytest.raises(ValueError, match="threshold=65535"), shared_arrays(65_535):
            pass

    def test_blocks_nest(self) -> None:
        def born_shared(nbytes: int) -> bool:
            return is_shared(np.empty(nbytes, np.uint8))

        with shared_arrays(2 * MIB):
            with shared_arrays(MIB):
                assert born_shared(MIB)
                with shared_arrays(MIB):
                    assert born_shared(MIB)
                assert born_shared(MIB)
            assert not born_shared(MIB)
            assert born_shared(2 * MIB)
        assert not born_shared(2 * MIB)

    def test_an_error_ends_the_block(self) -> None:
        with pytest.raises(ZeroDivisionError), shared_arrays():
            raise ZeroDivisionError
        assert not is_shared(np.empty(MIB, np.uint8))

    @pytest.mark.parametrize("order", ["C", "F"])
    def test_functions(self, order: str) -> None:
        array = empty((300, 400), np.float32, order=order)
        assert (array.shape, array.dtype) == ((300, 400), np.float32)
        assert array.flags["F_CONTIGUOUS"] == (order == "F")
        assert is_shared(array)
        assert empty(10_000).dtype == np.float64
        like = empty_like(array)
        assert is_shared(like)
        assert (like.shape, like.dtype) == (array.shape, array.dtype)
        assert like.flags["F_CONTIGUOUS"] == (order == "F")
        assert empty_like(array, np.int8).dtype == np.int8
        zero = zeros((300, 400), order=order)
        assert is_shared(zero)
        assert not zero.any()
        assert not is_shared(np.empty((300, 400)))

    def test_functions_share_from_64_kib_on(self) -> None:
        assert is_shared(empty(65_536, np.uint8))
        assert not is_shared(empty(65_535, np.uint8))
        assert not is_shared(empty(0))
        assert empty(()).shape == ()

    def test_functions_inside_a_block(self) -> None:
        with shared_arrays(4 * MIB):
            assert is_shared(empty(MIB, np.uint8))
            assert not is_shared(np.empty(MIB, np.uint8))

    def test_recycled_zeros_are_zero(self) -> None:
        for _ in range(3):
            array = zeros(MIB, np.uint8)
            assert not array.any()
            array[:] = 1
            del array

    def test_arrays_of_objects(self) -> None:
        class Thing:
            pass

        things = [Thing() for _ in range(200_000)]
        last = weakref.ref(things[-1])
        with shared_arrays():
            array = np.array(things)
        del things
        gc.collect()
        assert is_shared(array)
        assert last() is not None
        del array
        assert last() is None

    def test_what_does_not_fit_is_private(self) -> None:
        # More than there is, and never touched: NumPy has always allowed that.
        with shared_arrays():
            array = np.empty(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), np.uint8)
        assert not is_shared(array)

    def test_more_arrays_than_descriptors(self) -> None:
        program = """if True:
            import resource
            import numpy as np
            from treadle.common._shared_memory import empty, is_shared
            _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (80, hard))
            arrays = [empty(65_536, np.uint8) for _ in range(100)]
            print(sum(map(is_shared, arrays)))
        """
        assert run(program) == "20"

    def test_a_handler_must_be_one(self) -> None:
        with pytest.raises(TypeError, match="Not a memory handler: 'no'"):
            _core.set_memory_handler("no")

    def test_without_numpy(self) -> None:
        program = """if True:
            import sys
            sys.modules["numpy"] = None
            from treadle.common._shared_memory import shared_arrays
            try:
                with shared_arrays():
                    pass
            except ImportError as error:
                print(error)
        """
        assert run(program) == (
            "Shared arrays need NumPy, which cannot be imported: `pip install numpy`."
        )


class TestLife:
    def test_an_array_outlives_its_block(self) -> None:
        with shared_arrays():
            array = np.full(MIB, 7, np.uint8)
        gc.collect()
        assert is_shared(array)
        assert (array == 7).all()

    def test_freed_memory_is_counted_and_used_again(self) -> None:
        before = live_bytes()
        array = empty(MIB, np.uint8)
        address = array.ctypes.data
        assert live_bytes() == before + MIB
        del array
        assert live_bytes() == before
        assert empty(MIB, np.uint8).ctypes.data == address

    def test_views_keep_the_memory(self) -> None:
        before = live_bytes()
        array = empty((1000, 1000), np.uint8)
        array[:] = 3
        views = [array[5:10, ::2], array.T, array[::-1, ::-1], array.reshape(-1)[7:], array[0]]
        del array
        assert all(map(is_shared, views))
        assert all((view == 3).all() for view in views)
        assert live_bytes() > before
        del views
        assert live_bytes() == before

    def test_what_is_not_all_in_one_segment_is_not_shared(self) -> None:
        array = empty(MIB, np.uint8)
        beyond = np.lib.stride_tricks.as_strided(array, (MIB + 1,), writeable=False)
        assert not is_shared(beyond)
        assert not is_shared(array[:0])

    @pytest.mark.parametrize("length", [MIB - 10, MIB + 1, 3 * MIB, 600_000, 10, 0])
    def test_resize(self, length: int) -> None:
        with shared_arrays():
            array = np.arange(MIB, dtype=np.uint8)
            array.resize(length, refcheck=False)
        expected = np.arange(min(length, MIB), dtype=np.uint8)
        assert (array[: len(expected)] == expected).all()
        assert not array[len(expected) :].any()
        assert is_shared(array) == (length >= 600_000)

    def test_resize_after_the_block(self) -> None:
        with shared_arrays():
            array = np.ones(MIB, np.uint8)
        array.resize(5 * MIB, refcheck=False)
        assert is_shared(array)
        assert array[:MIB].all()
        assert not array[MIB:].any()

    def test_growing_beyond_the_threshold_stays_private(self) -> None:
        with shared_arrays():
            array = np.ones(10, np.uint8)
            array.resize(2 * MIB, refcheck=False)
        assert not is_shared(array)
        assert array.sum() == 10

    def test_unknown_lengths(self) -> None:
        # NumPy reallocates while it reads.
        with shared_arrays():
            array = np.fromiter((i for i in range(300_000)), np.int64)
        assert (array == np.arange(300_000)).all()

    def test_pickling(self) -> None:
        array = empty(MIB, np.uint8)
        array[:] = np.arange(MIB)
        assert (pickle.loads(pickle.dumps(array)) == array).all()
        buffers: list[pickle.PickleBuffer] = []
        data = pickle.dumps(array, protocol=5, buffer_callback=buffers.append)
        with buffers[0].raw() as raw:
            assert raw.nbytes == MIB
        back = pickle.loads(data, buffers=buffers)
        assert is_shared(back)
        assert back.ctypes.data == array.ctypes.data

    def test_the_handler_goes_with_its_last_array(self) -> None:
        handler = _core.shared_memory_handler(MIB)

        def create() -> np.ndarray:
            previous = _core.set_memory_handler(handler)
            array = np.ones(MIB, np.uint8)
            assert _core.set_memory_handler(previous) is handler
            return array

        array = contextvars.copy_context().run(create)
        references = sys.getrefcount(handler)
        del array
        assert sys.getrefcount(handler) == references - 1


class TestThreads:
    def test_a_block_is_of_its_thread(self) -> None:
        inside = threading.Event()
        leave = threading.Event()

        def other() -> bool:
            with shared_arrays():
                inside.set()
                assert leave.wait(30)
                return is_shared(np.empty(MIB, np.uint8))

        with ThreadPoolExecutor(1) as pool:
            there = pool.submit(other)
            assert inside.wait(30)
            assert not is_shared(np.empty(MIB, np.uint8))
            leave.set()
            assert there.result(30)
            assert not pool.submit(lambda: is_shared(np.empty(MIB, np.uint8))).result(30)

    def test_a_block_is_of_its_task(self) -> None:
        async def born_shared() -> bool:
            await asyncio.sleep(0)
            return is_shared(np.empty(MIB, np.uint8))

        async def main() -> list[bool]:
            with shared_arrays():
                child = asyncio.create_task(born_shared())
            return [await child, await born_shared()]

        assert asyncio.run(main()) == [True, False]

    def test_arrays_made_here_and_freed_there(self) -> None:
        def make(byte: int) -> np.ndarray:
            with shared_arrays():
                for _ in range(20):
                    np.full(MIB, byte, np.uint8)
                return np.full(MIB, byte, np.uint8)

        with ThreadPoolExecutor(4) as pool:
            arrays = list(pool.map(make, range(16)))
        for byte, array in enumerate(arrays):
            assert is_shared(array)
            assert (array == byte).all()

    def test_a_graph_inside_a_block(self, get: Callable) -> None:
        graph = {
            **{("x", i): (np.full, MIB, i, np.uint8) for i in range(10)},
            **{("y", i): (np.add, ("x", i), 1) for i in range(10)},
        }
        keys = [("y", i) for i in range(10)]
        with shared_arrays():
            values = get(graph, keys)
        for i, value in enumerate(values):
            assert is_shared(value)
            assert (value == i + 1).all()
        assert not any(map(is_shared, get(graph, keys)))


class TestForks:
    """Each in a process of its own: a fork concerns all shared memory of a process."""

    prelude = """if True:
        import os, signal
        import numpy as np
        from treadle import _core
        from treadle.common._shared_memory import empty, zeros, is_shared

        def fork(child):
            pid = os.fork()
            if pid == 0:
                signal.alarm(30)  # not left behind if its parent fails
                status = 1
                try:
                    child()
                    status = 0
                finally:
                    os._exit(status)
            return lambda: os.waitpid(pid, 0)[1]

        MIB = 1 << 20
        array = empty(MIB, np.uint8)
        array[:] = 1
    """

    def test_writes_are_seen_on_one_side_only(self) -> None:
        program = """
        to_child = os.pipe()
        to_parent = os.pipe()
        def child():
            os.read(to_child[0], 1)
            assert (array == 1).all()
            array[MIB // 2:] = 3
            os.write(to_parent[1], b".")
        wait = fork(child)
        array[: MIB // 2] = 2
        os.write(to_child[1], b".")
        os.read(to_parent[0], 1)
        assert (array[: MIB // 2] == 2).all() and (array[MIB // 2:] == 1).all()
        print(wait())
        """
        assert run(self.prelude + program) == "0"

    def test_a_child_frees_and_allocates_for_itself(self) -> None:
        program = """
        kept = array
        address = array.ctypes.data
        def child():
            global array, kept
            del array, kept
            assert not any(_core.shared_memory_stats().values())
            others = [empty(MIB, np.uint8) for _ in range(5)]
            for other in others:
                other[:] = 9
                assert is_shared(other)
        print(fork(child)())
        assert (array == 1).all()
        """
        assert run(self.prelude + program) == "0"

    def test_what_the_parent_frees_stays_in_the_child(self) -> None:
        program = """
        to_child = os.pipe()
        def child():
            os.read(to_child[0], 1)
            assert (array == 1).all()
            assert is_shared(array)
        wait = fork(child)
        del array
        others = [empty(MIB, np.uint8) for _ in range(5)]
        for other in others:
            other[:] = 9
        os.write(to_child[1], b".")
        print(wait())
        """
        assert run(self.prelude + program) == "0"

    def test_processes_of_multiprocessing(self) -> None:
        program = """
        import multiprocessing
        context = multiprocessing.get_context("fork")
        def total(scale):
            own = empty(MIB, np.uint8)
            own[:] = scale
            array[:] = own * array
            return int(array.sum()) // MIB, is_shared(own)
        with context.Pool(2) as pool:
            print(pool.map(total, [2, 2, 2, 2], chunksize=4), int(array.sum()) // MIB)
        """
        expected = "[(2, True), (4, True), (8, True), (16, True)] 1"
        assert run(self.prelude + program) == expected


def run(program: str) -> str:
    """What the program writes, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", program],
        stdout=subprocess.PIPE,
        text=True,
        timeout=60,
        check=True,
        env=os.environ,
    )
    return done.stdout.strip()
