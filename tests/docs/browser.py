"""A headless Chromium, driven over its DevTools protocol: pages, what goes wrong in them, and pictures."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from tornado.websocket import WebSocketClientConnection, websocket_connect

SOON = 30.0

# Without these, Chromium looks for its vendor's hosts at every start.
OFFLINE = (
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-quic",
    "--disable-sync",
    "--no-first-run",
)


def find() -> str | None:
    """The browser of this machine, or that of TREADLE_CHROMIUM."""
    told = os.environ.get("TREADLE_CHROMIUM")
    names = [told] if told else ["chromium", "chromium-browser", "google-chrome"]
    return next(filter(None, map(shutil.which, names)), None)


class Browser:
    """One tab. Use it with ``async with``.

    Attributes
    ----------
    wrong
        What went wrong since it was last emptied: exceptions, errors on the console, what did not load.
    """

    def __init__(self, program: str) -> None:
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        # The sandbox needs namespaces, which containers often lack.
        flags = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", *OFFLINE)
        self._process = subprocess.Popen(
            [
                program,
                *flags,
                "--remote-debugging-port=0",
                f"--user-data-dir={self._folder.name}",
                "about:blank",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._socket: WebSocketClientConnection
        self._next = 0
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._session: str | None = None
        self._loaded = asyncio.Event()
        self.wrong: list[str] = []

    async def __aenter__(self) -> Browser:
        told = Path(self._folder.name, "DevToolsActivePort")
        deadline = time.monotonic() + SOON
        while not (told.exists() and len(told.read_text().split()) == 2):
            assert self._process.poll() is None, "Chromium has ended"
            assert time.monotonic() < deadline, "Chromium does not listen"
            await asyncio.sleep(0.05)
        port, path = told.read_text().split()
        self._socket = await websocket_connect(
            f"ws://127.0.0.1:{port}{path}", max_message_size=2**28
        )
        self._reader = asyncio.create_task(self._read())
        target = await self.send("Target.createTarget", url="about:blank")
        attached = await self.send(
            "Target.attachToTarget", targetId=target["targetId"], flatten=True
        )
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            await self.send(f"{domain}.enable")
        return self

    async def __aexit__(self, *_: object) -> None:
        self._reader.cancel()
        self._socket.close()
        self._process.terminate()
        try:
            self._process.wait(SOON)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._folder.cleanup()

    async def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._next += 1
        message: dict[str, Any] = {"id": self._next, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        answer = self._answers[self._next] = asyncio.get_running_loop().create_future()
        await self._socket.write_message(json.dumps(message))
        found: dict[str, Any] = await asyncio.wait_for(answer, SOON)
        return found

    async def _read(self) -> None:
        while (text := await self._socket.read_message()) is not None:
            message = json.loads(text)
            if "id" in message:
                answer = self._answers.pop(message["id"])
                if "error" in message:
                    answer.set_exception(RuntimeError(message["error"]["message"]))
                else:
                    answer.set_result(message["result"])
            else:
                self._happened(message["method"], message["params"])

    def _happened(self, event: str, about: dict[str, Any]) -> None:
        if event == "Page.loadEventFired":
            self._loaded.set()
        elif event == "Runtime.exceptionThrown":
            details = about["exceptionDetails"]
            self.wrong.append(details.get("exception", {}).get("description") or details["text"])
        elif event == "Runtime.consoleAPICalled" and about["type"] in ("error", "assert"):
            self.wrong.append(" ".join(str(part.get("value", part)) for part in about["args"]))
        elif event == "Log.entryAdded" and about["entry"]["level"] == "error":
            self.wrong.append(about["entry"]["text"])
        elif event == "Network.responseReceived" and about["response"]["status"] >= 400:
            self.wrong.append(f"{about['response']['status']} {about['response']['url']}")
        elif event == "Network.loadingFailed" and not about.get("canceled"):
            self.wrong.append(f"{about['errorText']} ({about['type']})")
        elif event == "Network.requestWillBeSent":
            url = about["request"]["url"]
            if not url.startswith(("http://127.0.0.1", "data:", "blob:")):
                self.wrong.append(f"asks {url}")

    async def open(self, url: str) -> None:
        """Load a page, and wait until its scripts have run."""
        self._loaded.clear()
        await self.send("Page.navigate", url=url)
        await asyncio.wait_for(self._loaded.wait(), SOON)

    async def evaluate(self, expression: str) -> Any:
        told = await self.send("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in told, told
        return told["result"].get("value")

    async def size(self, width: int, height: int, phone: bool = False) -> None:
        await self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=phone,
        )

    async def scheme(self, name: str) -> None:
        """Prefer ``dark`` or ``light``."""
        await self.send(
            "Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}]
        )

    async def picture(self, path: Path, whole: bool = False) -> None:
        told = await self.send("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(told["data"]))
