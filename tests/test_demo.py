"""The demo end to end on a part of its data, a worker killed included; that its checks find a wrong result."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner

from treadle.__main__ import main
from treadle.demo import check, cli, cluster, data
from treadle.demo.errors import DemoError
from treadle.demo.views import VIEWS

ROWS = 20_000


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """The output of one run of the command, and the folder that it wrote."""
    out = tmp_path_factory.mktemp("demo") / "out"
    command = [sys.executable, "-m", "treadle", "demo", "--out", str(out), "--rows", str(ROWS)]
    ran = subprocess.run(
        [*command, "--partitions", "5", "--threads", "2"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout, out


def test_every_result_is_shown_as_equal_to_pandas(demo: tuple[str, Path]) -> None:
    stdout, _ = demo
    assert f"{ROWS:,} flights" in stdout
    assert stdout.count("✓ equals pandas") == len(VIEWS) == 10
    assert "10 of 10 equal pandas, all the same" in stdout
    assert "µs per task" in stdout
    assert "pandas alone" in stdout


def test_trace_has_one_event_a_task(demo: tuple[str, Path]) -> None:
    stdout, out = demo
    events = json.loads((out / "trace.json").read_text())["traceEvents"]
    tasks = [event for event in events if event["ph"] == "X"]
    said = re.search(r"([\d,]+) tasks, [\d.]+ s in their own code", stdout)
    assert said
    assert len(tasks) == int(said[1].replace(",", "")) > 100
    assert len({event["args"]["key"] for event in tasks}) == len(tasks)


def test_a_worker_was_killed_and_its_tasks_were_run_again(demo: tuple[str, Path]) -> None:
    stdout, out = demo
    killed = re.search(r"kill -9 (\d+): that was worker 0", stdout)
    assert killed
    words = " ".join(stdout.split())
    assert f"worker 0 (process {killed[1]})" in words
    assert "signal 9 ended it" in words
    trace = json.loads((out / "cluster.json").read_text())
    events = trace["traceEvents"]
    loss = cluster.loss_of(events, int(killed[1]))
    assert loss.cause == "signal 9 ended it"
    tasks = [event for event in events if event.get("cat") == "task"]
    there = [event for event in tasks if event["pid"] == loss.process]
    assert there
    assert all(event["ts"] < loss.time for event in there)
    # The other one, and the one that took its place.
    assert len({event["pid"] for event in tasks}) in (2, 3)
    assert any(event["ts"] > loss.time for event in tasks)
    if loss.repeated:
        assert re.search(rf"run twice {len(loss.repeated)} tasks?: ", words)
    for key in loss.repeated:
        runs = [event for event in tasks if event["args"]["key"] == key]
        assert len(runs) > 1
        assert max(event["ts"] for event in runs) > loss.time
    (about,) = trace["otherData"]["clusters"].values()
    assert about["notes"] == []


def test_progress_is_told_in_lines_where_there_is_no_terminal(demo: tuple[str, Path]) -> None:
    stdout, _ = demo
    for title in ("Reading flights.csv", "Dataframes", "Arrays"):
        told = re.findall(
            rf"^{title}: (\d+) of (\d+) tasks and (\d+) of (\d+) futures are done", stdout, re.M
        )
        assert told
        done, total, futures, all_futures = told[-1]
        assert done == total
        assert futures == all_futures


class Page(HTMLParser):
    """Collects what a page would load, its sections, and the texts of its JSON."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.sections: list[str] = []
        self.json: dict[str, str] = {}
        self._in_json: str | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.loads += [
            f"{tag} {name}" for name in ("src", "href", "srcset", "action") if name in values
        ]
        if tag == "section" and values.get("id"):
            self.sections.append(values["id"] or "")
        self._in_json = values.get("id") if tag == "script" else None

    def handle_data(self, text: str) -> None:
        if self._in_json:
            self.json[self._in_json] = self.json.get(self._in_json, "") + text


def test_report_is_self_contained(demo: tuple[str, Path]) -> None:
    stdout, out = demo
    text = (out / "report.html").read_text(encoding="utf-8")
    page = Page(text)
    assert page.loads == []
    assert not re.search(r"https?://|url\(|@import|%%", text)
    assert set(page.sections) == set(VIEWS)
    assert f"{len(json.loads(page.json['trace'])['tasks']):,} tasks," in stdout
    drawn = json.loads(page.json["cluster"])
    assert [title for _, title in drawn["marks"]] == ["kill -9 of worker 0"]
    assert 0 < drawn["marks"][0][0] < drawn["phases"][-1][1]
    assert {lane.split(",")[0] for lane in drawn["lanes"]} == {"worker 0", "worker 1"}
    assert {note for *_, note in drawn["tasks"]} <= {"", "run again", "lost with its worker"}


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> data.Tables:
    return data.open_tables(tmp_path_factory.mktemp("flights"), ROWS)


@pytest.fixture(scope="module")
def references(tables: data.Tables) -> dict[str, pd.DataFrame]:
    return check.references(tables)


def test_a_part_of_the_flights_covers_the_year(tables: data.Tables) -> None:
    flights = pd.read_csv(tables.flights_csv)
    assert len(flights) == tables.flights == ROWS
    assert set(flights["month"]) == set(range(1, 13))


@pytest.mark.parametrize("name", sorted(VIEWS))
def test_one_wrong_value_is_found(references: dict[str, pd.DataFrame], name: str) -> None:
    right = references[name]
    check.compare(name, right.sample(frac=1, random_state=0), right)
    wrong = right.copy()
    column = right.select_dtypes("float").columns[-1]
    wrong.loc[right[column].last_valid_index(), column] += 1e-6
    with pytest.raises(check.MismatchError, match=f"{name}: Dask on Treadle and pandas disagree"):
        check.compare(name, right, wrong)


def test_a_missing_row_and_a_missing_column_are_found(
    references: dict[str, pd.DataFrame],
) -> None:
    right = references["months"]
    for wrong in (right.iloc[1:], right.drop(columns="late")):
        with pytest.raises(check.MismatchError, match="months"):
            check.compare("months", right, wrong)


def test_a_mismatch_ends_the_command_with_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = check.references

    def wrong(tables: data.Tables) -> dict[str, pd.DataFrame]:
        results = right(tables)
        results["ages"].loc[0, "flights"] += 1
        return results

    monkeypatch.setattr(check, "references", wrong)
    result = CliRunner().invoke(
        main,
        ["demo", "--out", str(tmp_path), "--rows", "2000", "--partitions", "3", "--no-progress"],
    )
    assert result.exit_code == 1
    assert "Error: ages: Dask on Treadle and pandas disagree" in result.output
    assert not (tmp_path / "report.html").exists()


def test_a_missing_package_is_named_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data, "PACKAGE", "no-such-package")
    with pytest.raises(DemoError, match=r"'no-such-package'.*make demo.*pip install '\.\[demo\]'"):
        data.open_tables(tmp_path)
    monkeypatch.setitem(sys.modules, "rich", None)
    result = CliRunner().invoke(cli.demo, ["--out", str(tmp_path)])
    assert result.exit_code == 1
    assert "Error: the demo needs the package 'rich'" in result.output


def test_without_a_command_the_help_is_printed() -> None:
    result = CliRunner().invoke(main, [])
    assert result.exit_code == 0
    assert "demo" in result.output
