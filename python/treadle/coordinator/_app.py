"""The HTTP interface of a coordinator. OpenAPI's description of it is at ``/api/openapi.json``."""

from __future__ import annotations

import asyncio
import math
import sqlite3
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from dataclasses import asdict
from typing import Annotated, Any, Literal, TypeVar

import sqlalchemy as sa
from fastapi import APIRouter, Body, Depends, FastAPI, HTTPException, Path, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.datastructures import Headers
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from treadle.coordinator import _store
from treadle.coordinator._access import COOKIE, Access, Who
from treadle.coordinator._dask_run import DaskRun
from treadle.coordinator._database import Busy
from treadle.coordinator._jobs import is_text, kept_text
from treadle.coordinator._kubernetes import answer, question
from treadle.coordinator._logins import Logins
from treadle.coordinator._measures import Application
from treadle.coordinator._rules import Rule
from treadle.coordinator._server_list import server_list
from treadle.coordinator._service import Coordinator
from treadle.coordinator._tuning import Window
from treadle.coordinator._watching import End

__all__ = ["app_of", "asking", "place_after", "place_of", "story_of"]

_Value = TypeVar("_Value")

# Who asks for a decision waits two seconds: an answer that comes later is of no use.
_DECISION_SECONDS = 1.8
_END_SECONDS = 10.0
_LARGEST_BODY = 2**20
_BODY = Body()
_EXAMPLE = {
    "id": "7f3a",
    "job": {
        "cluster": "a", "queue": "etl", "user": "ann", "name": "daily 2026-11-30", "engine": "spark",
        "version": "3.5.9",
    },
    "manager": "",
    "names": [],
}  # fmt: skip
_QUESTION = Body(examples=[_EXAMPLE])
_DAY = 24 * 3600.0
_MOST_ROWS = 500
# Columns of 32 bits, and numbers of rows, which JSON has exactly.
_LARGEST = 2**31 - 1
_Rule = Annotated[int, Path(ge=0, le=_LARGEST)]
_Number = Annotated[int, Path(ge=0, le=2**53)]
_Before = Annotated[int | None, Query(ge=0, le=2**53)]
_SECURITY = [
    (name.lower().encode(), value.encode())
    for name, value in {
        "Content-Security-Policy": "default-src 'self'; img-src 'self' data:; frame-ancestors 'none'; form-action 'self'",
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-store",
    }.items()
]


def app_of(
    coordinator: Coordinator,
    access: Access,
    *,
    servers: Callable[[], list[dict[str, Any]]] = list,
    drain: Callable[[str], None] | None = None,
    notices: Callable[[], list[str]] = list,
) -> FastAPI:
    """Return the application that serves a coordinator, and a page of shuffle servers.

    ``notices`` returns what the pages say of alerts that did not leave.
    """
    app = FastAPI(
        title="Treadle's coordinator",
        description="Decisions about jobs, their ends, rules, alerts and tuning.",
        openapi_url="/api/openapi.json",
        # Its pages would be loaded from another host.
        docs_url=None,
        redoc_url=None,
    )
    app.state.coordinator, app.state.access, app.state.servers = coordinator, access, servers
    app.state.drain, app.state.notices = drain, notices
    app.state.logins = Logins(coordinator)

    app.add_middleware(_Guard, access=access)

    @app.exception_handler(ValueError)
    async def malformed(_request: Request, error: Exception) -> Response:
        # It may name what was sent, which need not be text that an answer can have.
        return JSONResponse({"detail": kept_text(str(error))}, 422)

    @app.exception_handler(_store.Stale)
    async def stale(_request: Request, error: Exception) -> Response:
        return JSONResponse({"detail": kept_text(str(error))}, 409)

    @app.exception_handler(RecursionError)
    async def nested(_request: Request, _error: Exception) -> Response:
        return JSONResponse({"detail": "the body has too many lists or tables in each other"}, 422)

    @app.exception_handler(RequestValidationError)
    async def invalid(_request: Request, error: RequestValidationError) -> Response:
        told = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()]
        return JSONResponse({"detail": kept_text("; ".join(told))}, 422)

    @app.exception_handler(KeyError)
    async def unknown(_request: Request, error: Exception) -> Response:
        return JSONResponse(
            {"detail": kept_text(str(error.args[0])) if error.args else "not found"}, 404
        )

    @app.exception_handler(Busy)
    @app.exception_handler(sa.exc.SQLAlchemyError)
    @app.exception_handler(sqlite3.Error)
    @app.exception_handler(TimeoutError)
    async def busy(_request: Request, error: Exception) -> Response:
        # SQLAlchemy's text has the statement with its values: not for who asks.
        reason = str(getattr(error, "orig", None) or "") or "it is busy"
        return JSONResponse({"detail": f"the database cannot be used: {reason}"}, 503)

    app.router.routes += [_deciding(coordinator), *_admitting(coordinator)]
    app.include_router(_router(coordinator))
    return app


