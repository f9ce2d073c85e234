"""The tools for assistants, called with the client of the official SDK: in this process, over stdio, and over HTTP."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ferryman.errors import UsageError
from ferryman.retrieval import assistant
from ferryman.testing.vectors import MemoryVectors, vector_delivery
from tests.servers.registry import require_package
from tests.support.plan_world import run_plan

mcp = require_package("mcp")

PLAN = """
from ferryman import Plan
from ferryman.destinations import JsonLines, Sql
from ferryman.errors import BadDocument
from ferryman.routers import Duplicate
from ferryman.sources import Files

def read(doc):
    text = doc.text()
    if "nothing" in text:
        raise BadDocument("there is nothing in it")
    doc["title"] = text.partition("\\n")[0]
    return doc

plan = Plan("plays", version=3)
copies = plan.source("files", Files("plays")).step("read", read).route("copies", Duplicate())
copies.destination("index", Sql("sqlite:///index.db", columns={"title": "title"}, full_text=["title", "text"]))
copies.destination("lines", JsonLines("lines.jsonl"))
"""

LONG = "word " * 9000


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan that has run over three plays, of which one was rejected."""
    folder = tmp_path_factory.mktemp("assistant")
    (folder / "plays").mkdir()
    for name, text in (("henry.txt", "Henry V\nO for a Muse of fire."), ("empty.txt", "nothing"), ("long.txt", LONG)):
        (folder / "plays" / name).write_text(text)
    file = folder / "plan.py"
    file.write_text(PLAN)
    [asked] = assistant.load_plans([str(file)]).values()
    run_plan(asked.plan, folder / ".ferryman")
    return file


def ask(server: Any, *calls: tuple[str, dict[str, Any]], **options: Any) -> list[Any]:
    """The answers to calls of tools; an error as its text."""

    async def talk() -> list[Any]:
        async with mcp.Client(server, **options) as client:
            answers: list[Any] = []
            for name, arguments in calls:
                answer = await client.call_tool(name, arguments)
                answers.append(answer.content[0].text if answer.is_error else answer.structured_content)  # type: ignore[union-attr]
            return answers

    return asyncio.run(asyncio.wait_for(talk(), 120))


@pytest.fixture(scope="module")
def server(plan: Path) -> Any:
    """The tools over the plan, in this process."""
    return served(plan)


def served(*plans: Path) -> Any:
    return assistant.make_server(assistant.load_plans([str(each) for each in plans]), "embed")


def test_all_tools_only_read(server: Any) -> None:
    """And say so; each has a description, and the server says what they are for."""

    async def tools() -> Any:
        async with mcp.Client(server) as client:
            return (await client.list_tools()).tools

    listed = asyncio.run(tools())
    assert {tool.name for tool in listed} == {
        "list_plans",
        "search",
        "read_document",
        "document_history",
        "plan_state",
    }
    assert all(tool.annotations.read_only_hint and not tool.annotations.destructive_hint for tool in listed)
    assert all(len(tool.description) > 60 for tool in listed)


def test_a_document_is_found_read_and_explained(server: Any) -> None:
    """By words, since this index has no vectors."""
    plans, found, read, history, state = ask(
        server,
        ("list_plans", {}),
        ("search", {"question": "muse", "destination": "index"}),
        ("read_document", {"id": "henry.txt"}),
        ("document_history", {"id": "henry.txt"}),
        ("plan_state", {}),
    )

    assert [each["name"] for each in plans["plans"][0]["destinations"]] == ["index", "lines"]
    assert plans["plans"][0]["version"] == 3
    [hit] = found["hits"]
    assert (hit["id"], hit["title"]) == ("henry.txt", "Henry V")
    assert "Muse" in hit["text"]
    assert read["fields"].items() >= {"title": "Henry V", "mime": "text/plain"}.items()
    del read["fields"]
    assert read == {
        "id": "henry.txt",
        "destination": "index",
        "text": "Henry V\nO for a Muse of fire.",
        "characters": 29,
    }
    assert history["not_delivered"] == []
    assert {each["destination"]: each["status"] for each in history["deliveries"]} == {
        "index": "delivered",
        "lines": "delivered",
    }
    assert history["events"][0]["at"].startswith("20")
    assert state["balanced"]
    assert state["destinations"]["index"]["delivered"] == 2
    assert state["running"] is None


