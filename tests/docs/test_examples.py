"""The worked examples of the docs keep the promises that the shipped suites test."""

from __future__ import annotations

import re
import sqlite3
import tomllib
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.destinations.search_index import SearchIndex
from tests.support.plan_world import run_plan

DOCS = Path(__file__).parents[2] / "docs"


def python(page: str) -> list[str]:
    """The page's blocks of Python, in their order."""
    return re.findall(r"^```python\n(.*?)^```", (DOCS / page).read_text("utf-8"), re.DOTALL | re.MULTILINE)


def names(page: str, wanted: str) -> dict[str, Any]:
    """What the blocks that speak of ``wanted`` define."""
    made: dict[str, Any] = {"__name__": f"example_{wanted}"}
    for text in python(page):
        if re.search(rf"\bclass \w*{wanted}\b|\b{wanted}\(", text):
            exec(compile(text, page, "exec"), made)
    return made


TestZip = names("how-to/write-a-source.md", "Zip")["TestZip"]
TestNumbered = names("reference/sources.md", "Numbered")["TestNumbered"]
TestCards = names("how-to/write-a-destination.md", "Cards")["TestCards"]


def test_the_plan_of_the_example_is_in_order() -> None:
    """It can run."""
    plan = names("how-to/write-a-destination.md", "Cards")["plan"]

    assert plan.check() == []
    assert plan.nodes[-1].policy.guarantee.value == "exactly-once"


def test_the_plan_with_a_source_of_its_own_follows_the_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It can run; what changes in the archive, and what goes, arrives."""
    monkeypatch.chdir(tmp_path)
    made = names("how-to/write-a-source.md", "Zip")
    plan, write = made["plan"], made["write"]
    assert plan.check() == []

    write("a.zip", {f"{n}.txt": "first" for n in range(4)})
    assert run_plan(plan, tmp_path / "state").delivered == 4
    write("a.zip", {"0.txt": "second", "1.txt": "first", "2.txt": "first"})
    summary = run_plan(plan, tmp_path / "state")

    assert (summary.exit, summary.delivered, summary.deleted) == (0, 1, 1)
    with closing(sqlite3.connect("members.db")) as db:
        found = db.execute("SELECT id, text FROM documents ORDER BY id").fetchall()
    assert found == [("0.txt", "second"), ("1.txt", "first"), ("2.txt", "first")]


def test_the_plan_of_the_readme_does_what_it_says() -> None:
    """It can run; a letter goes one way, the paragraphs of another text the other."""
    from ferryman import Document

    handbook, text = python("../README.md")
    made: dict[str, Any] = {"__name__": "readme"}
    exec(compile(handbook, "README.md", "exec"), made)
    assert made["plan"].check() == []
    exec(compile(text, "README.md", "exec"), made)

    assert all("does not compare sequences" in warning for warning in made["plan"].check())
    letter, other = (made["read"](Document("a", raw=raw)) for raw in (b"Dear Sir", b"One\n\nTwo"))
    assert {letter["kind"], other["kind"]} == {"letter", "other"}
    assert [child.id for child in made["paragraphs"](other)] == ["a#0", "a#1"]


def test_the_plan_of_the_first_page_brings_files_into_opensearch(
    server: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real one: the text of what can be read is there, what cannot is refused."""
    real = server("opensearch")
    index = SearchIndex(real.url, "library")
    index.ask("DELETE", status=(200, 404))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "library").mkdir()
    (tmp_path / "library" / "muse.html").write_text("<title>Henry V</title><p>O for a Muse of fire")
    (tmp_path / "library" / "broken.pdf").write_bytes(b"%PDF-1.4 and then nothing")
    [text] = python("README.md")
    made: dict[str, Any] = {"__name__": "first_page"}
    exec(compile(text.replace("http://localhost:9200", real.url), "docs/README.md", "exec"), made)

    summary = run_plan(made["plan"], tmp_path / "state")

    assert (summary.exit, summary.delivered, summary.rejected) == (3, 1, 1)
    [document] = index.documents().values()
    assert document["title"] == "Henry V"
    assert "Muse of fire" in document["text"]


@pytest.mark.parametrize("page", sorted(p.relative_to(DOCS).as_posix() for p in DOCS.rglob("*.md")))
def test_every_block_of_python_is_python(page: str) -> None:
    """It can be compiled; signatures, which are no programs, are left out."""
    for text in python(page):
        if not re.match(r"[\w.]+\(.*(\)|->.*)$", text.strip(), re.DOTALL) and not re.fullmatch(r"[\w.]+", text.strip()):
            compile(text, page, "exec")


def test_every_extra_is_in_the_table() -> None:
    project = tomllib.loads((DOCS.parent / "pyproject.toml").read_text("utf-8"))["project"]
    table = re.findall(r"^\| `ferryman\[(\w+)\]` \|", (DOCS / "README.md").read_text("utf-8"), re.MULTILINE)
    assert sorted(table) == sorted(project["optional-dependencies"])
    [of_all] = project["optional-dependencies"]["all"]
    assert of_all == f"ferryman[{','.join(sorted({*table} - {'all', 'connect', 'testing'}))}]"