class _Guard:
    """Refuses what no handler should see, and adds headers to all answers."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app, self._access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *_SECURITY]
            await send(message)

        refused = self._refused(scope)
        await (refused or self._app)(scope, receive, sending)

    def _refused(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        if not self._access.allows_host(headers.get("host", "")):
            return JSONResponse({"detail": "this host is served under another name"}, 421)
        length = headers.get("content-length", "0")
        if "transfer-encoding" in headers or not length.isdigit():
            return JSONResponse({"detail": "send a Content-Length"}, 411)
        if int(length) > _LARGEST_BODY:
            return JSONResponse({"detail": f"a body has at most {_LARGEST_BODY} bytes"}, 413)
        if not is_text(scope["path"]) or b"%00" in scope.get("query_string", b""):
            return JSONResponse({"detail": "an address has no NUL"}, 422)
        return None


def asking(request: Request) -> Who | None:
    """Return who asks."""
    access: Access = request.app.state.access
    peer = request.client.host if request.client else ""
    return access.who(request.method, request.headers, peer, request.cookies.get(COOKIE))


def _allowed(request: Request, who: Who | None, role: str, *, has_token: bool = False) -> Who:
    logins: Logins = request.app.state.logins
    if who is None:
        if has_token or "authorization" in request.headers:
            logins.refused(request, None, "nobody has this token")
        raise HTTPException(401, "log in, or give a token: Authorization: Bearer TOKEN")
    if not who.may(role):
        logins.refused(request, who, f"{who.role} is not {role}")
        raise HTTPException(403, f"{who.name} is {who.role}, and this needs {role}")
    return who


def _needs(role: str) -> Callable[[Request], Awaitable[Who]]:
    # In the event loop: it waits for nothing, and a thread for each request would cost more than the request.
    async def check(request: Request) -> Who:
        return _allowed(request, asking(request), role)

    return check


def _deciding(coordinator: Coordinator) -> Route:
    """Return the route of decisions without FastAPI's checks and conversions, which take as long as all else of it.

    The router has the same one, for OpenAPI's description.
    """

    async def decide(request: Request) -> Response:
        _allowed(request, asking(request), "job")
        body = await request.json()
        if not isinstance(body, dict):
            raise ValueError("a question must be a table")
        return JSONResponse(await _within(coordinator.decide(body), _DECISION_SECONDS))

    return Route("/api/decisions", decide, methods=["POST"])


def _admitting(coordinator: Coordinator) -> list[Route]:
    """Return the routes of Kubernetes' webhook. Its API server sends no login by itself: a token may be in the path."""

    async def admit(request: Request) -> Response:
        access: Access = request.app.state.access
        token = request.path_params.get("token")
        who = asking(request)
        if token is not None:
            told = {"authorization": f"Bearer {token}"}
            who = access.who("POST", told, "", None)
        _allowed(request, who, "job", has_token=token is not None)
        review = await request.json()
        asked, decision = question(review), None
        if asked is not None:
            decision = await _within(coordinator.decide(asked), _DECISION_SECONDS)
        return JSONResponse(answer(review, decision))

    paths = ("/webhook/kubernetes", "/webhook/kubernetes/{token}")
    return [Route(path, admit, methods=["POST"]) for path in paths]


async def _within(future: Future[_Value], seconds: float) -> _Value:
    return await asyncio.wait_for(asyncio.wrap_future(future), seconds)


