"""The scheduler's pages: who is shown what, and what that costs the others."""

from __future__ import annotations

import json
import os
import pty
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest

import treadle
from client_support import AGAINST, SOON, inc
from test_reliability_garbage import port_of

pytestmark = pytest.mark.skipif(AGAINST != "treadle", reason="the pages are Treadle's")

PAGES = ("/status", "/metrics", "/json/state")


def get(url, **headers):
    """The status of an answer, and its text."""
    try:
        with urllib.request.urlopen(
            urllib.request.Request(url, headers=headers), timeout=SOON
        ) as page:
            return page.status, page.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def is_shut(base):
    for path in PAGES:
        status, text = get(base + path)
        assert status == 401, text
        assert "token" in text
    assert get(f"{base}/health") == (200, "ok\n")


def test_the_link_of_a_client_opens_the_pages_and_nothing_else_does():
    with treadle.Client(processes=False) as client:
        link = client.dashboard_link
        base, _, token = link.partition("/status?token=")
        is_shut(base)
        assert get(link)[0] == 200
        state = json.loads(get(f"{base}/json/state?token={token}")[1])
        assert len(state["workers"]) == 1
        assert "treadle_workers" in get(f"{base}/metrics", Authorization=f"Bearer {token}")[1]
        # Another client, which is in since it knows the secret, is told the same.
        with treadle.Client(client.scheduler.address) as other:
            assert other.dashboard_link == link
        assert get(link, Host="evil.example")[0] == 403
    with treadle.Client(processes=False) as client:
        assert client.dashboard_link.partition("token=")[2] != token


def test_a_dump_does_not_hold_the_token(tmp_path):
    with treadle.Client(processes=False) as client:
        link, _, token = client.dashboard_link.partition("/status?token=")
        client.dump_cluster_state(str(tmp_path / "dump"), format="yaml")
        dumped = (tmp_path / "dump.yaml").read_text()
        assert f"http: {link}/\n" in dumped
        assert token not in dumped


def test_a_token_may_be_in_a_file(start, tmp_path):
    token = tmp_path / "token"
    token.write_text("0123456789abcdef-of-a-file\n")
    token.chmod(0o644)
    arguments = ("scheduler", "--port", "0", "--http-token-file", str(token))
    refused = start(*arguments)
    assert refused.wait() == 1
    assert f"chmod 600 {token}" in refused.output
    token.chmod(0o600)
    scheduler = start(*arguments, "--http-name", "cluster.example")
    is_shut(scheduler.http)
    link = f"{scheduler.http}/?token=0123456789abcdef-of-a-file"
    assert get(link, Host="cluster.example:1")[0] == 200
    assert get(link, Host="other.example:1")[0] == 403
    assert "of-a-file" not in scheduler.output
    for unfit in ("short", "with white space and such", "0123456789abcdef&x=1"):
        token.write_text(unfit)
        refused = start(*arguments)
        assert refused.wait() == 1
        assert "Traceback" not in refused.output


def test_a_terminal_shows_the_link(secret):
    here, there = pty.openpty()
    environment = {**os.environ, "TREADLE_SECRET_FILE": str(secret)}
    command = [sys.executable, "-m", "treadle", "scheduler", "--port", "0"]
    with subprocess.Popen(command, env=environment, stdout=there) as scheduler:
        try:
            os.close(there)
            with open(here, encoding="utf-8") as terminal:
                link = terminal.readline().removeprefix("state and metrics at ").strip()
                assert get(link)[0] == 200
                assert terminal.readline().startswith("listening at ")
        finally:
            scheduler.terminate()


def test_a_scheduler_file_has_the_link(start, tmp_path):
    file = tmp_path / "scheduler.json"
    scheduler = start("scheduler", "--port", "0", "--scheduler-file", str(file))
    assert scheduler.address
    assert json.loads(file.read_text())["http"] == scheduler.link
    assert file.stat().st_mode & 0o077 == 0


def test_who_listens_at_all_addresses_is_found_at_its_own(start, join, tmp_path):
    file = tmp_path / "scheduler.json"
    arguments = ("--host", "0.0.0.0", "--port", "0", "--http", "0.0.0.0:0", "--insecure")
    scheduler = start("scheduler", *arguments, "--scheduler-file", str(file))
    assert scheduler.address
    told = json.loads(file.read_text())
    assert "0.0.0.0" not in told["address"] + told["http"]
    host, port = port_of(told["http"].partition("/?")[0])
    assert host == socket.gethostname()
    assert get(f"http://127.0.0.1:{port}/?{told['http'].partition('?')[2]}", Host=host)[0] == 200
    with treadle.Client(scheduler_file=str(file), set_as_default=False, insecure=True) as client:
        assert client.scheduler_info()["workers"] == {}
    contact = ("--contact-address", "cluster.example:7786")
    assert start("scheduler", *arguments, *contact, "--scheduler-file", str(file)).address
    assert json.loads(file.read_text())["address"] == "treadle://cluster.example:7786"


def test_pages_that_other_machines_reach_are_warned_of(start):
    warning = "can be reached from other machines"
    scheduler = start("scheduler", "--port", "0", "--http", "0.0.0.0:0")
    assert scheduler.address
    assert warning in scheduler.output
    _, port = port_of(scheduler.http)
    is_shut(f"http://127.0.0.1:{port}")
    token = scheduler.link.partition("token=")[2]
    own = f"http://127.0.0.1:{port}/json/state?token={token}"
    assert get(own)[0] == 200
    assert get(own, Host=socket.gethostname())[0] == 200
    assert get(own, Host="evil.example")[0] == 403
    ordinary = start("scheduler", "--port", "0")
    assert ordinary.address
    assert warning not in ordinary.output


def test_many_who_ask_at_once_are_answered_or_turned_away(start, join):
    scheduler = start("scheduler", "--port", "0")
    worker = start("worker", scheduler.address, "--nthreads", "1")
    assert worker.address
    client = join(scheduler)
    urls = [scheduler.link.replace("/?", f"{path}?") for path in PAGES[1:] * 50]

    def ask(url):
        # One that is refused before it is served may see its connection end.
        try:
            return get(url)[0]
        except OSError:
            return 503

    with ThreadPoolExecutor(32) as pool:
        answers = pool.map(ask, urls)
        for number in range(100):
            assert client.submit(inc, number).result(timeout=SOON) == number + 1
        statuses = set(answers)
    assert 200 in statuses
    assert statuses <= {200, 503}
    assert get(urls[0])[0] == 200
