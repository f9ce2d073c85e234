"""The demo's parts. All of it is run by tests/packaging, from an installed wheel."""

from __future__ import annotations

import json
import shlex
import socket
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from ferryman import Document, Dropped
from ferryman.cli import demo_plan, demo_vectors_plan, start
from ferryman.cli.search import find_hits
from ferryman.errors import BadDocument, UsageError
from ferryman.plan.load import load_plan
from tests.servers.registry import require_package
from tests.support.plan_world import run_plan
from tests.support.site_server import SiteServer

STDLIB = Path(sysconfig.get_path("stdlib"))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('"""One."""\n', "One."),
        ("#!/usr/bin/python\n\n# a comment\nr'''One \\d'''\nx = 1\n", "One \\d"),
        ("'One ' \\\n  'two'; x = 1\n", "One two"),
        ('"""First.\n\n    indented\n    """\n', "First.\n\nindented"),
        ('"""\\ud800"""\n', "?"),
        ('"""old escape \\d"""\n', "old escape \\d"),
        ("", ""),
        ("import os\n'''late'''\n", ""),
        ("b'bytes'\n", ""),
        ("f'{x}'\n", ""),
        ("'a' + 'b'\n", ""),
        ("'never closed\n", ""),
        ("'''never closed\n", ""),
        ("print 'old'\n", ""),
        ("   'indented'\n", ""),
    ],
)
def test_docstrings_are_found_without_running_anything(text: str, told: str) -> None:
    """The first statement, if it is a string; no Python of any kind is an error."""
    assert demo_plan.docstring(text) == told


@pytest.mark.parametrize(
    ("raw", "text", "encoding"),
    [
        (b"x = '\xc3\xa9'", "x = 'é'", "utf-8"),
        (b"# coding: latin-1\nx = '\xe9'", "# coding: latin-1\nx = 'é'", "iso-8859-1"),
        (b"\xef\xbb\xbfx = 1", "x = 1", "utf-8-sig"),
        (b"x = '\xe9'", "x = 'é'", "latin-1"),
        (b"# coding: klingon\n", "# coding: klingon\n", "latin-1"),
        (b"# coding: rot13\n", "# coding: rot13\n", "latin-1"),
        (b"", "", "utf-8"),
    ],
)
def test_python_files_say_their_encoding(raw: bytes, text: str, encoding: str) -> None:
    """PEP 263; what breaks it is read as Latin-1, and says so. What destinations get is UTF-8."""
    doc = Document("a.py", raw=raw)

    assert demo_plan.python_text(doc) == text
    assert doc["encoding"] == encoding
    assert ("badly_encoded" in doc) == (encoding == "latin-1")
    assert doc.raw == text.encode()


def test_a_document_gets_title_path_and_docstring() -> None:
    """The title is the module's name and what its docstring begins with."""
    doc = demo_plan.describe(Document("json/__init__.py", raw=b'"""JSON.\n\nMore."""'))

    assert (doc["title"], doc["path"]) == ("json: JSON.", "json/__init__.py")
    assert doc["docstring"] == "JSON.\n\nMore."


def test_a_text_that_is_not_utf8_is_refused() -> None:
    """Only Python files say their encoding."""
    with pytest.raises(BadDocument, match="byte 2"):
        demo_plan.describe(Document("a.txt", raw=b"ab\xe9"))


def test_every_file_of_the_standard_library_can_be_read() -> None:
    """Also those that CPython's own tests break on purpose: no file below the library is refused by the plan's step."""
    files = [p for p in STDLIB.rglob("*.py") if not {"site-packages", "dist-packages"} & set(p.parts)]
    assert len(files) > 100
    for path in files:
        if path.is_file():
            doc = demo_plan.describe(Document(path.relative_to(STDLIB).as_posix(), raw=path.read_bytes()))
            json.dumps(doc.fields).encode("ascii")
            (doc.raw or b"").decode("utf-8")


