"""Fixtures of the tests of the public surface of `distributed.Client`.

TREADLE_TESTS_AGAINST=distributed runs the same tests against distributed itself, which proves
that they state its behaviour and not an opinion. Without it they run against `treadle.Client`.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import logging
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dask.config
import distributed
import pytest

from client_support import (
    AGAINST,
    SOON,
    Gate,
    Shared,
    addresses,
    client_class,
    connect,
    make_client,
    make_in_process_client,
)
from process_support import Process

if TYPE_CHECKING:
    from service_support import Servers

HERE = Path(__file__).parent
# The files that take longest. They begin first: processes share files, and none works on alone at the end.
LONGEST = (
    "test_blocks",
    "test_reliability_shuffle",
    "test_shuffle_service_memory",
    "test_reliability_pause",
    "test_reliability_kill",
    "test_reliability_replaced",
    "test_reliability_memory",
    "test_definitions",
    "test_memory",
    "test_limits",
    "test_scripts",
)
FAILED = pytest.StashKey[bool]()


def open_points() -> dict[str, str]:
    """Tests that do not pass on Treadle yet, with their reasons: one that passes is an error."""
    points = {}
    for line in (HERE / "open.txt").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            test, _, reason = line.partition(": ")
            points[test] = reason
    return points


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if AGAINST == "treadle":
        points = open_points()
        for item in items:
            name = f"{item.path.name}::{item.name}"
            if item.path.is_relative_to(HERE) and name in points:
                item.add_marker(pytest.mark.xfail(reason=points[name], strict=True))
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.stem, len(places)))
    # A signal ends one test and leaves the others alone; the thread method would end the run.
    for item in items:
        if item.path.is_relative_to(HERE) and not item.get_closest_marker("timeout"):
            # A process may take as long to end as other tests may take in all.
            starts = "start" in getattr(item, "fixturenames", ())
            limit = (4 if starts else 2) * SOON
            item.add_marker(pytest.mark.timeout(limit, method="signal"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo) -> Any:
    report = yield
    if report.when == "call":
        # A failure that is expected leaves as much behind.
        item.stash[FAILED] = call.excinfo is not None
    return report


def left_over(client: distributed.Client) -> dict[str, Any]:
    """The keys that the client or its cluster still know."""
    for state in list(client.futures.values()):
        # A future that raised holds its exception, whose traceback holds the frame of the test,
        # which holds the future: distributed lets go of none of them.
        error = getattr(state, "exception", None)
        if isinstance(error, BaseException):
            traceback.clear_frames(error.__traceback__)
        del error, state
    gc.collect()
    # A cancelled future is nothing that the cluster keeps; caches of Dask may still hold it.
    futures = {
        key: state
        # A collection between two items could remove some: a copy is made at once.
        for key, state in client.futures.copy().items()
        if getattr(state, "status", None) != "cancelled"
    }
    return {**client.who_has(), **futures}


@pytest.fixture(scope="module", autouse=True)
def no_client_is_left() -> Iterator[None]:
    """A client that stays connected is in the traces and among the clusters of later modules."""
    yield
    if AGAINST != "treadle":
        return
    from treadle import processes
    from treadle._compat.distributed import current_client
    from treadle.client._connected import connected

    processes._close()
    left = [client for client in connected if client.status == "running"]
    for client in left:
        client.close(timeout=SOON)
    assert not left, f"the tests of this module have left clients open: {left}"
    scheduler = dask.config.get("scheduler", None)
    assert scheduler is None, f"the tests of this module have left {scheduler} as Dask's scheduler"
    current = current_client.get()
    assert current is None, f"the tests of this module have left {current} as the current client"


def lend(shared: Shared, request: pytest.FixtureRequest) -> Iterator[distributed.Client]:
    yield shared.get()
    if request.node.stash.get(FAILED, False):
        shared.drop()
        return
    assert shared.client is not None
    until = time.monotonic() + SOON
    while keys := left_over(shared.client):
        if time.monotonic() > until:
            shared.drop()
            pytest.fail(f"the test left keys behind: {keys}")
        time.sleep(0.01)
        shared.client.run(gc.collect)


@pytest.fixture(scope="module")
def shared_client() -> Iterator[Shared]:
    shared = Shared(make_client)
    yield shared
    shared.drop()


@pytest.fixture
def client(shared_client: Shared, request: pytest.FixtureRequest) -> Iterator[distributed.Client]:
    """A synchronous client of two workers of one thread each, shared by a module's tests."""
    yield from lend(shared_client, request)


@pytest.fixture(scope="module")
def shared_in_process_client() -> Iterator[Shared]:
    shared = Shared(make_in_process_client)
    yield shared
    shared.drop()


@pytest.fixture
def in_process_client(
    shared_in_process_client: Shared, request: pytest.FixtureRequest
) -> Iterator[distributed.Client]:
    """A client whose tasks run on two threads of this process."""
    yield from lend(shared_in_process_client, request)


@pytest.fixture
def fresh_client() -> Iterator[distributed.Client]:
    """A client with two workers of its own, for tests that restart, kill or retire them."""
    client = make_client()
    yield client
    with suppress(Exception):
        client.close(timeout=SOON)


