"""The pages. Each is one view of the database, made here; scripts only send what buttons say."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, RedirectResponse, Response
from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape
from markupsafe import Markup
from starlette.staticfiles import StaticFiles

from treadle.coordinator import _charts, _store
from treadle.coordinator._access import COOKIE, Access
from treadle.coordinator._app import asking, place_after, place_of, story_of
from treadle.coordinator._logins import Logins
from treadle.coordinator._plans import Plans
from treadle.coordinator._server_list import ORDERS, STATES, server_list
from treadle.coordinator._service import Coordinator
from treadle.coordinator._tuning import Tuning
from treadle.coordinator._watching import KINDS

__all__ = ["add_pages"]

_HERE = Path(__file__).parent
_ROWS = 50
_RUNS = 80
_DAY = 24 * 3600.0


def add_pages(app: FastAPI) -> None:
    """Add the pages to an application."""
    pages = _Pages(app)
    app.mount("/static", StaticFiles(directory=_HERE / "static"))
    for path, page in (
        ("/", pages.overview),
        ("/servers", pages.servers),
        ("/jobs", pages.jobs),
        ("/jobs/{identity}", pages.job),
        ("/stories", pages.stories),
        ("/stories/{key}", pages.story),
        ("/rules", pages.rules),
        ("/rules/{rule}", pages.rule),
        ("/alerts", pages.alerts),
        ("/audit", pages.audit),
    ):
        app.add_api_route(path, pages.guarded(page), methods=["GET"], include_in_schema=False)
    app.add_api_route("/login", pages.login, methods=["GET"], include_in_schema=False)
    app.add_api_route("/login", pages.log_in, methods=["POST"], include_in_schema=False)
    app.add_api_route("/logout", pages.log_out, methods=["POST"], include_in_schema=False)


def _whole(text: str, limit: int = 2**53) -> int | None:
    """Return the number that a text is; None: it is none, or one that no row has."""
    is_number = text.isascii() and text.isdecimal() and len(text) <= 16
    return int(text) if is_number and int(text) < limit else None


def _chosen(request: Request, *names: str) -> dict[str, str]:
    """Return what a page is asked to choose by."""
    return {name: request.query_params.get(name, "")[:400] for name in names}


def _changes(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Return the fields of a rule that a version changed, each with both values."""
    names = [name for name in {**before, **after} if name not in ("id", "version")]
    changed = [name for name in names if before.get(name) != after.get(name)]

    def shown(name: str, value: Any) -> str:
        return _charts.when(value) if value and name in ("begins", "ends") else json.dumps(value)

    return [
        f"{one}: {shown(one, before.get(one))} → {shown(one, after.get(one))}" for one in changed
    ]


