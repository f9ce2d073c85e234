"""Questions to a real index, in SQLite, that a plan has filled: by the command, as it changes, and as it fails."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import ferryman
from ferryman.cli.app import start
from ferryman.errors import UsageError
from ferryman.plan.load import load_plan
from tests.support.plan_world import run_plan

pytest.importorskip("sqlite_vec")

PLAN = """
from ferryman import Plan, steps
from ferryman.destinations import Sql
from ferryman.sources import Files

def encode(texts, role):
    return [[text.count("train") + 0.01, text.count("room") + 0.01, 0.1] for text in texts]

def rights(doc):
    doc["acl"] = [doc.id.partition("/")[0], "all"]
    doc["year"] = len(doc.id)
    doc["isbn"] = "97801414395180000001" if doc.id.startswith("b/") else "1"
    return doc

plan = Plan("handbook", version=1)
chunks = plan.source("pages", Files("pages")).step("rights", rights)
chunks = chunks.step("split", steps.split_text(key="content", copy=["acl", "isbn", "year"]))
chunks.step("embed", steps.embed_text(model=encode, dimensions=3), batch=8).destination(
    "index", Sql("sqlite:///index.db", full_text=["text"], vectors={"vector": 3}))
"""


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A plan that has run over three pages of two teams."""
    monkeypatch.chdir(tmp_path)
    for name, text in (
        ("a/trains.md", "A train leaves.\n\nAnother train comes."),
        ("a/rooms.md", "A room is free."),
        ("b/more-rooms.md", "This room, and that room, are taken by Napoleon."),
    ):
        path = tmp_path / "pages" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    file = tmp_path / "plan.py"
    file.write_text(PLAN)
    run_plan(load_plan(str(file)), tmp_path / ".ferryman")
    return file


def asked(plan: Path, text: str, *options: str, index: str = "index.db") -> list[dict[str, Any]]:
    """The hits of ``ferryman search … --json``."""
    from contextlib import redirect_stdout
    from io import StringIO

    with redirect_stdout(StringIO()) as out:
        assert start(["search", index, text, "--plan", str(plan), "--embed", "embed", "--json", *options]) == 0
    return list(json.loads(out.getvalue()))


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What a command says that ends with 2."""
    capsys.readouterr()
    assert start(list(arguments)) == 2
    return capsys.readouterr().err


def test_rows_come_with_scores_fields_and_text(plan: Path) -> None:
    """What both meaning and words find comes first; no field holds the vector."""
    first, *_ = hits = asked(plan, "Napoleon")

    assert first["id"].startswith("b/more-rooms.md#")
    assert first["text"] == "This room, and that room, are taken by Napoleon."
    assert first["fields"]["acl"] == ["b", "all"]
    assert "vector" not in first["fields"]
    assert [hit["score"] for hit in hits] == sorted((hit["score"] for hit in hits), reverse=True)


def test_filters_of_the_command_are_values_of_any_type(plan: Path) -> None:
    """Text, a number, several values; as many hits as there are."""
    assert {hit["id"][0] for hit in asked(plan, "room", "--filter", "acl=b")} == {"b"}
    assert len(asked(plan, "room", "--filter", "acl=all")) == 4
    assert [hit["fields"]["year"] for hit in asked(plan, "room", "--filter", "year=10")] == [10]
    assert len(asked(plan, "room", "--filter", "acl=a", "--filter", "acl=b", "--limit", "9")) == 4
    assert asked(plan, "room", "--filter", "acl=b", "--filter", "year=1") == []
    assert asked(plan, "room", "--filter", "acl=' OR '1'='1") == []
    assert asked(plan, "room", "--filter", "a'b\"c$.[0]=x") == []
    assert {hit["id"][0] for hit in asked(plan, "room", "--filter", "isbn=97801414395180000001")} == {"b"}
    assert asked(plan, "room", "--filter", "isbn=1e300") == []


def test_a_filter_may_hold_any_text(plan: Path) -> None:
    """No document has a NUL, or nothing; half a character is no text."""
    loaded = load_plan(str(plan))
    for name, value in (("acl", "\0"), ("acl", ""), ("\0", "a")):
        assert ferryman.search("index", "room", plan=loaded, embed="embed", where={name: value}) == [], (name, value)
    for name, value in (("acl", "\udcff"), ("\udcff", "a")):
        with pytest.raises(UsageError, match="the filter"):
            ferryman.search("index", "room", plan=loaded, embed="embed", where={name: value})
    [node] = [node for node in loaded.nodes if node.name == "index"]
    for id in ("gone.txt", "\0", "x" * 10_000, "\ud800"):
        assert node.destination.lookup(id) is None  # type: ignore[attr-defined]


def test_an_edit_and_a_delete_are_seen_by_the_next_question(plan: Path) -> None:
    """The index follows the folder."""
    (plan.parent / "pages/a/rooms.md").write_text("A train is late.")
    (plan.parent / "pages/b/more-rooms.md").unlink()
    run_plan(load_plan(str(plan)), plan.parent / ".ferryman")

    texts = [hit["text"] for hit in asked(plan, "train")]
    assert sorted(texts) == ["A train is late.", "A train leaves.", "Another train comes."]


HOSTILE = [
    "'; DROP TABLE documents; --",
    'room "',
    "room * ( ) ^ : - NEAR(a b)",
    "\0 room \0",
    "room \udcff",
    "room \u202e\u0000\ufeff",
    "OR OR OR",
    "room " * 5000,
    "\U0001f600" * 1000,
]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_questions_are_only_words(plan: Path, text: str) -> None:
    """Neither the full-text query nor the vector's is broken by any sign."""
    assert len(asked(plan, text, "--limit", "2")) == 2