@pytest.fixture
def new_client() -> Iterator[Callable[..., distributed.Client]]:
    """Makes clients with workers as the test wants them, and closes them afterwards."""
    made: list[distributed.Client] = []

    def make(**kwargs: Any) -> distributed.Client:
        client = make_client(**kwargs)
        made.append(client)
        return client

    yield make
    for client in reversed(made):
        with suppress(Exception):
            client.close(timeout=SOON)


@pytest.fixture
def second_client(client: distributed.Client) -> Iterator[distributed.Client]:
    """Another client of the cluster of `client`; it is not the default one."""
    second = connect(client, set_as_default=False)
    yield second
    with suppress(Exception):
        second.close(timeout=SOON)


class AsyncClient:
    """What a coroutine test asks for; it is started in the loop of the test."""

    def __init__(self, client: distributed.Client) -> None:
        self.client = client

    async def start(self) -> distributed.Client:
        return await connect(self.client, asynchronous=True)


@pytest.fixture
def async_client(client: distributed.Client) -> AsyncClient:
    """An asynchronous client of the module's cluster; only for `async def` tests."""
    return AsyncClient(client)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    arguments = {name: pyfuncitem.funcargs[name] for name in names}

    async def run() -> None:
        started = {}
        for name, value in arguments.items():
            if isinstance(value, AsyncClient):
                started[name] = await value.start()
        try:
            await pyfuncitem.obj(**{**arguments, **started})
        finally:
            for client in started.values():
                await client.close()

    asyncio.run(run())
    return True


@pytest.fixture
def workers(client: distributed.Client) -> list[str]:
    """The addresses of the two workers of `client`."""
    found = addresses(client)
    assert len(found) == 2
    return found


@pytest.fixture
def gates(tmp_path: Path) -> Iterator[Callable[[], Gate]]:
    """Makes gates, and opens them in the end."""
    made: list[Gate] = []

    def gate() -> Gate:
        directory = tmp_path / f"gate-{len(made)}"
        directory.mkdir()
        made.append(Gate(directory))
        return made[-1]

    yield gate
    for one in made:
        one.open()


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    directory = tmp_path / "gate"
    directory.mkdir()
    gate = Gate(directory)
    yield gate
    gate.open()  # a test that failed must not leave its tasks waiting


@pytest.fixture
def quiet() -> Iterator[None]:
    """Nothing is logged: what is logged with a traceback is kept, and its futures with it."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """The file of a secret of this test alone."""
    secret = tmp_path / "secret"
    secret.touch(mode=0o600)
    secret.write_text("a secret of this test alone")
    return secret


@pytest.fixture
def start(secret: Path) -> Iterator[Callable[..., Process]]:
    """Starts commands of `treadle` that share the secret of the test, and ends them."""
    started: list[Process] = []

    def start(*arguments: str, **options: Any) -> Process:
        process = Process(*arguments, secret=options.pop("secret", secret), **options)
        started.append(process)
        return process

    yield start
    for process in reversed(started):
        process.end()


@pytest.fixture
def new_servers(
    start: Callable[..., Process], tmp_path: Path, secret: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Servers]]:
    """Makes a shuffle service of processes: a master, and servers of the names and options that are given."""
    from service_support import Servers

    monkeypatch.setenv("TREADLE_SECRET_FILE", str(secret))
    made: list[Servers] = []

    def make(
        names: Iterable[str] = (), *options: str, journal: str = "none", timeout: float = 10.0
    ) -> Servers:
        servers = Servers(start, tmp_path, journal, timeout)
        made.append(servers)
        for name in names:
            servers.begin(name, *options)
        servers.ready()
        return servers

    yield make
    for servers in made:
        with suppress(OSError):
            servers.service.close()


@pytest.fixture
def few_rows_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has shuffle servers that are started from now on write most rows to files."""
    monkeypatch.setenv("TREADLE_TESTING_SHUFFLE_ROWS", "250000")


@pytest.fixture
def join(secret: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Connects clients to a scheduler that `start` started, and closes them."""
    monkeypatch.setenv("TREADLE_SECRET_FILE", str(secret))
    made: list[distributed.Client] = []

    def join(scheduler: Process, **options: Any) -> distributed.Client:
        client = client_class()(scheduler.address, **{"set_as_default": not made, **options})
        made.append(client)
        return client

    yield join
    for client in reversed(made):
        with suppress(Exception):
            client.close(timeout=SOON)


@pytest.fixture
def dask_client(tmp_path):
    """Makes Dask clusters of processes, with a client each."""
    made = []

    def make(**options):
        options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": ":0"} | options
        cluster = distributed.LocalCluster(local_directory=str(tmp_path), **options)
        made.append(cluster)
        client = distributed.Client(cluster, set_as_default=False)
        made.append(client)
        # Workers that have just begun are not running yet, and take nothing.
        if options["n_workers"]:
            client.wait_for_workers(options["n_workers"], timeout=SOON)
        return client

    yield make
    for one in reversed(made):
        one.close()
