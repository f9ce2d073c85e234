"""What `status`, `deliveries` and `history` tell, given a fake account."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from ferryman.account.families import FamilyStatus
from ferryman.cli.app import start
from tests.support.fakes import Fake, row

IDLE: dict[str, Any] = {"running": None, "pending_reasons": [], "stopped": [], "held": 0}

STATUS = {
    "plan": "small",
    "version": 2,
    "waves": 1,
    "sources": {"files": {"documents": 3, "deleted": 0, "again": 0}},
    "destinations": {
        "index": {
            "delivered": 2, "deleted": 0, "dropped": 0, "failed": 1, "rejected": 0, "pending": 0, "in_doubt": 0,
        }
    },
    "balanced": True,
}  # fmt: skip


def test_status_is_a_table_in_a_pipe(fake: Fake, state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Aligned columns, the last waves, whether it adds up, and where to look next."""
    wave = {"wave": 1, "created": "2025-01-31T12:00:00.123456+00:00", "documents": 3}
    fake(
        "ferryman.account",
        status=lambda root, plan: STATUS,
        waves=lambda root, plan: [wave],
        activity=lambda *_: IDLE,
        has_not_read=lambda root, plan: False,
    )

    assert start(["status", "plan.py"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "plan small, version 2: 1 wave",
        "No run is active. Next: ferryman run plan.py",
        "",
        "source  documents  deleted  again",
        "files           3        0      0",
        "",
        "destination  delivered  deleted  dropped  failed  rejected  pending  in_doubt",
        "index                2        0        0       1         0        0         0",
        "",
        "The last waves:",
        "wave  created              documents",
        "   1  2025-01-31 12:00:00          3",
        "",
        "Balanced: every document is accounted for at every destination that its source reaches.",
        "Which are failed, and why: ferryman deliveries plan.py --status failed",
    ]


def test_status_json_is_the_ledgers(fake: Fake, state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is added for people."""
    fake("ferryman.account", status=lambda root, plan: STATUS, activity=lambda *_: IDLE)

    assert start(["status", "plan.py", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == STATUS | IDLE


def test_status_says_loudly_that_it_is_not_balanced(
    fake: Fake, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An unbalanced account is the one thing that nobody may miss."""
    fake(
        "ferryman.account",
        status=lambda root, plan: STATUS | {"balanced": False},
        waves=lambda root, plan: [],
        activity=lambda *_: IDLE,
        has_not_read=lambda root, plan: False,
    )

    assert start(["status", "plan.py"]) == 0
    assert "NOT BALANCED" in capsys.readouterr().out


def test_deliveries_hands_its_filters_on(fake: Fake, state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Status in any case; only filters that were given; JSON holds the ledger's columns, times as ISO 8601."""
    got: dict[str, Any] = {}

    def deliveries(root: Path, **filters: Any) -> list[dict[str, Any]]:
        del filters["plan"]
        got.update(filters, root=root)
        return [row("a.txt", "ERROR_DOC")]

    fake("ferryman.account", iter_deliveries=deliveries)

    options = ["--status", "Error_Doc", "--destination", "index", "--source", "files", "--json"]
    assert start(["deliveries", "plan.py", *options]) == 0
    assert got == {"root": state, "status": "Error_Doc", "destination": "index", "source": "files", "limit": None}
    (shown,) = json.loads(capsys.readouterr().out)
    assert (shown["document"], shown["created"]) == ("a.txt", "2025-01-31T12:00:00.123456+00:00")


def test_deliveries_are_whole_lines_in_a_pipe(fake: Fake, state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A long id or message is neither wrapped nor shortened."""
    long = "folder/" * 40 + "a.txt"
    fake(
        "ferryman.account",
        deliveries=lambda root, limit, plan: [row(long, "DEAD", "why " * 60), row("b", "INDEXED")],
    )

    assert start(["deliveries", "plan.py"]) == 0
    heading, first, second = capsys.readouterr().out.splitlines()
    assert heading.split() == ["document", "source", "destination", "status", "attempt", "wave", "message"]
    assert first.startswith(long)
    assert first.endswith("why why")
    assert second.split() == ["b", "files", "index", "delivered", "1", "1"]


def test_deliveries_show_the_newest_and_say_that_there_are_more(
    fake: Fake, state: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a terminal 50 at once, in a pipe 1000, as JSON all; --limit sets the number for each."""
    limits: list[int | None] = []

    def deliveries(root: Path, limit: int | None, plan: Any) -> list[dict[str, Any]]:
        limits.append(limit)
        return [row(str(n), "INDEXED") for n in range(2500)][:limit]

    fake(
        "ferryman.account",
        deliveries=deliveries,
        iter_deliveries=lambda root, limit, plan: iter(deliveries(root, limit, plan)),
        count_deliveries=lambda root, plan: 2500,
    )

    assert start(["deliveries", "plan.py"]) == 0
    captured = capsys.readouterr()
    assert len(captured.out.splitlines()) == 1 + 1000
    assert captured.err == "These are the 1000 newest of 2500; --limit 2500 or --json shows all of them.\n"
    assert start(["deliveries", "plan.py", "--limit", "2500"]) == 0
    captured = capsys.readouterr()
    assert (len(captured.out.splitlines()), captured.err) == (1 + 2500, "")
    assert start(["deliveries", "plan.py", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 2500
    assert start(["deliveries", "plan.py", "--json", "--limit", "7"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 7
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert start(["deliveries", "plan.py"]) == 0
    captured = capsys.readouterr()
    assert captured.out.count("delivered") == 50
    assert captured.err.startswith("These are the 50 newest of 2500; ")
    assert limits == [1001, 2501, None, 7, 51]


def test_incomplete_families_are_as_many_as_deliveries(
    fake: Fake, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a pipe 1000, as JSON all."""
    found = [FamilyStatus("files", f"{n:04}", 1, 0, 1, 0, 0, 0) for n in range(1200)]
    fake(
        "ferryman.account.families",
        incomplete_families=lambda root, plan, source, family: found,
        FamilyStatus=FamilyStatus,
    )

    assert start(["deliveries", "plan.py", "--incomplete"]) == 0
    captured = capsys.readouterr()
    assert len(captured.out.splitlines()) == 1 + 1000 + 1
    assert captured.err == "These are 1000 of 1200; --limit 1200 or --json shows all of them.\n"
    assert start(["deliveries", "plan.py", "--incomplete", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 1200


def test_copies_are_told_apart_by_their_route(fake: Fake, state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A column that is there only where it says something."""
    fake(
        "ferryman.account",
        deliveries=lambda root, **_: [row("a", "INDEXED", route="left"), row("a", "INDEXED")],
    )

    assert start(["deliveries", "plan.py"]) == 0

    heading, first, second = capsys.readouterr().out.splitlines()
    assert heading.split()[:4] == ["document", "source", "destination", "route"]
    assert first.split()[3] == "left"
    assert second.split()[3] == "delivered"


def test_history_tells_every_event(fake: Fake, state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Oldest first, with the reason of each."""
    events = [row("a.txt", "ERROR", "down", origin="a.txt"), row("a.txt", "INDEXED", attempt=2, origin="a.txt")]
    fake("ferryman.account.families", family_statuses=lambda root, family, plan: [], older_deliveries=lambda *_: [])
    fake("ferryman.account", history=lambda root, document, **_: events, stopped=lambda *_: [])

    assert start(["history", "plan.py", "a.txt"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["2025-01-31", "12:00:00", "1", "a.txt", "index", "upsert", "ERROR", "1", "down"]
    assert lines[-1] == "a.txt: version 00ff, revision 1, from source files"


def test_history_suggests_ids_in_commands_that_can_be_typed(
    fake: Fake, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An id with a blank is quoted."""
    fake(
        "ferryman.account",
        history=lambda root, document, **_: [],
        nearest_documents=lambda root, document, plan: ["to my mother.txt"],
    )

    assert start(["history", "plan.py", "mother.txt"]) == 2
    assert "Nearest: `ferryman history plan.py 'to my mother.txt'`." in capsys.readouterr().err
