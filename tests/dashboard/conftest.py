"""A state with something of everything, and the dashboard over it without a network."""

from __future__ import annotations

import html
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from starlette.testclient import TestClient

from ferryman import Document
from ferryman.dashboard.answers import Answers
from ferryman.dashboard.app import make_app
from ferryman.dashboard.guard import Settings, parse_tokens
from ferryman.destinations.base import Delivery, Outcome
from ferryman.errors import PermanentError
from tests.support.plan_world import MEMORY, PlanWorld, place

__all__ = ["place"]

READER, OPERATOR = "reader-secret-0123456789", "operator-secret-0123456789"
TOKENS = (f"rita:reader:{READER}", f"otto:operator:{OPERATOR}")


def parts(doc: Document) -> Any:
    """Split a document into pages, and fail for what is bad."""
    if doc.id.startswith("bad"):
        raise PermanentError(f"page {len(doc.id)} of '{doc.id}' is torn")
    if doc.id.startswith("bug"):
        raise KeyError(doc.id)
    if doc.id.startswith("book"):
        return [doc, *(doc.child(f"p{n}", raw=b"page") for n in range(2))]
    return doc


def answer(delivery: Delivery) -> Outcome:
    """Refuse some, and be away for others."""
    if delivery.id.startswith("refused"):
        return Outcome.permanent("field 'title' is missing")
    if delivery.id.startswith("later"):
        return Outcome.transient("503 Service Unavailable")
    return Outcome.ok()


def fill(folder: Path) -> PlanWorld:
    """Run a plan over documents of which some fail, are rejected, wait, or have children."""
    world = PlanWorld(folder, wait=0.0)
    world.build(parts, answer=answer, called={"attempts": 1}, backoff=3600)
    world.put("a", "b", "book", "bad1", "bad22", "bug", "refused", "later")
    world.run()
    return world


@pytest.fixture(scope="session")
def world() -> Iterator[PlanWorld]:
    """A state that tests only look at."""
    folder = Path(tempfile.mkdtemp(prefix="ferryman-dashboard-", dir=MEMORY if MEMORY.is_dir() else None))
    yield fill(folder)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def own_world(place: Path) -> PlanWorld:
    """A state that a test changes."""
    return fill(place)


class Site(TestClient):
    """A dashboard, asked as a browser asks it."""

    answers: Answers

    def text(self, path: str, code: int = 200, **parameters: str) -> str:
        """Return what a page says, without markup, on one line."""
        response = self.get(path, params=parameters or None)
        assert response.status_code == code, f"{path}: {response.status_code}\n{response.text}"
        return words(response.text)

    def fill_in(self, path: str, page: str = "/", **fields: str) -> Any:
        """Send a form, with the CSRF token of a page."""
        found = re.search(r'name="csrf" value="([^"]*)"', self.get(page).text)
        return self.post(path, data={"csrf": found[1] if found else "", **fields})

    def give(self, verb: str, why: str = "", **filters: str) -> Any:
        """Send the form of a command about the plan ``trial``."""
        page = "/plans/trial-v1/confirm"
        return self.fill_in(f"{page}?{urlencode({'verb': verb, **filters})}", f"{page}?verb=retry", why=why)


def words(text: str) -> str:
    """Return the text of a page."""
    text = re.sub(r"<(script|style)\b.*?</\1>|<[^>]*>", " ", text, flags=re.DOTALL)
    return " ".join(html.unescape(text).split())


class _Skeleton(HTMLParser):
    """Reads the elements of a page, each of which has to be closed."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: list[tuple[str, tuple[str, ...]]] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = sorted(name for name, _ in attrs if (tag, name) != ("bdi", "title"))  # it says how long an id is
        self.elements.append((tag, tuple(names)))
        if tag not in ("meta", "link", "img", "input", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def skeleton(text: str) -> list[tuple[str, tuple[str, ...]]]:
    """Return the elements of a page, each with the names of its attributes."""
    parser = _Skeleton()
    parser.feed(text)
    parser.close()
    assert parser.open == []
    return parser.elements


Opened = Callable[..., Site]


@pytest.fixture
def opened() -> Iterator[Opened]:
    """``opened(folder, …, allow_actions=True)``: a dashboard; ``token=`` of the one who asks."""
    answers: list[Answers] = []

    def open_site(*named: object, token: str = "", tokens: tuple[str, ...] = (), **settings: Any) -> Site:
        answers.append(Answers(first_s=60.0, again_s=60.0))
        app = make_app([*map(str, named)], Settings(tokens=parse_tokens(tokens), **settings), answers[-1])
        headers = {"authorization": f"Bearer {token}"} if token else {}
        site = Site(app, base_url="http://localhost", headers=headers)
        site.answers = answers[-1]
        return site

    yield open_site
    for each in answers:
        each.close()
