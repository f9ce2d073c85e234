"""``--log-file`` and ``--log-format json``; shell completion."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from ferryman import Plan
from ferryman.cli.app import start
from ferryman.engine.summary import Summary
from ferryman.observe import JsonLog, progress_observer
from tests.support.plan_world import run_plan

PLAN = """
from ferryman import Document, Plan
from ferryman.destinations import Null
from ferryman.sources import Memory


def check(doc: Document) -> Document:
    if doc.id == "b":
        raise KeyError("title")
    return doc


plan = Plan("small", version=2)
documents = [{"id": "a", "raw": b"x"}, {"id": "b", "raw": b"x"}]
plan.source("docs", Memory(documents)).step("check", check).destination("out", Null(), attempts=1)
"""


@pytest.fixture
def plan_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A plan, run without Spark."""

    def run(plan: Plan, *, state: Path, observer: Any, **_: Any) -> Summary:
        return run_plan(plan, state, observer=observer)

    monkeypatch.setattr("ferryman.operations.run", run)
    (tmp_path / "plan.py").write_text(PLAN)
    return str(tmp_path / "plan.py")


def test_a_log_file_has_what_stderr_has(plan_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With times; the next run goes on in it."""
    log = tmp_path / "run.log"
    for _ in range(2):
        assert start(["run", plan_file, "--log-file", str(log)]) == 3
    lines = log.read_text("utf-8").splitlines()
    assert all(re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00 ", line) for line in lines)
    said = [line.partition(" ")[2] for line in lines]
    assert "wave 1: deliveries: 1 delivered, 0 pending, 1 failed or rejected" in said
    assert sum(line.startswith("finished: exit 3, waves ") for line in said) == 2
    assert "wave 1: deliveries: 1 delivered, 0 pending, 1 failed or rejected" in capsys.readouterr().err.splitlines()


def events_of(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_json_lines_on_stderr(plan_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each line is an object, with its time; the result stays on stdout."""
    assert start(["run", plan_file, "--log-format", "json", "--json"]) == 3
    captured = capsys.readouterr()
    events = events_of(captured.err)
    assert {event["event"] for event in events} == {"message", "phase", "error", "settled", "finished"}
    assert [e["phase"] for e in events if e["event"] == "phase"] == [
        "scan",
        "transform",
        "commit",
        "deliver",
        "settle",
    ]
    [error] = [e for e in events if e["event"] == "error"]
    assert (error["document"], "KeyError: 'title'" in error["reason"]) == ("b", True)
    assert "in check" in error["traceback"]
    result = json.loads(captured.out)
    assert {k: v for k, v in events[-1].items() if k not in ("time", "event", "level")} == result


@pytest.mark.rule("lines.levels")
@pytest.mark.parametrize(("code", "level"), [(0, "info"), (3, "info"), (4, "error"), (1, "error")])
def test_the_level_of_an_end(code: int, level: str) -> None:
    """A run that leaves something to do is an error to whoever watches the log."""
    stream = io.StringIO()
    JsonLog(stream).finished({"exit": code, "waves": 1})
    [event] = events_of(stream.getvalue())
    assert (event["event"], event["level"], event["exit"]) == ("finished", level, code)


def test_json_lines_in_a_file(plan_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Then stderr stays for people."""
    log = tmp_path / "run.jsonl"
    assert start(["run", plan_file, "--log-format", "json", "--log-file", str(log)]) == 3
    assert events_of(log.read_text("utf-8"))[-1]["event"] == "finished"
    assert "wave 1: deliveries: 1 delivered" in capsys.readouterr().err


def test_what_ends_a_run_is_in_the_log(tmp_path: Path) -> None:
    """So is the level of a message."""
    log = tmp_path / "run.jsonl"

    def fail() -> None:
        with progress_observer(io.StringIO(), False, log, "json") as observer:
            observer.message("warning: a disk is slow")
            observer.message("plain: words")
            raise ValueError("so it is")

    with pytest.raises(ValueError, match="so"):
        fail()
    told = [(event["level"], event["text"]) for event in events_of(log.read_text("utf-8"))]
    assert told == [("warning", "a disk is slow"), ("info", "plain: words"), ("error", "ValueError: so it is")]


def test_a_log_file_that_cannot_be_written_is_refused(plan_file: str, tmp_path: Path) -> None:
    """Before anything is done."""
    assert start(["run", plan_file, "--log-file", str(tmp_path / "nowhere" / "run.log")]) == 2
    assert not (tmp_path / ".ferryman").exists()


def test_a_full_disk_ends_the_log_and_not_the_run(plan_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    """``/dev/full`` is one. It is said once."""
    assert start(["run", plan_file, "--log-file", "/dev/full"]) == 3
    told = capsys.readouterr().err
    assert told.count("No space left on device") == 1
    assert "warning: --log-file /dev/full: No space left on device: nothing more is written to it. The run goes" in told


def test_a_run_goes_on_when_nobody_reads_what_it_reports(
    plan_file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in ``ferryman run plan.py 2>&1 >/dev/null | head -1``."""
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w") as broken:
        with monkeypatch.context() as patch:
            patch.setattr("sys.stderr", broken)
            assert start(["run", plan_file]) == 3
        with contextlib.suppress(BrokenPipeError):
            broken.close()
    assert start(["run", plan_file]) == 3, "what was rejected is; all else was delivered"


def test_a_choice_that_there_is_not_is_refused_in_plain_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert start(["run", "plan.py", "--log-format", "xml"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: Invalid value for '--log-format': 'xml' is not one of 'text', 'json'.")


def test_shells_can_complete(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Verbs, options, and the words that an option takes."""
    monkeypatch.setenv("_FERRYMAN_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "ferryman pl")
    monkeypatch.setenv("COMP_CWORD", "1")
    with pytest.raises(SystemExit):
        start([])
    assert capsys.readouterr().out.split() == ["plan"]
