"""``treadle shuffle-registry list``: the servers of a registry. The suite of registries is crates/shuffle/registry/tests."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from treadle.__main__ import main
from treadle.shuffle import Service


def listed(url: str, *options: str) -> Result:
    """Run the command."""
    return CliRunner().invoke(main, ["shuffle-registry", "list", url, *options])


def test_a_file_is_listed_and_lines_that_are_no_addresses_are_named(tmp_path: Path) -> None:
    path = tmp_path / "servers"
    path.write_text("first:7791\nsecond\ntreadle+tls://third:7791\n")
    done = listed(f"static:{path}")
    assert done.exit_code == 0, done.output
    assert "treadle://first:7791" in done.output
    assert "treadle+tls://third:7791" in done.output
    assert "line 2" in done.output
    done = listed(f"static:{path}", "--json", str(tmp_path / "out"))
    told = json.loads((tmp_path / "out").read_text())
    assert [one["domain"] for one in told["servers"]] == ["third", "first"]
    assert told["servers"][0]["free_bytes"] is None
    assert [one["node"] for one in told["skipped"]] == [f"line 2 of {path}"]


def test_a_master_is_a_registry() -> None:
    with Service(servers=2) as service:
        done = listed(str(service.address), "--timeout", "30")
        assert done.exit_code == 0, done.output
        for server in service.state()["servers"]:
            assert server["address"] in done.output


@pytest.mark.parametrize(
    ("url", "part"),
    [
        ("consul://host/a", '"consul" is no registry'),
        ("zk://host", "zk://host/treadle"),
        ("etcd://user:hidden@host/a", "TREADLE_REGISTRY_PASSWORD"),
        ("etcd+tls://host/a", "TREADLE_REGISTRY_CA"),
        ("static:/does/not/exist", "/does/not/exist"),
        ("etcd://127.0.0.1:1/a", "no host can be reached"),
        ("zk://127.0.0.1:1/a", "no host can be reached"),
    ],
)
def test_what_cannot_be_used_is_said(url: str, part: str) -> None:
    done = listed(url, "--timeout", "3")
    assert done.exit_code == 1
    assert part in done.output
    assert "hidden" not in done.output


def test_half_of_the_credentials_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TREADLE_REGISTRY_USER", "somebody")
    done = listed("etcd://127.0.0.1:1/a")
    assert done.exit_code == 1
    assert "TREADLE_REGISTRY_PASSWORD is not" in done.output
