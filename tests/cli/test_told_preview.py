"""What `ferryman preview` tells, and hands on to the engine, given a fake engine."""

from __future__ import annotations

import json
import re
import signal
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ferryman.cli.app import start
from ferryman.engine.tasks import Reason
from tests.support.fakes import Fake


def delivery(document: str, **more: Any) -> dict[str, Any]:
    return {
        "source": "files",
        "document": document,
        "origin": document,
        "operation": "upsert",
        "route": "",
        "attempt": 1,
        "message": None,
        "fields": {},
        "text": None,
        "bytes": None,
        **more,
    }


def expected(**lists: Any) -> SimpleNamespace:
    return SimpleNamespace(
        **{"gets": [], "dropped": [], "refused": [], "errors": [], "uncalled": [], "waiting": 0, **lists}
    )


@pytest.fixture
def previewed(fake: Fake, state: Path) -> SimpleNamespace:
    """What the engine says; ``asked``: what it was asked."""
    found = SimpleNamespace(asked={}, documents=[], destinations={}, more={}, unread=0, calls=[])
    found.as_dict = lambda: {"plan": "small", "documents": found.documents}

    def preview(plan: Any, **options: Any) -> SimpleNamespace:
        found.asked = {**options, "plan": plan.key}
        del found.asked["observer"]
        return found

    fake("ferryman.engine.preview", preview=preview)
    return found


def test_preview_hands_its_options_on(
    previewed: SimpleNamespace, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each option of the command is an argument of the engine's preview; --json is one object."""
    options = ["--limit", "3", "--doc", "a.txt", "--master", "local[1]", "--conf", "a=b", "--json"]

    assert start(["preview", "plan.py", *options]) == 0

    assert previewed.asked == {
        "plan": "small-v2",
        "state": state.parent,
        "limit": 3,
        "document": "a.txt",
        "master": "local[1]",
        "conf": {"a": "b"},
    }
    assert json.loads(capsys.readouterr().out) == {"plan": "small", "documents": []}
    assert start(["preview", "plan.py"]) == 0
    assert (previewed.asked["limit"], previewed.asked["document"]) == (20, None)


LONG = "so long " * 500


@pytest.fixture
def much(previewed: SimpleNamespace) -> SimpleNamespace:
    """Something of everything."""
    previewed.documents = [{"reason": "new"}, {"reason": "new"}, {"reason": "gone"}]
    previewed.destinations = {
        "index": expected(
            gets=[
                delivery("a.txt", fields={"title": "É", "long": LONG}, text=f"{LONG}\nend", bytes=9),
                delivery("b.txt", route="left/right", bytes=7),
                delivery("c.txt", operation="delete", fields=None),
            ],
            dropped=[delivery("d.txt", message="a draft")],
            refused=[delivery("e.txt", message="e.txt: not\nUTF-8")],
            errors=[delivery("f.txt", attempt=2, attempts=3, message="busy")],
            waiting=5,
        ),
        "copy": expected(),
    }
    previewed.more = {"new": 1200, "forced": 1}
    previewed.unread = 30
    return previewed


def test_preview_tells_all_of_it_in_a_pipe(much: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    """A message a line, none of them wrapped or shortened."""
    assert start(["preview", "plan.py", "--state", "my state"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "3 documents: 2 new, 1 deleted at the source",
        "index first gets what is pending: 5 from earlier waves",
        "index would get 3 deliveries:",
        "  upsert a.txt",
        f'    fields: {{"title": "É", "long": "{LONG}"}}',
        f"    text: {LONG} end",
        "  upsert b.txt by left/right",
        "    7 bytes that are not UTF-8 text",
        "  delete c.txt",
        "index: 1 dropped:",
        "  d.txt: a draft",
        "index: 1 refused:",
        "  e.txt: not UTF-8",
        "index: 1 would fail, and be tried again:",
        "  f.txt (attempt 2 of 3): busy",
        "copy would get 0 deliveries",
        "A run would process 1201 more: 1200 new, 1 asked for by `retry --force`",
        "It would read 30 more known documents, to see whether they have changed.",
        "Nothing was written. To do it: ferryman run plan.py --state 'my state'",
    ]


def test_preview_shortens_content_on_a_terminal(
    much: SimpleNamespace, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At its edge, and nothing else: ids and reasons are whole."""
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    much.destinations["index"].dropped[0]["message"] = "because " * 20
    assert start(["preview", "plan.py"]) == 0
    lines = re.sub(r"\x1b\[[\d;]*m", "", capsys.readouterr().out).splitlines()
    [text] = [line for line in lines if line.startswith("    text: ")]
    assert len(text) == 60
    assert text.endswith("…")
    assert "".join(lines).count("because") == 20


def test_preview_shows_the_text_of_a_document(previewed: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    """Each text once, with what was not read of it; what is refused with its reason; nothing else."""
    letter = delivery(
        "a.docx", text="Dear Sir,\n\nyours", fields={"title": "x", "unread": ["comments", "charts"]}, bytes=17
    )
    child = delivery("a.docx#b.txt", text="notes", fields={"file_unread": ["pages"]}, bytes=5)
    refused = delivery("a.docx#c.png", message="a.docx#c.png: it is a PNG picture")
    previewed.destinations = {
        "index": expected(gets=[letter, child, delivery("a.docx#d", operation="delete")], refused=[refused]),
        "copy": expected(gets=[letter, delivery("a.docx#e", bytes=3)], refused=[refused]),
    }
    assert start(["preview", "plan.py", "--doc", "a.docx", "--text"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "--- a.docx",
        "--- not read: comments, charts",
        "Dear Sir,",
        "",
        "yours",
        "--- a.docx#b.txt",
        "--- not read: pages",
        "notes",
        "--- a.docx#e",
        "3 bytes that are not UTF-8 text",
        "--- a.docx#c.png: it is a PNG picture",
    ]
    assert start(["preview", "plan.py", "--text"]) == 2
    assert "--text is for one document: give its id with --doc." in capsys.readouterr().err


def test_preview_of_nothing_says_so(previewed: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is new, nothing is due."""
    previewed.destinations = {"index": expected()}
    assert start(["preview", "plan.py"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == (
        "A run would process nothing: nothing has changed since the last one, and nothing is due."
    )


def test_every_reason_has_words() -> None:
    """Those of a scan but ``look``, which is read; and two of documents that are asked for."""
    from ferryman.cli.plan import REASONS

    assert set(REASONS) == {*map(str, Reason)} - {Reason.LOOK} | {"unchanged", "later"}


def test_an_interrupted_preview_ends_with_130(fake: Fake, state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """There is nothing to go on with."""

    def preview(plan: Any, **_: Any) -> None:
        signal.raise_signal(signal.SIGINT)

    fake("ferryman.engine.preview", preview=preview)
    assert start(["preview", "plan.py"]) == 130
    assert capsys.readouterr() == ("", "interrupted: nothing was written.\n")
