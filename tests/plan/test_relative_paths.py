"""Relative paths in a plan are meant from its file's folder; in a program, from the current one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ferryman import Plan
from ferryman.cli.app import start
from ferryman.destinations import Directory, JsonLines, OpenSearch, Sql
from ferryman.net import relative_paths
from ferryman.plan import picture
from ferryman.plan.load import load_plan
from ferryman.sources import Csv, Files, Jobs
from ferryman.sources import Sql as SqlSource

PLAN = """
from ferryman import Plan
from ferryman.destinations import Directory, JsonLines, Sql
from ferryman.sources import Csv, Files, Sql as SqlSource

plan = Plan("here", version=1)
sources = [
    plan.source("files", Files("docs")),
    plan.source("rows", Csv("rows", prefix="rows/")),
    plan.source("table", SqlSource("sqlite:///shop.db", "SELECT * FROM t", id="id", prefix="t/")),
]
plan.destination("lines", JsonLines("out"), after=sources)
"""


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A plan's folder; the current one is another."""
    (tmp_path / "plans").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "plans" / "plan.py").write_text(PLAN)
    monkeypatch.chdir(tmp_path / "other")
    return tmp_path / "plans"


@pytest.mark.rule("plan.paths")
def test_paths_are_relative_to_the_plan_file(elsewhere: Path) -> None:
    """Wherever the command is typed; `plan show` has them in full."""
    told = picture.as_json(load_plan("../plans/plan.py"))
    shown = [node.get("place") or node.get("target") for node in told["nodes"]]
    assert shown == [
        str(elsewhere / "docs"),
        str(elsewhere / "rows"),
        f"sqlite:///{elsewhere}/shop.db",
        f"file://{elsewhere}/out",
    ]


@pytest.mark.rule("plan.paths")
def test_in_a_program_they_are_relative_to_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after a plan file was loaded."""
    (tmp_path / "plan.py").write_text(PLAN)
    load_plan(str(tmp_path / "plan.py"))
    monkeypatch.chdir(tmp_path)
    found = [
        Files("a").place(),
        Csv("a").place(),
        SqlSource("sqlite:///a", "SELECT 1", id="id").place(),
        str(JsonLines("a").directory),
        str(Directory("a").directory),
        Sql("sqlite:///a").url,
        Jobs("sqlite:///a").url,
        OpenSearch("https://localhost:9200", "index", ca="a").ca,
    ]
    assert [str(each).removeprefix("sqlite:///") for each in found] == [str(tmp_path / "a")] * len(found)


def test_show_names_the_place(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As text and as JSON."""
    assert start(["plan", "show", "../plans/plan.py"]) == 0
    assert f"Files, {elsewhere / 'docs'}" in capsys.readouterr().out
    assert start(["plan", "show", "../plans/plan.py", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["nodes"][0]["place"] == str(elsewhere / "docs")


def test_a_source_without_a_place_is_drawn() -> None:
    """Its author's code may fail, too."""

    class Odd(Files):
        def place(self) -> str:
            raise RuntimeError("nowhere")

    plan = Plan("odd")
    plan.source("odd", Odd("/data")).destination("out", JsonLines("/data/out"))
    assert "source       Odd\n" in picture.text(plan)


def test_home_is_spelled_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As a shell would."""
    monkeypatch.setenv("HOME", str(tmp_path))
    assert relative_paths.absolute("~/docs") == str(tmp_path / "docs")