def _router(coordinator: Coordinator) -> APIRouter:
    router = APIRouter(prefix="/api")
    job, viewer, operator = (Depends(_needs(role)) for role in ("job", "viewer", "operator"))
    database = coordinator.database

    @router.post("/decisions", dependencies=[job], tags=["jobs"])
    async def decide(body: dict[str, Any] = _QUESTION) -> dict[str, Any]:  # fmt: skip
        """Decide whether a job uses the service. The same ``id`` gets the same answer."""
        return await _within(coordinator.decide(body), _DECISION_SECONDS)

    @router.get("/decisions/{identity}", dependencies=[viewer], tags=["jobs"])
    def decision(identity: str) -> dict[str, Any]:
        """Return a run of a job: its decision, what was predicted, and what happened."""
        found = database.read(lambda c: _store.job_of(c, identity))
        if found is None:
            raise KeyError(f"there is no job {identity}")
        return found

    @router.post("/jobs/{identity}/end", dependencies=[job], tags=["jobs"])
    async def ended(identity: str, body: dict[str, Any] = _BODY) -> dict[str, Any]:
        """Report how a job ended. A second report changes nothing. ``run`` has the measures of a run of Dask."""
        values = dict(body)
        measures = values.pop("run", None)
        end, run = End.of(values), None if measures is None else DaskRun.of(measures)
        told = await _within(coordinator.ended(identity, end), _END_SECONDS)
        if run is not None:
            found = coordinator.measured(identity, Application(id=identity, dask=run))
            told["findings"] = [one.to_dict() for one in await _within(found, _END_SECONDS)]
        return told

    @router.get("/jobs", dependencies=[viewer], tags=["jobs"])
    def jobs(
        before: _Before = None,
        limit: int = Query(50, ge=1, le=_MOST_ROWS),
        name: str = "",
        user: str = "",
        queue: str = "",
        cluster: str = "",
        state: str = "",
        verdict: str = "",
    ) -> dict[str, Any]:
        """List runs, the latest first; ``name`` is how the name begins, ``before`` the last number of a page."""
        rows = database.read(
            lambda c: _store.jobs_page(
                c, before=before, limit=limit, name=name, user=user, queue=queue, cluster=cluster,
                state=state, verdict=verdict,
            )
        )  # fmt: skip
        return {"jobs": rows, "before": rows[-1]["number"] if len(rows) == limit else None}

    @router.get("/jobs/{identity}/measures", dependencies=[viewer], tags=["jobs"])
    def measures(identity: str) -> Any:
        """Return the measures of a run by stage, and what diagnosis found."""
        return database.read(lambda c: _store.measures_of(c, identity))

    @router.get("/recurring", dependencies=[viewer], tags=["jobs"])
    def all_recurring(
        before: str = "",
        limit: int = Query(50, ge=1, le=_MOST_ROWS),
        name: str = "",
        user: str = "",
        queue: str = "",
        cluster: str = "",
        standing: str = "",
    ) -> dict[str, Any]:
        """List recurring jobs, those that ran last first; ``name`` is how the name begins.

        ``standing`` is ``taken off``, or ``trying``, ``proposed`` or ``kept`` of a change; ``before`` is of the page before.
        """
        at = place_of(before)
        if before and at is None:
            raise ValueError("before must be what the page before had")
        rows = database.read(
            lambda c: _store.recurring_page(
                c, limit, before=at, name=name, user=user, queue=queue, cluster=cluster, standing=standing
            )
        )  # fmt: skip
        return {"recurring": rows, "before": place_after(rows, limit)}

    @router.get("/recurring/{key}", dependencies=[viewer], tags=["jobs"])
    def recurring(key: str, limit: int = Query(100, ge=1, le=_MOST_ROWS)) -> dict[str, Any]:
        """Return a recurring job with its latest runs and its changes."""
        return story_of(coordinator, key, limit)

    @router.post("/recurring/{key}/mode", tags=["tuning"])
    def mode(key: str, body: dict[str, Any] = _BODY, who: Who = operator) -> dict[str, Any]:
        """Say what tuning may do: ``{"mode": "watch" | "propose" | "apply" | "rule"}``; ``rule``: what its rule says."""
        coordinator.set_mode(key, _text(body, "mode"), who.name)
        return {"mode": body.get("mode")}

    @router.post("/recurring/{key}/put-back", tags=["tuning"])
    def put_back(key: str, who: Who = operator) -> dict[str, Any]:
        """Let a job that was taken off come onto the service again."""
        coordinator.put_back(key, who.name)
        return {}

    @router.post("/recurring/{key}/changes/{number}/begin", tags=["tuning"])
    def begin(key: str, number: _Number, who: Who = operator) -> dict[str, Any]:
        """Try a change that was proposed, from the next run on."""
        coordinator.begin_change(key, number, who.name)
        return {}

    @router.post("/recurring/{key}/end-change", tags=["tuning"])
    def end_change(key: str, who: Who = operator) -> dict[str, Any]:
        """Roll back the change that is tried."""
        coordinator.end_change(key, who.name)
        return {}

    @router.post("/recurring/{key}/changes/{number}/end", tags=["tuning"])
    def end_numbered(key: str, number: _Number, who: Who = operator) -> dict[str, Any]:
        """Roll back a change that is tried, or that was kept."""
        coordinator.end_change(key, who.name, number)
        return {}

    @router.get("/rules", dependencies=[viewer], tags=["rules"])
    def rules() -> dict[str, Any]:
        """List the rules in their order, and the switch for all."""
        return {"is_on": coordinator.is_on, "rules": [one.to_dict() for one in coordinator.rules]}

    @router.post("/rules", tags=["rules"])
    def keep_rule(body: dict[str, Any] = _BODY, who: Who = operator) -> dict[str, Any]:
        """Write a rule: ``{"rule": {…}, "note": TEXT, "place": N}``. With an ``id``, a new version of that rule;

        with a ``version``, too, it is refused (409) if that is not the present one.
        """
        place = body.get("place")
        is_whole = isinstance(place, int) and not isinstance(place, bool)
        if place is not None and not (is_whole and 0 <= place <= _LARGEST):
            raise ValueError(f"place must be a whole number from 0 to {_LARGEST}")
        rule = Rule.of(_table(body, "rule"))
        return coordinator.keep_rule(rule, who.name, _text(body, "note"), place).to_dict()

    @router.post("/rules/try", dependencies=[viewer], tags=["rules"])
    def try_rule(body: dict[str, Any] = _BODY) -> dict[str, Any]:
        """Try a rule on the jobs of the last 24 hours, or of those between ``begin`` and ``end``."""
        end = _moment(body, "end", time.time())
        begin = _moment(body, "begin", end - _DAY)
        return coordinator.try_rule(Rule.of(_table(body, "rule")), begin, end).to_dict()

    @router.get("/rules/{rule}/history", dependencies=[viewer], tags=["rules"])
    def history(rule: _Rule) -> list[dict[str, Any]]:
        """List all versions of a rule with their authors, the latest first."""
        return database.read(lambda c: _store.rule_history(c, rule))

    @router.delete("/rules/{rule}", tags=["rules"])
    def delete_rule(rule: _Rule, who: Who = operator) -> dict[str, Any]:
        """Take a rule away. Its versions stay."""
        coordinator.delete_rule(rule, who.name)
        return {}

    @router.post("/switch", tags=["rules"])
    def switch(body: dict[str, Any] = _BODY, who: Who = operator) -> dict[str, Any]:
        """Switch the service on or off for all jobs that begin from now on: ``{"is_on": false}``."""
        if not isinstance(body.get("is_on"), bool):
            raise ValueError("is_on must be true or false")
        coordinator.switch(body["is_on"], who.name)
        return {"is_on": coordinator.is_on}

    @router.get("/windows", dependencies=[viewer], tags=["tuning"])
    def windows() -> dict[str, Any]:
        """List the times in which no change is tried, the earliest first."""
        return {"windows": [asdict(one) for one in coordinator.windows]}

    @router.post("/windows", tags=["tuning"])
    def keep_windows(body: dict[str, Any] = _BODY, who: Who = operator) -> dict[str, Any]:
        """Write all times in which no change is tried: ``{"windows": [{"begins": …, "ends": …, "reason": …}]}``."""
        found = [_window(one) for one in _windows(body)]
        coordinator.keep_windows(found, who.name)
        return {"windows": len(coordinator.windows)}

    @router.post("/windows/add", tags=["tuning"])
    def add_window(body: dict[str, Any] = _BODY, who: Who = operator) -> dict[str, Any]:
        """Add a time in which no change is tried: ``{"begins": …, "ends": …, "reason": …}``, seconds since 1970."""
        coordinator.add_window(_window(body), who.name)
        return {"windows": len(coordinator.windows)}

    @router.post("/windows/remove", tags=["tuning"])
    def remove_window(body: dict[str, Any] = _BODY, who: Who = operator) -> dict[str, Any]:
        """Remove a time in which no change is tried, as it was added."""
        # What an earlier release kept need not be one that can be added now.
        window = Window(_moment(body, "begins"), _moment(body, "ends"), _text(body, "reason"))
        coordinator.remove_window(window, who.name)
        return {"windows": len(coordinator.windows)}

    @router.get("/alerts", dependencies=[viewer], tags=["alerts"])
    def alerts(
        only_open: bool = True,
        before: _Before = None,
        limit: int = Query(50, ge=1, le=_MOST_ROWS),
        kind: str = "",
        name: str = "",
    ) -> list[dict[str, Any]]:
        """List alerts, the latest first; ``name`` is how the name of their recurring job begins."""
        return database.read(
            lambda c: _store.alerts_page(
                c, only_open=only_open, before=before, limit=limit, kind=kind, name=name
            )
        )

    @router.post("/alerts/{number}/close", tags=["alerts"])
    def close_alert(number: _Number, who: Who = operator) -> dict[str, Any]:
        """Close an alert."""
        coordinator.close_alert(number, who.name)
        return {}

    @router.get("/audit", dependencies=[viewer], tags=["audit"])
    def audit(
        before: _Before = None,
        limit: int = Query(50, ge=1, le=_MOST_ROWS),
        of: Literal["", "changes", "logins"] = "",
    ) -> list[dict[str, Any]]:
        """List what was changed, and who logged in or was refused, the latest first: both, or what ``of`` says."""
        return database.read(lambda c: _store.audit_page(c, before, limit, of))

    @router.get("/servers", dependencies=[viewer], tags=["servers"])
    def servers(
        request: Request,
        name: str = "",
        state: str = "",
        domain: str = "",
        order: str = "room",
        page: int = Query(1, ge=1, le=_LARGEST),
        limit: int = Query(100, ge=1, le=_MOST_ROWS),
    ) -> dict[str, Any]:
        """List shuffle servers: those with the least room first, or by the ``order`` ``load`` or ``name``."""
        found = server_list(
            request.app.state.servers(), name=name, state=state, domain=domain, order=order,
            page=page, limit=limit,
        )  # fmt: skip
        return {"servers": found.rows, "found": len(found.cells), "pages": found.pages}

    @router.post("/servers/{name}/drain", tags=["servers"])
    def drain_server(name: str, request: Request, who: Who = operator) -> dict[str, Any]:
        """Ask a shuffle server to leave: it ends when other servers have copies of its rows."""
        drain = request.app.state.drain
        if drain is None:
            raise KeyError("no server is known: give the coordinator --servers URL")
        try:
            drain(name)
        except OSError as error:
            raise HTTPException(503, f"{name} was not asked to leave: {error}") from None
        coordinator.note(who.name, "server drained", name)
        return {}

    @router.get("/overview", dependencies=[viewer], tags=["overview"])
    def overview(hours: int = Query(24, ge=1, le=24 * 31)) -> list[dict[str, Any]]:
        """Return sums by hour and verdict."""
        since = time.time() - hours * 3600.0
        return database.read(lambda c: _store.overview(c, since))

    @router.get("/health", tags=["overview"])
    def health() -> dict[str, Any]:
        """Say that the coordinator answers, and reads its database."""
        database.read(lambda c: _store.setting(c, "schema"))
        return {"is_on": coordinator.is_on}

    return router


