"""Windows: times in which no change is tried, by the interface and on the page."""

from __future__ import annotations

import pytest

from served_support import Served


def windows(served: Served) -> list[tuple[float, float, str]]:
    told = served.viewer.get("/api/windows").json()["windows"]
    return [(one["begins"], one["ends"], one["reason"]) for one in told]


def test_windows_are_added_listed_and_removed(served: Served) -> None:
    assert windows(served) == []
    late = {"begins": 300, "ends": 400, "reason": "the quarter ends"}
    early = {"begins": 100.5, "ends": 200}
    for one in (late, early, late):
        assert served.operator.post("/api/windows/add", json=one).status_code == 200
    assert windows(served) == [(100.5, 200, ""), (300, 400, "the quarter ends")]
    page = served.operator.get("/stories").text
    assert "1970-01-01 00:05 to 1970-01-01 00:06" in page
    assert "/api/windows/remove" in page
    assert "/api/windows/remove" not in served.viewer.get("/stories").text
    assert served.operator.post("/api/windows/remove", json=early).status_code == 200
    assert served.operator.post("/api/windows/remove", json=early).status_code == 404
    assert windows(served) == [(300, 400, "the quarter ends")]
    lines = served.viewer.get("/api/audit").json()
    assert [one["what"] for one in lines][:2] == ["window removed", "window added"]
    assert lines[0]["body"] == [100.5, 200, ""]


def test_a_window_ends_after_it_begins(served: Served) -> None:
    for begins, ends in ((2, 2), (3, 2)):
        one = {"begins": begins, "ends": ends}
        for path, body in (("/api/windows/add", one), ("/api/windows", {"windows": [one]})):
            told = served.operator.post(path, json=body)
            assert told.status_code == 422
            assert "must end after it begins" in told.json()["detail"]
    assert windows(served) == []


def test_there_are_so_many_windows_at_most(served: Served) -> None:
    some = [{"begins": n, "ends": n + 1} for n in range(1000)]
    assert served.operator.post("/api/windows", json={"windows": some}).json() == {"windows": 1000}
    told = served.operator.post("/api/windows/add", json={"begins": 5, "ends": 9})
    assert (told.status_code, "1,000 windows" in told.json()["detail"]) == (422, True)
    assert len(windows(served)) == 1000


@pytest.mark.parametrize("path", ["/api/windows/add", "/api/windows/remove"])
def test_operators_alone_change_windows(served: Served, path: str) -> None:
    body = {"begins": 1, "ends": 2}
    assert served.viewer.post(path, json=body).status_code == 403
    assert served.job.post(path, json=body).status_code == 403
    assert served.job.get("/api/windows").status_code == 403
