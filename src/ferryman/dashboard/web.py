"""Requests, forms and templates of the pages."""

from __future__ import annotations

import functools
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Hashable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl, urlencode

import jinja2
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from ferryman.dashboard import cells
from ferryman.dashboard.answers import Answers, KnownAnswer, StillCounting
from ferryman.dashboard.guard import Guard, Person, Settings
from ferryman.dashboard.places import Found, Places, describe_error
from ferryman.errors import FerrymanError, UsageError

T = TypeVar("T")

FOLDER: Final = Path(__file__).parent
PAGE_ROWS: Final = 50
"""Rows of a page."""
PAGES_MAX: Final = 200
"""Pages that one can turn; what is behind them is found with a filter."""
FRESH_S: Final = 2.0
"""Seconds for which a search for plans, and the list of them, count as current."""
_FORM_BYTES: Final = 64 << 10
_FIELDS: Final = 200


class NotFound(FerrymanError):
    """There is no such page, or not any more."""


class Forbidden(FerrymanError):
    """This person may not do this."""


class Dashboard:
    """Objects that all pages share.

    Attributes:
        facts: root of a state -> ``KnownFacts``, for the list of all plans.
        may_count: unset while the list is made, for which a page waits: plans are counted after that.
    """

    def __init__(self, places: Places, settings: Settings, answers: Answers | None = None) -> None:
        self.places = places
        self.settings = settings
        self.answers = answers or Answers()
        self.facts: dict[Any, Any] = {}
        self.may_count = threading.Event()
        self.may_count.set()
        self.templates = jinja2.Environment(
            loader=jinja2.FileSystemLoader(FOLDER / "templates"),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self.templates.filters.update(cells.FILTERS)
        self.templates.globals.update(cells.FUNCTIONS)


class WebPage:
    """One request for a page: what it asks for, and how it is answered."""

    def __init__(self, dashboard: Dashboard, request: Request, form: Mapping[str, str]) -> None:
        self.dashboard = dashboard
        self.request = request
        self.form = form
        self.began = time.monotonic()
        self.is_counting = False
        """Whether a part of this page has no answer yet."""
        self.oldest: float | None = None
        """Time of the oldest answer on this page; None: all are current."""

    @property
    def base(self) -> str:
        """Return what links begin with."""
        return str(self.request.state.base)

    @property
    def person(self) -> Person:
        return self.request.state.person or Person("", may_act=False, is_known=False)

    @property
    def guard(self) -> Guard:
        guard: Guard = self.request.state.guard
        return guard

    @property
    def here(self) -> str:
        """Return the URL of this page."""
        query = self.request.url.query
        return f"{self.base}{self.request.url.path}" + (f"?{query}" if query else "")

    @functools.cached_property
    def found(self) -> Found:
        """Return what there is to show, as of a moment ago."""
        find = self.dashboard.places.find
        return self.dashboard.answers.ask("places", time.monotonic() // FRESH_S, find, is_quick=True).value

    def query(self, name: str) -> str:
        """Return a parameter of the URL; "" if it is not there."""
        return self.request.query_params.get(name, "")

    def number(self, name: str, default: int = 1, most: int = PAGES_MAX) -> int:
        """Return a parameter that is a number from 1 on."""
        text = self.query(name)
        return min(max(1, int(text)), most) if text.isascii() and text.isdigit() and len(text) < 19 else default

    def path(self, name: str) -> str:
        """Return a part of the URL's path."""
        return str(self.request.path_params[name])

    def link(self, path: str, **parameters: object) -> str:
        """Return the URL of a page; parameters that are None or "" are left out."""
        given = {name: str(value) for name, value in parameters.items() if value not in (None, "")}
        query = urlencode(given, errors="surrogateescape")
        return f"{self.base}{path}" + (f"?{query}" if query else "")

    def current(self, answer: KnownAnswer[Any]) -> Any:
        """Return an answer's value, and note how old it is."""
        if answer.as_of is not None:
            self.oldest = min(self.oldest or answer.as_of, answer.as_of)
        return answer.value

    @property
    def waited_s(self) -> float:
        """Return the seconds that this page has taken so far."""
        return time.monotonic() - self.began

    def answer(self, question: Hashable, version: Hashable, find: Callable[[], T]) -> T:
        """Return the answer to a question as ``Answers.ask`` finds it, within what is left of the page's time."""
        value: T = self.current(self.dashboard.answers.ask(question, version, find, self.waited_s))
        return value

    def render(self, template: str, code: int = 200, **values: Any) -> HTMLResponse:
        """Return a page made of a template."""
        settings = self.dashboard.settings
        shared = {
            "page": self,
            "link": self.link,
            "person": self.person,
            "csrf": self.request.state.csrf,
            "allow_actions": settings.allow_actions,
            "has_tokens": bool(settings.tokens) and bool(self.request.state.session),
            "as_of": self.oldest,
            "is_counting": self.is_counting,
            "command": "",
            "refresh_s": 0,
            "crumbs": (),
        }
        if self.is_counting:
            values["refresh_s"] = 2
        text = self.dashboard.templates.get_template(template).render({**shared, **values})
        return HTMLResponse(text.encode("utf-8", "replace"), code)

    def redirect(self, path: str, **parameters: object) -> Response:
        """Send the reader to another page, after a form."""
        return RedirectResponse(self.link(path, **parameters), 303)

    def check_form(self) -> None:
        """Refuse a form that is not one of ours, or whose sender may not act.

        Raises:
            Forbidden: says why.
        """
        if not self.guard.is_csrf(self.request.state.session, self.form.get("csrf", "")):
            raise Forbidden("This form is too old, or not from this dashboard: go back, and load the page again.")

    def check_may_act(self) -> None:
        """Refuse somebody who may only read.

        Raises:
            Forbidden: says what would have to be different.
        """
        if not self.dashboard.settings.allow_actions:
            raise Forbidden("This dashboard only shows. Start it with --allow-actions to act from its pages.")
        if not self.person.may_act:
            raise Forbidden(f"{self.person.name} is a reader here, and may not act.")


Handler = Callable[[WebPage], Response]


def endpoint(dashboard: Dashboard, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
    """Return the ASGI endpoint of a page: the handler runs in a thread, and its errors become pages."""

    async def answer(request: Request) -> Response:
        form = await _read_form(request) if request.method == "POST" else {}
        if form is None:
            return Response("This form is too large.\n", 413)
        page = WebPage(dashboard, request, form)
        return await run_in_threadpool(_guarded, page, handler)

    return answer


async def _read_form(request: Request) -> dict[str, str] | None:
    """Read a form; None if it is too large."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > _FORM_BYTES:
            return None
    try:
        text = body.decode("ascii")
        pairs = parse_qsl(text, keep_blank_values=True, errors="surrogateescape", max_num_fields=_FIELDS)
    except ValueError:
        return {}
    form: dict[str, str] = {}
    for name, value in pairs:  # boxes of one name that are ticked are one value, with blanks between
        form[name] = f"{form[name]} {value}" if name in form else value
    return form


def _guarded(page: WebPage, handler: Handler) -> Response:
    try:
        return handler(page)
    except StillCounting:
        response = page.render("counting.html", title="Counting")
        response.headers["refresh"] = "2"  # the whole page: what follows may have other parts than this one
        return response
    except NotFound as e:
        return page.render("error.html", 404, title="Not there", text=str(e))
    except Forbidden as e:
        return page.render("error.html", 403, title="Not allowed", text=str(e))
    except UsageError as e:
        return page.render("error.html", 400, title="Not possible", text=str(e))
    except FerrymanError as e:
        return page.render("error.html", 500, title=type(e).__name__, text=str(e))
    except Exception as e:
        traceback.print_exception(e)
        return page.render("error.html", 500, title="An error", text=describe_error(e))