def story_of(coordinator: Coordinator, key: str, limit: int) -> dict[str, Any]:
    """Return a recurring job with its latest runs, the latest first.

    Raises
    ------
    KeyError
        There is no such job.
    """

    def read(connection: sa.Connection) -> dict[str, Any]:
        found = _store.recurring_page(connection, 1, key)
        if not found:
            raise KeyError(f"there is no recurring job {key}")
        return {**found[0], "latest": _store.runs_of(connection, key, limit)}

    return coordinator.database.read(read)


def place_of(text: str) -> tuple[float, str] | None:
    """Return the place in the list of recurring jobs that :func:`place_after` wrote; None: it did not."""
    last, comma, key = text.partition(",")
    try:
        at = float(last)
    except ValueError:
        return None
    return (at, key) if comma and math.isfinite(at) and is_text(key) else None


def place_after(rows: list[dict[str, Any]], limit: int) -> str | None:
    """Return the place of the last row of a full page of recurring jobs."""
    return f"{rows[-1]['last']!r},{rows[-1]['key']}" if len(rows) == limit else None


def _windows(body: dict[str, Any]) -> list[dict[str, Any]]:
    found = body.get("windows")
    is_list = isinstance(found, list) and len(found) <= 1000
    if not is_list or not all(isinstance(one, dict) for one in found or ()):
        raise ValueError("windows must be a list of at most 1,000 tables")
    return found or []


def _window(body: dict[str, Any]) -> Window:
    begins, ends = _moment(body, "begins"), _moment(body, "ends")
    if begins >= ends:
        raise ValueError("a window must end after it begins")
    return Window(begins, ends, _text(body, "reason")[:400])


def _moment(body: dict[str, Any], name: str, default: float | None = None) -> float:
    value = body.get(name, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e11:
        raise ValueError(f"{name} must be seconds since 1970")
    return float(value)


def _text(body: dict[str, Any], name: str) -> str:
    found = body.get(name, "")
    if not isinstance(found, str) or not is_text(found):
        raise ValueError(f"{name} must be text")
    return found


def _table(body: dict[str, Any], name: str) -> dict[str, Any]:
    found = body.get(name)
    if not isinstance(found, dict):
        raise ValueError(f"{name} must be a table")
    return found
