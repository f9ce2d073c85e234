"""``ferryman intake submit``, ``access`` and ``serve``, as far as no Spark is needed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ferryman.cli.app import start
from ferryman.intake import JobQueue


@pytest.fixture
def queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FERRYMAN_QUEUE", f"sqlite:///{tmp_path}/queue.db")
    (tmp_path / "a.txt").write_text("a")
    return f"sqlite:///{tmp_path}/queue.db"


def test_submit_says_what_it_hands_in(queue: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What consumers need is in the submission."""
    digest = "md5:" + "0" * 32
    code = start(["intake", "submit", "a.txt", "--digest", digest, "--response-url", "http://x/told", "--json"])
    assert code == 0
    told = json.loads(capsys.readouterr().out)["submission"]
    assert (told["payload_type"], told["digest"], told["response_url"]) == ("file", digest, "http://x/told")


@pytest.mark.parametrize(("state", "code"), [("Pending", 4), ("Failed", 3), ("Completed", 0)])
def test_submit_waits(queue: str, state: str, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    """It ends as a run does: 0 completed, 3 with failures, 4 not there yet."""
    with JobQueue.open(queue) as opened:
        batch = opened.create_batch(
            {
                "batchID": "b",
                "payload_url": (Path.cwd() / "a.txt").as_uri(),
                "payload_type": "file",
                "payload_file_name": "a.txt",
            }
        )
        if state != "Pending":
            batch.set_status("Processing")
            batch.set_status("Reporting")
            batch.set_status(state, "as it is")
    assert start(["intake", "submit", "a.txt", "--batch-id", "b", "--wait", "0.01"]) == code
    assert state in capsys.readouterr().out


def test_access_to_nothing(queue: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Without objects it lists; what was not delivered cannot be had."""
    assert start(["intake", "access", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []
    assert start(["intake", "access", "nothing"]) == 2
    assert "no object of this local id" in capsys.readouterr().err


def test_serve_needs_a_source_of_jobs(queue: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Refused before anything is started."""
    Path("plan.py").write_text(
        "from ferryman import Plan\n"
        "from ferryman.destinations import Null\n"
        "from ferryman.sources import Memory\n"
        "plan = Plan('none')\n"
        "plan.source('list', Memory([])).destination('out', Null())\n"
    )
    assert start(["intake", "serve", "plan.py"]) == 2
    assert "takes no jobs" in capsys.readouterr().err