class _Pages:
    def __init__(self, app: FastAPI) -> None:
        self._coordinator: Coordinator = app.state.coordinator
        self._access: Access = app.state.access
        self._logins: Logins = app.state.logins
        self._servers = app.state.servers
        self._notices: Callable[[], list[str]] = app.state.notices
        self._read = self._coordinator.database.read
        self._templates = Environment(
            loader=FileSystemLoader(_HERE / "templates"),
            autoescape=select_autoescape(),
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        for name in ("size", "duration", "number", "setting", "when"):
            self._templates.filters[name] = getattr(_charts, name)

    def guarded(self, page: Callable[[Request], dict[str, Any]]) -> Callable[[Request], Response]:
        """Return a page that viewers see, and that sends others to the login."""
        template = f"{page.__name__}.html"

        def shown(request: Request) -> Response:
            who = asking(request)
            if who is None or not who.may("viewer"):
                return RedirectResponse("/login", 303)
            values = page(request)
            text = self._templates.get_template(template).render(
                who=who, may_change=who.may("operator"), is_on=self._coordinator.is_on,
                path="/" + request.url.path.split("/")[1], notices=self._notices(), **values,
            )  # fmt: skip
            return Response(text, media_type="text/html; charset=utf-8")

        return shown

    # Logging in

    def login(self, _request: Request) -> Response:
        text = self._templates.get_template("login.html").render()
        return Response(text, media_type="text/html; charset=utf-8")

    async def log_in(self, request: Request) -> Response:
        try:
            token = (await request.json())["token"]
        except (ValueError, KeyError, TypeError):
            token = None
        found = self._access.log_in(token) if isinstance(token, str) else None
        if found is None:
            self._logins.refused(request, None, "this token shows no page")
            return JSONResponse({"detail": "this token shows no page"}, 401)
        session, who = found
        self._logins.logged_in(request, who)
        answer = JSONResponse({})
        is_secure = request.url.scheme == "https"
        answer.set_cookie(COOKIE, session, httponly=True, samesite="strict", secure=is_secure)
        return answer

    async def log_out(self, request: Request) -> Response:
        who = self._access.log_out(request.cookies.get(COOKIE, ""))
        if who is not None:
            self._logins.logged_out(request, who)
        answer = JSONResponse({})
        answer.delete_cookie(COOKIE)
        return answer

    # Views

    def overview(self, _request: Request) -> dict[str, Any]:
        now = time.time()

        def read(connection: sa.Connection) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
            rows = _store.overview(connection, now - _DAY)
            return rows, _store.alerts_page(connection, only_open=True, before=None, limit=6)

        rows, alerts = self._read(read)
        names = ("jobs", "ended", "failed", "fell_back", "bytes")
        sums = {name: sum(one[name] for one in rows) for name in names}
        on_service = {
            name: sum(one[name] for one in rows if one["verdict"] == "service") for name in names
        }
        servers = self._servers()
        free = sum(int(one.get("free_bytes") or 0) for one in servers)
        held = sum(int(one.get("held_bytes") or 0) for one in servers)
        return {
            "sums": sums, "on_service": on_service, "alerts": alerts, "servers": len(servers),
            "free": free, "held": held, "chart": Markup(_charts.hours_chart(rows, now)),
        }  # fmt: skip

    def servers(self, request: Request) -> dict[str, Any]:
        chosen = _chosen(request, "name", "state", "domain", "order")
        found = server_list(
            self._servers(), name=chosen["name"], state=chosen["state"], domain=chosen["domain"],
            order=chosen["order"], page=_whole(request.query_params.get("page", "1")) or 1,
        )  # fmt: skip
        return {"found": found, "chosen": chosen, "states": STATES, "orders": ORDERS}

    def jobs(self, request: Request) -> dict[str, Any]:
        asked = request.query_params
        chosen = _chosen(request, "name", "user", "queue", "cluster", "state", "verdict")
        before = _whole(asked.get("before", ""))
        rows = self._read(lambda c: _store.jobs_page(c, before=before, limit=_ROWS, **chosen))
        last = rows[-1]["number"] if len(rows) == _ROWS else None
        return {"jobs": rows, "chosen": chosen, "before": last}

    def job(self, request: Request) -> dict[str, Any]:
        identity = request.path_params["identity"]

        found = self._read(lambda c: _store.measured_job_of(c, identity))
        if found is None:
            raise KeyError(f"there is no job {identity}")
        row, measures = found
        application = measures["application"] if measures else {}
        stages, run = application.get("stages") or [], application.get("dask")
        findings = measures["findings"] if measures else []
        values = {
            "job": row, "stages": stages, "run": run, "findings": findings, "measured": bool(measures),
            "chart": Markup(_charts.stages_chart(stages)),
        }  # fmt: skip
        if run:
            values["groups_chart"] = Markup(_charts.groups_chart(run["groups"]))
            values["waits_chart"] = Markup(_charts.waits_chart(run["shuffles"]))
        return values

    def stories(self, request: Request) -> dict[str, Any]:
        chosen = _chosen(request, "name", "user", "queue", "cluster", "standing")
        before = place_of(request.query_params.get("before", ""))
        rows = self._read(lambda c: _store.recurring_page(c, _ROWS, before=before, **chosen))
        return {
            "rows": rows, "chosen": chosen, "before": place_after(rows, _ROWS), "standings": _store.STANDINGS,
            "windows": self._coordinator.windows, "now": time.time(),
        }  # fmt: skip

    def story(self, request: Request) -> dict[str, Any]:
        row = story_of(self._coordinator, request.path_params["key"], _RUNS)
        tuning = Tuning.of(row["tuning"])
        changes = row["tuning"]["changes"]
        rule = next((one for one in self._coordinator.rules if one.id == tuning.rule), None)
        chart = Markup(_charts.story_chart(list(reversed(row["latest"])), changes))
        # Those of an earlier release say less.
        changes = [{"expected": "", "concerns": 0.0, **one} for one in reversed(changes)]
        plans = Plans.of(row["history"].get("plans", {}))
        return {
            "row": row, "tuning": tuning, "rule": rule, "changes": changes, "chart": chart, "plans": plans,
        }  # fmt: skip

    def rules(self, _request: Request) -> dict[str, Any]:
        return {"rules": self._coordinator.rules}

    def rule(self, request: Request) -> dict[str, Any]:
        text = request.path_params["rule"]
        if text == "new":
            body = {
                "name": "", "action": "service", "clusters": [], "queues": [], "users": [], "names": [],
                # Other engines have versions of their own, and what Spark's older ones do is not tried.
                "engines": ["spark"], "versions": [">=3.5"], "except_users": [], "except_names": [], "percent": 10, "is_on": False, "tuning": "propose", "settings": {},
            }  # fmt: skip
            return {"history": [], "body": json.dumps(body, indent=2), "title": "A new rule"}
        number = _whole(text, 2**31)
        history = [] if number is None else self._read(lambda c: _store.rule_history(c, number))
        if not history:
            raise KeyError(f"there is no rule {text}")
        body = {**history[0]["body"], "id": number, "version": history[0]["version"]}
        older = [*(one["body"] for one in history[1:]), None]
        history = [
            {**one, "changes": [] if before is None else _changes(before, one["body"])}
            for one, before in zip(history, older, strict=True)
        ]
        return {"history": history, "body": json.dumps(body, indent=2), "title": body["name"]}

    def alerts(self, request: Request) -> dict[str, Any]:
        asked = request.query_params
        only_open = asked.get("all") != "1"
        chosen = _chosen(request, "name", "kind")
        before = _whole(asked.get("before", ""))
        rows = self._read(
            lambda c: _store.alerts_page(
                c, only_open=only_open, before=before, limit=_ROWS, **chosen
            )
        )
        last = rows[-1]["number"] if len(rows) == _ROWS else None
        return {
            "alerts": rows, "only_open": only_open, "chosen": chosen, "before": last, "kinds": KINDS,
        }  # fmt: skip

    def audit(self, request: Request) -> dict[str, Any]:
        before = _whole(request.query_params.get("before", ""))
        chosen = _chosen(request, "of")
        rows = self._read(lambda c: _store.audit_page(c, before, _ROWS, chosen["of"]))
        last = rows[-1]["number"] if len(rows) == _ROWS else None
        return {"rows": rows, "before": last, "chosen": chosen}