def test_preparing_changes_nothing_that_is_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A plan that a person has changed is theirs."""
    start.prepare(tmp_path)
    start.prepare(tmp_path)
    assert capsys.readouterr().err == ""

    plan = tmp_path / "plan.py"
    plan.write_text("mine")
    (tmp_path / "broken" / "empty.txt").write_text("mine")
    start.prepare(tmp_path)

    assert plan.read_text() == "mine"
    assert (tmp_path / "broken" / "empty.txt").read_text() == "mine"
    assert "has been changed" in capsys.readouterr().err


def test_commands_to_try_next_name_a_folder_with_blanks(capsys: pytest.CaptureFixture[str]) -> None:
    """One of them removes the folder, and would remove others if a shell read its name as several."""
    start.print_next_steps(Path("my notes"))
    start.print_site_steps(Path("my notes"), "https://docs.example.org/")

    printed = [line for line in capsys.readouterr().out.splitlines() if "my notes" in line]
    assert len(printed) >= 8
    words = [word for line in printed for word in shlex.split(line, comments=True)]
    assert not {"my", "notes"} & {part for word in words for part in word.rstrip(";").split("/")}


def test_preparing_refuses_a_file(tmp_path: Path) -> None:
    """--dir names a folder."""
    (tmp_path / "taken").touch()

    with pytest.raises(UsageError, match="is a file"):
        start.prepare(tmp_path / "taken")


def test_questions_are_answered_by_meaning_that_words_do_not_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of the demo's three: nothing has its words, and the module that a person means comes first, or second.
    Nothing is asked of the network."""

    def refuse(_socket: socket.socket, address: Any) -> None:
        raise AssertionError(f"connects to {address}")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    require_package("wordllama")
    require_package("sqlite_vec")
    start.prepare(tmp_path, vectors=True)
    plan = load_plan(str(tmp_path / "vectors.py"))
    summary = run_plan(plan, tmp_path / "state")
    start.print_questions(tmp_path)

    assert summary.delivered > 150
    assert not summary.failed
    assert not summary.rejected
    answers = capsys.readouterr().out.split("$ ")[1:]
    assert len(answers) == 6
    for by_words, by_meaning, module in zip(answers[::2], answers[1::2], ("csv", "gettext", "sqlite3"), strict=True):
        assert by_words.splitlines()[1] == "(nothing)"
        assert any(f"  {module}" in line for line in by_meaning.splitlines()[1:3]), by_meaning
    assert not (tmp_path / "broken").exists()


def test_a_site_is_indexed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its pages without their navigation; files that are not pages are dropped."""
    require_package("trafilatura")
    with SiteServer() as site:
        site.page("/docs/", "How the ferry crosses the river on a rope of hemp", "/docs/a.pdf", "/elsewhere")
        site.put("/docs/a.pdf", b"%PDF-1.4", mime="application/pdf")
        start.prepare(tmp_path, site=f"{site.url}/docs/")
        plan = load_plan(str(tmp_path / "site.py"))
        summary = run_plan(plan, tmp_path / "state")
        start.print_site_steps(tmp_path, site.url)
        assert (summary.exit, summary.delivered, summary.dropped) == (0, 1, 1)
        [hit] = find_hits(str(tmp_path / "site.db"), "hemp", limit=5)
        assert f"{site.url}/docs/" in str(hit)
    assert "search" in capsys.readouterr().out
    assert not (tmp_path / "broken").exists()


def test_the_modules_of_the_library_are_described() -> None:
    """By name and docstring; one without is dropped, and what cannot be parsed, too."""
    doc = demo_vectors_plan.describe(Document("json/__init__.py", raw=b'"""JSON.\n\nMore."""'))

    assert (doc["title"], doc["package"], doc["about"]) == ("json: JSON.", "json", "JSON.\n\nMore.")
    for raw in (b"x = 1", b"print 'old'", b"\0"):
        with pytest.raises(Dropped):
            demo_vectors_plan.describe(Document("a.py", raw=raw))
