"""What the verbs tell, given what the ledger and a run say: those are replaced by fakes here."""

from __future__ import annotations

import importlib
import inspect
import json
import re
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import pytest

from ferryman.account.families import Wholeness
from ferryman.cli.app import start
from ferryman.cli.options import seconds, spark_settings, status_name
from ferryman.engine.scan.changes import SourceComparison
from ferryman.errors import EngineError, StateHeld, UsageError

Fake = Callable[..., None]


@dataclass
class Summary:
    exit: int = 0
    waves: int = 1
    delivered: int = 2
    deleted: int = 0
    dropped: int = 0
    failed: int = 0
    rejected: int = 0
    pending: int = 0
    in_doubt: int = 0
    messages: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, int]:
        return {name: value for name, value in vars(self).items() if name != "messages"}


def row(document: str, status: str, message: str = "", **more: Any) -> dict[str, Any]:
    return {
        "source": "files",
        "document": document,
        "version": "00ff",
        "revision": 1,
        "operation": "upsert",
        "route": "",
        "destination": "index",
        "status": status,
        "message": message,
        "attempt": 1,
        "wave": 1,
        "created": "2025-01-31T12:00:00.123456+00:00",
        **more,
    }


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    """``fake("ferryman.account", docs=…)``: this module, with these functions only."""

    def call(name: str, **functions: Any) -> None:
        module = ModuleType(name)
        vars(module).update(functions)
        monkeypatch.setitem(sys.modules, name, module)
        package, _, last = name.rpartition(".")
        monkeypatch.setattr(importlib.import_module(package), last, module, raising=False)

    return call


