"""What `retry`, `search` and `fsck` tell, given fakes; the words that options take."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ferryman.cli.app import start
from ferryman.cli.options import seconds, spark_settings, status_name
from ferryman.errors import UsageError
from tests.support.fakes import Fake

# --- retry, search, fsck ------------------------------------------------------------------------------------------


class Retried(NamedTuple):
    count: int | None
    queued: bool = False


@pytest.mark.parametrize(
    ("done", "told"),
    [
        (Retried(3), "3 due now. Next: ferryman run plan.py"),
        (Retried(0), "Nothing matches: nothing was changed."),
        (Retried(None), "What matches is due now. Next: ferryman run plan.py"),
        (
            Retried(None, queued=True),
            "Queued: the current run, or the next one, will apply it: ferryman run plan.py",
        ),
    ],
)
def test_retry_says_what_comes_of_it(
    fake: Fake, state: Path, capsys: pytest.CaptureFixture[str], done: Retried, told: str
) -> None:
    """Done, nothing to do, or queued for the run that holds the state."""
    got: dict[str, Any] = {}

    def retry(plan: Any, **options: Any) -> Retried:
        got.update(options)
        return done

    fake("ferryman.operations", retry=retry)

    assert (
        start(
            [
                "retry",
                "plan.py",
                "--status",
                "dead",
                "--doc",
                "a.txt",
                "--destination",
                "index",
                "--source",
                "files",
                "--force",
                "--why",
                "x",
            ]
        )
        == 0
    )
    assert got == {
        "state": state.parent,
        "status": "dead",
        "document": "a.txt",
        "destination": "index",
        "source": "files",
        "reason": None,
        "force": True,
        "forget": False,
        "dirty": False,
        "why": "x",
    }
    assert capsys.readouterr().out == told + "\n"


class Hit(NamedTuple):
    id: str
    title: str | None
    snippet: str
    rank: float


def test_search_prints_a_line_a_hit(fake: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    """Id, title, and where the words stand; as JSON with the rank."""
    hits = [Hit("a.txt", "A", "the\n  [word]", -1.5), Hit("b.txt", None, "", -1.0)]
    fake(
        "ferryman.destinations.sql.search",
        search=lambda db, text, table, limit, mark: hits if (db, text, table, limit) == ("i", "w", "t", 2) else [],
    )

    assert start(["search", "i", "w", "--table", "t", "--limit", "2"]) == 0
    assert capsys.readouterr().out == "a.txt  A — the [word]\nb.txt\n"
    assert start(["search", "i", "w", "--table", "t", "--limit", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0] == {
        "id": "a.txt",
        "title": "A",
        "snippet": "the\n  [word]",
        "rank": -1.5,
    }
    assert start(["search", "i", "nothing"]) == 0
    assert capsys.readouterr() == ("", "Nothing found for 'nothing' in i.\n")


class Finding(NamedTuple):
    path: Path
    what: str
    remedy: str


def test_fsck_ends_with_1_if_anything_is_damaged(fake: Fake, state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A line a finding: the file, what is wrong, what can be done."""
    findings = [Finding(Path("/x"), "3 bytes are missing", "restore it")]
    fake("ferryman.operations", check=lambda root: findings)

    assert start(["fsck", "plan.py"]) == 1
    assert capsys.readouterr().out == f"/x: 3 bytes are missing; restore it\n{state}: 1 damaged or missing\n"
    findings.clear()
    assert start(["fsck", "plan.py"]) == 0
    assert capsys.readouterr().out == f"{state}: all well\n"


# --- words --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("60", 60.0),
        ("60s", 60.0),
        ("2m", 120.0),
        ("1.5h", 5400.0),
        ("1d", 86400.0),
        ("500ms", 0.5),
        ("0", 0.0),
        (".5", 0.5),
        (None, None),
    ],
)
def test_times_have_units(text: str | None, value: float | None) -> None:
    """Seconds, unless a unit says otherwise."""
    assert seconds("--wait", text) == value


@pytest.mark.parametrize("text", ["", "-1", "1w", "soon", "1 2", "1s s"])
def test_other_times_are_refused(text: str) -> None:
    """What is no time names the option and the units."""
    with pytest.raises(UsageError, match=r"--wait .*give seconds"):
        seconds("--wait", text)


def test_settings_of_spark_are_key_and_value() -> None:
    """The value may hold an equals sign, and may be empty."""
    assert spark_settings(["a=1", "b= x=y "]) == {"a": "1", "b": "x=y"}
    with pytest.raises(UsageError):
        spark_settings(["=1"])


def test_a_status_is_known_in_any_case() -> None:
    """By the word that is shown or by the name that is stored; dashes will do, too."""
    for text in ("error-doc", "ERROR_DOC", "Rejected", "in-doubt"):
        assert status_name(text) == text
    assert status_name(None) is None
    with pytest.raises(UsageError, match="choose one of delivered"):
        status_name("deadd")