def test_why_a_document_is_not_delivered(server: Any) -> None:
    """The reason, for each destination."""
    [history] = ask(server, ("document_history", {"id": "empty.txt"}))

    assert len(history["not_delivered"]) == 2
    assert {each["status"] for each in history["not_delivered"]} == {"rejected"}
    assert all("there is nothing in it" in each["reason"] for each in history["not_delivered"])


def test_a_long_text_is_read_in_pieces(server: Any) -> None:
    """Until there is no next one; the pieces are the text."""
    pieces, at = [], 0
    while True:
        [piece] = ask(server, ("read_document", {"id": "long.txt", "offset": at}))
        pieces.append(piece["text"])
        if (at := piece.get("next_offset", 0)) == 0:
            break

    assert len(pieces) == 3
    assert "".join(pieces) == LONG


MISTAKES: list[tuple[str, dict[str, Any], str]] = [
    ("read_document", {"id": "henri.txt"}, "Nearest ids: henry.txt"),
    ("read_document", {"id": "henry.txt", "destination": "lines"}, "lines cannot be read back"),
    ("read_document", {"id": "henry.txt", "offset": 30}, "the text has 29 characters"),
    ("read_document", {"id": "x" * 10_000 + "\0"}, "there is no such document"),
    ("document_history", {"id": "x' OR '1'='1"}, "knows no such document"),
    ("document_history", {"id": "henry.txt", "limit": 0}, "from 1 to"),
    ("search", {"question": "muse", "destination": "nowhere"}, "no destination"),
    ("search", {"question": "muse"}, "give one of index, lines"),
    ("search", {"question": "muse", "destination": "lines"}, "only be searched by meaning"),
    ("search", {"question": "muse", "destination": "index", "filter": {"a": 1}}, "without a filter"),
    ("search", {"question": "muse", "destination": "index", "limit": 1000}, "from 1 to 100"),
    ("search", {"question": "muse", "plan": "poems"}, "there is no plan 'poems': give one of plays"),
    ("plan_state", {"plan": "\0"}, "there is no plan"),
]


def test_a_mistake_is_answered_with_the_way_on(server: Any) -> None:
    """In words that an assistant can act on."""
    answers = ask(server, *((tool, arguments) for tool, arguments, _ in MISTAKES))

    for (tool, arguments, why), answer in zip(MISTAKES, answers, strict=True):
        assert isinstance(answer, str), (tool, arguments)
        assert why in answer


def test_hostile_questions_find_something_or_nothing(server: Any) -> None:
    """No sign is a command."""
    questions = ["", "' OR 1=1 --", '"', "* NEAR( ^", "\0", "OR OR", "\u202e", "muse \0 OR"]
    answers = ask(server, *(("search", {"question": each, "destination": "index"}) for each in questions))

    assert all(isinstance(answer, dict) for answer in answers), answers


MEANING = """
from ferryman import Plan, steps
from ferryman.sources import Memory
from ferryman.testing.vectors import MemoryVectors

def encode(texts, role):
    return [[float("right" in text), float("up" in text) + 0.01] for text in texts]

plan = Plan("compass")
embedded = plan.source("texts", Memory([])).step("embed", steps.embed_text(model=encode))
embedded.destination("vectors", MemoryVectors("assistant", {"vector": 2}))
"""


