"""Make the pictures of the dashboard in `docs/pictures/dashboard`, to be looked at: `pictures_of_dashboard.py INTO`."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
from PIL import Image

import browser
import treadle
from treadle.shuffle import Service

WIDTH = 1120
# Bytes of a picture, at most.
MOST = 60_000
# Views with the height of their pictures.
VIEWS = {
    "overview": ("overview", 760),
    "stream": ("stream", 560),
    "by-group": ("stream?by=group", 440),
    "groups": ("groups", 560),
    "workers": ("workers", 430),
    "transfers": ("transfers", 520),
    "shuffles": ("shuffles", 260),
    "casts": ("casts", 260),
    "profile": ("profile", 430),
    "logs": ("logs", 300),
    "task": ("task?key=report-1", 460),
}

# Pixels that all columns of a table take.
WIDER = {"workers": 1500}
# Those that are taken again with dark colours, and on a telephone.
AGAIN = ("overview", "stream")
PHONE = (390, 780)


def load(number: int) -> Any:
    time.sleep(0.05)
    return np.random.default_rng(number).random(1 << 17)


def clean(values: Any) -> Any:
    for _ in range(3):
        values = np.sort(values)[: len(values) - 1000]
    return values


def merge(*parts: Any) -> Any:
    time.sleep(0.02 * len(parts))
    return np.concatenate(parts)


def report(*parts: Any) -> float:
    logging.getLogger("distributed.worker").warning("%s parts, some of them short", len(parts))
    time.sleep(0.4)
    return float(sum(part.sum() for part in parts))


def refuse(number: int) -> None:
    raise ValueError(f"part {number} has no column 'price'")


def wait_for(path: str) -> None:
    while not Path(path).exists():
        sum(range(10_000))
        time.sleep(0.001)


def work(client: treadle.Client) -> list[Any]:
    """Do something of each kind; return what has to stay."""
    parts = client.map(load, range(64), pure=False)
    cleaned = client.map(clean, parts, pure=False)
    merged = [client.submit(merge, *cleaned[at::8], key=f"merge-{at}") for at in range(8)]
    reports = [client.submit(report, *merged[at::2], key=f"report-{at}") for at in range(2)]
    client.gather(reports)
    # A task's picture has what its worker logs right after it: not these, whose tracebacks name the machine's folders.
    time.sleep(1)
    bad = client.map(refuse, range(3), pure=False)
    for one in bad:
        one.exception()
    with dask.config.set({"array.rechunk.method": "p2p"}):
        rows = da.random.default_rng(0).random((3000, 3000), chunks=(300, 3000))
        rows.rechunk((3000, 300)).sum().compute()
    view = client[:]
    view.push({"weights": np.ones(1 << 20)}, block=True)
    for _ in range(3):
        view.apply_sync(os.getpid)
    return [parts, cleaned, merged, reports, bad]


@contextmanager
def cluster() -> Iterator[str]:
    """The link to the page of a cluster that has done something, and does."""
    with (
        tempfile.TemporaryDirectory() as folder,
        treadle.LocalCluster(4, threads_per_worker=2) as workers,
        treadle.Client(workers) as client,
    ):
        kept = work(client)
        go = Path(folder, "go")
        waiting = [client.submit(wait_for, str(go), key=f"wait-{at}") for at in range(2)]
        # It is told of after a second.
        time.sleep(4)
        yield str(client.dashboard_link)
        go.touch()
        client.gather(waiting)
        del kept


def command(stack: ExitStack, *arguments: str) -> str:
    """Start a command of Treadle, and give the address at which it listens."""
    process = subprocess.Popen(
        [sys.executable, "-m", "treadle", *arguments], stdout=subprocess.PIPE, text=True
    )
    stack.callback(process.wait)
    stack.callback(process.kill)
    assert process.stdout is not None
    told = {}
    for line in process.stdout:
        name, _, value = line.strip().partition(" at ")
        told[name] = value
        if name == "listening":
            return told.get("state and metrics", "") if "master" in arguments[0] else value
    raise AssertionError(f"treadle {' '.join(arguments)} does not listen")


@contextmanager
def service() -> Iterator[str]:
    """The link to the page of a shuffle service that has done something, and does."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for name, text in (("secret", "s" * 32), ("token", "t" * 32)):
            path = folder / name
            path.touch(mode=0o600)
            path.write_text(text)
        os.environ["TREADLE_SECRET_FILE"] = str(folder / "secret")
        token = ("--http-token-file", str(folder / "token"))
        address = "127.0.0.1:17790"
        http = command(stack, "shuffle-master", address, *token)
        for name in ("rack1-a", "rack1-b", "rack2-a"):
            place = ("--local-directory", str(folder / name), "--memory-limit", "600MB")
            command(stack, "shuffle-server", address, "--name", name, "--domain", name, *place)
        connection = stack.enter_context(Service(address, own_master=False))
        rows = np.arange(200_000)
        numbers = np.minimum(np.random.default_rng(0).zipf(1.6, len(rows)) - 1, 31)
        shuffles = []
        for number, name in enumerate(("orders by customer", "join of line items", "sort")):
            shuffle = connection.shuffle(8, 32, "i8", name=name)
            shuffles.append(shuffle)
            targets = rows % 32 if number == 1 else numbers
            receipts = [shuffle.write(at, rows, targets) for at in range(8 if number < 2 else 5)]
            if number < 2:
                shuffle.commit(receipts)
                shuffle.reader().read(3)
            if number == 0:
                shuffle.close()
        time.sleep(2)
        yield f"{http.rstrip('/')}/?token={'t' * 32}"
        for shuffle in shuffles[1:]:
            shuffle.close()


async def take(
    tab: browser.Browser, link: str, path: Path, height: int, width: int = WIDTH
) -> None:
    await tab.size(width, height, phone=width < WIDTH)
    await tab.open("about:blank")
    await tab.open(link)
    await asyncio.sleep(2.5)
    await tab.picture(path)
    # Few colours are as good, and a third of the bytes.
    Image.open(path).convert("RGB").quantize(256).save(path, optimize=True)
    assert path.stat().st_size <= MOST, f"{path}: {path.stat().st_size} bytes"


async def pictures(link: str, of_service: str, into: Path) -> None:
    async with browser.Browser(browser.find() or "chromium") as tab:
        await tab.scheme("light")
        for name, (view, height) in VIEWS.items():
            of_view = f"{link}#/{view}"
            await take(tab, of_view, into / f"{name}.png", height, WIDER.get(name, WIDTH))
            if name in AGAIN:
                width, long = PHONE
                await take(tab, of_view, into / f"{name}-phone.png", long, width)
                await tab.scheme("dark")
                await take(tab, of_view, into / f"{name}-dark.png", height)
                await tab.scheme("light")
        await take(tab, of_service, into / "service.png", 560)


if __name__ == "__main__":
    with cluster() as link, service() as of_service:
        asyncio.run(pictures(link, of_service, Path(sys.argv[1])))