def test_a_question_leaves_no_trace(plan: Path) -> None:
    """No file of the folder changes, and none is new: not the state's, not the index's."""

    def files() -> dict[str, bytes]:
        paths = [path for path in plan.parent.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
        return {str(path): path.read_bytes() for path in paths}

    before = files()
    asked(plan, "where does Josephine sleep")
    after = {name: content for name, content in files().items() if not name.endswith(("-shm", "-wal"))}

    assert {name: content for name, content in before.items() if not name.endswith(("-shm", "-wal"))} == after
    assert not any(b"Josephine" in content for content in files().values())


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("embed_text(model=encode, dimensions=3)", "embed_text(model=lambda t, r: [[1.0, 2.0]])"), "2 dimensions"),
        (('vectors={"vector": 3}', 'vectors={"other": 3}'), "sets no vector that index has"),
        ((', vectors={"vector": 3}', ""), "index has no vectors"),
        (('"index.db', '"index.db'), None),
        (("sqlite:///index.db", "sqlite:///gone.db"), "gone.db"),
        (('full_text=["text"]', 'table="gone", full_text=["text"]'), "gone"),
        (('step("embed"', 'step("vectorize"'), "has no step 'embed'; it has rights, split, vectorize"),
    ],
)
def test_an_index_that_does_not_fit_says_what_to_do(
    plan: Path, change: tuple[str, str], says: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of another model, without vectors, not there."""
    plan.write_text(PLAN.replace(*change))
    if says is None:
        assert asked(plan, "room", index="index")
        return

    error = refused(capsys, "search", "index", "room", "--plan", str(plan), "--embed", "embed")
    assert says in error
    assert "bug" not in error


def test_a_table_of_another_dimension_is_named(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The model and the plan were changed, and the table has the vectors of the old ones."""
    changed = PLAN.replace("+ 0.01, 0.1] for", "+ 0.01, 0.1, 0.2] for").replace("dimensions=3", "dimensions=4")
    plan.write_text(changed.replace('{"vector": 3}', '{"vector": 4}'))

    error = refused(capsys, "search", "index", "room", "--plan", str(plan), "--embed", "embed")
    assert "bug" not in error
    assert "3" in error
    assert "4" in error


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--filter", "acl=a"], "a filter needs"),
        (["--plan", "plan.py"], "needs both"),
        (["--embed", "embed"], "needs both"),
        (["--plan", "plan.py", "--embed", "embed", "--filter", "acl"], "give FIELD=VALUE"),
        (["--plan", "plan.py", "--embed", "embed", "--filter", "=a"], "give FIELD=VALUE"),
        (["--plan", "none.py", "--embed", "embed"], "there is no such file"),
    ],
)
def test_options_that_do_not_go_together_are_named(
    plan: Path, arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With what is missing."""
    assert says in refused(capsys, "search", "index.db", "room", *arguments)


def test_many_questions_at_once(plan: Path) -> None:
    """From threads of one program, while the plan runs."""
    from concurrent.futures import ThreadPoolExecutor

    loaded = load_plan(str(plan))
    (plan.parent / "pages/a/new.md").write_text("\n\n".join(f"Room {n} is free." for n in range(200)))
    with ThreadPoolExecutor(8) as pool:
        running = pool.submit(run_plan, load_plan(str(plan)), plan.parent / ".ferryman")
        found = [pool.submit(ferryman.search, "index", f"room {n}", plan=loaded, embed="embed") for n in range(40)]
        assert all(len(each.result()) >= 4 for each in found)
        assert running.result().delivered == 200


def test_a_server_that_is_away_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its destination and its address."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plan.py").write_text(
        PLAN.replace("import Sql", "import OpenSearch").replace(
            'Sql("sqlite:///index.db", full_text=["text"]', 'OpenSearch("http://127.0.0.1:9", "chunks"'
        )
    )
    with pytest.raises(UsageError, match=r"index: http://127\.0\.0\.1:9/chunks"):
        ferryman.search("index", "room", plan=load_plan("plan.py"), embed="embed")
