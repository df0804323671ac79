"""Logins: their end, their lines in the audit log, and tokens that change while the coordinator runs."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from served_support import JOB, Served
from treadle.coordinator import _store
from treadle.coordinator._access import Access, TokenFile
from treadle.coordinator._app import app_of
from treadle.coordinator._logins import Logins, Refusals
from treadle.coordinator._pages import add_pages

OLD, NEW = "0123456789abcdef", "fedcba9876543210"


def lines(served: Served, of: str = "logins") -> list[tuple[str, str, dict]]:
    # What is written later is written before what is written now.
    served.coordinator.database.write_now(lambda _: None)
    told = served.viewer.get(f"/api/audit?of={of}&limit=500").json()
    return [(one["who"], one["what"], one["body"]) for one in reversed(told)]


def test_logins_and_their_ends_are_in_the_audit_log(served: Served) -> None:
    token = served.access.new_token("victor", "viewer")
    visitor = TestClient(served.app, follow_redirects=False)
    assert visitor.post("/login", json={"token": token}).status_code == 200
    assert "Log out" in visitor.get("/").text
    # By a token of a program there is nothing to log out of.
    assert "Log out" not in served.viewer.get("/").text
    assert visitor.post("/logout", json={}).status_code == 200
    assert visitor.get("/").status_code == 303
    assert visitor.post("/logout", json={}).status_code == 200
    assert lines(served) == [
        ("victor", "logged in", {"role": "viewer"}),
        ("victor", "logged out", {}),
    ]
    assert lines(served, "changes") == []
    page = served.viewer.get("/audit?of=logins").text
    assert "logged out" in page
    assert token not in page


def test_refusals_are_in_the_audit_log_without_what_was_given(served: Served) -> None:
    visitor = TestClient(served.app, raise_server_exceptions=False)
    # Nobody has knocked who has shown nothing.
    assert visitor.get("/api/rules").status_code == 401
    wrong = {"Authorization": "Bearer a-wrong-token-of-somebody"}
    assert visitor.get("/api/rules", headers=wrong).status_code == 401
    assert visitor.post("/login", json={"token": "a-wrong-token-of-somebody"}).status_code == 401
    assert served.viewer.post("/api/switch", json={"is_on": False}).status_code == 403
    assert visitor.post("/api/decisions", json={"job": JOB}, headers=wrong).status_code == 401
    path = "/webhook/kubernetes/a-wrong-token-of-somebody"
    assert visitor.post(path, json={}).status_code == 401
    told = lines(served)
    assert [(who, what, body["path"]) for who, what, body in told] == [
        ("unknown", "refused", "/api/rules"), ("unknown", "refused", "/login"),
        ("the viewer", "refused", "/api/switch"), ("unknown", "refused", "/api/decisions"),
        ("unknown", "refused", "/webhook"),
    ]  # fmt: skip
    assert told[2][2]["why"] == "viewer is not operator"
    assert "a-wrong-token" not in str(told)


def test_who_knocks_again_and_again_does_not_fill_the_audit_log(served: Served) -> None:
    now = [1.0]
    served.app.state.logins = Logins(served.coordinator, lambda: now[0])
    visitor = TestClient(served.app)
    wrong = {"Authorization": "Bearer a-wrong-token-of-somebody"}
    for _ in range(100):
        visitor.get("/api/rules", headers=wrong)
    assert len(lines(served)) == 20
    now[0] += 60.0
    visitor.get("/api/rules", headers=wrong)
    assert lines(served)[20:] == [
        ("unknown", "refused", {"path": "/api/rules", "why": "nobody has this token", "others": 80})
    ]
    refusals = Refusals(2, 60.0)
    assert [refusals.take(at) for at in (0.0, 1.0, 2.0, 59.0)] == [0, 0, None, None]
    assert [refusals.take(at) for at in (60.0, 61.0, 62.0)] == [2, 0, None]


def test_of_lines_about_logins_the_latest_are_kept(served: Served) -> None:
    for n in range(6):
        served.coordinator.note("olga", "rule made", f"rule {n}")
        served.coordinator.note("victor", "logged in", f"{n}")
    served.coordinator.database.write_now(lambda c: _store.forget_logins(c, 4))
    served.coordinator.database.write_now(lambda c: _store.forget_logins(c, 4))
    told = served.viewer.get("/api/audit").json()
    assert [one["subject"] for one in told if one["what"] == "logged in"] == ["5", "4", "3", "2"]
    assert len(lines(served, "changes")) == 6


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    path = tmp_path / "tokens"
    path.touch(mode=0o600)
    path.write_text(f"operator olga {OLD}\nviewer victor victors-own-token\n")
    return path


def role(access: Access, token: str) -> str | None:
    who = access.who("GET", {"authorization": f"Bearer {token}"}, "", None)
    return None if who is None else f"{who.role} {who.name}"


def test_tokens_are_replaced_while_it_runs(tokens: Path, caplog: pytest.LogCaptureFixture) -> None:
    access = Access(TokenFile(tokens))
    own = access.new_token("printed", "operator")
    assert (role(access, OLD), role(access, NEW)) == ("operator olga", None)
    # One name may have several: the new one is there before the old one goes.
    tokens.write_text(f"operator olga {OLD}\noperator olga {NEW}\n")
    assert role(access, OLD) == role(access, NEW) == "operator olga"
    assert role(access, "victors-own-token") is None
    tokens.write_text(f"viewer olga {NEW}\n")
    assert (role(access, OLD), role(access, NEW)) == (None, "viewer olga")
    with caplog.at_level(logging.WARNING, "treadle.coordinator"):
        for broken in ("operator olga short\n", "nonsense\n"):
            tokens.write_text(broken)
            assert role(access, NEW) == "viewer olga"
        other = tokens.with_name("other")
        tokens.rename(other)
        for _ in range(3):
            assert role(access, NEW) == "viewer olga"
        other.write_text(f"operator olga {OLD}\n")
        other.rename(tokens)
        assert (role(access, OLD), role(access, NEW)) == ("operator olga", None)
        tokens.write_text(f"operator olga {NEW}\n")
        tokens.chmod(0o644)
        assert role(access, OLD) == "operator olga"
    told = [one.getMessage() for one in caplog.records]
    # Once for each thing that is wrong: what is wrong with the first two is the same.
    assert len(told) == 3, told
    assert all("the tokens of before count" in one for one in told)
    assert "short" not in told[0]
    assert role(access, own) == "operator printed"


def test_a_token_that_is_gone_ends_its_sessions(served: Served, tokens: Path) -> None:
    access = Access(TokenFile(tokens), hosts=["testserver"])
    app = app_of(served.coordinator, access)
    add_pages(app)
    olga, victor = (TestClient(app, follow_redirects=False) for _ in range(2))
    assert olga.post("/login", json={"token": OLD}).status_code == 200
    assert victor.post("/login", json={"token": "victors-own-token"}).status_code == 200
    change = {"headers": {"Origin": "http://testserver"}, "json": {"is_on": True}}
    assert olga.post("/api/switch", **change).status_code == 200
    tokens.write_text(f"viewer olga {OLD}\n")
    # Her role is what the file says now, and he has none.
    assert olga.get("/rules").status_code == 200
    assert olga.post("/api/switch", **change).status_code == 403
    assert victor.get("/rules").status_code == 303
    tokens.write_text(f"operator olga {NEW}\n")
    assert olga.get("/rules").status_code == 303
    tokens.write_text(f"operator olga {OLD}\n")
    # A session that has ended does not begin again.
    assert olga.get("/rules").status_code == 303