def test_an_index_with_vectors_is_searched_by_meaning(plan: Path, tmp_path: Path) -> None:
    """With filters; beside another plan each has to be named."""
    store = MemoryVectors("assistant", {"vector": 2})
    store.write(
        [vector_delivery("right.txt", 1, [1.0, 0.0], team="a"), vector_delivery("up.txt", 2, [0.0, 1.0], team="b")]
    )
    other = tmp_path / "meaning.py"
    other.write_text(MEANING)

    both, filtered, unnamed, never = ask(
        served(plan, other),
        ("search", {"question": "go right", "plan": "compass"}),
        ("search", {"question": "go right", "plan": "compass", "filter": {"team": ["b", "c"]}}),
        ("search", {"question": "go right"}),
        ("plan_state", {"plan": "compass"}),
    )

    assert [hit["id"] for hit in both["hits"]] == ["right.txt", "up.txt"]
    assert both["hits"][0]["score"] > both["hits"][1]["score"]
    assert both["hits"][0]["fields"] == {"team": "a"}
    assert [hit["id"] for hit in filtered["hits"]] == ["up.txt"]
    assert unnamed.endswith("there are several plans: give one of plays, compass.")
    assert "has never run" in never


def test_two_plans_of_one_name_are_refused(plan: Path, tmp_path: Path) -> None:
    """An assistant could not tell which one answers."""
    (tmp_path / "other.py").write_text(PLAN)

    with pytest.raises(UsageError, match="plays is given already"):
        served(plan, tmp_path / "other.py")


def test_without_its_package_it_says_what_to_install(plan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is served."""
    monkeypatch.setattr(assistant, "find_spec", lambda name: None)

    with pytest.raises(UsageError, match=r"pip install 'ferryman\[mcp\]'"):
        served(plan)


CALLS = (("search", {"question": "muse", "destination": "index"}), ("document_history", {"id": "empty.txt"}))


def files_below(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_over_stdio_as_an_assistants_program_starts_it(plan: Path) -> None:
    """What a plan file prints does not disturb the protocol; and nothing is stored, least of all the question."""
    noisy = plan.with_name("noisy.py")
    noisy.write_text(
        f"print('hello')\n{PLAN}".replace("    text = doc.text()", "    print('reading')\n    text = doc.text()")
    )
    before = files_below(plan.parent)
    server = mcp.StdioServerParameters(
        command=sys.executable, args=["-m", "ferryman.cli", "mcp", str(noisy)], env={**os.environ}, cwd=str(plan.parent)
    )

    found, history = ask(server, *CALLS)

    assert [hit["id"] for hit in found["hits"]] == ["henry.txt"]
    assert history["not_delivered"]
    assert files_below(plan.parent) == before


@pytest.fixture(scope="module")
def http_server(plan: Path) -> Iterator[str]:
    """Serves over HTTP, at this URL."""
    server = subprocess.Popen(
        [sys.executable, "-m", "ferryman.cli", "mcp", str(plan), "--port", "0"], stderr=subprocess.PIPE, text=True
    )
    assert server.stderr is not None
    try:
        line = server.stderr.readline()
        said = re.search(r"http://127\.0\.0\.1:\d+/mcp", line)
        assert said is not None, line + server.stderr.read()
        yield said[0]
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(60)
        server.stderr.close()


def test_over_http_on_the_loopback(http_server: str) -> None:
    """For several clients at once; and not for a page in a browser that has another name for this address."""
    answers = [ask(http_server, *CALLS) for _ in range(2)]
    assert answers[0] == answers[1]
    assert [hit["id"] for hit in answers[0][0]["hits"]] == ["henry.txt"]

    port = int(http_server.split(":")[2].split("/")[0])
    for header, value in (("Host", f"evil.example:{port}"), ("Origin", "http://evil.example")):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream", header: value}
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/list"})
        connection.request("POST", "/mcp", body, headers)
        assert connection.getresponse().status in (403, 421), header
        connection.close()


def test_a_port_that_is_taken_is_said(plan: Path, http_server: str) -> None:
    """With what to do."""
    port = int(http_server.split(":")[2].split("/")[0])

    with pytest.raises(UsageError, match=f"--port {port}: Address already in use"):
        assistant.serve(assistant.load_plans([str(plan)]), "embed", port=port)
