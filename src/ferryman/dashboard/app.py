"""The application: its pages by their paths, the login page, and the server that serves it."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from ferryman.dashboard import actions, plans, queues
from ferryman.dashboard.answers import Answers
from ferryman.dashboard.guard import COOKIE, LOGIN, Guard, Settings
from ferryman.dashboard.places import Places
from ferryman.dashboard.web import FOLDER, Dashboard, Handler, NotFound, WebPage, endpoint
from ferryman.errors import UsageError

PAGES: Final[dict[str, Handler]] = {
    "/": plans.plans,
    "/plans/{plan}": plans.plan,
    "/plans/{plan}/picture.svg": plans.picture,
    "/plans/{plan}/failures": plans.failures,
    "/plans/{plan}/document": plans.document,
    "/plans/{plan}/runs": plans.runs,
    "/plans/{plan}/state": plans.states,
    "/plans/{plan}/remembered": plans.remembered,
    "/plans/{plan}/verify": plans.verifications,
    "/plans/{plan}/confirm": actions.confirm,
    "/plans/{plan}/outcome": actions.outcome,
    "/queues": queues.queues,
    "/queues/{queue}": queues.queue,
    "/flows": queues.flows,
    "/flows/{flow}": queues.flow,
    "/flows/{flow}/picture.svg": queues.flow_picture,
    "/intake": queues.intakes,
    "/intake/{intake}": queues.intake,
    "/intake/{intake}/item": queues.item,
}
"""Path -> page."""

FORMS: Final[dict[str, Handler]] = {
    "/plans/{plan}/confirm": actions.submit,
    "/intake/{intake}/act": actions.act_on_items,
}
"""Path -> what a form sent there does."""

_HEADER_BYTES: Final = 64 << 10
_LONGEST_WAIT_S: Final = 5


def login_page(page: WebPage) -> Response:
    """Ask for a token."""
    return page.render("login.html", title="Token", wrong=False, next=page.query("next"))


def login(page: WebPage) -> Response:
    """Open a session for whoever has the token, and go on to the page that was asked for."""
    token = page.guard.find_token(page.form.get("token", ""))
    if token is None:
        return page.render("login.html", 403, title="Token", wrong=True, next=page.form.get("next", ""))
    asked = page.form.get("next", "")
    is_path = asked.startswith("/") and not asked.startswith("//") and "\\" not in asked
    response = page.redirect(asked if is_path else "/")
    secure = page.request.url.scheme == "https" or page.request.headers.get("x-forwarded-proto") == "https"
    response.set_cookie(
        COOKIE,
        page.guard.open_session(token),
        path=page.base or "/",
        httponly=True,
        samesite="lax",
        secure=secure,
    )
    return response


def logout(page: WebPage) -> Response:
    """End the session."""
    page.check_form()
    page.guard.close_session(page.request.state.session)
    response = page.redirect(LOGIN)
    response.delete_cookie(COOKIE, path=page.base or "/")
    return response


def _not_found(page: WebPage) -> Response:
    raise NotFound("There is no such page here.")


def make_app(named: Sequence[str], settings: Settings, answers: Answers | None = None) -> Guard:
    """Return the application.

    Args:
        named: see ``Places``.

    Raises:
        UsageError: the settings would let in anybody; a folder does not exist.
    """
    settings.check()
    dashboard = Dashboard(Places(named), settings, answers)
    routes: list[Any] = [Route(path, endpoint(dashboard, page), methods=["GET"]) for path, page in PAGES.items()]
    routes += [Route(path, endpoint(dashboard, form), methods=["POST"]) for path, form in FORMS.items()]
    routes += [
        Route(LOGIN, endpoint(dashboard, login_page), methods=["GET"]),
        Route(LOGIN, endpoint(dashboard, login), methods=["POST"]),
        Route("/logout", endpoint(dashboard, logout), methods=["POST"]),
        Mount("/static", _Static(FOLDER / "static")),
        Route("/{path:path}", endpoint(dashboard, _not_found), methods=["GET"]),
    ]
    app: ASGIApp = Starlette(routes=routes, exception_handlers={405: _wrong_method})
    return Guard(app, settings)


async def _wrong_method(request: Request, error: Exception) -> Response:
    return PlainTextResponse("This page does not take such a request.\n", 405)


class _Static:
    """Files of ours: they may be cached, since they change with the version only."""

    def __init__(self, folder: Any) -> None:
        self._files = StaticFiles(directory=folder)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def send_cached(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"cache-control", b"max-age=3600")]
            await send(message)

        await self._files(scope, receive, send_cached)


def serve(app: Guard, announce: Any) -> None:
    """Serve the application until this process is interrupted.

    Args:
        announce: called with the URL as soon as the port is taken.

    Raises:
        UsageError: the port cannot be taken.
    """
    pa.set_memory_pool(pa.system_memory_pool())  # Arrow's own pool keeps 35 MB more of what large states need
    settings = app.settings
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((settings.host, settings.port))
        sock.listen()  # whoever reads the URL may connect at once
    except OSError as e:
        sock.close()
        raise UsageError(
            f"--port {settings.port}: {settings.host} does not give it ({e.strerror}). Give another one; 0: any."
        ) from None
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    announce(f"http://{host}:{sock.getsockname()[1]}{settings.base_path}/")
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        h11_max_incomplete_event_size=_HEADER_BYTES,
        timeout_graceful_shutdown=_LONGEST_WAIT_S,
    )
    uvicorn.Server(config).run(sockets=[sock])