@pytest.fixture
def state(plan_file: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The root of a state that is there, with the plan's folder as the current one."""

    monkeypatch.chdir(plan_file.parent)
    root = plan_file.parent / ".ferryman" / "small-v2"
    root.mkdir(parents=True)
    (root / "state.json").touch()
    return root


# --- run ----------------------------------------------------------------------------------------------------------


def test_run_hands_its_options_on(fake: Fake, state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each option of the command is an argument of the engine's run, in its units."""
    got: dict[str, Any] = {}

    def run(plan: Any, **options: Any) -> Summary:
        got.update(options, plan=plan.key)
        return Summary()

    fake("ferryman.operations.run", run=run)

    code = start(
        [
            "run",
            "plan.py",
            "--master",
            "local[1]",
            "--conf",
            "a=b=c",
            "--conf",
            "d=",
            "--wait",
            "2m",
            "--every",
            "30s",
            "--allow-deletes",
            "--accept-changes",
            "--from-version",
            "1",
            "--json",
        ]
    )

    del got["observer"]
    assert got == {
        "plan": "small-v2",
        "state": state.parent,
        "master": "local[1]",
        "conf": {"a": "b=c", "d": ""},
        "wait": 120.0,
        "every": 30.0,
        "allow_deletes": True,
        "accept_changes": True,
        "from_version": 1,
        "notify": [],
    }
    assert code == 0
    assert json.loads(capsys.readouterr().out) == Summary().as_dict()


@pytest.mark.parametrize(
    ("words", "allowed"),
    [
        ([], False),
        (["--allow-deletes"], True),
        (["--allow-deletes=2019"], ["2019"]),
        (["--allow-deletes=2019", "--allow-deletes=a b"], ["2019", "a b"]),
        (["--allow-deletes=2019", "--allow-deletes"], True),
    ],
)
def test_deletes_are_allowed_everywhere_or_in_folders(
    fake: Fake, state: Path, words: list[str], allowed: bool | list[str]
) -> None:
    """Only what stands behind an equals sign is a folder: before the plan the option may stand alone."""
    got: dict[str, Any] = {}

    def run(plan: Any, **options: Any) -> Summary:
        got.update(options)
        return Summary()

    fake("ferryman.operations.run", run=run)
    assert start(["run", *words, "plan.py", "--json"]) == 0
    assert got["allow_deletes"] == allowed


def test_run_tells_what_is_left_and_what_to_type(fake: Fake, state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Counts, the newest few with their reasons, the commands that go on; the exit code is the run's."""
    fake(
        "ferryman.operations.run",
        run=lambda plan, **_: Summary(3, 2, 2, dropped=1, rejected=3),
    )
    fake(
        "ferryman.account",
        deliveries=lambda root, status, limit, plan: [row("a b.txt", status, "not\nUTF-8")][:limit],
    )

    code = start(["run", "plan.py", "--state", "my state"])

    assert code == 3
    assert capsys.readouterr().out.splitlines() == [
        "2 waves: 2 delivered, 1 dropped",
        "3 rejected, the newest of them:",
        "  a b.txt for index: not UTF-8",
        "All rejected: ferryman deliveries plan.py --state 'my state' --status rejected",
        "A document that changes is tried again by itself; to retry all: ferryman retry plan.py --state 'my state'",
    ]


def test_run_tells_that_something_is_pending(fake: Fake, state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is pending is not lost: the next run sends it."""
    fake("ferryman.operations.run", run=lambda plan, **_: Summary(exit=4, pending=7))
    fake("ferryman.account", reasons=lambda root, status, limit, plan: [])

    assert start(["run", "plan.py"]) == 4
    out = capsys.readouterr().out.splitlines()
    assert out[1:] == ["7 pending", "The next run sends what is pending: ferryman run plan.py"]


def test_a_run_without_news_says_so(fake: Fake, state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No wave: nothing had changed."""
    fake("ferryman.operations.run", run=lambda plan, **_: Summary(waves=0, delivered=0))

    assert start(["run", "plan.py"]) == 0
    assert capsys.readouterr().out == "Nothing has changed since the last run.\n"


@pytest.mark.parametrize("code", [2, 4])
def test_a_run_that_only_held_something_back_does_not_say_so(
    fake: Fake, state: Path, capsys: pytest.CaptureFixture[str], code: int
) -> None:
    """Deletes, or a whole source, wait: something has changed."""
    fake("ferryman.operations.run", run=lambda plan, **_: Summary(exit=code, waves=0, delivered=0))

    assert start(["run", "plan.py"]) == code
    assert capsys.readouterr().out.startswith("Nothing was delivered.\n")


INTERRUPTED = "interrupted: nothing is lost. Type the same again: what was committed is sent first.\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_ends_with_130(
    fake: Fake, state: Path, capsys: pytest.CaptureFixture[str], number: signal.Signals
) -> None:
    """Ctrl-C, and SIGTERM like it: the person is told how to go on, and the signals are as they were."""
    before = signal.getsignal(number)

    def run(plan: Any, **_: Any) -> Summary:
        signal.raise_signal(number)
        return Summary()

    fake("ferryman.operations.run", run=run)

    assert start(["run", "plan.py"]) == 130
    assert capsys.readouterr() == ("", INTERRUPTED)
    assert signal.getsignal(number) is before


def test_an_interrupt_is_not_lost_in_spark(fake: Fake, state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Spark's bridge turns the KeyboardInterrupt into a failed job: the run ends all the same, at its next word.

    Spark also takes SIGINT for itself when it starts; its handler is called by ours, for it cancels the jobs.
    """
    cancelled = []

    def cancel(number: int, frame: object) -> None:
        cancelled.append(number)
        raise KeyboardInterrupt

    def run(plan: Any, observer: Any, **_: Any) -> Summary:
        signal.signal(signal.SIGINT, cancel)
        observer.phase(1, "deliver")
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            observer.message("destination index: Spark: Answer from Java side is empty")
        return Summary()

    fake("ferryman.operations.run", run=run)

    assert start(["run", "plan.py"]) == 130
    assert capsys.readouterr() == ("", INTERRUPTED)
    assert cancelled == [signal.SIGINT]


@pytest.mark.parametrize(
    ("raised", "code", "told"),
    [
        (StateHeld("/s", "here", 7, "noon"), 1, "error: /s is held by process 7 on here since noon."),
        (EngineError("Spark\nfailed"), 1, "error: Spark failed"),
        (UsageError("no"), 2, "error: no"),
        (ValueError("oh\ndear"), 1, "error: ValueError: oh. This is a fault of Ferryman's; -v shows"),
        (PermissionError(13, "Permission denied", "/x"), 1, "error: /x: Permission denied."),
    ],
)
def test_an_error_ends_with_its_code(
    fake: Fake, state: Path, capsys: pytest.CaptureFixture[str], raised: Exception, code: int, told: str
) -> None:
    """One line on stderr, nothing on stdout, no traceback."""

    def run(plan: Any, **_: Any) -> Summary:
        raise raised

    fake("ferryman.operations.run", run=run)

    assert start(["run", "plan.py", "--json"]) == code
    captured = capsys.readouterr()
    assert captured.err.startswith(told)
    assert captured.err.count("\n") == 1
    assert captured.out == ""


def test_progress_goes_to_stderr(fake: Fake, state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Results own stdout."""

    def run(plan: Any, observer: Any, **_: Any) -> Summary:
        observer.phase(1, "deliver")
        observer.settled(2, 0, 0)
        return Summary()

    fake("ferryman.operations.run", run=run)

    assert start(["run", "plan.py", "--json"]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("wave 1: deliver: ")
    assert lines[1:] == ["wave 1: 2 delivered, 0 pending, 0 failed"]


# --- preview ------------------------------------------------------------------------------------------------------


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
    return SimpleNamespace(**{"gets": [], "dropped": [], "refused": [], "errors": [], "waiting": 0, **lists})


@pytest.fixture
def previewed(fake: Fake, state: Path) -> SimpleNamespace:
    """What the engine says; ``asked``: what it was asked."""
    found = SimpleNamespace(asked={}, documents=[], destinations={}, more={}, unread=0)
    found.as_dict = lambda: {"plan": "small", "documents": found.documents}

    def preview(plan: Any, **options: Any) -> SimpleNamespace:
        found.asked = {**options, "plan": plan.key}
        del found.asked["observer"]
        return found

    fake("ferryman.engine.preview.preview", preview=preview)
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
        "3 documents: 2 new, 1 gone",
        "index first gets what waits for it: 5 of earlier waves",
        "index would get 3 deliveries:",
        "  upsert a.txt",
        f'    fields: {{"title": "É", "long": "{LONG}"}}',
        f"    text: {LONG} end",
        "  upsert b.txt by left/right",
        "    7 bytes that are no UTF-8 text",
        "  delete c.txt",
        "index: 1 dropped:",
        "  d.txt: a draft",
        "index: 1 refused:",
        "  e.txt: not UTF-8",
        "index: 1 would fail, and be tried again:",
        "  f.txt (attempt 2 of 3): busy",
        "copy would get 0 deliveries",
        "A run would take up 1201 more: 1200 new, 1 asked for by `retry --force`",
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


def test_preview_of_nothing_says_so(previewed: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is new, nothing is due."""
    previewed.destinations = {"index": expected()}
    assert start(["preview", "plan.py"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == (
        "A run would take up nothing: nothing has changed since the last one, and nothing is due."
    )


def test_every_reason_has_words() -> None:
    """Those of the judge but ``look``, which is read; and two of documents that are asked for."""
    from ferryman.cli.preview import REASONS

    judged = set(re.findall(r"'(\w+)'", inspect.getsource(SourceComparison._reason))) - {"upsert", "delete", "look"}
    assert set(REASONS) == judged | {"unchanged", "later"}


def test_an_interrupted_preview_ends_with_130(fake: Fake, state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """There is nothing to go on with."""

    def preview(plan: Any, **_: Any) -> None:
        signal.raise_signal(signal.SIGINT)

    fake("ferryman.engine.preview.preview", preview=preview)
    assert start(["preview", "plan.py"]) == 130
    assert capsys.readouterr() == ("", "interrupted: nothing was written.\n")


# --- status, docs, history ----------------------------------------------------------------------------------------

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
    fake("ferryman.account", status=lambda root, plan: STATUS, waves=lambda root, plan: [wave])

    assert start(["status", "plan.py"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "plan small, version 2: 1 wave",
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
    fake("ferryman.account", status=lambda root, plan: STATUS)

    assert start(["status", "plan.py", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == STATUS


def test_status_says_loudly_that_it_is_not_balanced(
    fake: Fake, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An unbalanced account is the one thing that nobody may miss."""
    fake(
        "ferryman.account",
        status=lambda root, plan: STATUS | {"balanced": False},
        waves=lambda root, plan: [],
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

    fake("ferryman.account", each_delivery=deliveries)

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
        each_delivery=lambda root, limit, plan: iter(deliveries(root, limit, plan)),
        number_of_deliveries=lambda root, plan: 2500,
    )

    assert start(["deliveries", "plan.py"]) == 0
    captured = capsys.readouterr()
    assert len(captured.out.splitlines()) == 1 + 1000
    assert captured.err == "These are the 1000 newest of 2500: --limit 2500 shows all of them, and so does --json.\n"
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
    assert captured.err.startswith("These are the 50 newest of 2500: ")
    assert limits == [1001, 2501, None, 7, 51]


def test_incomplete_families_are_as_many_as_deliveries(
    fake: Fake, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a pipe 1000, as JSON all."""
    found = [Wholeness("files", f"{n:04}", 1, 0, 1, 0, 0, 0) for n in range(1200)]
    fake("ferryman.account.families", incomplete=lambda root, plan, source, family: found)

    assert start(["deliveries", "plan.py", "--incomplete"]) == 0
    captured = capsys.readouterr()
    assert len(captured.out.splitlines()) == 1 + 1000 + 1
    assert captured.err == "These are 1000 of 1200: --limit 1200 shows all of them, and so does --json.\n"
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
    fake("ferryman.account.families", of_family=lambda root, family, plan: [])
    fake("ferryman.account", history=lambda root, document, plan: events if document == "a.txt" else [])

    assert start(["history", "plan.py", "a.txt"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["2025-01-31", "12:00:00", "1", "a.txt", "index", "upsert", "ERROR", "1", "down"]
    assert lines[-1] == "a.txt: version 00ff, revision 1, from source files"


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

    fake("ferryman.operations.retry", retry=retry)

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
        "force": True,
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
        search=lambda db, text, table, limit: hits if (db, text, table, limit) == ("i", "w", "t", 2) else [],
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
    fake("ferryman.operations.fsck", check=lambda root: findings)

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
