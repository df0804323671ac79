"""`treadle shuffle-master` and `treadle shuffle-server`: security, pages, leaving."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from process_support import Process
from service_support import ROWS, Table
from test_reliability_tls import certs  # noqa: F401  fixture
from treadle.shuffle import Service
from waiting import SOON, until


@pytest.fixture
def master(start: Callable[..., Process], secret: Path, monkeypatch: pytest.MonkeyPatch) -> Process:
    monkeypatch.setenv("TREADLE_SECRET_FILE", str(secret))
    return start("shuffle-master", "127.0.0.1:0")


def names(service: Service) -> list[str]:
    return sorted(server["name"] for server in service.state()["servers"])


def test_rows_travel_with_certificates_and_others_are_kept_out(
    start: Callable[..., Process],
    certs: Callable[[str], tuple[str, dict[str, str]]],  # noqa: F811
    secret: Path,
    tmp_path: Path,
) -> None:
    prefix, _ = certs("ours")
    master = start("shuffle-master", "treadle+tls://127.0.0.1:0", "--tls", prefix)
    for name in ("a", "b"):
        options = ("--tls", prefix, "--name", name, "--domain", name, "--http", "none")
        assert start("shuffle-server", master.address, *options).address.startswith("treadle+tls:")
    table = Table(maps=3, partitions=5, rows=10_000)
    with Service(master.address, certificates=prefix, timeout=SOON) as service:
        until(lambda: names(service) == ["a", "b"], "both join")
        with service.shuffle(3, 5, ROWS) as shuffle:
            shuffle.commit(table.write_all(shuffle))
            table.compare(shuffle)
    with pytest.raises(OSError, match="certificate"):
        Service(master.address, certificates=certs("others")[1], timeout=5)
    other = tmp_path / "other"
    other.touch(mode=0o600)
    other.write_text("the secret of somebody else")
    plain = start("shuffle-master", "127.0.0.1:0")
    with pytest.raises(OSError, match="secret"):
        Service(plain.address, secret=other, timeout=5)


def test_a_server_shows_its_state_and_leaves_when_it_is_asked(
    master: Process, start: Callable[..., Process], secret: Path, tmp_path: Path
) -> None:
    place = ("--local-directory", str(tmp_path / "one"), "--local-directory", str(tmp_path / "two"))
    limit = ("--memory-limit", "1GiB")
    a = start("shuffle-server", master.address, "--name", "a", "--domain", "a", *place, *limit)
    b = start("shuffle-server", master.address, "--name", "b", "--domain", "b", "--http", "none")
    with Service(master.address, timeout=SOON) as service:
        until(lambda: names(service) == ["a", "b"], "both join")
        with service.shuffle(1, 4, "i8", name="kept") as shuffle:
            shuffle.commit([shuffle.write(0, np.arange(1000), np.arange(1000) % 4)])
            state = a.state()
            assert (state["name"], state["domain"], state["memory_limit"]) == ("a", "a", 1 << 30)
            assert state["directories"] == [str(tmp_path / "one"), str(tmp_path / "two")]
            assert state["counts"]["stored_bytes_total"] > 8000
            assert "treadle_shuffle_resident_bytes" in a.page("/metrics")
            with pytest.raises(urllib.error.HTTPError, match="401"):
                urllib.request.urlopen(f"{a.http}/json/state", timeout=SOON)

            same = start("shuffle-server", master.address, "--name", "a", "--http", "none")
            assert same.wait() == 1
            assert "another shuffle server is called a" in same.lines[-1]
            # Its rows are copied first.
            c = start("shuffle-server", master.address, "--name", "c", "--domain", "c")
            assert c.address
            asked = start("shuffle-server", master.address, "--drain", "--name", "a")
            assert (asked.wait(), a.wait()) == (0, 0), asked.output + a.output
            b.end()
            until(lambda: names(service) == ["c"], "the others are gone")
            assert np.array_equal(shuffle.reader().read(1), np.arange(1, 1000, 4))
        # Nobody can take the rows of the last one.
        with service.shuffle(1, 1, "i8", copies=1, name="last") as shuffle:
            shuffle.commit([shuffle.write(0, np.arange(10), 0)])
            waits = start("shuffle-server", master.address, "--drain", "--name", "c")
            said = r"c still holds \d+ bytes of applications .*, and no other server can take them"
            until(lambda: re.search(said, waits.output), lambda: waits.output)
        assert (waits.wait(), c.wait()) == (0, 0), waits.output + c.output
        # A server that a signal asks to leave says it, too.
        d = start("shuffle-server", master.address, "--name", "d", "--domain", "d")
        with (
            Service(master.address, own_master=False, timeout=SOON) as other,
            other.shuffle(1, 1, "i8", copies=1, name="later") as shuffle,
        ):
            shuffle.commit([shuffle.write(0, np.arange(10), 0)])
            d.send(signal.SIGTERM)
            said = r"d still holds 1 partition, and no other server can take them.*\(later\)"
            until(lambda: re.search(said, d.output), lambda: d.output)
        assert d.wait() == 0, d.output
        unknown = start("shuffle-server", master.address, "--drain", "--name", "nobody")
        assert unknown.wait() == 1
        assert "no shuffle server is called nobody" in unknown.lines[-1]
        assert "Traceback" not in unknown.output + same.output


def test_operators_need_only_what_the_commands_need(master: Process) -> None:
    code = """
import sys
sys.modules.update(dict.fromkeys(["numpy", "pandas", "distributed"]))
from treadle.__main__ import main
main()
"""
    for status, said, arguments in (
        (
            1,
            "no shuffle server is called nobody",
            ("shuffle-server", "--drain", "--name", "nobody"),
        ),
        (0, "", ("shuffle", "list", "--service")),
    ):
        command = [sys.executable, "-c", code, *arguments, master.address]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=SOON, check=False)
        assert ran.returncode == status, ran.stderr
        assert said in ran.stderr
